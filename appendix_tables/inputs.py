"""What every appendix table is computed from: the composed configuration, and the pairs of the chosen scale without weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property

import torch

from acct.allocator.allocator import Allocator
from acct.cli.plan import SIX
from acct.compiler.capacity import CapacityPreset, ParameterCounts, count_parameters
from acct.compiler.compiler import Compiler
from acct.config.root import Config, compose
from acct.geometry import PairGeometry
from acct.locations import resolve_direction
from acct.models.published import PublishedModel, published
from acct.provenance import describe
from acct.reporting.intervals import Bootstrap
from acct.training.files import hash_json
from acct.training.modules import capacity, configured_counts, new_bridge, new_cartographer, new_residual

ADDITIONAL: dict[str, tuple[str, ...]] = {
    "paper": ("qwen3_06b_to_4b", "qwen3_14b_to_4b", "qwen3_17b_to_14b", "qwen3_4b_to_14b", "qwen3_8b_to_14b"),
}
"""Appendix I: directions beyond the six, by scale; a scale that is not here has none."""


@dataclass(frozen=True)
class DirectedPair:
    """A direction by geometry alone.

    Attributes:
        name: of the direction. config: composed for it. source, target: from their configurations.
    """

    name: str
    config: Config
    source: PublishedModel
    target: PublishedModel

    @property
    def geometry(self) -> PairGeometry:
        return PairGeometry(self.source.geometry, self.target.geometry)

    @property
    def preset(self) -> CapacityPreset:
        """Widths by the capacity rule, with what the configuration overrides."""
        return capacity(self.config, self.geometry)

    @cached_property
    def counts(self) -> ParameterCounts:
        """Closed forms."""
        return configured_counts(self.config, self.geometry)

    @cached_property
    def instantiated(self) -> ParameterCounts:
        """The same, counted in modules built on the meta device: no memory, no initial values."""
        with torch.device("meta"):
            residual, bridge = new_residual(self.config, self.geometry), new_bridge(self.config, self.geometry)
            modules = (new_cartographer(self.config, self.geometry), Allocator(self.geometry.units), residual, bridge)
            whole = count_parameters(Compiler(bridge, residual))
        found = ParameterCounts(*map(count_parameters, modules))
        assert found.compiler == whole, "the Compiler has parameters beside its Bridge and its residual"
        return found


@dataclass(frozen=True)
class Inputs:
    """One scale.

    Attributes:
        overrides: of the command line, without a direction or an experiment. bootstrap: for tables of records.
    """

    overrides: tuple[str, ...]
    bootstrap: Bootstrap

    def composed(self, *more: str) -> Config:
        """The configuration with further overrides: another direction, an experiment."""
        return compose([*self.overrides, *more])

    @cached_property
    def config(self) -> Config:
        return self.composed()

    @property
    def directions(self) -> tuple[str, ...]:
        """The six of this scale."""
        return SIX[self.config.scale]

    @property
    def additional(self) -> tuple[str, ...]:
        return ADDITIONAL.get(self.config.scale, ())

    def pair(self, direction: str) -> DirectedPair:
        """A direction with both geometries.

        Raises:
            UnknownName: a model whose configuration is neither kept in the package nor in a folder.
        """
        config = self.composed(f"direction={direction}")
        source, target = (published(name) for name in resolve_direction(config))
        return DirectedPair(config.direction.name, config, source, target)

    @cached_property
    def pairs(self) -> tuple[DirectedPair, ...]:
        """The six directions."""
        return tuple(self.pair(name) for name in self.directions)

    def provenance(self, read: object, what: str) -> str:
        """The line under a table for which no model was run.

        Args:
            read: what it was computed from, as JSON values. what: the same in words.
        """
        here = describe()
        dirty = " (with local changes)" if here["dirty"] else ""
        versions = "; ".join(f"{name} {here['versions'][name]}" for name in ("torch", "transformers"))
        return f"Provenance: commit {str(here['commit'])[:12]}{dirty}; {versions}; no model was run; {what}, sha256 {hash_json(read)[:16]}"

    def geometry_provenance(self) -> str:
        """The line under tables of geometry."""
        read = [[pair.name, pair.source.digest, pair.target.digest, asdict(pair.preset)] for pair in self.pairs]
        return self.provenance(read, f"model configurations and capacity of scale={self.config.scale}")
