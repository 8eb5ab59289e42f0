"""Vocabularies are compared token by token (cases row 26)."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from acct.errors import VocabularyError
from acct.models.vocabulary import compare_vocabularies, vocabulary_digest
from tests.tiny import tiny_tokenizer


def test_equal_mappings_pass_even_from_different_files(tmp_path: Path) -> None:
    first, second = tiny_tokenizer(), tiny_tokenizer()
    second.save_pretrained(tmp_path)
    written = tmp_path / "tokenizer.json"
    written.write_text(written.read_text() + "\n")  # other bytes, same mapping
    second = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert compare_vocabularies(first, second) == 61
    assert vocabulary_digest(first) == vocabulary_digest(second)


def test_equal_sizes_with_one_other_token_are_refused_by_name() -> None:
    with pytest.raises(VocabularyError, match=r"id 13 is 'w13' in A and 'v13' in B \(2 ids differ in all; 61 and 61 tokens\)"):
        compare_vocabularies(tiny_tokenizer(), tiny_tokenizer(names={40: "v40", 13: "v13"}), "A", "B")


def test_a_special_token_of_another_name_is_refused() -> None:
    with pytest.raises(VocabularyError, match="id 2 is '<eos>' in source and '<end>' in target"):
        compare_vocabularies(tiny_tokenizer(), tiny_tokenizer(names={2: "<end>"}))


def test_swapped_ids_are_refused_although_the_token_sets_agree() -> None:
    swapped = tiny_tokenizer(names={5: "w6", 6: "w5"})
    assert set(swapped.get_vocab()) == set(tiny_tokenizer().get_vocab())
    with pytest.raises(VocabularyError, match="id 5 is 'w5' in source and 'w6' in target"):
        compare_vocabularies(tiny_tokenizer(), swapped)


def test_a_longer_vocabulary_is_refused_and_added_tokens_count() -> None:
    with pytest.raises(VocabularyError, match="id 61 is absent in source and 'w61' in target"):
        compare_vocabularies(tiny_tokenizer(), tiny_tokenizer(62))
    added = tiny_tokenizer()
    added.add_special_tokens({"additional_special_tokens": ["<tool>"]})
    with pytest.raises(VocabularyError, match="id 61 is '<tool>' in source and absent in target"):
        compare_vocabularies(added, tiny_tokenizer())


def test_padding_rows_of_an_embedding_are_fine_but_missing_rows_are_not() -> None:
    assert compare_vocabularies(tiny_tokenizer(), tiny_tokenizer(), source_rows=64, target_rows=61) == 61
    with pytest.raises(VocabularyError, match="source has only 60 embedding rows"):
        compare_vocabularies(tiny_tokenizer(), tiny_tokenizer(), source_rows=60, target_rows=61)
