"""Pairs of context positions whose order the Cartographer is to learn (spec 5, paper B.1).

A head's prefix is sorted by utility; the cutoff c = k - t is what equal capacity would keep. Half of the pairs straddle it: the winner
among the best c, drawn in proportion to u^gamma, the loser uniformly below. The other half is local: both positions within
the band just above the cutoff, [c - width, c), or both just below, [c, c + width), every ordered pair equally likely. Equal
utilities never form a pair. Draws are with replacement and exact (no rejection), by the inverse of the cumulative weights.

gamma = 0 is the uniform draw. With it the one token that holds the answer is one winner among dozens, and is lost although the
loss falls; hence gamma = 1/2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acct.errors import ConfigError


@dataclass(frozen=True)
class Pairs:
    """Pairs for every head; a part that a head cannot supply is marked invalid.

    Attributes:
        winners, losers: int64 [batch, unit, pair], context positions with u_winner > u_loser where valid.
        valid: bool [batch, unit, pair].
    """

    winners: Tensor
    losers: Tensor
    valid: Tensor


@torch.no_grad()
def sample_pairs(
    utilities: Tensor,
    prefix_lengths: Tensor,
    cutoffs: Tensor,
    generator: torch.Generator,
    pairs: int = 32,
    power: float = 0.5,
    band_minimum: int = 16,
    band_fraction: float = 0.125,
) -> Pairs:
    """Draw pairs for every head of a batch at once.

    Args:
        utilities: u [batch, unit, context], at least 0.
        prefix_lengths: int64 [batch], n. cutoffs: int64 [batch], k - t, the ranked slots of equal capacity.
        generator: on the CPU; the draws are the same on every device.
        pairs: for each head; half straddle the cutoff, a quarter lies in either band. power: gamma.
        band_minimum, band_fraction: a band is max(band_minimum, band_fraction * n) ranks wide, cut at both ends of the prefix.
    Returns:
        Pairs on the device of the utilities: half straddling, then those above, then those below the cutoff.
    Raises:
        ConfigError: fewer than 4 pairs, or a negative power.
    """
    if pairs < 4 or power < 0:
        raise ConfigError(f"supervision needs at least 4 pairs and a straddle power of 0 or more, got {pairs} and {power}.")
    batch, units, context = utilities.shape
    device = utilities.device
    uniforms = torch.rand(batch, units, pairs, 2, generator=generator, dtype=torch.float64).to(device)
    if context == 0:
        empty = torch.zeros(batch, units, pairs, dtype=torch.int64, device=device)
        return Pairs(empty, empty, empty.bool())
    n, cut = (t.to(device)[:, None, None] for t in (prefix_lengths, cutoffs))  # [batch, 1, 1]
    rank = torch.arange(context, device=device)
    utilities = utilities.double().masked_fill(rank >= n, -1.0)  # padding and tail sort last
    values, order = utilities.sort(dim=-1, descending=True, stable=True)
    # First rank of strictly smaller utility: the tie group of each rank ends there.
    end = torch.searchsorted((-values).contiguous(), (-values).contiguous(), right=True)  # [batch, unit, context]

    straddling, above = pairs // 2, (pairs - pairs // 2) // 2
    band = torch.maximum((n * band_fraction).floor().long(), torch.full_like(n, band_minimum))
    zero = torch.zeros_like(cut)
    parts = (  # winners in [low, high), losers from `start` on in [.., stop), number of pairs
        (zero, cut.minimum(n), torch.maximum(end, cut), n, straddling),
        ((cut - band).clamp(min=0), cut.minimum(n), end, cut.minimum(n), above),
        (cut, (cut + band).minimum(n), end, (cut + band).minimum(n), pairs - straddling - above),
    )
    winners, losers, valid, done = [], [], [], 0
    for index, (low, high, start, stop, number) in enumerate(parts):
        room = (stop - start).clamp(min=0)  # losers available to each winner
        weights = values.clamp(min=0).pow(power) * (room > 0) if index == 0 else room.double()
        weights = torch.where((rank >= low) & (rank < high), weights.double(), 0.0)
        draw = uniforms[:, :, done : done + number]
        cumulative = weights.cumsum(dim=-1)
        total = cumulative[..., -1:]
        winner = torch.searchsorted(cumulative, draw[..., 0].contiguous() * total * (1 - 1e-15), right=True).clamp(max=context - 1)
        choices = room.gather(-1, winner)
        loser = start.gather(-1, winner) + (draw[..., 1] * choices).long().minimum(choices - 1).clamp(min=0)
        winners.append(winner)
        losers.append(loser.clamp(max=context - 1))
        valid.append((total > 0).expand_as(winner))
        done += number
    ok = torch.cat(valid, dim=-1)
    return Pairs(order.gather(-1, torch.cat(winners, dim=-1)), order.gather(-1, torch.cat(losers, dim=-1)), ok)
