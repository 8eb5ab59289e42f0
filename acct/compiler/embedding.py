"""A start for W_E: the directions of the source states from which the target's keys and values are best predicted [ours].

The text does not say how W_E starts. A random projection of [H_c ; taps] to width w_W keeps a random part of them, at very unequal
scales, and the readout then learns slowly. Reduced-rank regression gives the projection that loses least: with centred source states x,
standardised target states y (keys before RoPE and values of every unit, same position), C_xx = V L V^T and

    W = L^{-1/2} V^T,    W C_xy = U S R^T,    W_E = (first w_W columns of U)^T W,    bias = -W_E mean(x)

E starts white (identity covariance) and ordered by what it predicts. With an anchor a > 0 the last coordinate is the constant
a sqrt(w_W - 1) instead: the norm of E is then nearly the same at every token, so that the RMSNorm before the readout hardly bends what is
linear. On the embedded pairs, whose states are nearly linear in one another, that bend adds nearly half to what a linear
map leaves unexplained (`experiments/LOG.md`).

Costs O(a b) memory for widths a = 4 D_S and b = 2 P d_T: meant for small geometries; `compiler.embedding_start=random` is the start
everywhere else. Statistics in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from acct.types import NativeStates, SourceStates


class EmbeddingStatistics:
    """Sums over context positions of source states x [a] and target states y [b].

    Args:
        stride: every how many positions one is read.
    """

    def __init__(self, inputs: int, outputs: int, device: torch.device | str = "cpu", stride: int = 1) -> None:
        self.stride = stride
        options = {"dtype": torch.float64, "device": device}
        self.rows = torch.zeros((), **options)
        self.x, self.y, self.yy = torch.zeros(inputs, **options), torch.zeros(outputs, **options), torch.zeros(outputs, **options)
        self.xx, self.xy = torch.zeros(inputs, inputs, **options), torch.zeros(inputs, outputs, **options)

    @torch.no_grad()
    def add(self, states: SourceStates, native: NativeStates) -> None:
        """Add the context positions of a batch; padding is left out."""
        place = torch.arange(0, states.context_hidden.shape[1], self.stride, device=states.context_hidden.device)
        valid = place < states.context_lengths[:, None]  # [batch, position]
        x = torch.cat([states.context_hidden[:, place], *states.taps[:, :, place].unbind(1)], dim=-1)[valid].float()
        y = target_rows(native, place, valid)
        self.rows += len(x)
        self.x += x.sum(0, dtype=torch.float64)
        self.y += y.sum(0, dtype=torch.float64)
        self.yy += y.double().square().sum(0)
        self.xx += (x.mT @ x).double()  # one batch in float32, the sum over batches in float64
        self.xy += (x.mT @ y).double()

    def merge(self, other: EmbeddingStatistics) -> None:
        """Add what another process has seen."""
        for name, value in other.sums().items():
            setattr(self, name, getattr(self, name) + value.to(self.x.device))

    def sums(self) -> dict[str, Tensor]:
        """What is summed, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def source_scale(self) -> Tensor:
        """Root mean square of every number of the source states: float64 [a]."""
        return (self.xx.diagonal() / self.rows).sqrt()

    def solve(self, width: int, floor: float = 1e-6, anchor: float = 0.0) -> tuple[Tensor, Tensor]:
        """W_E [width, a] and its bias [width], float32.

        Args:
            width: w_W, at most a. anchor: size of the constant last coordinate against the root mean square of the others' norm; 0:
                none. floor: directions whose variance is below this fraction of the mean variance are treated as having it.
        """
        mean_x, mean_y = self.x / self.rows, self.y / self.rows
        covariance = self.xx / self.rows - mean_x[:, None] * mean_x
        cross = self.xy / self.rows - mean_x[:, None] * mean_y
        spread = (self.yy / self.rows - mean_y.square()).clamp_min(0).sqrt()
        cross = cross / spread.clamp_min(spread.mean() * floor)
        variances, directions = torch.linalg.eigh(covariance)
        whiten = directions.mT / variances.clamp_min(variances.mean() * floor).sqrt()[:, None]
        gain = whiten @ cross
        order = torch.linalg.svd(gain, full_matrices=len(gain) > gain.shape[1])[0]  # [a, a]
        weight = order[:, :width].mT @ whiten
        bias = -weight @ mean_x
        if anchor > 0:
            weight[-1], bias[-1] = 0, anchor * (width - 1) ** 0.5
        return weight.float(), bias.float()


def target_rows(native: NativeStates, place: Tensor, valid: Tensor) -> Tensor:
    """y [row, 2 P d_T]: of every unit its key before RoPE and its value, at the positions `place` [position] of examples where `valid`
    [batch, position]."""
    y = torch.cat([native.context_keys_pre[:, :, place], native.context_values[:, :, place]], dim=-1)
    return y.transpose(1, 2).flatten(2)[valid].float()
