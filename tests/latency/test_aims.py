"""The table of aims by hand: what is compared, at which lengths, on which machine."""

from __future__ import annotations

from typing import Any

from acct.latency.aims import aims


def timed(devices: list[str], *records: tuple[int, float, dict[str, float]]) -> dict[str, Any]:
    """A document: (context_tokens, speed-up, milliseconds of linear maps); a conversion takes 10 ms."""
    return {
        "direction": "a_to_b",
        "provenance": {"devices": devices},
        "records": [
            {
                "context_tokens": n, "speedup": speedup, "conversion_ms": 10.0, "ridge_ms": maps,
                "mounted_bytes": 100 + n, "peak_bytes": 2 * n, "ideal_bytes": n,
            }
            for n, speedup, maps in records
        ],
    }  # fmt: skip


def lines(document: dict[str, Any]) -> list[tuple[str, ...]]:
    table = aims([document], "here")
    assert table is not None and table.name == "latency_aims" and table.blocks[0].columns == ("Aim", "Measured", "Verdict")
    return [(name, *(cell.text for cell in cells)) for name, cells in table.blocks[0].rows]


def test_on_a_cpu() -> None:
    document = timed([], (512, 24.9, {"1": 9.9, "8": 40.0, "1_all": 11.0}), (1024, 1.0, {}), (2048, 40.0, {"1": 10.1}))
    document |= {"growth": [{"context_tokens": 1024}, {"context_tokens": 16384}], "growth_exponent": 1.12}
    assert lines(document) == [
        ("Target prefill / conversion, 512 tokens", "at least 25x", "24.9x", "does not hold"),
        ("Target prefill / conversion, 2,048 tokens", "at least 40x", "40.0x", "holds"),
        ("Growth, 1,024 to 16,384 tokens", "at most N^1.1", "N^1.12", "does not hold"),
        ("Mounted / ideal bytes, worst length", "at most 1.05", "1.20", "does not hold"),
        ("Peak / output bytes, worst length", "at most 2.5", "2.00", "holds"),
        ("Linear map, 1 layer, head-local / conversion, 512 tokens", "above 1x", "0.99x", "does not hold"),
        ("Linear map, 8 layers, head-local / conversion, 512 tokens", "above 1x", "4.00x", "holds"),
        ("Linear map, 1 layer, all heads / conversion, 512 tokens", "above 1x", "1.10x", "holds"),
        ("Linear map, 1 layer, head-local / conversion, 2,048 tokens", "above 1x", "1.01x", "holds"),
    ]


def test_on_a_gpu_only_long_contexts_have_an_aim() -> None:
    found = lines(timed(["NVIDIA H100"], (2048, 3.0, {}), (18_000, 59.0, {}), (19_456, 61.0, {})))
    assert [line[1:] for line in found[:2]] == [("at least 60x", "59.0x", "does not hold"), ("at least 60x", "61.0x", "holds")]
    assert len(found) == 4


def test_nothing_timed_gives_no_table() -> None:
    assert aims([], "here") is None and aims([timed([])], "here") is None
