"""The Bridge: one affine map of keys and one of values for every target unit, in closed form (spec 4, paper A.2.1).

    K^B = K_S[pi_L, pi_H] A_p^K + b_p^K,   A = (X_c^T X_c + lambda_B I)^{-1} X_c^T Y_c,   b = mean(Y) - A^T mean(X),
    lambda_B = ridge * d_T / 128

X, Y: pre-RoPE source and native target vectors at the positions of frozen selections. lambda_B acts on sums over rows, not on
means, and the bias is not penalised. Sums accumulate in float64, centred, batch by batch with Chan's update, so that a large
common offset costs no digits; all units are solved by one batched Cholesky factorisation in float64; maps are stored in float32.
A unit without a row gets a zero map and the mean target vector of its layer as bias [ours].

Beyond the paper the source vectors of several layers and heads may stand side by side in X (`PairGeometry.source_reads`, spec 11).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from acct.compiler.finite import check_finite
from acct.compiler.grouped import UnitGroups
from acct.errors import ConfigError, SelectionError
from acct.geometry import PairGeometry
from acct.selection import gather_native, gather_source, slots_by_unit
from acct.types import NativeStates, Selection, SourceStates

logger = logging.getLogger(__name__)
KINDS = ("keys", "values")


class Bridge(nn.Module):
    """Frozen affine maps [unit, features, dim] and biases [unit, dim], for keys and for values. Zero until fitted or loaded.

    Attributes:
        reads: the source vectors [layer * head] of every unit, features = reads x source dim; (pi_L, pi_H) unless told otherwise.
    """

    def __init__(self, geometry: PairGeometry, reads: Sequence[Sequence[int]] | None = None) -> None:
        super().__init__()
        self.geometry = geometry
        self.reads = geometry.source_reads() if reads is None else reads
        units, features, dim = geometry.units, len(self.reads[0]) * geometry.source.head_dim, geometry.target.head_dim
        for name, shape in (("map", (units, features, dim)), ("bias", (units, dim))):
            for kind in ("key", "value"):
                self.register_parameter(f"{kind}_{name}", nn.Parameter(torch.zeros(shape), requires_grad=False))

    def forward(self, states: SourceStates, selection: Selection, groups: UnitGroups | None = None) -> tuple[Tensor, Tensor]:
        """K^B and V^B at every slot, keys before RoPE.

        Args:
            states: any dtype; only keys and values at selected positions are read, and cast to the maps' dtype.
            groups: `UnitGroups.of(selection)`, when it is at hand.
        Returns:
            Two [slot, dim] in the selection's packed order.
        """
        groups = UnitGroups.of(selection) if groups is None else groups
        return self.mapped(*gather_source(selection, states, self.geometry, self.reads), groups)

    def mapped(self, keys: Tensor, values: Tensor, groups: UnitGroups) -> tuple[Tensor, Tensor]:
        """The same for source vectors at the slots, two [slot, features]."""
        keys, values = (x.to(self.key_map.dtype) for x in (keys, values))
        return (
            groups.linear([(keys, None, self.key_map)], self.key_bias),
            groups.linear([(values, None, self.value_map)], self.value_bias),
        )


class BridgeStatistics:
    """n, means and centred sums of products of every unit, float64, for keys and values.

    Args:
        shared: keys and values are mapped from the same source vectors (a subspace's); what is summed over these has one kind then.
    Attributes:
        reads: as the Bridge's. rows: float64 [unit].
        source_mean [kind, unit, features], target_mean [kind, unit, dim]; kind = keys, values.
        source_products X_c^T X_c [kind, unit, features, features], cross_products X_c^T Y_c [kind, unit, features, dim],
        target_squares diag(Y_c^T Y_c) [kind, unit, dim].
    """

    def __init__(
        self,
        geometry: PairGeometry,
        device: torch.device | str = "cpu",
        reads: Sequence[Sequence[int]] | None = None,
        shared: bool = False,
    ) -> None:
        self.geometry = geometry
        self.shared = shared
        self.reads = geometry.source_reads() if reads is None else reads
        units, source_dim, dim = geometry.units, len(self.reads[0]) * geometry.source.head_dim, geometry.target.head_dim

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.rows = zeros(units)
        kinds = 1 if shared else 2
        self.source_mean, self.target_mean = zeros(kinds, units, source_dim), zeros(2, units, dim)
        self.source_products, self.cross_products = zeros(kinds, units, source_dim, source_dim), zeros(2, units, source_dim, dim)
        self.target_squares = zeros(2, units, dim)

    @torch.no_grad()
    def add(self, states: SourceStates, selection: Selection, native: NativeStates) -> None:
        """Add the selected positions of one batch.

        Raises:
            InputError: a selected key or value is NaN or Inf; nothing was added then.
            SelectionError: states of another batch or pair.
        """
        if native.context_keys_pre.shape[-1] != self.geometry.target.head_dim or states.keys_pre.shape[-1] != self.geometry.source.head_dim:
            raise SelectionError(
                f"head widths {states.keys_pre.shape[-1]} -> {native.context_keys_pre.shape[-1]} do not fit the pair's "
                f"{self.geometry.source.head_dim} -> {self.geometry.target.head_dim}. Read both from the models of this direction."
            )
        pairs = list(zip(gather_source(selection, states, self.geometry, self.reads), gather_native(selection, native)))
        for kind, (source, target) in zip(KINDS, pairs):
            for side, vectors in (("source", source), ("native target", target)):
                check_finite(vectors, f"the {side} {kind}", "selected slots", "the Bridge")
        order, counts = slots_by_unit(selection), selection.counts.sum(0).tolist()
        before = self.rows.tolist()
        for unit, slots in enumerate(order.split(counts)):
            if len(slots):
                for kind, vectors in enumerate(pairs):
                    self._add(kind, unit, before[unit], *(v[slots.to(v.device)].to(self.rows.device, torch.float64) for v in vectors))
        self.rows += selection.counts.sum(0).to(self.rows)

    def _add(self, kind: int, unit: int, before: float, x: Tensor, y: Tensor) -> None:
        """Rows x [row, features] and y [row, dim] of one unit that has seen `before` rows; products go into the sums in place.

        With many features the sums are large (a gigabyte for eight layers of a real pair), and one more copy of them would cost as much as
        the products.
        """
        x_mean, y_mean = x.mean(0), y.mean(0)
        x, y = x - x_mean, y - y_mean
        share = len(x) / (before + len(x))
        place = self._source(kind)
        dx, dy = x_mean - self.source_mean[place, unit], y_mean - self.target_mean[kind, unit]
        if place == kind:
            self.source_products[place, unit].addmm_(x.mT, x).addr_(dx, dx, alpha=before * share)
        self.cross_products[kind, unit].addmm_(x.mT, y).addr_(dx, dy, alpha=before * share)
        self.target_squares[kind, unit] += y.square().sum(0) + dy.square() * (before * share)
        if kind == 1 or not self.shared:  # values come last, and both look at the mean from before
            self.source_mean[place, unit] += dx * share
        self.target_mean[kind, unit] += dy * share

    def _source(self, kind: int) -> int:
        """Where the sums over the source vectors of this kind stand."""
        return 0 if self.shared else kind

    def merge(self, other: BridgeStatistics) -> None:
        """Add what another accumulation of the same pair has seen (another process, another part of the data).

        Chan, Golub, LeVeque: M = M_a + M_b + delta delta^T n_a n_b / (n_a + n_b).
        """
        own = vars(other).items()
        there = {name: value.to(self.rows.device) for name, value in own if isinstance(value, Tensor)}
        total = self.rows + there["rows"]
        share = there["rows"] / total.clamp(min=1)  # [unit]
        dx, dy = there["source_mean"] - self.source_mean, there["target_mean"] - self.target_mean  # [kind, unit, dim]
        weighted = dx * (self.rows * share)[:, None]
        self.source_products += there["source_products"] + weighted[..., None] * dx[..., None, :]
        self.cross_products += there["cross_products"] + weighted[..., None] * dy[..., None, :]
        self.target_squares += there["target_squares"] + dy.square() * (self.rows * share)[:, None]
        self.source_mean += dx * share[:, None]
        self.target_mean += dy * share[:, None]
        self.rows = total

    def target_scale(self) -> Tensor:
        """How far the native vectors' numbers are from their means, root mean square: float64 [kind, unit]; 1 where nothing varies."""
        spread = (self.target_squares / self.rows.clamp(min=1)[:, None]).mean(-1).sqrt()
        return torch.where(spread > 0, spread, 1.0)

    def solve(self, ridge: float = 1e-2, dtype: torch.dtype = torch.float32) -> Bridge:
        """Fit the maps of all units.

        Args:
            ridge: lambda_B at head width 128; scaled by d_T / 128. At 0 every unit's source covariance must be regular.
            dtype: of the stored maps.
        Raises:
            ConfigError: a unit's system is singular.
        """
        dim = self.geometry.target.head_dim
        empty = self.rows == 0
        penalty = ridge * dim / 128 + empty.to(torch.float64)[:, None]  # [unit, 1]
        solved = []
        for kind in range(2):  # one after the other: a gigabyte less where features are many
            products = self.source_products[self._source(kind)]
            factor, info = torch.linalg.cholesky_ex(products + torch.diag_embed(penalty.expand(-1, products.shape[-1])))
            if bool(info.any()):
                unit = int(info.nonzero()[0])
                layer, head = divmod(unit, self.geometry.target.kv_heads)
                raise ConfigError(
                    f"the Bridge of the {KINDS[kind]} of unit (layer {layer}, head {head}) is singular at ridge {ridge:g} with "
                    f"{int(self.rows[unit])} rows for {products.shape[-1]} features. Raise compiler.ridge or fit on more examples."
                )
            solved.append(torch.cholesky_solve(self.cross_products[kind], factor))
        maps = torch.stack(solved)  # [kind, unit, source dim, dim]
        bias = self.target_mean - (self.source_mean[..., None, :] @ maps).squeeze(-2)
        if bool(empty.any()):
            logger.warning("%d of %d units have no selected position: zero map, mean of their layer as bias", int(empty.sum()), len(empty))
            weights = self.rows.view(self.geometry.target.layers, -1, 1)
            by_layer = self.target_mean.view(2, *weights.shape[:2], dim)
            mean = (by_layer * weights).sum(2, keepdim=True) / weights.sum(1, keepdim=True).clamp(min=1)
            bias = torch.where(empty[:, None], mean.expand_as(by_layer).reshape_as(bias), bias)
        bridge = Bridge(self.geometry, self.reads).to(self.rows.device, dtype)
        with torch.no_grad():
            bridge.key_map.copy_(maps[0]), bridge.value_map.copy_(maps[1])
            bridge.key_bias.copy_(bias[0]), bridge.value_bias.copy_(bias[1])
        return bridge


@torch.no_grad()
def held_out_r2(bridge: Bridge, statistics: BridgeStatistics) -> tuple[Tensor, Tensor]:
    """R2 of keys and of values for every unit: 1 - sum of squared errors / sum of squares about the mean, over rows and dims.

    Args:
        statistics: accumulated over examples that the Bridge was not fitted on (over its own: the in-sample R2).
    Returns:
        Two float64 [unit], at most 1, at most 0 when nothing is explained; NaN for a unit of fewer than two rows.
    """
    scores = []
    for kind, (fitted_map, bias) in enumerate(((bridge.key_map, bridge.key_bias), (bridge.value_map, bridge.value_bias))):
        maps = fitted_map.to(statistics.rows.device, torch.float64)
        mean, products = (x[0 if statistics.shared else kind] for x in (statistics.source_mean, statistics.source_products))
        shift = statistics.target_mean[kind] - (mean[:, None] @ maps)[:, 0] - bias.to(maps)
        quadratic = (maps * (products @ maps)).sum((1, 2))
        explained = 2 * (maps * statistics.cross_products[kind]).sum((1, 2)) - quadratic
        total = statistics.target_squares[kind].sum(-1)
        errors = total - explained + statistics.rows * shift.square().sum(-1)
        scores.append(torch.where((statistics.rows > 1) & (total > 0), 1 - errors / total, torch.nan))
    return scores[0], scores[1]


@dataclass(frozen=True)
class BridgeReport:
    """How well a Bridge is determined and how well it predicts.

    Attributes:
        rows: float64 [unit]. parameters_per_row: float64 [unit], (features + 1) / rows: regression coefficients of one output per row.
        keys, values: held-out R2, float64 [unit].
    """

    rows: Tensor
    parameters_per_row: Tensor
    keys: Tensor
    values: Tensor

    def by_layer(self, layers: int) -> list[dict[str, float]]:
        """Mean held-out R2 of each target layer, as plain numbers."""
        keys, values = (r2.view(layers, -1).nanmean(1).tolist() for r2 in (self.keys, self.values))
        return [{"layer": layer, "keys": keys[layer], "values": values[layer]} for layer in range(layers)]


def report(bridge: Bridge, fitted: BridgeStatistics, held_out: BridgeStatistics, warn_above: float = 0.2) -> BridgeReport:
    """Log rows, parameters / rows and held-out R2 of a fit, and warn when parameters / rows exceeds `warn_above`.

    Args:
        fitted, held_out: statistics of the fitted and of other examples. warn_above: raise it to silence the warning.
    """
    keys, values = held_out_r2(bridge, held_out)
    coefficients = bridge.key_map.shape[1] + 1
    ratio = coefficients / fitted.rows
    summary = BridgeReport(fitted.rows.clone(), ratio, keys, values)
    logger.info(
        "Bridge: %d to %d rows for a unit, parameters / rows at most %.3f, held-out R2 of keys %.3f, of values %.3f (means over units)",
        int(fitted.rows.min()), int(fitted.rows.max()), float(ratio.max()), float(keys.nanmean()), float(values.nanmean()),
    )  # fmt: skip
    if float(ratio.max()) > warn_above:
        unit = int(ratio.argmax())
        layer, head = divmod(unit, bridge.geometry.target.kv_heads)
        logger.warning(
            "Bridge: unit (layer %d, head %d) has %d rows for %d coefficients of each output (parameters / rows %.2f, above "
            "warn_above=%.2f): expect it to overfit. Fit on more examples or raise compiler.ridge.",
            layer, head, int(fitted.rows[unit]), coefficients, float(ratio[unit]), warn_above,
        )  # fmt: skip
    return summary
