"""Sweeps (`-m`): every job runs whatever happens to the others, and what failed is told at the end, under any of Hydra's launchers.

A job leaves its outcome as a file, because the joblib and submitit launchers run jobs in other processes, on a cluster on other machines.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from acct.errors import AcctError, ConfigError

FLAGS = ("-m", "--multirun")
GLOB = re.compile(r"direction=glob\(\s*(?P<pattern>[^,()]*?)\s*\)")


def is_sweep(arguments: Sequence[str]) -> bool:
    """Whether Hydra is asked for several jobs."""
    return any(argument in FLAGS for argument in arguments)


def fixed_overrides(arguments: Sequence[str]) -> list[str]:
    """What all jobs of a sweep share: overrides that name one value, without options and Hydra's own settings."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    given = [one for one in arguments if "=" in one and not one.startswith(("-", "hydra.", "hydra/", "+hydra"))]
    parsed = OverridesParser.create().parse_overrides(given)
    return [text for text, override in zip(given, parsed) if not override.is_sweep_override()]


def of_the_scale(arguments: Sequence[str], scale: str) -> list[str]:
    """`direction=glob(pattern)` with the directions of this scale only: glob(*) would otherwise mix embedded, random and hub models.

    Raises:
        ConfigError: no direction of the scale fits the pattern.
    """
    from acct.cli.plan import directions_of

    known = directions_of(scale)
    found = []
    for argument in arguments:
        match = GLOB.fullmatch(argument)
        if match is None:
            found.append(argument)
            continue
        names = [name for name in known if fnmatch.fnmatchcase(name, match["pattern"].strip("'\""))]
        if not names:
            raise ConfigError(f"{argument} fits no direction of scale={scale}. There are: {', '.join(known)}.")
        found.append(f"direction={','.join(names)}")
    return found


class Outcomes:
    """Where the jobs of one sweep leave how they ended: <results>/multirun/outcomes-<id>/<number>.json.

    Args:
        results: root of everything that the sweep writes; made absolute, because jobs may start elsewhere.
    """

    def __init__(self, results: str):
        name = f"outcomes-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self.folder = Path(results).resolve() / "multirun" / name

    def run(
        self, overrides: Sequence[str], number: int, action: Callable[[], object], explain: Callable[[BaseException], str | None]
    ) -> None:
        """Run one job and note its end; an exception of the job's is noted, not raised. An interrupt ends the sweep.

        Args:
            explain: a message for a user's mistake; None for a fault of ours, whose traceback is printed.
        """
        failed = None
        try:
            action()
        except Exception as error:
            failed = explain(error)
            if failed is None:
                traceback.print_exc()
                failed = f"{type(error).__name__}: {error} (a fault of this package; its traceback is above)"
            print(f"job {number} ({' '.join(overrides)}) failed: {failed}", file=sys.stderr, flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.folder / f"{number}.json"
        partial = place.with_suffix(".partial")
        partial.write_text(json.dumps({"overrides": list(overrides), "failed": failed}), encoding="utf-8")
        os.replace(partial, place)

    def read(self) -> list[dict[str, Any]]:
        """Outcomes in the order of the jobs."""
        places = sorted(self.folder.glob("*.json"), key=lambda place: int(place.stem))
        return [json.loads(place.read_text(encoding="utf-8")) for place in places]

    def close(self, stopped: BaseException | None = None) -> None:
        """Print how many jobs finished.

        Args:
            stopped: what the launcher raised, where it did: a job's process was killed, say.
        Raises:
            AcctError: some failed; all of them are named.
        """
        found = self.read()
        failures = [f"{' '.join(one['overrides'])}: {one['failed']}" for one in found if one["failed"]]
        if stopped is not None:
            failures.append(f"the launcher stopped, {type(stopped).__name__}: {' '.join(str(stopped).split())[-300:]}")
        done = len(found) - sum(one["failed"] is not None for one in found)
        print(f"sweep: {done} of {len(found)} jobs finished" + (f" (outcomes in {self.folder})" if failures else ""))
        if failures:
            raise AcctError(
                f"{len(failures)} of the sweep's jobs failed; the others are kept, and the same command runs again what is missing:\n"
                + "\n".join(failures)
            )
