"""Where and how it runs: devices, types, threads, folders, tracking."""

from __future__ import annotations

from dataclasses import dataclass

from acct.config.fields import check_choice, check_range


@dataclass
class RuntimeConfig:
    """Placement and precision.

    Attributes:
        dtype: of the frozen models; the trained modules are float32. source_device, interface_device, target_device: as torch names them.
        threads: CPU threads, null for PyTorch's own choice. seed: default seed of every stage; other than 0
            it names the run folder, so that runs of several seeds lie side by side.
        attention: kernel of the models' own forwards ("eager" or "sdpa").
    """

    dtype: str = "float32"
    source_device: str = "cpu"
    interface_device: str = "cpu"
    target_device: str = "cpu"
    threads: int | None = None
    seed: int = 0
    progress_seconds: float = 5.0

    def __post_init__(self) -> None:
        check_choice("runtime.dtype", self.dtype, ("float32", "bfloat16", "float16"))
        check_range("runtime.threads", self.threads, 1, float("inf"))


@dataclass
class PathsConfig:
    """Folders, relative to the current one.

    Attributes:
        results: root of everything written. run: this run's folder. data: root of the data sets.
        variant: appended to the run folder's name; an ablation that retrains gets one of its own.
        reuse: another run's folder, whose finished stages are copied where they were built from the same inputs; "" for none.
        tables: where rendered tables go.
    """

    results: str = "results"
    variant: str = ""
    run: str = "${paths.results}/${scale}/${direction.name}${acct.variant:${budget.retention},${paths.variant},${runtime.seed}}"
    reuse: str = ""
    data: str = "data"
    tables: str = "${paths.results}/${scale}/tables"


@dataclass
class TrackerConfig:
    """Where metrics go besides the run's metrics.jsonl.

    Attributes:
        kind: "none", "wandb" (offline unless the environment says otherwise) or "tensorboard".
        project, mode: of W&B.
    """

    kind: str = "none"
    project: str = "acct"
    mode: str = "offline"

    def __post_init__(self) -> None:
        check_choice("tracker.kind", self.kind, ("none", "wandb", "tensorboard"))
        check_choice("tracker.mode", self.mode, ("offline", "online", "disabled"))
