"""States read before training (acct.training.reading): everything once, nothing that is there already, and nothing left to the steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from acct.models.adapter import ModelAdapter
from acct.training.artifacts import load_artifact
from acct.training.reading import read_ahead
from acct.training.run import train
from acct.training.session import open_session
from tests.tolerances import REGROUPED_TRAINING
from tests.training.conftest import tiny

EXAMPLES = 7


def configured(folder: Path, together: int = 3, *overrides: str):
    changes = [f"training.cartographer.{field}" for field in (f"examples={EXAMPLES}", "held_out=0", "epochs=2", "batch=4")]
    return tiny(
        folder, *changes, "stage=cartographer", f"paths.state_cache={folder / 'states'}", f"training.read_ahead={together}", *overrides
    )


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every forward of a frozen model from position 0."""
    seen: list[int] = []
    forward = ModelAdapter.forward

    def counted(self, ids, *args, **more):
        seen.append(ids.shape[0])
        return forward(self, ids, *args, **more)

    monkeypatch.setattr(ModelAdapter, "forward", counted)
    return seen


def test_every_example_is_read_once_in_batches_of_its_own_size_and_training_reads_none(tmp_path: Path, batches: list[int]) -> None:
    train(configured(tmp_path))
    assert sorted(batches) == [1, 1, 3, 3, 3, 3]  # source and target, seven examples by threes


def test_the_result_is_that_of_reading_in_the_batches_of_training(tmp_path: Path) -> None:
    found = [
        load_artifact(Path(config.paths.run), "cartographer")
        for config in (configured(tmp_path / "a"), configured(tmp_path / "b", 0))
        if train(config)
    ]
    ahead, plain = (artifact.tensors for artifact in found)
    assert ahead.keys() == plain.keys()
    assert all((ahead[name] - plain[name]).abs().max() <= REGROUPED_TRAINING for name in plain)


def test_a_killed_run_goes_on_with_what_is_missing(tmp_path: Path, batches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with open_session(configured(tmp_path), record=False) as session:
        rows = type(session.states).rows
        calls: list[int] = []

        def killed(self, *args, **more):
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return rows(self, *args, **more)

        monkeypatch.setattr(type(session.states), "rows", killed)
        with pytest.raises(KeyboardInterrupt):
            read_ahead(session, session.train.first(EXAMPLES))
        monkeypatch.setattr(type(session.states), "rows", rows)
    batches.clear()
    with open_session(configured(tmp_path), record=False) as session:
        assert read_ahead(session, session.train.first(EXAMPLES)) == EXAMPLES - 3
        # The second batch has the source's states already: the target alone reads it.
        assert sorted(batches) == [1, 1, 3]
        batches.clear()
        assert read_ahead(session, session.train.first(EXAMPLES)) == 0 and batches == []


def test_where_storing_stops_reading_ahead_stops_and_training_goes_on(tmp_path: Path, batches: list[int]) -> None:
    config = configured(tmp_path, 3, "training.state_cache_gigabytes=1e-9")
    with open_session(config, record=False) as session:
        assert read_ahead(session, session.train.first(EXAMPLES)) == 3 and sorted(batches) == [3, 3]
    assert train(config)["cartographer"].tensors


@pytest.mark.parametrize("overrides", [["training.read_ahead=0"], ["paths.state_cache=null"]])
def test_without_a_folder_or_a_size_nothing_is_read(tmp_path: Path, batches: list[int], overrides: list[str]) -> None:
    with open_session(configured(tmp_path, 3, *overrides), record=False) as session:
        assert read_ahead(session, session.train.first(EXAMPLES)) == 0 and batches == []
