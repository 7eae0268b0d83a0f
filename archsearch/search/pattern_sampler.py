"""A sampler that knows patterns: which candidates are alike, which have been seen, and which the budget rules out.

Optuna's samplers see a count, a placement and numbers of slots, and nothing in `slot_1 = 4` says that RRRRRRMA is near
RRRRRMRA. Here a candidate is what its layers are: how many are replaced, where, at which distance from attention, and
with which shape. A Gaussian process over these learns from the trials; the candidate with the largest expected
improvement, among new ones that no formula or cost table refuses, comes next.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from archsearch.pattern import parse
from archsearch.search.candidates import Candidate, sample
from archsearch.search.changed import plain_name, plain_names
from archsearch.search.choices import Choices, Range, Scalar
from archsearch.search.space import Space
from archsearch.search.surrogate import Array, Surrogate, standardised

DRAWN = 500  # candidates drawn at random for each proposal
BEST = 8  # of the known ones whose neighbours are looked at as well
NEIGHBOURS = 30  # of each
LEAST = 3  # observations that a belief can be made of
REACH = 1.0  # slots: how far a layer's place is felt to either side

Decisions = dict[str, Scalar]


class PatternSampler(BaseSampler):
    """Propose the new and allowed candidate with the largest expected improvement.

    `refuses` says whether a candidate would be refused without training. The first `startup` trials fill the space
    evenly. Several objectives are weighed anew for each proposal, the first at least by half. `features` are shared by
    the samplers of a study, so that its trials are read once.
    """

    def __init__(
        self,
        space: Space,
        *,
        seed: int,
        startup: int,
        refuses: Callable[[Candidate], bool],
        features: Features,
    ) -> None:
        self._space, self._startup, self._refuses, self._seed = space, startup, refuses, seed
        self._random = random.Random(seed)
        self._features = features
        self._decided: Decisions = {}
        self._otherwise = RandomSampler(seed=seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Decide on the candidate of a trial that has none yet."""
        fixed = "fixed_params" in trial.system_attrs or trial.params
        self._decided = {} if fixed else self._propose(study)

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

    def _propose(self, study: Study) -> Decisions:
        """Return the decisions that lead to the next candidate; none where nothing new can be found."""
        trials = [trial for trial in study.get_trials(deepcopy=False) if "candidate" in trial.user_attrs]
        seen = {trial.user_attrs["candidate"]["key"] for trial in trials}
        pool = self._pool(study, trials, seen)
        if not pool:
            return {}
        candidates = [candidate for _, candidate in pool]
        built = [trial for trial in trials if trial.user_attrs["candidate"]["architecture"]]  # not so an illegal place
        scores = self._scores(study, built, candidates)
        for i in np.argsort(-scores, kind="stable"):
            if not self._refuses(candidates[i]):
                decided: Decisions = pool[i][0]
                return decided
        return {}

    def _pool(self, study: Study, trials: Sequence[FrozenTrial], seen: set[str]) -> list[tuple[Decisions, Candidate]]:
        """Return new legal candidates: drawn at random, and neighbours of the best, each once."""
        found: dict[str, tuple[Decisions, Candidate]] = {}

        def add(decisions: Decisions) -> None:
            follow = Follow(decisions, self._random)
            candidate = sample(self._space, follow)
            if candidate.illegal is None and candidate.architecture is not None and candidate.key not in seen:
                found.setdefault(candidate.key, (follow.taken, candidate))

        for _ in range(DRAWN):
            add({})
        done = [trial for trial in trials if trial.state == TrialState.COMPLETE and trial.params]
        sign = 1.0 if study.directions[0] == StudyDirection.MAXIMIZE else -1.0
        done.sort(key=lambda trial: -sign * trial.values[0])
        for trial in done[:BEST]:
            for _ in range(NEIGHBOURS):
                add(neighbour(plain_names(trial.params), self._space, self._random))
        return list(found.values())

    def _scores(self, study: Study, trials: Sequence[FrozenTrial], candidates: Sequence[Candidate]) -> Array:
        new = self._features.of(candidates)
        done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        known = [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.RUNNING)]
        if len(done) < LEAST or len(trials) < self._startup:
            return self._emptiness(known, new)
        weights = self._weights(len(study.directions))
        values = np.zeros(len(done))
        for i, (weight, direction) in enumerate(zip(weights, study.directions, strict=True)):
            sign = 1.0 if direction == StudyDirection.MAXIMIZE else -1.0
            values += weight * standardised(np.array([sign * trial.values[i] for trial in done]))
        values = standardised(values)
        belief = Surrogate.fit(self._of_trials(done), values, self._seed)
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        if running:  # taken to end as expected, or workers would all try the same
            expected, _ = belief.predict(self._of_trials(running))
            both = np.concatenate([values, expected])
            belief = Surrogate.fit(self._of_trials([*done, *running]), both, self._seed)
        mean, deviation = belief.predict(new)
        best = belief.predict(self._of_trials(done))[0].max()
        return expected_improvement(mean, deviation, best) * self._chance(trials, new)

    def _emptiness(self, known: Sequence[FrozenTrial], new: list[Array]) -> Array:
        """Return how far each candidate is from its nearest known one, each group of features counting alike."""
        old = self._of_trials(known)
        apart = np.zeros((len(new[0]), len(known)))
        for one, other in zip(new, old, strict=True):
            spread = np.square(one - one.mean(0)).sum(1).mean()
            apart += np.square(one[:, None] - other[None]).sum(-1) / max(spread, 1e-9)
        return apart.min(1) if len(known) else np.ones(len(apart))

    def _chance(self, trials: Sequence[FrozenTrial], new: list[Array]) -> Array:
        """Return the probability that a candidate meets the budget, as what was measured lets one expect."""
        judged = [trial for trial in trials if trial.state.is_finished() and len(trial.constraints) > 1]
        broken = np.array([sum(max(0.0, value) for value in trial.constraints.values()) for trial in judged])
        if len(judged) < LEAST or not broken.any():
            return np.ones(len(new[0]))
        margin = np.array([max(trial.constraints.values()) for trial in judged])
        scale = np.abs(margin).mean() or 1.0
        belief = Surrogate.fit(self._of_trials(judged), np.tanh(-margin / scale), self._seed)
        mean, deviation = belief.predict(new)
        return _below(mean / np.sqrt(deviation**2 + belief.noise))

    def _weights(self, objectives: int) -> list[float]:
        if objectives == 1:
            return [1.0]
        drawn = [self._random.expovariate(1) for _ in range(objectives)]
        shares = [0.5 * value / sum(drawn) for value in drawn]
        return [0.5 + shares[0], *shares[1:]]

    def _of_trials(self, trials: Sequence[FrozenTrial]) -> list[Array]:
        return self._features.of_descriptions([trial.user_attrs["candidate"] for trial in trials])


class Features:
    """What is alike in two candidates, in groups that are weighed against each other."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._known: dict[str, list[list[float]]] = {}

    def of(self, candidates: Sequence[Candidate]) -> list[Array]:
        """Return an array `[N, width]` per group: count, places, neighbours of attention, spread, searched options."""
        return self._stacked([self._groups(x.slots, partial(getattr, x.options)) for x in candidates])

    def of_descriptions(self, descriptions: Sequence[Mapping[str, Any]]) -> list[Array]:
        """Return the same of candidates on record."""
        for found in descriptions:
            if found["key"] not in self._known:
                self._known[found["key"]] = self._read(found["architecture"])
        return self._stacked([self._known[found["key"]] for found in descriptions])

    def _read(self, architecture: Mapping[str, Any]) -> list[list[float]]:
        space, pattern = self._space, parse(architecture["pattern"])
        slots = [slot for slot, layer in enumerate(space.slots.layers) if pattern[layer] == space.insert]
        return self._groups(slots, lambda name: architecture["mixers"][space.insert][name])

    def _stacked(self, rows: list[list[list[float]]]) -> list[Array]:
        widths = [len(group) for group in self._groups((), lambda _: None)]
        return [np.array([row[i] for row in rows], dtype=float).reshape(-1, n) for i, n in enumerate(widths)]

    def _groups(self, slots: Sequence[int], option: Callable[[str], Any]) -> list[list[float]]:
        space, total, most = self._space, self._space.slots.total, max(1, self._space.count.high)
        places = [sum(math.exp(-0.5 * ((slot - place) / REACH) ** 2) for place in slots) for slot in range(total)]
        beside = [space.slots.before_attention, space.slots.after_attention]
        centre = sum(slots) / len(slots) / max(1, total - 1) if slots else 0.5
        gaps = [b - a for a, b in pairwise(slots)]
        spread = sum(gaps) / len(gaps) / total if gaps else 0.0
        groups = [[len(slots) / most], places, [len(set(slots) & set(x)) / most for x in beside], [centre, spread]]
        for name, choice in space.choices.items():
            if (isinstance(choice, Choices) and len(choice.values) > 1) or isinstance(choice, Range):
                groups.append(_coordinates(option(name) if slots else None, choice, bool(slots)))
        return groups


class Follow:
    """Take the decisions that are given and draw the others; remember all of them."""

    def __init__(self, decisions: Mapping[str, Scalar], drawing: random.Random) -> None:
        self._decisions, self._random = decisions, drawing
        self.taken: Decisions = {}

    def integer(self, name: str, low: int, high: int, step: int = 1) -> int:
        given = self._decisions.get(name)
        fits = isinstance(given, int) and low <= given <= high and (given - low) % step == 0
        self.taken[name] = given if fits else self._random.randrange(low, high + 1, step)
        return self.taken[name]  # type: ignore[return-value]

    def choice(self, name: str, values: Sequence[Scalar]) -> Any:
        given = self._decisions.get(name)
        fits = name in self._decisions and given in values
        self.taken[name] = given if fits else self._random.choice(list(values))
        return self.taken[name]


def neighbour(params: Mapping[str, Any], space: Space, drawing: random.Random) -> Decisions:
    """Return decisions a step away: a place moved, taken or left where places are free, or one decision open again."""
    shape = {name: value for name, value in params.items() if name.startswith(f"{space.insert}.")}
    known = sample(space, Follow(params, drawing))
    if shape and drawing.random() < 0.4:
        opened = drawing.choice(list(shape))
        return {name: value for name, value in params.items() if name != opened}
    if "free" in space.placements and known.slots:
        filled = set(known.slots)
        empty = [slot for slot in range(space.slots.total) if slot not in filled]
        change = drawing.random()
        if change < 0.6 and empty:  # mostly to the next place, now and then far
            moved = drawing.choice(sorted(filled))
            near = sorted(empty, key=lambda slot: (abs(slot - moved), drawing.random()))
            filled = filled - {moved} | {near[min(int(drawing.expovariate(0.7)), len(near) - 1)]}
        elif change < 0.8 and empty and len(filled) < space.count.high:
            filled |= {drawing.choice(empty)}
        elif len(filled) > max(1, space.count.low):
            filled -= {drawing.choice(sorted(filled))}
        picks = {f"slot_{i}": slot - i for i, slot in enumerate(sorted(filled))}
        return {"count": len(filled), "placement": "free", **picks, **shape}
    kept = {name: value for name, value in params.items() if not name.startswith("slot_")}
    kept.pop(drawing.choice(list(kept)), None)
    return kept


def expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """Return the expected amount by which values N(mean, deviation^2) exceed `best`."""
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    result: Array = deviation * (z * _below(z) + density)
    return result


def _below(z: Array) -> Array:
    from scipy.special import ndtr

    result: Array = ndtr(z)
    return result


def _coordinates(value: Any, choice: Choices | Range, occurs: bool) -> list[float]:
    """Return where a value stands among its choices: numbers on a log scale, others each on an axis of its own.

    A shape that no layer has stands in the middle.
    """
    if isinstance(choice, Range):
        low, high = float(choice.low), float(choice.high)
    elif all(isinstance(x, int | float) and not isinstance(x, bool) and x > 0 for x in choice.values):
        numbers = [float(x) for x in choice.values if x is not None]
        low, high = min(numbers), max(numbers)
    else:
        return [math.sqrt(0.5) * (occurs and value == x) for x in choice.values]
    if not occurs or high == low:
        return [0.5]
    if low > 0:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return [(value - low) / (high - low)]
