"""The pruners that a space may name: Optuna's, set to the study's rungs, and one for several objectives."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from archsearch.search.rungs import NONE, SEVERAL, Rung, climbed, places

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.trial import FrozenTrial

    from archsearch.search.space import Space

Others = Sequence[Rung]
"""What was seen at the same rung of the other trials that came to it."""


def _none(_: Space) -> BasePruner:
    from optuna.pruners import NopPruner

    return NopPruner()


def _median(space: Space) -> BasePruner:
    from optuna.pruners import MedianPruner

    return MedianPruner(n_startup_trials=0, n_min_trials=max(1, space.study.startup))


def _asha(space: Space) -> BasePruner:
    from optuna.pruners import SuccessiveHalvingPruner

    return SuccessiveHalvingPruner(min_resource=places(space)[0].tokens, reduction_factor=space.study.reduction)


def _hyperband(space: Space) -> BasePruner:
    """Return Hyperband with a bracket for each first rung, and one that prunes nothing."""
    from optuna.pruners import HyperbandPruner

    least, factor = places(space)[0].tokens, space.study.reduction
    whole = least * factor**space.study.rungs
    # one more token, since Optuna counts the brackets by a logarithm that may come out below a whole number
    return HyperbandPruner(min_resource=least, max_resource=whole + 1, reduction_factor=factor)


PRUNERS: dict[str, Callable[[Space], BasePruner]] = {
    NONE: _none,
    "median": _median,
    "asha": _asha,
    "hyperband": _hyperband,
    SEVERAL: _none,
}


class Pruning:
    """A study's pruner, asked at the rungs."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._pruner = PRUNERS[space.study.pruner](space)

    def judge(self, study: Study, trial: FrozenTrial, rung: Rung, others: Others) -> str | None:
        """Return why a trial ends at the rung that it has come to, and has reported, or None where it goes on."""
        if self._space.study.pruner == SEVERAL:
            better = sum(dominates(self._space, other, rung) for other in others)
            enough = len(others) >= max(1, self._space.study.startup)
            return self._explain(rung, others, better) if enough and 2 * better >= len(others) else None
        return self._explain(rung, others, 0) if self._pruner.prune(study, trial) else None

    def _explain(self, rung: Rung, others: Others, better: int) -> str:
        space, study = self._space, self._space.study
        own = ", ".join(
            f"{objective.label} {value:.4g}{_compared([other.values[i] for other in others], objective.better)}"
            for i, (objective, value) in enumerate(zip(space.objectives, rung.values, strict=True))
            if value is not None
        )
        several = f" of {rung.task}" if len(climbed(space)) > 1 else ""
        share = f"not among the best 1 of {study.reduction}"
        rule = {
            "median": "worse than the median of those that were trained to the end",
            "asha": share,
            "hyperband": f"{share} of its bracket",
            SEVERAL: f"dominated by {better} of the {len(others)} others",
        }[study.pruner]
        return f"rung {rung.number} of {study.rungs}{several} ({rung.tokens:,} tokens): {own}; {rule}"


def dominates(space: Space, one: Rung, other: Rung) -> bool:
    """Return whether `one` is nowhere worse than `other` and somewhere better, in the objectives known at the rung."""
    pairs = [
        (objective.better(a), objective.better(b))
        for objective, a, b in zip(space.objectives, one.values, other.values, strict=True)
        if a is not None and b is not None
    ]
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def _compared(values: Sequence[float | None], better: Callable[[float], float]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return f" ({len(known)} others: median {statistics.median(known):.4g}, best {max(known, key=better):.4g})"
