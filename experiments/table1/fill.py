"""Copy the rendered Table 1 between the outcome markers of this folder's README: python experiments/table1/fill.py [table1.md]"""

from __future__ import annotations

import sys
from pathlib import Path

BEGIN, END = "<!-- outcome:begin -->\n", "<!-- outcome:end -->"


def filled(readme: str, table: str) -> str:
    """The README with the table as its outcome, headings two levels down."""
    head, rest = readme.split(BEGIN)
    _, tail = rest.split(END)
    body = "".join(f"##{line}" if line.startswith("#") else line for line in table.strip().splitlines(keepends=True))
    return f"{head}{BEGIN}{body}\n{END}{tail}"


def main() -> int:
    folder = Path(__file__).resolve().parent
    table = Path(sys.argv[1]) if len(sys.argv) > 1 else folder.parents[1] / "results/micro/tables/table1.md"
    if not table.is_file():
        print(f"{table} is not there. Make it first: make reproduce-table1.", file=sys.stderr)
        return 2
    readme = folder / "README.md"
    readme.write_text(filled(readme.read_text(encoding="utf-8"), table.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
