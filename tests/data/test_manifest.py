"""The fixed sample: prefixes, independence of row order, changes upstream, tampering."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from acct.cli.evaluation import manifest_file
from acct.config.root import compose
from acct.data.examples import Example
from acct.data.manifest import Manifest, ManifestFile, draw
from acct.data.tasks.registry import get_task
from acct.errors import ArtifactError, DataError
from acct.evaluation.samples import sample_examples
from acct.training.session import data_source, task_fields

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


SETTINGS = {"boolq": {"data.hub.boolq.path": "google/boolq", "data.hub.boolq.revision": "abc"}}


def on_disk(tmp_path, **changes):
    return ManifestFile(
        **{"path": tmp_path / "m" / "manifest.json", "seed": 0, "splits": {"boolq": "test"}, "settings": SETTINGS, **changes}
    )


def test_the_first_run_draws_and_every_later_one_holds_to_the_file(tmp_path):
    file = on_disk(tmp_path)
    first = file.select("boolq", 1, EXAMPLES, 20)
    assert first == draw(EXAMPLES, 20, 0)
    stored = Manifest.load(file.path)
    assert stored.tasks["boolq"].ids == tuple(e.id for e in first) and stored.tasks["boolq"].settings == SETTINGS["boolq"]
    assert stored.tasks["boolq"].hashes == tuple(e.content_hash() for e in first) and stored.tasks["boolq"].split == "test"
    written = file.path.read_bytes()
    assert file.select("boolq", 1, EXAMPLES[::-1], 7) == first[:7] and file.path.read_bytes() == written
    more = [*EXAMPLES, *(replace(e, id=e.id + "x") for e in EXAMPLES)]  # new rows upstream do not enter a sample that was drawn
    assert file.select("boolq", 1, more, 20) == first and file.path.read_bytes() == written
    with pytest.raises(
        DataError, match="20 examples were drawn from 50, and 30 drawn from 100 do not begin with them: the data set has grown"
    ):
        file.select("boolq", 1, more, 30)
    larger = file.select("boolq", 1, EXAMPLES, 30)
    assert larger[:20] == first and len(Manifest.load(file.path).tasks["boolq"].ids) == 30
    piqa = [replace(e, id=e.id.replace("boolq", "piqa"), task="piqa") for e in EXAMPLES]
    assert file.select("piqa", 2, piqa, 5) == draw(piqa, 5, 0)
    assert sorted(Manifest.load(file.path).tasks) == ["boolq", "piqa"] and Manifest.load(file.path).examples == 35


def test_what_differs_from_the_file_is_named_and_redrawn_only_on_demand(tmp_path):
    first = on_disk(tmp_path).select("boolq", 1, EXAMPLES, 20)
    other = {"boolq": {**SETTINGS["boolq"], "data.hub.boolq.revision": "def"}}
    changed = [replace(e, context="Another text.") if e == first[2] else e for e in EXAMPLES]
    cases = [
        ({"settings": other}, EXAMPLES, 1, r"data\.hub\.boolq\.revision 'abc', now it is 'def'"),
        ({"splits": {"boolq": "dev"}}, EXAMPLES, 1, "split 'test', now it is 'dev'"),
        ({"seed": 1}, EXAMPLES, 1, r"evaluation\.seed 0, now it is 1"),
        ({}, EXAMPLES, 2, "task version 1, the code has 2"),
        ({}, changed, 1, rf"1 changed \({first[2].id}\)"),
        ({}, [e for e in EXAMPLES if e != first[4]], 1, rf"1 gone \({first[4].id}\)"),
    ]
    before = on_disk(tmp_path).path.read_bytes()
    for change, examples, version, said in cases:
        with pytest.raises(DataError, match=said) as caught:
            on_disk(tmp_path, **change).select("boolq", version, examples, 20)
        assert "evaluation.restart=true" in str(caught.value) and str(on_disk(tmp_path).path) in str(caught.value)
        assert on_disk(tmp_path).path.read_bytes() == before
    assert on_disk(tmp_path, redraw=True).select("boolq", 1, EXAMPLES, 20) == first
    assert on_disk(tmp_path, redraw=True).path.read_bytes() == before  # what fits is not drawn again
    redrawn = on_disk(tmp_path, redraw=True).select("boolq", 1, changed, 20)
    assert [e.id for e in redrawn] == [e.id for e in first] and on_disk(tmp_path).select("boolq", 1, changed, 20) == redrawn


def test_a_damaged_manifest_file_is_refused_even_when_it_may_be_redrawn(tmp_path):
    file = on_disk(tmp_path, redraw=True)
    file.select("boolq", 1, EXAMPLES, 3)
    file.path.write_text("{")
    with pytest.raises(ArtifactError, match=r"manifest\.json is not JSON"):
        file.select("boolq", 1, EXAMPLES, 3)


def test_directions_that_are_evaluated_side_by_side_lose_no_sample(tmp_path):
    names = [f"task{i}" for i in range(8)]
    made = {name: [replace(e, id=f"{name}/{i}", task=name) for i, e in enumerate(EXAMPLES)] for name in names}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: on_disk(tmp_path).select(name, 1, made[name], 10), names))
    assert sorted(Manifest.load(on_disk(tmp_path).path).tasks) == names


def test_the_papers_manifest_has_ten_thousand_examples(tmp_path):
    config = compose(["scale=paper", "direction=qwen3_4b_to_8b", f"paths.results={tmp_path}", f"paths.data={tmp_path}/data"])

    def many(source, task, split):
        word = "yes no"
        return [Example(f"{task.name}/{i:05d}", task.name, "generate", f"{i}", word, (word,), (), None, None, True) for i in range(1200)]

    evaluation, counts = config.evaluation, {}
    for name in evaluation.tasks:
        _, chosen = sample_examples(
            data_source(config), name, count=evaluation.examples, counts=evaluation.examples_by_task, seed=evaluation.seed,
            manifest=manifest_file(config), fields=task_fields(config), loader=many,
        )  # fmt: skip
        counts[name] = len(chosen)
    assert sum(counts.values()) == 10_000 and {counts[name] for name in ("pubmed_qa", "wikitext")} == {500}
    stored = Manifest.load(tmp_path / "paper" / "manifest.json")
    assert stored.examples == 10_000 and {name: len(sample.ids) for name, sample in stored.tasks.items()} == counts
    assert all(len(sample.hashes) == len(sample.ids) and sample.split == "test" for sample in stored.tasks.values())
    hub = compose(["scale=paper", "direction=qwen3_4b_to_8b", f"paths.results={tmp_path}", "data.source=hub", "data.hub.race.revision=abc"])
    kept = manifest_file(hub)
    assert kept.splits["pubmed_qa"] == "train" and kept.settings["race"]["data.hub.race.revision"] == "abc"
    with pytest.raises(DataError, match=r"race: .*data\.hub\.race\.config None, now it is 'all'"):
        sample_examples(data_source(hub), "race", count=5, manifest=kept, loader=many)
    lm_eval = manifest_file(compose([f"paths.results={tmp_path}", "data.tasks_from=lm_eval"]))
    assert lm_eval.path == tmp_path / "micro" / "manifest-lm_eval.json"
