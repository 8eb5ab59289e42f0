"""`python -m acct.lm_harness ...` is `acct lm-eval ...`."""

from __future__ import annotations

import sys

from acct.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["lm-eval", *sys.argv[1:]]))
