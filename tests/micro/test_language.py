"""Names, words and tokenizers of the invented world."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from acct.micro.language import BOS, ENDS, SPLITS, STARTS, UNKNOWN, WORDS, build_tokenizer, names, save_tokenizer


def test_no_name_is_in_two_splits_and_none_is_lost():
    chosen = [name for split in SPLITS for name in names(split)]
    assert len(chosen) == len(set(chosen)) == len(STARTS) * len(ENDS)
    assert all(len(names(split)) > 40 for split in SPLITS)


def test_unknown_split_names_the_known_ones():
    with pytest.raises(ValueError, match="train, validation, test"):
        names("dev")


def test_words_are_unique_and_fit_a_small_model():
    assert len(WORDS) == len(set(WORDS)) < 160


@pytest.mark.parametrize("chat", [True, False])
def test_a_saved_tokenizer_comes_back_the_same(tmp_path, chat):
    text = "The teacher of Tami is Rewen.\n\nQuestion: Who is the teacher of Tami?"
    save_tokenizer(chat, tmp_path)
    loaded, built = AutoTokenizer.from_pretrained(tmp_path), build_tokenizer(chat)
    assert loaded(text, add_special_tokens=False).input_ids == built(text, add_special_tokens=False).input_ids
    assert UNKNOWN not in built.convert_ids_to_tokens(built(text).input_ids)
    assert (loaded.chat_template is not None) == chat and loaded.eos_token == built.eos_token
    assert loaded.bos_token == (None if chat else BOS)


def test_a_name_is_two_tokens_and_reads_back_as_one_word():
    tokenizer = build_tokenizer(True)
    ids = tokenizer("Tami").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["Ta", "##mi"] and tokenizer.decode(ids) == "Tami"
