"""`acct figures [figure ...]`: charts of a scale from its records and diagnoses."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

from acct.cli.appendix import named
from acct.config.root import Config, compose
from acct.errors import AcctError

logger = logging.getLogger(__name__)


def figures(arguments: list[str]) -> list[str]:
    """Draw the figures that are named, or all, into <results>/<scale>/figures; returns what to print.

    With `diagnosis.missing=true` finished runs that lack a diagnosis are diagnosed first.

    Raises:
        UnknownName: no such figure. ConfigError: a bad override, or matplotlib is not installed.
    """
    from acct.cli.evaluation import bootstrap_of
    from acct.reporting.charts.registry import write_charts
    from acct.reporting.charts.sources import Sources

    names, overrides = named(arguments)
    config = compose(overrides)
    results = Path(config.paths.results)
    if config.diagnosis.missing:
        diagnose_missing(config)
    sources = Sources(results, config.scale, config.budget.retention, config.paths.variant, bootstrap_of(config))
    lines = []
    for name, drawn in write_charts(sources, results / config.scale / "figures", names).items():
        lines += [f"wrote {path}" for path in drawn.files]
        lines += [f"{name}: {reason}." for reason in drawn.missing]
    return lines


def diagnose_missing(config: Config) -> list[Path]:
    """Diagnose every finished run of the scale that has no diagnosis yet, each with its own configuration.

    A run that cannot be diagnosed (its models have changed since, say) is named, and the others go on.
    """
    from acct.evaluation.diagnosis import FILE, diagnose
    from acct.transfer import read_config

    sizes = {f"diagnosis.{name}": value for name, value in asdict(config.diagnosis).items()}
    written = []
    for card in sorted((Path(config.paths.results) / config.scale).glob("*/compiler/card.json")):
        run = card.parent.parent
        if (run / FILE).is_file():
            continue
        try:
            written.append(diagnose(read_config(run, sizes)))
        except AcctError as error:
            logger.warning("%s is not diagnosed: %s", run, error)
    return written
