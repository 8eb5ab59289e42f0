"""`acct latency`: one direction in this process; `acct latency all` or names: each direction in a worker of its own.

The last line on standard output is one JSON list with an object for each direction and length.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acct.cli.appendix import named
from acct.cli.plan import SIX, TIMED
from acct.config.root import Config, compose, config_folder
from acct.errors import AcctError, ConfigError, UnknownName

logger = logging.getLogger(__name__)
ALL = "all"


def latency(arguments: Sequence[str]) -> list[str]:
    """Time what the arguments name; returns the lines to print, the JSON document last.

    Raises:
        ConfigError: a bad override or placement. AcctError: every worker failed.
    """
    names, overrides = named(arguments)
    if names:
        if clash := [one for one in overrides if one.startswith("direction=")]:
            raise ConfigError(f"acct latency takes directions by name or one as an override, got {names[0]} and {clash[0]}. Leave one out.")
        return time_directions(names, overrides)
    config = compose(overrides)
    return [*time_direction(config), json.dumps(summaries(config, [config.direction.name]))]


def directions_to_time(scale: str) -> tuple[str, ...]:
    """What `all` names: the six of the scale, or those that are only timed there."""
    return TIMED.get(scale) or SIX[scale]


def time_direction(config: Config) -> list[str]:
    """Measure one direction here, write its document, tables and Figure 2; returns the paths.

    Raises:
        ConfigError, ModelError: see `acct.latency.measure.Suite`.
    """
    from acct.latency.busy import busy_warnings
    from acct.latency.measure import Suite
    from acct.latency.records import document, folder_of, write_document

    warnings = busy_warnings(used_gpus(config), config.latency.busy_percent)
    for warning in warnings:
        logger.warning("%s", warning)
    measured = Suite(config).run()
    found = document(config, measured, device_name(config), warnings)
    written = write_document(folder_of(config), found)
    for lost in found["skipped"]:
        logger.warning("%s at %s tokens was left out (%s): %s", found["direction"], lost["context_tokens"], lost["phase"], lost["reason"])
    return [f"wrote {written}", *render(config)]


def time_directions(names: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Measure directions in workers; returns paths, a line for each worker that failed, and the JSON document.

    Raises:
        UnknownName: no such direction. ConfigError: see `place`. AcctError: no worker finished.
    """
    from acct.latency.placement import place, visible_devices
    from acct.latency.records import folder_of
    from acct.latency.workers import run_workers

    config = compose(list(overrides))
    chosen = list(dict.fromkeys(one for name in names for one in (directions_to_time(config.scale) if name == ALL else (name,))))
    known = sorted(path.stem for path in (config_folder() / "direction").glob("*.yaml"))
    for name in chosen:
        if name not in known:
            raise UnknownName("direction", name, [ALL, *known])
    workers = place(config.latency, chosen, config.runtime.target_device, visible_devices())
    ended = run_workers(workers, overrides, folder_of(config), config.latency.timeout_seconds)
    failures = [f"{one.direction} failed: {one.failed} (all of it: {one.log})" for one in ended if one.failed]
    if len(failures) == len(ended):
        raise AcctError("no worker finished:\n" + "\n".join(failures))
    for failure in failures:
        logger.error("%s", failure)
    timed = [one.direction for one in ended if not one.failed]
    return [*render(config), *failures, json.dumps(summaries(config, timed))]


def render(config: Config) -> list[str]:
    """Tables and Figure 2 of everything that the scale's latency folder holds; returns what was written, or why a part was not."""
    from acct.latency.figure import figure2
    from acct.latency.records import folder_of, read_documents
    from acct.latency.tables import write_tables

    documents = read_documents(folder_of(config))
    lines = [f"wrote {path}" for path in write_tables(documents, Path(config.paths.tables))]
    try:
        drawn = figure2(documents, Path(config.paths.results) / config.scale / "figures")
    except ConfigError as error:
        return [*lines, f"figure2 is not drawn: {error}"]
    return lines + [f"wrote {path}" for path in drawn]


def summaries(config: Config, directions: Sequence[str]) -> list[dict[str, Any]]:
    """The lines of `latency.json` of these directions."""
    from acct.latency.records import folder_of, lines_of, read_documents

    return [line for found in read_documents(folder_of(config)) if found["direction"] in directions for line in lines_of(found)]


def used_gpus(config: Config) -> list[int]:
    """Physical indices of the GPUs that the configuration names, as far as CUDA_VISIBLE_DEVICES states them as numbers."""
    import torch

    runtime = config.runtime
    devices = {torch.device(name) for name in (runtime.source_device, runtime.interface_device, runtime.target_device)}
    wanted = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    stated = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    physical = [stated[index] if index < len(stated) else str(index) for index in wanted]
    return [int(one) for one in physical if one.isdigit()]


def device_name(config: Config) -> str:
    """How tables name the machine: the target's GPU, or the processor with its threads."""
    import torch

    from acct.latency.placement import threads_here
    from acct.provenance import describe

    device = torch.device(config.runtime.target_device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = threads_here(config.latency.threads) or torch.get_num_threads()
    return f"{describe()['processor']}, {threads} thread{'s' * (threads > 1)}"
