"""Models on a device: together where they fit, in turns where they do not; and real steps of each mode."""

import pytest
import torch

from archsearch.architecture import resolve
from archsearch.config import ConfigError
from archsearch.throughput.conditions import Conditions
from archsearch.throughput.contestant import Contestant, Stage
from archsearch.throughput.cost_table import with_vocabulary
from archsearch.throughput.device_state import Watch

from .fake_contestant import FakeMachine


def stage_of(machine, *patterns):
    return Stage([machine.contestant(resolve(pattern)) for pattern in patterns])


def test_what_fits_stays_on_the_device(monkeypatch):
    machine = FakeMachine(memory=100).use(monkeypatch)
    with stage_of(machine, "R", "M", "A") as stage:
        for run in stage.passes() * 3:
            run()
    assert machine.log == ["load R", "load M", "load A"]
    assert stage.holding() == "held on the device together"
    assert machine.loaded == []


def test_what_does_not_fit_takes_turns(monkeypatch):
    machine = FakeMachine(memory=20).use(monkeypatch)  # one of 12 and its steps of 3
    with stage_of(machine, "R", "M") as stage:
        for run in stage.passes() * 2:
            run()
            assert len(machine.loaded) == 1
    assert machine.failures == 0
    assert stage.holding() == "took turns on the device, which does not hold all of them"


def test_one_that_runs_out_of_memory_beside_others_is_tried_alone(monkeypatch):
    machine = FakeMachine(memory=26).use(monkeypatch)  # two models of 12 fit, the steps of 3 beside them do not
    with stage_of(machine, "R", "M") as stage:
        for run in stage.passes():
            run()
    assert machine.failures == 1
    with pytest.raises(torch.OutOfMemoryError), stage_of(FakeMachine(memory=5).use(monkeypatch), "R"):
        pass


@pytest.mark.parametrize("mode", ["train", "prefill", "decode"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_real_model_runs_steps_of_each_mode(mode, precision):
    conditions = Conditions(batch_size=2, length=5, precision=precision, mode=mode, device="cpu")
    device = torch.device("cpu")
    contestant = Contestant(with_vocabulary(resolve("MA")), conditions, device, Watch(device))
    contestant.load()
    weights = {name: value.clone() for name, value in contestant._model.named_parameters()}
    assert 0 < contestant.run() < 5
    changed = [name for name, value in contestant._model.named_parameters() if not torch.equal(value, weights[name])]
    assert bool(changed) == (mode == "train")
    if mode != "train":
        assert {value.dtype for value in weights.values()} == {torch.float32 if precision == "fp32" else torch.bfloat16}
    contestant.unload()
    assert not contestant.is_loaded


def test_blocks_are_compiled_or_recorded_before_the_clock_starts(monkeypatch):
    asked, device = [], torch.device("cpu")
    monkeypatch.setattr("archsearch.throughput.contestant.HybridLM.compile_blocks", lambda _: asked.append("compile"))
    monkeypatch.setattr(
        "archsearch.throughput.contestant.HybridLM.record_blocks",
        lambda _, *shape: asked.append((shape, torch.is_autocast_enabled("cpu"))),
    )
    for blocks in ("compile", "cuda_graphs"):
        conditions = Conditions(batch_size=1, length=4, precision="bf16", device="cpu", blocks=blocks)
        Contestant(with_vocabulary(resolve("A")), conditions, device, Watch(device)).load()
    assert asked == ["compile", ((1, 4), True)]
    with pytest.raises(ConfigError, match="blocks must be eager where mode is decode"):
        Conditions(mode="decode", blocks="compile")


def test_every_decoding_pass_goes_on_from_the_same_context():
    device = torch.device("cpu")
    conditions = Conditions(batch_size=1, length=6, mode="decode", device="cpu")
    contestant = Contestant(with_vocabulary(resolve("MA")), conditions, device, Watch(device))
    contestant.load()
    before = [{name: part.clone() for name, part in state.items()} for state in contestant._context[0]]
    contestant._timed(3)
    keys = [state["key"].shape[1] for state in contestant._going[0] if "key" in state]
    assert keys == [6 + 3]
    contestant._timed(3)
    assert [state["key"].shape[1] for state in contestant._going[0] if "key" in state] == keys
    for state, known in zip(contestant._context[0], before, strict=True):
        assert all(torch.equal(state[name], known[name]) for name in known)
