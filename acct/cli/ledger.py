"""From a configuration to the arguments of the claims ledger and of the report page; no arithmetic."""

from __future__ import annotations

from acct.cli.evaluation import bootstrap_of
from acct.config.root import Config
from acct.reporting.claims_render import write_claims
from acct.reporting.html import write_report


def claims_of_scale(config: Config) -> list[str]:
    """Write the ledger of a scale; returns what to print."""
    written = write_claims(config.paths.results, config.scale, bootstrap=bootstrap_of(config), margin=config.evaluation.control_margin)
    return [*written.lines, *(f"wrote {path}" for path in written.files)]


def report_of_scale(config: Config) -> list[str]:
    """Write the page of a scale; returns what to print."""
    place = write_report(
        config.paths.results, config.scale, retention=config.budget.retention, bootstrap=bootstrap_of(config),
        margin=config.evaluation.control_margin,
    )  # fmt: skip
    return [f"wrote {place} ({place.stat().st_size / 2**20:.1f} MiB, self-contained): open it in a browser"]
