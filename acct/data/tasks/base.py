"""What every task file gives, and the checks with which it reads a row of the hub's schema (spec 8)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from acct.data.examples import Example, Kind
from acct.errors import DataError

Metric = Literal["f1", "accuracy", "perplexity"]
_MISSING = object()


class Task(ABC):
    """One data set: how a row of its hub schema becomes an `Example`.

    Attributes:
        name: registry name, also the folder name under the data root.
        version: raised with every change of the prompt text or of the scoring.
        metric, kind, contextual, default_examples: the row of the table in spec 8.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    metric: ClassVar[Metric]
    kind: ClassVar[Kind]
    contextual: ClassVar[bool]
    default_examples: ClassVar[int]

    @abstractmethod
    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        """The example of one row.

        Args:
            row: one row in the hub's field names. index: its number in the split, from 0; names the row in ids and errors.
        Raises:
            DataError: a field is missing, of another type, or outside its values; the row and the field are named.
        """

    def examples(self, rows: Sequence[Mapping[str, Any]], tokenizer: Any = None) -> list[Example]:
        """Every example of a split, in order. Only tasks that cut text into windows use the tokenizer."""
        return [self.from_row(row, index) for index, row in enumerate(rows)]

    def row(self, row: Mapping[str, Any], index: int) -> Row:
        return Row(self.name, row, index)

    def choice(self, row: Row, context: str, query: str, candidates: Sequence[str], gold: int, **more: Any) -> Example:
        """An example whose candidates are compared. `gold` must be an index into them."""
        return Example(
            id=more.get("id", row.id),
            task=self.name,
            kind="choice",
            context=context,
            query=query,
            answers=(candidates[gold],),
            candidates=tuple(candidates),
            gold=gold,
            scored_suffix=more.get("scored_suffix"),
            contextual=self.contextual,
        )


class QuestionAnswering(Task):
    """A question on a context whose answer is generated and scored by token F1."""

    metric = "f1"
    kind = "generate"
    contextual = True
    default_examples = 1000

    def answered(
        self, row: Row, context: str, answers: Sequence[str], id: str | None = None, further: Sequence[tuple[str, str]] = ()
    ) -> Example:
        """The example of a row with its field `question`; blank and repeated answers are left out.

        Args:
            id: None takes the row's own `id` if it has one, else its number. further: other questions on the context, with their answers.
        Raises:
            DataError: no answer is left.
        """
        own, kept = row.optional("id") if id is None else None, [answer.strip() for answer in answers if answer.strip()]
        if not kept:
            raise row.error("answer", "at least one answer that is not blank", list(answers))
        return Example(
            id=id or (row.id if own is None else f"{self.name}/{own}"),
            task=self.name,
            kind="generate",
            context=context,
            query=as_question(row.text("question")),
            answers=tuple(dict.fromkeys(kept)),
            candidates=(),
            gold=None,
            scored_suffix=None,
            contextual=True,
            further=tuple((as_question(question), answer.strip()) for question, answer in further),
        )


class Row:
    """One row with checked access to its fields. Field paths are dotted: "search_results.snippets"."""

    def __init__(self, task: str, values: Mapping[str, Any], index: int):
        self.task, self.values, self.index = task, values, index
        if not isinstance(values, Mapping):
            raise DataError(f"{task}, row {index}: a row must be an object of named fields, got {type(values).__name__}.")

    @property
    def id(self) -> str:
        return f"{self.task}/{self.index:05d}"

    def error(self, path: str, expected: str, got: Any) -> DataError:
        shown = repr(got)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return DataError(
            f"{self.task}, row {self.index}, field {path!r}: expected {expected}, got {shown}. "
            f"Rows must have the field names of the hub's {self.task}."
        )

    def optional(self, path: str) -> Any:
        """The value at a dotted path, or None where a part of the path is absent."""
        value: Any = self.values
        for part in path.split("."):
            value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
            if value is _MISSING:
                return None
        return value

    def _present(self, path: str, expected: str) -> Any:
        value: Any = self.values
        for part in path.split("."):
            value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
            if value is _MISSING:
                found = ", ".join(sorted(map(str, self.values)))
                raise DataError(
                    f"{self.task}, row {self.index}, field {path!r}: expected {expected}, but it is missing (fields: {found}). "
                    f"Rows must have the field names of the hub's {self.task}."
                )
        return value

    def text(self, path: str, empty: bool = False) -> str:
        """A string; not blank unless `empty`."""
        value = self._present(path, "text")
        if not isinstance(value, str) or not (empty or value.strip()):
            raise self.error(path, "text" if empty else "text that is not empty", value)
        return value

    def texts(self, path: str, length: int | None = None, nulls: bool = False, fill: str | None = None) -> list[str]:
        """A list of strings, of the given length when one is given; null entries are left out with `nulls`, or replaced by `fill`."""
        expected = "a list of texts" if length is None else f"a list of {length} texts"
        value = self._present(path, expected)
        if (nulls or fill is not None) and isinstance(value, Sequence) and not isinstance(value, str):
            value = [fill if item is None else item for item in value if item is not None or fill is not None]
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not all(isinstance(item, str) for item in value):
            raise self.error(path, expected, value)
        if length is not None and len(value) != length:
            raise self.error(path, expected, value)
        return list(value)

    def items(self, path: str) -> list[Any]:
        """A list of anything; the caller checks what is in it."""
        value = self._present(path, "a list")
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise self.error(path, "a list", value)
        return list(value)

    def truth(self, path: str) -> bool:
        value = self._present(path, "true or false")
        if not isinstance(value, bool):
            raise self.error(path, "true or false", value)
        return value

    def label(self, path: str, count: int, first: int = 0) -> int:
        """A class label in [first, first + count), as an integer or as its digits; returned from 0."""
        expected = f"a label {first}..{first + count - 1}"
        value = self._present(path, expected)
        number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
        if isinstance(number, bool) or not isinstance(number, int) or not first <= number < first + count:
            raise self.error(path, expected, value)
        return number - first

    def one_of(self, path: str, values: Sequence[str]) -> int:
        """Index of a text among the allowed ones."""
        value = self._present(path, "one of " + ", ".join(values))
        if value not in values:
            raise self.error(path, "one of " + ", ".join(values), value)
        return list(values).index(value)


def as_question(text: str) -> str:
    """ "Question: ...?" for the contextual tasks: the question mark is ensured; a closing full stop gives way to it.

    A cloze sentence (with "_") is left as it is: it asks for its blank, and a question mark would change the sentence.
    """
    text = " ".join(text.split())
    if not text.endswith("?") and "_" not in text:
        text = text.rstrip(" .") + "?"
    return f"Question: {text}"


def joined(passages: Sequence[str]) -> str:
    """Passages one below the other, blank ones left out."""
    return "\n".join(passage.strip() for passage in passages if passage.strip())
