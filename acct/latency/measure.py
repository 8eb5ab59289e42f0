"""Time every stage of one direction at every length (spec 9, paper K): what `acct latency` runs in one process.

Three phases, so that only one of the two models has to be in memory: source prefill; conversion, and the linear maps on the same
states; target prefill and query steps. A length at which memory runs out, or whose prefill is faster than its operations allow, is left out
with the reason, and the sweep goes on.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache

from acct.allocator.budget import BudgetRule
from acct.cache import mounted
from acct.compiler.subspace import subspace_inputs
from acct.config.latency import CONVERSION
from acct.config.root import Config
from acct.errors import ConfigError, ModelError
from acct.geometry import PairGeometry
from acct.latency import counting
from acct.latency.ceilings import Ceilings, measure_ceilings
from acct.latency.clock import Clock, timed
from acct.latency.counting import Work
from acct.latency.forecast import Forecast
from acct.latency.memory import PeakMemory, is_out_of_memory
from acct.latency.placement import threads_here
from acct.latency.stages import (
    Conversion,
    Receiver,
    mounted_step,
    native_step,
    placed_interface,
    prompt,
    random_interface,
    random_ridge,
    random_states,
    refresh,
    target_prefill,
)  # fmt: skip
from acct.latency.weights import settings_of, timed_model
from acct.locations import resolve_direction
from acct.methods.ridge_map import ridge_name
from acct.models.adapter import ModelAdapter
from acct.models.pair import DTYPES, checked_device
from acct.models.published import configuration
from acct.source import read_source
from acct.training.modules import bridge_geometry, bridge_reads, cartographer_shape, residual_shape, utility_rows
from acct.types import SourceStates

logger = logging.getLogger(__name__)


@dataclass
class Sample:
    """Everything measured at one length.

    Attributes:
        clock: times by stage. work: operations and bytes by stage. mounted_bytes, ideal_bytes, conversion_peak_bytes: of one conversion.
        compile_ms: the first conversion at this length under torch.compile, which the warm-up calls follow; None without it.
    """

    tokens: int
    clock: Clock
    work: dict[str, Work] = field(default_factory=dict)
    mounted_bytes: int = 0
    ideal_bytes: int = 0
    conversion_peak_bytes: int = 0
    compile_ms: float | None = None


@dataclass(frozen=True)
class Measured:
    """One direction.

    Attributes:
        samples, growth: by length, complete ones only; growth has the conversion alone. ceilings: of the interface's and of the target's
            device, by "interface" and "target". skipped: lengths left out, with stage and reason.
    """

    geometry: PairGeometry
    samples: dict[int, Sample]
    growth: dict[int, Sample]
    ceilings: dict[str, Ceilings]
    skipped: list[dict[str, str | int]]


@contextmanager
def process_settings(threads: int | None, precision: str) -> Iterator[None]:
    """CPU threads and precision of float32 products inside the block."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(threads or before[0])
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])


class Suite:
    """The measurement of one direction; `run` does all of it.

    Args:
        config: of a direction whose names are published or lie in folders.
    Raises:
        ConfigError: a length beyond a model's window, or a device that is not here; before anything is timed.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.options = config, config.latency
        if config.runtime.target_device_map is not None and self.options.weights == "random":
            raise ConfigError("runtime.target_device_map spreads weights from files: set latency.weights=hub, or leave the map null.")
        self.names = resolve_direction(config)
        self.lengths = self.options.tokens(config.scale)
        self.growth_lengths = sorted(set(self.options.growth_tokens))
        longest = max([*self.lengths, *self.growth_lengths]) + self.options.query_tokens
        self.dtype = DTYPES[config.runtime.dtype]
        runtime = config.runtime
        devices = (runtime.source_device, runtime.interface_device, runtime.target_device)
        self.source_device, self.device, self.target_device = (checked_device(name) for name in devices)
        longest_read = max(self.lengths) + self.options.query_tokens
        self.longest = longest_read
        settings_of(self.names[0], longest_read, self.options.yarn)
        settings = settings_of(self.names[1], longest, self.options.yarn)
        receiver = Receiver.of(settings, self.dtype, self.target_device)
        source = Receiver.of(settings_of(self.names[0], longest_read, self.options.yarn), self.dtype, torch.device("cpu"))
        self.geometry = PairGeometry(source.geometry, receiver.geometry)
        asked = {"local": self.options.ridge_source_layers, "all": self.options.ridge_all_heads}
        own = [(m, heads) for heads, counts in asked.items() for m in sorted({min(count, source.geometry.layers) for count in counts})]
        self.ridges = {ridge_name(*one): one for one in own}
        self.inner = [counting.inner_width(configuration(name)) for name in self.names]
        self.rule = BudgetRule(config.budget.retention, config.budget.tail_tokens)
        interface = random_interface(config, self.geometry, runtime.seed)
        module_dtype = DTYPES[self.options.interface_dtype]
        backend = self.options.compile_backend if self.options.compile else None
        interface = placed_interface(interface, self.device, module_dtype, backend)
        self.conversion = Conversion(self.geometry, interface, receiver)
        self.generator = torch.Generator().manual_seed(runtime.seed)
        self.skipped: list[dict[str, str | int]] = []

    # ---- the phases ----

    @torch.no_grad()
    def run(self) -> Measured:
        """Time everything; lengths in ascending order within each phase."""
        options = self.options
        with process_settings(threads_here(options.threads), options.matmul_precision):
            ceilings = self._ceilings()
            growth = {tokens: self._sample(tokens) for tokens in self.growth_lengths}
            samples = {tokens: self._sample(tokens) for tokens in self.lengths}
            self.forecast = self._forecast(growth, samples)
            self._each("growth", growth, self._growth)
            source = self._model(0)
            self._each("source_prefill", samples, lambda sample: self._source(source, sample, ceilings))
            if options.inputs == "random":
                del source
                self._collect()
                self._each("conversion", samples, lambda sample: self._convert(sample, self._random(sample.tokens)))
            else:
                self._each("conversion", samples, lambda sample: self._convert(sample, self._reading(source, sample.tokens)))
                del source
                self._collect()
            target = self._model(1)
            self._each("target_prefill", samples, lambda sample: self._target(target, sample, ceilings))
        return Measured(self.geometry, samples, growth, ceilings, self.skipped)

    def _each(self, phase: str, samples: dict[int, Sample], action: Callable[[Sample], None]) -> None:
        """Run a phase at every length that is still there; what fails for want of memory or breaks its floor is left out."""
        for tokens, sample in list(samples.items()):
            try:
                action(sample)
            except (RuntimeError, MemoryError, ModelError) as error:
                if not isinstance(error, ModelError) and not is_out_of_memory(error):
                    raise
                reason = str(error) if isinstance(error, ModelError) else f"out of memory: {(str(error).splitlines() or [''])[0]}"
            else:
                logger.info("%s: %s at %d tokens timed: %s", self.config.direction.name, phase, tokens, self.forecast.after(phase, tokens))
                continue
            finally:
                self._collect()
            del samples[tokens]
            self.forecast.without(tokens)
            self.skipped.append({"context_tokens": tokens, "phase": phase, "reason": reason})
            logger.warning("%s: %d tokens are left out, %s: %s", self.config.direction.name, tokens, phase, reason)

    def _growth(self, sample: Sample) -> None:
        self._convert(sample, self._random(sample.tokens), alone=True)

    def _source(self, source: ModelAdapter, sample: Sample, ceilings: dict[str, Ceilings]) -> None:
        query, width = self.options.query_tokens, self.dtype.itemsize
        sample.work["source_prefill"] = counting.prefill(self.geometry.source, self.inner[0], sample.tokens + query, width)
        for _ in range(sample.clock.passes("source_prefill")):
            batch = prompt(self.geometry.source.vocabulary, sample.tokens, query, self.generator)
            sample.clock.run("source_prefill", read_source, source, batch)
        self._check_floor(sample, "source_prefill", ceilings["source"])

    def _convert(self, sample: Sample, states_of: Callable[[], SourceStates], alone: bool = False) -> None:
        """Passes over fresh states until every stage has its repetitions; `alone`: neither packing, rotation nor linear maps."""
        clock, conversion = sample.clock, self.conversion
        stages = CONVERSION if alone else (*CONVERSION, "packing", "rotation")
        self._count_conversion(sample)
        states = states_of()
        if self.options.compile:
            sample.compile_ms, _ = timed(conversion.convert, states)
        with PeakMemory() as peak:
            conversion.convert(states)
        sample.conversion_peak_bytes = peak.bytes
        for _ in range(clock.passes(*stages)):
            states = states_of()
            order = clock.run("cartographer", conversion.cartographer, states)
            selection = clock.run("allocator", conversion.allocator, states, order)
            kv = clock.run("compiler", conversion.compiler, states, selection)
            if not alone:
                packed = clock.run("packing", conversion.packing, kv)
                _, cache = clock.run("rotation", conversion.rotation, packed)
                sample.mounted_bytes = cache.mounted_bytes()
                del packed, cache
            del order, selection, kv
        for stage in () if alone else self.ridges:
            self._ridge(sample, stage, states)

    def _ridge(self, sample: Sample, stage: str, states: SourceStates) -> None:
        layers, heads = self.ridges[stage]
        made = random_ridge(self.geometry, layers, self.device, DTYPES[self.options.interface_dtype], self.config.runtime.seed, heads)
        sample.work[stage] = counting.ridge(self.geometry, layers, sample.tokens, self.dtype.itemsize, heads)
        for _ in range(sample.clock.passes(stage)):
            sample.clock.run(stage, made, states, self.dtype)

    def _target(self, target: ModelAdapter, sample: Sample, ceilings: dict[str, Ceilings]) -> None:
        clock, tokens, width, options = sample.clock, sample.tokens, self.dtype.itemsize, self.options
        geometry, device = self.geometry.target, self.target_device
        sample.work["target_prefill"] = counting.prefill(geometry, self.inner[1], tokens, width)
        cache = DynamicCache()
        for _ in range(clock.passes("target_prefill")):
            cache = DynamicCache()  # the one before is freed first
            ids = prompt(geometry.vocabulary, tokens, 1, self.generator).context_ids.to(device)
            cache = clock.run("target_prefill", target_prefill, target, ids)
        self._check_floor(sample, "target_prefill", ceilings["target"])
        slots = geometry.units * tokens, geometry.units * self.rule.resolve(tokens).mean_capacity
        for stage, held in zip(("query_native", "query_mounted"), slots):
            sample.work[stage] = counting.step(geometry, self.inner[1], options.query_tokens, held, width)
        for _ in range(clock.passes("query_native")):
            ids = prompt(geometry.vocabulary, 1, options.query_tokens, self.generator).query_ids.to(device)
            clock.run("query_native", native_step, target, cache, ids)
            cache.crop(-options.query_tokens)  # newer transformers know no other way
        del cache
        kv, _ = self.conversion.rotation(self.conversion.packing(self.conversion.convert(self._random(tokens)())))
        with mounted(target, kv) as cache_of_slots:
            mark = cache_of_slots.mark()
            for _ in range(clock.passes("query_mounted")):
                ids = prompt(geometry.vocabulary, 1, options.query_tokens, self.generator).query_ids.to(device)
                clock.run("query_mounted", mounted_step, target, cache_of_slots, ids)
                cache_of_slots.rewind(mark)

    # ---- parts ----

    def _forecast(self, growth: dict[int, Sample], samples: dict[int, Sample]) -> Forecast:
        """Operations of every step to come."""
        operations: dict[tuple[str, int], float] = {}
        geometry, query, width = self.geometry, self.options.query_tokens, self.dtype.itemsize

        def conversion(sample: Sample) -> float:
            counted = Sample(sample.tokens, sample.clock)
            self._count_conversion(counted)
            return sum(counted.work[stage].flops * sample.clock.passes(stage) for stage in CONVERSION)

        for tokens, sample in growth.items():
            operations["growth", tokens] = conversion(sample)
        for tokens, sample in samples.items():
            clock = sample.clock
            ridges = {stage: counting.ridge(geometry, layers, tokens, width, heads) for stage, (layers, heads) in self.ridges.items()}
            maps = sum(work.flops * clock.passes(stage) for stage, work in ridges.items())
            read = counting.prefill(geometry.source, self.inner[0], tokens + query, width).flops * clock.passes("source_prefill")
            operations["source_prefill", tokens] = read
            operations["conversion", tokens] = conversion(sample) + maps + (0.0 if self.options.inputs == "random" else read)
            prefill = counting.prefill(geometry.target, self.inner[1], tokens, width).flops
            operations["target_prefill", tokens] = prefill * clock.passes("target_prefill")
        return Forecast(operations)

    def _sample(self, tokens: int) -> Sample:
        options = self.options
        warmup, repetitions = dict(options.warmup), dict(options.repetitions)
        for counts in (warmup, repetitions):
            counts |= dict.fromkeys(self.ridges, counts["ridge"])
        ideal = counting.ideal_bytes(self.geometry, self.rule, tokens, self.dtype.itemsize)
        return Sample(tokens, Clock(warmup, repetitions), ideal_bytes=ideal)

    def _count_conversion(self, sample: Sample) -> None:
        config, geometry, rule, width, tokens = self.config, self.geometry, self.rule, self.dtype.itemsize, sample.tokens
        shape, seen, read = cartographer_shape(config, geometry), bridge_geometry(config, geometry), config.compiler.subspace_tokens
        sample.work |= {
            "cartographer": counting.cartographer(geometry, shape, tokens, self.options.query_tokens, width),
            "allocator": counting.allocator(geometry, rule, tokens),
            "compiler": counting.compiler(
                seen,
                residual_shape(config, geometry),
                rule,
                tokens,
                width,
                reads=len(bridge_reads(config, geometry)[0]),
                shared=subspace_inputs(geometry, read) if seen is not geometry else 0,
            ),
            "packing": counting.movement(geometry, rule, tokens, width, rotated=False),
        }
        rotation = counting.movement(geometry, rule, tokens, width, rotated=True)
        if self.conversion.rotates:  # what is written is counted there already, and mounting alone moves nothing
            sample.work["compiler"] += counting.Work(rotation.flops, 0)
        else:
            sample.work["rotation"] = rotation

    def _ceilings(self) -> dict[str, Ceilings]:
        """Of each device in the type that its stages compute in: models in theirs, the interface in its own."""
        options = self.options
        known: dict[tuple[torch.device, torch.dtype], Ceilings] = {}
        found = {}
        for name, device, dtype in (
            ("source", self.source_device, self.dtype),
            ("interface", self.device, DTYPES[options.interface_dtype]),
            ("target", self.target_device, self.dtype),
        ):
            if (device, dtype) not in known:
                known[device, dtype] = measure_ceilings(device, dtype, options.matmul_size, options.copied_bytes, options.ceiling_tries)
            found[name] = known[device, dtype]
        return found

    def _check_floor(self, sample: Sample, stage: str, ceilings: Ceilings) -> None:
        """Raises ModelError where a prefill is faster than its operations allow on this machine."""
        floor = 1e3 * sample.work[stage].flops / ceilings.flops
        median = sample.clock.timings[stage].median_ms
        if median < self.options.floor_slack * floor:
            raise ModelError(
                f"{stage} of {sample.tokens} tokens took {median:.3g} ms; its {sample.work[stage].flops:.3g} operations need at "
                f"least {floor:.3g} ms at the measured {ceilings.flops:.3g} a second. Something was not computed, or "
                "latency.floor_slack is too strict."
            )

    def _model(self, which: int) -> ModelAdapter:
        runtime = self.config.runtime
        device = str((self.source_device, self.target_device)[which])
        options, device_map = self.options, (None, runtime.target_device_map)[which]
        name, seed = self.names[which], runtime.seed + which
        return timed_model(name, self.longest, options.weights, runtime.dtype, device, seed, options.yarn, device_map=device_map)

    def _random(self, tokens: int) -> Callable[[], SourceStates]:
        """Random states of one length; each call draws the hidden states anew in the same memory."""
        query, rows = self.options.query_tokens, utility_rows(self.config)
        states = random_states(self.geometry.source, tokens, query, self.dtype, self.device, self.generator, rows > 0)
        return lambda: refresh(states, self.generator)

    def _reading(self, source: ModelAdapter, tokens: int) -> Callable[[], SourceStates]:
        """States of a fresh prompt for each call, read by the source."""
        vocabulary, query = self.geometry.source.vocabulary, self.options.query_tokens
        rows = utility_rows(self.config)
        return lambda: read_source(source, prompt(vocabulary, tokens, query, self.generator), rows).to(self.device)

    @staticmethod
    def _collect() -> None:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
