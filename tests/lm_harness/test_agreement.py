"""One sample through both paths: `acct evaluate`'s scoring, lm-eval over the model `acct`, and lm-eval's own `hf` model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from acct.config.root import Config
from acct.data.prompts import encode
from acct.lm_harness.documents import example_of
from acct.locations import ensure_data, resolve_direction
from acct.models.pair import Pair
from tests.evaluation.tiny_run import interface_for
from tests.lm_harness.paths import harness, likelihoods, lm, manager, own_records, own_samples

TOLERANCE = 2e-4  # nats, of a candidate's summed log-likelihood; seen: 3e-5 (the context in one forward against two, float32)
TASKS = ["boolq", "search_qa", "race"]


@pytest.fixture(scope="module")
def sampled(micro: Config, pair: Pair) -> Config:
    """The configuration with the module's tasks, their files written."""
    config = replace(micro, evaluation=replace(micro.evaluation, tasks=TASKS))
    ensure_data(config, TASKS, ["evaluation"])
    return config


@pytest.mark.parametrize(("method", "chat"), [("target_full", True), ("target_full", False), ("acct", True)])
def test_both_paths_score_the_same_examples_the_same(sampled: Config, settings, pair: Pair, method: str, chat: bool) -> None:
    interface = None if method == "target_full" else interface_for(pair, 0.25, 4)
    found = harness(
        lm(pair, interface, sampled, method), [f"acct_{task}" for task in TASKS], manager(settings), apply_chat_template=chat
    )  # fmt: skip
    for task, sample in own_samples(sampled, pair, "chat" if chat else "base").items():
        records, rows = own_records(sampled, pair, interface, method, sample), found[f"acct_{task}"]
        assert [row["doc"]["id"] for row in rows] == [example.id for example in sample.examples] and len(rows) == 5
        for row in rows:
            record = records[row["doc"]["id"]]
            if task == "search_qa":
                assert row["f1"] == record["score"]
            else:
                assert likelihoods(row)[row["doc"]["gold"]] == pytest.approx(-record["nll_sum"], abs=TOLERANCE)
                assert row["acc"] == record["score"]
    assert sum(row["acc"] for row in found["acct_race"]) >= 3 or method == "acct"  # the model has learned the task: not all zeros


@pytest.mark.parametrize("style", ["chat", "base"])
def test_the_split_gives_the_protocols_own_ids(sampled: Config, settings, pair: Pair, style: str) -> None:
    model = lm(pair, None, sampled, "target_full")
    tasks = manager(settings).load(["acct_contextual"])["tasks"]
    assert len(tasks) == 6
    for task in tasks.values():
        for doc in task.eval_docs:
            prompt = task.fewshot_context(
                doc, 0, gen_prefix=task.doc_to_prefix(doc), apply_chat_template=style == "chat", chat_template=model.apply_chat_template
            )
            split = model.splitter.encode("x", prompt, model.splitter.passage(doc, prompt, "x"))
            ours = encode(example_of(doc), pair.tokenizer, style, model.splitter.options)
            assert split.context_ids == ours.context_ids and split.query_ids == ours.query_ids
            assert split.bare_query_ids == ours.bare_query_ids


def test_target_full_equals_lm_evals_own_model(sampled: Config, settings, pair: Pair) -> None:
    tasks, target = [f"acct_{task}" for task in TASKS], resolve_direction(sampled)[1]
    ours = harness(lm(pair, None, sampled, "target_full"), tasks, manager(settings))
    arguments = {"pretrained": target, "dtype": "float32"}
    theirs = harness("hf", tasks, manager(settings), model_args=arguments, device="cpu", gen_kwargs="max_gen_toks=8")
    for task in tasks:
        for mine, other in zip(ours[task], theirs[task], strict=True):
            assert mine["doc"]["id"] == other["doc"]["id"] and mine["prompt_hash"] == other["prompt_hash"]
            if task == "acct_search_qa":
                assert mine["filtered_resps"] == other["filtered_resps"]
            else:
                assert likelihoods(mine) == pytest.approx(likelihoods(other), abs=TOLERANCE)
                assert [bool(pair[1]) for pair in mine["filtered_resps"]] == [bool(pair[1]) for pair in other["filtered_resps"]]


def test_native_states_at_every_position_equal_target_full(sampled: Config, settings, pair: Pair) -> None:
    full, native = (
        harness(lm(pair, interface, sampled, method), ["acct_boolq"], manager(settings))["acct_boolq"]
        for method, interface in (("target_full", None), ("native_kv", interface_for(pair, 1.0)))
    )
    assert [likelihoods(row) for row in native] == [pytest.approx(likelihoods(row), abs=TOLERANCE) for row in full]


def test_a_run_folder_answers_by_its_trained_interface(finished: Config, tmp_path: Path) -> None:
    from acct.lm_harness.model import AcctLM
    from acct.training.modules import load_interface

    arguments = {"run": finished.paths.run, "evaluation.examples": 3}
    model = AcctLM.create_from_arg_obj(arguments, {"batch_size": 2, "device": "cuda:0", "max_batch_size": None})
    assert (model.batch, model.method.name, str(model.device)) == (2, "acct", "cpu")
    config = replace(model.config, evaluation=replace(model.config.evaluation, tasks=["boolq"]))
    rows = harness(model, ["acct_boolq"], manager(arguments), apply_chat_template=True)["acct_boolq"]
    sample = own_samples(config, model.pair, "chat")["boolq"]
    records = own_records(config, model.pair, load_interface(config, model.pair), "acct", sample)
    assert len(rows) == 3
    for row in rows:
        assert likelihoods(row)[row["doc"]["gold"]] == pytest.approx(-records[row["doc"]["id"]]["nll_sum"], abs=TOLERANCE)
