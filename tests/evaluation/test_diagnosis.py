"""The diagnosis of a tiny finished run against what its stages measured themselves."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from acct.config.root import Config
from acct.errors import ArtifactError, ConfigError
from acct.evaluation.diagnosis import attention_by_layer, diagnose, read_diagnosis
from acct.losses.compilation import attention, attention_teacher
from acct.native import read_native
from acct.training.artifacts import load_artifact
from tests.compiler.test_real_pair import choose
from tests.tiny import tiny_batch, tiny_pair
from tests.training.conftest import finished  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def found(finished: Config) -> tuple[Config, dict]:  # noqa: F811
    config = copy.deepcopy(finished)
    config.diagnosis.examples, config.diagnosis.batch, config.diagnosis.example = 4, 3, 2
    before = copy.deepcopy(config)
    path = diagnose(config)
    assert config == before and path.is_relative_to(config.paths.run)
    loaded = read_diagnosis(Path(config.paths.run))
    assert loaded is not None
    return config, loaded


def test_means_are_what_training_measured_on_the_same_examples(found: tuple[Config, dict]) -> None:
    config, loaded = found
    cards = {kind: load_artifact(Path(config.paths.run), kind).card for kind in ("cartographer", "compiler")}
    measured = cards["compiler"]["held_out"]
    for name in ("bridge", "compiler"):
        assert np.mean(loaded["attention_kl"][name]) == pytest.approx(measured[f"{name}_attention"], rel=1e-4)
    # 3 target layers: training's sample of up to 4 was all of them
    assert np.mean(loaded["rank_correlation"]) == pytest.approx(cards["cartographer"]["held_out"]["rank_correlation"], abs=1e-6)
    assert np.mean(loaded["kept_utility"]) == pytest.approx(cards["cartographer"]["held_out"]["kept_utility"], abs=1e-6)
    for row in cards["compiler"]["bridge"]["by_layer"]:
        for kind in ("keys", "values"):
            assert np.mean(loaded["bridge_r2"][kind][int(row["layer"])]) == pytest.approx(row[kind], rel=1e-4)


def test_the_budget_is_kept_and_the_tail_survives_everywhere(found: tuple[Config, dict]) -> None:
    _, loaded = found
    counts, length = np.array(loaded["capacities"]["counts"]), loaded["capacities"]["context_tokens"]
    assert counts.shape == (loaded["layers"], loaded["heads"]) == (3, 3)
    assert counts.sum() == counts.size * max(4, np.ceil(0.25 * length))  # P k: tau = 4, rho = 1/4
    one = loaded["survival"]
    kept = np.array(one["kept"])
    assert one["id"] == loaded["examples"][2] and kept.shape == (3, len(one["tokens"])) and kept.max() <= 3
    assert one["tail"] == 4 and (kept[:, -4:] == 3).all()
    assert kept.sum() == 9 * max(4, np.ceil(0.25 * kept.shape[1]))


def test_layers_average_to_the_loss() -> None:
    pair = tiny_pair("qwen3")
    target, batch = pair.target, tiny_batch(3, context=(11, 5, 17), query=(4, 9, 3))
    native = read_native(target, batch, queries=True)
    selection = choose(batch, target.geometry.layers, target.geometry.kv_heads)
    teacher = attention_teacher(target.rotate, native, selection, target.scaling)
    compiled = teacher.keys + torch.randn(teacher.keys.shape, generator=torch.Generator().manual_seed(0))
    by_layer = attention_by_layer(compiled, teacher, selection)
    assert by_layer.shape == (3, target.geometry.layers) and bool((by_layer >= 0).all())
    torch.testing.assert_close(by_layer.mean().float(), attention(compiled, teacher, selection), rtol=1e-5, atol=1e-6)
    assert float(attention_by_layer(teacher.keys, teacher, selection).abs().max()) < 1e-6


def test_wrong_sizes_and_foreign_files_are_refused(found: tuple[Config, dict], tmp_path: Path) -> None:
    from acct.config.diagnosis import DiagnosisConfig

    with pytest.raises(ConfigError, match=r"diagnosis\.example"):
        DiagnosisConfig(examples=2, example=2)
    assert read_diagnosis(tmp_path) is None
    (tmp_path / "diagnosis").mkdir()
    for text in ("{}", "no JSON"):
        (tmp_path / "diagnosis/diagnosis.json").write_text(text)
        with pytest.raises(ArtifactError, match="acct diagnose"):
            read_diagnosis(tmp_path)
