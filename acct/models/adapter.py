"""What the interface asks of a decoder: states before RoPE, its rotation, its head (spec 1, 4; paper A.1, A.2.3).

Keys and queries are taken *after native normalisation and before RoPE*, by forward hooks on the module that last touches them:
`k_norm`/`q_norm` (Qwen3) or `k_proj`/`q_proj` with their biases (Llama, Qwen2). Undoing the rotation of a finished cache would
only be approximate (5e-7 in fp32, 3e-2 in bf16). Hooks exist inside a forward call only, and end it when all that was asked for
is recorded: keys, values and queries alone need neither the last layer's attention nor its MLP.

Hidden states are counted as transformers counts them: index 0 the embeddings, index L *after* the final norm, L + 1 in all.
Everything runs in the model's own dtype; rotary frequencies stay fp32.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acct.errors import InputError, ModelError
from acct.geometry import ModelGeometry
from acct.models import compat
from acct.models.rotary import Rotary


class _Recorded(Exception):
    """Ends a forward pass: everything that was asked for is recorded."""


@dataclass(frozen=True)
class Capture:
    """What a forward pass keeps.

    Attributes:
        hidden: True for all L + 1 hidden states, or a tuple of the wanted indices (0 embeddings, L after the final norm).
        keys: keys before RoPE and values. queries: queries before RoPE.
    """

    hidden: bool | tuple[int, ...] = False
    keys: bool = False
    queries: bool = False


@dataclass(frozen=True)
class ForwardStates:
    """What a forward pass kept; right padding holds finite numbers without meaning.

    Attributes:
        hidden: L + 1 tensors (or those asked for, in that order) [batch, seq, hidden].
        keys_pre, values: [batch, layer, head, seq, dim].
        queries_pre: [batch, layer, query_head, seq, dim], or at the asked positions only.
        logits: [batch, seq, vocabulary].
    """

    hidden: tuple[Tensor, ...] | None = None
    keys_pre: Tensor | None = None
    values: Tensor | None = None
    queries_pre: Tensor | None = None
    logits: Tensor | None = None


@dataclass(frozen=True)
class Parts:
    """The modules of a decoder that the interface touches; one entry per layer in the lists."""

    decoder: nn.Module
    embedding: nn.Module
    blocks: tuple[nn.Module, ...]
    attentions: tuple[nn.Module, ...]
    norm: nn.Module
    rotary: nn.Module
    head: nn.Module
    keys: tuple[nn.Module, ...]
    values: tuple[nn.Module, ...]
    queries: tuple[nn.Module, ...]


class ModelAdapter(ABC):
    """One frozen decoder as the interface sees it. Subclasses are final leaves and say where a family keeps its parts.

    Attributes:
        model: the transformers model. geometry: its shape. rotary: its rotation. scaling: factor on attention logits.
    """

    family: ClassVar[str]

    def __init__(self, model: PreTrainedModel, fingerprint: Callable[[], str] | None = None):
        """Args: fingerprint: computes the identity of the weights when first asked; None hashes the parameters.

        Raises:
            ModelError: sliding-window layers, a rotary setting that is missing or unknown, or layers of unequal scaling.
        """
        self.model = model
        self.parts = self._parts(model)
        attention, config = self.parts.attentions[0], model.config
        windowed = [i for i, a in enumerate(self.parts.attentions) if getattr(a, "sliding_window", None) is not None]
        if windowed:
            raise ModelError(f"layer {windowed[0]} has sliding-window attention; a mounted context needs full attention in every layer.")
        self.geometry = ModelGeometry(
            family=self.family,
            layers=len(self.parts.blocks),
            kv_heads=config.num_key_value_heads,
            query_heads=config.num_attention_heads,
            head_dim=attention.head_dim,
            hidden=config.hidden_size,
            vocabulary=self.parts.embedding.weight.shape[0],
        )
        self.scaling: float = attention.scaling
        if any(other.scaling != self.scaling for other in self.parts.attentions):
            raise ModelError("attention layers of one model must share one scaling factor.")
        self.rotary = Rotary(self.parts.rotary, config, attention.head_dim)
        self._fingerprint = fingerprint

    @abstractmethod
    def _parts(self, model: PreTrainedModel) -> Parts:
        """Where this family keeps its modules."""

    @property
    def device(self) -> torch.device:
        """Where ids go in and states come out, also where layers lie on several devices."""
        return self.parts.embedding.weight.device

    @property
    def layer_devices(self) -> tuple[torch.device, ...]:
        """Of each layer, where its keys and values arise."""
        return tuple(next(module.parameters()).device for module in self.parts.values)

    @property
    def dtype(self) -> torch.dtype:
        return self.parts.embedding.weight.dtype

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the configuration and the weights, hexadecimal; computed when first asked."""
        return self._fingerprint() if self._fingerprint is not None else parameter_fingerprint(self.model)

    def check_ids(self, ids: Tensor) -> None:
        """Raises InputError naming the first id that the embedding does not have. ids: int64 of any shape."""
        if ids.numel() == 0:
            return
        lowest, highest = torch.aminmax(ids)
        if int(lowest) < 0 or int(highest) >= self.geometry.vocabulary:
            wrong = ((ids < 0) | (ids >= self.geometry.vocabulary)).nonzero()[0]
            place = ", ".join(str(int(i)) for i in wrong)
            raise InputError(
                f"token id {int(ids[tuple(wrong)])} at index ({place}) is outside the vocabulary [0, {self.geometry.vocabulary}). "
                "Encode the text with the pair's own tokenizer."
            )

    def forward(
        self,
        ids: Tensor,
        lengths: Tensor | None = None,
        capture: Capture = Capture(),
        logits: Literal["all", "none"] = "none",
        query_positions: Tensor | None = None,
    ) -> ForwardStates:
        """A plain causal run without a cache, positions from 0.

        Args:
            ids: int64 [batch, seq], right-padded; padding cannot be seen by real tokens, so it needs no mask.
            lengths: int64 [batch], real tokens of each row; only "dynamic" RoPE reads it. None: no padding.
            capture: what to keep. logits: of all positions or none.
            query_positions: int64 [batch, asked], keeps queries there only.
        Raises:
            InputError: an id outside the vocabulary.
        """
        self.check_ids(ids)
        totals = lengths if lengths is not None else ids.new_full((ids.shape[0],), ids.shape[1])
        every = logits == "all"
        recording = self._recording(capture, query_positions, to_the_end=every)
        last = None
        with compat.stock_attention(self.model), self.rotary.lengths(totals), recording as record, suppress(_Recorded):
            last = self.parts.decoder(input_ids=ids.to(self.device), use_cache=False).last_hidden_state
        return self._collect(record, capture, self.logits_of(last) if every else None)

    def forward_after(
        self, keys_pre: Tensor, values: Tensor, context_lengths: Tensor, ids: Tensor, lengths: Tensor, capture: Capture
    ) -> ForwardStates:
        """A causal run of `ids` after a context whose states are known already (spec 1: reuse under another query).

        Args:
            keys_pre, values: [batch, layer, head, context, dim] of the context, right-padded. context_lengths: int64 [batch], N.
            ids: int64 [batch, query], right-padded; row b has positions N_b, N_b + 1, ... lengths: int64 [batch].
        """
        self.check_ids(ids)
        ids, context_lengths, lengths = (t.to(self.device) for t in (ids, context_lengths, lengths))
        context, query = keys_pre.shape[-2], ids.shape[1]
        totals = context_lengths + lengths
        places = torch.arange(context, device=self.device)
        positions = context_lengths[:, None] + torch.arange(query, device=self.device)  # [batch, query]
        keys = self.rotate(keys_pre.to(self.device), places, totals[:, None, None, None])
        seen = (places < context_lengths[:, None])[:, None].expand(-1, query, -1)  # [batch, query, context]
        causal = torch.ones(query, query, dtype=torch.bool, device=self.device).tril().expand(ids.shape[0], -1, -1)
        mask = torch.zeros(ids.shape[0], 1, query, context + query, dtype=self.dtype, device=self.device)
        mask.masked_fill_(~torch.cat((seen, causal), dim=-1)[:, None], torch.finfo(self.dtype).min)
        cache = compat.prefilled_cache(keys, values.to(self.device))
        arguments: dict[str, Any] = {compat.cache_argument(self.parts.decoder): cache}
        with compat.stock_attention(self.model, "sdpa"), self.rotary.lengths(totals), self._recording(capture, None) as record:
            self.parts.decoder(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **arguments)
        return self._collect(record, capture, None)

    def rotate(self, x_pre: Tensor, positions: Tensor, total_lengths: Tensor | int | None = None) -> Tensor:
        """Apply the model's own RoPE.

        Args:
            x_pre: keys or queries before RoPE [..., seq, dim], or packed [slot, dim]; any dtype, kept.
            positions: int64 that broadcasts to [..., seq] (or [slot]): original positions.
            total_lengths: tokens of the whole sequence, an int or int64 that broadcasts against positions; matters for "dynamic"
                RoPE only, where None means the largest position of each row + 1.
        """
        return self.rotary.rotate(x_pre, positions, total_lengths)

    def unrotate(self, x: Tensor, positions: Tensor, total_lengths: Tensor | int | None = None) -> Tensor:
        """The inverse of `rotate`, up to rounding (exact pre-RoPE states come from `forward`)."""
        return self.rotary.unrotate(x, positions, total_lengths)

    def logits_of(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocabulary] of hidden states after the final norm [..., hidden], on `device`."""
        return self.parts.head(hidden.to(next(self.parts.head.parameters()).device)).to(self.device)

    @contextmanager
    def _recording(self, capture: Capture, query_positions: Tensor | None, to_the_end: bool = True) -> Iterator[dict[Any, Tensor]]:
        """Hooks that write what `capture` asks for into the yielded dictionary; removed on every way out.

        Unless the pass has to go to the end, the last of them raises _Recorded.
        """
        record: dict[Any, Tensor] = {}
        hidden = tuple(dict.fromkeys(self._hidden_indices(capture)))
        wanted = len(hidden) + self.geometry.layers * (2 * capture.keys + capture.queries)
        modules = (self.parts.embedding, *self.parts.blocks[:-1], self.parts.norm)  # hidden state index -> module that returns it
        with ExitStack() as stack:

            def record_output(module: nn.Module, key: Any, change: Callable[[Tensor], Tensor] | None = None) -> None:
                def hook(_module: nn.Module, _args: Any, output: Any) -> None:
                    tensor = compat.first_tensor(output)
                    record[key] = tensor if change is None else change(tensor)
                    if len(record) == wanted and not to_the_end:
                        raise _Recorded

                stack.callback(module.register_forward_hook(hook).remove)

            for index in hidden:
                record_output(modules[index], ("hidden", index))
            for layer in range(self.geometry.layers):
                if capture.keys:
                    record_output(self.parts.keys[layer], ("keys", layer), self._by_head)
                    record_output(self.parts.values[layer], ("values", layer), self._by_head)
                if capture.queries:
                    record_output(self.parts.queries[layer], ("queries", layer), lambda t: _at(self._by_head(t), query_positions))
            yield record

    def _collect(self, record: dict[Any, Tensor], capture: Capture, logits: Tensor | None) -> ForwardStates:
        """What the hooks recorded, brought together on `device`."""

        def stacked(name: str) -> Tensor:
            return torch.stack([record[name, layer].to(self.device) for layer in range(self.geometry.layers)], dim=1)

        indices = self._hidden_indices(capture)
        return ForwardStates(
            hidden=tuple(record["hidden", index].to(self.device) for index in indices) if capture.hidden is not False else None,
            keys_pre=stacked("keys") if capture.keys else None,
            values=stacked("values") if capture.keys else None,
            queries_pre=stacked("queries") if capture.queries else None,
            logits=logits,
        )

    def _hidden_indices(self, capture: Capture) -> tuple[int, ...]:
        if isinstance(capture.hidden, bool):
            return tuple(range(self.geometry.layers + 1)) if capture.hidden else ()
        return capture.hidden

    def _by_head(self, tensor: Tensor) -> Tensor:
        """[batch, seq, head * dim] or [batch, seq, head, dim] -> [batch, head, seq, dim]."""
        return tensor.view(*tensor.shape[:2], -1, self.geometry.head_dim).transpose(1, 2)


def _at(states: Tensor, positions: Tensor | None) -> Tensor:
    """states [batch, head, seq, dim] at positions [batch, asked]; all of them for None."""
    if positions is None:
        return states
    index = positions.to(states.device)[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
    return states.gather(2, index)


def parts_of(model: PreTrainedModel, keys: str, queries: str) -> Parts:
    """Parts of a decoder laid out like Llama; `keys` and `queries` name the attention's submodules that are last before RoPE."""
    decoder: Any = model.model
    blocks = tuple(decoder.layers)
    attentions = tuple(block.self_attn for block in blocks)
    return Parts(
        decoder=decoder,
        embedding=decoder.embed_tokens,
        blocks=blocks,
        attentions=attentions,
        norm=decoder.norm,
        rotary=decoder.rotary_emb,
        head=model.lm_head,
        keys=tuple(getattr(attention, keys) for attention in attentions),
        values=tuple(attention.v_proj for attention in attentions),
        queries=tuple(getattr(attention, queries) for attention in attentions),
    )


def config_digest(model: PreTrainedModel) -> hashlib._Hash:
    """A sha256 that has read the stable part of the configuration."""
    text = json.dumps(compat.stable_config(model.config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode())


def parameter_fingerprint(model: PreTrainedModel) -> str:
    """sha256 over configuration, names, dtypes and bytes of all parameters: for models that were not loaded from files."""
    digest = config_digest(model)
    for name, parameter in model.named_parameters():
        digest.update(f"{name}:{parameter.dtype}:{tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
