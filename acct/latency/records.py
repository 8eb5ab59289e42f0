"""What a measurement leaves behind: <results>/<scale>/latency/<direction>.json with everything, latency.json with one line for each length.

The file of a direction holds every repetition, operations, bytes and roofline of every stage, the machine, the versions and the settings.
`latency.json` is what tables and the ledger of claims read (`acct.reporting.claims_latency`); it is made anew from the directions' files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acct.config.latency import CONVERSION
from acct.config.root import Config, as_dict
from acct.errors import ArtifactError
from acct.json_files import read_json
from acct.latency.ceilings import Ceilings
from acct.latency.clock import Timing
from acct.latency.counting import Work
from acct.latency.measure import Measured, Sample
from acct.provenance import describe
from acct.reporting.claims_latency import PLACE
from acct.training.files import write_text

FORMAT = "acct-latency-1"
AGAIN = "Measure it again: acct latency."
MODEL_STAGES = {"source_prefill": "source", "target_prefill": "target", "query_native": "target", "query_mounted": "target"}


def folder_of(config: Config) -> Path:
    """<results>/<scale>/latency."""
    return (Path(config.paths.results) / config.scale / PLACE).parent


def stage_record(timing: Timing, work: Work | None, ceilings: Ceilings) -> dict[str, Any]:
    """Median, 5th and 95th percentile, every call, memory, and the roofline with the distance to it (measured / bound)."""
    found: dict[str, Any] = {
        "median_ms": timing.median_ms, "p5_ms": timing.percentile(5), "p95_ms": timing.percentile(95), "raw_ms": timing.raw_ms,
        "warmup_ms": timing.warmup_ms, "peak_bytes": timing.peak_bytes,
    }  # fmt: skip
    if work is not None:
        bound = ceilings.bound_ms(work.flops, work.bytes)
        found |= {"flops": work.flops, "bytes": work.bytes, "bound_ms": bound, "times_bound": timing.median_ms / bound}
    return found


def stage_records(sample: Sample, ceilings: dict[str, Ceilings]) -> dict[str, dict[str, Any]]:
    """`stage_record` of every stage of a sample."""
    return {
        stage: stage_record(timing, sample.work.get(stage), ceilings[MODEL_STAGES.get(stage, "interface")])
        for stage, timing in sample.clock.timings.items()
    }


def conversion_ms(stages_ms: dict[str, float]) -> float:
    """Cartographer + Allocator + Compiler."""
    return sum(stages_ms[stage] for stage in CONVERSION)


def summary(direction: str, device: str, dtype: str, sample: Sample) -> dict[str, Any]:
    """The line of one length, as `claims_latency.read_latency` wants it."""
    medians = {stage: timing.median_ms for stage, timing in sample.clock.timings.items()}
    stages = {stage: value for stage, value in medians.items() if not stage.startswith("ridge")}
    conversion, target = conversion_ms(medians), medians["target_prefill"]
    construction = medians["source_prefill"] + conversion + medians["packing"] + medians["rotation"]
    return {
        "direction": direction, "context_tokens": sample.tokens, "device": device, "dtype": dtype, "stages_ms": stages,
        "conversion_ms": conversion, "target_prefill_ms": target, "speedup": target / conversion, "cold_speedup": target / construction,
        "mounted_bytes": sample.mounted_bytes, "ideal_bytes": sample.ideal_bytes, "peak_bytes": sample.conversion_peak_bytes,
        "ridge_ms": {stage.removeprefix("ridge_"): value for stage, value in medians.items() if stage.startswith("ridge_")},
        "compile_ms": sample.compile_ms,
    }  # fmt: skip


def growth_exponent(lengths: Sequence[int], milliseconds: Sequence[float]) -> float | None:
    """Slope of log time over log length by least squares; None for fewer than two lengths."""
    if len(set(lengths)) < 2:
        return None
    return float(np.polyfit(np.log(lengths), np.log(milliseconds), 1)[0])


def document(config: Config, measured: Measured, device: str, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Everything about one direction.

    Args:
        device: how the machine is named in tables.
    """
    name, dtype = config.direction.name, config.runtime.dtype
    lines = [summary(name, device, dtype, sample) for _, sample in sorted(measured.samples.items())]
    growth = [
        {
            "context_tokens": tokens, "stages": stage_records(sample, measured.ceilings),
            "conversion_ms": conversion_ms({stage: timing.median_ms for stage, timing in sample.clock.timings.items()}),
            "peak_bytes": sample.conversion_peak_bytes, "ideal_bytes": sample.ideal_bytes,
        }
        for tokens, sample in sorted(measured.growth.items())
    ]  # fmt: skip
    exponent = growth_exponent([one["context_tokens"] for one in growth], [one["conversion_ms"] for one in growth])
    settings = as_dict(config)
    return {
        "format": FORMAT, "direction": name, "family": measured.geometry.target.family,
        "source": config.direction.source, "target": config.direction.target,
        "records": [line | {"stages": stage_records(measured.samples[line["context_tokens"]], measured.ceilings)} for line in lines],
        "growth": growth, "growth_exponent": exponent, "skipped": measured.skipped, "warnings": list(warnings),
        "ceilings": {part: vars(ceilings) for part, ceilings in measured.ceilings.items()},
        "memory": "peak_bytes: CUDA max_memory_allocated, or on the CPU the storages that PyTorch operations returned; beside the inputs",
        "config": {part: settings[part] for part in ("scale", "direction", "budget", "cartographer", "compiler", "runtime", "latency")},
        "provenance": describe(),
    }  # fmt: skip


def lines_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of `latency.json` of one direction's document."""
    return [{key: value for key, value in record.items() if key != "stages"} for record in found["records"]]


def write_document(folder: Path, found: dict[str, Any]) -> Path:
    """Write <folder>/<direction>.json and make <folder>/latency.json anew; returns the first."""
    path = folder / f"{found['direction']}.json"
    write_text(path, json.dumps(found, indent=1, allow_nan=False) + "\n")
    merge(folder)
    return path


def read_documents(folder: Path) -> list[dict[str, Any]]:
    """Documents of every direction of a folder, by name.

    Raises:
        ArtifactError: a file that is no document of this format.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        if path.name == PLACE.name:
            continue
        value = read_json(path, AGAIN)
        missing = {"direction", "records", "ceilings", "provenance", "config", "family"} - set(value)
        if value.get("format") != FORMAT or missing:
            raise ArtifactError(f"{path} is no document of format {FORMAT!r} (lacks {', '.join(sorted(missing)) or 'nothing'}). {AGAIN}")
        found.append(value)
    return found


def merge(folder: Path) -> list[dict[str, Any]]:
    """Write <folder>/latency.json from all directions' documents; returns its lines."""
    lines = [line for found in read_documents(folder) for line in lines_of(found)]
    write_text(folder / PLACE.name, json.dumps(lines, indent=1, allow_nan=False) + "\n")
    return lines
