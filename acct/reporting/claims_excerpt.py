"""The ledger in a document: the claims that the committed figures speak about, between two markers.

    python -m acct.reporting.claims_excerpt experiments/claims/claims.json README.md

rewrites the block of a document from what `acct claims` wrote.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acct.errors import AcctError, ArtifactError
from acct.json_files import read_json
from acct.reporting.claims_render import table_line
from acct.training.files import write_text

BEGIN, END = "<!-- claims:begin -->\n", "<!-- claims:end -->"
HEADS = ("claim of the paper", "place", "claimed", "seen", "n", "verdict")


def excerpt(path: Path | str) -> str:
    """Claims that were measured, on the paper's pairs or on embedded ones, and how many of all there are, as Markdown.

    Args:
        path: claims.json of a scale.
    Raises:
        ArtifactError: no such file, or one that `acct claims` has not written.
    """
    ledger = read_json(path, "Write it with `acct claims`.")
    try:
        rows = [_row(claim) for claim in ledger["claims"] if claim["value"] is not None or claim["beside_value"] is not None]
        counts = str(ledger["counts"])
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"{path} is no claims ledger: field {error} is missing. Write it again with `acct claims`.") from error
    return "\n".join([table_line(HEADS), table_line(["---"] * len(HEADS)), *rows, "", counts, ""])


def _row(claim: Mapping[str, Any]) -> str:
    own = claim["value"] is not None
    seen, examples = (claim["text"], claim["examples"]) if own else (claim["beside_text"], claim["beside_examples"])
    verdict = claim["verdict"] if own else f"{claim['beside_verdict']}, embedded pairs"
    return table_line([claim["claim"], claim["place"], claim["claimed"], seen, str(examples), verdict])


def filled(document: str, text: str, markers: tuple[str, str] = (BEGIN, END)) -> str:
    """The document with its block replaced.

    Args:
        markers: what stands before the block, its line end included, and behind it.
    Raises:
        ArtifactError: the markers do not stand there once each, in order.
    """
    before, begin, rest = document.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not begin or not end or begin in rest or end in after:
        raise ArtifactError(f"the document must hold {markers[0].strip()} and {markers[1]} once each, in this order.")
    return before + begin + text + end + after


def main(arguments: Sequence[str]) -> int:
    """Fill a document from a ledger; returns the exit code."""
    if len(arguments) != 2:
        print("usage: python -m acct.reporting.claims_excerpt <claims.json> <document.md>", file=sys.stderr)
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
