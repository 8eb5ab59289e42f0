"""The library: one model has read a context, another answers from its states.

    transfer = ContextTransfer.from_pretrained("results/micro/micro_qwen3_small_to_large")
    states = transfer.read(context)                  # the source reads once; save and load them
    text = transfer.generate(states, query)          # the target reads the query only

Texts go through the contextual prompt protocol that the interface was trained with (`acct.data.prompts`); token ids are taken as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import OmegaConf

from acct.cache import mounted
from acct.config.root import Config
from acct.data.prompts import PromptOptions, encode_context, encode_query
from acct.errors import ArtifactError, ConfigError
from acct.generation import greedy, stop_tokens
from acct.likelihood import pad_ids
from acct.models.pair import Pair
from acct.pipeline import Interface, transfer
from acct.source import load_states, read_context, read_query, save_states
from acct.training.modules import load_interface
from acct.training.session import load_configured_pair, prompt_options, style_of
from acct.types import SourceStates, SparseKV

Text = str | Sequence[int]


@dataclass(frozen=True)
class ContextTransfer:
    """A trained interface with both of its frozen models.

    Attributes:
        pair: source and target. interface: Cartographer, Allocator, Compiler, budget. style, options: the prompt protocol.
    """

    pair: Pair
    interface: Interface
    style: str
    options: PromptOptions

    @classmethod
    def from_pretrained(cls, folder: Path | str, **overrides: Any) -> ContextTransfer:
        """Load a run folder that `acct train` has finished.

        Args:
            overrides: configuration values by dotted name, e.g. **{"runtime.target_device": "cuda:1"}.
        Raises:
            ArtifactError: a stage is missing, or was trained with other models than those that its configuration names now.
        """
        return cls.from_config(read_config(folder, overrides))

    @classmethod
    def from_config(cls, config: Config) -> ContextTransfer:
        """Load the interface of `config.paths.run` and the models of `config.direction`."""
        pair = load_configured_pair(config)
        interface = load_interface(config, pair)
        return cls(pair, interface, style_of(config, pair.tokenizer), prompt_options(config))

    def _ids(self, text: Text, encode: Any) -> list[int]:
        return list(encode(text, self.pair.tokenizer, self.style, self.options) if isinstance(text, str) else text)

    def read(self, context: Text) -> SourceStates:
        """What the source computes over a context; reusable under any query.

        Args:
            context: a text, or token ids including BOS or the template's head.
        Raises:
            InputError: the context is empty.
        """
        ids, lengths = pad_ids([self._ids(context, encode_context)])
        return read_context(self.pair.source, ids, lengths)

    def transfer(self, states: SourceStates, query: Text) -> SparseKV:
        """The target's keys and values for this context under this query, rotated: what it mounts.

        Raises:
            InputError: the query is empty. ArtifactError: the states are of another model.
        """
        return self._transfer(states, self._ids(query, encode_query))

    def _transfer(self, states: SourceStates, query_ids: list[int]) -> SparseKV:
        ids, lengths = pad_ids([query_ids])
        asked = read_query(self.pair.source, states, ids, lengths, self.interface.utility_rows)
        return transfer(self.pair, self.interface, asked.to(self.pair.interface_device))

    @torch.no_grad()
    def generate(self, states: SourceStates, query: Text, max_new_tokens: int = 32) -> str:
        """The target's greedy answer; it reads the query only, over the transferred states.

        Raises:
            InputError, ArtifactError: like `transfer`.
        """
        query_ids = self._ids(query, encode_query)
        kv, target = self._transfer(states, query_ids), self.pair.target
        ids, lengths = pad_ids([query_ids])
        with mounted(target, kv) as cache:
            answer = greedy(target, cache, ids, lengths, max_new_tokens, stop_tokens(target)).tokens[0]
        return str(self.pair.tokenizer.decode(answer, skip_special_tokens=True)).strip()

    @staticmethod
    def save(states: SourceStates, path: Path | str) -> None:
        """Write source states (safetensors), whole or not at all."""
        save_states(states, path)

    @staticmethod
    def load(path: Path | str) -> SourceStates:
        """Read source states, checked field by field."""
        return load_states(path)


def read_config(folder: Path | str, overrides: dict[str, Any] | None = None) -> Config:
    """The configuration that a run folder was trained with; its `paths.run` is the folder itself, wherever it lies now.

    Raises:
        ArtifactError: no config.yaml, or not one of this package. ConfigError: an override that no field has.
    """
    path = Path(folder) / "config.yaml"
    if not path.is_file():
        raise ArtifactError(f"{folder} holds no config.yaml: it is not a run folder. Train one (acct train), or correct the path.")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Config), yaml.safe_load(path.read_text(encoding="utf-8")))
    except Exception as error:
        raise ArtifactError(f"{path} is not a configuration of this package: {str(error).splitlines()[0]}") from error
    for name, value in {"paths.run": str(folder), **(overrides or {})}.items():
        try:
            OmegaConf.update(merged, name, value, force_add=False)
        except Exception as error:
            raise ConfigError(f"unknown or mistyped setting {name!r} = {value!r}: {str(error).splitlines()[0]}") from error
    config = OmegaConf.to_object(merged)
    assert isinstance(config, Config)
    return config
