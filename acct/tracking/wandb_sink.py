"""Weights & Biases: runs grouped by direction and by what is done, metrics against the step of their own stage, tables, images, artifacts.

Offline wherever there is no login: everything lies in <run>/wandb then, and `wandb sync <run>/wandb/offline-run-*` uploads it later.
"""

from __future__ import annotations

import logging
import netrc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from acct.config.runtime import TrackerConfig
from acct.errors import ConfigError
from acct.tracking.sink import RunLabel, Sink, Value

logger = logging.getLogger(__name__)
HOST = "https://api.wandb.ai"
TAG_LENGTH = 64  # of W&B


def logged_in(environment: Mapping[str, str] | None = None) -> bool:
    """Whether W&B would find a key: WANDB_API_KEY, WANDB_IDENTITY_TOKEN_FILE, or the host's entry in the netrc file."""
    environment = os.environ if environment is None else environment
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    hosts = {urlparse(url).hostname or "" for url in ([environment["WANDB_BASE_URL"]] if environment.get("WANDB_BASE_URL") else services())}
    home = Path(environment.get("HOME") or Path.home())
    places = [Path(environment["NETRC"])] if environment.get("NETRC") else [home / ".netrc", home / "_netrc"]
    for place in places:
        try:
            found = netrc.netrc(str(place))
        except (OSError, netrc.NetrcParseError):
            continue
        if any(host in found.hosts for host in hosts):
            return True
    return False


def services() -> list[str]:
    """Addresses of W&B's service: the long-standing one, and what the installed package takes by default."""
    try:
        from wandb import Settings
    except ImportError:
        return [HOST]
    return [HOST, str(Settings.model_fields["base_url"].default)]


def resolved_mode(mode: str) -> str:
    """ "online", "offline" or "disabled": WANDB_MODE where it is set, then tracker.mode; auto is online where there is a login."""
    mode = os.environ.get("WANDB_MODE") or mode
    if mode == "auto":
        return "online" if logged_in() else "offline"
    return mode


class WandbSink(Sink):
    """One W&B run.

    Args:
        folder: its files lie in <folder>/wandb. label: name, group, job type and tags. config: shown beside the run.
    Raises:
        ConfigError: wandb is not installed.
    """

    name = "W&B"

    def __init__(self, folder: Path, settings: TrackerConfig, label: RunLabel, config: Mapping[str, Any]):
        try:
            import wandb
        except ImportError as error:
            raise ConfigError("tracker.kind=wandb needs the package wandb: pip install 'acct[track]', or tracker.kind=none.") from error
        self.wandb = wandb
        wanted = {
            "silent": True, "console": "off", "x_stats_sampling_interval": settings.system_seconds,
            "init_timeout": settings.patience_seconds, "finish_timeout": settings.patience_seconds,
        }  # fmt: skip
        self.options = {
            "project": settings.project, "entity": settings.entity, "name": f"{label.name} {label.job}", "group": label.group or None,
            "job_type": label.job, "tags": [tag[:TAG_LENGTH] for tag in label.tags], "dir": str(folder), "config": dict(config),
            "settings": wandb.Settings(**{name: value for name, value in wanted.items() if name in wandb.Settings.model_fields}),
        }  # fmt: skip
        self.run = self._start(resolved_mode(settings.mode))
        self.stages: set[str] = set()

    def _start(self, mode: str) -> Any:
        try:
            return self.wandb.init(mode=mode, **self.options)
        except Exception as error:
            if mode != "online":
                raise
            logger.warning(
                "W&B cannot be reached (%s). This run is kept offline in <run>/wandb: `wandb sync` uploads it, tracker.mode=offline "
                "silences this.", " ".join(str(error).split())[:200],
            )  # fmt: skip
            return self.wandb.init(mode="offline", **self.options)

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if stage not in self.stages:  # each stage counts its own steps: charts of two stages do not share an axis
            self.stages.add(stage)
            self.run.define_metric(f"{stage}/step", hidden=True)
            self.run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        self.run.log({f"{stage}/{name}": value for name, value in metrics.items()} | {f"{stage}/step": step})

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        self.run.log({key: self.wandb.Table(columns=list(columns), data=[list(row) for row in rows], allow_mixed_types=True)})

    def image(self, key: str, path: Path) -> None:
        self.run.log({key: self.wandb.Image(str(path))})

    def artifact(self, name: str, kind: str, files: Sequence[Path], metadata: Mapping[str, Any]) -> None:
        found = self.wandb.Artifact(name, type=kind, metadata=dict(metadata))
        for file in files:
            found.add_file(str(file), policy="immutable", skip_cache=True)  # weights are not copied first
        self.run.log_artifact(found)

    def close(self, failed: bool = False) -> None:
        self.run.finish(exit_code=int(failed))
