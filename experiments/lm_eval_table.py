"""lm-eval on runs that are trained, both ways: python experiments/lm_eval_table.py [direction ...]

    lm-eval's command    every method answers the six contextual tasks (`acct_contextual`) as lm-eval's model `acct`
    lm-eval's tasks      `acct evaluate data.tasks_from=lm_eval` answers the five general ones from lm-eval's own prompts

Needs the runs of `make reproduce-table1`. Answers are kept in results/lm_eval, and what is there is not asked again. Writes
experiments/lm_eval/lm_eval.csv and the outcome of its README: one table a direction, Table 1's own figure beside each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from collect import filled
from trained_runs import acct, evaluate_again, tabulate

from acct.reporting.claims_render import table_line

FOLDER, RESULTS = Path(__file__).resolve().parent / "lm_eval", Path("results/lm_eval")
DIRECTIONS = ("micro_qwen3_small_to_large", "micro_qwen3_large_to_small")
METHODS = ("target_full", "acct", "no_context", "random", "bridge_only")
CONTEXTUAL = {
    "search_qa": "f1",
    "trivia_qa": "f1",
    "boolq": "acc_norm",
    "race": "acc_norm",
    "wiki_hop": "acc_norm",
    "pubmed_qa": "acc_norm",
}
GENERAL = ("hellaswag", "winogrande", "mmlu", "piqa", "wikitext")


def harness(direction: str, method: str, limit: int) -> list[dict[str, object]]:
    """lm-eval's command with one method as its model: score and standard error by task, in percent."""
    folder = RESULTS / "harness" / direction / f"{method}-{limit}"
    if not list(folder.rglob("results_*.json")):
        chat = ["--apply_chat_template"] if "llama" not in direction else []
        acct(
            "lm-eval", "--model", "acct", "--model_args", f"direction={direction},method={method}", "--tasks", "acct_contextual",
            "--batch_size", "16", "--limit", str(limit), "--output_path", str(folder), *chat,
        )  # fmt: skip
    document = json.loads(max(folder.rglob("results_*.json")).read_text(encoding="utf-8"))
    rows = []
    for task, metric in CONTEXTUAL.items():
        own, answered = document["results"][f"acct_{task}"], document["n-samples"][f"acct_{task}"]["effective"]
        rows.append(
            {"direction": direction, "way": "lm-eval's command", "task": task, "metric": metric, "method": method,
             "value": 100 * own[f"{metric},none"], "stderr": 100 * own[f"{metric}_stderr,none"], "examples": answered}
        )  # fmt: skip
    return rows


def own_evaluation(direction: str) -> list[dict[str, object]]:
    """lm-eval's prompts of the general tasks, answered and scored by this package."""
    table = pd.read_csv(RESULTS / "micro/tables/table1.csv")
    table = table[(table.direction == direction) & table.method.isin(METHODS)]
    found = table[["direction", "task", "metric", "method", "value", "examples"]].assign(way="lm-eval's tasks")
    return found.to_dict("records")


def rendered(table: pd.DataFrame, own: pd.DataFrame) -> str:
    """One Markdown table a direction and way: value, standard error where lm-eval gives one, Table 1's figure in brackets."""
    lines = []
    for (direction, way), part in table.groupby(["direction", "way"], sort=False):
        lines += [
            f"# {direction}, {way}",
            "",
            table_line(["task", "examples", *METHODS]),
            table_line(["---", *["---:"] * (1 + len(METHODS))]),
        ]
        for task, scores in part.groupby("task", sort=False):
            cells = []
            for method in METHODS:
                score = scores[scores.method == method].iloc[0]
                beside = own[(own.direction == direction) & (own.task == task) & (own.method == method)].value
                error = f" ± {score.stderr:.1f}" if pd.notna(score.stderr) else ""
                digits = 2 if task == "wikitext" else 1
                cells.append(f"{score.value:.{digits}f}{error}" + (f" ({beside.iloc[0]:.{digits}f})" if len(beside) else ""))
            lines.append(table_line([f"{task} ({scores.metric.iloc[0]})", str(scores.examples.iloc[0]), *cells]))
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directions", nargs="*", default=DIRECTIONS)
    parser.add_argument("--limit", type=int, default=100, help="most documents of a task for lm-eval's command, which has Table 1's")
    parser.add_argument("--examples", type=int, default=50, help="examples of each of lm-eval's tasks")
    args = parser.parse_args()
    for direction in args.directions:
        evaluate_again(direction, RESULTS, GENERAL, METHODS, args.examples, "data.tasks_from=lm_eval")
    tabulate(RESULTS)
    print(collected(args.directions, args.limit))
    return 0


def collected(directions: Sequence[str], limit: int) -> str:
    """The outcome of the README and the CSV beside it; what lm-eval's command has not answered is asked now."""
    rows = [line for direction in directions for method in METHODS for line in harness(direction, method, limit)]
    rows += [line for direction in directions for line in own_evaluation(direction)]
    table = pd.DataFrame(rows)
    FOLDER.mkdir(exist_ok=True)
    table.round(3).to_csv(FOLDER / "lm_eval.csv", index=False)
    readme = FOLDER / "README.md"
    text = rendered(table, pd.read_csv("results/micro/tables/table1.csv"))
    readme.write_text(filled(readme.read_text(encoding="utf-8"), text), encoding="utf-8")
    return text


if __name__ == "__main__":
    sys.exit(main())
