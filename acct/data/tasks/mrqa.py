"""Rows in the form of the MRQA 2019 shared task: one context with marks, one or more questions on it.

Three shapes are met: the shared task's own files ({context, qas[{qid, question, answers[]}]}, after a line that holds only a header), the
hub's collection of all its sets ({subset, context, qid, question, answers[]}) and copies of one set ({key, context, question, answers[]}).
The context is "[DOC] [TLE] title [PAR] text [PAR] text [DOC] ...": page, title, paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acct.data.tasks.base import Row, joined

_MARK = re.compile(r"\[(DOC|TLE|PAR|SEP)\]")
_NAMES = ("qid", "key", "id")


def is_mrqa(row: Any) -> bool:
    """Whether a row has the shared task's fields and not the hub schema's own."""
    return isinstance(row, Mapping) and "context" in row and "search_results" not in row


def flattened(rows: Sequence[Mapping[str, Any]], subset: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Every question as a row of its own, with the number of the row that it stands in.

    Args:
        subset: rows of the collection that name another subset are left out; the header line too. Other rows pass as they are.
    """
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping) or "search_results" in row:
            yield index, row
            continue
        if set(row) == {"header"} or row.get("subset", subset) != subset:
            continue
        questions = row.get("qas")
        if isinstance(questions, Sequence) and not isinstance(questions, str):
            for question in questions:
                yield index, {"context": row.get("context"), **question} if isinstance(question, Mapping) else question
        else:
            yield index, row


def passages(text: str, titles: bool) -> str:
    """The paragraphs of a marked context, one a line; the titles before their paragraphs, or not at all. Text without marks stays."""
    pieces = _MARK.split(text)
    found = [pieces[0]]
    found += [piece for mark, piece in zip(pieces[1::2], pieces[2::2]) if titles or mark != "TLE"]
    return joined(found)


def own_id(fields: Row) -> str:
    """The question's own name, or the row's number where it has none."""
    names = (fields.optional(name) for name in _NAMES)
    own = next((name for name in names if isinstance(name, str) and name), None)
    return fields.id if own is None else f"{fields.task}/{own}"


def accepted(fields: Row) -> tuple[str, ...]:
    """The accepted answers, each once, the first one canonical."""
    answers = tuple(dict.fromkeys(answer.strip() for answer in fields.texts("answers") if answer.strip()))
    if not answers:
        raise fields.error("answers", "at least one answer that is not empty", fields.optional("answers"))
    return answers
