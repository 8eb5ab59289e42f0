"""One plain function for each command: it takes the configuration and calls the package."""

from __future__ import annotations

import logging
from pathlib import Path

from acct.config.root import Config
from acct.errors import InputError


def log_to_terminal() -> None:
    """Messages of the library on standard error; done by commands, never by an import."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for noisy in ("httpx", "urllib3", "filelock", "fontTools", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def train(config: Config) -> None:
    """`acct train`: the stages that `stage` names."""
    log_to_terminal()
    from acct.training.run import train as run

    run(config)


def evaluate(config: Config) -> None:
    """`acct evaluate`: records of every method and task of one direction."""
    log_to_terminal()
    from acct.cli.evaluation import evaluate_direction
    from acct.tracking.outcomes import track_evaluation

    report = evaluate_direction(config)
    track_evaluation(config, report)
    print("\n".join(report.lines()))


def tables(config: Config) -> None:
    """`acct tables`: tables from the records of a scale, and what is missing."""
    log_to_terminal()
    from acct.cli.tables import tables_and_missing

    print("\n".join(tables_and_missing(config)))


def claims(config: Config) -> None:
    """`acct claims`: the ledger of the paper's claims, from everything that a scale has measured."""
    log_to_terminal()
    from acct.cli.ledger import claims_of_scale

    print("\n".join(claims_of_scale(config)))


def report(config: Config) -> None:
    """`acct report`: one HTML page of everything that a scale has measured."""
    log_to_terminal()
    from acct.cli.ledger import report_of_scale

    print("\n".join(report_of_scale(config)))


def dashboard(config: Config) -> None:
    """`acct dashboard`: publish the W&B dashboard, or write its panels."""
    log_to_terminal()
    from acct.cli.dashboard import dashboard as run

    print("\n".join(run(config)))


def check(config: Config) -> None:
    """`acct check`: the interface check on the first held-out examples (spec 7)."""
    log_to_terminal()
    from acct.training.check import check_direction

    print(check_direction(config))


def diagnose(config: Config) -> None:
    """`acct diagnose`: per-layer measures of the run folder's interface on held-out examples."""
    log_to_terminal()
    from acct.evaluation.diagnosis import diagnose as run
    from acct.tracking.outcomes import track_diagnosis

    place = run(config)
    track_diagnosis(config)
    print(f"wrote {place}")


def generate(config: Config) -> None:
    """`acct generate context=@file query=...`: the target answers from transferred states."""
    log_to_terminal()
    from acct.transfer import ContextTransfer

    context, query = text_of(config.context, "context"), text_of(config.query, "query")
    transfer = ContextTransfer.from_config(config)
    print(transfer.generate(transfer.read(context), query, config.max_new_tokens))


def text_of(value: str, name: str) -> str:
    """The text itself, or the content of the file after "@".

    Raises:
        InputError: nothing given, or a file that cannot be read.
    """
    if value.startswith("@"):
        path = Path(value[1:]).expanduser()
        try:
            value = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{name}=@{path} cannot be read as text: {getattr(error, 'strerror', None) or error}.") from error
    if not value.strip():
        raise InputError(f"{name} is empty. Give {name}='some text', or {name}=@file.")
    return value
