"""What may change in a study that has begun, and what has: for spaces and seeds, with `--accept-changes`.

Results that are on record were found with an architecture, tasks, objectives and a budget; under others they would mean
something else, so these stay. What is still to be tried may change: counts, placements, choices, and `study`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial

from archsearch.config import ConfigError
from archsearch.search.choices import Scalar

LASTING = ("name", "architecture", "space.replace", "space.with", "tasks", "objectives", "budget")

BY_RUNGS = ("study.rungs", "study.reduction")
"""What else stays under a pruner of Optuna, which keeps values by the number of a rung alone."""

PATIENCE = "budget.time_limit:"
"""How long a speed is measured at most changes no limit."""

MARK = "@"
"""Optuna wants one list of choices for a parameter: changed ones belong to a parameter `placement@2`."""


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return which keys differ, old -> new."""
    before, after = _flatten(old), _flatten(new)
    nothing = "nothing"
    return [
        f"{key}: {before.get(key, nothing)} -> {after.get(key, nothing)}"
        for key in [*before, *(key for key in after if key not in before)]
        if before.get(key, nothing) != after.get(key, nothing)
    ]


def accept(
    where: str, saved: Mapping[str, Any], written: Mapping[str, Any], *, accepted: bool, otherwise: str
) -> list[str]:
    """Return what has changed since the study began, where that may be. Raises ConfigError.

    `saved` and `written` are the space as its YAML spells it, and `seed` the seed of the whole study.
    """
    changed = changes(saved, written)
    what = "seed" if all(text.startswith("seed:") for text in changed) else "space"
    begun = f"{where}: the {what} has changed since this study began ({'; '.join(changed)})"
    pruned = saved.get("study", {}).get("pruner") in ("asha", "hyperband")
    lasting = LASTING + BY_RUNGS * pruned
    if kept := [text for text in changed if text.startswith(lasting) and not text.startswith(PATIENCE)]:
        raise ConfigError(f"{begun}; what is on record was found with the {_names(kept)} of then; {otherwise}")
    if changed and not accepted:
        raise ConfigError(f"{begun}; --accept-changes goes on and keeps that on record, {otherwise}")
    return changed


def entry(changed: Iterable[str], saved: Mapping[str, Any], written: Mapping[str, Any], trials: int) -> dict[str, Any]:
    """Return what goes on record of a change: it holds from trial number `trials` on."""
    return {
        "accepted": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "from_trial": trials,
        "changed": list(changed),
        "old": saved,
        "new": written,
    }


def told(found: Mapping[str, Any]) -> str:
    """Return an accepted change in words."""
    return f"changed from trial {found['from_trial']} on ({found['accepted']}): {'; '.join(found['changed'])}"


def as_stored(values: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return a space and the study's seed as a database gives them back."""
    stored: dict[str, Any] = json.loads(json.dumps({**values, "seed": seed}))
    return stored


class Names:
    """What parameters are called in a study whose lists of choices may have changed: old trials keep theirs."""

    def __init__(self, trials: Iterable[FrozenTrial]) -> None:
        self._choices: dict[str, tuple[Scalar, ...]] = {}
        for trial in trials:
            for name, distribution in trial.distributions.items():
                if isinstance(distribution, CategoricalDistribution):
                    self._choices.setdefault(name, tuple(distribution.choices))

    def of(self, name: str, values: Iterable[Scalar]) -> str:
        """Return the parameter's name for these choices."""
        wanted, version, called = tuple(values), 1, name
        while self._choices.setdefault(called, wanted) != wanted:
            version += 1
            called = f"{name}{MARK}{version}"
        return called


def plain_name(called: str) -> str:
    """Return the decision that a parameter is of."""
    return called.split(MARK)[0]


def plain_names(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return decisions by their own names, the latest of a changed list of choices last."""
    return {plain_name(called): params[called] for called in sorted(params)}


def _names(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(next(key for key in LASTING + BY_RUNGS if text.startswith(key)) for text in texts))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
