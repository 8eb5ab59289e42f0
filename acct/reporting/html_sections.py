"""Sections of the report page: latency, charts, controls, runs and their configuration. Each is a pure function of what was read."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from acct.errors import ArtifactError
from acct.reporting.claims_latency import LatencyRecord
from acct.reporting.figures import Sheet
from acct.reporting.html_elements import Markup, bullets, folded, grid, tag
from acct.reporting.html_tables import badge
from acct.reporting.names import METHODS, TASKS, direction_label, label
from acct.reporting.records import CONFIGURATION, FOLDER, PROVENANCE
from acct.reporting.tables import DASH
from acct.reporting.validity import Validity, Verdict

KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
MEBI = 2**20
WIDE = 2.7  # width over height from which a chart gets a row of its own


@dataclass(frozen=True)
class Run:
    """One run folder: its name, resolved configuration by dotted path, what evaluation was computed from, and provenance."""

    name: str
    settings: dict[str, Any]
    evaluation: dict[str, Any]
    provenance: dict[str, Any]


def read_runs(root: Path) -> list[Run]:
    """Every evaluated run below <root>, by name.

    Raises:
        ArtifactError: a configuration that is no YAML mapping.
    """
    runs = []
    for path in sorted(root.glob(f"*/{FOLDER}/{CONFIGURATION}")):
        folder = path.parents[1]
        settings = flat(_mapping(folder / "config.yaml")) if (folder / "config.yaml").is_file() else {}
        runs.append(Run(folder.name, settings, _mapping(path), _mapping(path.parent / PROVENANCE)))
    return runs


def _mapping(path: Path) -> dict[str, Any]:
    """A YAML (or JSON) mapping; empty where there is no file."""
    if not path.is_file():
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} is not a readable configuration: {' '.join(str(error).split())}. Run the direction again.") from error
    if not isinstance(found, dict):
        raise ArtifactError(f"{path} must hold a mapping, got {type(found).__name__}. Run the direction again.")
    return found


def flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of a nested mapping by dotted path; lists are leaves."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def settings_html(runs: Sequence[Run]) -> Markup:
    """What differs between runs as a table, and what they share in a folded one."""
    known = [run for run in runs if run.settings]
    if not known:
        return tag("p", "No run folder holds a config.yaml.", class_="missing")
    paths = list(dict.fromkeys(path for run in known for path in run.settings))
    differing = [path for path in paths if len({_written(run.settings.get(path, DASH)) for run in known}) > 1]
    rows = [[tag("code", path), *(tag("code", _written(run.settings.get(path, DASH))) for run in known)] for path in differing]
    shared = [[tag("code", p), tag("code", _written(known[0].settings[p]))] for p in paths if p not in differing]
    return tag(
        "div",
        grid("Settings that differ between runs", ["setting", *(run.name for run in known)], rows) if rows else None,
        folded(f"{len(shared)} settings that all {len(known)} runs share", grid("Shared settings", ["setting", "value"], shared)),
    )


def _written(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def runs_html(runs: Sequence[Run]) -> Markup:
    """Commit, hardware, time, memory and interface check of each run."""
    rows = []
    for run in runs:
        one = run.provenance
        check = one.get("interface_check") or {}
        versions = one.get("versions") or {}
        state = badge("valid", "good") if one.get("valid") else badge("invalid", "bad") if one.get("valid") is False else DASH
        rows.append([
            run.name, _number(run.evaluation.get("retention"), "g"), str(run.evaluation.get("variant") or DASH), state,
            _number(check.get("nll_difference"), ".2g"), _number(check.get("logit_difference"), ".2g"),
            _number(one.get("mounted_bytes_ratio"), ".3f"), _number(sum((one.get("phases_seconds") or {}).values()) or None, ".0f"),
            _number((one.get("peak_memory_bytes") or 0) / MEBI or None, ".0f"), str(one.get("commit") or DASH)[:12],
            {True: "yes", False: "no"}.get(one.get("dirty"), DASH), ", ".join(one.get("devices") or [one.get("processor") or DASH]),
            *(str(versions.get(name, DASH)) for name in ("torch", "transformers")),
        ])  # fmt: skip
    heads = (
        "run", "retention", "variant", "controls", "interface check: NLL apart by", "logits apart by", "mounted bytes / 2 P k d", "seconds",
        "peak MiB", "commit", "local changes", "hardware", "torch", "transformers",
    )  # fmt: skip
    return grid("Runs and their evaluation", heads, rows, range(4, 9))


def _number(value: Any, form: str) -> str:
    return DASH if value is None else format(value, form)


def validity_html(validity: Validity) -> Markup:
    """The verdict, failures first; all comparisons folded."""
    head, *rest = validity.lines()
    parts = [tag("p", badge("valid" if validity.valid else "invalid", "good" if validity.valid else "bad"), " ", head)]
    if validity.failures:
        parts.append(_verdicts("Controls that come near the method", validity.failures))
    parts.append(bullets(line.strip() for line in rest if line.startswith("Not judged") or line.strip() in validity.missing))
    everything = f"All {len(validity.verdicts)} comparisons"
    parts.append(folded(everything, _verdicts(everything, validity.verdicts)))
    return tag("div", *parts)


def _verdicts(caption: str, verdicts: Sequence[Verdict]) -> Markup:
    rows = []
    for one in verdicts:
        near = badge("comes near", "bad") if one.informative else badge("not judged")
        state = near if one.reached else badge("worse", "good")
        difference = f"{one.difference.value:+.1f} [{one.difference.lower:.1f}, {one.difference.upper:.1f}]"
        rows.append([
            direction_label(one.direction), label(one.task, TASKS), label(one.control, METHODS), f"{one.method_figure:.1f}",
            f"{one.control_figure:.1f}", difference, state,
        ])  # fmt: skip
    return grid(caption, ("direction", "task", "control", "ACCT", "control's figure", "difference", "control is"), rows, (3, 4, 5))


def capacities_note(sheet: Sheet) -> Markup | None:
    """Least and most slots of a unit, for each direction that noted its counts."""
    rows = []
    for direction, provenance in sheet.records.provenance.items():
        noted = provenance.get("capacities")
        if noted:
            counts = np.array(noted["counts"])
            numbers = [noted["context_tokens"], counts.min(), counts.mean().round(1), counts.max()]
            rows.append([direction_label(direction), *map(str, numbers)])
    heads = ("direction", "context tokens", "least slots of a unit", "mean", "most")
    return grid("Capacities that the Allocator gave", heads, rows, range(1, 5)) if rows else None


def charts_html(folder: Path) -> Markup | None:
    """Every chart of a folder as a data URI: the SVG of a name, or its PNG where there is no SVG. None where there is no chart."""
    chosen: dict[str, Path] = {}
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        if path.suffix in KINDS and (path.stem not in chosen or path.suffix == ".svg"):
            chosen[path.stem] = path
    if not chosen:
        return None
    shown = []
    for stem, path in sorted(chosen.items()):
        content = path.read_bytes()
        data = base64.b64encode(content).decode("ascii")
        words = stem.replace("_", " ")
        image = tag("img", src=f"data:{KINDS[path.suffix]};base64,{data}", alt=f"chart: {words}", loading="lazy")
        wide = "wide" if aspect(content) > WIDE else None
        shown.append(
            tag("figure", tag("div", image, class_="drawing", tabindex="0" if wide else None), tag("figcaption", words), class_=wide)
        )
    return tag("div", *shown, class_="figures")


def aspect(content: bytes) -> float:
    """Width over height of an SVG with a viewBox or of a PNG; 1 where neither says."""
    if content.startswith(b"\x89PNG") and len(content) >= 24:
        width, height = struct.unpack(">II", content[16:24])
    else:
        found = re.search(rb'viewBox="\s*[-\d.e]+[\s,]+[-\d.e]+[\s,]+([\d.e]+)[\s,]+([\d.e]+)\s*"', content)
        width, height = (float(found[1]), float(found[2])) if found else (1, 1)
    return width / height if height else 1.0


def latency_html(records: Sequence[LatencyRecord]) -> Markup:
    """Every sample: milliseconds of each stage, ratios, memory; and a chart of the speed-ups."""
    from acct.reporting.html_chart import speedup_chart

    stages = list(dict.fromkeys(stage for record in records for stage in record.stages_ms))
    rows = []
    for one in records:
        times = [f"{one.stages_ms[stage]:.2f}" if stage in one.stages_ms else DASH for stage in stages]
        rows.append([
            direction_label(one.direction), str(one.context_tokens), f"{one.conversion_ms:.2f}", f"{one.target_prefill_ms:.2f}",
            *(tag("td", tag("b" if ratio > 1 else "span", f"{ratio:.2f}x"), class_=f"number {'better' if ratio > 1 else 'far'}")
              for ratio in (1 / one.share, one.cold_speedup)),
            *times, f"{one.mounted_bytes / MEBI:.2f}", f"{one.ideal_bytes / MEBI:.2f}", f"{one.peak_bytes / MEBI:.0f}",
            f"{one.device}, {one.dtype}",
        ])  # fmt: skip
    heads = ["direction", "tokens", "conversion ms", "target prefill ms", "speed-up", "with source prefill",
             *(f"{stage.replace('_', ' ')} ms" for stage in stages), "mounted MiB", "2 P k d MiB", "peak MiB", "device"]  # fmt: skip
    table = grid("Latency of each context sample", heads, rows, range(1, len(heads) - 1))
    return tag("div", tag("figure", speedup_chart(records), tag("figcaption", "Target prefill / conversion, by context length")), table)
