"""Part files of an evaluation: what a killed run leaves is continued, what was tampered with is refused with file, line and remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acct.errors import ArtifactError
from acct.evaluation.store import RecordStore
from tests.reporting.stored import row

Rows = list[dict[str, Any]]
CONFIGURATION = {"direction": "a_to_b", "retention": 0.25}
METHODS = ("target_full", "acct")


def records() -> Rows:
    """Two methods on three examples of one task, in the order of a run: both methods after another."""
    return [row("a_to_b", "boolq", method, number, score=1.0) for method in METHODS for number in range(3)]


def part(folder: Path, found: Rows) -> Path:
    """The part file with these records."""
    store = RecordStore(folder, CONFIGURATION)
    store.append("boolq", found)
    return folder / "parts" / "boolq.jsonl"


def changed(number: int, **values: Any) -> Callable[[Rows], Rows]:
    return lambda found: [{**one, **values} if index == number else one for index, one in enumerate(found)]


def without(number: int, name: str) -> Callable[[Rows], Rows]:
    return lambda found: [{k: v for k, v in one.items() if index != number or k != name} for index, one in enumerate(found)]


def test_what_was_kept_and_a_last_line_cut_off(tmp_path: Path) -> None:
    path = part(tmp_path, records())
    whole = path.read_bytes()
    path.write_bytes(whole[:-25])
    store = RecordStore(tmp_path, CONFIGURATION)
    assert store.kept == 5 and store.done("boolq", "acct") == {"boolq/00000", "boolq/00001"}
    store.append("boolq", records()[5:])
    assert path.read_bytes() == whole and RecordStore(tmp_path, CONFIGURATION).kept == 6


def test_a_published_folder_goes_on_from_its_records(tmp_path: Path) -> None:
    found = [{**one, "nll_sum": None if number else 0.1 + number} for number, one in enumerate(records())]
    path = part(tmp_path, found[:5])
    (tmp_path / "provenance.json").write_text(json.dumps({"commit": "abc"}))
    RecordStore(tmp_path, CONFIGURATION).finish()
    before = path.read_bytes()
    shutil.rmtree(tmp_path / "parts")
    (tmp_path / "parts.new").mkdir()  # of a run that was killed here
    (tmp_path / "parts.new/other.jsonl").write_text("half")
    store = RecordStore(tmp_path, CONFIGURATION)
    assert store.kept == 5 and path.read_bytes() == before and [file.name for file in path.parent.iterdir()] == ["boolq.jsonl"]
    store.append("boolq", found[5:])
    assert store.frame(["boolq"])["method"].tolist() == [one["method"] for one in found]
    with pytest.raises(ArtifactError, match=r"retention was 0\.25, now it is 0\.5"):
        RecordStore(tmp_path, {**CONFIGURATION, "retention": 0.5})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(1, direction="b_to_a"), "mixes configurations: direction is a_to_b, b_to_a, configuration.json says 'a_to_b'"),
        (lambda found: changed(1, direction="b_to_a")(found[1:2] * 2)[1:], "direction is b_to_a, configuration.json says 'a_to_b'"),
        (changed(1, version=2), "mixes configurations: version of boolq is 1 and 2"),
        (changed(1, metric="f1"), "mixes configurations: metric of boolq is accuracy and f1"),
        (changed(1, prompt_hash="f" * 16), "prompt_hash of boolq/00001 is 0000000000000000 and ffffffffffffffff"),
        (lambda found: [*found, found[4]], "holds acct on boolq/00001 more than once"),
        (lambda found: [*found, {**found[4], "score": 0.0}], "holds acct on boolq/00001 more than once"),
        (changed(2, method="bridge_olny"), "unknown method 'bridge_olny'"), (changed(2, score=1.5), "acct|target_full on boolq/00002 has"),
        (changed(2, task="race"), ":3 is not a record: task is 'race' in the file of boolq"),
        (without(0, "score"), ":1 is not a record: it lacks score"),
        (changed(5, score="high"), ":6 is not a record: score must be a number, got 'high'"),
        (changed(5, score=None), ":6 is not a record: score must be a number, got None"),
        (changed(5, tokens=1.5), ":6 is not a record: tokens must be a whole number"),
        (changed(5, tokens=True), ":6 is not a record: tokens must be a whole number, got True"),
        (changed(5, contextual=1), ":6 is not a record: contextual must be true or false"),
        (changed(5, prediction=3), ":6 is not a record: prediction must be text"),
    ],
)  # fmt: skip
def test_records_that_cannot_stand_side_by_side(tmp_path: Path, change: Callable[[Rows], Rows], message: str) -> None:
    part(tmp_path, change(records()))
    with pytest.raises(ArtifactError, match=message) as caught:
        RecordStore(tmp_path, CONFIGURATION)
    assert "boolq.jsonl" in str(caught.value) and str(caught.value).endswith("Remove the file to score this task again.")
    assert RecordStore(tmp_path, CONFIGURATION, restart=True).kept == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"not json", "Expecting value"), (b"[1]", "expected an object, got list"), (b"", "Expecting value"), (b'{"a": "\xff"}', "utf-8"),
        (b'{"direction": "a_to_b", "task', "Unterminated string"),
    ],
)  # fmt: skip
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = part(tmp_path, records())
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], line, *lines[2:]]) + b"\n")
    with pytest.raises(ArtifactError, match=rf"boolq\.jsonl:2 is not a record: .*{message}.* Remove the file"):
        RecordStore(tmp_path, CONFIGURATION)


def test_a_line_separator_inside_an_answer_does_not_end_the_record(tmp_path: Path) -> None:
    path = part(tmp_path, [])
    path.write_text(json.dumps({**records()[0], "prediction": "one\u2028two\x85three"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert RecordStore(tmp_path, CONFIGURATION).frame()["prediction"].tolist() == ["one\u2028two\x85three"]


def test_records_of_another_sample_are_named(tmp_path: Path) -> None:
    part(tmp_path, records())
    store = RecordStore(tmp_path, CONFIGURATION)
    prompts = {f"boolq/{number:05d}": "0" * 16 for number in range(3)}
    store.check("boolq", prompts)
    with pytest.raises(ArtifactError, match=r"boolq/00002, which is not in the sample of 2 examples\. Remove the file"):
        store.check("boolq", {name: prompts[name] for name in list(prompts)[:2]})
    with pytest.raises(ArtifactError, match=r"prompt_hash of boolq/00001 is 0{16}, the sample's is 1{16}"):
        store.check("boolq", {**prompts, "boolq/00001": "1" * 16})
