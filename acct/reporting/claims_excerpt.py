"""The ledger in a document: what the committed figures say, between two markers.

    python -m acct.reporting.claims_excerpt experiments/table1/table1.csv README.md

rewrites the block of a document. The committed CSV keeps figures without their draws, so the excerpt shows no intervals of differences:
`acct claims` does, from records.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from acct.errors import AcctError, ArtifactError
from acct.reporting.claims import Entry, counts_line, ledger
from acct.reporting.claims_evidence import PointEvidence
from acct.reporting.claims_render import examples_text, measured_text
from acct.training.files import write_text

BEGIN, END = "<!-- claims:begin -->\n", "<!-- claims:end -->"


def excerpt(path: Path | str, scale: str = "micro") -> str:
    """Claims that the CSV of a table can speak about, and how many of all there are, as Markdown.

    Raises:
        ArtifactError: no such file, or one with other columns.
    """
    if not Path(path).is_file():
        raise ArtifactError(f"{path} does not exist. Give the long CSV that `acct tables` writes.")
    entries = ledger(PointEvidence(path, scale))
    shown = [entry for entry in entries if entry.measured.complete or (entry.beside is not None and entry.beside.complete)]
    rows = ["| claim of the paper | place | claimed | seen | n | there |", "|---|---|---|---|---|---|", *map(_row, shown)]
    return "\n".join([*rows, "", counts_line(entries), ""])


def _row(entry: Entry) -> str:
    measured = entry.measured if entry.measured.complete else entry.beside
    verdict = entry.verdict if entry.measured.complete else entry.beside_verdict
    claim = entry.claim
    return f"| {claim.claim} | {claim.place} | {claim.claimed} | {measured_text(measured)} | {examples_text(measured)} | {verdict} |"


def filled(document: str, text: str) -> str:
    """The document with its block replaced.

    Raises:
        ArtifactError: the markers do not stand there once each, in order.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ArtifactError(f"the document must hold {BEGIN.strip()} and {END} once each, in this order.")
    return before + BEGIN + text + END + after


def main(arguments: Sequence[str]) -> int:
    """Fill a document from a CSV; returns the exit code."""
    if len(arguments) != 2:
        print("usage: python -m acct.reporting.claims_excerpt <table1.csv> <document.md>", file=sys.stderr)
        return 2
    try:
        document = Path(arguments[1])
        write_text(document, filled(document.read_text(encoding="utf-8"), excerpt(arguments[0])))
    except AcctError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
