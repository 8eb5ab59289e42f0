"""One tiny run of all stages, shared by the tests that only read it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acct.config.root import Config, compose
from acct.training.run import train


def tiny(results: Path, *overrides: str) -> Config:
    """The tiny configuration with everything under one folder; it writes no progress lines in between."""
    return compose(["debug=tiny", f"paths.results={results}", "runtime.progress_seconds=1e9", "runtime.threads=1", *overrides])


def copy_of(finished: Config, tmp_path: Path, *overrides: str) -> Config:
    """A configuration in a fresh folder that takes finished stages and data from the shared run."""
    return tiny(tmp_path, f"paths.data={finished.paths.data}", f"paths.reuse={finished.paths.run}", *overrides)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The configuration of a run folder in which all stages have finished."""
    threads = torch.get_num_threads()
    config = tiny(tmp_path_factory.mktemp("results"))
    train(config)
    torch.set_num_threads(threads)
    return config
