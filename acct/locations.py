"""Where models and data lie: "micro:<folder>" and "tiny:<folder>" names, and data sets that are generated when they are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from acct import debug
from acct.config.root import Config
from acct.errors import ModelError

MICRO, TINY = "micro:", "tiny:"


def resolve_model(name: str, data_root: Path | str, models_root: Path | str | None = None) -> str:
    """A hub id or local path as it is; an embedded or tiny model as its folder (tiny ones are written under data_root).

    Args:
        models_root: where hub ids are looked for as folders; None leaves them to the hub.
    Raises:
        ModelError: an embedded model whose weights are not there, or a hub id that models_root lacks.
    """
    if name.startswith(TINY):
        return str(debug.model_folder(name.removeprefix(TINY), Path(data_root) / "models"))
    if name.startswith(MICRO):
        from acct.micro.families import MODELS, model_folder

        family, _, size = name.removeprefix(MICRO).partition("_")
        folder = model_folder(family, size)
        if not (folder / "model.safetensors").is_file():
            present = ", ".join(sorted(path.parent.name for path in MODELS.glob("*/model.safetensors"))) or "none"
            raise ModelError(f"the embedded model {name!r} has no weights in {folder} (present: {present}). Build them: make micro-models.")
        return str(folder)
    if models_root is None or Path(name).expanduser().is_dir():
        return name
    root = Path(models_root).expanduser()
    places = [root / name, root / Path(name).name]
    for folder in places:
        if (folder / "config.json").is_file():
            return str(folder)
    present = ", ".join(sorted(path.parent.name for path in root.glob("*/config.json"))) or "none"
    raise ModelError(
        f"{name} is not in models.root={root}: expected config.json, model.safetensors and tokenizer.json in {places[0]} or {places[1]} "
        f"(models there: {present}). Save the model there, e.g. `hf download {name} --local-dir {places[1]}`, or set models.root=null, "
        "which asks the hub."
    )


def resolve_direction(config: Config) -> tuple[str, str]:
    """Source and target of the configured direction, as something that can be loaded."""
    source, target = (
        resolve_model(name, config.paths.data, config.models.root) for name in (config.direction.source, config.direction.target)
    )
    return source, target


def micro_rows(config: Config) -> dict[str, int]:
    """Rows of each split that generated data sets hold: enough for every stage and for evaluation."""
    stages = (config.training.cartographer, config.training.allocator, config.training.compiler)
    train = max(config.data.generated, *(stage.examples for stage in stages))
    validation = max(64, *(stage.held_out for stage in stages))
    test = max([64, config.evaluation.examples, *config.evaluation.examples_by_task.values()])
    return {"train": train, "validation": validation, "test": test}


def ensure_data(config: Config, tasks: Sequence[str], splits: Sequence[str]) -> Path:
    """The data root; data sets of the invented world are written there when their files are missing or hold too few rows.

    Row i is the same whatever the number of rows is, so a larger file replaces a smaller one without changing what it held.

    Args:
        tasks, splits: what is about to be read. Only scale=micro and scale=tiny generate anything; the Factbook's questions are made where
            its fields lie below paths.data.
    """
    root = Path(config.paths.data)
    if "factbook_qa" in tasks and config.data.source == "folder":
        _ensure_factbook(config, root)
    if config.scale not in ("micro", "tiny"):
        return root
    from acct.micro.datasets import TASKS, write_datasets

    wanted = micro_rows(config)
    missing: dict[str, Mapping[str, int]] = {}
    for task in (name for name in tasks if name in TASKS):  # whoever reads another task or split says what is missing
        names = ["test" if split == "evaluation" else split for split in splits]
        counts = {name: wanted[name] for name in names if name in wanted}
        counts = {split: count for split, count in counts.items() if _rows(root / task / f"{split}.jsonl") < count}
        if counts:
            missing[task] = counts
    if missing:
        write_datasets(root, missing, config.data.seed)  # type: ignore[arg-type]
    return root


def _ensure_factbook(config: Config, root: Path) -> None:
    """Make the questions of the task `factbook_qa` when there are none and the fields are at hand; the source's tokenizer counts."""
    folder, fields = root / config.data.folders["factbook_qa"], root / config.data.factbook
    from acct.data.factbook import SPLITS, convert
    from acct.models.pair import load_tokenizer

    if not fields.is_dir() or all((folder / f"{split}.jsonl").is_file() for split in SPLITS):
        return  # whoever reads a missing split says so
    convert(fields, folder, tokenizer=load_tokenizer(resolve_direction(config)[0]), name=config.direction.source)


def _rows(path: Path) -> int:
    """Lines of a file, 0 where there is none."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(1 for _ in file)
