"""Where the tokens of a text end, in characters: how text is cut at a token boundary."""

from __future__ import annotations

import re
from typing import Any

from acct.errors import InputError


def token_ends(text: str, tokenizer: Any) -> list[int]:
    """Character index just past each token of the text; tokens that are parts of one character have the same end.

    Args:
        text: any. tokenizer: a fast one; None takes words between blanks as tokens.
    Raises:
        InputError: the tokenizer gives no offsets.
    """
    if tokenizer is None:
        return [match.end() for match in re.finditer(r"\S+", text)]
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(f"cutting text needs a tokenizer that gives character offsets (a fast one), got {type(tokenizer).__name__}.")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [end for _, end in encoded["offset_mapping"]]
