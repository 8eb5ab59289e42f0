"""The fixed sample: prefixes, independence of row order, changes upstream, tampering."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from acct.data.manifest import Manifest, draw
from acct.data.tasks.registry import get_task
from acct.errors import ArtifactError, DataError

BOOLQ = get_task("boolq")
EXAMPLES = [BOOLQ.from_row({"question": f"is {i} odd", "answer": bool(i % 2), "passage": f"The number {i}."}, i) for i in range(50)]


def drawn(count=20, seed=0):
    return Manifest(seed, {}).with_task("boolq", 1, "test", EXAMPLES, count)


def test_a_smaller_sample_is_a_prefix_of_a_larger_one_in_any_row_order():
    full = draw(EXAMPLES, None, seed=3)
    assert sorted(e.id for e in full) == [e.id for e in EXAMPLES] and full != EXAMPLES
    for count in (1, 7, 49):
        assert draw(EXAMPLES[::-1], count, seed=3) == full[:count]
    assert draw(EXAMPLES, None, seed=4) != full


def test_the_order_is_the_documented_one():
    # sha256("0\nboolq\nboolq/00000"...): written down once, so that a change of the rule cannot pass unnoticed
    assert [e.id for e in draw(EXAMPLES, 3, seed=0)] == ["boolq/00023", "boolq/00000", "boolq/00030"]


def test_counts_out_of_range_and_ids_twice():
    for count in (0, 51):
        with pytest.raises(DataError, match=rf"boolq: asked for {count} examples of 50"):
            draw(EXAMPLES, count, 0)
    with pytest.raises(DataError, match="have one id"):
        draw([*EXAMPLES, EXAMPLES[4]], 3, 0)


def test_select_gives_the_sample_in_its_order():
    manifest = drawn()
    assert manifest.examples == 20 and manifest.tasks["boolq"].available == 50
    assert manifest.select("boolq", 1, EXAMPLES[::-1]) == draw(EXAMPLES, 20, 0)
    assert manifest.select("boolq", 1, EXAMPLES, 5) == draw(EXAMPLES, 5, 0)
    for count in (0, 21):
        with pytest.raises(DataError, match="the manifest holds 20"):
            manifest.select("boolq", 1, EXAMPLES, count)


def test_changes_upstream_are_named():
    manifest = drawn()
    sample = draw(EXAMPLES, 20, 0)
    changed, gone = sample[2], sample[5]
    rows = [replace(e, context="Another text.") if e == changed else e for e in EXAMPLES if e != gone]
    with pytest.raises(DataError, match=rf"1 gone \({gone.id}\) and 1 changed \({changed.id}\)"):
        manifest.select("boolq", 1, rows)
    assert manifest.select("boolq", 1, rows, 2) == sample[:2]
    outside = next(e for e in EXAMPLES if e not in sample)
    assert manifest.select("boolq", 1, [e for e in EXAMPLES if e != outside]) == sample
    with pytest.raises(DataError, match="and 15 more"):
        manifest.select("boolq", 1, [])
    with pytest.raises(DataError, match="task version 1, the code has 2"):
        manifest.select("boolq", 2, EXAMPLES)
    with pytest.raises(DataError, match="no sample of race; it has boolq"):
        manifest.select("race", 1, EXAMPLES)


def test_saved_and_loaded(tmp_path):
    path = tmp_path / "deep" / "manifest.json"
    manifest = drawn()
    manifest.save(path)
    loaded = Manifest.load(path)
    assert loaded == manifest and loaded.digest() == manifest.digest() != drawn(seed=1).digest()
    assert [file.name for file in path.parent.iterdir()] == ["manifest.json"]


def test_an_altered_or_foreign_file_is_refused(tmp_path):
    path = tmp_path / "manifest.json"
    drawn().save(path)
    stored = json.loads(path.read_text())
    with pytest.raises(ArtifactError, match="no such file"):
        Manifest.load(tmp_path / "other.json")

    def refused(match, **change):
        path.write_text(json.dumps({**stored, **change}))
        with pytest.raises(ArtifactError, match=match):
            Manifest.load(path)

    refused("'digest'", seed=5)
    refused("'format'", format=2)
    refused("missing or of another type", tasks={"boolq": {}})
    refused("missing or of another type", tasks=None)
    sample = {**stored["tasks"]["boolq"]}
    refused("one hash for each id", tasks={"boolq": {**sample, "hashes": sample["hashes"][:-1]}})
    refused("no id twice", tasks={"boolq": {**sample, "ids": [sample["ids"][0]] * 20}})
    for text in ("{", "[]", '"x"'):
        path.write_text(text)
        with pytest.raises(ArtifactError, match=r"(is not JSON|must hold an object).*Draw the manifest again"):
            Manifest.load(path)
