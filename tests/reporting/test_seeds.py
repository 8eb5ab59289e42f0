"""Means and intervals over training seeds against figures worked by hand; which runs a command plans and gathers."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest

from acct.cli.evaluation import identity_of
from acct.cli.plan import PAIR, plan, run_names
from acct.cli.tables import missing_lines
from acct.config.root import compose, variant_suffix
from acct.errors import ArtifactError, ConfigError
from acct.reporting.figures import Sheet
from acct.reporting.intervals import Bootstrap
from acct.reporting.records import load_records, settings, training_seeds
from acct.reporting.render import markdown
from acct.reporting.seeds import COLUMNS, SeedRuns, seed_runs, seed_table, seeds_csv, t_interval
from acct.reporting.write import write_tables
from tests.reporting.stored import row, store

FORWARD, BACK = PAIR["micro"]
BOOT = Bootstrap(100)


def test_t_intervals_by_hand() -> None:
    """50, 60, 70: mean 60, s 10, t(2) 4.302653, half width 24.841; 40 and 50: mean 45, s 7.0711, t(1) 12.706205, half width 63.531."""
    three, two = t_interval([50.0, 60.0, 70.0]), t_interval([40.0, 50.0])
    assert (three.value, three.lower, three.upper) == pytest.approx((60.0, 60 - 24.8414, 60 + 24.8414), abs=1e-3)
    assert (two.value, two.lower, two.upper) == pytest.approx((45.0, 45 - 63.5310, 45 + 63.5310), abs=1e-3)
    ninety = t_interval([50.0, 60.0, 70.0], 0.9)  # t(2) 2.919986
    assert ninety.upper - 60 == pytest.approx(2.919986 * 10 / math.sqrt(3), abs=1e-4)


def test_one_seed_has_no_interval_and_what_is_undefined_stays_so() -> None:
    one = t_interval([7.0])
    assert one.value == 7.0 and math.isnan(one.lower) and math.isnan(one.upper)
    assert math.isnan(t_interval([]).value) and math.isnan(t_interval([1.0, math.nan]).value)
    same = t_interval([3.0, 3.0])
    assert (same.lower, same.upper) == (3.0, 3.0)


def scored(direction: str, right: int, full: int = 8) -> list[dict]:
    """BoolQ, ten examples: ACCT right on `right` of them, Target Full on `full`."""
    answers = {"acct": right, "target_full": full}
    return [row(direction, "boolq", method, i, score=float(i < count)) for method, count in answers.items() for i in range(10)]


def three_seeds(root: Path) -> None:
    """a_to_b with 5, 6 and 7 of 10 right under seeds 0, 1, 2 (Target Full 8); b_to_a with seed 0 alone."""
    for seed, right in ((0, 5), (1, 6), (2, 7)):
        store(
            root,
            "a_to_b",
            scored("a_to_b", right),
            run=f"a_to_b{variant_suffix(0.25, '', seed)}",
            **({"training_seed": seed} if seed else {}),
        )
    store(root, "b_to_a", scored("b_to_a", 4))


def test_gathered_by_seed_and_never_mixed(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    assert training_seeds(tmp_path, "micro") == {("", 0.25): [0, 1, 2]}
    assert settings(tmp_path, "micro") == settings(tmp_path, "micro", 2) == [("", 0.25)] and settings(tmp_path, "micro", 3) == []
    assert load_records(tmp_path, "micro").directions == ["a_to_b", "b_to_a"]
    assert load_records(tmp_path, "micro", seed=1).only(method="acct")["score"].sum() == 6
    with pytest.raises(ArtifactError, match=r"trained with seed 5.*Other training seeds are there: 0, 1, 2"):
        load_records(tmp_path, "micro", seed=5)


def test_the_table_by_hand(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    (runs,) = seed_runs(tmp_path, "micro")
    assert runs.values("a_to_b", "boolq", "acct") == pytest.approx({0: 50.0, 1: 60.0, 2: 70.0})
    text = markdown(seed_table([runs]))
    assert "## a → b: 3 training seeds (0, 1, 2)" in text and "| ACCT | 60.0 [35.2, 84.8] |" in text
    assert "| Target Full | 80.0 [80.0, 80.0] |" in text
    assert "| ACCT, Relative (%) | 75.0 [43.9, 106.1] |" in text  # .625, .75, .875: s .125, half .3105
    assert "## b → a: one training seed only (0), no interval over seeds" in text and "| ACCT | 40.0 |" in text
    mean = text.split("## Mean Relative over 1 direction(s) with every seed (%)")[1]
    assert "| ACCT | 75.0 [43.9, 106.1] |" in mean
    lines = list(csv.DictReader(io.StringIO(seeds_csv([runs]))))
    assert tuple(lines[0]) == COLUMNS and len(lines) == 4
    acct = next(line for line in lines if (line["direction"], line["method"]) == ("a_to_b", "acct"))
    assert (acct["seeds"], acct["values"], acct["mean"], acct["deviation"], acct["relative"], acct["examples"]) == (
        "0 1 2", "50 60 70", "60", "10", "0.75", "10",
    )  # fmt: skip
    alone = next(line for line in lines if line["direction"] == "b_to_a")
    assert alone["seeds"] == "0" and alone["lower"] == alone["deviation"] == ""


def test_the_mean_over_directions_is_taken_seed_by_seed(tmp_path: Path) -> None:
    """Relatives .5 and .75 with seed 0, 1 and .75 with seed 1: means .625 and .875, over seeds .75."""
    for seed, (first, second) in enumerate(((4, 6), (8, 6))):
        for direction, right in (("a_to_b", first), ("b_to_a", second)):
            store(tmp_path, direction, scored(direction, right), run=f"{direction}-{seed}", **({"training_seed": seed} if seed else {}))
    (runs,) = seed_runs(tmp_path, "micro")
    block = seed_table([runs]).blocks[-1]
    ((_, (cell,)),) = [one for one in block.rows if one[0] == "ACCT"]
    half = 12.706205 * math.sqrt(2 * 0.125**2) / math.sqrt(2)
    assert (cell.interval.value, cell.interval.upper) == pytest.approx((0.75, 0.75 + half), abs=1e-5)


def test_other_budgets_have_seeds_too(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    for seed in (0, 1):
        store(tmp_path, "a_to_b", scored("a_to_b", 9), run=f"half-{seed}", retention=0.5, **({"training_seed": seed} if seed else {}))
    found = seed_runs(tmp_path, "micro")
    assert [(one.variant, one.retention, list(one.sheets)) for one in found] == [("", 0.25, [0, 1, 2]), ("", 0.5, [0, 1])]
    assert [block.title for block in seed_table(found).blocks][-2:] == [
        "a → b, 2x: 2 training seeds (0, 1)", "Mean Relative over 1 direction(s) with every seed, 2x (%)",
    ]  # fmt: skip


def test_seeds_on_different_examples_are_refused(tmp_path: Path) -> None:
    sheets = {}
    for seed in (0, 1):
        place = tmp_path / str(seed)
        store(place, "a_to_b", [one | {"example": f"{one['example']}-{seed}"} for one in scored("a_to_b", 5)])
        sheets[seed] = Sheet(load_records(place, "micro"), BOOT)
    with pytest.raises(ArtifactError, match="boolq, a_to_b: the runs of training seeds 0 and 1 were scored on different examples"):
        SeedRuns("", 0.25, sheets)


def test_tables_say_how_many_seeds_there_are(tmp_path: Path) -> None:
    store(tmp_path, "b_to_a", scored("b_to_a", 4))
    written = write_tables(tmp_path, "micro", bootstrap=BOOT)
    assert "Training seeds: one only (0)." in "\n".join(written.lines) and "seeds.md" not in {path.name for path in written.files}
    assert "one only (0)" in (tmp_path / "micro/tables/table1.md").read_text()
    three_seeds(tmp_path)
    written = write_tables(tmp_path, "micro", bootstrap=BOOT)
    assert {"seeds.md", "seeds.csv", "seeds.tex"} <= {path.name for path in written.files}
    table1 = (tmp_path / "micro/tables/table1.md").read_text()
    assert "those of seed 0; means over 3 training seeds (0, 1, 2)" in table1 and "| ACCT | 50.0 [" in table1
    write_tables(tmp_path, "micro", bootstrap=BOOT, seed=2)
    assert "| ACCT | 70.0 [" in (tmp_path / "micro/tables/table1.md").read_text()


def test_a_seed_names_the_run_folder_and_the_records() -> None:
    assert [variant_suffix(0.25, "", 0), variant_suffix(0.5, "random", 3), variant_suffix(0.25, "", 1)] == ["", "-r0.5-random-s3", "-s1"]
    base, other = compose([]), compose(["runtime.seed=2"])
    assert base.paths.run == f"results/micro/{FORWARD}" and other.paths.run == f"results/micro/{FORWARD}-s2"
    assert other.training.compiler.seed == 2 and other.evaluation.seed == other.data.seed == 0  # the same examples for every seed
    assert "training_seed" not in identity_of(base) and identity_of(other)["training_seed"] == 2
    uniform = compose(["experiment=table3_uniform", "runtime.seed=2"])
    assert uniform.paths.run.endswith("-uniform-s2") and uniform.paths.reuse == f"results/micro/{FORWARD}-s2"


def test_reproduce_plans_every_seed() -> None:
    assert [job.name for job in plan("table1", ["reproduce.seeds=[0,1]"], [FORWARD])] == [FORWARD, f"{FORWARD}-s1"]
    assert [job.name for job in plan("table1", [], [FORWARD])] == [FORWARD]
    jobs = {job.name: job for job in plan("table3", ["reproduce.seeds=[0,2]"], [FORWARD])}
    assert list(jobs) == [FORWARD, f"{FORWARD}-s2", *(f"{FORWARD}-{v}{s}" for v in ("random", "uniform") for s in ("", "-s2"))]
    assert jobs[f"{FORWARD}-uniform-s2"].after == (f"{FORWARD}-s2",) and "runtime.seed=2" in jobs[f"{FORWARD}-uniform-s2"].overrides
    assert sorted(run_names("table3", "micro", [0, 2])) == sorted(job.name for job in plan("table3", ["reproduce.seeds=[0,2]"]))
    with pytest.raises(ConfigError, match="both name training seeds"):
        plan("table1", ["reproduce.seeds=[0,1]", "runtime.seed=1"])
    with pytest.raises(ConfigError, match="none twice"):
        compose(["reproduce.seeds=[1,1]"])


def test_missing_runs_of_a_seed_are_named_with_their_command(tmp_path: Path) -> None:
    lines = missing_lines(compose([f"paths.results={tmp_path}", "reproduce.seeds=[0,1]"]))
    assert f"{BACK}-s1" in lines[0] and lines[0].endswith("acct reproduce table1 scale=micro reproduce.seeds=[0,1]")
