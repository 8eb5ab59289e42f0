"""A start for W_E from the data: white, ordered by what it predicts, and it keeps what the target's states need."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from acct.compiler.embedding import EmbeddingStatistics
from acct.compiler.residual import Residual, ResidualShape
from acct.errors import ConfigError
from acct.types import NativeStates, SourceStates


def batches(mixing: torch.Tensor, count: int, seed: int):
    """Source states of hidden width 4 with 3 taps at very unequal scales; the target's states depend on `mixing` directions of them."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-1, 1, 16)
    for _ in range(count):
        x = torch.randn(2, 30, 16, generator=generator) * scales + 7
        y = (x / scales) @ mixing  # [batch, context, 2 units * (1 key + 1 value)]
        lengths = torch.tensor([30, 21])
        x[1, 21:], y[1, 21:] = 1e6, -1e6  # padding
        states = SourceStates(
            torch.zeros(2, 30, dtype=torch.int64), lengths, x[..., :4], x[..., 4:].unflatten(-1, (3, 4)).transpose(1, 2),
            torch.zeros(2, 1, 1, 30, 1), torch.zeros(2, 1, 1, 30, 1),
        )  # fmt: skip
        parts = y.unflatten(-1, (2, 2)).transpose(1, 2)  # [batch, unit, context, key and value]
        empty = torch.zeros(2, 2, 0, 1)
        yield x[0], y[0], states, NativeStates(lengths, torch.ones(2, dtype=torch.int64), parts[..., :1], parts[..., 1:], empty, empty)


def test_the_start_is_white_and_keeps_every_needed_direction():
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(16, 2, generator=generator) @ torch.randn(2, 4, generator=generator)  # two directions matter
    statistics = EmbeddingStatistics(16, 4)
    for *_, states, native in batches(mixing, 40, 1):
        statistics.add(states, native)
    assert statistics.rows == 40 * 51
    weight, bias = statistics.solve(2)
    x, y = (torch.cat(parts) for parts in zip(*((x, y) for x, y, *_ in batches(mixing, 40, 2))))
    embedded = x @ weight.mT + bias
    torch.testing.assert_close(torch.cov(embedded.mT), torch.eye(2), atol=0.15, rtol=0)
    assert embedded.mean(0).abs().max() < 0.15
    design = torch.cat([embedded, torch.ones(len(x), 1)], 1).double()
    wrong = y.double() - design @ torch.linalg.lstsq(design, y.double()).solution
    assert wrong.square().sum() < 1e-3 * (y - y.mean(0)).square().sum()


def test_an_anchor_keeps_the_norm_of_every_token_and_so_what_is_linear():
    mixing = torch.randn(16, 4, generator=torch.Generator().manual_seed(5))
    statistics = EmbeddingStatistics(16, 4)
    for *_, states, native in batches(mixing, 40, 1):
        statistics.add(states, native)
    x, y = (torch.cat(parts) for parts in zip(*((x, y) for x, y, *_ in batches(mixing, 40, 2))))
    left = {}
    for anchor in (0.0, 3.0):
        weight, bias = statistics.solve(6, anchor=anchor)
        embedded = x @ weight.mT + bias
        z = torch.nn.functional.rms_norm(embedded, (6,))
        design = torch.cat([z, torch.ones(len(z), 1)], 1).double()
        wrong = y.double() - design @ torch.linalg.lstsq(design, y.double()).solution
        left[anchor] = wrong.square().sum() / (y - y.mean(0)).square().sum()
    assert (embedded[:, -1] == 3 * 5**0.5).all() and not weight[-1].any()
    assert left[3.0] < left[0.0] / 4


def test_parts_merge_to_the_whole():
    mixing = torch.randn(16, 4, generator=torch.Generator().manual_seed(3))
    whole, parts = EmbeddingStatistics(16, 4), [EmbeddingStatistics(16, 4) for _ in range(2)]
    for number, (*_, states, native) in enumerate(batches(mixing, 6, 4)):
        whole.add(states, native)
        parts[number % 2].add(states, native)
    parts[0].merge(parts[1])
    for name, value in whole.sums().items():
        torch.testing.assert_close(getattr(parts[0], name), value)


def test_a_stride_reads_every_nth_position():
    mixing = torch.randn(16, 4, generator=torch.Generator().manual_seed(3))
    strided, expected = EmbeddingStatistics(16, 4, stride=7), EmbeddingStatistics(16, 4)
    for *_, states, native in batches(mixing, 3, 4):
        strided.add(states, native)
        lengths = (states.context_lengths + 6) // 7
        hidden, taps = states.context_hidden[:, ::7], states.taps[:, :, ::7]
        keys, values = native.context_keys_pre[:, :, ::7], native.context_values[:, :, ::7]
        expected.add(
            replace(states, context_hidden=hidden, taps=taps, context_lengths=lengths),
            replace(native, context_keys_pre=keys, context_values=values, context_lengths=lengths),
        )
    assert strided.rows == expected.rows == 3 * (5 + 3)
    for name, value in expected.sums().items():
        torch.testing.assert_close(strided.sums()[name], value)


def test_a_zero_start_makes_every_block_the_identity_and_lets_it_learn():
    shape = ResidualShape(source_hidden=8, units=2, head_dim=4, width=32, feed_forward_width=64, depth=2, latents=3, branch_start="zero")
    residual = Residual(shape)
    x, memory = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    for block in [*residual.encoder, *residual.decoder]:
        assert torch.equal(block(x, memory), x)
    block(x, memory).square().sum().backward()
    assert block.feed_forward.down_map.weight.grad.abs().max() > 0
    other = Residual(ResidualShape(source_hidden=8, units=2, head_dim=4, width=32, feed_forward_width=64, depth=2, latents=3))
    assert not torch.equal(other.encoder[0](x, memory), x)
    with pytest.raises(ConfigError, match="branch_start"):
        replace(shape, branch_start="none")
