"""Bridge, residual and all five terms on tiny real decoders: the path that the training stage takes."""

from __future__ import annotations

import pytest
import torch

from acct.cache import extend, mounted
from acct.compiler.bridge import BridgeStatistics, held_out_r2
from acct.compiler.compiler import Compiler, rotate_kv
from acct.compiler.residual import Residual, ResidualShape
from acct.losses.compilation import CompilationWeights, attention, attention_teacher, behaviour, geometry
from acct.native import read_native
from acct.selection import full_selection, gather_native, select
from acct.source import read_source
from acct.types import Selection, SparseKV, TokenBatch
from tests.tiny import tiny_batch, tiny_model, tiny_pair


def choose(batch: TokenBatch, layers: int, heads: int, tail: int = 2) -> Selection:
    generator = torch.Generator().manual_seed(1)
    lengths = batch.context_lengths
    tails = lengths.clamp(max=tail)
    order = torch.rand(len(lengths), layers * heads, batch.context_ids.shape[1], generator=generator)
    order = order.masked_fill(torch.arange(order.shape[-1]) >= (lengths - tails)[:, None, None], 2.0).argsort(-1)
    counts = (torch.rand(len(lengths), layers * heads, generator=generator) * (lengths - tails + 1)[:, None]).long()
    return select(order, counts, lengths, tails, layers, heads)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_term_falls_on_a_real_pair(family: str) -> None:
    pair = tiny_pair(family)
    source, target, shape = pair.source, pair.target, pair.geometry
    batch = tiny_batch(3, context=(11, 5, 17), query=(4, 9, 3))
    states, native = read_source(source, batch), read_native(target, batch, queries=True, logits=False)
    selection = choose(batch, shape.target.layers, shape.target.kv_heads)
    statistics = BridgeStatistics(shape)
    for seed in range(4):
        other = tiny_batch(seed, context=(23, 17), query=(2, 2))
        chosen = choose(other, shape.target.layers, shape.target.kv_heads)
        statistics.add(read_source(source, other), chosen, read_native(target, other))
    bridge = statistics.solve()
    assert bool(torch.isfinite(torch.stack(held_out_r2(bridge, statistics))).all())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"width": 32, "feed_forward_width": 64, "depth": 1, "latents": 4}
        compiler = Compiler(bridge, Residual(ResidualShape(shape.source.hidden, shape.units, shape.target.head_dim, **sizes)))
    native_kv = rotate_kv(target, SparseKV(selection, *gather_native(selection, native), rotated=False))
    with torch.no_grad(), mounted(target, native_kv) as cache:
        teacher_logits = extend(target, cache, batch.query_ids, batch.query_lengths)
    teacher = attention_teacher(target.rotate, native, selection, target.scaling)
    weights, optimiser = CompilationWeights(), torch.optim.AdamW(compiler.trainable_parameters(), lr=1e-2)
    history = []
    for _ in range(12):
        kv = compiler(states, selection)
        rotated = rotate_kv(target, kv)
        with mounted(target, rotated) as cache:
            logits = extend(target, cache, batch.query_ids, batch.query_lengths)
        terms = geometry(kv, native)
        terms["attention"] = attention(rotated.keys, teacher, selection)
        terms["behaviour"] = behaviour(logits, teacher_logits, batch.query_lengths)
        history.append({name: float(term.detach()) for name, term in terms.items()})
        optimiser.zero_grad()
        weights.total(terms).backward()
        optimiser.step()
    assert all(history[0][name] > history[-1][name] > 0 for name in ("key_direction", "value", "attention", "behaviour")), history


@pytest.mark.parametrize(("family", "rope"), [("llama", "llama3"), ("qwen2", "dynamic"), ("qwen3", "yarn")])
def test_the_native_side_of_the_attention_term_is_the_models_own_attention(family: str, rope: str) -> None:
    """Shares of context keys and of the query history, from the teacher's parts, against the eager model's attention rows."""
    pair = tiny_pair(family, rope=rope)
    target = pair.target
    batch = tiny_batch(5, context=(7,), query=(5,))
    native = read_native(target, batch, queries=True)
    selection = full_selection(batch.context_lengths, target.geometry.layers, target.geometry.kv_heads)
    teacher = attention_teacher(target.rotate, native, selection, target.scaling, positions=3)
    eager = tiny_model(family, size="target", rope=rope)
    eager.set_attn_implementation("eager")
    ids, _ = batch.joined()
    with torch.no_grad():
        rows = torch.stack(eager(ids, output_attentions=True).attentions, 1)[0, :, :, -3:]  # [layer, query_head, row, sequence]
    keys = teacher.keys.view(target.geometry.layers, target.geometry.kv_heads, 7, -1)
    keys = keys.repeat_interleave(target.geometry.queries_per_head, 1)  # [layer, query_head, position, dim]
    logits = torch.cat([target.scaling * teacher.queries[0] @ keys.mT, teacher.history[0][..., None]], -1)
    shares = logits.softmax(-1)
    torch.testing.assert_close(shares[..., :7], rows[..., :7], rtol=0, atol=2e-6)
    torch.testing.assert_close(shares[..., 7], rows[..., 7:].sum(-1), rtol=0, atol=2e-6)
