"""Interleaved rounds on a clock that is not real: drift, noise and stalls are put in and found."""

import itertools
import math
import random

import pytest

from archsearch.throughput.conditions import Conditions
from archsearch.throughput.device_state import DeviceState
from archsearch.throughput.measure import Contest, Target
from archsearch.throughput.rounds import Log, interleave

RUNS = 300


class FakeMachine:
    """Contestants of known cost on one clock; the machine gets slower, is noisy, and is held up now and then."""

    def __init__(self, costs, *, noise=0.0, drift=0.0, stalls=(), stall_share=0.0, seed=0):
        self.now, self.ran, self.drift, self.noise = 0.0, [], drift, noise
        self.stalls, self.stall_share, self.random = set(stalls), stall_share, random.Random(seed)
        self.passes = [self.pass_of(number, cost) for number, cost in enumerate(costs)]

    def pass_of(self, number, cost):
        def run():
            speed = 1 + self.drift * len(self.ran)
            seconds = cost * speed * math.exp(self.random.gauss(0, self.noise))
            if len(self.ran) in self.stalls or self.random.random() < self.stall_share:
                seconds *= 3
            self.ran.append(number)
            self.now += seconds
            return seconds

        return run

    def contest(self, target=None, until=math.inf):
        contest = Contest(self.passes, Conditions(batch_size=1, length=1), target)
        contest.run(until, lambda: self.now)
        return contest


def take(number, rounds):
    return list(itertools.islice(rounds, number))


def test_a_round_goes_there_and_back():
    machine = FakeMachine([1.0, 2.0, 3.0])
    (found,) = take(1, interleave(machine.passes, Log()))
    assert machine.ran[:6] == [0, 1, 2, 2, 1, 0]
    assert found.seconds == (1.0, 2.0, 3.0)


def test_an_even_drift_cancels_whoever_comes_first():
    for costs in ([1.0, 0.8], [0.8, 1.0]):
        for found in take(20, interleave(FakeMachine(costs, drift=0.001).passes, Log())):
            assert found.seconds[0] / found.seconds[1] == pytest.approx(costs[0] / costs[1], rel=1e-12)


@pytest.mark.parametrize("place", [0, 3, 7, 21, 40])
def test_a_round_with_a_stall_is_repeated_and_counted(place):
    log, machine = Log(), FakeMachine([1.0, 0.9], noise=0.01, stalls=[place])
    found = take(15, interleave(machine.passes, log))
    assert len(log.repeated) == 1
    assert log.repeated[0].startswith("a stall: 3")
    assert len(machine.ran) == 4 * 16
    assert all(0.85 < x.seconds[1] / x.seconds[0] < 0.95 for x in found)


def test_noise_is_no_stall():
    log = Log()
    take(200, interleave(FakeMachine([1.0, 0.9], noise=0.05).passes, log))
    assert len(log.repeated) <= 2


def test_a_machine_that_is_never_quiet_is_measured_as_it_is():
    log = Log()
    found = take(30, interleave(FakeMachine([1.0, 1.0], stall_share=0.3).passes, log))
    assert len(found) == 30
    assert log.kept_disturbed
    assert len(log.repeated) <= 33


class Looks:
    """What the device says at each pass."""

    def __init__(self, states):
        self.states = iter(states)

    def last(self):
        return next(self.states)


def test_a_round_in_which_the_card_slows_down_or_is_shared_is_repeated():
    quiet = DeviceState(clock=1980, temperature=60, power=600)
    states = [quiet] * 14 + [DeviceState(others=1)] + [quiet] * 5 + [DeviceState(slowdown="hot")] + [quiet] * 99
    log = Log()
    found = take(6, interleave(FakeMachine([1.0, 0.9]).passes, log, Looks(states)))
    assert log.repeated == ["1 other process on the card", "hot"]
    assert all(state == quiet for x in found for state in x.states)
    assert len(log.states) == 8 * 4


def test_verdicts_keep_their_error_rate_under_noise_drift_and_stalls():
    wrong = sure = 0
    for seed in range(RUNS):
        drift = (-1) ** seed * 2e-4
        machine = FakeMachine([1.0, 1.002], noise=0.01, drift=drift, stall_share=0.02, seed=seed)  # ratio 0.998
        (lane,) = machine.contest(Target(at_least=1.0), until=150).lanes[1:]
        wrong += lane.verdict() == "feasible"
        machine = FakeMachine([1.0, 1 / 0.97], noise=0.01, drift=drift, stall_share=0.02, seed=seed)
        sure += machine.contest(Target(at_least=0.94), until=150).lanes[1].verdict() == "feasible"
    assert wrong / RUNS <= 0.05
    assert sure / RUNS >= 0.95


def test_the_ratio_is_found_without_the_drift():
    ratios = []
    for seed in range(50):
        machine = FakeMachine([1.0, 1 / 0.9], noise=0.005, drift=5e-4, stall_share=0.02, seed=seed)
        lane = machine.contest().lanes[1]
        low, high = lane.ratio.interval()
        assert low <= 0.9 <= high
        ratios.append(lane.ratio.median())
    assert sum(ratios) / len(ratios) == pytest.approx(0.9, abs=0.001)


def test_it_stops_when_sure_and_when_time_is_up():
    assert FakeMachine([1.0, 2.0], noise=0.01).contest(Target(at_least=0.9)).rounds == 6
    contest = FakeMachine([1.0, 1.0], noise=0.05).contest(Target(at_least=1.0), until=60)
    assert contest.lanes[1].verdict() == "undecided"
    assert 14 <= contest.rounds <= 16
    assert FakeMachine([1.0, 1.0], noise=0.05).contest(until=0).rounds == 6


def test_a_number_of_tokens_per_second_is_judged_by_the_speed_itself():
    machine = FakeMachine([0.01], noise=0.005)
    (lane,) = machine.contest(Target(at_least=97, absolute=True)).lanes
    assert lane.verdict() == "feasible"
    assert lane.speed.median() == pytest.approx(100, rel=0.01)


def test_that_the_anchor_reaches_a_share_of_itself_needs_no_measuring():
    (lane,) = FakeMachine([1.0]).contest(Target(at_least=0.9)).lanes
    assert (lane.verdict(), lane.probability(), lane.ratio_interval()) == ("feasible", 1.0, (1.0, 1.0))
    assert FakeMachine([1.0]).contest(Target(at_least=1.1)).lanes[0].verdict() == "infeasible"


def test_a_figure_that_is_wanted_besides_a_verdict_is_measured_until_it_is_known():
    for target in (Target(at_least=0.5, narrow=True), Target(at_least=0.1, absolute=True, narrow=True)):
        (lane,) = FakeMachine([1.0, 1.1], noise=0.03).contest(target).lanes[1:]
        low, high = lane.ratio_interval()
        assert lane.verdict() == "feasible"
        assert math.log(high / low) / 2 <= 0.011
    quick = FakeMachine([1.0, 1.1], noise=0.03).contest(Target(at_least=0.5)).lanes[1]
    assert quick.ratio.rounds < lane.ratio.rounds
