"""Look at a space without training anything: which share is legal, and why the rest is not."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archsearch.pattern import compact
from archsearch.search import cost_tables
from archsearch.search.budget import SPEEDS, check_exact
from archsearch.search.candidates import Candidate, RandomSuggest, build_given, given, sample
from archsearch.search.enumeration import ENUMERABLE, count_models, count_ways, enumerate_candidates
from archsearch.search.outlook import judge
from archsearch.search.rows import describe, failed_checks
from archsearch.search.space import Space
from archsearch.throughput.predict import Predictor

SAMPLES = 1000
INSPECTED = 6


def survey(
    space: Space, seed: int, samples: int = SAMPLES, *, file: str = "", tables: Sequence[str] = ()
) -> dict[str, Any]:
    """Return figures on a random sample of the space, on all of it where it can be enumerated, and a few candidates.

    The budget is held against the legal ones by formulas, and by the cost tables that are named or stand beside the
    space's `file`. Writes nothing.
    """
    suggest = RandomSuggest(seed)
    drawn = [sample(space, suggest) for _ in range(samples)]
    reasons = Counter(f"illegal: {candidate.illegal}" for candidate in drawn if candidate.illegal)
    everything = enumerate_candidates(space, ENUMERABLE)
    distinct = {candidate.key: candidate for candidate in drawn}
    return {
        "name": space.name,
        "ways": count_ways(space),
        "models_at_most": count_models(space),
        "samples": samples,
        "legal": sum(not candidate.illegal for candidate in drawn),
        "reasons": dict(reasons.most_common()),
        "distinct_in_sample": len(distinct),
        "distinct_in_space": len(everything) if everything else None,
        "legal_in_space": sum(not x.illegal for x in everything) if everything else None,
        "budget": _budget(space, drawn, file, tables),
        "given": [_inspect(space, build_given(space, found), found.name) for found in given(space)],
        "examples": [_inspect(space, x, None) for x in _examples(space, list(distinct.values()))],
    }


def _budget(space: Space, drawn: Sequence[Candidate], file: str, tables: Sequence[str]) -> dict[str, Any]:
    """Return what the budget refuses of a sample, which limits do it, and what has to be measured to tell."""
    with tempfile.TemporaryDirectory() as folder:
        found, news = cost_tables.prepare(space, file, Path(folder), tables)
        predictors = {mode: table.predictor() for mode, table in found.items()}
    outlook = judge(space, drawn, predictors)
    return {
        "legal": outlook.legal,
        "refused": outlook.refused,
        "limits": {
            name: {"refused": count, "example": outlook.examples[name]} for name, count in outlook.limits.items()
        },
        "open": {name: {"left": count, "reason": _why(name, predictors)} for name, count in outlook.open.items()},
        "tables": news,
    }


def _why(name: str, predictors: Mapping[str, Predictor]) -> str:
    if SPEEDS.get(name, "train") not in predictors:
        return "no cost table for these conditions on this machine"
    return "too near the limit for the cost table, or not in it"


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
