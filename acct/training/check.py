"""`acct check`: native states mounted at every position must reproduce the target's native run (spec 7)."""

from __future__ import annotations

from acct.config.root import Config
from acct.interface_check import interface_check
from acct.training.session import open_session


def check_direction(config: Config) -> str:
    """Run the interface check on the first held-out examples; returns the report in words.

    Raises:
        InterfaceError: tokens differ, or a likelihood by more than evaluation.check_tolerance.
    """
    with open_session(config, record=False) as session:
        found = session.held_out.first(config.evaluation.check_examples)
        batch = found.batch(range(len(found)))
        report = interface_check(session.pair.target, batch, config.evaluation.check_tokens, config.evaluation.check_tolerance)
        geometry = session.pair.geometry
        return (
            f"{config.direction.name}: interface check passed on {len(found)} examples (contexts of "
            f"{int(batch.context_lengths.min())} to {int(batch.context_lengths.max())} tokens): same tokens and stop, "
            f"largest NLL difference {report.nll_difference:.2e}, largest logit difference {report.logit_difference:.2e} (smallest margin "
            f"{report.smallest_margin:.2e}). Units {geometry.units} ({geometry.target.layers} layers x {geometry.target.kv_heads} heads)."
        )
