"""The Allocator's terms (spec 5, paper B.2): answer NLL on the hard selection, soft path backward; output KL, weight 0."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from acct.errors import DataError


def _mean_by_example(losses: Tensor, mask: Tensor) -> Tensor:
    counts = mask.sum(dim=1)
    if bool((counts == 0).any()):
        raise DataError(
            f"example {int((counts == 0).nonzero()[0])} has no answer token under the loss. Its first answer must not be empty."
        )
    return (losses.masked_fill(~mask, 0.0).sum(dim=1) / counts).mean()


def answer_nll(logits: Tensor, answer_ids: Tensor, mask: Tensor) -> Tensor:
    """Teacher-forced NLL of the answer in nats: mean over each example's answer tokens, then over examples.

    Args:
        logits: [batch, answer, vocabulary], the distribution that predicts each answer token (already shifted).
        answer_ids: int64 [batch, answer]. mask: bool [batch, answer], real answer tokens (at most 64 by the caller's field).
    Raises:
        DataError: an example without answer tokens.
    """
    losses = F.cross_entropy(logits.float().transpose(1, 2), answer_ids.masked_fill(~mask, 0), reduction="none")
    return _mean_by_example(losses, mask)


def output_kl(teacher_logits: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """KL(teacher || student) in nats over the vocabulary at the answer positions, the teacher detached; averaged as `answer_nll`."""
    teacher = teacher_logits.detach().float().log_softmax(dim=-1)
    losses = (teacher.exp() * (teacher - logits.float().log_softmax(dim=-1))).sum(dim=-1)
    return _mean_by_example(losses, mask)
