"""Look at a space without training anything: which share is legal, and why the rest is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from archsearch.pattern import compact
from archsearch.search.budget import check_exact
from archsearch.search.candidates import Candidate, RandomSuggest, build_given, enumerate_candidates, given, sample
from archsearch.search.rows import describe, failed_checks
from archsearch.search.space import Space
from archsearch.search.study import ENUMERABLE

SAMPLES = 1000
INSPECTED = 6


def survey(space: Space, seed: int, samples: int = SAMPLES) -> dict[str, Any]:
    """Return figures on a random sample of the space, on all of it where it can be enumerated, and a few candidates."""
    suggest = RandomSuggest(seed)
    drawn = [sample(space, suggest) for _ in range(samples)]
    reasons = Counter(_refusal(space, candidate) for candidate in drawn)
    everything = enumerate_candidates(space, ENUMERABLE)
    distinct = {candidate.key: candidate for candidate in drawn}
    return {
        "name": space.name,
        "samples": samples,
        "legal": reasons.pop("", 0),
        "reasons": dict(reasons.most_common()),
        "distinct_in_sample": len(distinct),
        "distinct_in_space": len(everything) if everything else None,
        "legal_in_space": sum(not _refusal(space, x) for x in everything) if everything else None,
        "given": [_inspect(space, build_given(space, found), found.name) for found in given(space)],
        "examples": [_inspect(space, x, None) for x in _examples(space, list(distinct.values()))],
    }


def _refusal(space: Space, candidate: Candidate) -> str:
    """Return why a candidate would not be trained, as far as formulas tell; empty where it would."""
    if candidate.illegal or candidate.architecture is None:
        return f"illegal: {candidate.illegal}"
    refusal = failed_checks(check_exact(space.budget, candidate.architecture))
    return f"refused: {refusal}" if refusal else ""


def _examples(space: Space, candidates: Sequence[Candidate]) -> list[Candidate]:
    legal = [x for x in candidates if not _refusal(space, x)]
    illegal = [x for x in candidates if _refusal(space, x)]
    return [*legal[: INSPECTED - len(illegal[:2])], *illegal[:2]]


def _inspect(space: Space, candidate: Candidate, name: str | None) -> dict[str, Any]:
    found = describe(space, candidate)
    return {
        "given": name,
        "pattern": compact(candidate.architecture.pattern) if candidate.architecture else found.pattern,
        "shape": found.shape,
        "parameters": found.parameters,
        "parameters_change": found.parameters_change,
        "state_bytes": found.state_bytes,
        "refusal": _refusal(space, candidate) or None,
    }
