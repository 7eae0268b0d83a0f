"""What a pruned trial is taken to have come to, for a sampler that learns from ends."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from archsearch.search.rungs import Rung


def expected_end(
    pruned: Sequence[Rung], finished: Sequence[Sequence[Rung]], ends: Sequence[float], objective: int, sign: float
) -> float:
    """Return one objective's end of a pruned trial, from its rungs and those of the finished trials with their `ends`.

    More is better in `ends`, and in values on rungs times `sign`. It is the mean end of the finished trials that stood
    no better at its last rung, or the worst end where all of them stood better: that may be unjust to a late starter,
    but to leave it out would tell the sampler that nothing is known there, and it would go there again and again. Where
    the rung did not know the objective, it is the median end.
    """
    value = pruned[-1].values[objective]
    if value is None:
        return statistics.median(ends)
    below = [
        end
        for rungs, end in zip(finished, ends, strict=True)
        for rung in rungs
        if rung.is_at(pruned[-1]) and (there := rung.values[objective]) is not None and sign * there <= sign * value
    ]
    return statistics.fmean(below) if below else min(ends)
