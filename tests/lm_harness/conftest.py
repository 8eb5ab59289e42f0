"""The embedded pair Qwen3 small to large with five examples of each task, loaded once."""

from __future__ import annotations

from typing import Any

import pytest

from acct.config.root import Config
from acct.lm_harness.settings import configuration
from acct.models.pair import Pair
from acct.training.session import load_configured_pair
from tests.lm_harness.paths import data_settings
from tests.training.conftest import finished  # noqa: F401 (a fixture)


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return data_settings(tmp_path_factory.mktemp("lm_harness") / "data")


@pytest.fixture(scope="session")
def micro(settings: dict[str, Any]) -> Config:
    return configuration(settings)


@pytest.fixture(scope="session")
def pair(micro: Config) -> Pair:
    return load_configured_pair(micro)
