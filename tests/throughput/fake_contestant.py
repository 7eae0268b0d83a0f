"""A contestant whose steps take what a formula says, on a device of known size."""

import math
import random

import torch

from archsearch.throughput.device_state import Watch

COSTS = {"R": 8e-3, "M": 9e-3, "A": 7e-3}
FIXED = 30e-3
BYTES = {"model": 10, "layer": 2, "transient": 3}


class FakeMachine:
    """Steps of known cost; `memory` is how much the device holds, `noise` is on the log scale."""

    def __init__(self, noise=0.0, memory=math.inf, speed=1.0, seed=0):
        self.noise, self.memory, self.speed, self.random = noise, memory, speed, random.Random(seed)
        self.loaded, self.log, self.failures = [], [], 0

    def free(self, _):
        return self.memory - sum(contestant.size for contestant in self.loaded)

    def contestant(self, architecture, conditions=None, device=None, watch=None):  # noqa: ARG002
        return FakeContestant(self, architecture)

    def use(self, monkeypatch):
        """Let tables and comparisons be measured on this machine."""
        monkeypatch.setattr("archsearch.throughput.contestant.free_bytes", self.free)
        for module in ("tabulate", "measure"):
            monkeypatch.setattr(f"archsearch.throughput.{module}.Contestant", self.contestant)
        return self


class FakeContestant:
    device = torch.device("cpu")

    def __init__(self, machine, architecture):
        self.machine, self.architecture = machine, architecture
        self.size = BYTES["model"] + BYTES["layer"] * len(architecture.pattern)
        self.peak_memory, self.transient = None, 0
        self.watch = Watch(self.device)

    @property
    def is_loaded(self):
        return self in self.machine.loaded

    def expected_bytes(self):
        return self.peak_memory or self.size

    def load(self):
        self.machine.log.append(f"load {self.architecture.pattern}")
        self.transient = BYTES["transient"]
        self.peak_memory = self.size + self.transient
        if self.peak_memory > self.machine.free(None):
            self.machine.failures += 1
            raise torch.OutOfMemoryError("the device is full")
        self.machine.loaded.append(self)

    def unload(self):
        if self.is_loaded:
            self.machine.loaded.remove(self)

    def run(self):
        assert self.is_loaded
        assert self.machine.free(None) >= self.transient
        cost = FIXED + sum(COSTS[letter] for letter in self.architecture.pattern)
        return cost / self.machine.speed * math.exp(self.machine.random.gauss(0, self.machine.noise))
