"""`acct dashboard`: publish the W&B dashboard of a project, or write its panels where there is no login."""

from __future__ import annotations

import json
from pathlib import Path

from acct.config.root import Config
from acct.errors import ConfigError
from acct.tracking.dashboard import NAME, specification, workspace
from acct.tracking.wandb_sink import resolved_mode
from acct.training.files import write_text

FILE = "dashboard.json"


def dashboard(config: Config) -> list[str]:
    """Write <results>/<scale>/dashboard.json and, online, save the workspace in the project; returns what to print.

    Raises:
        ConfigError: online, and wandb or wandb-workspaces is not installed, or W&B refuses.
    """
    tracker, tasks = config.tracker, config.evaluation.tasks
    place = Path(config.paths.results) / config.scale / FILE
    write_text(place, json.dumps(specification(tasks), indent=1) + "\n")
    lines = [f"wrote {place}"]
    if resolved_mode(tracker.mode) != "online":
        return [*lines, "W&B is offline: `wandb login`, then the same command publishes these panels as a workspace."]
    try:
        entity = tracker.entity or default_entity()
        workspace(tasks, entity, tracker.project).save()
    except ConfigError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"W&B refused the dashboard of project {tracker.project!r} ({type(error).__name__}: {reason}). Check the login and "
            "tracker.entity; tracker.mode=offline writes the panels only."
        ) from error
    return [*lines, f"published as the workspace {NAME!r} of {entity}/{tracker.project}"]


def default_entity() -> str:
    """The entity of the login."""
    try:
        import wandb
    except ImportError as error:
        raise ConfigError("publishing the dashboard needs the package wandb: pip install 'acct[track]'.") from error
    return str(wandb.Api().default_entity)
