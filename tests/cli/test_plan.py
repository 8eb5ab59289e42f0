"""Which runs each table needs, by the retraining rules of spec 8."""

from __future__ import annotations

import pytest

from acct.cli.main import main
from acct.cli.plan import EXPERIMENTS, PAIR, SIX, directions_of, plan, run_names
from acct.cli.reproduce import uses_accelerator
from acct.config.reproduce import CONTEXTUAL
from acct.config.root import compose
from acct.errors import ConfigError

FORWARD, BACK = PAIR["micro"]
FEWER = f"evaluation.tasks=[{','.join((*CONTEXTUAL, 'wikitext'))}]"


def shape(table: str, *overrides: str, directions: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    return {job.name: job.after for job in plan(table, overrides, directions)}


def test_table1_is_the_six_directions_with_the_settings_of_the_call():
    jobs = plan("table1", [])
    assert [job.name for job in jobs] == list(SIX["micro"]) and [job.overrides for job in jobs] == [
        (f"direction={d}",) for d in SIX["micro"]
    ]


def test_table2_trains_each_retention_apart():
    assert shape("table2") == {name: () for name in (FORWARD, BACK, f"{FORWARD}-r1", f"{BACK}-r1", f"{FORWARD}-r0.5", f"{BACK}-r0.5")}
    assert [compose(list(job.overrides)).budget.retention for job in plan("table2", [], [FORWARD])] == [0.25, 1.0, 0.5]


def test_table3_waits_only_where_a_ranking_is_copied():
    assert shape("table3") == {
        FORWARD: (), BACK: (), f"{FORWARD}-random": (), f"{BACK}-random": (), f"{FORWARD}-uniform": (FORWARD,), f"{BACK}-uniform": (BACK,),
    }  # fmt: skip


def test_all_shares_the_runs_of_table1():
    jobs = plan("all", [])
    assert [job.name for job in jobs][:6] == list(SIX["micro"]) and len(jobs) == 6 + 2 * 4
    assert all(FEWER in job.overrides for job in jobs[6:]) and not any(FEWER in job.overrides for job in jobs[:6])


def test_at_paper_scale_everything_is_scored_and_all_has_the_additional_pairs():
    jobs = plan("all", ["scale=paper"])
    names = [job.name for job in jobs]
    assert len(jobs) == 6 + 5 + 2 * 4 and {"qwen3_06b_to_4b", "qwen3_4b_to_8b-r1", "qwen3_8b_to_4b-uniform"} <= set(names)
    assert not any("evaluation.tasks" in override for job in jobs for override in job.overrides)


def test_tasks_follow_the_configuration():
    (_, variant) = plan("table3", ["evaluation.tasks=[race,piqa]", "reproduce.variant_tasks={micro: [race]}"], [FORWARD])[:2]
    assert variant.overrides[-1] == "evaluation.tasks=[race]"
    (_, variant) = plan("table3", ["evaluation.tasks=[piqa]"], [FORWARD])[:2]
    assert variant.overrides == (f"direction={FORWARD}", "experiment=table3_random")


@pytest.mark.parametrize("override", ["budget.retention=0.5", "experiment=table2_1x", "paths.run=x"])
def test_what_the_table_sets_is_refused(override):
    with pytest.raises(ConfigError, match=f"table2 sets {override.split('=')[0]} itself"):
        plan("table2", [override])


def test_runs_that_share_a_folder_are_refused():
    with pytest.raises(ConfigError, match="two runs would share the folder x"):
        plan("table1", ["paths.run=x"])


def test_every_direction_belongs_to_one_scale():
    found = {scale: directions_of(scale) for scale in ("micro", "paper", "tiny")}
    assert set(found["micro"]) == set(SIX["micro"]) and set(SIX["paper"]) < set(found["paper"]) and set(found["tiny"]) == set(SIX["tiny"])


def test_a_wrong_direction_or_task_is_a_message(capsys):
    assert main(["reproduce", "table3", "direction=micro_qwen9"]) == 2
    assert "unknown direction 'micro_qwen9'" in capsys.readouterr().err
    assert main(["reproduce", "table2", "reproduce.variant_tasks={micro: [boolqq]}"]) == 2
    assert "reproduce.variant_tasks.micro must be one of search_qa" in capsys.readouterr().err


@pytest.mark.parametrize("table", EXPERIMENTS)
def test_names_are_known_without_composing(table):
    assert run_names(table, "micro") == [job.name for job in plan(table, [])]
    assert run_names(table, "real-small") == [job.name for job in plan(table, ["scale=real-small"])]


def test_a_real_pair_has_acct_plus_and_other_budgets_of_the_same_modules_in_table1():
    expected: dict[str, tuple[str, ...]] = {}
    for one in SIX["real-small"]:
        plus = f"{one}-plus"
        expected |= {one: (), plus: (one,), f"{one}-r1-plus": (one, plus), f"{one}-r0.5-plus": (one, plus), f"{one}-r0.5": (one,)}
    assert shape("table1", "scale=real-small") == expected
    jobs = plan("table1", ["scale=real-small", "reproduce.seeds=[0,3]"])
    lent = [compose(list(job.overrides)).paths for job in jobs if "r0.5" in job.name]
    assert len(lent) == 8 and all(("-s3" in paths.run) == ("-s3" in paths.modules) == ("-s3" in paths.reuse) for paths in lent)
    back = [compose(["scale=real-small", *job.overrides]) for job in jobs if job.name.startswith(SIX["real-small"][1])]
    assert {(one.training.compiler.examples, tuple(one.evaluation.tasks), one.evaluation.examples) for one in back} == {
        (400, ("factbook_qa", "squad"), 40)
    }
    given = plan("table1", ["scale=real-small", "evaluation.examples=7"])
    assert not any("evaluation.examples" in override for job in given for override in job.overrides)
    with pytest.raises(ConfigError, match=r"by_direction.x must list overrides \(name=value\), got 'examples'"):
        plan("table1", ["+reproduce.by_direction={x: [examples]}"])
    with pytest.raises(ConfigError, match="table1 sets budget"):
        plan("table1", ["scale=real-small", "budget.retention=0.5"])
    assert len(plan("table1", ["budget.retention=0.5"])) == len(SIX["micro"])


def test_runs_share_no_gpu_unasked():
    assert not uses_accelerator(compose([])) and uses_accelerator(compose(["scale=paper"]))
    assert uses_accelerator(compose(["runtime.target_device=cuda:1"]))
