"""Charts of stored records and a diagnosis written by hand: what they show, what they say is missing, and files that do not change."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

from acct.cli.main import main
from acct.errors import ConfigError, UnknownName
from acct.evaluation.diagnosis import FILE, FORMAT
from acct.reporting.charts.budget import SHOWN, VARIANTS, series
from acct.reporting.charts.registry import CHARTS, write_charts
from acct.reporting.charts.sources import Sources
from acct.reporting.charts.survival import window
from acct.reporting.intervals import Bootstrap
from acct.reporting.plots import styled
from tests.reporting.stored import row, rows, store

needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is in the extra `report`")
ENDINGS = (".png", ".svg", ".pdf")


def sources(root: Path) -> Sources:
    return Sources(root, "micro", bootstrap=Bootstrap(resamples=50))


def diagnosis(**changes: object) -> dict:
    """Two examples, three layers of two heads, six tokens with a tail of one."""
    found = {
        "format": FORMAT, "layers": 3, "heads": 2, "rank_correlation": [[0.1, 0.2, 0.3], [0.3, 0.2, 0.5]],
        "kept_utility": [[0.5, 0.6, 0.7], [0.7, 0.8, 0.9]], "capacities": {"context_tokens": 6, "counts": [[2, 4], [3, 3], [1, 5]]},
        "bridge_r2": {"keys": [[0.9, None], [0.5, 0.4], [0.1, -0.2]], "values": [[0.8, 0.7], [0.5, 0.4], [0.1, 0.0]]},
        "attention_kl": {"bridge": [[0.3, 0.2, 0.1]] * 2, "compiler": [[0.1, 0.1, 0.0]] * 2},
        "survival": {"id": "search_qa/00001", "tokens": ["A", " $cost", "_b^", "\n", "is", "X"], "query": "Who?", "answers": ["X"],
                     "tail": 1, "kept": [[0, 1, 2, 0, 0, 2], [2, 0, 0, 0, 1, 2], [0, 0, 0, 0, 0, 2]]},
    }  # fmt: skip
    return {**found, **changes}


def diagnosed(root: Path, run: str = "a_to_b", **changes: object) -> None:
    path = root / "micro" / run / FILE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(diagnosis(**changes)))


def test_points_of_the_budget_curve_are_the_figures_of_their_own_runs(tmp_path: Path) -> None:
    better = [row("a_to_b", "search_qa", method, i, score=1.0) for method in ("acct", "target_full", "snapkv") for i in range(4)]
    store(tmp_path)
    store(tmp_path, run="a_to_b-r0.5", retention=0.5, found=better)
    store(tmp_path, run="a_to_b-uniform", variant="uniform", found=better)
    found = series(sources(tmp_path), "a_to_b", "search_qa", SHOWN, VARIANTS)
    assert {name: [(share, one.value) for share, one in points] for name, points in found.items()} == {
        "acct": [(0.25, 50.0), (0.5, 100.0)], "random": [(0.25, 25.0)], "snapkv": [(0.5, 100.0)], "uniform_retrained": [(0.25, 100.0)],
    }  # fmt: skip
    assert series(sources(tmp_path), "b_to_a", "search_qa", SHOWN, VARIANTS) == {}


@needs_matplotlib
def test_every_chart_of_a_full_scale_is_drawn_in_three_formats(tmp_path: Path) -> None:
    store(tmp_path)
    store(tmp_path, run="a_to_b-r0.5", retention=0.5)
    diagnosed(tmp_path)
    drawn = write_charts(sources(tmp_path), tmp_path / "figures")
    names = {name: {path.stem for path in one.files} for name, one in drawn.items()}
    assert names == {
        "relative": {"relative_search_qa", "relative_wikitext"}, "budget_curve": {"budget_curve"}, "capacities": {"capacities_a_to_b"},
        "survival": {"survival_a_to_b"}, "rank_correlation": {"rank_correlation"}, "bridge_r2": {"bridge_r2_a_to_b"},
        "attention_kl": {"attention_kl"},
    }  # fmt: skip
    files = [path for one in drawn.values() for path in one.files]
    assert len(files) == 3 * sum(map(len, names.values())) and {path.suffix for path in files} == set(ENDINGS)
    assert all(path.stat().st_size > 1000 for path in files)
    assert drawn["budget_curve"].missing == ("not in the records: random, retrained, uniform, retrained, snapkv",)
    survival = (tmp_path / "figures/survival_a_to_b.svg").read_text(encoding="utf-8")
    assert "$cost" in survival and "_b^" in survival and "Query: Who?" in survival  # text as it is, not as a formula
    assert ">50<" not in survival and re.search(r">Target Full<", (tmp_path / "figures/budget_curve.svg").read_text(encoding="utf-8"))


@needs_matplotlib
def test_equal_input_gives_equal_files(tmp_path: Path) -> None:
    diagnosed(tmp_path)
    first, second = (
        [path.read_bytes() for path in write_charts(sources(tmp_path), tmp_path / name, ["attention_kl", "capacities"])["capacities"].files]
        for name in ("one", "two")
    )
    assert first == second


@needs_matplotlib
def test_what_cannot_be_drawn_says_which_command_supplies_it(tmp_path: Path) -> None:
    (tmp_path / "micro").mkdir()
    empty = write_charts(sources(tmp_path), tmp_path)
    assert all(not one.files and "acct " in one.missing[0] for one in empty.values())
    store(tmp_path, found=rows())
    diagnosed(tmp_path, rank_correlation=None, kept_utility=None)  # retention 1 ranks nothing
    drawn = write_charts(sources(tmp_path), tmp_path, ["budget_curve", "rank_correlation", "attention_kl"])
    assert "only retention 0.25" in drawn["budget_curve"].missing[0] and drawn["budget_curve"].files
    assert "learned ranking" in drawn["rank_correlation"].missing[0] and drawn["attention_kl"].files
    with pytest.raises(UnknownName, match="Did you mean 'survival'"):
        write_charts(sources(tmp_path), tmp_path, ["survivel"])


@needs_matplotlib
def test_drawing_leaves_the_process_as_it_was() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    with styled():
        assert matplotlib.rcParams["svg.hashsalt"] == "acct"
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"acct\[report\]"):
        write_charts(sources(tmp_path), tmp_path)


def test_intervals_over_examples_hold_their_means(tmp_path: Path) -> None:
    middle, bounds = sources(tmp_path).means([[0.1, 0.2], [0.3, 0.2]])
    assert middle == pytest.approx([0.2, 0.2]) and bounds[0] == pytest.approx([0.1, 0.3]) and bounds[1] == pytest.approx([0.2, 0.2])


def test_the_window_of_a_long_context_holds_the_most_kept_slots() -> None:
    kept = np.zeros((2, 10), dtype=np.int64)
    kept[:, [1, 6, 7]] = 1
    assert window(kept, 10) == slice(0, 10) and window(kept, 3) == slice(5, 8) and window(kept, 6) == slice(1, 7)


@needs_matplotlib
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    store(tmp_path / "results")
    assert main(["figures", "relative", "survival"]) == 0
    printed = capsys.readouterr().out
    assert "wrote results/micro/figures/relative_search_qa.svg" in printed and "survival: no diagnosis: acct diagnose" in printed
    assert main(["figures", "heatmap"]) == 2 and "unknown figure 'heatmap'" in capsys.readouterr().err
    assert set(CHARTS) >= {"budget_curve", "capacities", "survival", "rank_correlation", "bridge_r2", "attention_kl"}
