"""A sampler that knows patterns: which candidates are alike, which have been seen, and which the budget rules out.

Optuna's samplers see a count, a placement and numbers of slots, and nothing in `slot_1 = 4` says that RRRRRRMA is near
RRRRRMRA. Here a candidate is what its layers are: how many are replaced, where, at which distance from attention, and
with which shape. A Gaussian process over these learns from the trials; the candidate with the largest expected
improvement, among new ones that no formula or cost table refuses, comes next.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from optuna import Study
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from archsearch.pattern import parse
from archsearch.search.candidates import Candidate, sample
from archsearch.search.changed import plain_names
from archsearch.search.choices import Choices, Range, Scalar
from archsearch.search.expected_end import expected_end
from archsearch.search.placement import Slots
from archsearch.search.proposer import Decisions, Proposer
from archsearch.search.replacement import Replacement
from archsearch.search.rungs import recorded
from archsearch.search.scalarise import scalarised
from archsearch.search.space import Space
from archsearch.search.surrogate import Array, Surrogate, standardised

DRAWN = 500  # candidates drawn at random for each proposal
BEST = 8  # of the known ones whose neighbours are looked at as well
NEIGHBOURS = 30  # of each
LEAST = 3  # observations that a belief can be made of
REACH = 1.0  # slots: how far a layer's place is felt to either side


class PatternSampler(Proposer):
    """Propose the new and allowed candidate with the largest expected improvement.

    `refuses` says whether a candidate would be refused without training. The first `startup` trials fill the space
    evenly. Several objectives become one by weights drawn anew for each proposal, so that all of the front is looked
    for. Pruned trials count with their `expected_end`. `features` are shared by the samplers of a study, so that its
    trials are read once.
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
        super().__init__(seed)
        self._space, self._startup, self._refuses, self._seed = space, startup, refuses, seed
        self._random = random.Random(seed)
        self._features = features

    def propose(self, study: Study) -> Decisions:
        """Return the decisions that lead to the next candidate; none where nothing new can be found."""
        trials = [trial for trial in study.get_trials(deepcopy=False) if "candidate" in trial.user_attrs]
        seen = {trial.user_attrs["candidate"]["key"] for trial in trials}
        merits = self._weigh(study, trials)
        pool = self._pool(trials, seen, merits)
        if not pool:
            return {}
        candidates = [candidate for _, candidate in pool]
        built = [trial for trial in trials if self._features.can_read(trial.user_attrs["candidate"]["architecture"])]
        scores = self._scores(built, candidates, merits)
        for i in np.argsort(-scores, kind="stable"):
            if not self._refuses(candidates[i]):
                decided: Decisions = pool[i][0]
                return decided
        return {}

    def _weigh(self, study: Study, trials: Sequence[FrozenTrial]) -> dict[int, float]:
        """Return what each trial that was trained is worth for this proposal, by its number."""
        trained, ends = _ends(study, trials)
        merits = scalarised(ends, self._random)
        return dict(zip((trial.number for trial in trained), merits.tolist(), strict=True))

    def _pool(
        self, trials: Sequence[FrozenTrial], seen: set[str], merits: Mapping[int, float]
    ) -> list[tuple[Decisions, Candidate]]:
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
        done.sort(key=lambda trial: -merits[trial.number])
        for trial in done[:BEST]:
            for _ in range(NEIGHBOURS):
                add(neighbour(plain_names(trial.params), self._space, self._random))
        return list(found.values())

    def _scores(
        self, trials: Sequence[FrozenTrial], candidates: Sequence[Candidate], merits: Mapping[int, float]
    ) -> Array:
        new = self._features.of(candidates)
        done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        pruned = [trial for trial in trials if trial.state == TrialState.PRUNED and recorded(trial.user_attrs)]
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        if len(done) < LEAST or len(trials) < self._startup:
            return self._emptiness([*done, *pruned, *running], new)
        trained = [*done, *pruned]
        values = standardised(np.array([merits[trial.number] for trial in trained]))
        belief = Surrogate.fit(self._of_trials(trained), values, self._seed)
        if running:  # taken to end as expected, or workers would all try the same
            expected, _ = belief.predict(self._of_trials(running))
            both = np.concatenate([values, expected])
            belief = Surrogate.fit(self._of_trials([*trained, *running]), both, self._seed)
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

    def _of_trials(self, trials: Sequence[FrozenTrial]) -> list[Array]:
        return self._features.of_descriptions([trial.user_attrs["candidate"] for trial in trials])


class Features:
    """What is alike in two candidates, in groups that are weighed against each other."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._known: dict[str, list[list[float]]] = {}
        self._names = {parse(name): name for name in space.patterns}
        slot_letters = {*space.backbones, *(x.letter for x in space.replacements)}
        self._emptied = str.maketrans(dict.fromkeys(slot_letters, space.replace))
        self._most = max(slots.total for slots in space.patterns.values())

    def of(self, candidates: Sequence[Candidate]) -> list[Array]:
        """Return an array `[N, width]` per group.

        Of every letter: count, places, neighbours of attention, spread, searched options; then base pattern and
        backbone where they are searched.
        """
        return self._stacked([self._of_candidate(candidate) for candidate in candidates])

    def can_read(self, architecture: Mapping[str, Any] | None) -> bool:
        """Return whether a model on record has features.

        An illegal place has none, and neither has a base pattern or backbone that the space no longer holds.
        """
        return architecture is not None and self._emptied_of(parse(architecture["pattern"])) in self._names

    def of_descriptions(self, descriptions: Sequence[Mapping[str, Any]]) -> list[Array]:
        """Return the same of candidates on record."""
        for found in descriptions:
            if found["key"] not in self._known:
                self._known[found["key"]] = self._read(found["architecture"])
        return self._stacked([self._known[found["key"]] for found in descriptions])

    def _of_candidate(self, candidate: Candidate) -> list[list[float]]:
        assert candidate.architecture is not None
        options = candidate.options
        return self._groups(candidate.architecture.pattern, lambda letter, name: getattr(options[letter], name))

    def _read(self, architecture: Mapping[str, Any]) -> list[list[float]]:
        mixers = architecture["mixers"]
        return self._groups(parse(architecture["pattern"]), lambda letter, name: mixers[letter][name])

    def _stacked(self, rows: list[list[list[float]]]) -> list[Array]:
        widths = [len(group) for group in self._groups(self._space.base.pattern, lambda *_: None)]
        return [np.array([row[i] for row in rows], dtype=float).reshape(-1, n) for i, n in enumerate(widths)]

    def _emptied_of(self, pattern: str) -> str:
        return pattern.translate(self._emptied)

    def _groups(self, pattern: str, option: Callable[[str, str], Any]) -> list[list[float]]:
        """Return the groups of an expanded pattern."""
        space, name = self._space, self._names[self._emptied_of(pattern)]
        slots, groups = space.patterns[name], []
        for x in space.replacements:
            filled = [slot for slot, layer in enumerate(slots.layers) if pattern[layer] == x.letter]
            groups += self._of_letter(x, slots, filled, partial(option, x.letter))
        if len(space.patterns) > 1:
            groups += [_one_hot(name, space.patterns), [slots.total / len(pattern)], [math.log(len(pattern))]]
        if len(space.backbones) > 1:
            groups.append(_one_hot(next((x for x in space.backbones if x in pattern), None), space.backbones))
        return groups

    def _of_letter(
        self, x: Replacement, slots: Slots, filled: Sequence[int], option: Callable[[str], Any]
    ) -> list[list[float]]:
        total, most = slots.total, max(1, x.count.high)
        step = (self._most - 1) / max(1, total - 1)  # slots of base patterns of other depths lie at the same heights
        places = [
            sum(math.exp(-0.5 * ((step * slot - place) / REACH) ** 2) for slot in filled) for place in range(self._most)
        ]
        beside = [slots.before_attention, slots.after_attention]
        centre = sum(filled) / len(filled) / max(1, total - 1) if filled else 0.5
        gaps = [b - a for a, b in pairwise(filled)]
        spread = sum(gaps) / len(gaps) / total if gaps else 0.0
        groups = [
            [len(filled) / most],
            places,
            [len(set(filled) & set(near)) / most for near in beside],
            [centre, spread],
        ]
        for name, choice in x.searched.items():
            groups.append(_coordinates(option(name) if filled else None, choice, bool(filled)))
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
    """Return decisions a step away: a place moved, taken, left or exchanged where places are free, or one open again.

    What is opened again is mostly a shape, else the base pattern or the backbone, or anything where no place is free.
    """
    shape = [name for x in space.replacements for y in x.searched if (name := f"{x.letter}.{y}") in params]
    if shape and drawing.random() < 0.4:
        return _without(params, drawing.choice(shape))
    base = [name for name in ("pattern", "backbone") if name in params]
    if base and drawing.random() < 0.2:
        return _without(params, drawing.choice(base))
    known = sample(space, Follow(params, drawing))
    if known.slots and any("free" in x.placements for x in space.replacements):
        return {**params, **_spelt(space, known, _moved(space, known, drawing))}
    kept = {name: value for name, value in params.items() if "slot_" not in name}
    return _without(kept, drawing.choice(list(kept))) if kept else {}


def _without(params: Mapping[str, Any], name: str) -> Decisions:
    return {key: value for key, value in params.items() if key != name}


def _moved(space: Space, known: Candidate, drawing: random.Random) -> dict[str, set[int]]:
    """Return the slots of each letter with one of them moved, taken, left, or exchanged with another letter's."""
    filled = {x.letter: set(x.slots) for x in known.fillings}
    free = [x for x in space.replacements if "free" in x.placements]
    mover = drawing.choice(free) if len(free) > 1 else free[0]
    own = filled[mover.letter]
    others = [x for x in free if x is not mover and filled[x.letter]]
    empty = sorted(set(range(space.patterns[known.pattern].total)) - set(known.slots))
    change = drawing.random()
    if own and others and change < 0.25:
        other = filled[drawing.choice(others).letter]
        mine, theirs = drawing.choice(sorted(own)), drawing.choice(sorted(other))
        own ^= {mine, theirs}
        other ^= {mine, theirs}
    elif own and empty and change < 0.6:  # mostly to the next place, now and then far
        left = drawing.choice(sorted(own))
        near = sorted(empty, key=lambda slot: (abs(slot - left), drawing.random()))
        own ^= {left, near[min(int(drawing.expovariate(0.7)), len(near) - 1)]}
    elif empty and len(own) < mover.count.high and change < 0.8:
        own.add(drawing.choice(empty))
    elif len(own) > max(1 if len(known.slots) == len(own) else 0, mover.count.low):
        own.remove(drawing.choice(sorted(own)))
    return filled


def _spelt(space: Space, known: Candidate, filled: Mapping[str, set[int]]) -> Decisions:
    """Return the decisions that fill these slots, freely as far as a letter's placements allow that."""
    decided: Decisions = {}
    left = list(range(space.patterns[known.pattern].total))
    for x in space.replacements:
        own = sorted(filled[x.letter])
        decided[f"{x.prefix}count"] = len(own)
        if "free" in x.placements:
            decided[f"{x.prefix}placement"] = "free"
            decided.update({f"{x.prefix}slot_{i}": left.index(slot) - i for i, slot in enumerate(own)})
        left = [slot for slot in left if slot not in own]
    return decided


def _ends(study: Study, trials: Sequence[FrozenTrial]) -> tuple[list[FrozenTrial], Array]:
    """Return the trials that ended with values, or were pruned and are taken to, and these `[N, objectives]`.

    More is better in all of them.
    """
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    pruned = [trial for trial in trials if done and trial.state == TrialState.PRUNED and recorded(trial.user_attrs)]
    finished, ended_at = ([recorded(trial.user_attrs) for trial in some] for some in (done, pruned))
    columns = []
    for i, direction in enumerate(study.directions):
        sign = 1.0 if direction == StudyDirection.MAXIMIZE else -1.0
        ends = [sign * trial.values[i] for trial in done]
        columns.append([*ends, *(expected_end(climbed, finished, ends, i, sign) for climbed in ended_at)])
    return [*done, *pruned], np.array(columns).T


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


def _one_hot(value: Any, among: Iterable[Any]) -> list[float]:
    """Return an axis for each of the values; any two of them are at distance 1."""
    return [math.sqrt(0.5) * (value == x) for x in among]


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
        return _one_hot(value, choice.values) if occurs else [0.0] * len(choice.values)
    if not occurs or high == low or not isinstance(value, int | float):  # no number: of choices before a change
        return [0.5]
    if low > 0 and value > 0:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return [(value - low) / (high - low)]
