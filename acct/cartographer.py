"""The Cartographer: a score for every context token and every target unit, given the query (spec 2, paper A.1).

    X = f(H_c), Y = f(H_q)                                 f: LayerNorm -> Linear -> GELU -> LayerNorm, shared
    S = softmax(A W_Q (Y W_K)^T / sqrt(d_M)) Y W_V         over query positions
    Z = softmax(S (X W_K)^T / sqrt(d_M)) X W_V             over context positions; padding is in neither softmax
    e_p = W_e [layer_emb ; head_emb];   (g~_p, beta_p) = MLP([e_p ; mean_a Z_a]);   gamma_p = 1 + tanh(g~_p)
    x_i = W_x X_i + b_x;   z_{p,a} = W_g (gamma_p * Z_a + beta_p) + b_g;   m_{p,i,a} = <z_{p,a}, x_i> / sqrt(d_M)
    s_{p,i} = w_o^T GELU(x_i + W_m m_{p,i} + W_phi phi_i)

Beyond the paper, with `utility_units` > 0, the score gains sum_u W_u[p, u] f_{u,i}: what the source itself would miss, by source unit
(`acct.source_utility`), W_u starting at the mean over them.

x_i + W_phi phi_i is shared by all units and [unit, context, d_M] is only ever expanded block by block, so memory is
O(P N + N d_M) and there is no N x N matrix. Where the paper is silent: the MLP has one hidden GELU layer of width 2 d_M, W_e, W_m,
W_phi and the three projections carry no bias, dropout follows f and the last GELU. Parameters and arithmetic are float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acct.errors import ConfigError, InputError, ModelError
from acct.geometry import PairGeometry
from acct.kernels import choose
from acct.source_utility import utility_features


@dataclass(frozen=True)
class CartographerShape:
    """Widths of the Cartographer; the capacity preset (spec 6) gives the first two.

    Attributes:
        width: w_M. attention_width: d_M. code_width: c_M, of the layer and head embeddings. query_slots: rows of A.
        dropout: in [0, 1), training only. position_frequencies: K of phi's sin and cos of 2^k pi i/N, k < K.
        utility_units: source units whose utilities are read; 0 as in the paper, or L_S H_S.
    """

    width: int
    attention_width: int
    code_width: int = 32
    query_slots: int = 4
    dropout: float = 0.0
    position_frequencies: int = 4
    utility_units: int = 0

    def __post_init__(self) -> None:
        for name in ("width", "attention_width", "code_width", "query_slots"):
            if getattr(self, name) < 1:
                raise ConfigError(f"cartographer {name} must be at least 1, got {getattr(self, name)}. Leave it at null for the preset.")
        if not 0 <= self.dropout < 1 or self.position_frequencies < 0:
            raise ConfigError(
                f"cartographer dropout must lie in [0, 1) and position_frequencies be 0 or more, got {self.dropout} and "
                f"{self.position_frequencies}."
            )

    @property
    def position_features(self) -> int:
        """Numbers in phi_i."""
        return 2 + 2 * self.position_frequencies

    def parameters(self, geometry: PairGeometry) -> int:
        """P_M, the closed form of the instantiated count."""
        w, d, c, a = self.width, self.attention_width, self.code_width, self.query_slots
        source, target = geometry.source, geometry.target
        shared_map = 2 * source.hidden + (source.hidden + 1) * w + 2 * w
        attention = a * w + 3 * w * d
        codes = (target.layers + target.kv_heads) * c + 2 * c * d
        film = (2 * d + 1) * 2 * d + (2 * d + 1) * 2 * d
        score = (w + 1) * d + (d + 1) * d + a * d + self.position_features * d + d
        return shared_map + attention + codes + film + score + geometry.units * self.utility_units


def position_features(lengths: Tensor, context: int, frequencies: int = 4) -> Tensor:
    """phi_i = [i/N, (N-1-i)/N, sin 2^k pi i/N (k < K), cos 2^k pi i/N (k < K)]: float32 [batch, context, 2 + 2 K].

    Args:
        lengths: int64 [batch], N of each example. context: padded width; beyond N the features have no meaning.
    """
    place = torch.arange(context, device=lengths.device, dtype=torch.float32)
    total = lengths.to(torch.float32)[:, None]
    share = (place / total)[..., None]  # [batch, context, 1]
    angles = share * math.pi * 2.0 ** torch.arange(frequencies, device=lengths.device, dtype=torch.float32)
    return torch.cat([share, ((total - 1 - place) / total)[..., None], angles.sin(), angles.cos()], dim=-1)


class Cartographer(nn.Module):
    """Scores tokens of a source's context for the units of a target.

    Args:
        geometry: the pair; D_S, L_T and H_T are read from it. shape: widths.

    Attributes:
        kernels: which kernel scores, see `acct.kernels`; dropout while training takes the plain path.
    """

    kernels: str = "plain"

    def __init__(self, geometry: PairGeometry, shape: CartographerShape) -> None:
        super().__init__()
        self.geometry, self.shape = geometry, shape
        w, d, c = shape.width, shape.attention_width, shape.code_width
        self.input_norm = nn.LayerNorm(geometry.source.hidden)
        self.input = nn.Linear(geometry.source.hidden, w)
        self.feature_norm = nn.LayerNorm(w)
        self.query_slots = nn.Parameter(torch.randn(shape.query_slots, w))  # A
        self.to_query = nn.Linear(w, d, bias=False)  # W_Q
        self.to_key = nn.Linear(w, d, bias=False)  # W_K
        self.to_value = nn.Linear(w, d, bias=False)  # W_V
        self.layer_codes = nn.Embedding(geometry.target.layers, c)
        self.head_codes = nn.Embedding(geometry.target.kv_heads, c)
        self.code = nn.Linear(2 * c, d, bias=False)  # W_e
        self.film = nn.Sequential(nn.Linear(2 * d, 2 * d), nn.GELU(), nn.Linear(2 * d, 2 * d))
        self.token = nn.Linear(w, d)  # W_x, b_x
        self.slot = nn.Linear(d, d)  # W_g, b_g
        self.match = nn.Linear(shape.query_slots, d, bias=False)  # W_m
        self.position = nn.Linear(shape.position_features, d, bias=False)  # W_phi
        self.readout = nn.Linear(d, 1, bias=False)  # w_o
        self.dropout = nn.Dropout(shape.dropout)
        self._start()
        if shape.utility_units:
            self.utility = nn.Parameter(torch.full((geometry.units, shape.utility_units), 1 / shape.utility_units))  # W_u

    @torch.no_grad()
    def _start(self) -> None:
        """Initial weights (the paper is silent): every map keeps its input's scale, FiLM is the identity, and z starts as Z itself in
        the coordinates in which tokens are compared (W_g = I, W_x = W_V), so that m starts as the similarity of a token to what the
        query's slots read. PyTorch's defaults leave m near zero. On a synthetic matching task, three seeds, 500 steps, share of
        the matching tokens kept (random: 0.11): w_M = 64 gave 0.69 to 0.96, with PyTorch's defaults 0.08 to 0.48; at w_M = 32 the two
        did not differ clearly (0.18 to 0.38, 0.19 to 0.21)."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.zeros_(self.film[2].weight)
        nn.init.eye_(self.slot.weight)
        self.token.weight.copy_(self.to_value.weight)

    def features(self, hidden: Tensor) -> Tensor:
        """f: source hidden states [..., hidden] to features [..., w_M]."""
        hidden = hidden.to(self.input.weight.dtype)
        return self.dropout(self.feature_norm(F.gelu(self.input(self.input_norm(hidden)))))

    def read(self, slots: Tensor, features: Tensor, lengths: Tensor) -> Tensor:
        """softmax(slots (F W_K)^T / sqrt(d_M)) F W_V over the first `lengths` positions: [batch, query_slot, d_M]."""
        logits = slots @ self.to_key(features).transpose(-1, -2) / math.sqrt(self.shape.attention_width)
        padding = torch.arange(features.shape[1], device=lengths.device) >= lengths[:, None]
        return logits.masked_fill(padding[:, None], -torch.inf).softmax(dim=-1) @ self.to_value(features)

    def modulated_slots(self, slots: Tensor, units: Tensor) -> Tensor:
        """z_{p,a} for the given units [batch or 1, unit]: [batch, unit, query_slot, d_M]."""
        heads = self.geometry.target.kv_heads
        codes = self.code(torch.cat([self.layer_codes(units // heads), self.head_codes(units % heads)], dim=-1))
        batch, count = len(slots), units.shape[1]
        mean = slots.mean(dim=1)[:, None].expand(-1, count, -1)
        scale, shift = self.film(torch.cat([codes.expand(batch, -1, -1), mean], dim=-1)).chunk(2, dim=-1)
        return self.slot((1 + torch.tanh(scale))[:, :, None] * slots[:, None] + shift[:, :, None])

    def forward(
        self,
        context_hidden: Tensor,
        context_lengths: Tensor,
        query_hidden: Tensor,
        query_lengths: Tensor,
        units: Tensor | None = None,
        block: int | None = None,
        utilities: Tensor | None = None,
    ) -> Tensor:
        """Scores of every context position, tail included, for every unit asked for.

        Args:
            context_hidden: H_c [batch, context, hidden], right-padded. context_lengths: int64 [batch], N >= 1.
            query_hidden: H_q [batch, query, hidden], right-padded. query_lengths: int64 [batch], Q >= 1.
            units: int64 [unit], the same for the batch, or [batch, unit]; None for all P.
            block: units scored at once; None keeps one block's hidden numbers near 2^18 on the CPU (a megabyte, in cache) and 2^26
                on an accelerator, positions split too where one unit alone is more.
            utilities: of the source [batch, source unit, context]; asked for with `utility_units` > 0, not read otherwise.
        Returns:
            float32 [batch, unit, context]. Finite at padding and without meaning there: `rank_prefix` drops it.
            A row does not depend on the rest of its batch nor on padding.
        Raises:
            InputError: an example without context or query tokens, or utilities that are missing or of another shape.
        """
        for name, lengths in (("context", context_lengths), ("query", query_lengths)):
            if bool((lengths < 1).any()):
                raise InputError(f"example {int((lengths < 1).nonzero()[0])} has no {name} tokens; the Cartographer needs at least one.")
        context, query = self.features(context_hidden), self.features(query_hidden)
        asked = self.read(self.to_query(self.query_slots), query, query_lengths)  # S
        read = self.read(asked, context, context_lengths)  # Z
        if units is None:
            units = torch.arange(self.geometry.units, device=context.device)
        units = units[None] if units.dim() == 1 else units
        slots = self.modulated_slots(read, units) / math.sqrt(self.shape.attention_width)
        token = self.token(context)  # x
        phi = position_features(context_lengths, context.shape[1], self.shape.position_frequencies).to(token.dtype)
        base = token + self.position(phi)
        if not (self.training and self.shape.dropout) and choose(self.kernels, token):
            from acct.kernels.scoring import scores

            found = scores(partial(self._score, block=block), token, base, slots, self.match.weight, self.readout.weight)
        else:
            found = self._score(token, base, slots, block)
        return found + self._missed(utilities, context_lengths, units, found.shape) if self.shape.utility_units else found

    def _missed(self, utilities: Tensor | None, lengths: Tensor, units: Tensor, shape: torch.Size) -> Tensor:
        """sum_u W_u[p, u] f_{u,i} for the given units [batch or 1, unit]: [batch, unit, context]."""
        expected = (shape[0], self.shape.utility_units, shape[2])
        if utilities is None or tuple(utilities.shape) != expected:
            given = "none" if utilities is None else list(utilities.shape)
            raise InputError(
                f"the Cartographer reads the source's utilities {list(expected)}, got {given}. "
                "Read the source states with utility_rows, as many as cartographer.utility_rows says."
            )
        features = utility_features(utilities.to(self.utility.device), lengths)
        return self.utility[units].expand(shape[0], -1, -1) @ features

    def _score(self, token: Tensor, base: Tensor, slots: Tensor, block: int | None) -> Tensor:
        """w_o^T GELU(base_i + W_m <z_{p,a}, x_i>), block by block: [batch, unit, context]."""
        batch, context, width = token.shape
        count = slots.shape[1]
        budget = max((2**18 if token.device.type == "cpu" else 2**26) // width, 1)  # (unit, position) pairs of one block
        # Examples one at a time: blocks stay in cache, and short rows never wait for long ones.
        unit_step = block or max(min(budget // max(context, 1), count), 1)
        place_step = context if block else max(min(context, budget), 1)
        scores = []
        workspace: Tensor | None = None
        for row in range(batch):
            parts = []
            every = (slots[row].flatten(0, 1) @ token[row].T).unflatten(0, slots.shape[1:3])  # m: [unit, query_slot, context]
            for first in range(0, count, unit_step):
                own = every[first : first + unit_step]
                mix = self.match.weight.T.expand(len(own), -1, -1)
                pieces = []
                for start in range(0, context, place_step):
                    shared = base[row, start : start + place_step]
                    matches = own[..., start : start + place_step].transpose(-1, -2)  # [unit, context, query_slot]
                    if torch.is_grad_enabled():
                        mixed = F.gelu(torch.baddbmm(shared.expand(len(own), -1, -1), matches, mix))
                    else:  # the same in memory that is used again: fresh pages cost more than the arithmetic
                        if workspace is None or workspace.shape != (len(own), len(shared), width):
                            workspace = token.new_empty(len(own), len(shared), width)
                        mixed = torch.ops.aten.gelu_(torch.baddbmm(shared.expand(len(own), -1, -1), matches, mix, out=workspace))
                    pieces.append(self.readout(self.dropout(mixed))[..., 0])
                parts.append(pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1))
            scores.append(parts[0] if len(parts) == 1 else torch.cat(parts))
        return torch.stack(scores)


def rank_prefix(scores: Tensor, prefix_lengths: Tensor) -> Tensor:
    """Stable descending order of the prefix, ties by lower position; the other positions follow in ascending order.

    Args:
        scores: [batch, unit, context]. prefix_lengths: int64 [batch], n = N - t.
    Returns:
        int64 [batch, unit, context], positions, best first.
    Raises:
        ModelError: a prefix score is NaN.
    """
    outside = torch.arange(scores.shape[-1], device=scores.device) >= prefix_lengths.to(scores.device)[:, None, None]
    kept = scores.detach().masked_fill(outside, -torch.inf)
    if bool(kept.isnan().any()):
        raise ModelError("scores hold NaN: check the source's hidden states and the Cartographer's weights, and lower the learning rate.")
    return _vector_order(kept) if kept.device.type == "cpu" and kept.dtype == torch.float32 else _stable_order(kept)


def _stable_order(scores: Tensor) -> Tensor:
    """Positions by descending score, ties by lower position."""
    return scores.argsort(dim=-1, descending=True, stable=True)


def _vector_order(scores: Tensor) -> Tensor:
    """`_stable_order` of float32 scores without NaN on the CPU: score and position in one integer, sorted by NumPy's vector instructions.

    All keys differ, so that no stable sort is needed; about five times as fast as `argsort(stable=True)` at 2,048 positions. The sign bit
    dropped, a float's bits grow with its size, and -0.0 equals 0.0.
    """
    bits = scores.contiguous().view(torch.int32)
    size = (bits & 0x7FFFFFFF).to(torch.int64)
    keys = torch.where(bits < 0, size, -size)  # ascending where scores descend
    keys = keys.mul_(1 << 32).add_(torch.arange(scores.shape[-1]))
    ordered = keys.numpy()
    ordered.sort(axis=-1)
    return keys.bitwise_and_(0xFFFFFFFF)


def ranks_of(order: Tensor) -> Tensor:
    """The inverse of an order: rank of every position, int64 [batch, unit, context]; prefix positions have ranks 0 .. n - 1."""
    return torch.empty_like(order).scatter_(-1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order))
