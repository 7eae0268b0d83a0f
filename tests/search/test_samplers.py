"""The samplers: each runs a study, and our own knows which patterns are alike and what not to propose."""

from __future__ import annotations

import random
import time
from dataclasses import asdict

import numpy as np
import optuna
import pytest

from archsearch.search.candidates import build, enumerate_candidates, sample
from archsearch.search.pattern_sampler import Features, Follow, expected_improvement, neighbour
from archsearch.search.rows import describe
from archsearch.search.rungs import Rung
from archsearch.search.samplers import SAMPLERS, Setting, seed_of_trial
from archsearch.search.store import _TrialSuggest
from archsearch.search.surrogate import Surrogate, standardised

ROOMY = {
    "architecture.pattern": "(R3A)4",
    "space.count": {"low": 0, "high": 3},
    "space.placement": ["free"],
    "space.mixers": {"M": {"key_head_dim": [4, 8, 16]}},
}


def no(_):
    return False


def run(space, name, trials, score, seed=0, refuses=no, features=None):
    """Ask and tell that often; returns the study and the candidates in the order in which they were proposed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    directions = [objective.direction for objective in space.objectives]
    study, features, candidates = optuna.create_study(directions=directions), features or Features(space), []
    for number in range(trials):
        at = seed_of_trial(seed, number)
        study.sampler = SAMPLERS[name](Setting(space=space, seed=at, startup=4, refuses=refuses, features=features))
        trial = study.ask()
        candidates.append(sample(space, _TrialSuggest(trial)))
        trial.set_user_attr("candidate", asdict(describe(space, candidates[-1])))
        study.tell(trial, score(candidates[-1]))
    return study, candidates


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_every_sampler_draws_legal_decisions_for_two_objectives(parse, name):
    space = parse(ROOMY)
    _, candidates = run(space, name, 7, lambda candidate: [candidate.count, 1.0])
    assert len(candidates) == 7
    assert all(0 <= candidate.count <= 3 for candidate in candidates)
    assert len({candidate.key for candidate in candidates}) > 3


def test_patterns_are_nearer_the_fewer_places_a_layer_moves(parse):
    space = parse(ROOMY)
    features = Features(space)
    groups = features.of([build(space, "free", slots, space.published) for slots in [(4,), (5,), (6,), (11,), (4, 5)]])
    places = groups[1]
    apart = [float(np.square(places[0] - other).sum()) for other in places]
    assert apart[0] == 0 < apart[1] < apart[2] < apart[3]
    counts = groups[0][:, 0]
    assert counts[0] == counts[3] != counts[4]


def test_what_is_on_record_has_the_features_of_the_candidate_itself(parse):
    space = parse(ROOMY)
    candidates = [sample(space, Follow({}, random.Random(seed))) for seed in range(6)]
    features = Features(space)
    recorded = features.of_descriptions([asdict(describe(space, candidate)) for candidate in candidates])
    for one, other in zip(features.of(candidates), recorded, strict=True):
        np.testing.assert_array_equal(one, other)


def test_nothing_is_proposed_twice_nor_what_would_be_refused(parse):
    space = parse({**ROOMY, "architecture.pattern": "R2AR2A", "space.mixers": {"M": {"key_head_dim": [4, 8]}}})

    def refuses(candidate):
        return candidate.count == 2 and 0 in candidate.slots

    allowed = [x for x in enumerate_candidates(space, 10_000) if not x.illegal and not refuses(x)]
    _, candidates = run(space, "pattern", len(allowed), lambda x: [x.count, 1.0], refuses=refuses)
    assert sorted(x.key for x in candidates) == sorted(x.key for x in allowed)


def test_a_place_that_had_no_room_is_no_obstacle(parse):
    space = parse({"objectives": [{"task": "s3", "metric": "loss", "direction": "minimize"}]})
    study = optuna.create_study()
    study.enqueue_trial({"count": 3, "placement": "before_attention"})
    trial = study.ask()
    candidate = sample(space, _TrialSuggest(trial))
    assert candidate.architecture is None
    trial.set_user_attr("candidate", asdict(describe(space, candidate)))  # as a worker that is killed now leaves it
    setting = Setting(space=space, seed=0, startup=4, refuses=no, features=Features(space))
    study.sampler = SAMPLERS["pattern"](setting)
    assert sample(space, _TrialSuggest(study.ask())).illegal is None


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_a_place_in_fewer_trials_than_chance_would_take(parse, seed):
    space = parse({**ROOMY, "objectives": [{"task": "s3", "metric": "loss", "direction": "minimize"}]})

    def score(candidate):
        shape = 0 if candidate.options is None else abs(candidate.options.key_head_dim - 8) / 8
        return abs(candidate.count - 2) + sum(abs(slot - 7) for slot in candidate.slots) / 12 + shape

    _, candidates = run(space, "pattern", 25, score, seed)
    best = sorted(map(score, enumerate_candidates(space, 10_000)))
    assert min(map(score, candidates)) <= best[len(best) // 100]  # chance: 25 of 900 draws, one in five


def test_it_learns_from_what_was_pruned(parse):
    space = parse({**ROOMY, "objectives": [{"task": "s3", "metric": "accuracy", "direction": "maximize"}]})

    def trial(slots, state, value, at_rung):
        candidate = describe(space, build(space, "free", slots, space.published))
        rung = Rung(task="s3", number=1, tokens=64, values=[at_rung])
        attributes = {"candidate": asdict(candidate), "rungs": [asdict(rung)]}
        return optuna.trial.create_trial(state=state, value=value, user_attrs=attributes)

    complete, pruned = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED
    done = [trial((i,), complete, 0.6 + 0.01 * i, 0.3 + 0.01 * i) for i in range(5)]
    worse = [trial((i,), pruned, 0.1, 0.1) for i in (8, 10)]
    study, near = optuna.create_study(direction="maximize"), [build(space, "free", (9,), space.published)]
    setting = Setting(space=space, seed=0, startup=4, refuses=no, features=Features(space))
    sampler = SAMPLERS["pattern"](setting)
    assert sampler._scores(study, [*done, *worse], near) < 0.2 * sampler._scores(study, done, near)


def test_a_neighbour_is_a_step_away(parse):
    space = parse(ROOMY)
    params = {"count": 2, "placement": "free", "slot_0": 3, "slot_1": 7, "M.key_head_dim": 8}
    drawing, changes = random.Random(0), set()
    for _ in range(60):
        found = sample(space, Follow(neighbour(params, space, drawing), drawing))
        moved = len(set(found.slots) ^ {3, 8})
        assert moved <= 2
        changes.add((moved, found.options.key_head_dim))
    assert {(0, 4), (0, 16), (1, 8), (2, 8)} <= changes


def test_the_surrogate_knows_what_it_was_told_and_that_it_knows_no_more():
    random_ = np.random.default_rng(0)
    x = random_.uniform(0, 1, (40, 1))
    values = standardised(np.sin(6 * x[:, 0]))
    belief = Surrogate.fit([x], values, seed=0)
    mean, deviation = belief.predict([np.array([[0.5], [5.0]])])
    at_half = standardised(np.sin(6 * np.append(x[:, 0], 0.5)))[-1]
    assert mean[0] == pytest.approx(at_half, abs=0.1)
    assert deviation[1] > 5 * deviation[0]


def test_expected_improvement_grows_with_mean_and_doubt():
    mean, deviation = np.array([0.0, 1.0, 0.0]), np.array([1.0, 1.0, 2.0])
    found = expected_improvement(mean, deviation, 0.0)
    assert found[0] == pytest.approx(1 / np.sqrt(2 * np.pi))
    assert found[1] > found[0] < found[2]


@pytest.mark.slow
def test_a_proposal_after_a_thousand_trials_takes_a_second(parse):
    space = parse({**ROOMY, "space.mixers": {"M": {"key_head_dim": {"low": 4, "high": 64}}}})
    features, drawing = Features(space), random.Random(0)
    study, _ = run(space, "random", 1000, lambda _: [drawing.random(), drawing.random()], features=features)
    study.sampler = SAMPLERS["pattern"](Setting(space=space, seed=1, startup=4, refuses=no, features=features))
    study.ask()
    started = time.perf_counter()
    study.ask()
    assert time.perf_counter() - started < 3  # a second on an idle core
