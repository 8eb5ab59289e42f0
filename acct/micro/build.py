"""`make micro-models`: train the six embedded models from nothing, measure them, and say whether they can carry a comparison.

A family's large model needs its small one, so a family is one process; families run side by side, one CPU thread each. A model
whose folder is complete is kept, so a run that was interrupted goes on with the next model. Training writes to a folder of its own;
`--install` then replaces the weights that the package ships.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import logging
import multiprocessing
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from acct.micro.check import choice_accuracy, encoded, pair_linearity, question_answering_f1
from acct.micro.families import CHAT, FAMILIES, MODELS, SIZES
from acct.micro.recipe import recipe_of, train

log = logging.getLogger(__name__)
GENERATED = ("search_qa", "trivia_qa")
CONTEXTUAL = (*GENERATED, "boolq", "race", "wiki_hop", "pubmed_qa")
GENERAL = ("hellaswag", "winogrande", "mmlu", "piqa")
REQUIRED = {"large": (90.0, 15.0), "small": (70.0, 15.0)}  # F1 at least with the context, at most without


def load(family: str, size: str, root: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(root / f"{family}_{size}", dtype=torch.float32).eval()


def start_worker() -> None:
    """One CPU thread, progress on standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    torch.set_num_threads(1)


def train_family(family: str, root: Path) -> None:
    """The small model, then the large one grown out of it."""
    for size in SIZES:
        folder = root / f"{family}_{size}"
        if (folder / "training.json").is_file():
            log.info("%s is complete: kept", folder.name)
            continue
        train(family, size, recipe_of(family, size), folder, relative=load(family, "small", root) if size == "large" else None)


def measure(family: str, root: Path, examples: int = 400, fewer: int = 100) -> dict[str, Any]:
    """Answers of both sizes with the context and without, and how linear the pair is, per layer, on held-out documents.

    Args:
        examples: test examples of a contextual task with its context. fewer: of everything else.
    """
    models, chat = {size: load(family, size, root) for size in SIZES}, CHAT[family]
    record: dict[str, Any] = {"family": family, "examples": examples, "fewer": fewer, "tasks": {}, "linearity": {}}
    for task in (*CONTEXTUAL, *GENERAL):
        prompts = encoded(task, "test", examples if task in CONTEXTUAL else fewer, chat)
        for size, model in models.items():
            if task in GENERATED:
                scores = [question_answering_f1(model, prompts, chat, True), question_answering_f1(model, prompts[:fewer], chat, False)]
            else:
                scores = [choice_accuracy(model, prompts, True), choice_accuracy(model, prompts[:fewer], False)]
            record["tasks"].setdefault(task, {})[size] = {"with": round(scores[0], 2), "without": round(scores[1], 1)}
            log.info("%s_%s %s: %.1f with the context (%d), %.1f without", family, size, task, scores[0], len(prompts), scores[1])
    fit, held_out = encoded("search_qa", "train", 60, chat), encoded("search_qa", "test", 20, chat)
    for source, target in (("small", "large"), ("large", "small")):
        report = pair_linearity(models[source], models[target], fit, held_out)
        record["linearity"][f"{source}_to_{target}"] = {
            kind: {name: [round(v, 3) for v in values] for name, values in both.items()} for kind, both in report.items()
        }
    return record


def shortfalls(record: dict[str, Any]) -> list[str]:
    """What a family fails of what it must do."""
    found = []
    for task in GENERATED:
        for size, (least, most) in REQUIRED.items():
            scores = record["tasks"][task][size]
            if scores["with"] < least:
                found.append(f"{record['family']}_{size} answers {task} at {scores['with']} with the context; at least {least} is required")
            if scores["without"] > most:
                found.append(f"{record['family']}_{size} answers {task} at {scores['without']} without it; at most {most} is allowed")
    better = better_tasks(record)
    if 2 * len(better) <= len(CONTEXTUAL):
        found.append(f"{record['family']}_large is better than the small model on {len(better)} of {len(CONTEXTUAL)} contextual tasks only")
    return found


def better_tasks(record: dict[str, Any]) -> list[str]:
    """The contextual tasks that the large model answers better than the small one."""
    return [task for task in CONTEXTUAL if record["tasks"][task]["large"]["with"] > record["tasks"][task]["small"]["with"]]


def render(records: list[dict[str, Any]]) -> str:
    """Two Markdown tables: answers, and held-out R2 per target layer."""
    lines = ["| task | " + " | ".join(f"{r['family']} {size}" for r in records for size in SIZES) + " |"]
    lines.append("|---|" + "---|" * (len(records) * len(SIZES)))
    for task in (*CONTEXTUAL, *GENERAL):
        cells = [f"{r['tasks'][task][size]['with']:.1f} ({r['tasks'][task][size]['without']})" for r in records for size in SIZES]
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    first = records[0]
    lines += [
        "",
        f"F1 or accuracy in percent, without the context in brackets; {first['examples']} test examples of the first six tasks with the "
        f"context, {first['fewer']} of everything else.",
        "",
        "The large model is better than the small one on "
        + "; ".join(f"{len(better_tasks(r))} of {len(CONTEXTUAL)} contextual tasks ({r['family']})" for r in records)
        + ".",
        "",
    ]
    lines += ["| direction | from | of | held-out R2 per target layer | mean |", "|---|---|---|---|---|"]
    for r in records:
        for direction, kinds in r["linearity"].items():
            for kind, both in kinds.items():
                for name, values in both.items():
                    shown = " ".join(f"{v:.2f}" for v in values)
                    lines.append(f"| {r['family']} {direction} | {kind} | {name} | {shown} | {sum(values) / len(values):.3f} |")
    lines += ["", "bridge: the one source head that the Bridge reads; compiler: final layer and taps; all: every source layer."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=MODELS, help="folder of the six model folders (default: those of the package)")
    parser.add_argument("--install", action="store_true", help="copy what was trained into the package when it does what is required")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--jobs", type=int, default=2, help="families trained at once, one CPU thread each")
    parser.add_argument("--examples", type=int, default=400, help="test examples of each contextual task with its context")
    parser.add_argument("--fewer", type=int, default=100, help="test examples of the general tasks, and without a context")
    parser.add_argument("--check-only", action="store_true", help="measure the models that are there")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.jobs, mp_context=spawn, initializer=start_worker) as pool:
        if not args.check_only:
            list(pool.map(train_family, args.families, [args.out] * len(args.families)))
        fixed = functools.partial(measure, root=args.out, examples=args.examples, fewer=args.fewer)
        records = list(pool.map(fixed, args.families))
    (args.out / "measured.json").write_text(json.dumps(records, indent=1) + "\n")
    table = render(records)
    (args.out / "README.md").write_text("# The six embedded models, as measured by `make micro-check`\n\n" + table)
    print(table)
    wrong = [line for record in records for line in shortfalls(record)]
    if args.install and not wrong and args.out.resolve() != MODELS.resolve():
        shutil.copytree(args.out, MODELS, dirs_exist_ok=True)
    print("\n".join(["Short of what is required:", *wrong]) if wrong else "Every model does what is required of it.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
