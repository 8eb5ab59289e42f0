"""What `acct latency` times, how often, where and beside what (spec 9)."""

from __future__ import annotations

from dataclasses import dataclass, field

from acct.config.fields import check_choice, check_range
from acct.errors import ConfigError, UnknownName

STAGES = (
    "source_prefill", "cartographer", "allocator", "compiler", "packing", "rotation", "target_prefill", "query_native", "query_mounted",
    "ridge",
)  # fmt: skip
"""`packing` brings the states into the target's type and onto its device; `rotation` rotates keys and mounts; `ridge` is the comparison."""
CONVERSION = ("cartographer", "allocator", "compiler")


def _lengths() -> dict[str, list[int]]:
    return {
        "paper": [1024, 2048, 4096, 6144, 8192, 12288, 16384, 19456],
        "cpu": [512, 2048],
        "micro": [128, 256, 512, 1024],
        "tiny": [64, 128],
    }


def _placement() -> dict[str, list[int]]:
    return {
        "qwen3_4b_to_8b": [0], "qwen3_8b_to_4b": [1], "llama_3b_to_8b": [2], "llama_8b_to_3b": [3],
        "qwen25_7b_to_32b": [4, 5], "qwen25_32b_to_7b": [6, 7],
    }  # fmt: skip


@dataclass
class LatencyConfig:
    """The suite's settings; dtype, devices and seed are those of `runtime`, retention and tail those of `budget`.

    Attributes:
        context_tokens: lengths N; null takes those of the scale from `lengths`.
        growth_tokens: further lengths at which the conversion alone is timed, on random source states.
        query_tokens: Q. weights: "random" (true geometry, nothing is downloaded) or "hub" (a folder's or the hub's own).
        inputs: of the conversion's repetitions, "source" (a fresh prompt is read by the source for each) or "random" (source states of
            the right shape, hidden states drawn afresh for each; the source is in memory for its own stage only).
        warmup, repetitions: calls by stage (Table 11; the counts are ours).
        threads: CPU threads, no more than there are cores are used, null for PyTorch's choice; the paper uses 4.
        interface_dtype: of the three modules' weights.
        matmul_precision: of float32 products on CUDA, "highest", "high" (TF32) or "medium".
        compile: torch.compile for Cartographer and Compiler; what the first conversion of a length costs is kept apart (compile_ms).
        compile_backend: of torch.compile; "inductor" needs a C++ compiler on the CPU and Triton on CUDA, "eager" and "aot_eager" neither.
        ridge_source_layers: source layers of the full-length, head-local linear maps that are timed beside the conversion; empty for none.
        ridge_all_heads: the same for maps that read every KV head of their layers, one product for a target layer.
        spread: standard deviation of the Allocator's preferences under random weights, so that units keep unequal counts.
        yarn: stretch the window of a random model where a length is beyond it. floor_slack: a prefill faster than this share of its
            operations at the measured ceiling is refused. matmul_size, copied_bytes, ceiling_tries: of the ceilings' measurement.
        busy_percent: load of a GPU above which a warning tells of other work.
        placement: GPUs of each direction's worker, source and interface on the first, target on the last.
        timeout_seconds: of one worker, null for none.
    """

    context_tokens: list[int] | None = None
    lengths: dict[str, list[int]] = field(default_factory=_lengths)
    growth_tokens: list[int] = field(default_factory=list)
    query_tokens: int = 64
    weights: str = "random"
    inputs: str = "source"
    warmup: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAGES, 2))
    repetitions: dict[str, int] = field(
        default_factory=lambda: {**dict.fromkeys(STAGES, 10), "source_prefill": 5, "target_prefill": 5, "ridge": 5}
    )
    threads: int | None = 4
    interface_dtype: str = "float32"
    matmul_precision: str = "highest"
    compile: bool = False
    compile_backend: str = "inductor"
    ridge_source_layers: list[int] = field(default_factory=lambda: [1, 8])
    ridge_all_heads: list[int] = field(default_factory=lambda: [1])
    spread: float = 0.5
    yarn: bool = False
    floor_slack: float = 0.5
    matmul_size: int = 2048
    copied_bytes: int = 1 << 27
    ceiling_tries: int = 5
    busy_percent: float = 10.0
    placement: dict[str, list[int]] = field(default_factory=_placement)
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        check_choice("latency.weights", self.weights, ("random", "hub"))
        check_choice("latency.inputs", self.inputs, ("source", "random"))
        check_choice("latency.interface_dtype", self.interface_dtype, ("float32", "bfloat16"))
        check_choice("latency.compile_backend", self.compile_backend, ("inductor", "aot_eager", "eager"))
        check_choice("latency.matmul_precision", self.matmul_precision, ("highest", "high", "medium"))
        for name in ("context_tokens", "growth_tokens", "ridge_source_layers", "ridge_all_heads"):
            for value in getattr(self, name) or []:
                check_range(f"latency.{name}", value, 1, float("inf"))
        for name in ("query_tokens", "matmul_size", "copied_bytes", "ceiling_tries"):
            check_range(f"latency.{name}", getattr(self, name), 1, float("inf"))
        check_range("latency.threads", self.threads, 1, float("inf"))
        check_range("latency.floor_slack", self.floor_slack, 0, 1)
        for table, least in (("warmup", 0), ("repetitions", 1)):
            counts = getattr(self, table)
            for stage, count in counts.items():
                if stage not in STAGES:
                    raise UnknownName(f"stage of latency.{table}", stage, STAGES)
                check_range(f"latency.{table}.{stage}", count, least, float("inf"))
            for stage in STAGES:
                counts.setdefault(stage, max(least, 1))
        for direction, devices in self.placement.items():
            if not devices or any(index < 0 for index in devices):
                raise ConfigError(f"latency.placement.{direction} must name at least one GPU, 0 or above, got {devices}.")

    def tokens(self, scale: str) -> list[int]:
        """The lengths of a scale, ascending, once each.

        Raises:
            ConfigError: none are stated.
        """
        found = self.context_tokens if self.context_tokens is not None else self.lengths.get(scale)
        if not found:
            raise ConfigError(f"latency has no lengths for scale={scale}: write latency.context_tokens=[512,2048].")
        return sorted(set(found))
