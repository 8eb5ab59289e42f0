"""Runs kvpress and the package's compressors on the same tokens of the same tiny models and prints {"<family> <name>": outcome} as JSON.

A program of its own, not a test: importing kvpress replaces attention functions of transformers for good. An outcome is the largest
difference of scores; a case that differs prints its traceback.
"""

from __future__ import annotations

import json
import traceback

import torch
from kvpress import ExpectedAttentionPress, ObservedAttentionPress, PyramidKVPress, SnapKVPress
from kvpress.presses.scorer_press import ScorerPress

from acct.allocator.budget import BudgetRule
from acct.cartographer import rank_prefix
from acct.config.compressors import CompressorsConfig
from acct.methods.compressors.base import Rule
from acct.methods.compressors.expected_attention import EXPECTED
from acct.methods.compressors.observed import observe
from acct.methods.compressors.observed_attention import OBSERVED
from acct.methods.compressors.pyramidkv import PYRAMIDKV
from acct.methods.compressors.snapkv import SNAPKV
from acct.models import compat
from acct.models.adapter import Capture
from acct.models.registry import adapter_for
from acct.selection import select
from tests.tiny import FAMILIES, VOCABULARY, tiny_model
from tests.tolerances import COMPRESSOR_SCORES

LENGTH, RETENTION, WINDOW, BETA = 60, 0.5, 6, 3  # layers of 50, 30 and 10 slots: no rounding, whose ties differ
CASES: dict[str, tuple[ScorerPress, Rule]] = {
    "snapkv": (SnapKVPress(1 - RETENTION, window_size=WINDOW), SNAPKV),
    "pyramidkv": (PyramidKVPress(1 - RETENTION, window_size=WINDOW, beta=BETA), PYRAMIDKV),
    "observed_attention": (ObservedAttentionPress(1 - RETENTION), OBSERVED),
    "expected_attention": (ExpectedAttentionPress(1 - RETENTION), EXPECTED),
}


@torch.no_grad()
def compare(family: str, name: str) -> float:
    """Scores within tolerance, kept tokens of every unit and budgets of every layer equal; the largest difference of scores."""
    press, rule = CASES[name]
    model = tiny_model(family, size="target")
    adapter, geometry = adapter_for(model), adapter_for(model).geometry
    ids = torch.randint(3, VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    found: list[torch.Tensor] = []
    budgets: list[int] = []
    original = press.score

    def recorded(module: torch.nn.Module, *args: object) -> torch.Tensor:
        found.append(original(module, *args))
        budgets.append(press.get_layer_budget(module, LENGTH) if isinstance(press, PyramidKVPress) else round(LENGTH * RETENTION))
        return found[-1]

    press.score = recorded
    with compat.stock_attention(model, "eager"), press(model):
        model.model(ids, use_cache=True)
    press.score = original
    budget, settings = BudgetRule(RETENTION, 0).resolve(LENGTH), CompressorsConfig(window=WINDOW, beta=BETA)
    observed = observe(adapter, adapter.forward(ids, None, Capture(keys=True, queries=True)), 0, LENGTH, LENGTH)
    ours, counts = rule.score(observed, budget, settings), rule.counts(observed, budget, settings)
    theirs = torch.cat(found).flatten(0, 1)
    scored = ours.isfinite()
    torch.testing.assert_close(ours[scored], theirs[scored], atol=COMPRESSOR_SCORES, rtol=COMPRESSOR_SCORES)
    assert bool(scored.any()) and bool((theirs[~scored] > theirs[scored].max()).all()), "what is always kept differs"
    assert int(counts.sum()) == geometry.units * budget.mean_capacity
    by_layer = [round(count) for count in counts.view(geometry.layers, -1).double().mean(dim=1).tolist()]
    assert by_layer == budgets and (len(set(budgets)) > 1) == (name == "pyramidkv"), (by_layer, budgets)
    length = torch.tensor([LENGTH])
    kept = select(rank_prefix(ours[None], length), counts[None], length, torch.tensor([0]), geometry.layers, geometry.kv_heads)
    for unit, positions in enumerate(kept.positions.split(counts.tolist())):
        assert set(positions.tolist()) == set(theirs[unit].topk(len(positions)).indices.tolist()), f"unit {unit}"
    return float((ours - theirs)[scored].abs().max())


def main() -> None:
    outcomes: dict[str, object] = {}
    for family in FAMILIES:
        for name in CASES:
            try:
                outcomes[f"{family} {name}"] = compare(family, name)
            except Exception:  # reported for its case, the others still run
                outcomes[f"{family} {name}"] = traceback.format_exc()
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
