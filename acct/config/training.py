"""The three stages: how many examples, how long, how fast (spec 5, Schedule)."""

from __future__ import annotations

from dataclasses import dataclass, field

from acct.config.fields import check_choice, check_range, silent

STAGES = ("cartographer", "allocator", "compiler")
OPTIONAL_STAGES = ("ridge",)
"""Asked for by name only."""


@dataclass
class StageConfig:
    """One stage of training.

    Attributes:
        examples: first examples of the training manifest. held_out: further examples that are only measured.
        epochs: passes over them. batch: examples of one step, all processes together.
        warmup: fraction of the steps with a linearly rising rate. schedule: what follows, "constant" or "cosine" (to zero).
        clip: largest gradient norm. regroup: batches are drawn anew in every epoch; false keeps their members and shuffles their order
            only, so that frozen states of a batch can be kept in memory (training.cache_gigabytes).
    """

    examples: int = 5000
    held_out: int = silent(64, "examples behind the reported rank correlation and held-out R2", "5")
    epochs: int = 1
    batch: int = silent(16, "examples of one step", "5")
    learning_rate: float = silent(1e-3, "AdamW's rate", "5")
    weight_decay: float = silent(0.01, "AdamW's decay", "5")
    beta1: float = silent(0.9, "AdamW's first moment", "5")
    beta2: float = silent(0.999, "AdamW's second moment", "5")
    warmup: float = silent(0.05, "the text says short and linear", "5")
    schedule: str = silent("constant", "the text names no decay", "5")
    clip: float = 1.0
    regroup: bool = silent(True, "the text says nothing of batches", "5")
    seed: int = silent(0, "order of the examples, sampled layers and pairs, initial weights", "5")

    def __post_init__(self) -> None:
        for name in ("examples", "epochs", "batch"):
            check_range(f"training.<stage>.{name}", getattr(self, name), 1, float("inf"))
        check_range("training.<stage>.held_out", self.held_out, 0, float("inf"))
        check_range("training.<stage>.learning_rate", self.learning_rate, 0, float("inf"), open_low=True)
        check_range("training.<stage>.warmup", self.warmup, 0, 1)
        check_range("training.<stage>.clip", self.clip, 0, float("inf"), open_low=True)
        check_choice("training.<stage>.schedule", self.schedule, ("constant", "cosine"))


@dataclass
class TrainingConfig:
    """All stages.

    Attributes:
        restart: throw away a finished or interrupted stage that was built from other inputs, instead of refusing.
        checkpoint_steps, checkpoint_seconds: a checkpoint is written when either has passed; null switches it off.
        cache_gigabytes: memory for frozen states that every epoch of the Compiler would compute again; 0 computes them again.
        state_cache_gigabytes: largest size of the folder paths.state_cache; beyond it states are computed again.
        read_ahead: examples whose states are read together, similar lengths side by side, before the Cartographer's first step, where
            states are kept on disk; 0: in the batches of training.
        state_cache_dtype: type in which states lie there; a narrower one than the models' halves the size and rounds what stages read.
    """

    restart: bool = False
    checkpoint_steps: int | None = None
    checkpoint_seconds: float | None = 60.0
    cache_gigabytes: float = 0.0
    state_cache_gigabytes: float = 50.0
    read_ahead: int = 0
    state_cache_dtype: str = "float32"
    cartographer: StageConfig = field(default_factory=StageConfig)
    allocator: StageConfig = field(default_factory=lambda: StageConfig(learning_rate=0.05))
    compiler: StageConfig = field(default_factory=lambda: StageConfig(examples=500, epochs=4, regroup=False))

    def __post_init__(self) -> None:
        check_range("training.checkpoint_steps", self.checkpoint_steps, 1, float("inf"))
        check_range("training.checkpoint_seconds", self.checkpoint_seconds, 0, float("inf"))
        check_range("training.cache_gigabytes", self.cache_gigabytes, 0, float("inf"))
        check_range("training.state_cache_gigabytes", self.state_cache_gigabytes, 0, float("inf"))
        check_range("training.read_ahead", self.read_ahead, 0, float("inf"))
        check_choice("training.state_cache_dtype", self.state_cache_dtype, ("float32", "bfloat16", "float16"))
