"""`acct reproduce table2`, `table3` and `all` on random models, from training to the printed table, also with runs missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from acct.cli import commands
from acct.cli.main import main
from acct.reproduce import Job, Outcome

TINY = (
    "scale=micro", "direction=tiny_qwen3", "budget.tail_tokens=4", "cartographer.model_width=32", "cartographer.attention_width=32",
    "cartographer.embedding_width=8", "compiler.width=32", "compiler.depth=1", "compiler.latents=8", "data.generated=16",
    *(f"training.{stage}.{name}" for stage, examples in (("cartographer", 8), ("allocator", 4), ("compiler", 8))
      for name in (f"examples={examples}", "epochs=1", "held_out=4", "batch=4")),
    "evaluation.examples=3", "evaluation.check_examples=1",
    "evaluation.methods=[target_full,acct,native_kv,bridge_only,random]",
    "evaluation.tasks=[search_qa,piqa]", "evaluation.max_new_tokens=3", "evaluation.resamples=50",
    "runtime.progress_seconds=1e9", "runtime.threads=1",
)  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Jobs one after the other in this process; returns the folder of the runs and the names of the jobs that were run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    ran: list[str] = []

    def run_jobs(jobs: list[Job], overrides: list[str], results: Path, limit, noun: str) -> list[Outcome]:
        found = []
        for job in jobs:
            ran.append(job.name)
            codes = [main([command, *overrides, *job.overrides]) for command in ("train", "evaluate")]
            found.append(Outcome(job.name, {"train": 0.0}, None if codes == [0, 0] else f"ended with {codes}"))
        return found

    monkeypatch.setattr("acct.reproduce.run_jobs", run_jobs)
    return tmp_path / "results" / "micro", ran


def rows(table: Path) -> dict[str, str]:
    return {line.split("|")[1].strip(): line for line in table.read_text().splitlines() if line.startswith("| ")}


def test_table3_from_training_to_the_table(here, capsys):
    results, ran = here
    assert main(["reproduce", "table3", *TINY]) == 0
    assert ran == ["tiny_qwen3", "tiny_qwen3-random", "tiny_qwen3-uniform"]
    output = capsys.readouterr().out
    assert "table3: 3 runs, stages cartographer, allocator, compiler, then evaluation" in output and "3 runs in " in output
    assert "runs that Table 1 does not share are scored on search_qa (reproduce.variant_tasks)" in output
    found = rows(results / "tables" / "table3.md")
    assert {"Target Full", "ACCT", "Native KV", "Bridge-only", "Random", "Random, retrained", "Uniform, retrained"} <= set(found)
    assert found["Uniform, retrained"].rstrip().endswith("| – |") and "–" not in found["ACCT"]
    text = (results / "tables" / "table3.md").read_text()
    assert "- Random, retrained (tiny_qwen3): allocator 4 examples x 1 epochs; compiler 8 examples x 1 epochs." in text
    assert "- Uniform, retrained (tiny_qwen3): cartographer copied from tiny_qwen3; compiler 8 examples x 1 epochs." in text
    # two rows on two tasks, two rows on one: 3 examples each
    assert "- Scored: 18 answers by the rows that replace a part, in 1 direction(s); the paper's protocol has 80,000." in text
    assert len(list(results.glob("*/*/card.json"))) == 5 + 4 + 4  # with the Compilers' closed forms

    capsys.readouterr()  # what exists is shown, what does not is named
    shutil.rmtree(results / "tiny_qwen3-random")
    (results / "tiny_qwen3-uniform" / "evaluation" / "records.parquet").unlink()
    assert main(["tables", "scale=micro", "evaluation.resamples=50"]) == 0
    output = capsys.readouterr().out
    assert "tiny_qwen3-uniform: evaluation has not finished; it stays out" in output
    assert "table2: 6 of 6 runs are missing (micro_qwen3_small_to_large, " in output and "acct reproduce table3 scale=micro" in output


def test_table2_shows_a_failed_retention_as_a_dash(here, capsys, monkeypatch):
    results, _ = here
    train = commands.train

    def fails_at_one(config):
        if config.budget.retention == 1:
            raise commands.InputError("no memory")
        train(config)

    monkeypatch.setattr(commands, "train", fails_at_one)
    assert main(["reproduce", "table2", *TINY]) == 2
    captured = capsys.readouterr()
    assert "run the same command again, it keeps what is finished. Failed: tiny_qwen3-r1: ended with [2, 2]" in captured.err
    found = rows(results / "tables" / "table2.md")
    assert found["ACCT 1x"].count("–") == 2 and found["ACCT 2x"].count("–") == 1 and "–" not in found["ACCT 4x"] + found["Target Full"]
    assert "Not run: 1x." in (results / "tables" / "table2.md").read_text() and "## tiny qwen3" in captured.out


def test_all_makes_what_it_can_and_names_what_failed(here, capsys, monkeypatch):
    _, ran = here
    monkeypatch.setattr("acct.cli.figures.figures", lambda arguments: (_ for _ in ()).throw(commands.InputError("no ink")))
    monkeypatch.setattr("acct.cli.appendix.appendix", lambda overrides: ["# Table5", "wrote it"])
    for name in ("train", "evaluate"):
        monkeypatch.setattr(commands, name, lambda config: None)
    assert main(["reproduce", "all", *TINY]) == 2
    captured = capsys.readouterr()
    assert ran == ["tiny_qwen3", *(f"tiny_qwen3-{name}" for name in ("r1", "r0.5", "random", "uniform"))]
    assert (
        "the results are incomplete" in captured.err
        and "figures: no ink" in captured.err
        and "tables: results/micro holds no" in captured.err
    )
    assert "\nwrote it\nappendix: 0 s\n" in captured.out and "# Table5" not in captured.out


def test_the_appendix_needs_no_run(here, capsys):
    assert main(["reproduce", "appendix", "scale=micro"]) == 0
    assert here[1] == [] and "# Table5" in capsys.readouterr().out
