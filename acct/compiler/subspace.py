"""One source vector for all units: the directions of everything that is known of a position from which the target is best predicted [ours].

    x_i = [k_i of all source layers and heads; v_i likewise; e(t_i); e(t_{i-1}); ...],    h_i = P^T (x_i - mean)

Beyond the paper and off by default. The Bridge of the paper reads one source head for a unit, its key for the key and its value for the
value. A target key depends on more: on what the other layers hold, and in the first layers on the tokens themselves (what each part brings:
`experiments/LOG.md`). e(t) is the target's own embedding at unit root mean square, a look-up, without a forward pass; rows before the
first position are zero.

P is a reduced-rank ridge regression of the target's keys and values (every unit at unit scale) on x (every number at unit scale), over
context positions: with S the correlations of x and C those of x with y,

    S + lambda I = L L^T,    K = L^{-1} C,    U = the first `width` left singular vectors of K,    P = D^{-1} L^{-T} U

The Bridge then reads h as if the source had one layer and one head of that width (`subspace_geometry`), and is fitted for each unit at the
positions that it keeps. The singular vectors come from a seeded subspace iteration.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from acct.compiler.embedding import target_rows
from acct.compiler.finite import check_finite
from acct.errors import ConfigError, InterfaceError
from acct.geometry import PairGeometry
from acct.types import NativeStates, SourceStates

ROWS = 4096
"""Rows of x that are multiplied at once."""
OVERSAMPLING, ITERATIONS = 64, 3


def subspace_geometry(geometry: PairGeometry, width: int) -> PairGeometry:
    """The pair as the Bridge sees it: a source of one layer with one head of `width`."""
    return PairGeometry(replace(geometry.source, layers=1, kv_heads=1, query_heads=1, head_dim=width), geometry.target)


def subspace_inputs(geometry: PairGeometry, tokens: int) -> int:
    """Numbers of x: 2 L_S H_S d_S and D_T for each of `tokens` embeddings."""
    return 2 * geometry.source.units * geometry.source.head_dim + tokens * geometry.target.hidden


class Subspace(nn.Module):
    """x -> h. Frozen; zero until fitted or loaded.

    Args:
        width: numbers of h. tokens: embeddings in x, of the position's own token and of those before it.
    """

    def __init__(self, geometry: PairGeometry, width: int, tokens: int) -> None:
        super().__init__()
        inputs = subspace_inputs(geometry, tokens)
        if width > inputs:
            raise ConfigError(f"compiler.subspace_width={width} exceeds the {inputs} numbers that are known of a position; lower it.")
        self.tokens = tokens
        self.weight = nn.Parameter(torch.zeros(inputs, width), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(width), requires_grad=False)
        self._table: tuple[Tensor, ...] = ()  # no parameter of this module

    def bind(self, table: Tensor) -> Subspace:
        """Read embeddings from the target's table [vocabulary, D_T], which stays the target's."""
        self._table = (table,)
        return self

    @property
    def table(self) -> Tensor | None:
        """What is bound."""
        return self._table[0] if self._table else None

    def known(self, states: SourceStates, place: Tensor | None = None) -> Tensor:
        """x at context positions: [batch, position, inputs], in the weights' type.

        Args:
            place: int64 [position], those wanted; None for all.
        Raises:
            InterfaceError: no table of embeddings is bound.
        """
        if self.tokens and not self._table:
            raise InterfaceError(
                "the Compiler reads the target's token embeddings (compiler.subspace_tokens) and no table is bound: load it with the pair "
                "(`load_interface`), or call `compiler.subspace.bind(target.parts.embedding.weight)`."
            )
        context, device = states.context_ids.shape[1], states.keys_pre.device
        place = torch.arange(context, device=device) if place is None else place
        dtype = self.weight.dtype
        parts = [part[:, :, :, place].movedim(3, 1).flatten(2).to(dtype) for part in (states.keys_pre, states.values)]
        for before in range(self.tokens):
            ids = states.context_ids[:, (place - before).clamp(min=0)]
            row = functional.embedding(ids.to(self._table[0].device), self._table[0]).to(device, dtype)
            row = row * row.square().mean(-1, keepdim=True).clamp_min(torch.finfo(dtype).tiny).rsqrt()
            parts.append(row.masked_fill((place < before)[:, None], 0))
        return torch.cat(parts, dim=-1)

    def forward(self, states: SourceStates) -> SourceStates:
        """The states with h [batch, 1, 1, context, width] in place of keys and of values."""
        h = (self.known(states) @ self.weight + self.bias)[:, None, None]
        return replace(states, keys_pre=h, values=h)


class SubspaceStatistics:
    """Sums over context positions of x [a] and y [b], float64; each product is taken about the mean of its own rows, so that a
    large common offset costs no digits.

    Args:
        subspace: reads x. stride: every how many positions one is read.
    """

    def __init__(self, subspace: Subspace, geometry: PairGeometry, stride: int = 1) -> None:
        self.subspace, self.stride, self.geometry = subspace, stride, geometry
        a, b, device = len(subspace.weight), 2 * geometry.units * geometry.target.head_dim, subspace.weight.device
        options = {"dtype": torch.float64, "device": device}
        self.rows = torch.zeros((), **options)
        self.x, self.y, self.yy = torch.zeros(a, **options), torch.zeros(b, **options), torch.zeros(b, **options)
        self.xx, self.xy = torch.zeros(a, a, **options), torch.zeros(a, b, **options)
        self._held: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def add(self, states: SourceStates, native: NativeStates) -> None:
        """Add the context positions of a batch; padding is left out.

        Raises:
            InputError: a state or an embedding is NaN or Inf; nothing was added then.
        """
        place = torch.arange(0, states.context_ids.shape[1], self.stride, device=states.context_ids.device)
        valid = place < states.context_lengths[:, None]
        found = self.subspace.known(states, place)[valid].float(), target_rows(native, place, valid)
        for what, vectors in zip(("source keys, values or embeddings", "the native target states"), found):
            check_finite(vectors, what, "context positions", "the subspace")
        self._held.append(found)
        if sum(len(x) for x, _ in self._held) >= ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        x, y = (torch.cat(parts) for parts in zip(*self._held))
        self._held.clear()
        n, x_mean, y_mean = len(x), x.mean(0, dtype=torch.float64), y.mean(0, dtype=torch.float64)
        x, y = x - x_mean.float(), y - y_mean.float()
        x_mean, y_mean = x_mean.float().double(), y_mean.float().double()  # what was taken off
        x_left, y_left = x.sum(0, dtype=torch.float64), y.sum(0, dtype=torch.float64)
        self.rows += n
        self.x += n * x_mean + x_left
        self.y += n * y_mean + y_left
        self.yy += y.double().square().sum(0) + 2 * y_mean * y_left + n * y_mean.square()
        xt = x.mT.contiguous()
        self.xx += xt @ x
        self.xx.addr_(x_left, x_mean).addr_(x_mean, x_left + n * x_mean)
        self.xy += xt @ y
        self.xy.addr_(x_left, y_mean).addr_(x_mean, y_left + n * y_mean)

    def sums(self) -> dict[str, Tensor]:
        """What is summed, by name."""
        self._flush()
        return {name: getattr(self, name) for name in ("rows", "x", "y", "yy", "xx", "xy")}

    @torch.no_grad()
    def solve(self, ridge: float, floor: float = 1e-6) -> None:
        """Write weight and bias of the subspace; the sums are used up.

        Args:
            ridge: lambda, against the 1 of every number of x. floor: a number of x whose spread is below this fraction of the mean spread
                counts as having it.
        Raises:
            ConfigError: no row, or a singular system.
        """
        self._flush()
        if not float(self.rows):
            raise ConfigError("the subspace has no context position to be fitted on: raise training.compiler.examples.")
        width, n = self.subspace.weight.shape[1], self.rows
        x_mean, y_mean = self.x / n, self.y / n
        spread = (self.xx.diagonal() / n - x_mean.square()).clamp_min(0).sqrt()
        spread.clamp_min_(spread.mean() * floor)
        variance = (self.yy / n - y_mean.square()).clamp_min(0).view(-1, self.geometry.target.head_dim)
        scale = variance.mean(1, keepdim=True).sqrt()
        scale = scale.clamp_min(scale.mean() * floor).expand_as(variance).flatten()
        system = self.xx.div_(n).addr_(x_mean, x_mean, alpha=-1).div_(spread[:, None]).div_(spread)
        system.diagonal().add_(ridge)
        factor, info = torch.linalg.cholesky_ex(system)
        if int(info):
            raise ConfigError(f"the subspace is singular at compiler.subspace_ridge={ridge:g}: raise it, or fit on more examples.")
        cross = self.xy.div_(n).addr_(x_mean, y_mean, alpha=-1).div_(spread[:, None]).div_(scale).float()
        gain = torch.linalg.solve_triangular(factor.float(), cross, upper=False)
        basis = torch.linalg.solve_triangular(factor.mT, leading(gain, width).double(), upper=True) / spread[:, None]
        self.subspace.weight.copy_(basis)
        self.subspace.bias.copy_(-(x_mean @ basis))
        del self.xx, self.xy


def leading(matrix: Tensor, width: int) -> Tensor:
    """The first `width` left singular vectors of [a, b], [a, width], by a seeded subspace iteration; beyond the rank any directions."""
    a = len(matrix)
    drawn = min(width + OVERSAMPLING, a)
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(a, drawn, generator=generator).to(matrix)
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(matrix @ (matrix.mT @ basis))[0]
    seen = matrix.mT @ basis  # [b, drawn]
    _, vectors = torch.linalg.eigh((seen.mT @ seen).double())  # ascending
    return basis @ vectors.flip(1)[:, :width].to(basis)
