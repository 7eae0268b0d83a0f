"""What our own samplers have in common: they decide on a whole candidate, and hand out its decisions one by one."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial

from archsearch.search.changed import plain_name
from archsearch.search.choices import Scalar

Decisions = dict[str, Scalar]


class Proposer(BaseSampler):
    """A sampler that proposes candidates; what a proposal leaves open is drawn at random."""

    def __init__(self, seed: int) -> None:
        self._decided: Decisions = {}
        self._otherwise = RandomSampler(seed=seed)

    @abstractmethod
    def propose(self, study: Study) -> Decisions:
        """Return the decisions that lead to the next candidate; none where nothing new can be found."""

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Decide on the candidate of a trial that has none yet."""
        fixed = "fixed_params" in trial.system_attrs or trial.params
        self._decided = {} if fixed else self.propose(study)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return nothing: the decisions are handed out one by one."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Hand out a decision."""
        if (decision := plain_name(param_name)) in self._decided:
            return self._decided[decision]
        return self._otherwise.sample_independent(study, trial, param_name, param_distribution)
