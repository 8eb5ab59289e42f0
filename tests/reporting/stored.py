"""A record set small enough to work every figure by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from acct.reporting.records import FOLDER, Records, as_frame, write_records

# F1 of four examples: by hand target_full 75, acct 50, source_full 25, no_context 0, random 25 (in percent)
F1 = {
    "target_full": (1.0, 1.0, 1.0, 0.0), "acct": (1.0, 0.5, 0.5, 0.0), "source_full": (1.0, 0.0, 0.0, 0.0), "no_context": (0.0,) * 4,
    "random": (1.0, 0.0, 0.0, 0.0), "bridge_only": (0.5, 0.5, 0.0, 0.0), "native_kv": (1.0, 1.0, 0.5, 0.0), "zeros": (0.0,) * 4,
    "noise": (0.0,) * 4, "wrong_document": (0.0,) * 4,
}  # fmt: skip
# NLL sums and tokens: target_full exp(10 / 10) = e, acct exp(20 / 10) = e^2, source_full exp(30 / 10) = e^3
NLL = {"target_full": (2.0, 8.0), "acct": (5.0, 15.0), "source_full": (12.0, 18.0)}
TOKENS = (4, 6)


def row(direction: str, task: str, method: str, example: int, **values: Any) -> dict[str, Any]:
    metric = "perplexity" if task == "wikitext" else "f1" if task.endswith("_qa") else "accuracy"
    return {
        "direction": direction, "task": task, "version": 1, "metric": metric, "contextual": task != "wikitext", "method": method,
        "example": f"{task}/{example:05d}", "prompt_hash": "0" * 16, "prediction": "x", "score": 0.0, "nll_sum": None, "tokens": 1,
        "context_tokens": 10, "mounted_bytes": 0, "budget_bytes": 0, "dropped_tokens": 0, **values,
    }  # fmt: skip


def rows(direction: str = "a_to_b") -> list[dict[str, Any]]:
    found = [row(direction, "search_qa", method, i, score=score) for method, own in F1.items() for i, score in enumerate(own)]
    found += [
        row(direction, "wikitext", method, i, nll_sum=nll, tokens=TOKENS[i], score=2.0)
        for method, own in NLL.items()
        for i, nll in enumerate(own)
    ]
    return found


def records(direction: str = "a_to_b") -> Records:
    return Records(as_frame(rows(direction)), {direction: {"direction": direction, "retention": 0.25}}, {direction: {"commit": "abc"}})


def store(
    root: Path, direction: str = "a_to_b", found: list[dict[str, Any]] | None = None, run: str | None = None, **settings: Any
) -> Path:
    """An evaluation folder below <root>/micro, as a run leaves it."""
    folder = root / "micro" / (run or direction) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    base = {"direction": direction, "variant": "", "retention": 0.25, "tail_tokens": 8, "max_new_tokens": 16, "seed": 0}
    configuration = {**base, **settings}
    (folder / "configuration.json").write_text(json.dumps(configuration))
    (folder / "provenance.json").write_text(json.dumps({"commit": "0123456789abcdef", "dirty": False, "versions": {"torch": "2"}}))
    write_records(as_frame(rows(direction) if found is None else found), folder / "records.parquet")
    return folder
