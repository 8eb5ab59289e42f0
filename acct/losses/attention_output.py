"""A further term of the Compilation loss, beyond the paper (spec 11): what attention reads, not only where it looks.

    o_i   = sum_j a_ij v_j                       over selected context slots and visible native query positions, under fixed queries q*
    L_out = sum_i ||o^_i - o*_i||^2 / sum_i ||o*_i||^2       i: query heads and positions of one layer; mean over layers, then examples

o* takes the native keys and values at the selection, o^ the compiled ones; query positions keep their own. L_attn weighs a key's error by
the attention that it moves and knows nothing of values, L_V weighs every value alike, read or not: here an error of either weighs as much
as it changes what a layer reads. Errors of a layer are relative to what all its heads read together, so that a head that rests on a token
with a value near zero does not count as much as one that reads. Unlike L_beh it costs no pass of the target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from acct.losses.compilation import AttentionTeacher, fold, log_shares, share_queries, wide
from acct.selection import layer_slice, padded_index
from acct.types import Selection


def attention_output(
    keys: Tensor, values: Tensor, native_values: Tensor, teacher: AttentionTeacher, selection: Selection, epsilon: float = 1e-6
) -> Tensor:
    """L_out.

    Args:
        keys, values: compiled, [slot, dim], keys rotated. native_values: [slot, dim], detached here.
        teacher: of the same selection, with `history_values`. epsilon: added to the denominator.
    """
    assert teacher.history_values is not None, "prepare the teacher with values=True"
    kind = keys.dtype
    queries, read = share_queries(teacher, selection.heads, kind), fold(teacher.history_values.to(kind), selection.heads)
    valid = teacher.row_valid.to(kind).repeat(1, queries.shape[3] // teacher.row_valid.shape[1])[:, None, :, None]
    layers = []
    for layer in range(selection.layers):
        index, place = padded_index(selection, layer)
        if not index.shape[-1]:
            continue  # nothing is compiled: what the query reads of itself is the same
        here = layer_slice(selection, layer)
        with torch.no_grad():
            full = _read(queries[:, layer], teacher.keys[here].to(kind), native_values[here].to(kind), read[:, layer], index, place)
            size = (valid * full.square()).sum((1, 2, 3))
        error = _read(queries[:, layer], keys[here], values[here], read[:, layer], index, place) - full
        layers.append((valid * error.square()).sum((1, 2, 3)) / (size + epsilon))  # [batch]
    return torch.stack(layers).sum() / (selection.layers * selection.batch) if layers else wide(keys).sum() * 0


def _read(queries: Tensor, keys: Tensor, values: Tensor, read: Tensor, index: Tensor, place: Tensor) -> Tensor:
    """o of one layer: [batch, head, group * row, dim]."""
    shares = log_shares(queries, keys, index, place).exp()  # [batch, head, group * row, S + 1], the query's own part last
    own = values.index_select(0, index.reshape(-1)).view(*index.shape, -1) * place[..., None]
    return shares[..., :-1] @ own + shares[..., -1:] * read
