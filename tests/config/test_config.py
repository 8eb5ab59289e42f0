"""Composition, checks at composition, the schema behind every YAML file, and the table of open choices."""

from __future__ import annotations

import pytest

from acct.config.data import FURTHER_TASKS, METHODS, TASKS
from acct.config.root import Config, choices_table, compose, config_folder, field_names, leaves, open_choices
from acct.errors import ConfigError

DIRECTIONS = sorted(path.stem for path in (config_folder() / "direction").glob("*.yaml"))
EXPERIMENTS = sorted(path.stem for path in (config_folder() / "experiment").glob("*.yaml"))


def test_the_default_is_micro():
    config = compose([])
    assert isinstance(config, Config) and config.scale == "micro" and config.budget.tail_tokens == 8
    assert config.paths.run == "results/micro/micro_qwen3_small_to_large" and config.paths.data == "results/micro/data"


def test_paper_scale_has_the_papers_numbers():
    config = compose(["scale=paper", "direction=qwen3_4b_to_8b"])
    training = config.training
    assert (training.cartographer.examples, training.allocator.examples) == (5000, 5000)
    assert (training.compiler.examples, training.compiler.epochs, training.compiler.clip) == (500, 4, 1.0)
    assert (config.budget.retention, config.budget.tail_tokens, config.runtime.dtype) == (0.25, 32, "bfloat16")
    assert config.evaluation.examples == 1000 and config.evaluation.examples_by_task == {"pubmed_qa": 500, "wikitext": 500}
    assert config.cartographer.model_width is None and config.compiler.width is None
    assert (config.cartographer.limit, config.compiler.limit) == (8_000_000, 256_000_000)
    loss = config.compiler
    assert (loss.key_direction, loss.key_scale, loss.value, loss.attention, loss.behaviour) == (1.0, 1e-4, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("name", DIRECTIONS)
def test_every_direction_composes_and_is_named_like_its_file(name):
    config = compose([f"direction={name}"])
    assert config.direction.name == name and config.direction.source != config.direction.target


def test_the_papers_six_directions_are_there():
    assert {"qwen3_4b_to_8b", "qwen3_8b_to_4b", "llama_3b_to_8b", "llama_8b_to_3b", "qwen25_7b_to_32b", "qwen25_32b_to_7b"} <= set(
        DIRECTIONS
    )
    assert compose(["direction=llama_3b_to_8b"]).direction.prompts == "base"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes(name):
    compose([f"experiment={name}"])
    if name != "none":
        assert f"experiment={name}" in (config_folder() / "experiment" / f"{name}.yaml").read_text()


@pytest.mark.parametrize(
    ("overrides", "suffix"),
    [([], ""), (["budget.retention=0.5"], "-r0.5"), (["budget.retention=1.0"], "-r1"), (["paths.variant=random"], "-random"),
     (["budget.retention=0.5", "paths.variant=x"], "-r0.5-x")],
)  # fmt: skip
def test_a_run_of_another_budget_or_variant_has_a_folder_of_its_own(overrides, suffix):
    assert compose(overrides).paths.run == f"results/micro/micro_qwen3_small_to_large{suffix}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("budget.retention=4", r"budget\.retention must lie in \(0, 1\], got 4\. It is the kept fraction: write 0\.25 for 4x compression"),
        ("budget.retention=0", r"budget\.retention must lie in \(0, 1\]"),
        ("budget.tail_tokens=-1", r"budget\.tail_tokens"),
        ("training.compiler.epochs=0", r"epochs"),
        ("training.allocator.schedule=step", r"schedule must be one of constant, cosine; got 'step'"),
        ("stage=cartograph", r"stage must be one of"),
        ("supervision.pairs=3", r"supervision\.pairs"),
        ("runtime.dtype=int8", r"runtime\.dtype"),
        ("tracker.kind=mlflow", r"tracker\.kind"),
        ("compiler.value=-1", r"compiler\.value"),
    ],
)
def test_a_value_outside_its_range_is_named(override, message):
    with pytest.raises(ConfigError, match=message):
        compose([override])


def test_open_choices_have_reasons_and_defaults_and_stand_in_the_table_once():
    choices = open_choices()
    paths = [choice.path for choice in choices]
    assert len(paths) == len(set(paths)) and all(choice.why and choice.spec for choice in choices)
    assert {"supervision.straddle_power", "supervision.utility_floor", "training.<stage>.warmup", "prompts.query_tokens"} <= set(paths)
    table = choices_table()
    assert table.startswith("| field | default |") and table.count("\n") == len(choices) + 2
    assert all(line.count(" | ") == 3 for line in table.splitlines()[2:])


def test_every_leaf_can_be_overridden_by_its_name():
    names = field_names()
    assert {path for path, _, _ in leaves(Config())} <= set(names)


def test_tasks_and_methods_are_those_of_the_registries():
    from acct.data.tasks.registry import FURTHER
    from acct.data.tasks.registry import TASKS as KNOWN_TASKS
    from acct.methods.registry import METHODS as KNOWN_METHODS

    assert set(FURTHER_TASKS) == set(FURTHER) and not set(TASKS) & set(FURTHER)
    assert set(TASKS) == set(KNOWN_TASKS) and set(METHODS) <= set(KNOWN_METHODS)
