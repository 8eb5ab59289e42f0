"""The two question answering tasks of Table 1 on more test examples: python experiments/question_answering.py [--examples 300]

Needs the runs of `make reproduce-table1`; nothing is trained. Answers are kept in results/question_answering, and what is there is not
asked again. Writes experiments/question_answering/table1.csv and the outcome of its README: means over the six directions, and one
line a direction.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import pandas as pd
from collect import filled
from trained_runs import evaluate_again, tabulate

from acct.reporting.claims_render import table_line

FOLDER, RESULTS = Path(__file__).resolve().parent / "question_answering", Path("results/question_answering")
DIRECTIONS = [f"micro_{family}_{way}" for family in ("qwen3", "llama", "qwen2") for way in ("small_to_large", "large_to_small")]
TASKS, METHODS = ("search_qa", "trivia_qa"), ("target_full", "acct", "no_context", "native_kv", "random", "bridge_only")


def rendered(table: pd.DataFrame) -> str:
    """F1 with its interval by direction, task and method, and the unweighted means over the directions."""
    lines = [table_line(["direction", "task", "examples", *METHODS]), table_line(["---", "---", *["---:"] * (1 + len(METHODS))])]
    for (direction, task), part in table.groupby(["direction", "task"], sort=False):
        own = part.set_index("method")
        cells = [f"{own.value[m]:.1f} [{own.lower[m]:.1f}, {own.upper[m]:.1f}]" for m in METHODS]
        lines.append(table_line([direction, task, str(own.examples.iloc[0]), *cells]))
    for task, part in table.groupby("task", sort=False):
        means = part.groupby("method").value.mean()
        lines.append(table_line(["mean", task, str(part[part.method == "acct"].examples.sum()), *(f"{means[m]:.1f}" for m in METHODS)]))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=300, help="test examples of each task and direction")
    args = parser.parse_args()
    for direction in DIRECTIONS:
        evaluate_again(direction, RESULTS, TASKS, METHODS, args.examples)
    tabulate(RESULTS)
    text = collected()
    print(text)
    return 0


def collected() -> str:
    """The outcome of the README and the CSV beside it, from the tables that are there."""
    table = pd.read_csv(RESULTS / "micro/tables/table1.csv")
    table = table[table.task.isin(TASKS) & table.method.isin(METHODS)]
    FOLDER.mkdir(exist_ok=True)
    shutil.copyfile(RESULTS / "micro/tables/table1.csv", FOLDER / "table1.csv")
    notes = (RESULTS / "micro/tables/table1.md").read_text(encoding="utf-8")
    names = ("- SearchQA: ", "- TriviaQA: ")
    summary = [line for line in notes.splitlines() if line.startswith(names) and not line.endswith("(not run)")]
    readme, text = FOLDER / "README.md", "\n".join([rendered(table), "", *summary])
    readme.write_text(filled(readme.read_text(encoding="utf-8"), text), encoding="utf-8")
    return text


if __name__ == "__main__":
    sys.exit(main())
