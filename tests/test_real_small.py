"""scale=real-small end to end on tiny models of its family and a small Factbook: where things lie, what is said when they do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acct.cli.evaluation import evaluate_direction
from acct.cli.plan import directions_of, plan
from acct.config.root import Config, compose
from acct.errors import DataError, ModelError
from acct.locations import ensure_data, resolve_direction, resolve_model
from acct.training.artifacts import KINDS, load_artifact
from acct.training.run import train
from acct.training.session import data_source
from tests.data.test_factbook import entity
from tests.data.test_musique_steps import ROW
from tests.data.test_text_cloze import FIRST

DIRECTIONS = ("qwen25_coder_05b_to_15b", "qwen25_coder_15b_to_05b")
NAMES = {"source": "Qwen2.5-Coder-0.5B-Instruct", "target": "Qwen2.5-Coder-1.5B-Instruct"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """models/<name> with tiny random models of the family, data/corpora/factbook with invented entities, rows of MuSiQue's form."""
    from acct.debug import build_model
    from acct.micro.language import build_tokenizer

    root = tmp_path_factory.mktemp("real-small")
    tokenizer = build_tokenizer(chat=True)
    special = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
    for size, name in NAMES.items():
        build_model("qwen2", size, len(tokenizer), special).save_pretrained(root / "models" / name)
        tokenizer.save_pretrained(root / "models" / name)
    fields = root / "data" / "corpora" / "factbook"
    fields.mkdir(parents=True)
    (fields / "all.jsonl").write_text("".join(json.dumps(entity(number)) + "\n" for number in range(40)))
    (root / "data" / "musique").mkdir()
    rows = [{**ROW, "id": f"row {number}", "paragraphs": [*ROW["paragraphs"], {"paragraph_text": FIRST}]} for number in range(4)]
    steps = "".join(json.dumps(row) + "\n" for row in rows)
    (root / "data" / "musique" / "train.jsonl").write_text(steps)
    return root


def configured(root: Path, *overrides: str) -> Config:
    stages = {"cartographer": 6, "allocator": 4, "compiler": 6}
    small = [f"training.{stage}.examples={count}" for stage, count in stages.items()]
    small += [f"training.{stage}.{size}" for stage in stages for size in ("epochs=1", "held_out=4")]
    small += ["compiler.width=32", "compiler.depth=1", "compiler.latents=8", "runtime.progress_seconds=1e9", "runtime.threads=1"]
    places = [f"models.root={root / 'models'}", f"paths.data={root / 'data'}", f"paths.results={root / 'results'}"]
    return compose(["scale=real-small", *small, *places, *overrides])


def test_both_directions_and_what_is_measured() -> None:
    assert directions_of("real-small") == list(DIRECTIONS) == [job.name for job in plan("table1", ["scale=real-small"])][:2]
    assert not set(DIRECTIONS) & set(directions_of("paper"))
    config = compose(["scale=real-small"])
    assert config.runtime.dtype == "float32" and config.data.dataset == "factbook_qa" and config.reproduce.jobs == 1
    counts = {task: config.evaluation.examples_by_task.get(task, config.evaluation.examples) for task in config.evaluation.tasks}
    assert counts == {"factbook_qa": 100, "squad": 100, "boolq": 50, "pubmed_qa": 50, "hotpot_qa": 50, "wikitext": 50}
    source = data_source(config)
    splits = {task: source.split(task, "evaluation") for task in counts}
    assert splits == {
        "factbook_qa": "test", "squad": "validation", "boolq": "validation", "pubmed_qa": "train", "hotpot_qa": "train", "wikitext": "test",
    }  # fmt: skip


def test_hub_ids_are_looked_for_below_the_models_root(root: Path, tmp_path: Path) -> None:
    found = resolve_direction(configured(root))
    assert found == tuple(str(root / "models" / NAMES[size]) for size in ("source", "target"))
    assert resolve_model("Qwen/Some-Model", "data") == "Qwen/Some-Model"  # the hub's
    (tmp_path / "Qwen" / "Some-Model").mkdir(parents=True)
    (tmp_path / "Qwen" / "Some-Model" / "config.json").write_text("{}")
    assert resolve_model("Qwen/Some-Model", "data", tmp_path) == str(tmp_path / "Qwen" / "Some-Model")


def test_a_missing_model_says_how_to_get_it(root: Path) -> None:
    with pytest.raises(ModelError) as raised:
        resolve_model("Qwen/Qwen2.5-Coder-3B-Instruct", "data", root / "models")
    message = str(raised.value)
    assert "Qwen/Qwen2.5-Coder-3B-Instruct is not in models.root" in message and NAMES["source"] in message
    assert f"--local-dir {root / 'models' / 'Qwen2.5-Coder-3B-Instruct'}" in message and "models.root=null" in message


def test_questions_are_made_once_from_the_fields(root: Path, tmp_path: Path) -> None:
    config = configured(root, f"paths.results={tmp_path}")
    folder = tmp_path / "real-small" / "data" / "factbook_qa"
    ensure_data(config, ["squad"], ["evaluation"])
    assert not folder.exists()
    ensure_data(config, ["factbook_qa"], ["train"])
    assert "public domain" in (folder / "README.md").read_text() and config.direction.source in (folder / "README.md").read_text()
    before = (folder / "test.jsonl").stat().st_mtime_ns
    ensure_data(config, ["factbook_qa"], ["train"])
    assert (folder / "test.jsonl").stat().st_mtime_ns == before
    nowhere = configured(root, f"paths.results={tmp_path / 'other'}", f"paths.data={tmp_path}")
    ensure_data(nowhere, ["factbook_qa"], ["train"])
    with pytest.raises(DataError, match=r"factbook_qa: expected train\.jsonl"):
        data_source(nowhere).rows("factbook_qa", "train")


def test_all_stages_and_the_evaluation_run(root: Path) -> None:
    few = ["evaluation.tasks=[factbook_qa]", "evaluation.examples=3", "evaluation.resamples=20", "evaluation.max_new_tokens=3"]
    config = configured(root, *few)
    train(config)
    run = Path(config.paths.run)
    assert {kind: load_artifact(run, kind).kind for kind in KINDS} == {kind: kind for kind in KINDS}
    record = json.loads((run / "provenance.json").read_text())
    assert record["state_cache"]["stored"] > 0 and list(Path(config.paths.state_cache).glob("*/*.safetensors"))
    report = evaluate_direction(config)
    assert set(report.sheet.methods) == set(config.evaluation.methods) and report.sheet.tasks == ["factbook_qa"]
