"""The residual network: one shared trunk, one readout for every target unit (spec 4, paper A.2.2).

    E = W_E [H_c ; tap_1 ; tap_2 ; tap_3]                                                   [batch, context, width]
    encoder: learned latents through D blocks {self-attention, cross-attention to all of E, SwiGLU}
    decoder: E_i of every i in U = union_p I_p through D blocks {cross-attention to the latents, SwiGLU}, RMSNorm -> z_i
    dK_{p,i} = (z_i + W_xi xi_{p,i}) W_p^K + zeta_p^K,  dV likewise
    xi_{p,i} = [i/N, r_{p,i}/n, k_p/N, tail flag], k_p the ranked slots of the unit without the tail [ours]

RMSNorm before and a residual around every sublayer. Selected positions do not attend to each other; the latents read the whole
context, also what follows a slot. Query states are never read. W_xi, W_p and zeta_p start at zero. The readout is evaluated as
z W_p + xi (W_xi W_p) over slots grouped by unit, so no z~ of every slot is formed and slots are not padded to the longest unit.

Where the text is silent [ours]: no biases but zeta_p (`input_bias` adds one to W_E), raw states into W_E (`input_norm`), the keys'
and values' input of a cross-attention has an RMSNorm of its own (`memory_norm`), latents start at unit scale (`latent_std`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acct.compiler.grouped import UnitGroups
from acct.errors import ConfigError, SelectionError
from acct.selection import PositionUnion, batch_index, union, unit_index
from acct.types import Selection, SourceStates

CONDITIONS = 4


@dataclass(frozen=True)
class ResidualShape:
    """Everything that decides the residual's parameters.

    Attributes:
        source_hidden: D_S. units: P. head_dim: d_T. width: w_W, a multiple of head_width. feed_forward_width: f_W.
        depth: D, blocks of the encoder and of the decoder. latents: m_W. taps: intermediate states beside H_c.
        head_width: attention width of one head.
        input_norm: "none" gives W_E the raw states; "rms" divides each of the 1 + taps states by its root mean square first.
        input_bias: bias of W_E. memory_norm: RMSNorm on what a cross-attention reads. latent_std: scale of the initial latents.
        branch_start: "random", or "zero": every sublayer starts by adding nothing, so that z is at first E under the final norm.
        norm_epsilon: of every RMSNorm.
    """

    source_hidden: int
    units: int
    head_dim: int
    width: int
    feed_forward_width: int
    depth: int
    latents: int
    taps: int = 3
    head_width: int = 32
    input_norm: str = "none"
    input_bias: bool = False
    memory_norm: bool = True
    latent_std: float = 1.0
    branch_start: str = "random"
    norm_epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.width % self.head_width:
            raise ConfigError(f"compiler.width must be a multiple of the attention head width {self.head_width}, got {self.width}.")
        if self.branch_start not in ("random", "zero"):
            raise ConfigError(f"compiler.branch_start must be one of random, zero; got {self.branch_start!r}.")
        if self.input_norm not in ("none", "rms"):
            raise ConfigError(f"compiler.input_norm must be one of none, rms; got {self.input_norm!r}.")

    def parameters(self) -> int:
        """P_W, the closed form of the instantiated count."""
        width, norms = self.width, 2 + self.memory_norm
        attention, feed_forward = 4 * width * width, 3 * width * self.feed_forward_width
        embedding = (1 + self.taps) * self.source_hidden * width + self.input_bias * width
        encoder = self.depth * (2 * attention + feed_forward + (norms + 1) * width)
        decoder = self.depth * (attention + feed_forward + norms * width)
        readout = 2 * self.units * (width + 1) * self.head_dim
        return embedding + self.latents * width + encoder + decoder + width + CONDITIONS * width + readout


class Attention(nn.Module):
    """Multi-head attention of x [batch, place, width] over a memory [batch, entry, width], without biases or positions."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.heads = width // head_width
        self.query_map, self.key_map, self.value_map, self.output_map = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: bool [batch, 1, 1, entry], False where the memory is padding; every row needs a True."""
        query, key, value = (
            mapping(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, head, place or entry, head_width]
            for mapping, states in ((self.query_map, x), (self.key_map, memory), (self.value_map, memory))
        )
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.output_map(read.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """W_3 (silu(W_1 x) * W_2 x)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_map, self.up_map, self.down_map = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
            nn.Linear(inner, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down_map(F.silu(self.gate_map(x)) * self.up_map(x))


class Block(nn.Module):
    """{self-attention when asked for, cross-attention to a memory, SwiGLU}, pre-norm, residual around each."""

    def __init__(self, shape: ResidualShape, self_attention: bool) -> None:
        super().__init__()

        def norm() -> nn.RMSNorm:
            return nn.RMSNorm(shape.width, eps=shape.norm_epsilon)

        self.self_norm, self.self_attention = (norm(), Attention(shape.width, shape.head_width)) if self_attention else (None, None)
        self.cross_norm, self.cross_attention = norm(), Attention(shape.width, shape.head_width)
        self.memory_norm = norm() if shape.memory_norm else None
        self.feed_norm, self.feed_forward = norm(), SwiGLU(shape.width, shape.feed_forward_width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.self_attention is not None and self.self_norm is not None:
            own = self.self_norm(x)
            x = x + self.self_attention(own, own)
        memory = memory if self.memory_norm is None else self.memory_norm(memory)
        x = x + self.cross_attention(self.cross_norm(x), memory, mask)
        return x + self.feed_forward(self.feed_norm(x))


class Residual(nn.Module):
    """Corrections of the Bridge's keys and values (see the module's formulas). Counts: `acct.compiler.capacity`."""

    def __init__(self, shape: ResidualShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width
        self.embedding = nn.Linear((1 + shape.taps) * shape.source_hidden, width, bias=shape.input_bias)  # W_E
        self.latents = nn.Parameter(torch.randn(shape.latents, width) * shape.latent_std)
        self.encoder = nn.ModuleList(Block(shape, self_attention=True) for _ in range(shape.depth))
        self.decoder = nn.ModuleList(Block(shape, self_attention=False) for _ in range(shape.depth))
        if shape.branch_start == "zero":
            for block in [*self.encoder, *self.decoder]:
                for branch in (block.self_attention, block.cross_attention):
                    if branch is not None:
                        nn.init.zeros_(branch.output_map.weight)
                nn.init.zeros_(block.feed_forward.down_map.weight)
        self.final_norm = nn.RMSNorm(width, eps=shape.norm_epsilon)
        self.condition_map = nn.Parameter(torch.zeros(CONDITIONS, width))  # W_xi
        self.key_readout = nn.Parameter(torch.zeros(shape.units, width, shape.head_dim))  # W_p^K
        self.value_readout = nn.Parameter(torch.zeros(shape.units, width, shape.head_dim))
        self.key_bias = nn.Parameter(torch.zeros(shape.units, shape.head_dim))  # zeta_p^K
        self.value_bias = nn.Parameter(torch.zeros(shape.units, shape.head_dim))

    def forward(self, states: SourceStates, selection: Selection, groups: UnitGroups | None = None) -> tuple[Tensor, Tensor]:
        """dK (before RoPE) and dV at every slot.

        Args:
            states: hidden states and taps in any dtype; padding has no influence.
            groups: `UnitGroups.of(selection)`, when it is at hand.
        Returns:
            Two [slot, dim] in the packed order.
        Raises:
            SelectionError: states or selection of another pair.
        """
        groups = UnitGroups.of(selection) if groups is None else groups
        z, row = self.trunk(states, selection)
        readout = torch.cat([self.key_readout, self.value_readout], dim=-1)  # [unit, width, 2 * dim]
        bias = torch.cat([self.key_bias, self.value_bias], dim=-1)
        xi = conditions(selection, readout.dtype)
        correction = groups.linear([(z, row, readout), (xi, None, self.condition_map @ readout)], bias)  # [slot, 2 * dim]
        keys, values = correction.chunk(2, dim=-1)
        return keys, values

    def trunk(self, states: SourceStates, selection: Selection) -> tuple[Tensor, Tensor | None]:
        """Everything before the readout: z [row, width], and the row of z that each slot reads, int64 [slot] (None without a slot).

        Raises:
            SelectionError: states or selection of another pair.
        """
        shape = self.shape
        got = (selection.units, states.taps.shape[1], states.context_hidden.shape[-1], states.batch)
        if got != (shape.units, shape.taps, shape.source_hidden, selection.batch):
            raise SelectionError(
                f"this residual reads {shape.taps} taps of width {shape.source_hidden} for {shape.units} units; got {got[1]} taps of width "
                f"{got[2]} of {got[3]} examples for {got[0]} units of {selection.batch} examples."
            )
        entries = union(selection)
        embedded, mask = self.embed(states)
        z = self.decode(embedded, self.encode(embedded, mask), entries)  # [batch * place, width]
        row = (entries.batch_index * int(entries.counts.max()) + entries.place)[entries.slot_entry] if len(entries.place) else None
        return z, row

    def embed(self, states: SourceStates) -> tuple[Tensor, Tensor]:
        """E [batch, context, width], zero at padding, and its mask, bool [batch, 1, 1, context]."""
        hidden = self.shape.source_hidden
        parts = [states.context_hidden, *states.taps.unbind(1)]
        total: Tensor | None = None
        for part, weight in zip(parts, self.embedding.weight.split(hidden, dim=1)):  # no copy of all states side by side
            part = part.to(weight.dtype)
            if self.shape.input_norm == "rms":
                part = F.rms_norm(part, (hidden,), eps=self.shape.norm_epsilon)
            bias = self.embedding.bias if total is None else None
            projected = F.linear(part, weight, bias)
            total = projected if total is None else total + projected
        assert total is not None
        place = torch.arange(total.shape[1], device=total.device)
        valid = place < states.context_lengths[:, None]  # [batch, context]
        mask = valid | (states.context_lengths == 0)[:, None]  # an empty row reads its zero padding: nothing uses the result
        return total.masked_fill(~valid[..., None], 0), mask[:, None, None]

    def encode(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """What the latents hold after reading the whole context: [batch, latent, width]."""
        latents = self.latents.expand(len(embedded), -1, -1)
        for block in self.encoder:
            latents = block(latents, embedded, mask)
        return latents

    def decode(self, embedded: Tensor, latents: Tensor, entries: PositionUnion) -> Tensor:
        """z at the union's positions, [batch * place, width]: row `example * max(counts) + place`; rows of padding are not zero."""
        batch, context, width = embedded.shape
        places = int(entries.counts.max()) if batch else 0
        index = torch.zeros(batch, places, dtype=torch.int64, device=embedded.device)
        index[entries.batch_index, entries.place] = entries.positions
        index += context * torch.arange(batch, device=embedded.device)[:, None]
        z = embedded.reshape(-1, width).index_select(0, index.view(-1)).view(batch, places, width)
        for block in self.decoder:
            z = block(z, latents)
        return self.final_norm(z).flatten(0, 1)


def conditions(selection: Selection, dtype: torch.dtype = torch.float32) -> Tensor:
    """xi = [i/N, r/n, k_p/N, tail flag] of every slot: [slot, 4]; k_p counts ranked slots, and r/n is 0 on the tail."""
    example, unit = batch_index(selection), unit_index(selection)
    lengths = selection.context_lengths[example].to(dtype)
    prefix = (selection.context_lengths - selection.tails)[example].clamp(min=1).to(dtype)
    ranked = selection.counts[example, unit] - selection.tails[example]
    columns = (selection.positions / lengths, selection.ranks / prefix, ranked / lengths, selection.is_tail.to(dtype))
    return torch.stack(columns, dim=-1)
