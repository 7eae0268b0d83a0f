"""What share of a space its budget will refuse, before anything is trained: a warning in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from archsearch.search.budget import check_exact
from archsearch.search.candidates import RandomSuggest, sample
from archsearch.search.judge import predict
from archsearch.search.space import Space
from archsearch.throughput.predict import Predictor

SAMPLES = 300
TOO_MANY = 0.9
"""A budget that refuses more than this share leaves hardly anything to search."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """How many of the legal samples the budget refuses for sure, and which limit does it how often."""

    legal: int
    refused: int
    limits: Mapping[str, int]

    @property
    def warning(self) -> str | None:
        """What a person should know before the search begins, if anything."""
        if not self.legal or self.refused <= TOO_MANY * self.legal:
            return None
        limits = ", ".join(f"{name} {count}" for name, count in self.limits.items())
        return (
            f"warning: the budget refuses {self.refused} of {self.legal} legal candidates drawn at random "
            f"({limits}); a looser budget, or fewer layers in space.count, leaves more to search"
        )


def look(space: Space, predictors: Mapping[str, Predictor], samples: int = SAMPLES) -> Outlook:
    """Draw candidates at random and hold the budget against them, as far as formulas and predictions tell."""
    suggest = RandomSuggest(space.study.seed)
    legal = refused = 0
    limits: Counter[str] = Counter()
    for _ in range(samples):
        candidate = sample(space, suggest)
        if candidate.illegal or candidate.architecture is None:
            continue
        legal += 1
        checks = check_exact(space.budget, candidate.architecture)
        checks += predict(space.budget, candidate.architecture, predictors).checks.values()
        broken = {check.name for check in checks if check.violation > 0}
        limits.update(broken)
        refused += bool(broken)
    return Outlook(legal=legal, refused=refused, limits=dict(limits.most_common()))
