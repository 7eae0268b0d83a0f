"""The samplers that a space may name: Optuna's, set for decisions that are mostly categorical, and two of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from archsearch.search.candidates import Candidate
    from archsearch.search.pattern_sampler import Features
    from archsearch.search.space import Space

POPULATION = 20  # of NSGA-II: its usual 50 would be most of a study


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a sampler is made from; the first `startup` trials are drawn without regard to results."""

    space: Space
    seed: int
    startup: int
    refuses: Callable[[Candidate], bool]
    features: Features


def _tpe(setting: Setting) -> BaseSampler:
    from optuna.samplers import TPESampler

    return TPESampler(seed=setting.seed, n_startup_trials=setting.startup, multivariate=False)


def _gp(setting: Setting) -> BaseSampler:
    from optuna.samplers import GPSampler

    return GPSampler(seed=setting.seed, n_startup_trials=setting.startup)


def _nsga2(setting: Setting) -> BaseSampler:
    from optuna.samplers import NSGAIISampler

    return NSGAIISampler(seed=setting.seed, population_size=POPULATION)


def _random(setting: Setting) -> BaseSampler:
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=setting.seed)


def _pattern(setting: Setting) -> BaseSampler:
    from archsearch.search.pattern_sampler import PatternSampler

    return PatternSampler(
        setting.space, seed=setting.seed, startup=setting.startup, refuses=setting.refuses, features=setting.features
    )


def _brute_force(setting: Setting) -> BaseSampler:
    from archsearch.search.brute_force import BruteForce

    return BruteForce(setting.space, seed=setting.seed)


SAMPLERS: dict[str, Callable[[Setting], BaseSampler]] = {
    "pattern": _pattern,
    "tpe": _tpe,
    "gp": _gp,
    "nsga2": _nsga2,
    "random": _random,
    "brute_force": _brute_force,
}


def seed_of_trial(seed: int, number: int) -> int:
    """Return the seed of one trial's sampler, from the study's seed and the trial's number.

    One seed for a whole run would make a resumed study draw again what it drew at its start.
    """
    return (seed * 1_000_003 + number) % 2**32
