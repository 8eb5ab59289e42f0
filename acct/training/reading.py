"""States of the frozen models read before training, where they are kept on disk (spec 5).

In the batches of training, drawn at random, padding is read too, and every token of a continuation costs a pass over all weights for a
few examples. Here examples of similar length are read together, more of them at a time, under a progress display of their own. A killed
run goes on with what is missing.
"""

from __future__ import annotations

import torch

from acct.cpu import kept_memory
from acct.data.batches import length_sorted_batches
from acct.generation import stop_tokens
from acct.progress import Progress
from acct.training.modules import utility_rows
from acct.training.session import Examples, Session


@torch.no_grad()
def read_ahead(session: Session, examples: Examples, label: str = "states") -> int:
    """Read what the Cartographer asks of both models about these examples and what is not stored yet.

    Without a folder for states, or with `training.read_ahead` of 0, nothing is read. Where storing stops (a full disk, the limit), reading
    ahead stops too: what it would read is of no use to the steps.

    Returns:
        How many examples were read.
    """
    config, pair, parallel, cache = session.config, session.pair, session.parallel, session.states
    together, rows = config.training.read_ahead, config.supervision.continuation_rows
    if cache.store is None or not together or not len(examples):
        return 0
    stops = stop_tokens(pair.target)
    parallel.barrier()  # all processes see the same files
    own = utility_rows(config)
    missing = [i for i in range(len(examples)) if cache.absent(pair.source, pair.target, examples.batch([i]), rows, stops, own)]
    parallel.barrier()
    if not missing:
        return 0
    read = 0
    batches = length_sorted_batches([examples.items[index] for index in missing], together)
    display = Progress(label, len(missing), every=config.runtime.progress_seconds, enabled=parallel.main)
    with session.provenance.phase("read ahead"), kept_memory(config.runtime.keep_memory), display:
        for batch in batches:
            if not cache.store.storing:
                break
            if mine := parallel.share([missing[place] for place in batch]):
                tokens = examples.batch(mine)
                session.read_source(tokens)
                cache.rows(pair.target, tokens, config.supervision.query_rows, rows, stops)
            display.update(len(batch))
            read += len(batch)
    parallel.barrier()
    return read
