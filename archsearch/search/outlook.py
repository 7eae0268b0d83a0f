"""What share of a space its budget will refuse, before anything is trained: a warning in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from archsearch.search.budget import check_exact
from archsearch.search.candidates import Candidate, RandomSuggest, sample
from archsearch.search.judge import predict
from archsearch.search.space import Space
from archsearch.throughput.predict import Predictor

SAMPLES = 300
TOO_MANY = 0.9
"""A budget that refuses more than this share leaves hardly anything to search."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """How many of the legal samples the budget refuses for sure, and which limit does it how often.

    `examples` are a refusal in words by limit; `open` says for how many of the others a limit must be measured to tell.
    """

    legal: int
    refused: int
    limits: Mapping[str, int]
    examples: Mapping[str, str]
    open: Mapping[str, int]

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
    return judge(space, [sample(space, suggest) for _ in range(samples)], predictors)


def judge(space: Space, candidates: Sequence[Candidate], predictors: Mapping[str, Predictor]) -> Outlook:
    """Hold the budget against the legal ones among candidates, as far as formulas and predictions tell."""
    legal = refused = 0
    limits: Counter[str] = Counter()
    undecided: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for candidate in candidates:
        if candidate.illegal or candidate.architecture is None:
            continue
        legal += 1
        found = predict(space.budget, candidate.architecture, predictors)
        checks = [*check_exact(space.budget, candidate.architecture), *found.checks.values()]
        broken = {check.name: check.reason for check in checks if check.violation > 0}
        limits.update(broken.keys())
        examples = {**broken, **examples}
        refused += bool(broken)
        undecided.update(() if broken else found.open)
    return Outlook(
        legal=legal,
        refused=refused,
        limits=dict(limits.most_common()),
        examples=examples,
        open=dict(undecided.most_common()),
    )
