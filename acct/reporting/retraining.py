"""What the rows of Table 3 were trained on and scored on: read from the cards of the runs and from records (spec 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from acct.config.training import STAGES
from acct.json_files import read_json
from acct.reporting.figures import Sheet
from acct.reporting.records import AGAIN, CONFIGURATION, FOLDER, training_seed, unfinished
from acct.training.files import read_card

UNTRAINED = ("bridge_only", "native_kv")


def amounts(run: Path) -> dict[str, str]:
    """By stage, how much it was trained in a run folder: "800 examples x 4 epochs", or the run that it was copied from."""
    found = {}
    for stage in STAGES:
        card = read_card(run / stage)
        if card is None:
            continue
        built = card.get("built_from", {})
        examples, epochs = (built.get(f"training.{stage}.{name}") for name in ("examples", "epochs"))
        trained = "trained" if examples is None or epochs is None else f"{examples:,} examples x {epochs} epochs"
        found[stage] = f"copied from {card['copied_from']}" if "copied_from" in card else trained
    return found


def retraining_notes(results_root: Path | str, scale: str, retention: float | None, variants: Sequence[str], seed: int = 0) -> list[str]:
    """One line for each variant that was evaluated, or more where directions differ: which stages were trained again, on how much."""
    left_out = unfinished(results_root, scale)
    grouped: dict[tuple[str, str], list[str]] = {}
    for path in sorted((Path(results_root) / scale).glob(f"*/{FOLDER}/{CONFIGURATION}")):
        configuration = read_json(path, AGAIN)
        name = str(configuration.get("variant", ""))
        if training_seed(configuration) != seed or configuration.get("retention") != retention:
            continue
        if path.parent in left_out or name not in variants:
            continue
        words = "; ".join(f"{stage} {amount}" for stage, amount in amounts(path.parent.parent).items()) or "no card of any stage is there"
        grouped.setdefault((name, words), []).append(str(configuration.get("direction", "")))
    return [f"- {name.capitalize()}, retrained ({', '.join(runs)}): {words}." for (name, words), runs in sorted(grouped.items())]


def scored_note(base: Sheet, retrained: Mapping[str, Sheet | None], directions: Sequence[str]) -> str:
    """How many answers stand behind the rows that replace a part, beside the size of the paper's protocol."""
    from appendix_tables.stated import ABLATION_EXAMPLES

    rows = [(base, method) for method in UNTRAINED] + [(sheet, "acct") for sheet in retrained.values() if sheet is not None]
    figures = [sheet.figure(d, task, method) for sheet, method in rows for d in directions for task in sheet.tasks]
    total = sum(figure.examples for figure in figures if figure is not None)
    return (
        f"- Scored: {total:,} answers by the rows that replace a part, in {len(directions)} direction(s); "
        f"the paper's protocol has {ABLATION_EXAMPLES:,}."
    )
