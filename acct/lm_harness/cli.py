"""`acct lm-eval ...`: lm-eval's own command line, with the model `acct` and the package's tasks known to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from acct.errors import ConfigError
from acct.lm_harness import TASKS


def main(arguments: Sequence[str]) -> int:
    """Run lm-eval with these arguments; those of `lm_eval` itself, unchanged. `--include_path` defaults to the package's tasks.

    Raises:
        ConfigError: lm-eval is not installed.
    """
    try:
        from lm_eval._cli import HarnessCLI
        from lm_eval.utils import setup_logging
    except ImportError as error:
        raise ConfigError("acct lm-eval needs the package lm-eval: pip install 'acct[eval]'.") from error
    words = list(arguments)
    if words and words[0] not in ("ls", "run", "validate", "-h", "--help"):
        words.insert(0, "run")
    if len(words) > 1 and not any(word.startswith("--include_path") for word in words) and not {"-h", "--help"} & set(words):
        words += ["--include_path", str(TASKS)]
    before = sys.argv
    sys.argv = ["lm_eval", *words]
    try:
        setup_logging()
        command = HarnessCLI()
        command.execute(command.parse_args())
    finally:
        sys.argv = before
    return 0
