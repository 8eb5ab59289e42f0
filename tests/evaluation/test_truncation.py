"""Long contexts: one rule, applied before any method, recorded for each example and the same for all of them (spec 8)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from acct.data.examples import Example
from acct.data.prompts import PromptOptions
from acct.data.tasks.registry import get_task
from acct.errors import ArtifactError, InputError
from acct.evaluation import run
from acct.evaluation.run import EvaluationOptions, run_evaluation
from acct.evaluation.samples import encode_sample
from acct.evaluation.scoring import ScoringRules
from acct.reporting.intervals import Bootstrap
from acct.reporting.records import read_records
from acct.training.session import check_windows
from tests.evaluation.tiny_run import interface_for, tiny_pair

LIMIT = 24
OPTIONS = EvaluationOptions(batch=2, scoring=ScoringRules(max_new_tokens=2), bootstrap=Bootstrap(50), check_examples=1)


def examples() -> list[Example]:
    row = {"question": "is w3 in it", "answer": True, "passage": ""}
    passages = [" ".join(f"w{number % 40 + 3}" for number in range(start, start + size)) for start, size in ((0, 12), (5, 40), (9, 55))]
    return [get_task("boolq").from_row({**row, "passage": passage}, index) for index, passage in enumerate(passages)]


def test_every_method_reads_the_same_shortened_context_and_the_records_say_by_how_much(tmp_path: Path) -> None:
    pair = tiny_pair("llama")
    task, options = get_task("boolq"), PromptOptions(max_context_tokens=LIMIT)
    sample = encode_sample(task, examples(), pair.tokenizer, "base", options)
    full = encode_sample(task, examples(), pair.tokenizer, "base")
    dropped = {e.id: len(whole.context_ids) - len(e.context_ids) for e, whole in zip(sample.examples, full.examples, strict=True)}
    assert min(dropped.values()) == 0 < max(dropped.values()) and all(len(e.context_ids) <= LIMIT for e in sample.examples)

    seen: dict[str, set[tuple[int, ...]]] = {}
    prepared = run.Prepared

    def watched(pair, interface, chosen, *rest):
        for example in chosen:
            seen.setdefault(example.id, set()).add((*example.context_ids, -1, *example.query_ids))
        return prepared(pair, interface, chosen, *rest)

    with patch.object(run, "Prepared", watched):
        run_evaluation("tiny", pair, interface_for(pair), {"boolq": sample}, tmp_path, OPTIONS, show_progress=False)
    assert seen == {e.id: {(*e.context_ids, -1, *e.query_ids)} for e in sample.examples}
    frame = read_records(tmp_path).frame
    assert set(frame["method"]) == set(OPTIONS.methods) and len(frame) == len(OPTIONS.methods) * 3
    assert frame.groupby("example")[["dropped_tokens", "prompt_hash"]].nunique().eq(1).all(axis=None)
    assert frame.groupby("example")["dropped_tokens"].first().to_dict() == dropped
    whole = frame[frame["method"] == "target_full"].set_index("example")["context_tokens"].to_dict()
    assert whole == {e.id: len(e.context_ids) for e in sample.examples}

    for changed in (full, encode_sample(task, examples(), pair.tokenizer, "base", replace(options, truncation_keeps="tail"))):
        with pytest.raises(ArtifactError, match=r"sample\.boolq"):
            run_evaluation("tiny", pair, interface_for(pair), {"boolq": changed}, tmp_path, OPTIONS, show_progress=False)


def test_a_context_beyond_a_models_positions_stops_before_anything_is_scored() -> None:
    pair = tiny_pair("llama")
    sample = encode_sample(get_task("boolq"), examples(), pair.tokenizer, "base")
    check_windows(pair, sample.examples, 2)
    with (
        patch.object(pair.source.model.config, "max_position_embeddings", 30),
        pytest.raises(InputError, match=r"boolq/00001: .* the source reads at most 30\. Set prompts\.max_context_tokens to \d+ or less"),
    ):
        check_windows(pair, sample.examples, 2)
