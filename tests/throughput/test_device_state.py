"""What the driver's library says about a card, from a stand-in for the library."""

import ctypes
import os
from types import SimpleNamespace

import torch

from archsearch.throughput.device_state import DeviceState, Watch, describe, open_card, summarise

PROPERTIES = SimpleNamespace(uuid="00000000-1111-2222-3333-444444444444")


class FakeLibrary:
    """Answers as NVML does: 0, and the value behind the pointer."""

    def __init__(self, *, reasons=0, pids=(), missing=(), refused=()):
        self.reasons, self.pids, self.missing, self.refused = reasons, pids, missing, refused
        self.asked = []

    def __getattr__(self, name):
        if not name.startswith("nvml") or name in self.missing:
            raise AttributeError(name)
        return lambda *arguments: self.answer(name, arguments)

    def answer(self, name, arguments):
        self.asked.append((name, arguments))
        if name in self.refused:
            return 6
        if name == "nvmlSystemGetDriverVersion":
            arguments[0].value = b"580.95"
        elif name == "nvmlDeviceGetComputeRunningProcesses_v3":
            for place, pid in enumerate(self.pids):
                arguments[2][place].pid = pid
            arguments[1]._obj.value = len(self.pids)
        elif name != "nvmlInit_v2" and not name.startswith("nvmlDeviceGetHandle"):
            values = {"ClockInfo": 1980, "Temperature": 61, "PowerUsage": 652_000, "ThrottleReasons": self.reasons}
            arguments[-1]._obj.value = next(value for end, value in values.items() if name.endswith(end))
        return 0


def card(**given):
    return open_card(torch.device("cuda"), FakeLibrary(**given), PROPERTIES)


def test_clock_temperature_and_power_are_read():
    found = card(pids=[os.getpid()])
    assert found.driver == "580.95"
    assert found.read() == DeviceState(clock=1980, temperature=61, power=652)


def test_the_card_is_found_by_its_own_name_not_by_a_number_that_may_be_hidden():
    library = FakeLibrary()
    open_card(torch.device("cuda"), library, PROPERTIES)
    (arguments,) = (arguments for name, arguments in library.asked if name == "nvmlDeviceGetHandleByUUID")
    assert ctypes.cast(arguments[0], ctypes.c_char_p).value == b"GPU-00000000-1111-2222-3333-444444444444"


def test_a_card_that_is_not_known_by_its_name_is_taken_by_its_number():
    library = FakeLibrary(refused=("nvmlDeviceGetHandleByUUID",))
    assert open_card(torch.device("cuda:1"), library, PROPERTIES).read().clock == 1980
    (arguments,) = (arguments for name, arguments in library.asked if name == "nvmlDeviceGetHandleByIndex_v2")
    assert arguments[0].value == 1


def test_other_processes_and_slowdowns_are_disturbances_and_the_power_cap_is_none():
    assert card(pids=[os.getpid(), 4_000_000]).read().disturbance == "1 other process on the card"
    assert card(pids=[4_000_001, 4_000_002, 4_000_003]).read().others == 2  # this process under another number
    assert "temperature" in card(reasons=0x40).read().disturbance
    capped = card(reasons=0x04).read()
    assert (capped.power_capped, capped.disturbance) == (True, None)


def test_what_the_driver_does_not_tell_is_left_out():
    found = card(missing=("nvmlDeviceGetPowerUsage", "nvmlDeviceGetComputeRunningProcesses_v3")).read()
    assert (found.clock, found.power, found.others) == (1980, None, 0)
    assert card(missing=("nvmlInit_v2",)) is None


def test_a_cpu_has_nothing_to_look_at():
    watch = Watch(torch.device("cpu"))
    watch.look()
    assert (watch.last(), watch.driver) == (None, "none")
    assert describe(summarise([])) == ""


def test_many_looks_become_one_line():
    states = [DeviceState(clock=1700 + i, temperature=60, power=650, power_capped=i < 2) for i in range(4)]
    figures = summarise(states)
    assert figures["clock_MHz"] == {"low": 1700, "median": 1701.5, "high": 1703}
    assert describe(figures) == "1700 to 1703 MHz, 60 to 60 °C, 650 to 650 W, at its power cap 50% of the time"
