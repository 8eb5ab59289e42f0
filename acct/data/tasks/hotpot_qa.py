"""HotpotQA: a question that needs two of ten paragraphs; the answer is generated, token F1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import QuestionAnswering, joined


class HotpotQA(QuestionAnswering):
    """Hub rows (`hotpotqa/hotpot_qa`, config distractor): id, question, answer, context{title[], sentences[][]}.

    One paragraph a line, its title before a colon, in the row's order, which hides the supporting ones. [ours]
    """

    name = "hotpot_qa"

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        titles, paragraphs = fields.texts("context.title"), fields.items("context.sentences")
        if not paragraphs or len(paragraphs) != len(titles) or not all(_is_texts(one) for one in paragraphs):
            raise fields.error("context.sentences", f"one list of sentences for each of {len(titles)} titles", paragraphs)
        context = joined([f"{title}: {' '.join(s.strip() for s in sentences)}" for title, sentences in zip(titles, paragraphs)])
        return self.answered(fields, context, [fields.text("answer")])


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
