"""Latency records as tables and the claims ledger read them: <results>/<scale>/latency/latency.json (spec 9).

The file is a list of objects, one for each direction and length. Ratios are computed here from the milliseconds; a `speedup` in the
file that disagrees with its own milliseconds is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from acct.errors import ArtifactError
from acct.json_files import read_json

PLACE = Path("latency") / "latency.json"
SOURCE_PREFILL = "source_prefill"
AGREEMENT = 0.02  # speed-ups may be rounded in the file
_NUMBERS = ("conversion_ms", "target_prefill_ms", "speedup", "cold_speedup", "mounted_bytes", "ideal_bytes", "peak_bytes")


@dataclass(frozen=True)
class LatencyRecord:
    """One context sample of one direction.

    Attributes:
        context_tokens: N. device, dtype: what it ran on and in. stages_ms: median of each stage.
        conversion_ms: Cartographer + Allocator + Compiler. target_prefill_ms: the target's own run over the context.
        speedup: target prefill / conversion. cold_speedup: target prefill / (source prefill + conversion + packing + rotation).
        mounted_bytes, ideal_bytes: measured, and 2 P k d bytes per number. peak_bytes: most memory that one conversion
            holds beside its inputs, its output included.
    """

    direction: str
    context_tokens: int
    device: str
    dtype: str
    stages_ms: dict[str, float]
    conversion_ms: float
    target_prefill_ms: float
    speedup: float
    cold_speedup: float
    mounted_bytes: float
    ideal_bytes: float
    peak_bytes: float

    @property
    def share(self) -> float:
        """Conversion as a share of target prefill."""
        return self.conversion_ms / self.target_prefill_ms

    @property
    def source_over_target(self) -> float | None:
        """Source prefill / target prefill; None where the source's own time was not kept."""
        source = self.stages_ms.get(SOURCE_PREFILL)
        return None if source is None else source / self.target_prefill_ms


def read_latency(path: Path | str) -> tuple[LatencyRecord, ...]:
    """Every record of a file, by direction and length; empty where there is no file.

    Raises:
        ArtifactError: not a JSON list of objects, a field that is missing or of another type, a length twice, or a speed-up that its
            own milliseconds contradict; the row and the field are named.
    """
    path = Path(path)
    if not path.is_file():
        return ()
    rows = read_json(path, "Measure the latency again.", list, finite=False)
    records = [_record(row, f"{path}, row {number}") for number, row in enumerate(rows)]
    seen: set[tuple[str, int]] = set()
    for record in records:
        key = (record.direction, record.context_tokens)
        if key in seen:
            raise ArtifactError(f"{path} holds {record.direction} at {record.context_tokens} tokens more than once. Keep one of them.")
        seen.add(key)
    return tuple(sorted(records, key=lambda record: (record.direction, record.context_tokens)))


def _record(row: Any, where: str) -> LatencyRecord:
    if not isinstance(row, dict):
        raise ArtifactError(f"{where} must be an object, got {type(row).__name__}.")
    names = [field.name for field in fields(LatencyRecord)]
    missing = [name for name in names if name not in row]
    if missing:
        raise ArtifactError(f"{where} lacks {', '.join(missing)}; expected {', '.join(names)}.")
    for name in ("direction", "device", "dtype"):
        if not isinstance(row[name], str):
            raise ArtifactError(f"{where}: {name} must be text, got {row[name]!r}.")
    stages = row["stages_ms"]
    if not isinstance(stages, dict) or not all(_positive(value, True) for value in stages.values()):
        raise ArtifactError(f"{where}: stages_ms must map each stage to milliseconds of at least 0, got {stages!r}.")
    tokens = row["context_tokens"]
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise ArtifactError(f"{where}: context_tokens must be a whole number of at least 1, got {tokens!r}.")
    for name in _NUMBERS:
        if not _positive(row[name], name.endswith("bytes")):
            raise ArtifactError(f"{where}: {name} must be a positive number, got {row[name]!r}.")
    record = LatencyRecord(
        row["direction"], tokens, row["device"], row["dtype"], {name: float(value) for name, value in stages.items()},
        *(float(row[name]) for name in _NUMBERS),
    )  # fmt: skip
    if not math.isclose(record.speedup * record.share, 1.0, rel_tol=AGREEMENT):
        raise ArtifactError(
            f"{where}: speedup is {record.speedup:g}, but target_prefill_ms / conversion_ms is {1 / record.share:g}. Measure again."
        )
    return record


def _positive(value: Any, zero: bool = False) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return number and (value > 0 or (zero and value == 0))
