"""Where and how it runs: devices, types, threads, folders, tracking."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from acct.config.fields import check_choice, check_range
from acct.kernels import KERNELS

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""What transformers takes by name."""


@dataclass
class RuntimeConfig:
    """Placement and precision.

    Attributes:
        dtype: of the frozen models; the trained modules are float32. source_device, interface_device, target_device: as torch names them.
        target_device_map: spreads the target's layers over devices, as transformers takes it: "auto", "balanced", "balanced_low_0",
            "sequential", or modules and their devices ({model.embed_tokens: 0, model.layers.0: 0, ...}); null keeps it on target_device.
        threads: CPU threads, null for PyTorch's own choice. seed: default seed of every stage; other than 0
            it names the run folder, so that runs of several seeds lie side by side.
        keep_memory: while frozen models read ahead and while answers are scored, a process on the CPU keeps what it frees for its next
            tensors (glibc), which spares the clearing of new pages: a quarter of the time where activations are large.
        kernels: of the conversion path (`acct.kernels`): "auto" takes the Triton kernels where the interface is on CUDA and Triton is
            installed, "plain" never does, "triton" stops where they cannot run.
    """

    dtype: str = "float32"
    source_device: str = "cpu"
    interface_device: str = "cpu"
    target_device: str = "cpu"
    target_device_map: Any = None
    threads: int | None = None
    keep_memory: bool = False
    seed: int = 0
    progress_seconds: float = 5.0
    kernels: str = "auto"

    def __post_init__(self) -> None:
        check_choice("runtime.dtype", self.dtype, ("float32", "bfloat16", "float16"))
        check_choice("runtime.kernels", self.kernels, KERNELS)
        if self.target_device_map is not None and not isinstance(self.target_device_map, dict):
            check_choice("runtime.target_device_map", str(self.target_device_map), DEVICE_MAPS)
        check_range("runtime.threads", self.threads, 1, float("inf"))


@dataclass
class PathsConfig:
    """Folders, relative to the current one.

    Attributes:
        results: root of everything written. run: this run's folder. data: root of the data sets.
        variant: appended to the run folder's name; an ablation that retrains gets one of its own.
        reuse: another run's folder, whose finished stages are copied where they were built from the same inputs, and its answers without a
            transfer; "" for none.
        start: another run's folder, whose finished Compiler is where this run's begins, in place of closed forms: for another selection, or
            more examples; "" for none.
        modules: another run's folder, whose trained modules are loaded in place of this run's own, under the retention of this run even
            where they were trained under another one; "" for none. Nothing is trained in such a run.
        state_cache: folder that keeps states of the frozen models, so that epochs, stages and later runs do not read the training
            examples again (tens of MB for an example of a real pair); null keeps none.
        tables: where rendered tables go.
    """

    results: str = "results"
    variant: str = ""
    run: str = "${paths.results}/${scale}/${direction.name}${acct.variant:${budget.retention},${paths.variant},${runtime.seed}}"
    reuse: str = ""
    start: str = ""
    modules: str = ""
    data: str = "data"
    state_cache: str | None = None
    tables: str = "${paths.results}/${scale}/tables"


@dataclass
class TrackerConfig:
    """Where metrics go besides the run's metrics.jsonl.

    Attributes:
        kind: "none", "wandb" or "tensorboard".
        project, entity: of W&B; null is the entity of the login. mode: "auto" is online where there is a login and offline elsewhere;
            WANDB_MODE goes before it.
        tags: of the run, beside scale, retention, variant and seed. weights: artifacts carry the tensors too, not only their cards.
        system_seconds: between two samples of CPU, GPU and memory. patience_seconds: how long W&B may take to start and to end.
    """

    kind: str = "none"
    project: str = "acct"
    entity: str | None = None
    mode: str = "auto"
    tags: list[str] = field(default_factory=list)
    weights: bool = False
    system_seconds: float = 15.0
    patience_seconds: float = 60.0

    def __post_init__(self) -> None:
        check_choice("tracker.kind", self.kind, ("none", "wandb", "tensorboard"))
        check_choice("tracker.mode", self.mode, ("auto", "offline", "online", "disabled"))
        check_range("tracker.system_seconds", self.system_seconds, 0.1, float("inf"))
        check_range("tracker.patience_seconds", self.patience_seconds, 1, float("inf"))
