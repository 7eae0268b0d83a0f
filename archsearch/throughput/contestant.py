"""An architecture on a device, ready to run timed steps; several share the device as its memory allows."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from archsearch.architecture import Architecture
from archsearch.mixers.common import State
from archsearch.model.language_model import HybridLM
from archsearch.throughput.conditions import PRECISIONS, Conditions
from archsearch.throughput.device_state import Watch
from archsearch.training.step import OptimizerOptions, build_optimizer, train_step

WARM_UP_STEPS = 2
PASS_SECONDS = {"cuda": 0.2, "cpu": 0.05}  # of a pass, so that clock's grain, first launch and jitter are small in it
LEAST_STEPS = {"cuda": 2, "cpu": 1}  # of a pass, so that a GPU's launches run ahead into the next step as in training
PREFILL_CHUNK = 1024  # tokens of a context that are read at once: bounds the memory of activations
TRAINING_BYTES = 16  # per parameter: weight, gradient and two moments of AdamW in float32
MARGIN = 0.97  # of the memory that is free


class Contestant:
    """One architecture under the given conditions; `load` builds it, `run` times steps."""

    def __init__(self, architecture: Architecture, conditions: Conditions, device: torch.device, watch: Watch) -> None:
        self.architecture, self.conditions, self.device = architecture, conditions, device
        self.steps: int | None = None
        self.peak_memory: int | None = None
        self.transient = 0
        self._watch = watch
        self._model: HybridLM | None = None
        self._step: Callable[[], None] | None = None

    @property
    def is_loaded(self) -> bool:
        return self._model is not None

    def load(self) -> None:
        """Build the model and run until compilation, tuning and first allocations are out of the way."""
        before = self._allocated()
        with self.device:
            self._model = HybridLM(self.architecture)
        self._prepare(self._model)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._timed(WARM_UP_STEPS)
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
            self.peak_memory = peak - before
            self.transient = peak - self._allocated()
        if self.steps is None:
            kind = self.device.type
            self.steps = max(LEAST_STEPS[kind], round(PASS_SECONDS[kind] / self._timed(1)))

    def unload(self) -> None:
        """Free everything that the model holds on the device."""
        self._model = self._step = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def run(self) -> float:
        """Return the seconds per step of one pass."""
        assert self.steps is not None
        return self._timed(self.steps) / self.steps

    def expected_bytes(self) -> int:
        """Return what loading it takes: as measured, or weights and the optimizer's share by formula."""
        per_parameter = TRAINING_BYTES if self.conditions.mode == "train" else 4
        return self.peak_memory or per_parameter * self.architecture.num_parameters(head=True)

    def _prepare(self, model: HybridLM) -> None:
        if self.conditions.mode == "train":
            self._accelerate(model)
            optimizer = build_optimizer(model, OptimizerOptions())
            self._step = self._training(model, optimizer)
        else:
            model.to(dtype=self._dtype() or torch.float32).eval()
            self._step = self._prefill(model) if self.conditions.mode == "prefill" else self._decode(model)

    def _accelerate(self, model: HybridLM) -> None:
        if self.conditions.blocks == "compile":
            model.compile_blocks()
        elif self.conditions.blocks == "cuda_graphs":
            with self._autocast():
                model.record_blocks(self.conditions.batch_size, self.conditions.length)

    def _training(self, model: HybridLM, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        def step() -> None:
            with self._autocast():
                train_step(model, optimizer, self._batch, grad_clip=1.0)

        return step

    def _prefill(self, model: HybridLM) -> Callable[[], None]:
        @torch.inference_mode()
        def step() -> None:
            model(self._batch["tokens"], last_only=True)

        return step

    def _decode(self, model: HybridLM) -> Callable[[], None]:
        states, token = self._read_context(model)
        self._context = states, token
        self._going = self._context

        @torch.inference_mode()
        def step() -> None:
            states, token = self._going
            logits, new = model(token, states, last_only=True)
            assert new is not None
            self._going = new, logits[:, -1].argmax(-1, keepdim=True)

        return step

    @torch.inference_mode()
    def _read_context(self, model: HybridLM) -> tuple[list[State], Tensor]:
        states: list[State] | None = None
        for chunk in torch.split(self._draw()["tokens"], PREFILL_CHUNK, dim=1):
            logits, states = model(chunk, states, last_only=True)
        assert states is not None
        return states, logits[:, -1].argmax(-1, keepdim=True)

    def _timed(self, steps: int) -> float:
        """Run steps back to back, launches ahead of the device, and wait for it only at both ends."""
        assert self._step is not None
        if self.conditions.mode == "decode":
            self._going = self._context
        else:
            self._batch = self._draw()
        self._synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            self._step()
        self._watch.look()  # while the device still works on what has been launched
        self._synchronize()
        return time.perf_counter() - started

    def _draw(self) -> dict[str, Tensor]:
        assert self.architecture.vocab_size is not None
        size = (self.conditions.batch_size, self.conditions.length + 1)
        tokens = torch.randint(self.architecture.vocab_size, size, device=self.device)
        return {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}

    def _dtype(self) -> torch.dtype | None:
        return PRECISIONS[self.conditions.precision]

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        dtype = self._dtype()
        return contextlib.nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Stage:
    """The contestants of one comparison: all of them stay on the device where they fit, else they take turns."""

    def __init__(self, contestants: Sequence[Contestant]) -> None:
        self.contestants = contestants
        self.loads = 0

    def __enter__(self) -> Stage:
        for contestant in self.contestants:
            self._bring(contestant)
        return self

    def __exit__(self, *_: object) -> None:
        for contestant in self.contestants:
            if contestant.is_loaded:
                contestant.unload()

    def passes(self) -> list[Callable[[], float]]:
        """Return for each contestant what runs it; what has to make room for it is unloaded before the clock starts."""

        def run_of(contestant: Contestant) -> Callable[[], float]:
            def run() -> float:
                self._bring(contestant)
                return contestant.run()

            return run

        return [run_of(contestant) for contestant in self.contestants]

    def holding(self) -> str:
        """Return how they shared the device, in words."""
        if self.loads <= len(self.contestants):
            return "held on the device together"
        return "took turns on the device, which does not hold all of them"

    def _bring(self, contestant: Contestant) -> None:
        """Load a contestant unless it is loaded, and see to it that its steps have room."""
        others = [other for other in self.contestants if other is not contestant and other.is_loaded]
        need = contestant.transient if contestant.is_loaded else contestant.expected_bytes()
        while others and need > MARGIN * free_bytes(contestant.device):
            others.pop(0).unload()
        if contestant.is_loaded:
            return
        self.loads += 1
        try:
            contestant.load()
        except torch.OutOfMemoryError:
            contestant.unload()
            if not others:
                raise
            for other in others:
                other.unload()
            contestant.load()


def free_bytes(device: torch.device) -> float:
    """Return what can still be allocated on the device; on a CPU no bound is kept."""
    if device.type != "cuda":
        return float("inf")
    free, _ = torch.cuda.mem_get_info(device)
    return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
