"""`acct <command> group=choice group.field=value ...`: the entry point, and the one place that turns errors into messages.

A mistake of the user's (settings, files, models, a full disk) prints one message and exits with 2, Ctrl-C with 130; a traceback means a
fault of ours.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Sequence

from acct.errors import AcctError

COMMANDS: dict[str, str] = {
    "train": "stage=cartographer|allocator|compiler|all, or ridge (linear maps); -m sweeps (direction=glob(*) budget.retention=1.0,0.5)",
    "evaluate": "score the methods on the tasks; writes per-example records",
    "tables": "render tables from records",
    "claims": "the ledger: what the paper claims beside what this scale measured, with a verdict",
    "report": "one self-contained HTML page of a scale: tables, claims, charts, latency, controls, configuration",
    "dashboard": "the panels of the W&B dashboard: published where there is a login, written as JSON elsewhere",
    "appendix": "tables of the appendix, all or by name, from configuration, geometry and records: appendix table5 scale=paper",
    "diagnose": "what a trained direction does inside, on held-out examples: ranking, Bridge and attention in every layer",
    "figures": "charts, all or by name, from records and diagnoses; diagnosis.missing=true diagnoses first",
    "latency": "times of every stage beside the target's own prefill: one direction here, or latency all, each in a worker of its own",
    "reproduce": "reproduce table1|table2|table3|appendix|all: train and evaluate every run of it side by side, then render",
    "lm-eval": "lm-eval's own command with the model `acct`: --model acct --model_args direction=...,method=... --tasks ...",
    "check": "interface check: native states mounted at every position reproduce the native run",
    "generate": "answer a query about a context: context=@file query='...'",
    "choices": "the table of choices on which the paper is silent, as Markdown",
}
EXIT_MISTAKE, EXIT_INTERRUPTED = 2, 130


def usage() -> str:
    """What `acct --help` prints."""
    width = max(map(len, COMMANDS))
    lines = ["acct <command> [group=choice] [group.field=value] ...", ""]
    lines += [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    lines += ["", "Directions, scales and experiments: the folders of conf/. `acct <command> --cfg job` prints the composed configuration."]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else EXIT_MISTAKE
    command, rest = arguments[0], arguments[1:]
    try:
        return run(command, rest)
    except KeyboardInterrupt as error:
        _complain(f"Interrupted: {error}" if str(error) else "Interrupted. Finished stages and checkpoints are kept.")
        return EXIT_INTERRUPTED
    except AcctError as error:
        _complain(f"{type(error).__name__}: {error}")
        return EXIT_MISTAKE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_MISTAKE
    except Exception as error:
        message = message_of(error, rest)
        if message is None:
            raise
        _complain(message)
        return EXIT_MISTAKE


def message_of(error: BaseException, arguments: Sequence[str] = ()) -> str | None:
    """What a user is told about an error; None for a fault of ours."""
    from acct.cli.mistakes import explain

    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = error.filename or "a file"
        return f"ArtifactError: no space left on the device ({place}). What was finished is kept: free space, go on."
    return explain(error, arguments)


def _complain(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def run(command: str, arguments: list[str]) -> int:
    """Compose the configuration with Hydra and call the command."""
    from acct.errors import UnknownName

    if command not in COMMANDS:
        raise UnknownName("command", command, COMMANDS)
    if command == "choices":
        from acct.config.root import choices_table

        print(choices_table(), end="")
        return 0
    if command == "lm-eval":
        from acct.lm_harness.cli import main as lm_eval

        return lm_eval(arguments)
    if command in ("appendix", "figures", "latency"):
        from acct.cli.appendix import appendix
        from acct.cli.commands import log_to_terminal
        from acct.cli.figures import figures
        from acct.cli.latency import latency

        log_to_terminal()
        print("\n".join({"appendix": appendix, "figures": figures, "latency": latency}[command](arguments)))
        return 0
    if command == "reproduce":
        from acct.cli.commands import log_to_terminal
        from acct.cli.reproduce import reproduce

        log_to_terminal()
        reproduce(arguments)
        return 0
    from acct.cli import commands

    arguments = [quoted(argument) for argument in arguments]
    return compose_and_call(command, arguments, getattr(commands, command))


def quoted(argument: str) -> str:
    """`context=` and `query=` with their text quoted for Hydra's grammar, which gives commas, colons and quotes a meaning."""
    name, sign, text = argument.partition("=")
    if name not in ("context", "query") or not sign or text[:1] in ("'", '"'):
        return argument
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", text)
    escaped = re.sub(r"(\\+)$", lambda found: found[1] * 2, escaped)
    return f"{name}='{escaped.replace('${', chr(92) + '${')}'"


def compose_and_call(command: str, arguments: list[str], action: Callable[..., object]) -> int:
    """Let Hydra parse the overrides (a sweep with -m) and call `action(config)` for each composed configuration.

    A failing job does not stop a sweep: all of them run, then the failed ones are named. Without a sweep the error is raised as it is.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    from acct.cli.sweep import Outcomes, fixed_overrides, is_sweep, of_the_scale
    from acct.config.root import compose, config_folder, register, to_config

    register()
    outcomes: Outcomes | None = None
    if is_sweep(arguments):
        shared = compose(fixed_overrides(arguments))
        arguments, outcomes = of_the_scale(arguments, shared.scale), Outcomes(shared.paths.results)
    failures: list[BaseException] = []

    @hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")
    def job(composed: DictConfig) -> None:
        if outcomes is not None:
            register()  # in a process of a launcher's nothing is registered yet
            settings = HydraConfig.get()
            overrides = list(settings.overrides.task)
            outcomes.run(overrides, settings.job.num, lambda: action(to_config(composed)), lambda error: message_of(error, overrides))
            return
        try:
            action(to_config(composed))
        except Exception as error:
            failures.append(error)

    before_argv, before_full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [f"acct {command}", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing its own traceback; `main` explains
    stopped: Exception | None = None
    try:
        job()
    except Exception as error:
        if outcomes is None or not outcomes.read():  # the overrides themselves are at fault
            raise
        stopped = error
    finally:
        sys.argv = before_argv
        if before_full is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        else:
            os.environ["HYDRA_FULL_ERROR"] = before_full
    if failures:
        raise failures[0]
    if outcomes is not None:
        outcomes.close(stopped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
