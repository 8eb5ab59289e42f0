"""The stages of a transfer as callables, and the states they are timed on (spec 9).

    source prefill -> Cartographer (scores, ranking) -> Allocator (counts, selection) -> Compiler -> packing -> rotation and mounting

and, for the target alone, its prefill of the context and one query step on the native and on the mounted cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache

from acct.cache import MountedCache, build_cache, extend
from acct.compiler.compiler import rotate_kv
from acct.geometry import ModelGeometry, PairGeometry
from acct.latency.weights import fill_normal, restore_rotary
from acct.methods.ridge_map import RidgeMap
from acct.models import compat
from acct.models.adapter import ModelAdapter
from acct.models.published import weightless
from acct.models.registry import adapter_for
from acct.models.rotary import Rotary
from acct.pipeline import Interface, choose, placed, rank
from acct.types import Selection, SourceStates, SparseKV, TokenBatch

if TYPE_CHECKING:
    from acct.config.root import Config


@dataclass(frozen=True)
class Receiver:
    """What a conversion needs of a target, without its weights: it stands where `rotate_kv`, `placed` and `build_cache` take an adapter.

    Attributes:
        geometry: its shape. rotary: its rotation, on `device`. dtype: of its states.
    """

    geometry: ModelGeometry
    rotary: Rotary
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, settings: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Receiver:
        """From a configuration (`settings_of`); no weight is allocated."""
        model = weightless(settings, dtype)
        restore_rotary(model, device)
        adapter = adapter_for(model, lambda: "no weights")
        return cls(adapter.geometry, adapter.rotary, device, dtype)

    def rotate(self, x_pre: Tensor, positions: Tensor, total_lengths: Tensor | int | None = None) -> Tensor:
        """As `ModelAdapter.rotate`."""
        return self.rotary.rotate(x_pre, positions, total_lengths)

    @property
    def layer_devices(self) -> tuple[torch.device, ...]:
        """As `ModelAdapter.layer_devices`."""
        return (self.device,) * self.geometry.layers

    def as_adapter(self) -> ModelAdapter:
        """Itself, for functions that read geometry, device, dtype and rotation only."""
        return cast(ModelAdapter, self)


@dataclass(frozen=True)
class Conversion:
    """The stages between the two models.

    Attributes:
        geometry: the pair. interface: the modules under a budget. target: who receives.
    """

    geometry: PairGeometry
    interface: Interface
    target: Receiver

    def cartographer(self, states: SourceStates) -> Tensor:
        """Scores and ranking: int64 [batch, unit, context]."""
        return rank(self.interface, self.geometry, states)

    def allocator(self, states: SourceStates, order: Tensor) -> Selection:
        """Counts (cached for a length) and selection."""
        return choose(self.interface, self.geometry, states, order)

    @property
    def rotates(self) -> bool:
        """Whether the Compiler's stage rotates as it writes: the Triton kernel does. The CPU's pass can (`transfer` has it do so) but is
        timed without, so that the rotation has a column of its own as in the paper."""
        return self.interface.compiler.takes_kernels

    def compiler(self, states: SourceStates, selection: Selection) -> SparseKV:
        """Keys and values in the target's type, on the interface's device; keys before RoPE unless it `rotates`."""
        rotary = self.target.rotary if self.rotates else None
        return self.interface.compiler(states, selection, dtype=self.target.dtype, rotary=rotary)

    def packing(self, kv: SparseKV) -> SparseKV:
        """In the target's type on its device; nothing is copied where they are already."""
        return placed(kv, self.target.as_adapter())

    def rotation(self, kv: SparseKV) -> tuple[SparseKV, MountedCache]:
        """Keys rotated to their positions where they are not yet, and the cache over the packed states."""
        rotated = kv if kv.rotated else rotate_kv(self.target.as_adapter(), kv)
        return rotated, build_cache(self.target.as_adapter(), rotated)

    def convert(self, states: SourceStates) -> SparseKV:
        """Cartographer, Allocator and Compiler one after the other."""
        return self.compiler(states, self.allocator(states, self.cartographer(states)))


@torch.no_grad()
def random_interface(config: Config, geometry: PairGeometry, seed: int) -> Interface:
    """Modules of the configured shapes with random weights, nothing left at zero, units of unequal counts."""
    from acct.allocator.allocator import Allocator
    from acct.training.modules import make_interface, new_cartographer, new_compiler, uses_allocator, uses_cartographer

    generator = torch.Generator().manual_seed(seed)
    cartographer = new_cartographer(config, geometry) if uses_cartographer(config) else None
    allocator = Allocator(geometry.units) if uses_allocator(config) else None
    if allocator is not None:
        fill_normal(allocator.preferences, generator, config.latency.spread)
    compiler = new_compiler(config, geometry)
    bridge, residual, subspace = compiler.bridge, compiler.residual, compiler.subspace
    for parameter in bridge.parameters():
        fill_normal(parameter, generator, bridge.geometry.source.head_dim**-0.5)
    if subspace is not None:  # `random_states` has one token
        fill_normal(subspace.weight, generator, len(subspace.weight) ** -0.5)
        subspace.bind(fill_normal(torch.empty(1, geometry.target.hidden), generator))
    if residual is not None:
        for parameter in (residual.key_readout, residual.value_readout, residual.condition_map, residual.key_bias, residual.value_bias):
            fill_normal(parameter, generator, residual.shape.width**-0.5)
    return make_interface(config, geometry, cartographer, allocator, compiler)


def placed_interface(interface: Interface, device: torch.device, dtype: torch.dtype, backend: str | None = None) -> Interface:
    """The interface in eval mode on a device; a `backend` of torch.compile runs Cartographer and Compiler through it.

    Preferences stay in float32: counts are solved on the CPU in float64 whatever the device.
    """
    compiler, cartographer = interface.compiler.to(device, dtype).eval().requires_grad_(False), interface.cartographer
    if compiler.subspace is not None and compiler.subspace.table is not None:
        compiler.subspace.bind(compiler.subspace.table.to(device))
    if cartographer is not None:
        cartographer = cartographer.to(device, dtype).eval().requires_grad_(False)
    if backend is not None:
        compiler = cast(Any, torch.compile(compiler, backend=backend))
        cartographer = None if cartographer is None else cast(Any, torch.compile(cartographer, backend=backend))
    return replace(interface, compiler=compiler, cartographer=cartographer)


@torch.no_grad()
def random_ridge(
    geometry: PairGeometry, layers: int, device: torch.device, dtype: torch.dtype, seed: int, heads: str = "local"
) -> RidgeMap:
    """The comparison map with random weights."""
    generator = torch.Generator().manual_seed(seed)
    made = RidgeMap(geometry, min(layers, geometry.source.layers), heads).to(device, dtype)
    for parameter in made.parameters():
        fill_normal(parameter, generator, parameter.shape[1] ** -0.5)
    return made


def random_states(
    geometry: ModelGeometry, tokens: int, query: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator,
    utilities: bool = False,
) -> SourceStates:  # fmt: skip
    """Source states of one context in the right shapes, normal numbers; utilities are their sizes."""

    def drawn(*shape: int) -> Tensor:
        return fill_normal(torch.empty(shape, dtype=dtype, device=device), generator)

    keys = (1, geometry.layers, geometry.kv_heads, tokens, geometry.head_dim)
    return SourceStates(
        context_ids=torch.zeros(1, tokens, dtype=torch.int64, device=device),
        context_lengths=torch.tensor([tokens], device=device),
        context_hidden=drawn(1, tokens, geometry.hidden),
        taps=drawn(1, 3, tokens, geometry.hidden),
        keys_pre=drawn(*keys),
        values=drawn(*keys),
        query_hidden=drawn(1, query, geometry.hidden),
        query_lengths=torch.tensor([query], device=device),
        query_utilities=drawn(1, geometry.layers * geometry.kv_heads, tokens).float().abs() if utilities else None,
        identity={"model": "random states"},
    )


def refresh(states: SourceStates, generator: torch.Generator) -> SourceStates:
    """Hidden states, taps and query drawn anew in place, so that every repetition ranks and selects other positions; the same object."""
    for part in (states.context_hidden, states.taps, states.query_hidden):
        assert part is not None
        fill_normal(part, generator)
    return states


def prompt(vocabulary: int, tokens: int, query: int, generator: torch.Generator) -> TokenBatch:
    """Random token ids of one context and query."""
    context, asked = (torch.randint(0, vocabulary, (1, width), generator=generator) for width in (tokens, query))
    return TokenBatch(context, torch.tensor([tokens]), asked, torch.tensor([query]))


@torch.no_grad()
def target_prefill(target: ModelAdapter, ids: Tensor) -> DynamicCache:
    """The target's own run over a context, its cache kept, no logits. ids: int64 [1, context] on the target's device."""
    cache = DynamicCache()
    arguments: dict[str, Any] = {compat.cache_argument(target.parts.decoder): cache}
    with compat.stock_attention(target.model):
        target.parts.decoder(input_ids=ids, use_cache=True, **arguments)
    return cache


@torch.no_grad()
def native_step(target: ModelAdapter, cache: DynamicCache, ids: Tensor) -> Tensor:
    """A query after the native cache: logits of its last token [1, 1, vocabulary]. The cache grows; crop it afterwards."""
    arguments: dict[str, Any] = {compat.cache_argument(target.parts.decoder): cache}
    with compat.stock_attention(target.model):
        hidden = target.parts.decoder(input_ids=ids, use_cache=True, **arguments).last_hidden_state
    return target.logits_of(hidden[:, -1:])


@torch.no_grad()
def mounted_step(target: ModelAdapter, cache: MountedCache, ids: Tensor) -> Tensor:
    """The same query after the mounted states, inside `with mounted(...)`. The cache grows; rewind it afterwards."""
    lengths = torch.tensor([ids.shape[1]], device=ids.device)
    return extend(target, cache, ids, lengths, at=lengths[:, None] - 1)
