"""Metrics of a run: always to <run>/metrics.jsonl, besides that to W&B or TensorBoard when asked (loaded only then)."""

from acct.tracking.sink import RunLabel, Sink
from acct.tracking.tracker import Tracker, make_tracker, open_tracker

__all__ = ["RunLabel", "Sink", "Tracker", "make_tracker", "open_tracker"]
