"""Golden prompts with the tokenizers and templates of the paper's families (`make test-real`; spec 7, paper F.1).

What is pinned is the whole text, as the ids decode, and the hash over all ids, so that a change of protocol, template or tokenizer shows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from acct.data.prompts import PromptOptions, encode, encode_context, encode_query
from acct.data.source import FolderSource, load_examples
from acct.data.tasks.registry import get_task
from tests.data.fetch_tokenizers import PACKAGES, VARIABLE, complete

from .hub_rows import ROWS
from .test_schemas import EXCERPTS, REAL, SPLITS
from .tiny_tokenizers import LLAMA_DATED

pytestmark = pytest.mark.real
BOOLQ, MMLU = (get_task(name).from_row(ROWS[name][0], 0) for name in ("boolq", "mmlu"))
HELLASWAG, WINOGRANDE = (get_task(name).from_row(ROWS[name][0], 0) for name in ("hellaswag", "winogrande"))
PASSAGE, QUESTION = "The Tavin is a river.", "Question: is the tavin a river?"
CUE = "Answer: The answer is"


@dataclass(frozen=True)
class Golden:
    """What one family's prompt of BoolQ looks like, cut where the context ends; `system`: with a system message of one's own."""

    context: str
    query: str
    system: str
    bos: str
    prompt_hash: str
    choice_hash: str


GOLDEN = {
    "qwen3": Golden(
        context=f"<|im_start|>user\n{PASSAGE}\n\n",
        query=f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n{CUE}",
        system=f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{PASSAGE}\n\n",
        bos="",
        prompt_hash="7236572dd54a4f90",
        choice_hash="73f62d4c4ed4cf2d",
    ),
    "qwen2_5": Golden(
        context="<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{PASSAGE}\n\n",
        query=f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n{CUE}",
        system=f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{PASSAGE}\n\n",
        bos="",
        prompt_hash="548831c5f6ee1d84",
        choice_hash="73f62d4c4ed4cf2d",
    ),
    "llama3_1": Golden(
        context=f"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{PASSAGE}\n\n",
        query=f"{QUESTION}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{CUE}",
        system="<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        f"<|start_header_id|>user<|end_header_id|>\n\n{PASSAGE}\n\n",
        bos="<|begin_of_text|>",
        prompt_hash="25a1d2ece5605eee",
        choice_hash="d3b8180ceb1bd3d0",
    ),
}


@lru_cache
def real(family: str) -> Any:
    """A family's tokenizer, or a skip that says how to get it."""
    place = os.environ.get(VARIABLE)
    if not place or not complete(Path(place), family):
        pytest.skip(f"{PACKAGES[family]} is not in the folder that {VARIABLE} names ({place or 'not set'}): run `make test-real`")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(place) / family)


def text_of(tokenizer: Any, ids: tuple[int, ...]) -> str:
    """What the ids say, without the clean-up of blanks before "'s" that Llama's tokenizer does by default."""
    text: str = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    return text


@pytest.fixture(params=GOLDEN)
def family(request: pytest.FixtureRequest) -> str:
    real(request.param)
    return request.param


def test_contextual_prompts_by_the_chat_template(family: str) -> None:
    tokenizer, golden = real(family), GOLDEN[family]
    encoded = encode(BOOLQ, tokenizer)
    assert (text_of(tokenizer, encoded.context_ids), text_of(tokenizer, encoded.query_ids)) == (golden.context, golden.query)
    assert (encoded.style, encoded.protocol, encoded.prompt_hash) == ("chat", "completion-v2", golden.prompt_hash)
    assert [text_of(tokenizer, ids) for ids in encoded.candidate_ids] == [" yes", " no"]
    messages = [{"role": "user", "content": f"{PASSAGE}\n\n{QUESTION}"}]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    assert golden.context + golden.query == whole + CUE
    assert encode_context(PASSAGE, tokenizer) == encoded.context_ids and encode_query(QUESTION, tokenizer) == encoded.query_ids
    system = encode(BOOLQ, tokenizer, options=PromptOptions(system="Be brief."))
    assert text_of(tokenizer, system.context_ids) == golden.system and system.query_ids == encoded.query_ids


def test_contextual_prompts_without_a_template(family: str) -> None:
    tokenizer, golden = real(family), GOLDEN[family]
    encoded = encode(BOOLQ, tokenizer, style="base")  # the Llama models of the paper are base models
    assert text_of(tokenizer, encoded.context_ids) == f"{golden.bos}{PASSAGE}\n\n"
    assert text_of(tokenizer, encoded.query_ids) == f"{QUESTION}\n{CUE}"
    assert text_of(tokenizer, encoded.bare_query_ids) == f"{golden.bos}{QUESTION}\n{CUE}"


def test_general_tasks_take_no_template(family: str) -> None:
    tokenizer, golden = real(family), GOLDEN[family]
    encoded = encode(MMLU, tokenizer)
    assert text_of(tokenizer, encoded.context_ids) == f"{golden.bos}Question: What is 2 + 2?\nA. 3\nB. 4\nC. 5\nD. 6\n"
    assert text_of(tokenizer, encoded.query_ids) == "Answer:" and encoded.prompt_hash == golden.choice_hash
    assert [len(ids) for ids in encoded.candidate_ids] == [1, 1, 1, 1]
    encoded = encode(HELLASWAG, tokenizer)
    assert (
        text_of(tokenizer, encoded.context_ids) == f"{golden.bos}A woman lifts a bar. the"
        and text_of(tokenizer, encoded.query_ids) == " woman"
    )
    assert encoded.context_ids + encoded.query_ids == tuple(tokenizer.encode("A woman lifts a bar. the woman"))
    encoded = encode(WINOGRANDE, tokenizer)
    for ids, start, option in zip(encoded.candidate_ids, encoded.score_from, (" cup", " box"), strict=True):
        assert (text_of(tokenizer, ids[:start]), text_of(tokenizer, ids[start:])) == (option, " was too big.")


def test_one_bos_and_control_tokens_as_single_ids(family: str) -> None:
    tokenizer, golden = real(family), GOLDEN[family]
    ids = encode(BOOLQ, tokenizer).context_ids + encode(BOOLQ, tokenizer).query_ids
    if golden.bos:
        assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.bos_token_id) == 1
    else:
        assert tokenizer.bos_token_id is None
    ends = {"qwen3": ("<|im_end|>", 1), "qwen2_5": ("<|im_end|>", 2), "llama3_1": ("<|eot_id|>", 1)}
    token, count = ends[family]
    assert tokenizer.eos_token == token and ids.count(tokenizer.convert_tokens_to_ids(token)) == count


def test_the_day_in_llamas_template_is_the_configured_one() -> None:
    """The package's Llama template prints no date; the later ones print today's in a system turn, which `LLAMA_DATED` reproduces."""
    from transformers import AutoTokenizer

    real("llama3_1")
    tokenizer = AutoTokenizer.from_pretrained(Path(os.environ[VARIABLE]) / "llama3_1")
    tokenizer.chat_template = LLAMA_DATED
    system = (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: {}\n\n<|eot_id|>"
    )
    for options, day in ((None, "26 Jul 2024"), (PromptOptions(date="2031-02-03"), "03 Feb 2031")):
        encoded = encode(BOOLQ, tokenizer, options=options)
        golden = GOLDEN["llama3_1"]
        assert text_of(tokenizer, encoded.context_ids) == system.format(day) + golden.context.removeprefix(golden.bos)
        assert text_of(tokenizer, encoded.query_ids) == golden.query


def test_truncation_with_a_real_vocabulary_keeps_whole_tokens(family: str) -> None:
    tokenizer = real(family)
    long = replace(BOOLQ, context=" ".join(f"Sentence {i} says näive things 北京." for i in range(300)))
    full = encode(long, tokenizer)
    for keeps in ("head", "tail"):
        cut = encode(long, tokenizer, options=PromptOptions(max_context_tokens=500, truncation_keeps=keeps))
        assert 490 <= len(cut.context_ids) <= 500 and cut.dropped_tokens == len(full.context_ids) - len(cut.context_ids)
        text = text_of(tokenizer, cut.context_ids)
        assert "�" not in text and text.endswith("\n\n") and cut.query_ids == full.query_ids


@pytest.mark.parametrize("name", REAL)
def test_real_rows_become_prompts(family: str, name: str) -> None:
    tokenizer = real(family)
    source = FolderSource(EXCERPTS, evaluation_split="validation", evaluation_splits=SPLITS)
    for example in load_examples(source, get_task(name), "evaluation"):
        encoded = encode(example, tokenizer)
        text = text_of(tokenizer, encoded.context_ids + (encoded.query_ids if not example.query else ()))
        assert example.context in text and encoded.dropped_tokens == 0 and len(encoded.query_ids) >= 1
        scored = [text_of(tokenizer, ids) for ids in encoded.candidate_ids]
        assert scored == [f" {candidate}{example.scored_suffix or ''}" for candidate in example.candidates]
