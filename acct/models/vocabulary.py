"""Whether two models share one token-to-id mapping (spec 7; paper A.1).

The mapping itself is compared, id by id. File hashes neither accept nor reject (the same mapping is written in many ways), and
ids that lie in range prove nothing. Rows of an embedding beyond the tokenizer (padding to a multiple) have no name and may differ.
"""

from __future__ import annotations

import hashlib
import json

from transformers import PreTrainedTokenizerBase

from acct.errors import VocabularyError


def tokens_by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Every id with its token, special and added tokens included."""
    return {index: token for token, index in tokenizer.get_vocab().items()}


def vocabulary_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 of the token-to-id mapping, equal for equal mappings however they are stored."""
    return hashlib.sha256(json.dumps(sorted(tokens_by_id(tokenizer).items())).encode()).hexdigest()


def compare_vocabularies(
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    source_name: str = "source",
    target_name: str = "target",
    source_rows: int | None = None,
    target_rows: int | None = None,
) -> int:
    """Demand one mapping.

    Args:
        source_name, target_name: for the message. source_rows, target_rows: embedding rows of the two models, when known.
    Returns:
        One more than the largest id.
    Raises:
        VocabularyError: names the first id at which the mappings differ and how many do, or an id without an embedding row.
    """
    source, target = tokens_by_id(source_tokenizer), tokens_by_id(target_tokenizer)
    differing = sorted(index for index in source.keys() | target.keys() if source.get(index) != target.get(index))
    if differing:
        first = differing[0]

        def named(mapping: dict[int, str]) -> str:
            return repr(mapping[first]) if first in mapping else "absent"

        raise VocabularyError(
            f"id {first} is {named(source)} in {source_name} and {named(target)} in {target_name} ({len(differing)} ids differ in all; "
            f"{len(source)} and {len(target)} tokens). A transfer needs one token-to-id mapping."
        )
    size = max(source, default=-1) + 1
    for name, rows in ((source_name, source_rows), (target_name, target_rows)):
        if rows is not None and rows < size:
            raise VocabularyError(
                f"id {size - 1} is {source[size - 1]!r} in the tokenizer, but {name} has only {rows} embedding rows. "
                "The tokenizer belongs to another model."
            )
    return size
