"""The eleven tasks of the tables by name (spec 8), and further ones. A new task is one file, one line here and one test."""

from __future__ import annotations

from typing import Any

from acct.data.tasks.base import Task
from acct.data.tasks.boolq import BoolQ
from acct.data.tasks.factbook_qa import FactbookQA
from acct.data.tasks.hellaswag import HellaSwag
from acct.data.tasks.hotpot_qa import HotpotQA
from acct.data.tasks.mmlu import MMLU
from acct.data.tasks.musique import MuSiQue
from acct.data.tasks.musique_steps import MuSiQueSteps
from acct.data.tasks.piqa import PIQA
from acct.data.tasks.pubmed_qa import PubMedQA
from acct.data.tasks.race import Race
from acct.data.tasks.search_qa import SearchQA
from acct.data.tasks.squad import SQuAD
from acct.data.tasks.text_cloze import TextCloze
from acct.data.tasks.trivia_qa import TriviaQA
from acct.data.tasks.wiki_hop import WikiHop
from acct.data.tasks.wikitext import WikiText
from acct.data.tasks.winogrande import WinoGrande
from acct.errors import UnknownName

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (SearchQA, TriviaQA, BoolQ, Race, WikiHop, PubMedQA, HellaSwag, WinoGrande, MMLU, PIQA, WikiText)
}
FURTHER: dict[str, type[Task]] = {task.name: task for task in (FactbookQA, SQuAD, HotpotQA, MuSiQue, MuSiQueSteps, TextCloze)}
"""Real text for real pairs; not in the paper's tables."""


def get_task(name: str, **fields: Any) -> Task:
    """A task by its registry name, with its fields where it has some (TriviaQA, WikiText)."""
    known = TASKS | FURTHER
    if name not in known:
        raise UnknownName("task", name, known)
    return known[name](**fields)
