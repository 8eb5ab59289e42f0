"""The closed-form fit of a `RidgeMap` (spec 11): uncentred ridge regression from streamed float64 sums.

    W = (X^T X + lambda I)^{-1} X^T Y,    keys before RoPE and values apart

X: source vectors of a group (several heads or layers side by side), Y: native target vectors, a row for every context position.
lambda acts on sums over rows, not on means; nothing is centred and there is no bias. Groups that read the same source vectors share
X^T X and its factorisation. Where the sums of all groups exceed the memory allowed, they are collected in several passes over the examples.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from acct.errors import ConfigError, SelectionError
from acct.methods.ridge_map import RidgeMap
from acct.types import NativeStates, SourceStates

ROWS = 4096
"""Rows of X that are held in float64 at once."""


class RidgeStatistics(nn.Module):
    """X^T X and X^T Y of one pass, and the map with what earlier passes solved: its state_dict is all that a resumed fit needs.

    Args:
        linear: the map that `solve` fills. gigabytes: of sums held at once; a single system that is larger is held all the same.
    Attributes:
        passes: indices of the distinct inputs of each pass. products: float64 [kind, input, features, features], kind = keys, values.
        cross: float64 [kind, group, features, outputs]. Both hold the current pass in their first places.
    """

    products: Tensor
    cross: Tensor

    def __init__(self, linear: RidgeMap, gigabytes: float = 4.0) -> None:
        super().__init__()
        self.linear = linear
        inputs, of_group = torch.unique(linear.rows, dim=0, return_inverse=True)
        members = [(of_group == index).nonzero().flatten().tolist() for index in range(len(inputs))]
        _, features, outputs = linear.key_map.shape
        self.inputs, self.members, self.passes = inputs, members, [[]]
        used = 0
        for index, groups in enumerate(members):
            size = 2 * 8 * features * (features + len(groups) * outputs)
            if self.passes[-1] and used + size > gigabytes * 2**30:
                self.passes.append([])
                used = 0
            self.passes[-1].append(index)
            used += size
        most = max(map(len, self.passes)), max(sum(len(members[index]) for index in one) for one in self.passes)
        device = linear.key_map.device
        for name, places, width in (("products", most[0], features), ("cross", most[1], outputs)):
            self.register_buffer(name, torch.zeros(2, places, features, width, dtype=torch.float64, device=device))

    @torch.no_grad()
    def add(self, number: int, states: SourceStates, native: NativeStates) -> None:
        """Add every context position of a batch to the sums of pass `number`.

        Raises:
            SelectionError: states of another pair, or of two different batches.
        """
        geometry, lengths = self.linear.geometry, states.context_lengths
        found = (states.keys_pre.shape[-1], native.context_keys_pre.shape[1], native.context_keys_pre.shape[-1])
        wanted = (geometry.source.head_dim, geometry.units, geometry.target.head_dim)
        if found != wanted or not torch.equal(lengths, native.context_lengths.to(lengths.device)):
            raise SelectionError(
                f"source head width, target units and target head width {found} do not fit the pair's {wanted}, or the contexts differ. "
                "Read both models over the same batch of this direction."
            )
        device = self.products.device
        sides = ((states.keys_pre, native.context_keys_pre), (states.values, native.context_values))
        inside = torch.arange(states.keys_pre.shape[3], device=lengths.device) < lengths[:, None]
        for part in inside.nonzero().split(ROWS):  # [row, 2]
            example, position = (part[:, column, None] for column in (0, 1))
            for kind, (source, target) in enumerate(sides):
                flat, entry = source.flatten(1, 2), 0  # [batch, layer * head, context, dim]
                for place, index in enumerate(self.passes[number]):
                    x = flat[example, self.inputs[index], position].flatten(1).to(device, torch.float64)  # [row, features]
                    self.products[kind, place].addmm_(x.T, x)
                    for group in self.members[index]:
                        y = target[example, self.linear.targets[group], position].flatten(1).to(device, torch.float64)
                        self.cross[kind, entry].addmm_(x.T, y)
                        entry += 1

    @torch.no_grad()
    def solve(self, number: int, penalty: float) -> None:
        """Write the maps of pass `number` into `linear` and empty the sums.

        Raises:
            ConfigError: a system is singular.
        """
        for kind, maps in enumerate((self.linear.key_map, self.linear.value_map)):
            entry = 0
            for place, index in enumerate(self.passes[number]):
                system = self.products[kind, place].clone()
                system.diagonal().add_(penalty)
                factor, info = torch.linalg.cholesky_ex(system)
                if int(info):
                    raise ConfigError(
                        f"the linear map from {len(self.inputs[index])} source heads is singular at ridge.penalty={penalty:g}: raise it, "
                        "or fit on more examples (training.compiler.examples)."
                    )
                groups = self.members[index]
                right = self.cross[kind, entry : entry + len(groups)].transpose(0, 1).flatten(1)  # [features, group * outputs]
                solved = torch.cholesky_solve(right, factor).unflatten(1, (len(groups), -1)).transpose(0, 1)
                maps[groups] = solved.to(maps.dtype)
                entry += len(groups)
        self.products.zero_(), self.cross.zero_()


class HeldOut:
    """R2 of a map on examples that it was not fitted on, over rows and dimensions of each unit."""

    def __init__(self, linear: RidgeMap) -> None:
        self.linear = linear
        shape = (2, linear.geometry.units)
        dim, device = linear.geometry.target.head_dim, linear.key_map.device
        self.rows = torch.zeros((), dtype=torch.float64, device=device)
        self.errors, self.squares = (torch.zeros(shape, dtype=torch.float64, device=device) for _ in range(2))
        self.sums = torch.zeros(*shape, dim, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, states: SourceStates, native: NativeStates) -> None:
        """Add every context position of a batch."""
        inside = torch.arange(states.keys_pre.shape[3], device=states.context_lengths.device) < states.context_lengths[:, None]
        example, position = inside.nonzero(as_tuple=True)
        self.rows += len(example)
        pairs: Iterable[tuple[Tensor, Tensor]] = zip(self.linear(states), (native.context_keys_pre, native.context_values))
        for kind, (mapped, wanted) in enumerate(pairs):
            y = wanted[example, :, position].to(self.sums)  # [row, unit, dim]
            self.errors[kind] += (mapped[example, :, position].to(y) - y).square().sum((0, 2))
            self.squares[kind] += y.square().sum((0, 2))
            self.sums[kind] += y.sum(0)

    def r2(self) -> tuple[Tensor, Tensor]:
        """Of keys and of values: float64 [unit]; NaN for fewer than two rows or targets that do not vary."""
        total = self.squares - self.sums.square().sum(-1) / self.rows.clamp(min=1)
        scores = torch.where((self.rows > 1) & (total > 0), 1 - self.errors / total, torch.nan)
        return scores[0], scores[1]
