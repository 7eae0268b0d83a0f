"""Measuring on a real card: what only a card has."""

import pytest
import torch

from archsearch.architecture import resolve
from archsearch.throughput.conditions import Conditions
from archsearch.throughput.device_state import Watch
from archsearch.throughput.measure import measure
from archsearch.throughput.tabulate import Tabulator, new_table

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


def test_the_driver_tells_clock_temperature_and_power():
    watch = Watch(torch.device("cuda"))
    watch.look()
    state = watch.last()
    assert state.clock > 100
    assert 10 < state.temperature < 100
    assert state.power > 20
    assert watch.driver[0].isdigit()


@pytest.mark.parametrize("blocks", ["eager", "cuda_graphs"])
def test_training_has_memory_utilisation_and_the_state_of_the_card(blocks):
    conditions = Conditions(batch_size=2, length=256, precision="bf16", time_limit=5, blocks=blocks)
    one, two = measure([resolve("M"), resolve("A2")], resolve("M"), conditions)
    assert one.ratio == 1
    assert two.ratio_low <= two.ratio <= two.ratio_high
    assert min(one.peak_memory_bytes, two.peak_memory_bytes) > 1e6
    assert 0 < one.mfu < 1
    assert one.device_state["clock_MHz"]["median"] > 100


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_generation_is_measured(mode):
    conditions = Conditions(batch_size=2, length=256, precision="bf16", time_limit=5, mode=mode)
    (found,) = measure([resolve("MRA")], resolve("R2A"), conditions)
    assert found.tokens_per_second > 0
    assert found.peak_memory_bytes > 1e5


def test_a_table_counts_the_bytes_of_each_block(tmp_path):
    base = resolve("R2A")
    table = new_table(base, Conditions(batch_size=2, length=256, precision="bf16"))
    tabulator = Tabulator(table, tmp_path / "table.json", limit=2.0)
    assert tabulator.complete([base])
    assert all(cost.bytes > 0 for cost in table.costs.values())
