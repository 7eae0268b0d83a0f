"""The samplers: each runs a study, and our own knows which patterns are alike and what not to propose."""

from __future__ import annotations

import random
import time
from dataclasses import asdict, replace

import numpy as np
import optuna
import pytest

from archsearch.config import ConfigError
from archsearch.search.candidates import RandomSuggest, build, sample
from archsearch.search.enumeration import enumerate_candidates
from archsearch.search.filling import Filling
from archsearch.search.pattern_sampler import Features, Follow, expected_improvement, neighbour
from archsearch.search.rows import describe
from archsearch.search.rungs import Rung
from archsearch.search.samplers import SAMPLERS, Setting, seed_of_trial
from archsearch.search.store import _TrialSuggest
from archsearch.search.surrogate import Surrogate, _loss, standardised
from tests.search.varied import varied

ROOMY = {
    "architecture.pattern": "(R3A)4",
    "space.count": {"low": 0, "high": 3},
    "space.placement": ["free"],
    "space.mixers": {"M": {"key_head_dim": [4, 8, 16]}},
}


def no(_):
    return False


def filled(space, pattern=None, backbone=None, **slots):
    """Return the candidate with these slots of each letter filled, its shapes as written."""
    fillings = [
        Filling(
            letter=x.letter,
            count=len(own),
            placement="free",
            slots=tuple(own),
            options=x.published if own else None,
        )
        for x in space.replacements
        for own in [slots.get(x.letter, ())]
    ]
    return build(space, fillings, pattern=pattern, backbone=backbone)


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
    space = parse({**ROOMY, "space.count.high": 2})
    _, candidates = run(space, name, 7, lambda candidate: [candidate.count, 1.0])
    assert len(candidates) == 7
    assert all(0 <= candidate.count <= 2 for candidate in candidates)
    assert len({candidate.key for candidate in candidates}) > 3


def test_brute_force_tries_every_candidate_once(parse):
    space = parse({"space.count.high": 2, "space.placement": ["free", "spread"]})
    everything = {candidate.key for candidate in enumerate_candidates(space, 10_000)}
    _, candidates = run(space, "brute_force", len(everything), lambda candidate: [candidate.count, 1.0])
    assert len(candidates) == len(everything) > 10
    assert {candidate.key for candidate in candidates} == everything


def test_brute_force_refuses_what_it_could_not_walk_through(parse):
    large = {**ROOMY, "space.count": {"low": 0, "high": 12}}
    with pytest.raises(ConfigError, match=r"study.sampler: brute_force takes spaces of at most 4000 ways .* got \d+"):
        run(parse(large), "brute_force", 1, lambda _: [1.0, 1.0])


def test_patterns_are_nearer_the_fewer_places_a_layer_moves(parse):
    space = parse(ROOMY)
    features = Features(space)
    groups = features.of([filled(space, M=slots) for slots in [(4,), (5,), (6,), (11,), (4, 5)]])
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


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "brute_force"])  # it begins at one end
def test_every_sampler_draws_letters_base_patterns_and_backbones(name):
    space = varied()
    _, candidates = run(space, name, 12, lambda candidate: [candidate.count, 1.0])
    assert len({candidate.pattern for candidate in candidates}) == 2
    assert len({candidate.backbone for candidate in candidates}) == 2
    assert len({tuple(x.count for x in candidate.fillings) for candidate in candidates}) > 3


def test_letters_base_patterns_and_backbones_are_apart_in_groups_of_their_own():
    space = varied()
    near = [filled(space, M=(0,), N=(2,)), filled(space, M=(1,), N=(2,)), filled(space, M=(0,), N=(3,))]
    near += [filled(space, M=(0,), N=(2,), pattern="R3AR"), filled(space, M=(0,), N=(2,), backbone="S")]
    groups = Features(space).of(near)
    differ = [[i for i, group in enumerate(groups) if (group[0] != group[other]).any()] for other in range(1, 5)]
    moved_m, moved_n, pattern, backbone = differ
    assert set(moved_m) <= set(range(5))  # count, places, beside attention, spread, one option; M before N
    assert set(moved_n) <= set(range(5, 10))
    assert set(pattern) - set(range(10)) == {10, 11, 12}
    assert backbone == [13]
    assert np.square(groups[13][0] - groups[13][4]).sum() == pytest.approx(1)


def test_what_is_on_record_of_a_varied_space_has_the_features_of_the_candidate_itself():
    space = varied()
    drawn = [sample(space, Follow({}, random.Random(seed))) for seed in range(40)]
    candidates = [candidate for candidate in drawn if candidate.architecture]
    assert any(candidate.backbone not in candidate.architecture.pattern for candidate in candidates)
    recorded = Features(space).of_descriptions([asdict(describe(space, candidate)) for candidate in candidates])
    for one, other in zip(Features(space).of(candidates), recorded, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_base_pattern_or_backbone_that_a_change_has_removed_is_no_obstacle():
    before, now = varied(), varied(patterns=["R2AR2A"], backbone=["R"])
    drawn = [sample(before, Follow({}, random.Random(seed))) for seed in range(40)]
    kept = {
        (candidate.pattern, candidate.backbone): Features(now).can_read(describe(before, candidate).architecture)
        for candidate in drawn
        if candidate.architecture and candidate.backbone in candidate.architecture.pattern
    }
    (own, other) = before.patterns
    assert kept == {(own, "R"): True, (own, "S"): False, (other, "R"): False, (other, "S"): False}


def test_a_choice_that_was_no_number_before_a_change_stands_in_the_middle(parse):
    before, now = (parse({"space.mixers.M": {"conv_width": widths}}) for widths in ([None, 2], [2, 4]))
    candidates = [sample(before, Follow({"count": 1, "M.conv_width": x}, random.Random(0))) for x in (None, 2)]
    *_, width = Features(now).of_descriptions([asdict(describe(before, candidate)) for candidate in candidates])
    assert width.tolist() == [[0.5], [0.0]]


def test_a_neighbour_of_several_letters_is_a_step_away():
    space = varied(patterns=["R2AR2A", "R3AR2"], placement=["free"])
    params = {
        "pattern": "R3AR2",
        "backbone": "S",
        "M.count": 1,
        "M.placement": "free",
        "M.slot_0": 1,
        "N.count": 1,
        "N.placement": "free",
        "N.slot_0": 2,
        "M.key_head_dim": 8,
        "N.head_dim": 4,
    }
    drawing, seen = random.Random(0), set()
    assert sample(space, Follow(params, drawing)).architecture.pattern == "SMSANS"
    for _ in range(400):
        found = sample(space, Follow(neighbour(params, space, drawing), drawing))
        if (found.pattern, found.backbone) == ("R3AR2", "S"):
            seen.add(found.architecture.pattern)
            assert sum(a != b for a, b in zip(found.architecture.pattern, "SMSANS", strict=True)) <= 2
        else:
            assert found.pattern == "R3AR2" or found.backbone == "S"
            seen.add((found.pattern, found.backbone))
    moved, taken, left, exchanged = {"MSSANS", "SMNASS"}, {"MMSANS", "SMSANN"}, {"SSSANS", "SMSASS"}, {"SNSAMS"}
    assert moved | taken | left | exchanged | {("R2AR2A", "S"), ("R3AR2", "R")} <= seen


def test_it_finds_letters_and_a_backbone_in_fewer_trials_than_chance_would_take(parse):
    one = parse({"objectives": [{"task": "s3", "metric": "loss", "direction": "minimize"}]}).objectives
    space = replace(varied({"pattern": "(R3A)3"}, patterns=["(R3A)3", "(R2A)4"], placement=["free"]), objectives=one)

    def score(candidate):
        m, n = (x.slots for x in candidate.fillings)
        apart = sum(abs(slot - 2) for slot in m) + sum(abs(slot - 6) for slot in n)
        wrong = (candidate.backbone != "S") + (candidate.pattern != "(R3A)3")
        return abs(len(m) - 1) + abs(len(n) - 2) + apart / 8 + wrong

    _, candidates = run(space, "pattern", 20, score)
    suggest = RandomSuggest(0)
    chance = sorted(score(x) for _ in range(2000) if (x := sample(space, suggest)).illegal is None)
    assert min(map(score, candidates)) <= chance[len(chance) // 200]  # 20 draws reach this one time in ten


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
        shape = sum(abs(options.key_head_dim - 8) / 8 for options in candidate.options.values())
        return abs(candidate.count - 2) + sum(abs(slot - 7) for slot in candidate.slots) / 12 + shape

    _, candidates = run(space, "pattern", 25, score, seed)
    best = sorted(map(score, enumerate_candidates(space, 10_000)))
    assert min(map(score, candidates)) <= best[len(best) // 100]  # chance: 25 of 900 draws, one in five


def test_it_learns_from_what_was_pruned(parse):
    space = parse({**ROOMY, "objectives": [{"task": "s3", "metric": "accuracy", "direction": "maximize"}]})

    def trial(number, slots, state, value, at_rung):
        candidate = describe(space, filled(space, M=slots))
        rung = Rung(task="s3", number=1, tokens=64, values=[at_rung])
        attributes = {"candidate": asdict(candidate), "rungs": [asdict(rung)]}
        found = optuna.trial.create_trial(state=state, value=value, user_attrs=attributes)
        found.number = number
        return found

    complete, pruned = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED
    done = [trial(i, (i,), complete, 0.6 + 0.01 * i, 0.3 + 0.01 * i) for i in range(5)]
    worse = [trial(i, (i,), pruned, 0.1, 0.1) for i in (8, 10)]
    study, near = optuna.create_study(direction="maximize"), [filled(space, M=(9,))]
    setting = Setting(space=space, seed=0, startup=4, refuses=no, features=Features(space))
    sampler = SAMPLERS["pattern"](setting)
    with_them, without = (
        sampler._scores(trials, near, sampler._weigh(study, trials)) for trials in ([*done, *worse], done)
    )
    assert with_them < 0.2 * without


def test_a_neighbour_is_a_step_away(parse):
    space = parse(ROOMY)
    params = {"count": 2, "placement": "free", "slot_0": 3, "slot_1": 7, "M.key_head_dim": 8}
    drawing, changes = random.Random(0), set()
    for _ in range(60):
        found = sample(space, Follow(neighbour(params, space, drawing), drawing))
        moved = len(set(found.slots) ^ {3, 8})
        assert moved <= 2
        changes.add((moved, found.options["M"].key_head_dim))
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


def test_what_differs_in_a_group_in_which_all_were_alike_is_not_wholly_unknown():
    x = np.linspace(0, 1, 12)[:, None]
    belief = Surrogate.fit([x, np.zeros((12, 1))], standardised(x[:, 0]), seed=0)
    known, other, far = (belief.predict([np.array([[a]]), np.array([[b]])]) for a, b in [(1, 0), (1, 0.7), (1, 50)])
    assert 0.5 * known[0][0] < other[0][0] < known[0][0]
    assert known[1][0] < other[1][0] < far[1][0]


def test_the_surrogates_loss_falls_as_its_gradient_says():
    random_ = np.random.default_rng(0)
    values = random_.normal(size=20)
    apart = np.stack([np.square(x[:, None] - x[None]) for x in random_.normal(size=(3, 20))])
    start, width, logs = np.zeros(5), np.ones(5), random_.normal(size=5) / 2
    _, gradient = _loss(logs, apart, values, start, width)
    for i, step in enumerate(1e-5 * np.eye(5)):
        ends = [_loss(at, apart, values, start, width)[0] for at in (logs - step, logs + step)]
        assert gradient[i] == pytest.approx((ends[1] - ends[0]) / 2e-5, rel=1e-5, abs=1e-6)


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
