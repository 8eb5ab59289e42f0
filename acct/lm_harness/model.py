"""The registered lm-eval model `acct`: any method of this package answers lm-eval's requests (spec 8).

    acct lm-eval --model acct --model_args run=results/micro/micro_qwen3_small_to_large,method=acct --tasks acct_boolq --batch_size 16

Prompts are split into context and query by `acct.lm_harness.split`. Candidates of one document are scored under one mount, documents in
batches of similar length. What has no prompt (the first tokens of a rolling likelihood, unconditional candidates) has nothing to
transfer: the answering model reads it by itself, whatever the method is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.utils import simple_parse_args_string
from torch import Tensor

from acct.cache import MountedCache, mounted
from acct.config.root import Config
from acct.cpu import prepare_cpu
from acct.data.batches import length_sorted_batches, padded
from acct.data.prompts import EncodedExample
from acct.errors import ConfigError
from acct.evaluation.samples import Sample
from acct.evaluation.scoring import stop_ids
from acct.generation import greedy
from acct.likelihood import candidate_nll, token_nll
from acct.lm_harness.chat import chat_prompt
from acct.lm_harness.rules import GenerationRules, Rolling
from acct.lm_harness.settings import configuration
from acct.lm_harness.split import Splitter
from acct.methods.base import Mount, SparseMethod
from acct.methods.compressors.base import Compressor
from acct.methods.controls import WrongDocument
from acct.methods.prepared import Prepared
from acct.methods.references import SourceFull
from acct.methods.registry import get_method
from acct.models.pair import Pair
from acct.pipeline import Interface
from acct.progress import Progress
from acct.training.modules import load_interface
from acct.training.ridge import with_ridge
from acct.training.session import load_configured_pair, prompt_options


class AcctLM(LM):
    """A pair of frozen models, its interface and one method, behind lm-eval's three requests.

    Args:
        pair: both models. interface: the trained modules; may be None for methods that transfer nothing. config: prompts and limits.
        method: a name of `acct.methods.registry`. batch: documents run together. passage_field: see `Splitter`.
        rolling: windows of `loglikelihood_rolling`; None takes those of the task wikitext.
    Raises:
        ConfigError: the method does not run on this pair, or needs an interface that is not given.
    """

    def __init__(
        self, pair: Pair, interface: Interface | None, config: Config, method: str = "acct", batch: int | None = None,
        passage_field: str = "context", rolling: Rolling | None = None,
    ):  # fmt: skip
        super().__init__()
        self.pair, self.interface, self.config, self.method = pair, interface, config, get_method(method)
        reason = self.method.applicable(pair)
        if reason is not None:
            raise ConfigError(f"method={method} does not run on this pair: {reason}.")
        if interface is None and needs_interface(method):
            raise ConfigError(f"method={method} needs a trained interface: give run=<a folder that acct train has finished>.")
        evaluation = config.evaluation
        window, context = evaluation.wikitext_window_tokens, evaluation.wikitext_context_tokens
        self.batch, self.rolling = batch or evaluation.batch, rolling or Rolling(context, window - context)
        self.splitter = Splitter(pair.tokenizer, prompt_options(config), passage_field)
        self._device = self.answering.device

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> AcctLM:
        """Like `create_from_arg_obj`, from "name=value,name=value"."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> AcctLM:
        """Load what model arguments name.

        Args:
            arg_dict: method, passage_field, rolling_context_tokens and rolling_scored_tokens; the rest are settings
                (`acct.lm_harness.settings`).
            additional_config: lm-eval's own batch_size is used where it is a number. Its device is not: two models are placed by
                runtime.source_device, runtime.interface_device and runtime.target_device.
        """
        settings = dict(arg_dict)
        method, passage_field = str(settings.pop("method", "acct")), str(settings.pop("passage_field", "context"))
        windows = [settings.pop(f"rolling_{name}_tokens", None) for name in ("context", "scored")]
        config = configuration(settings)
        prepare_cpu(config.runtime)
        pair = load_configured_pair(config)
        interface = None
        if needs_interface(method):
            interface = with_ridge(load_interface(config, pair, compiles=get_method(method).compiles), config, pair, [method])
        batch = str((additional_config or {}).get("batch_size") or "")
        own = (config.evaluation.wikitext_context_tokens, config.evaluation.wikitext_window_tokens)
        rolling = Rolling(int(windows[0] or own[0]), int(windows[1] or own[1] - own[0]))
        return cls(pair, interface, config, method, int(batch) if batch.isdecimal() else None, passage_field, rolling)

    @property
    def answering(self) -> Any:
        """The model that gives the answers: the source for source_full, else the target."""
        return self.pair.source if isinstance(self.method, SourceFull) else self.pair.target

    @property
    def tokenizer_name(self) -> str:
        return str(self.pair.tokenizer.name_or_path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template's source, for lm-eval's request cache; "" without one."""
        return str(self.pair.tokenizer.chat_template or "") if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The prompt protocol of this package: a pinned date, thinking off, the cue as the beginning of the assistant's turn."""
        return chat_prompt(chat_history, self.pair.tokenizer, self.splitter.options)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation after its prompt, in nats, and whether greedy decoding would give it."""
        groups: dict[tuple[str, str | None], list[int]] = {}
        for index, request in enumerate(requests):
            prompt = request.args[0].rstrip()
            groups.setdefault((prompt, self.splitter.passage(request.doc, prompt, str(request.task_name))), []).append(index)
        examples = []
        for (prompt, passage), members in groups.items():  # blanks at a prompt's end belong to the continuation, as in lm-eval
            texts = [requests[index].args[0][len(prompt) :] + requests[index].args[1] for index in members]
            examples.append(self.splitter.encode(_name(requests[members[0]]), prompt, passage, texts))
        results: dict[int, tuple[float, bool]] = {}
        owners = list(groups.values())

        def score(mount: Mount, cache: MountedCache, chosen: list[int]) -> None:
            candidates = [[list(ids) for ids in examples[row].candidate_ids] for row in chosen]
            scored = candidate_nll(mount.adapter, cache, mount.query_ids, mount.query_lengths, candidates, measure=nll_and_greedy)
            for row, measured in zip(chosen, scored):
                for index, tokens in zip(owners[row], measured):
                    results[index] = (-float(tokens[:, 0].double().sum()), bool(tokens[:, 1].all()))
                    self.cache_hook.add_partial("loglikelihood", requests[index].args, results[index])

        self._run(examples, score, disable_tqdm)
        return [results[index] for index in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of each whole text. The first window follows BOS (EOS without one) and is read by the answering model itself;
        every later one is scored after the context before it."""
        examples: list[EncodedExample] = []
        owners: list[int] = []
        for index, request in enumerate(requests):
            windows = self._windows(_name(request), request.args[0])
            examples += windows
            owners += [index] * len(windows)
        sums = [0.0] * len(requests)

        def score(mount: Mount, cache: MountedCache, chosen: list[int]) -> None:
            candidates = [[list(examples[row].candidate_ids[0])] for row in chosen]
            scored = candidate_nll(mount.adapter, cache, mount.query_ids, mount.query_lengths, candidates)
            for row, (tokens,) in zip(chosen, scored):
                sums[owners[row]] -= float(tokens.double().sum())

        self._run(examples, score, disable_tqdm)
        for request, value in zip(requests, sums):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return sums

    def _windows(self, name: str, text: str) -> list[EncodedExample]:
        ids = [*self.splitter.prefix, *self.pair.tokenizer.encode(text, add_special_tokens=False, verbose=False)]
        step, found = self.rolling.scored_tokens, []
        for start in range(1, len(ids), step):
            scored = ids[start : start + step]
            before = ids[max(start - self.rolling.context_tokens, 0) : start]
            query = min(self.splitter.options.query_tokens, len(before) - 1)
            cut = (before[: len(before) - query], before[len(before) - query :]) if query else ([], before)
            found.append(self.splitter.cut(f"{name}/{start}", (), *cut, [scored]))
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The greedy continuation of each prompt, up to a stop token, one of `until`, or max_gen_toks (evaluation.max_new_tokens)."""
        rules = [GenerationRules.of(request.args[1], self.config.evaluation.max_new_tokens) for request in requests]
        examples = []
        for request in requests:
            prompt, task = request.args[0].rstrip(), str(request.task_name)
            examples.append(self.splitter.encode(_name(request), prompt, self.splitter.passage(request.doc, prompt, task)))
        answers: dict[int, str] = {}

        def answer(mount: Mount, cache: MountedCache, chosen: list[int]) -> None:
            stops, limit = stop_ids(mount.adapter, self.pair.tokenizer), max(rules[index].limit for index in chosen)
            tokens = greedy(mount.adapter, cache, mount.query_ids, mount.query_lengths, limit, stops).tokens
            for index, ids in zip(chosen, tokens):
                text = self.pair.tokenizer.decode(ids[: rules[index].limit], skip_special_tokens=True)
                answers[index] = rules[index].cut(text)
                self.cache_hook.add_partial("generate_until", requests[index].args, answers[index])

        self._run(examples, answer, disable_tqdm)
        return [answers[index] for index in range(len(requests))]

    def _run(self, examples: Sequence[EncodedExample], action: Callable[[Mount, MountedCache, list[int]], None], quiet: bool) -> None:
        """Call `action(mount, cache, indices)` for batches of similar length; examples without a context come in batches of their own."""
        kinds = [[i for i, example in enumerate(examples) if bool(example.context_ids) is read] for read in (True, False)]
        strangers: dict[int, EncodedExample | None] = {}
        if isinstance(self.method, WrongDocument):
            strangers = dict(zip(kinds[0], Sample("lm-eval", 1, "", False, tuple(examples[i] for i in kinds[0])).strangers()))
        label = f"lm-eval {self.method.name}"
        with torch.no_grad(), Progress(label, len(examples), every=self.config.runtime.progress_seconds, enabled=not quiet) as display:
            for indices in filter(None, kinds):
                for batch in length_sorted_batches([examples[i] for i in indices], self.batch):
                    chosen = [indices[place] for place in batch]
                    with self._mounted([examples[i] for i in chosen], [strangers.get(i) for i in chosen]) as (mount, cache):
                        action(mount, cache, chosen)
                    display.update(len(chosen))

    @contextmanager
    def _mounted(
        self, examples: Sequence[EncodedExample], strangers: Sequence[EncodedExample | None]
    ) -> Iterator[tuple[Mount, MountedCache]]:
        if examples[0].context_ids:
            evaluation = self.config.evaluation
            settings = {"seed": evaluation.seed, "compressors": evaluation.compressors, "observes": isinstance(self.method, Compressor)}
            prepared = Prepared(self.pair, self.interface, examples, strangers, **settings)  # type: ignore[arg-type]
            mount = self.method.mount(prepared)
        else:
            ids, lengths = padded([example.bare_query_ids for example in examples], self.pair.tokenizer.pad_token_id)
            mount = Mount(self.answering, None, ids.to(self.answering.device), lengths.to(self.answering.device))
        with mounted(mount.adapter, mount.context, batch=len(examples)) as cache:
            yield mount, cache


def needs_interface(method: str) -> bool:
    """Whether a method's states or positions come from trained modules."""
    return isinstance(get_method(method), SparseMethod)


def nll_and_greedy(logits: Tensor, targets: Tensor) -> Tensor:
    """[..., 2]: -log p of each target in nats, and 1 where it is the most likely token, else 0."""
    targets = targets.to(logits.device)
    return torch.stack([token_nll(logits, targets), (logits.argmax(dim=-1) == targets).float()], dim=-1)


def _name(request: Instance) -> str:
    return f"{request.task_name}/{request.doc_id}"
