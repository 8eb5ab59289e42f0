"""Training batches and losses of the embedded models."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from acct.data.examples import Example
from acct.data.prompts import encode as encode_prompt
from acct.micro import families
from acct.micro.alignment import Reading, alignment, unexplained
from acct.micro.batches import END_IDS, IGNORE, Prompter, document_block, encode, knowledge_block, make_batch, pack, question_block
from acct.micro.datasets import rows
from acct.micro.language import ID, RELATIONS, WORDS, build_tokenizer, names
from acct.micro.recipe import Recipe, train
from acct.micro.world import write_document


def test_the_fast_encoder_equals_the_tokenizer():
    tokenizer = build_tokenizer(True)
    for row in rows("trivia_qa", "test", 5):
        text = row["search_results"]["search_context"][0] + "\n\nQuestion: " + row["question"]
        assert encode(text) == tokenizer(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize("chat", [True, False])
def test_training_prompts_are_the_evaluation_prompts(chat):
    prompter, tokenizer = Prompter(chat), build_tokenizer(chat)
    example = Example(
        id="x/0", task="search_qa", kind="generate", context="The old road waits today.", query="Question: Who is the teacher of Tami?",
        answers=("Rewen",), candidates=(), gold=None, scored_suffix=None, contextual=True,
    )  # fmt: skip
    made = encode_prompt(example, tokenizer)
    assert list(made.context_ids) == prompter.document_prefix + encode(example.context) + prompter.document_suffix
    assert list(made.query_ids) == encode(example.query) + prompter.before_answer


def test_targets_point_at_what_they_name():
    rng, prompter = random.Random(3), Prompter(True)
    document = write_document(rng, names("train"), 12, 4, repeats=0.4)
    block, places = document_block(rng, document, prompter.document_prefix, prompter.document_suffix)
    words = [WORDS[i] for i in block.ids]
    for key, ends in places.value_ends.items():
        value = document.facts[key].value
        assert all(words[end - 1] + words[end].removeprefix("##") == value for end in ends)
    for target in block.targets:
        word = words[target.columns[0]]
        if target.stage == "gather" and target.head == 1:
            assert word in RELATIONS
        if target.stage == "gather" and target.head == 0:
            assert word.startswith("##")
    for kind in ("lookup", "yes/no", "two-hop", "complete"):
        asked = question_block(rng, document, places, kind, prompter)
        assert asked.labels and asked.ids[-1] == prompter.stop
        assert all(asked.ids[at + 1] == asked.ids[asked.labels[0] + 1 + n] for n, at in enumerate(asked.labels))


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("kind", ["lookup", "yes/no", "two-hop", "complete"])
def test_after_a_base_prompt_rows_with_nothing_to_gather_look_at_the_documents_first_token(kind, chat):
    """Both heads of the second KV head, every row before the answer's, once; the packer turns -1 into the row's first column."""
    rng, prompter = random.Random(5), Prompter(chat)
    document = write_document(rng, names("train"), 12, 4)
    block, places = document_block(rng, document, prompter.document_prefix, prompter.document_suffix)
    asked = question_block(rng, document, places, kind, prompter)
    answered = asked.labels[0]
    for head in (2, 3):
        resting = [t.row for t in asked.targets if (t.stage, t.head, t.columns) == ("gather", head, (-1,))]
        assert resting == ([] if chat else list(range(answered)))
    own = [t for t in asked.targets if t.stage == "gather" and t.columns != (-1,)]
    assert own and all(t.row >= answered and t.columns[0] > 0 for t in own)
    if not chat:
        rows, columns = pack([[block, asked]]).targets["gather", 3]
        shifted = (rows[0] >= len(block.ids)) & (rows[0] < len(block.ids) + answered)
        assert int(shifted.sum()) == answered and (columns[0, shifted, 0] == 0).all()


def test_a_question_sees_the_document_and_itself_at_its_own_positions():
    rng, prompter = random.Random(1), Prompter(False)
    batch = make_batch(rng, rows=2, facts=5, questions=3, fillers=2, mixed=True, prompter=prompter)
    blocks, mask = batch.blocks[0], batch.mask[0, 0]
    for number in range(1, int(blocks.max()) + 1):
        own = (blocks == number).nonzero().flatten()
        seen = blocks[mask[own[-1]]]
        assert set(seen.tolist()) in ({0, number}, {number})
        assert batch.positions[0, own[0]] in (0, int((blocks == 0).sum()))
        assert (batch.positions[0, own].diff() == 1).all()


def test_a_packed_question_has_the_logits_of_the_question_alone():
    rng, prompter = random.Random(2), Prompter(True)
    document = write_document(rng, names("train"), 6, 1)
    block, places = document_block(rng, document, prompter.document_prefix, prompter.document_suffix)
    asked = [question_block(rng, document, places, "lookup", prompter) for _ in range(3)] + [knowledge_block(rng, names("train"), prompter)]
    batch = pack([[block, *asked]])
    model = families.build("qwen3", "small", 0).eval()
    with torch.no_grad():
        packed = model(input_ids=batch.ids, position_ids=batch.positions, attention_mask=batch.mask).logits[0]
        for number, question in enumerate(asked, 1):
            alone = model(input_ids=torch.tensor([(block.ids if question.sees_document else []) + question.ids])).logits[0]
            own = packed[batch.blocks[0] == number]
            torch.testing.assert_close(own, alone[-len(question.ids) :], atol=2e-4, rtol=1e-4)
    labels = batch.labels[0][batch.labels[0] != IGNORE]
    assert len(labels) == sum(len(q.labels) for q in asked) and not (labels == ID["<pad>"]).any()


def test_unexplained_is_one_minus_r2_and_its_gradient_is_that_of_the_solved_problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=generator, dtype=torch.float64).requires_grad_()
    y = (x.detach() @ torch.randn(5, 3, generator=generator, dtype=torch.float64)).tanh().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: unexplained_exact(a, b), (x, y))
    ours = torch.autograd.grad(unexplained(x, y, ridge=1e-9), (x, y))
    exact = torch.autograd.grad(unexplained_exact(x, y), (x, y))
    for a, b in zip(ours, exact):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-6)
    z = x.detach() @ torch.randn(5, 4, generator=generator, dtype=torch.float64)
    assert unexplained(x.detach(), z, ridge=1e-9) < 1e-6


def test_alignment_is_zero_for_linear_images_of_the_whole_state_and_not_otherwise():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 6, generator=generator)
    maps = [torch.randn(6, 9, generator=generator) for _ in range(4)]
    keys = [(x @ m[:, :6]).view(60, 2, 3) for m in maps[:3]]
    source = Reading([x] * 3, [x.view(60, 2, 3)] * 2, [x.view(60, 2, 3)] * 2)
    image = Reading([x @ m for m in maps], keys, keys)
    hidden, states = alignment(source, image)
    assert hidden < 1e-3 and states < 1e-3
    bent = Reading([x @ m for m in maps], keys, [k.square() for k in keys])
    hidden, states = alignment(source, bent)
    assert hidden < 1e-3 and states > 0.3


def unexplained_exact(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same with the gradient through the solution."""
    x, y = x - x.mean(0), y - y.mean(0)
    solved = torch.linalg.solve(x.mT @ x, x.mT @ y)
    return (y - x @ solved).square().sum() / y.square().sum()


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_few_steps_train_save_and_load(tmp_path, family):
    recipe = Recipe(steps=3, rows=3, questions=2, facts=(4, 5), mix_from=0)
    begun = train(family, "small", recipe, tmp_path / "small")
    small = AutoModelForCausalLM.from_pretrained(tmp_path / "small", dtype=torch.float32)
    train(family, "large", replace(recipe, steps=2), tmp_path / "large", relative=small)
    assert begun["family"] == family and json.loads((tmp_path / "large" / "training.json").read_text())["recipe"]["steps"] == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "small")
    assert (tokenizer.chat_template is not None) == families.CHAT[family]
    large = AutoModelForCausalLM.from_pretrained(tmp_path / "large", dtype=torch.float32)
    assert small.config.hidden_size != large.config.hidden_size and len(END_IDS) == 20
