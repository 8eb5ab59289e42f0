"""Where tasks live on the model hub, and which of them only exist as a script under their first name (spec 8).

A script data set is Python code that builds the rows. The package `datasets` runs none since version 4, so three of the eleven are read
from converted copies: SearchQA in the form of the MRQA 2019 shared task (`acct.data.tasks.mrqa`), WikiHop and PIQA in their own fields.
`data.hub.<task>.path`, `.config`, `.evaluation` and `.revision` choose another copy.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class HubEntry:
    """One data set of the hub.

    Attributes:
        path: its name. config: one of its configurations, None for the default one. evaluation: the split that has labels and is not for
            training. revision: a commit, branch or tag of the data set, None for its newest state.
    """

    path: str
    config: str | None = None
    evaluation: str = "test"
    revision: str | None = None


@dataclass(frozen=True)
class ScriptSet:
    """A data set whose first home on the hub is a script.

    Attributes:
        path, config: its name there. fetch: the file that holds its rows, and where it is. make: how that becomes a file of a data folder.
    """

    path: str
    config: str | None
    fetch: str
    make: str


def default_hub() -> dict[str, HubEntry]:
    """The entries that are read unless the configuration says otherwise, by task."""
    return {
        "search_qa": HubEntry("lucadiliello/searchqa", None, "validation"),
        "trivia_qa": HubEntry("mandarjoshi/trivia_qa", "rc", "validation"),
        "boolq": HubEntry("google/boolq", None, "validation"),
        "race": HubEntry("ehovy/race", "all", "test"),
        "wiki_hop": HubEntry("community-datasets/qangaroo", "wikihop", "validation"),
        "pubmed_qa": HubEntry("qiaojin/PubMedQA", "pqa_labeled", "train"),
        "hellaswag": HubEntry("Rowan/hellaswag", None, "validation"),
        "winogrande": HubEntry("allenai/winogrande", "winogrande_xl", "validation"),
        "mmlu": HubEntry("cais/mmlu", "all", "test"),
        "piqa": HubEntry("baber/piqa", None, "validation"),
        "wikitext": HubEntry("Salesforce/wikitext", "wikitext-2-raw-v1", "test"),
        "squad": HubEntry("rajpurkar/squad", None, "validation"),
        "hotpot_qa": HubEntry("hotpotqa/hotpot_qa", "distractor", "validation"),
    }


HUB = default_hub()

SCRIPTS: dict[str, ScriptSet] = {
    "search_qa": ScriptSet(
        "kyunghyuncho/search_qa", "train_test_val", "data/train_test_val/{train,val,test}.zip of kyunghyuncho/search_qa",
        "one row a line with question, answer and search_results{snippets[], titles[]}; or SearchQA.jsonl.gz of the MRQA 2019 shared task, "
        "unpacked and renamed",
    ),
    "wiki_hop": ScriptSet(
        "QAngaroo/wiki_hop", "original", "qangaroo_v1.1.zip of qangaroo.cs.ucl.ac.uk, in it wikihop/train.json and wikihop/dev.json",
        "the file as it is, renamed to <split>.json",
    ),
    "piqa": ScriptSet(
        "ybisk/piqa", "plain_text", "physicaliqa-train-dev.zip of the PIQA authors, in it dev.jsonl and dev-labels.lst",
        "goal, sol1, sol2 and, from the other file, label",
    ),
}  # fmt: skip


def script_help(task: str, folder: str, split: str) -> str:
    """What to do about a script data set: another entry, or which file goes where.

    Args:
        folder: the task's folder below the data root. split: the split that was asked for.
    """
    entry, known = HUB.get(task), SCRIPTS.get(task)
    if known is None or entry is None:
        return (
            f"Name a converted copy by data.hub.{task}.path, or convert it once with `datasets` below 4, put it into {folder} as "
            f"{split}.parquet and set data.source=folder."
        )
    return (
        f"The converted copy {entry.path} loads: data.hub.{task}.path={entry.path} data.hub.{task}.config={entry.config or 'null'} "
        f"data.hub.{task}.evaluation={entry.evaluation}. Or {fetch_help(task, folder, split)} and set data.source=folder."
    )


def fetch_help(task: str, folder: str, split: str) -> str:
    """Which file to fetch for a task that has no rows of its own on the hub, and where it goes; "" for the other tasks."""
    known = SCRIPTS.get(task)
    return f"fetch {known.fetch}, and put it into {folder} as {split}.jsonl, .json or .parquet: {known.make}" if known else ""
