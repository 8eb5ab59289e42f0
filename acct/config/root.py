"""The whole configuration, its registration with Hydra, and the list of open choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

import acct
from acct.config.budget import BudgetConfig
from acct.config.data import DataConfig, EvaluationConfig, PromptsConfig
from acct.config.diagnosis import DiagnosisConfig
from acct.config.direction import DirectionConfig
from acct.config.fields import check_choice, check_range
from acct.config.latency import LatencyConfig
from acct.config.models import ModelsConfig
from acct.config.modules import AllocatorConfig, CartographerConfig, CompilerConfig
from acct.config.reproduce import ReproduceConfig
from acct.config.ridge import RidgeConfig
from acct.config.runtime import PathsConfig, RuntimeConfig, TrackerConfig
from acct.config.supervision import SupervisionConfig
from acct.config.training import OPTIONAL_STAGES, STAGES, TrainingConfig
from acct.errors import ConfigError


@dataclass
class Config:
    """Everything a command needs.

    Attributes:
        scale: "micro" (embedded families, one CPU), "paper" (the paper's sizes), "tiny" (random models, seconds) or
            "cpu" (latency only), "real-small" (a real pair on two CPU cores).
        stage: what `acct train` runs: one stage, all three in order, or "ridge", the linear maps beside the method.
        context, query: of `acct generate`, as text or as @file. max_new_tokens: longest answer of `acct generate`.
    """

    scale: str = "micro"
    stage: str = "all"
    context: str = ""
    query: str = ""
    max_new_tokens: int = 32
    direction: DirectionConfig = field(default_factory=DirectionConfig)
    models: ModelsConfig = field(default_factory=ModelsConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    cartographer: CartographerConfig = field(default_factory=CartographerConfig)
    allocator: AllocatorConfig = field(default_factory=AllocatorConfig)
    compiler: CompilerConfig = field(default_factory=CompilerConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    data: DataConfig = field(default_factory=DataConfig)
    prompts: PromptsConfig = field(default_factory=PromptsConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    diagnosis: DiagnosisConfig = field(default_factory=DiagnosisConfig)
    ridge: RidgeConfig = field(default_factory=RidgeConfig)
    reproduce: ReproduceConfig = field(default_factory=ReproduceConfig)
    latency: LatencyConfig = field(default_factory=LatencyConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)

    def __post_init__(self) -> None:
        check_choice("stage", self.stage, (*STAGES, "all", *OPTIONAL_STAGES))
        check_range("max_new_tokens", self.max_new_tokens, 1, float("inf"))


def variant_suffix(retention: float, variant: str, seed: int = 0) -> str:
    """Suffix of a run folder: nothing at 4x, the retention elsewhere, then the variant's name, then the training seed unless it is 0."""
    parts = [] if float(retention) == 0.25 else [f"r{float(retention):g}"]
    parts += [str(variant)] if variant else []
    parts += [f"s{seed}"] if seed else []
    return "".join(f"-{part}" for part in parts)


def register() -> None:
    """Make the schema and the resolver known to Hydra; done by the command line and by `compose`, never by an import."""
    ConfigStore.instance().store(name="schema", node=Config)
    if not OmegaConf.has_resolver("acct.variant"):
        OmegaConf.register_new_resolver("acct.absolute", lambda path: str(Path(path).resolve()))
        OmegaConf.register_new_resolver("acct.variant", lambda retention, variant="", seed=0: variant_suffix(retention, variant, seed))


def config_folder() -> Path:
    """The YAML tree: inside the package in a built wheel, beside it in a checkout or an editable install."""
    package = Path(acct.__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(f"the configuration tree 'conf' lies neither beside nor inside {package}. Install from a checkout: pip install -e .")


def to_config(composed: DictConfig) -> Config:
    """Resolve and check once: a plain dataclass, which is all that the code behind the command line sees."""
    try:
        config = OmegaConf.to_object(composed)
    except Exception as error:
        cause = error
        while cause is not None and not isinstance(cause, ConfigError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise cause from None
    assert isinstance(config, Config)
    return config


def compose(overrides: list[str]) -> Config:
    """Compose `conf/` with overrides as on the command line, without a command line (tests, notebooks)."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    register()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return to_config(hydra_compose("config", overrides=overrides))


def as_dict(config: Any) -> dict[str, Any]:
    """Nested plain dict of a configuration dataclass."""
    return dataclasses.asdict(config)


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Every leaf field of an instance: dotted path, field, value."""
    for item in dataclasses.fields(node):
        value = getattr(node, item.name)
        path = f"{prefix}{item.name}"
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{path}.")
        else:
            yield path, item, value


@dataclass(frozen=True)
class OpenChoice:
    """A choice the paper leaves open: dotted path, default, reason, section of the specification."""

    path: str
    default: Any
    why: str
    spec: str


def open_choices(config: Config | None = None) -> list[OpenChoice]:
    """Every field marked as one on which the paper is silent; stages share their fields, so each is listed once."""
    found: dict[str, OpenChoice] = {}
    for path, item, value in leaves(config or Config()):
        note = item.metadata.get("paper", "")
        if not note.startswith("silent: "):
            continue
        short = path
        for stage in STAGES:
            short = short.replace(f"training.{stage}.", "training.<stage>.")
        found.setdefault(short, OpenChoice(short, value, note.removeprefix("silent: "), item.metadata.get("spec", "")))
    return list(found.values())


def choices_table(config: Config | None = None) -> str:
    """The open choices as a Markdown table."""
    rows = ["| field | default | why | spec |", "|---|---|---|---|"]
    rows += [f"| `{c.path}` | `{c.default}` | {c.why} | {c.spec} |" for c in open_choices(config)]
    return "\n".join(rows) + "\n"


def field_names() -> list[str]:
    """Every dotted path that an override may name."""
    names: list[str] = []

    def walk(kind: type, prefix: str) -> None:
        hints = get_type_hints(kind)
        for item in dataclasses.fields(kind):
            inner = hints[item.name]
            names.append(prefix + item.name)
            if dataclasses.is_dataclass(inner):
                walk(inner, f"{prefix}{item.name}.")

    walk(Config, "")
    return names
