"""The trained modules of a configuration: built for a pair, counted against their limits, and put together from a run's artifacts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acct.allocator.allocator import Allocator
from acct.allocator.budget import BudgetRule
from acct.cartographer import Cartographer, CartographerShape
from acct.compiler.bridge import Bridge, BridgeStatistics
from acct.compiler.capacity import CapacityPreset, ParameterCounts, bridge_parameters, check_limits, parameter_counts, preset
from acct.compiler.compiler import Compiler
from acct.compiler.embedding import EmbeddingStatistics
from acct.compiler.residual import Residual, ResidualShape
from acct.compiler.subspace import Subspace, subspace_geometry, subspace_inputs
from acct.config.root import Config
from acct.errors import ArtifactError
from acct.geometry import PairGeometry
from acct.kernels import check_installed
from acct.models.pair import Pair
from acct.pipeline import Interface
from acct.training.artifacts import Artifact, load_artifact
from acct.training.checkpoint import load_weights


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """Modules built inside start from weights that depend on the seed only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def capacity(config: Config, geometry: PairGeometry) -> CapacityPreset:
    """The preset of the pair with the configured overrides (spec 6)."""
    cartographer, compiler = config.cartographer, config.compiler
    return preset(
        geometry,
        model_width=cartographer.model_width, attention_width=cartographer.attention_width, embedding_width=cartographer.embedding_width,
        width=compiler.width, feed_forward_width=compiler.feed_forward_width, depth=compiler.depth, latents=compiler.latents,
    )  # fmt: skip


def cartographer_shape(config: Config, geometry: PairGeometry) -> CartographerShape:
    """Widths from the preset and its overrides, the rest as configured."""
    fields = ("query_slots", "dropout", "position_frequencies")
    units = geometry.source.layers * geometry.source.kv_heads if config.cartographer.utility_rows else 0
    own = {name: getattr(config.cartographer, name) for name in fields}
    return capacity(config, geometry).cartographer(**own, utility_units=units)


def residual_shape(config: Config, geometry: PairGeometry) -> ResidualShape:
    """Widths, depth and latents from the preset and its overrides, the rest as configured."""
    fields = ("head_width", "input_norm", "input_bias", "memory_norm", "latent_std", "branch_start", "norm_epsilon")
    return capacity(config, geometry).residual(geometry, **{name: getattr(config.compiler, name) for name in fields})


def configured_counts(config: Config, geometry: PairGeometry) -> ParameterCounts:
    """Closed forms of every module's parameters.

    Raises:
        ConfigError: see `bridge_reads`.
    """
    reads = len(bridge_reads(config, geometry)[0])
    counts = parameter_counts(geometry, cartographer_shape(config, geometry), residual_shape(config, geometry), reads)
    width = config.compiler.subspace_width
    if not width:
        return counts
    own = (subspace_inputs(geometry, config.compiler.subspace_tokens) + 1) * width
    return replace(counts, bridge=bridge_parameters(bridge_geometry(config, geometry)) + own)


def capacity_record(config: Config, geometry: PairGeometry) -> dict[str, Any]:
    """Exact counts, overrides and the outcome of the limits, for cards and provenance.

    Raises:
        ConfigError: a count exceeds its limit, or the Bridge reads more than there is.
    """
    counts = configured_counts(config, geometry)
    return check_limits(capacity(config, geometry), counts, config.cartographer.limit, config.compiler.limit).record()


def new_cartographer(config: Config, geometry: PairGeometry) -> Cartographer:
    """A Cartographer with initial weights, scored by the configured kernels.

    Raises:
        ConfigError: runtime.kernels names kernels that are not installed.
    """
    check_installed(config.runtime.kernels)
    with initial_weights(config.training.cartographer.seed):
        made = Cartographer(geometry, cartographer_shape(config, geometry))
    made.kernels = config.runtime.kernels
    return made


def new_embedding_statistics(config: Config, geometry: PairGeometry, device: torch.device) -> EmbeddingStatistics | None:
    """Empty statistics where W_E is to start from the data, None elsewhere."""
    if config.compiler.embedding_start == "random" or not config.compiler.residual:
        return None
    shape = residual_shape(config, geometry)
    return EmbeddingStatistics(
        (1 + shape.taps) * shape.source_hidden, 2 * shape.units * shape.head_dim, device, config.compiler.embedding_stride
    )


def relative_rates(residual: Residual, fitted: BridgeStatistics, embedding: EmbeddingStatistics | None) -> dict[str, Tensor]:
    """Factors on the steps of parameters whose inputs or outputs have a size of their own, so that one learning rate fits all of them.

    Those of W_p and zeta_p are in proportion to how far the native vectors of their unit vary (real models add biases of 100 to keys that
    vary by 1), those of W_E inverse to its inputs where these are known; the trunk's are 1.
    """
    keys, values = fitted.target_scale().to(residual.key_bias)[..., None]  # [unit, 1]
    found = {"key_readout": keys[..., None], "value_readout": values[..., None], "key_bias": keys, "value_bias": values}
    if embedding is not None:
        found["embedding.weight"] = (1 / embedding.source_scale().clamp(min=1e-6)).to(residual.key_bias)
    return found


@torch.no_grad()
def start_embedding(residual: Residual, statistics: EmbeddingStatistics, anchor: float = 0.0) -> None:
    """W_E and its bias from the data, the Compiler still equals the Bridge; under an anchor the final norm starts at sqrt(1 + anchor^2), so
    that the other coordinates of z start at unit scale."""
    weight, bias = statistics.solve(residual.shape.width, anchor=anchor)
    residual.embedding.weight.copy_(weight)
    residual.embedding.bias.copy_(bias)
    residual.final_norm.weight.fill_((1 + anchor**2) ** 0.5)


def new_residual(config: Config, geometry: PairGeometry) -> Residual:
    """A residual with initial weights; its output is zero."""
    with initial_weights(config.training.compiler.seed):
        return Residual(residual_shape(config, geometry))


def bridge_reads(config: Config, geometry: PairGeometry) -> tuple[tuple[int, ...], ...]:
    """The source vectors that the Bridge reads for every unit.

    Raises:
        ConfigError: compiler.bridge_layers exceeds the source's layers.
    """
    return bridge_geometry(config, geometry).source_reads(config.compiler.bridge_layers, config.compiler.bridge_heads)


def bridge_geometry(config: Config, geometry: PairGeometry) -> PairGeometry:
    """The pair as the Bridge sees it: of another source where it reads a subspace."""
    width = config.compiler.subspace_width
    return subspace_geometry(geometry, width) if width else geometry


def new_bridge(config: Config, geometry: PairGeometry) -> Bridge:
    """A Bridge of the configured shape, zero."""
    return Bridge(bridge_geometry(config, geometry), bridge_reads(config, geometry))


def new_subspace(config: Config, geometry: PairGeometry) -> Subspace | None:
    """What the Bridge reads, zero and without embeddings; None where it reads source vectors."""
    settings = config.compiler
    return Subspace(geometry, settings.subspace_width, settings.subspace_tokens) if settings.subspace_width else None


def new_compiler(config: Config, geometry: PairGeometry) -> Compiler:
    """A Compiler of the configured shape whose output is zero."""
    residual = new_residual(config, geometry) if config.compiler.residual else None
    return Compiler(new_bridge(config, geometry), residual, subspace=new_subspace(config, geometry))


def uses_cartographer(config: Config) -> bool:
    """Whether tokens are ranked by a learned score: not at retention 1, not with random orders."""
    return config.budget.retention < 1 and config.cartographer.ranking == "learned"


def utility_rows(config: Config) -> int:
    """At how many query positions the source's utilities are measured: none where nothing is ranked by a learned score."""
    return config.cartographer.utility_rows if uses_cartographer(config) else 0


def uses_allocator(config: Config) -> bool:
    """Whether counts are learned: not at retention 1, not with uniform capacity."""
    return config.budget.retention < 1 and config.allocator.capacities == "learned"


def make_interface(
    config: Config, geometry: PairGeometry, cartographer: Cartographer | None, allocator: Allocator | None, compiler: Compiler | None = None
) -> Interface:
    """The modules under the configured budget; without a Compiler only rankings, counts and selections can be asked for.

    Raises:
        ConfigError: runtime.kernels names kernels that are not installed.
    """
    check_installed(config.runtime.kernels)
    compiler = compiler or Compiler(new_bridge(config, geometry))
    compiler.kernels = config.runtime.kernels
    return Interface(
        compiler=compiler,
        rule=BudgetRule(config.budget.retention, config.budget.tail_tokens),
        cartographer=cartographer,
        allocator=allocator,
        ranking="random" if config.cartographer.ranking == "random" and config.budget.retention < 1 else "learned",
        seed=config.training.allocator.seed,
        utility_rows=utility_rows(config),
    )


def load_cartographer(config: Config, geometry: PairGeometry, artifact: Artifact, device: torch.device) -> Cartographer:
    """The trained Cartographer, frozen."""
    module = new_cartographer(config, geometry)
    load_weights(module, artifact.tensors, Path(artifact.kind))
    return module.to(device).eval().requires_grad_(False)


def load_allocator(geometry: PairGeometry, artifact: Artifact, device: torch.device) -> Allocator:
    """The trained Allocator, frozen."""
    module = Allocator(geometry.units)
    load_weights(module, artifact.tensors, Path(artifact.kind))
    return module.to(device).eval().requires_grad_(False)


def load_compiler(config: Config, geometry: PairGeometry, artifact: Artifact, device: torch.device) -> Compiler:
    """Bridge and residual, frozen."""
    module = new_compiler(config, geometry)
    load_weights(module, artifact.tensors, Path(artifact.kind))
    module.mapper = f"acct-compiler-{artifact.digest[:16]}"
    return module.to(device).eval().requires_grad_(False)


def load_interface(config: Config, pair: Pair, run: Path | str | None = None, compiles: bool = True) -> Interface:
    """The finished interface of a run folder, checked against the pair and the configuration.

    Args:
        run: another folder than config.paths.run. compiles: False does without the Compiler, which need not be trained then.
    Returns:
        The interface. With `paths.modules` the retention may be another than that of training, which `identity` then holds as
        "trained_retention"; without, or where both agree, it holds the stages' digests alone.
    Raises:
        ArtifactError: a stage is missing or damaged, or belongs to other models, another budget or another upstream stage.
    """
    lent = run is None and bool(config.paths.modules)
    run = Path(run if run is not None else config.paths.modules or config.paths.run)
    artifacts = {"compiler": load_artifact(run, "compiler")} if compiles else {}
    if uses_cartographer(config):
        artifacts["cartographer"] = load_artifact(run, "cartographer")
    if uses_allocator(config):
        artifacts["allocator"] = load_artifact(run, "allocator")
    expected = {
        "direction.source": pair.source.fingerprint,
        "direction.target": pair.target.fingerprint,
        "budget.retention": config.budget.retention,
        "budget.tail_tokens": config.budget.tail_tokens,
    }
    trained = {artifact.card["built_from"].get("budget.retention") for artifact in artifacts.values()}
    if lent:
        del expected["budget.retention"]
    for kind, artifact in artifacts.items():
        for name, value in expected.items():
            if artifact.card["built_from"].get(name) != value:
                raise ArtifactError(
                    f"{run / kind} was built with {name} = {artifact.card['built_from'].get(name)!r}, now it is {value!r}. "
                    "Take the run's own configuration, or train again; or lend modules of another retention: paths.modules=<run folder>."
                )
    for kind in ("cartographer", "allocator") if compiles else ():
        built_on = artifacts["compiler"].card["built_from"].get(f"artifact.{kind}")
        if kind in artifacts and built_on != artifacts[kind].digest:
            raise ArtifactError(f"{run}: the compiler was built on another {kind} than the one in the folder. Train the compiler again.")
    geometry, device = pair.geometry, pair.interface_device
    found = make_interface(
        config,
        geometry,
        load_cartographer(config, geometry, artifacts["cartographer"], device) if "cartographer" in artifacts else None,
        load_allocator(geometry, artifacts["allocator"], device) if "allocator" in artifacts else None,
        load_compiler(config, geometry, artifacts["compiler"], device) if compiles else None,
    )
    if found.compiler.subspace is not None:
        found.compiler.subspace.bind(pair.target.parts.embedding.weight)
    identity = {kind: artifact.digest for kind, artifact in artifacts.items()}
    if other := sorted(trained - {config.budget.retention}):
        identity["trained_retention"] = ", ".join(f"{value:g}" for value in other)
    return replace(found, identity=identity)
