"""The samplers that a space may name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


def _tpe(seed: int, startup: int) -> BaseSampler:
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed, n_startup_trials=startup, multivariate=False)


def _random(seed: int, startup: int) -> BaseSampler:  # noqa: ARG001 (one signature for all)
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seed)


SAMPLERS: dict[str, Callable[[int, int], BaseSampler]] = {"tpe": _tpe, "random": _random}


def make_sampler(name: str, *, seed: int, number: int, startup: int) -> BaseSampler:
    """Return the sampler of one trial, seeded by the study's seed and the trial's number.

    One seed for a whole run would make a resumed study draw again what it drew at its start.
    """
    return SAMPLERS[name]((seed * 1_000_003 + number) % 2**32, startup)
