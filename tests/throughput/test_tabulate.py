"""A cost table filled on a machine whose costs are known."""

import dataclasses
import math
import threading

import pytest

from archsearch.architecture import resolve
from archsearch.config import ConfigError
from archsearch.throughput.conditions import Conditions
from archsearch.throughput.cost_table import load_table, part_of, with_vocabulary
from archsearch.throughput.predict import Predictor, residual_figures
from archsearch.throughput.tabulate import Tabulator, new_table

from .fake_contestant import BYTES, COSTS, FIXED, FakeMachine

BASE = with_vocabulary(resolve("R21A3"))
CONDITIONS = Conditions(batch_size=1, length=8, device="cpu")


@pytest.fixture
def tabulator(tmp_path):
    said = []
    found = Tabulator(new_table(BASE, CONDITIONS), tmp_path / "table.json", "cpu", said.append)
    found.said = said
    return found


def cost(tabulator, letter):
    return tabulator.table.costs[part_of(BASE.with_pattern(letter), letter)]


def model(pattern):
    return BASE.with_pattern(pattern)


def test_costs_are_found_from_n_against_2n_layers(tabulator, monkeypatch):
    machine = FakeMachine(noise=0.002).use(monkeypatch)
    assert tabulator.complete([BASE, model("RMA")])
    assert tabulator.table.layers == 4
    assert {"load RRRR", "load RRRRRRRR", "load MMMM", "load MMMMMMMM"} <= set(machine.log)
    for letter, seconds in COSTS.items():
        found = cost(tabulator, letter)
        assert abs(found.seconds - seconds) < 5 * found.error + 1e-6
        assert found.error < 0.02 * seconds
        assert found.bytes == BYTES["layer"]
    fixed = next(x for name, x in tabulator.table.costs.items() if name.startswith("embedding"))
    assert fixed.seconds == pytest.approx(FIXED, rel=0.05)
    assert fixed.bytes == BYTES["model"] + BYTES["transient"]
    assert Predictor(tabulator.table).predict(BASE).median == pytest.approx(FIXED + 21 * 8e-3 + 3 * 7e-3, rel=0.02)


def test_more_noise_takes_more_rounds(tabulator, monkeypatch, tmp_path):
    FakeMachine(noise=0.0005).use(monkeypatch)
    tabulator.complete([model("R")])
    noisy = Tabulator(new_table(BASE, CONDITIONS), tmp_path / "noisy.json", "cpu")
    FakeMachine(noise=0.004).use(monkeypatch)
    noisy.complete([model("R")])
    assert cost(noisy, "R").rounds > 2 * cost(tabulator, "R").rounds


def test_a_marginal_is_never_negative(tabulator, monkeypatch):
    monkeypatch.setitem(COSTS, "M", -1e-4)
    tabulator.limit = 0.01
    FakeMachine(noise=0.001).use(monkeypatch)
    tabulator.complete([model("R"), model("M")])
    assert cost(tabulator, "M").seconds == 0.0
    assert cost(tabulator, "M").error > 0


def test_it_goes_on_where_it_stopped_and_adds_what_it_is_asked_for(tabulator, monkeypatch):
    machine = FakeMachine(noise=0.001).use(monkeypatch)
    tabulator.complete([model("R")])
    tabulator.until = -math.inf
    assert not tabulator.complete([BASE])
    again = Tabulator(load_table(tabulator.path), tabulator.path, "cpu")
    machine.log.clear()
    assert again.complete([BASE, model("R7M")])
    assert not [line for line in machine.log if set(line.removeprefix("load ")) == {"R"} and line != "load RRRR"]
    assert set(load_table(tabulator.path).costs) == set(again.table.costs)
    machine.log.clear()
    assert again.complete([model("MRA")])
    assert machine.log == []


def test_a_faster_card_later_does_not_change_the_unit(tabulator, monkeypatch):
    """What is added in another session is measured beside the anchor, and kept in the seconds of the first."""
    FakeMachine().use(monkeypatch)
    tabulator.complete([model("R")])
    FakeMachine(speed=1.4).use(monkeypatch)
    tabulator.complete([model("M")])
    assert cost(tabulator, "M").seconds == pytest.approx(9e-3, rel=0.01)


def test_whole_patterns_say_what_the_parts_do_not_see(tabulator, monkeypatch):
    FakeMachine(noise=0.001).use(monkeypatch)
    tabulator.complete([model("RMA")])
    assert tabulator.hold_out([BASE, model("R18M3A3"), model("R20MA3")])
    figures = residual_figures(load_table(tabulator.path))
    assert figures["number"] == 3
    assert abs(figures["seen_by_no_part"]) < 0.01
    assert "whole R21A3" in " ".join(tabulator.said)
    assert Predictor(tabulator.table).measured(BASE).seconds == pytest.approx(FIXED + 21 * 8e-3 + 3 * 7e-3, rel=0.01)


def test_two_processes_may_add_to_one_file(tabulator, monkeypatch):
    FakeMachine().use(monkeypatch)
    tabulator.complete([model("R")])
    other = Tabulator(load_table(tabulator.path), tabulator.path, "cpu")
    tabulator.complete([model("M")])
    other.complete([model("A")])
    assert not load_table(tabulator.path).missing(model("RMA"))


def test_two_processes_that_begin_the_same_table_share_the_anchor_of_the_first(tabulator, monkeypatch):
    FakeMachine().use(monkeypatch)
    late = Tabulator(new_table(BASE, CONDITIONS), tabulator.path, "cpu")
    tabulator.complete([model("RA")])
    tabulator.hold_out([model("R3A")])
    FakeMachine(speed=1.4).use(monkeypatch)
    late.complete([model("RM")])
    found = load_table(tabulator.path)
    assert found.anchor == late.table.anchor == tabulator.table.anchor
    assert not found.missing(model("RMA"))
    assert len(found.wholes) == 1
    assert cost(late, "M").seconds == pytest.approx(9e-3, rel=0.01)
    assert cost(late, "R").seconds == pytest.approx(8e-3, rel=0.01)
    late.hold_out([model("R2M")])
    assert late.table.wholes[model("R2M").id].seconds == pytest.approx(FIXED + 25e-3, rel=0.01)


def test_the_anchor_of_another_model_is_no_unit(tabulator, monkeypatch):
    FakeMachine().use(monkeypatch)
    late = Tabulator(new_table(BASE, CONDITIONS), tabulator.path, "cpu")
    tabulator.complete([model("R")])
    with pytest.raises(ConfigError, match=r"table.json: anchor.architecture: must be the model .*; got R4$"):
        late.complete([model("M")])


def test_a_file_of_another_key_is_not_overwritten(tabulator, monkeypatch):
    FakeMachine().use(monkeypatch)
    other = new_table(BASE, CONDITIONS)
    other.key = dataclasses.replace(other.key, driver="580")
    other.save(tabulator.path)
    own = tabulator.table.key.driver
    with pytest.raises(ConfigError, match=rf"table.json: key.driver: must be {own} for .*; got 580$"):
        tabulator.complete([model("R")])
    assert load_table(tabulator.path).key == other.key


def test_what_another_process_adds_between_reading_and_writing_stays(tabulator, monkeypatch):
    FakeMachine().use(monkeypatch)
    tabulator.complete([model("R")])
    other = Tabulator(load_table(tabulator.path), tabulator.path, "cpu")
    adding = threading.Thread(target=other.complete, args=([model("A")],))

    def slow_load(path):
        loaded = load_table(path)
        if threading.current_thread() is not adding:
            adding.start()
            adding.join(0.5)  # either it waits for its turn, or it has written by now
        return loaded

    monkeypatch.setattr("archsearch.throughput.tabulate.load_table", slow_load)
    tabulator.complete([model("M")])
    adding.join()
    assert not load_table(tabulator.path).missing(model("RMA"))


def test_what_does_not_fit_is_one_line(tabulator, monkeypatch):
    FakeMachine(memory=1).use(monkeypatch)
    with pytest.raises(ConfigError, match="out of memory with R4, R8 at training steps of 1 x 8 tokens in fp32"):
        tabulator.complete([model("R")])
