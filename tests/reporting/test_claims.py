"""The claims ledger on records whose figures are worked by hand: verdicts, counts, refusals, and what is not comparable."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from acct.cli.plan import SIX as REPRODUCED
from acct.config.root import config_folder
from acct.errors import ArtifactError, ConfigError
from acct.reporting.claims import EMBEDDED, FAILS, HOLDS, NOT_COMPARABLE, NOT_RUN, Claim, counts_line, judge_claim, ledger
from acct.reporting.claims_evidence import RecordsEvidence, Row, load_evidence
from acct.reporting.claims_excerpt import excerpt, filled, main
from acct.reporting.claims_latency import read_latency
from acct.reporting.claims_measures import MOST, SOME, Bound, Compared, Level, Timing
from acct.reporting.claims_render import COLUMNS, write_claims
from acct.reporting.claims_table import CLAIMS
from acct.reporting.figures import Sheet
from acct.reporting.intervals import Bootstrap
from acct.reporting.records import Records, as_frame
from tests.reporting.stored import row, rows, store

BOOT = Bootstrap(400)
FORWARD = "qwen3_4b_to_8b"


def sheet(found: list[dict[str, Any]], retention: float = 0.25) -> Sheet:
    directions = list(dict.fromkeys(one["direction"] for one in found))
    settings = {direction: {"direction": direction, "retention": retention} for direction in directions}
    return Sheet(Records(as_frame(found), settings, {direction: {"processor": "a chip"} for direction in directions}), BOOT)


def scores(method: str, task: str, values: tuple[float, ...], direction: str = FORWARD) -> list[dict[str, Any]]:
    return [row(direction, task, method, number, score=value) for number, value in enumerate(values)]


def claim(measure: Any, *directions: str, **more: Any) -> Claim:
    return Claim("key", "text", "Table 0", "condition", "figure", directions or (FORWARD,), measure, **more)


def timing(tokens: int, conversion: float, target: float, direction: str = FORWARD, **changed: Any) -> dict[str, Any]:
    source = changed.pop("source", 10.0)
    return {
        "direction": direction, "context_tokens": tokens, "device": "a card", "dtype": "bfloat16",
        "stages_ms": {"source_prefill": source}, "conversion_ms": conversion, "target_prefill_ms": target,
        "speedup": target / conversion, "cold_speedup": target / (conversion + source), "mounted_bytes": 1, "ideal_bytes": 1,
        "peak_bytes": 1, **changed,
    }  # fmt: skip


def write_timings(root: Path, found: Any, scale: str = "micro") -> Path:
    path = root / scale / "latency" / "latency.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(found if isinstance(found, str) else json.dumps(found))
    return path


def test_a_difference_by_hand_and_the_same_claim_the_other_way() -> None:
    """ACCT 50, Bridge-only 25, Target Full 75; perplexities e^2 and e."""
    evidence = RecordsEvidence("paper", {("", 0.25): sheet(rows(FORWARD))})
    bridge = judge_claim(claim(Compared(Row(), Row("bridge_only"), ("search_qa",))), evidence)
    assert bridge.verdict == HOLDS and bridge.measured.figure[0].value == pytest.approx(25.0)
    assert bridge.measured.figure[1:] == (" points", 4) and bridge.hardware == "a chip"
    full = judge_claim(claim(Compared(Row(), Row("target_full"), ("search_qa", "wikitext"))), evidence)
    assert full.verdict == FAILS and full.measured.held == 0 and full.measured.deciding.where.endswith("SearchQA")
    lower = judge_claim(claim(Compared(Row("target_full"), Row(), ("wikitext",))), evidence)
    assert lower.verdict == HOLDS and lower.measured.figure[0].value == pytest.approx(math.e**2 - math.e)
    tie = judge_claim(claim(Compared(Row("random"), Row("source_full"), ("search_qa",))), evidence)
    assert tie.verdict == FAILS and tie.measured.figure[0].value == 0.0 and tie.measured.clear


def test_one_failing_part_decides_a_claim_about_all_and_not_one_about_most() -> None:
    found = [
        one
        for task, own in {"boolq": (1.0, 1.0), "race": (1.0, 0.0), "piqa": (0.0, 0.0)}.items()
        for one in (*scores("acct", task, own), *scores("bridge_only", task, (0.5, 0.0)))
    ]
    evidence, tasks = RecordsEvidence("paper", {("", 0.25): sheet(found)}), ("boolq", "race", "piqa")
    every = judge_claim(claim(Compared(Row(), Row("bridge_only"), tasks)), evidence)
    assert every.verdict == FAILS and every.measured.figure[0].value == -25.0 and every.measured.deciding.where.endswith("PIQA")
    most = judge_claim(claim(Compared(Row(), Row("bridge_only"), tasks, needed=MOST)), evidence)
    assert most.verdict == HOLDS and most.measured.figure[0].value == 2.0 and most.measured.quota == 2
    # by hand: PIQA holds in no draw, BoolQ in all, RACE in all but those of its second example only (0 against 0; one in four)
    lower, upper = most.measured.figure[0].lower, most.measured.figure[0].upper
    assert (lower, upper) == (1.0, 2.0) and not most.measured.clear and most.note == "the interval leaves it open"


def test_ratios_and_levels() -> None:
    evidence = RecordsEvidence("paper", {("", 0.25): sheet(rows(FORWARD))})
    far = Compared(Row("random"), Row(), ("search_qa",), Bound("at most", 0.5))
    assert judge_claim(claim(far), evidence).verdict == HOLDS  # 25 of 50: the bound itself counts
    far = Compared(Row("source_full"), Row("target_full"), ("wikitext",), Bound("at least", 0.2))
    assert judge_claim(claim(far), evidence).measured.figure[0].value == pytest.approx(100 * math.exp(-2))
    undefined = judge_claim(claim(Compared(Row(), Row("zeros"), ("search_qa",), Bound("at least", 1.0))), evidence)
    assert undefined.verdict == NOT_RUN and "ratio is undefined" in undefined.note
    low = [one for task in ("boolq", "race", "piqa", "mmlu") for one in scores("acct", task, (0.0, float(task == "mmlu")))]
    few = RecordsEvidence("paper", {("", 0.25): sheet(low)})
    below = Bound("below", 1.0)
    assert judge_claim(claim(Level(Row(), ("boolq", "race", "piqa", "mmlu"), below, needed=SOME)), few).verdict == HOLDS
    assert judge_claim(claim(Level(Row(), ("boolq", "race", "mmlu"), below, needed=SOME)), few).verdict == FAILS
    with pytest.raises(ConfigError, match="sense"):
        Bound("over", 1.0)


def test_settings_are_told_apart_and_must_share_their_examples() -> None:
    base, half = sheet(scores("acct", "boolq", (1.0, 0.0))), sheet(scores("acct", "boolq", (1.0, 1.0)), 0.5)
    evidence = RecordsEvidence("paper", {("", 0.25): base, ("", 0.5): half})
    measured = judge_claim(claim(Compared(Row(retention=0.5), Row(), ("boolq",))), evidence).measured
    assert measured.holds and measured.figure[0].value == 50.0
    other = sheet([row(FORWARD, "boolq", "acct", number, score=1.0) for number in (0, 7)], 0.5)
    with pytest.raises(ArtifactError, match="2 of them not shared"):
        judge_claim(claim(Compared(Row(retention=0.5), Row(), ("boolq",))), RecordsEvidence("paper", {("", 0.25): base, ("", 0.5): other}))
    retrained = judge_claim(claim(Compared(Row(), Row(variant="random"), ("boolq",))), evidence)
    assert retrained.verdict == NOT_RUN and retrained.note == "missing: qwen3 4b → 8b, BoolQ: Random, retrained"


def test_an_embedded_pair_is_never_a_verdict_on_the_papers_pair() -> None:
    evidence = RecordsEvidence("micro", {("", 0.25): sheet(rows(EMBEDDED[FORWARD]))})
    entry = judge_claim(claim(Compared(Row(), Row("bridge_only"), ("search_qa",))), evidence)
    assert entry.verdict == NOT_COMPARABLE and entry.beside_verdict == HOLDS and not entry.measured.parts
    assert entry.beside.figure[0].value == pytest.approx(25.0)
    alone = judge_claim(claim(Compared(Row(), Row("bridge_only"), ("search_qa",)), counterpart={}), evidence)
    assert (alone.verdict, alone.beside, alone.note) == (NOT_COMPARABLE, None, "no embedded pair corresponds")
    absent = judge_claim(claim(Compared(Row(), Row("bridge_only"), ("search_qa",)), "llama_3b_to_8b"), evidence)
    assert absent.beside_verdict == NOT_RUN and "ACCT 4x and Bridge-only" in absent.note
    assert counts_line([entry, alone, absent]) == (
        "3 claims: 3 not comparable at this scale. The same statements about the embedded pairs: 1 holds, 1 not run."
    )


def test_latency_claims(tmp_path: Path) -> None:
    found = [timing(1_000, 4.0, 8.0), timing(4_000, 4.0, 20.0), timing(19_000, 10.0, 100.0, source=90.0)]
    evidence = RecordsEvidence("paper", {}, read_latency(write_timings(tmp_path, found)))

    def judged(*arguments: Any) -> tuple[str, float]:
        entry = judge_claim(claim(Timing(*arguments)), evidence)
        return entry.verdict, entry.measured.figure[0].value if entry.measured.complete else math.nan

    assert judged("speedup", Bound("at least", 1.5), "shortest", 1_000) == (HOLDS, 2.0)
    assert judged("share", Bound("at most", 15.3), "longest", 19_000) == (HOLDS, pytest.approx(10.0))
    assert judged("speedup", Bound("above", 1.0)) == (HOLDS, 2.0)
    assert judged("cold_speedup", Bound("above", 1.0), "every", 3_500) == (FAILS, 1.0)  # 100 ms against 10 + 90
    assert judged("cold_speedup", Bound("below", 1.0), "shortest", 1_000) == (HOLDS, pytest.approx(8 / 14))
    assert judged("source_over_target", Bound("above", 1.0)) == (FAILS, 0.5)
    assert judged("speedup", Bound("above", 1.0), "longest", 100_000)[0] == NOT_RUN
    entry = judge_claim(claim(Timing("speedup", Bound("above", 1.0))), evidence)
    assert entry.hardware == "a card, bfloat16" and entry.note == "" and math.isnan(entry.measured.figure[0].lower)
    bare = RecordsEvidence("paper", {}, read_latency(write_timings(tmp_path, [{**found[0], "stages_ms": {}}])))
    assert "the stage source_prefill" in judge_claim(claim(Timing("source_over_target", Bound("above", 1.0))), bare).note


def test_short_embedded_lengths_are_only_beside(tmp_path: Path) -> None:
    found = [timing(n, 1.0, float(n), EMBEDDED[FORWARD]) for n in (2, 4, 8, 16)]
    evidence = RecordsEvidence("micro", {}, read_latency(write_timings(tmp_path, found)))
    entry = judge_claim(claim(Timing("speedup", Bound("at least", 6.5), "longest", 19_000)), evidence)
    assert (entry.verdict, entry.beside_verdict) == (NOT_COMPARABLE, HOLDS) and entry.beside.figure[0].value == 16.0
    later = judge_claim(claim(Timing("speedup", Bound("above", 7.0), "every", 3_500)), evidence)
    assert later.beside_verdict == HOLDS and len(later.beside.parts) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conversion_ms": 0}, "row 0: conversion_ms must be a positive number, got 0"),
        ({"context_tokens": 1.5}, "context_tokens must be a whole number"),
        ({"direction": 3}, "direction must be text"),
        ({"stages_ms": {"source_prefill": "x"}}, "stages_ms must map"),
        ({"speedup": 9.0}, "speedup is 9, but target_prefill_ms / conversion_ms is 2"),
    ],
)
def test_a_wrong_latency_row_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        read_latency(write_timings(tmp_path, [{**timing(1_000, 4.0, 8.0), **change}]))


def test_a_wrong_latency_file_is_refused(tmp_path: Path) -> None:
    row_without = {name: value for name, value in timing(1, 1.0, 1.0).items() if name != "dtype"}
    twice = [timing(1, 1.0, 1.0)] * 2
    for found, message in (("{", "not JSON"), ({}, "must hold a list"), ([1], "row 0 must be an object"), ([row_without], "lacks dtype"),
                           (twice, "more than once")):  # fmt: skip
        with pytest.raises(ArtifactError, match=message):
            read_latency(write_timings(tmp_path, found))
    assert read_latency(tmp_path / "none.json") == ()


def test_files_are_a_pure_function_of_what_was_measured(tmp_path: Path) -> None:
    store(tmp_path, EMBEDDED[FORWARD])
    store(tmp_path, EMBEDDED["qwen3_8b_to_4b"])
    write_timings(tmp_path, [timing(100, 1.0, 3.0, EMBEDDED[FORWARD])])
    first = write_claims(tmp_path, "micro", bootstrap=BOOT)
    before = {path.name: path.read_bytes() for path in first.files}
    assert {path.name: path.read_bytes() for path in write_claims(tmp_path, "micro", bootstrap=BOOT).files} == before
    assert sorted(before) == ["claims.csv", "claims.json", "claims.md"] and str(tmp_path) not in "".join(map(str, before.values()))
    lines = {line["key"]: line for line in csv.DictReader(io.StringIO(before["claims.csv"].decode()))}
    assert tuple(next(iter(lines.values()))) == COLUMNS and list(lines) == [one.key for one in CLAIMS]
    ppl = lines["bridge_ppl"]
    assert (ppl["verdict"], ppl["beside_verdict"], ppl["value"]) == (NOT_COMPARABLE, NOT_RUN, "")
    trivia = lines["above_full_trivia_qa"]
    assert trivia["beside_verdict"] == NOT_RUN and "TriviaQA" in trivia["note"]
    stored = {one["key"]: one for one in json.loads(before["claims.json"])["claims"]}
    first_part = stored["above_full_wikitext"]["beside_compared"][0]
    assert first_part["where"] == "micro qwen3 small → large, WikiText2" and first_part["value"] == pytest.approx(math.e - math.e**2, 1e-5)
    text = before["claims.md"].decode()
    assert "does not hold" in text and "retention 0.25: VALID" in text and text.count("\n| ") == len(CLAIMS) + 2
    assert "Provenance: commit 0123456789ab" in text


def test_nothing_measured_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="neither an evaluated run"):
        load_evidence(tmp_path, "micro")
    (store(tmp_path) / "provenance.json").unlink()
    with pytest.raises(ArtifactError, match="lacks provenance"):
        write_claims(tmp_path, "micro")
    assert not (tmp_path / "micro" / "claims.md").exists()


def test_the_table_covers_its_directions_and_names_known_ones() -> None:
    assert len({one.key for one in CLAIMS}) == len(CLAIMS)
    known = {path.stem for path in (config_folder() / "direction").glob("*.yaml")}
    assert {direction for one in CLAIMS for direction in one.directions} <= known
    assert set(EMBEDDED) == set(REPRODUCED["paper"]) and set(EMBEDDED.values()) == set(REPRODUCED["micro"])
    assert all(one.place.startswith(("Section", "Appendix")) and one.claimed and one.measure.criterion() for one in CLAIMS)
    for word in ("1.5-8.6x", "6.5-21.2x", "4.7-15.3%", "1.16x", "1.53x", "3.35x"):
        assert sum(one.claimed == word for one in CLAIMS) == 1


def test_the_whole_ledger_of_perfect_micro_records_has_no_verdict_on_real_pairs() -> None:
    found = [one for name in EMBEDDED.values() for one in rows(name)]
    entries = ledger(RecordsEvidence("micro", {("", 0.25): sheet(found)}))
    assert {entry.verdict for entry in entries} == {NOT_COMPARABLE}
    assert all(entry.beside is None for entry in entries if entry.claim.place == "Appendix I")


def test_a_document_is_filled_between_its_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = sheet(rows(EMBEDDED[FORWARD]) + rows(EMBEDDED["qwen3_8b_to_4b"]))
    evidence = RecordsEvidence("micro", {("", 0.25): records})
    written = write_claims(tmp_path, "micro", folder=tmp_path, evidence=evidence)
    ledger_file, document = tmp_path / "claims.json", tmp_path / "README.md"
    assert ledger_file in written.files
    document.write_text("a\n<!-- claims:begin -->\nstale\n<!-- claims:end -->\nb\n")
    assert main([str(ledger_file), str(document)]) == 0
    text = document.read_text()
    assert text.startswith("a\n<!-- claims:begin -->\n| claim") and text.endswith("<!-- claims:end -->\nb\n") and "stale" not in text
    assert "| ACCT above Target Full on WikiText2 | Section 4.3, Table 1 | above | -4.67" in text  # e - e^2
    shown = [entry for entry in written.entries if entry.beside is not None and entry.beside.complete]
    assert text.count("embedded pairs |") == len(shown) > 0 and counts_line(written.entries) in text
    assert filled(text, excerpt(ledger_file)) == text
    assert main([str(ledger_file)]) == 2 and main([str(tmp_path / "none.json"), str(document)]) == 2
    assert "no such file" in capsys.readouterr().err
    ledger_file.write_text('{"claims": [{}]}')
    with pytest.raises(ArtifactError, match="no claims ledger"):
        excerpt(ledger_file)
    with pytest.raises(ArtifactError, match="once each"):
        filled("no markers", "x")
