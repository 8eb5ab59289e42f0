"""Elements of the report page: text is escaped by default, and ids are handed out once."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

VOID = ("meta", "img", "br")


class Markup(str):
    """Text that is HTML already; every other string is escaped when it enters an element."""


def tag(name: str, /, *children: str | None, **attributes: str | int | bool | None) -> Markup:
    """An element.

    Args:
        children: escaped unless they are Markup; None is left out.
        attributes: `class_` and `data_x` become class and data-x; None and False are left out, True stands alone.
    """
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        written.append(f" {key}" if value is True else f' {key}="{html.escape(str(value), quote=True)}"')
    opening = f"<{name}{''.join(written)}>"
    if name in VOID:
        return Markup(opening)
    return Markup(f"{opening}{join(children)}</{name}>")


def join(children: Iterable[str | None]) -> Markup:
    """Children one after the other, escaped unless they are Markup."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children if child is not None))


class Ids:
    """Names for elements: readable, and no name twice on a page."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def new(self, text: str) -> str:
        """A new id made from a text."""
        base = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"
        while True:
            number = self._given[base] = self._given.get(base, 0) + 1
            name = base if number == 1 else f"{base}-{number}"
            if number == 1 or name not in self._given:
                self._given.setdefault(name, 1)
                return name


def grid(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], number_columns: Sequence[int] = (), kind: str | None = None
) -> Markup:
    """A table with a caption in a box of its own that scrolls sideways; the first column stays in view.

    Args:
        rows: cells as text, as Markup of the inside of a cell, or as a whole `td` (Markup that starts with "<td").
        number_columns: aligned to the right. kind: class of the table.
    """
    body = []
    for first, *rest in rows:
        found = [tag("th", first, scope="row")]
        for column, one in enumerate(rest, start=1):
            whole = isinstance(one, Markup) and one.startswith("<td")
            found.append(Markup(one) if whole else tag("td", one, class_="number" if column in number_columns else None))
        body.append(tag("tr", *found))
    head = tag("tr", *(tag("th", text, scope="col", class_="number" if n in number_columns else None) for n, text in enumerate(heads)))
    table = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body), class_=kind)
    return tag("div", table, class_="scroll", role="region", tabindex="0", aria_label=caption)


def folded(summary: str, *children: str, opened: bool = False) -> Markup:
    """A part that opens on a click."""
    return tag("details", tag("summary", summary), *children, open=opened)


def worded(text: str) -> Markup:
    """Plain text in which backticks set code."""
    return join(tag("code", part) if number % 2 else part for number, part in enumerate(text.split("`")))


def bullets(lines: Iterable[str]) -> Markup:
    """A list."""
    return tag("ul", *(tag("li", line) for line in lines))
