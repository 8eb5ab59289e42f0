"""A start for the readout: W_p and zeta_p in closed form, from what the Bridge leaves, beyond the paper [ours].

    min  sum over slots of ||z W_p^K + zeta_p^K - (K* - K^B)||^2 / r(K*)^2  +  lambda ||W_p^K||^2,   V likewise,
    lambda = ridge * the mean of the diagonal of the unit's weighted Z^T Z,   r(v)^2 = ||v||^2 / d_T + eps

The weights are those of the loss, in which every slot's error counts against its own size. The paper starts the readout at zero and leaves
it to a few hundred steps; on a real pair these do not reach what a linear map of the same z explains (`experiments/LOG.md`). Sums over the
slots of frozen selections in float64; one Cholesky solve for each unit. W_xi stays zero, a unit without a slot keeps its zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

from acct.compiler.grouped import UnitGroups
from acct.compiler.residual import Residual
from acct.errors import ConfigError

KINDS = ("keys", "values")


class ReadoutStatistics:
    """Weighted sums of [z; 1] and of what is left, float64, for keys and for values.

    Attributes:
        products: [kind, unit, width + 1, width + 1]. cross: [kind, unit, width + 1, dim].
    """

    def __init__(self, units: int, width: int, dim: int, device: torch.device | str = "cpu") -> None:
        options = {"dtype": torch.float64, "device": device}
        self.products = torch.zeros(2, units, width + 1, width + 1, **options)
        self.cross = torch.zeros(2, units, width + 1, dim, **options)

    def sums(self) -> dict[str, Tensor]:
        """What is summed, by name."""
        return {"products": self.products, "cross": self.cross}

    @torch.no_grad()
    def add(
        self, z: Tensor, row: Tensor, groups: UnitGroups, left: tuple[Tensor, Tensor], native: tuple[Tensor, Tensor], epsilon: float = 1e-6
    ) -> None:
        """Add the slots of a batch.

        Args:
            z: [row, width]; row: int64 [slot], the row that each slot reads. groups: of the selection.
            left: K* - K^B and V* - V^B, native: K* and V*, all [slot, dim].
        """
        for kind in range(2):
            weights = (native[kind].double().square().mean(-1) + epsilon).rsqrt()  # [slot]
            for block in groups.blocks:
                weight = (weights[block.index] * block.valid)[..., None]  # [group, width of the block, 1]
                x = z[row[block.index]].double()
                x = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1) * weight
                self.products[kind].index_add_(0, block.units, x.mT @ x)
                self.cross[kind].index_add_(0, block.units, x.mT @ (left[kind][block.index].double() * weight))

    def solve(self, ridge: float) -> tuple[Tensor, Tensor]:
        """Maps with their biases as last rows, for keys and for values: two [unit, width + 1, dim], float64.

        Raises:
            ConfigError: a unit's system is singular.
        """
        diagonal = self.products.diagonal(dim1=-2, dim2=-1)  # [kind, unit, width + 1]
        penalty = ridge * diagonal[..., :-1].mean(-1, keepdim=True).expand_as(diagonal).clone()
        penalty[..., -1] = 0
        empty = diagonal[..., -1:] == 0
        factor, info = torch.linalg.cholesky_ex(self.products + torch.diag_embed(penalty + empty.to(penalty)))
        if bool(info.any()):
            kind, unit = info.nonzero()[0].tolist()
            raise ConfigError(
                f"the readout of the {KINDS[kind]} of unit {unit} is singular at compiler.readout_ridge={ridge:g}: raise it, or fit on "
                "more examples (training.compiler.examples)."
            )
        maps = torch.cholesky_solve(self.cross, factor)
        return maps[0], maps[1]


@torch.no_grad()
def start_readout(residual: Residual, statistics: ReadoutStatistics, ridge: float) -> None:
    """Write the maps into the residual."""
    for maps, readout, bias in zip(
        statistics.solve(ridge), (residual.key_readout, residual.value_readout), (residual.key_bias, residual.value_bias)
    ):
        readout.copy_(maps[:, :-1])
        bias.copy_(maps[:, -1])
