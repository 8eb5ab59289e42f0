"""What every stage needs: the pair, the encoded examples, the run folder, where metrics go. Built once from a configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from acct.allocator.budget import BudgetRule
from acct.config.root import Config
from acct.config.training import STAGES, StageConfig
from acct.cpu import prepare_cpu
from acct.data.batches import collate
from acct.data.manifest import draw
from acct.data.prompts import EncodedExample, PromptOptions, check_window, encode, prompt_style
from acct.data.source import DataSource, FolderSource, HubSource, load_examples
from acct.data.tasks.registry import get_task
from acct.locations import ensure_data, resolve_direction
from acct.models.pair import Pair, load_pair
from acct.provenance import Provenance
from acct.state_cache import StateCache
from acct.state_store import StateStore
from acct.tracking import Tracker, open_tracker
from acct.training.modules import utility_rows
from acct.training.parallel import Parallel
from acct.types import SourceStates, TokenBatch


def prompt_options(config: Config) -> PromptOptions:
    """The configured prompt options."""
    return PromptOptions(**asdict(config.prompts))


def load_configured_pair(config: Config) -> Pair:
    """Both models of the configured direction, placed and frozen."""
    runtime = config.runtime
    source, target = resolve_direction(config)
    return load_pair(
        source, target, dtype=runtime.dtype, source_device=runtime.source_device,
        interface_device=runtime.interface_device, target_device=runtime.target_device, target_device_map=runtime.target_device_map,
    )  # fmt: skip


def style_of(config: Config, tokenizer: Any) -> str:
    """ "chat" or "base": as configured, or by the tokenizer."""
    return prompt_style(tokenizer) if config.direction.prompts == "auto" else config.direction.prompts


def data_source(config: Config) -> DataSource:
    """Where rows come from: the folder paths.data, or the hub."""
    data, root = config.data, Path(config.paths.data)
    if data.source == "hub":
        return HubSource(data.hub, root)
    if data.evaluation_split == "hub":  # sets that are not there have a test split
        return FolderSource(root, data.folders, "test", {task: entry.evaluation for task, entry in data.hub.items()})
    return FolderSource(root, data.folders, data.evaluation_split)


def check_windows(pair: Pair, examples: Sequence[EncodedExample], answer_tokens: int = 0) -> None:
    """Refuse examples that are longer than what either model was made for, before anything runs on them (`check_window`)."""
    for name, adapter in (("source", pair.source), ("target", pair.target)):
        check_window(examples, adapter.model.config.max_position_embeddings, name, answer_tokens)


def task_fields(config: Config) -> dict[str, dict[str, Any]]:
    """The configured fields of the tasks that have some."""
    evaluation = config.evaluation
    return {
        "search_qa": {"titles": evaluation.search_qa_titles},
        "trivia_qa": {"passages": evaluation.trivia_qa_passages},
        "wikitext": {
            "window_tokens": evaluation.wikitext_window_tokens, "context_tokens": evaluation.wikitext_context_tokens,
            "separate_articles": evaluation.wikitext_separate_articles,
        },
    }  # fmt: skip


@dataclass(frozen=True)
class Examples:
    """Encoded examples of one split, in the manifest's order: a smaller stage takes the first ones."""

    items: tuple[EncodedExample, ...]
    pad_id: int | None

    def __len__(self) -> int:
        return len(self.items)

    def first(self, count: int) -> Examples:
        return Examples(self.items[:count], self.pad_id)

    def digest(self) -> str:
        """SHA-256 over ids, prompts and answers, in order."""
        found = hashlib.sha256()
        for item in self.items:
            found.update(f"{item.id} {item.prompt_hash} {list(item.answer_ids)}\n".encode())
        return found.hexdigest()

    def further_digest(self) -> str:
        """SHA-256 over the further questions of every example, in order."""
        return hashlib.sha256(json.dumps([item.further for item in self.items]).encode()).hexdigest()

    def lengths(self) -> list[int]:
        """Context and query tokens of each example."""
        return [len(item.context_ids) + len(item.query_ids) for item in self.items]

    def batch(self, indices: Sequence[int]) -> TokenBatch:
        """Token ids of context and query; no answers."""
        return collate([self.items[index] for index in indices], self.pad_id)

    def turn(self, index: int, epoch: int, most: int) -> tuple[int, ...] | None:
        """What is asked of an example in an epoch, when at most `most` of its further questions take turns with its own.

        Returns:
            Ids of the question and of its answer; None for its own question.
        """
        further = self.items[index].further[:most]
        turn = epoch % (len(further) + 1)
        return sum(further[turn - 1], ()) if turn else None

    def answers(self, indices: Sequence[int], limit: int) -> list[list[int]]:
        """The canonical answer's ids, at most `limit`; read by the target's loss only."""
        return [list(self.items[index].answer_ids[:limit]) for index in indices]


@dataclass
class Session:
    """One run: configuration and everything that its stages share."""

    config: Config
    pair: Pair
    parallel: Parallel
    tracker: Tracker
    provenance: Provenance

    @property
    def run(self) -> Path:
        return Path(self.config.paths.run)

    @property
    def device(self) -> torch.device:
        """Where the trained modules live."""
        return self.pair.interface_device

    @cached_property
    def rule(self) -> BudgetRule:
        return BudgetRule(self.config.budget.retention, self.config.budget.tail_tokens)

    @cached_property
    def states(self) -> StateCache:
        """Reads states of the frozen models, from paths.state_cache where one is named."""
        folder, training = self.config.paths.state_cache, self.config.training
        return StateCache(StateStore(folder, training.state_cache_gigabytes, training.state_cache_dtype) if folder else None)

    def read_source(self, batch: TokenBatch) -> SourceStates:
        """The source's states over a batch, with its own utilities where the Cartographer reads them."""
        return self.states.source(self.pair.source, batch, utility_rows(self.config))

    def settings(self, stage: str) -> StageConfig:
        found: StageConfig = getattr(self.config.training, stage)
        return found

    @cached_property
    def train(self) -> Examples:
        """As many training examples as the largest stage asks for."""
        data, count = self.config.data, max(self.settings(stage).examples for stage in STAGES)
        further = {name: round(share * count) for name, share in data.also.items()}
        own = self._examples(data.dataset, data.split, count - sum(further.values()))
        others = [self._examples(name, data.split, more) for name, more in further.items() if more]
        return Examples(spread([own.items, *(other.items for other in others)]), own.pad_id)

    @cached_property
    def held_out(self) -> Examples:
        """Examples that are measured and never trained on."""
        count = max(self.settings(stage).held_out for stage in STAGES)
        data = self.config.data
        return self._examples(data.dataset, data.held_out_split, count) if count else Examples((), self.pair.tokenizer.pad_token_id)

    def _examples(self, dataset: str, split: str, count: int) -> Examples:
        data, tokenizer = self.config.data, self.pair.tokenizer
        fields = task_fields(self.config).get(dataset, {})
        task, style, options = get_task(dataset, **fields), style_of(self.config, tokenizer), prompt_options(self.config)
        if self.parallel.main:
            ensure_data(self.config, [dataset], [split])
        self.parallel.barrier()
        drawn = draw(load_examples(data_source(self.config), task, split, tokenizer), count, data.seed)
        items = tuple(encode(example, tokenizer, style, options) for example in drawn)
        check_windows(self.pair, items, max(len(item.answer_ids) for item in items))
        return Examples(items, tokenizer.pad_token_id)

    def base_identity(self, stage: str) -> dict[str, Any]:
        """What every stage's result depends on, field by field, in the order in which a difference is reported."""
        config, settings = self.config, self.settings(stage)
        identity: dict[str, Any] = {
            "direction.source": self.pair.source.fingerprint,
            "direction.target": self.pair.target.fingerprint,
            "runtime.dtype": config.runtime.dtype,
            "budget.retention": config.budget.retention,
            "budget.tail_tokens": config.budget.tail_tokens,
            "data.dataset": config.data.dataset,
            "data.split": config.data.split,
            "data.seed": config.data.seed,
            "direction.prompts": style_of(config, self.pair.tokenizer),
        }
        identity |= {"data.also": dict(config.data.also)} if config.data.also else {}
        identity |= {f"prompts.{name}": value for name, value in asdict(config.prompts).items()}
        identity |= {f"training.{stage}.{name}": value for name, value in asdict(settings).items() if name != "held_out"}
        if config.paths.state_cache and config.training.state_cache_dtype != "float32":  # stored states are then not those computed
            identity["training.state_cache_dtype"] = config.training.state_cache_dtype
        identity["data (ids, prompts and answers)"] = self.train.first(settings.examples).digest()
        return identity


def spread(lists: Sequence[Sequence[EncodedExample]]) -> tuple[EncodedExample, ...]:
    """Several lists as one in which each is spread evenly and keeps its order: the first n hold them in proportion."""
    places = [((place + 0.5) / len(items), number, place) for number, items in enumerate(lists) for place in range(len(items))]
    return tuple(lists[number][place] for _, number, place in sorted(places))


@contextmanager
def open_session(config: Config, record: bool = True) -> Iterator[Session]:
    """Load the pair and open the run folder; close the tracker on every way out.

    Args:
        record: keep provenance.json and metrics.jsonl; False writes nothing into the run folder.
    """
    prepare_cpu(config.runtime)
    parallel = Parallel(cpu=config.runtime.interface_device == "cpu")
    run = Path(config.paths.run)
    provenance = Provenance(run, enabled=record and parallel.main)
    if parallel.main:
        ensure_data(config, [config.data.dataset], [config.data.split])
        resolve_direction(config)  # tiny models are written by one process
    parallel.barrier()
    with provenance.phase("load"):
        pair = load_configured_pair(config)
    kind = "train" if config.stage == "all" else config.stage
    tracker = open_tracker(config, kind) if record and parallel.main else Tracker(None)
    provenance.note(
        {
            "direction": config.direction.name,
            "scale": config.scale,
            "source": {"name": config.direction.source, "fingerprint": pair.source.fingerprint},
            "target": {"name": config.direction.target, "fingerprint": pair.target.fingerprint},
            "processes": parallel.world,
            "seeds": {"data": config.data.seed, **{stage: getattr(config.training, stage).seed for stage in STAGES}},
        }
    )
    with tracker:
        yield Session(config, pair, parallel, tracker, provenance)
