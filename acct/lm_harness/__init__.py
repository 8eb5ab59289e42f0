"""lm-eval, both ways: its command runs this package's methods (`--model acct`), and `acct evaluate` runs its tasks.

Importing registers the model's name with lm-eval, lazily. lm-eval imports this package by itself where it knows the entry point group
`lm_eval.models` (versions after 0.4.13), and where one of the YAML files in TASKS is given by its path; `acct lm-eval` imports it first.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

NAME = "acct"
TASKS = Path(__file__).parent / "tasks"

if find_spec("lm_eval") is not None:
    from lm_eval import models  # noqa: F401 (lm-eval adds its own models only to an empty registry: before ours, or never)
    from lm_eval.api.registry import model_registry

    if NAME not in model_registry:
        model_registry.register(NAME, target="acct.lm_harness.model:AcctLM")
