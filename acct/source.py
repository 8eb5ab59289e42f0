"""What the source model reads: R_S(c) = (H_c, taps, K_S, V_S), and H_q (spec 1; paper A.2.1).

One forward pass over [c; q]. H is the last hidden state, after the final norm; the taps are three intermediate hidden states;
keys are taken after native normalisation and before RoPE. By causality the context part does not depend on q, so it can be
saved, loaded and read again under another query (`read_query` runs the query's tokens only). "Dynamic" RoPE past the native
window is the exception: its frequencies follow the length of the whole sequence, so such states belong to the length they were
read at.

States keep the model's dtype. Padding is zero. No gradient flows into the source.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from acct.errors import ArtifactError, InputError
from acct.geometry import tap_indices
from acct.models.adapter import Capture, ForwardStates, ModelAdapter
from acct.models.batching import check_batch, check_lengths, last_query_places, mask_of, require_finite, take_query, zero_padding_
from acct.source_utility import after_context
from acct.supervision.utility import rows_utility
from acct.types import SourceStates, TokenBatch

FORMAT = "acct.source_states/1"
_REQUIRED = ("context_ids", "context_lengths", "context_hidden", "taps", "keys_pre", "values")
_OPTIONAL = ("query_hidden", "query_lengths", "query_utilities")


@torch.no_grad()
def read_source(adapter: ModelAdapter, batch: TokenBatch, utility_rows: int = 0) -> SourceStates:
    """Read [context; query] in one forward pass.

    Args:
        batch: N >= 1 and Q >= 1 in every row; rows may differ in both.
        utility_rows: last query positions at which the source's own utilities are measured; 0 measures none.
    Returns:
        Context states and H_q on the source's device.
    Raises:
        InputError: an empty context or query, or an id outside the vocabulary. ModelError: NaN or Inf in the states.
    """
    check_batch(batch)
    batch = batch.to(adapter.device)
    ids, lengths = batch.joined()
    places, valid = last_query_places(batch.context_lengths, batch.query_lengths, utility_rows)
    capture = replace(_capture(adapter), queries=utility_rows > 0)
    states = adapter.forward(ids, lengths, capture, query_positions=places if utility_rows else None)
    utilities = None
    if states.queries_pre is not None:  # before the query's states are cut off
        assert states.keys_pre is not None and states.values is not None
        parts = (states.keys_pre, states.values, states.queries_pre)
        utilities = _utilities(adapter, *parts, places, valid, lengths, batch.context_lengths, batch.context_ids.shape[1])
    found = _context_states(adapter, states, batch.context_ids, batch.context_lengths)
    query = take_query(states.hidden[-1], batch)
    require_finite("source", query_hidden=query, query_utilities=utilities)
    return replace(found, query_hidden=query, query_lengths=batch.query_lengths, query_utilities=utilities)


@torch.no_grad()
def read_context(adapter: ModelAdapter, context_ids: Tensor, context_lengths: Tensor | None = None) -> SourceStates:
    """Read a context without a query.

    Args:
        context_ids: int64 [batch, context], right-padded. context_lengths: int64 [batch]; None: no padding.
    Raises:
        InputError, ModelError: like `read_source`.
    """
    if context_lengths is None:
        context_lengths = context_ids.new_full(context_ids.shape[:1], context_ids.shape[-1])
    check_lengths("context", context_ids, context_lengths)
    context_ids, context_lengths = context_ids.to(adapter.device), context_lengths.to(adapter.device)
    states = adapter.forward(context_ids, context_lengths, _capture(adapter))
    return _context_states(adapter, states, context_ids, context_lengths)


@torch.no_grad()
def read_query(
    adapter: ModelAdapter, states: SourceStates, query_ids: Tensor, query_lengths: Tensor | None = None, utility_rows: int = 0
) -> SourceStates:
    """The same context under another query: runs the query's tokens over the stored keys and values.

    Args:
        states: of this model; a query that they already hold is replaced. query_ids: int64 [batch, query]. query_lengths: int64
            [batch]; None: no padding. utility_rows: see `read_source`.
    Returns:
        `states` with H_q as `read_source` would give it, to rounding.
    Raises:
        ArtifactError: the states were read by another model or in another dtype. InputError, ModelError: like `read_source`.
    """
    if query_lengths is None:
        query_lengths = query_ids.new_full(query_ids.shape[:1], query_ids.shape[-1])
    check_lengths("query", query_ids, query_lengths)
    if query_ids.shape[0] != states.batch:
        raise InputError(f"states of {states.batch} contexts need {states.batch} queries, got {query_ids.shape[0]}.")
    expected = identity_of(adapter, states.context_ids, states.context_lengths)
    for key in ("kind", "model", "dtype", "tokens"):
        if states.identity.get(key) != expected[key]:
            raise ArtifactError(
                f"stored states have {key} {states.identity.get(key)!r}, this source model needs {expected[key]!r}. "
                "Read the context again with this model."
            )
    states = states.to(adapter.device)
    query_lengths = query_lengths.to(adapter.device)
    after = adapter.forward_after(
        states.keys_pre,
        states.values,
        states.context_lengths,
        query_ids,
        query_lengths,
        Capture(hidden=(adapter.geometry.layers,), keys=utility_rows > 0, queries=utility_rows > 0),
    )
    query = zero_padding_(after.hidden[0], query_lengths)
    utilities = None
    if after.queries_pre is not None:
        assert after.keys_pre is not None and after.values is not None
        context = states.context_lengths
        places, valid = last_query_places(context, query_lengths, utility_rows)
        own = (places - context[:, None]).clamp(min=0)[:, None, None, :, None]  # place of each row in the query
        queries = after.queries_pre.take_along_dim(own, dim=3)
        keys, values = (after_context(*pair, context) for pair in ((states.keys_pre, after.keys_pre), (states.values, after.values)))
        totals, width = context + query_lengths, states.context_ids.shape[1]
        utilities = _utilities(adapter, keys, values, queries, places, valid, totals, context, width)
    require_finite("source", query_hidden=query, query_utilities=utilities)
    return replace(states, query_hidden=query, query_lengths=query_lengths, query_utilities=utilities)


def save_states(states: SourceStates, path: str | Path) -> None:
    """Write states to one safetensors file, whole or not at all.

    Raises:
        ArtifactError: the file cannot be written (folder missing, disk full); an older file of that name is then untouched.
    """
    path = Path(path)
    tensors = {name: tensor.detach().cpu().contiguous() for name in _REQUIRED + _OPTIONAL if (tensor := getattr(states, name)) is not None}
    metadata = {
        "format": FORMAT,
        "identity": json.dumps(dict(states.identity), sort_keys=True),
        "sha256": json.dumps({name: _digest(tensor) for name, tensor in tensors.items()}, sort_keys=True),
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, partial, metadata=metadata)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(
            f"cannot write source states to {path}: {error}. Nothing was written; free space or choose another folder."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def load_states(path: str | Path) -> SourceStates:
    """Read what `save_states` wrote, on the CPU, checked field by field.

    Raises:
        ArtifactError: the file is missing, truncated, of another kind, or a field is missing, altered, misshapen or not finite.
    """
    path = Path(path)
    if not path.is_file():
        raise ArtifactError(f"no source states at {path}. Read the context and save its states first.")
    try:
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            # copied: a tensor of the file's memory map would crash the process when the file is overwritten in place
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{path} is truncated or not a safetensors file ({error}). Save the states again.") from error
    if metadata.get("format") != FORMAT:
        raise ArtifactError(f"{path} must hold {FORMAT}, got {metadata.get('format', 'no format')!r}: it is another kind of file.")
    try:
        identity: dict[str, str] = json.loads(metadata["identity"])
        digests: dict[str, str] = json.loads(metadata["sha256"])
    except (KeyError, ValueError) as error:
        raise ArtifactError(f"{path} has damaged metadata ({error!r}). Save the states again.") from error
    _check_fields(path, tensors, digests, identity)
    return SourceStates(**tensors, identity=identity)


def _utilities(adapter: ModelAdapter, *rows: Any) -> Tensor:
    """`rows_utility` in float32, which is enough for a feature, on the CPU in blocks that stay in cache: a fifth of the time."""
    block = 2**18 if adapter.device.type == "cpu" else 2**24
    return rows_utility(adapter, *rows, precision=torch.float32, block=block)


def _capture(adapter: ModelAdapter) -> Capture:
    layers = adapter.geometry.layers
    return Capture(hidden=(*tap_indices(layers), layers), keys=True)


def _context_states(adapter: ModelAdapter, states: ForwardStates, context_ids: Tensor, context_lengths: Tensor) -> SourceStates:
    """Cut the context out of a pass over it or over [context; query], zero its padding, check it, name it."""
    width = context_ids.shape[1]

    def context(tensor: Tensor) -> Tensor:
        if tensor.shape[-2] > width:  # what follows is the query's
            tensor = tensor[..., :width, :].clone(memory_format=torch.contiguous_format)
        return zero_padding_(tensor, context_lengths)

    *taps, last = states.hidden
    found = SourceStates(
        context_ids=context_ids.masked_fill(~mask_of(context_lengths, width), 0),
        context_lengths=context_lengths,
        context_hidden=context(last),
        taps=context(torch.stack(taps, dim=1)),
        keys_pre=context(states.keys_pre),
        values=context(states.values),
        identity=identity_of(adapter, context_ids, context_lengths),
    )
    require_finite("source", context_hidden=found.context_hidden, taps=found.taps, keys_pre=found.keys_pre, values=found.values)
    return found


def identity_of(adapter: ModelAdapter, context_ids: Tensor, context_lengths: Tensor) -> dict[str, str]:
    """What context states were computed from: model, dtype and tokens."""
    return {
        "kind": "source",
        "family": adapter.family,
        "model": adapter.fingerprint,
        "dtype": str(adapter.dtype).removeprefix("torch."),
        "tokens": token_hash(context_ids, context_lengths),
    }


def token_hash(ids: Tensor, lengths: Tensor) -> str:
    """sha256 of the real tokens of a batch, whatever its padding."""
    ids, lengths = ids.cpu(), lengths.cpu()
    digest = hashlib.sha256(lengths.numpy().tobytes())
    digest.update(ids[mask_of(lengths, ids.shape[1])].numpy().tobytes())
    return digest.hexdigest()


def _digest(tensor: Tensor) -> str:
    flat = tensor.contiguous().reshape(-1)
    return hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def _check_fields(path: Path, tensors: Mapping[str, Tensor], digests: Mapping[str, str], identity: Mapping[str, str]) -> None:
    absent = [name for name in _REQUIRED if name not in tensors]
    unknown = sorted(set(tensors) - set(_REQUIRED + _OPTIONAL))
    if absent or unknown:
        raise ArtifactError(
            f"{path}: {'lacks field ' + absent[0] if absent else 'has an unknown field ' + unknown[0]}. Save the states again."
        )
    for name, tensor in tensors.items():
        if digests.get(name) != _digest(tensor):
            raise ArtifactError(f"{path}: field {name} was altered after it was saved. Save the states again.")
    ids, keys, hidden = tensors["context_ids"], tensors["keys_pre"], tensors["context_hidden"]
    batch, context = ids.shape if ids.dim() == 2 else (-1, -1)
    shapes = {
        "context_lengths": (batch,),
        "context_hidden": (batch, context, hidden.shape[-1]),
        "taps": (batch, tensors["taps"].shape[1], context, hidden.shape[-1]),
        "keys_pre": (batch, *keys.shape[1:3], context, keys.shape[-1]),
        "values": tuple(keys.shape),
    }
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape:
            raise ArtifactError(
                f"{path}: field {name} has shape {list(tensors[name].shape)}, expected {list(shape)}. Save the states again."
            )
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ArtifactError(f"{path}: field {name} holds NaN or Inf. Read the context again.")
    if identity.get("tokens") != token_hash(ids, tensors["context_lengths"]):
        raise ArtifactError(f"{path}: the identity names other tokens than context_ids holds. Save the states again.")
