"""Whether other work runs on the GPUs that are about to be timed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

QUERY = ("nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits")


def ask(command: Sequence[str] = QUERY) -> str:
    """What nvidia-smi prints, "" where it cannot be asked."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def busy_warnings(devices: Sequence[int], limit: float, query: Callable[[], str] = ask) -> list[str]:
    """One sentence for each of the GPUs (physical indices) whose load is above `limit` percent."""
    warnings = []
    for line in query().splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[0].isdigit() and int(fields[0]) in devices and fields[1].isdigit() and int(fields[1]) > limit:
            warnings.append(
                f"GPU {fields[0]} is busy: {fields[1]} % load, {fields[2]} MiB in use before anything is timed. Times will be too long; "
                "wait for it to be idle, or raise latency.busy_percent."
            )
    return warnings
