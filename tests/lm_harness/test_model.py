"""The registered model: rolling likelihoods, generation, chat prompts, arguments, and lm-eval's own command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from acct.cli.main import main
from acct.config.root import Config
from acct.data.prompts import PromptOptions
from acct.errors import ConfigError, InputError, UnknownName
from acct.lm_harness import NAME, TASKS
from acct.lm_harness.chat import chat_prompt
from acct.lm_harness.model import AcctLM
from acct.lm_harness.rules import Rolling
from acct.lm_harness.settings import configuration
from acct.lm_harness.split import Splitter
from acct.locations import resolve_direction
from acct.models.pair import Pair
from tests.evaluation.tiny_run import interface_for
from tests.lm_harness.paths import lm

ROOT = Path(__file__).resolve().parents[2]
TEXT = "The teacher of Tami is Koba. The friend of Koba is Desu. The old river sleeps today. The friend of Koba is Desu."


def asked(kind: str, *arguments, doc: dict | None = None) -> Instance:
    return Instance(request_type=kind, doc=doc or {}, arguments=arguments, idx=0, metadata=("task", 0, 1))


def native_sums(pair: Pair, ids: list[int], windows: list[tuple[int, int, int]]) -> float:
    """Sum of log p of ids[start:end] read after ids[first:start], one plain forward a window."""
    total = 0.0
    for first, start, end in windows:
        logits = pair.target.model(torch.tensor([ids[first:end]])).logits[0].double().log_softmax(-1)
        total += sum(float(logits[place - first - 1, ids[place]]) for place in range(start, end))
    return total


def test_rolling_scores_every_token_once_after_its_window(micro: Config, pair: Pair) -> None:
    ids = [pair.tokenizer.eos_token_id, *pair.tokenizer.encode(TEXT, add_special_tokens=False)]
    assert len(ids) > 24
    model = lm(pair, None, micro, "target_full", rolling=Rolling(8, 5))
    windows = [(max(start - 8, 0), start, min(start + 5, len(ids))) for start in range(1, len(ids), 5)]
    (found,) = model.loglikelihood_rolling([asked("loglikelihood_rolling", TEXT)], disable_tqdm=True)
    assert found == pytest.approx(native_sums(pair, ids, windows), abs=1e-3)
    (whole,) = lm(pair, None, micro, "target_full", rolling=Rolling(99, 5)).loglikelihood_rolling(
        [asked("loglikelihood_rolling", TEXT)], disable_tqdm=True
    )
    assert whole == pytest.approx(native_sums(pair, ids, [(0, 1, len(ids))]), abs=1e-3)
    hf = get_model("hf").create_from_arg_obj({"pretrained": resolve_direction(micro)[1], "dtype": "float32"}, {"device": "cpu"})
    assert whole == pytest.approx(hf.loglikelihood_rolling([asked("loglikelihood_rolling", TEXT)], disable_tqdm=True)[0], abs=1e-3)


@pytest.mark.parametrize("method", ["acct", "source_full", "no_context", "zeros", "wrong_document"])
def test_every_kind_of_method_answers_all_three_requests(method: str, micro: Config, pair: Pair) -> None:
    model = lm(pair, interface_for(pair, 0.5, 2), micro, method, rolling=Rolling(8, 5))
    other = TEXT.replace("Koba", "Lori")
    (first, second) = model.loglikelihood_rolling([asked("loglikelihood_rolling", text) for text in (TEXT, other)], disable_tqdm=True)
    full = lm(pair, None, micro, "target_full", rolling=Rolling(8, 5))
    (reference,) = full.loglikelihood_rolling([asked("loglikelihood_rolling", TEXT)], disable_tqdm=True)
    assert first < 0 and second < 0 and abs(first - reference) > 1e-2
    docs = [{"context": TEXT}, {"context": other}]
    prompts = [f"{doc['context']}\n\nQuestion: Who is the friend of Koba?\nAnswer: The answer is" for doc in docs]
    pairs = [asked("loglikelihood", prompt, word, doc=doc) for prompt, doc in zip(prompts, docs) for word in (" Desu", " Tami")]
    assert all(value < 0 for value, _ in model.loglikelihood(pairs, disable_tqdm=True))
    limits = {"until": ["."], "max_gen_toks": 4}
    texts = model.generate_until([asked("generate_until", prompt, limits, doc=doc) for prompt, doc in zip(prompts, docs)], True)
    assert len(texts) == 2 and not any("." in text for text in texts)


def test_a_candidate_is_greedy_exactly_when_generation_gives_it(micro: Config, pair: Pair) -> None:
    prompt, doc = f"{TEXT}\n\nQuestion: Who is the friend of Koba?\nAnswer: The answer is", {"context": TEXT}
    model = lm(pair, None, micro, "target_full")
    (text,) = model.generate_until([asked("generate_until", prompt, {"max_gen_toks": 3}, doc=doc)], True)
    words = [f" {text.strip()}", " the river"]
    results = model.loglikelihood([asked("loglikelihood", prompt, word, doc=doc) for word in words], True)
    assert [greedy for _, greedy in results] == [True, False] and results[0][0] > results[1][0]
    shorter = model.generate_until([asked("generate_until", prompt, {"max_gen_toks": 1}, doc=doc)], True)
    assert text.startswith(shorter[0]) and shorter[0] != text


def test_blanks_at_a_prompts_end_belong_to_the_continuation_and_an_empty_prompt_is_the_prefix(micro: Config, pair: Pair) -> None:
    model = lm(pair, None, micro, "target_full")
    one, other = model.loglikelihood([asked("loglikelihood", TEXT + " ", "The"), asked("loglikelihood", TEXT, " The")], True)
    assert one == other
    (unconditional,) = model.loglikelihood([asked("loglikelihood", "", " Desu is")], True)
    ids = [pair.tokenizer.eos_token_id, *pair.tokenizer.encode(" Desu is", add_special_tokens=False)]
    assert unconditional[0] == pytest.approx(native_sums(pair, ids, [(0, 1, len(ids))]), abs=1e-4)
    with pytest.raises(InputError, match="continuation 0 has no tokens"):
        model.loglikelihood([asked("loglikelihood", TEXT, "")], True)


def test_sampling_is_refused(micro: Config, pair: Pair) -> None:
    with pytest.raises(ConfigError, match="generation is greedy"):
        lm(pair, None, micro, "target_full").generate_until([asked("generate_until", TEXT, {"do_sample": True, "temperature": 0.7})], True)


def test_where_a_prompt_is_split(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    splitter = Splitter(pair.tokenizer, PromptOptions(query_tokens=2, max_context_tokens=None))
    ids = pair.tokenizer.encode
    prompt = f"Example: Tami is Koba.\n\n{TEXT}\n\nWho is Koba?"
    split = splitter.encode("x", prompt, splitter.passage({"context": f" {TEXT} "}, prompt, "x"), [" Desu"])
    assert pair.tokenizer.decode(split.query_ids) == pair.tokenizer.decode(ids("Who is Koba?", add_special_tokens=False))
    assert list(split.context_ids + split.query_ids) == ids(prompt, add_special_tokens=False) and split.candidate_ids == (
        tuple(ids(" Desu", add_special_tokens=False)),
    )  # fmt: skip
    assert list(split.bare_query_ids) == ids("Example: Tami is Koba.\n\nWho is Koba?", add_special_tokens=False)
    whole = splitter.encode("x", TEXT, None)
    assert len(whole.query_ids) == 2 and list(whole.context_ids + whole.query_ids) == ids(TEXT, add_special_tokens=False)
    assert splitter.passage({"context": "not there"}, TEXT, "t") is None and "passage_field='' silences" in caplog.text
    assert splitter.passage({"context": {"contexts": []}}, TEXT, "t") is None and splitter.passage({}, TEXT, "t") is None
    short = Splitter(pair.tokenizer, PromptOptions(max_context_tokens=6)).encode("x", TEXT, None)
    assert (
        len(short.context_ids) == 6 and list(short.context_ids) == ids(TEXT, add_special_tokens=False)[-7:-1] and short.dropped_tokens > 0
    )
    assert Splitter(pair.tokenizer, PromptOptions(max_context_tokens=9)).encode("x", f"{TEXT}\n\nWho?", TEXT).dropped_tokens > 0


def test_chat_prompts_are_one_turn_in_the_templates_frame(pair: Pair) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello?\n"},
        {"role": "assistant", "content": "Answer:"},
    ]
    text = chat_prompt(turns, pair.tokenizer, PromptOptions())
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\nAnswer:"
    )  # fmt: skip
    with pytest.raises(InputError, match="fewshot_as_multiturn false"):
        chat_prompt([*turns, turns[1]], pair.tokenizer, PromptOptions())


def test_model_arguments_are_settings() -> None:
    config = configuration(
        {"debug": "tiny", "budget.retention": 0.5, "paths.data": "a b/c:d", "prompts.system": None, "training.restart": True}
    )
    assert (config.direction.name, config.budget.retention, config.paths.data, config.training.restart) == (
        "tiny_qwen3",
        0.5,
        "a b/c:d",
        True,
    )
    with pytest.raises(UnknownName, match=r"unknown model argument 'budget.retentoin'.*budget.retention"):
        configuration({"budget.retentoin": 0.5})
    with pytest.raises(UnknownName, match="unknown model argument 'pretrained'"):
        configuration({"pretrained": "x"})
    with pytest.raises(ConfigError, match="already says which direction"):
        configuration({"run": "results/x", "direction": "tiny_llama"})


def test_a_method_without_its_interface_is_refused(micro: Config, pair: Pair) -> None:
    with pytest.raises(ConfigError, match="method=acct needs a trained interface"):
        AcctLM(pair, None, micro, "acct")
    with pytest.raises(ConfigError, match="at least 2 tokens to read"):
        Rolling(1, 4)


def test_lm_eval_knows_the_model_by_registration_and_by_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, name = project["project"]["entry-points"]["lm_eval.models"][NAME].partition(":")
    assert getattr(import_module(module), name) is AcctLM is get_model(NAME)
    assert get_model("dummy").__name__ == "DummyLM"  # lm-eval's own are not lost
    patterns = project["tool"]["setuptools"]["package-data"]["acct"]
    packed = {path for pattern in patterns for path in (ROOT / "acct").glob(pattern)}
    assert {path for path in TASKS.iterdir() if path.is_file()} <= packed


def test_acct_lm_eval_runs_the_harness(settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from lm_eval.tasks import manager

    built = manager.TaskIndex.build
    monkeypatch.setattr(manager.TaskIndex, "build", staticmethod(lambda paths, **more: built([p for p in paths if p == TASKS], **more)))
    monkeypatch.chdir(tmp_path)
    arguments = ",".join(f"{name}={value}" for name, value in {**settings, "method": "target_full", "evaluation.examples": 2}.items())
    command = ["lm-eval", "--model", "acct", "--model_args", arguments]
    rest = ["--tasks", "acct_boolq", "--limit", "2", "--output_path", "out.json"]
    before = list(sys.argv)
    assert main(command + rest) == 0 and sys.argv == before
    assert "|acct_boolq|" in capsys.readouterr().out
    (written,) = tmp_path.glob("out*.json")
    assert json.loads(written.read_text())["results"]["acct_boolq"]["sample_len"] == 2
    assert main([*command[:4], f"{arguments},methd=acct", *rest]) == 2
    assert "unknown model argument 'methd'" in capsys.readouterr().err


@pytest.mark.slow
def test_lm_evals_own_command_finds_the_model_through_a_yaml_path(settings, tmp_path: Path) -> None:
    """Half a minute: lm-eval indexes its fourteen thousand tasks."""
    arguments = ",".join(f"{name}={value}" for name, value in {**settings, "method": "target_full", "evaluation.examples": 2}.items())
    command = [sys.executable, "-m", "lm_eval", "--model", "acct", "--model_args", arguments, "--tasks", str(TASKS / "acct_boolq.yaml")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "acct_boolq" in done.stdout, done.stderr[-2000:]
