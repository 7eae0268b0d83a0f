"""A sampler that tries every candidate of a space once, in the order of its decisions; a study ends with the last."""

from __future__ import annotations

from optuna import Study

from archsearch.config import ConfigError
from archsearch.search.enumeration import ENUMERABLE, count_ways, decided_candidates
from archsearch.search.proposer import Decisions, Proposer
from archsearch.search.space import Space


def check_size(space: Space) -> None:
    """Raise ConfigError where the space is too large to be walked through."""
    if (ways := count_ways(space)) > ENUMERABLE:
        raise ConfigError(f"study.sampler: brute_force takes spaces of at most {ENUMERABLE} ways to decide; got {ways}")


class BruteForce(Proposer):
    """Propose the first candidate that has not been tried; illegal and refused ones too, which cost nothing.

    Optuna's sampler of this name tries sequences of decisions, of which many may lead to one candidate. Raises
    ConfigError where the space is too large.
    """

    def __init__(self, space: Space, *, seed: int) -> None:
        check_size(space)
        super().__init__(seed)
        self._space = space

    def propose(self, study: Study) -> Decisions:
        """Return the decisions that lead to it; none where everything has been tried."""
        trials = study.get_trials(deepcopy=False)
        seen = {trial.user_attrs["candidate"]["key"] for trial in trials if "candidate" in trial.user_attrs}
        for decisions, candidate in decided_candidates(self._space):
            if candidate.key not in seen:
                return decisions
        return {}
