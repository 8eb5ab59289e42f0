"""The examples of one task, encoded for one pair, with what their records must say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acct.data.examples import Example
from acct.data.manifest import Manifest, ManifestFile, draw
from acct.data.prompts import EncodedExample, PromptOptions, PromptStyle, encode
from acct.data.source import EVALUATION, DataSource, load_examples
from acct.data.tasks.base import Task
from acct.data.tasks.registry import get_task


@dataclass(frozen=True)
class Sample:
    """What is scored of one task.

    Attributes:
        task, version, metric, contextual: of the task. examples: in the manifest's order.
    """

    task: str
    version: int
    metric: str
    contextual: bool
    examples: tuple[EncodedExample, ...]

    def digest(self) -> str:
        """16 hex digits over version, ids and prompts: records of another sample refuse to be continued."""
        content = [self.version, [[example.id, example.prompt_hash] for example in self.examples]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def strangers(self) -> list[EncodedExample | None]:
        """For each example another one whose context differs: the next in a cycle over the sample sorted by length.

        Neighbours in length are near in the batches too, and the choice does not depend on the batch size. None where all contexts
        are the same.
        """
        order = sorted(range(len(self.examples)), key=lambda i: -len(self.examples[i].context_ids))
        found: list[EncodedExample | None] = [None] * len(order)
        for place, index in enumerate(order):
            own = self.examples[index]
            others = (self.examples[order[(place + step) % len(order)]] for step in range(1, len(order)))
            found[index] = next((other for other in others if other.context_ids != own.context_ids), None)
        return found


def encode_sample(
    task: Task, examples: Sequence[Example], tokenizer: Any, style: PromptStyle | None = None, options: PromptOptions | None = None
) -> Sample:
    """Encode examples of one task with the target's tokenizer."""
    encoded = tuple(encode(example, tokenizer, style, options) for example in examples)
    return Sample(task.name, task.version, task.metric, task.contextual, encoded)


Loader = Callable[[DataSource, Task, str], list[Example]]


def sample_examples(
    source: DataSource,
    name: str,
    *,
    split: str = EVALUATION,
    count: int | None = None,
    counts: Mapping[str, int] | None = None,
    seed: int = 0,
    manifest: Manifest | ManifestFile | None = None,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
    loader: Loader = load_examples,
) -> tuple[Task, list[Example]]:
    """The task of a name and its fixed sample, before any tokenizer; arguments as in `load_samples`."""
    task = get_task(name, **(fields or {}).get(name, {}))
    examples = loader(source, task, split)
    wanted = (counts or {}).get(name, min(count or task.default_examples, task.default_examples))
    return task, draw(examples, wanted, seed) if manifest is None else manifest.select(name, task.version, examples, wanted)


def load_samples(
    source: DataSource,
    tasks: Sequence[str],
    tokenizer: Any,
    *,
    split: str = EVALUATION,
    count: int | None = None,
    counts: Mapping[str, int] | None = None,
    seed: int = 0,
    manifest: Manifest | ManifestFile | None = None,
    style: PromptStyle | None = None,
    options: PromptOptions | None = None,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
    loader: Loader = load_examples,
) -> dict[str, Sample]:
    """The fixed sample of every task: the same examples for every direction, smaller ones prefixes of larger ones.

    Args:
        count: examples of every task, never more than the task's own number (PubMedQA and WikiText: 500); None takes that number.
        counts: exceptions by task. seed: of the draw. manifest: the ids and hashes to hold to, a file also stores new ones; None draws.
        style, options: of the prompts. fields: of tasks that have some (windows of wikitext).
        loader: gives every example of a split; `acct.lm_harness.examples` has one that takes lm-eval's tasks.
    Raises:
        DataError: missing or malformed rows, or fewer examples than asked for.
    """
    samples = {}
    for name in tasks:
        task, chosen = sample_examples(
            source, name, split=split, count=count, counts=counts, seed=seed, manifest=manifest, fields=fields, loader=loader
        )
        samples[name] = encode_sample(task, chosen, tokenizer, style, options)
    return samples
