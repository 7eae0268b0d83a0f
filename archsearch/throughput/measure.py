"""Time whole training steps of architectures side by side: rounds A B A B, so that drift hits all alike."""

from __future__ import annotations

import contextlib
import platform
import statistics
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from archsearch.architecture import Architecture
from archsearch.config import ConfigError
from archsearch.model.language_model import HybridLM
from archsearch.throughput.verdict import LogRatio, Verdict
from archsearch.training.step import OptimizerOptions, build_optimizer, train_step

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
WARM_UP_STEPS = 2
MIN_ROUNDS = 5
ROUND_SECONDS = 0.1  # a round is one step, or as many as make the clock's grain and jitter small


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What is timed: batch, length, precision and for how long at most (seconds, all architectures together)."""

    batch_size: int = 8
    length: int = 512
    precision: str = "fp32"
    time_limit: float = 90.0
    confidence: float = 0.95
    device: str | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "length", "time_limit"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive; got {getattr(self, name)}")
        if not 0 < self.confidence < 1:
            raise ConfigError(f"confidence must lie between 0 and 1; got {self.confidence}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r}")

    def resolve_device(self) -> torch.device:
        """Return the device asked for, or the GPU where there is one. Raises ConfigError."""
        name = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        known = ["cpu", *(["cuda"] if gpus else []), *gpus]
        if name not in known:
            raise ConfigError(f"device must be one of this machine's, {', '.join(known)}; got {name!r}")
        return torch.device(name)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The training throughput of one architecture, and its ratio to the anchor's with a confidence interval."""

    architecture_id: str
    tokens_per_second: float
    base_tokens_per_second: float
    ratio: float
    ratio_low: float
    ratio_high: float
    probability: float | None
    verdict: Verdict | None
    peak_memory_bytes: int | None
    device: str
    rounds: int
    seconds: float


def compare(
    candidate: Architecture, base: Architecture, conditions: Conditions, *, at_least: float | None = None
) -> Measurement:
    """Measure a candidate against the base; `at_least` asks whether the ratio reaches it and stops once sure."""
    return measure([candidate], base, conditions, at_least=at_least)[0]


def measure(
    architectures: list[Architecture], base: Architecture, conditions: Conditions, *, at_least: float | None = None
) -> list[Measurement]:
    """Measure each architecture against `base` in interleaved rounds.

    tokens/s = B T / time of forward, backward, clipping and optimizer step on random tokens. Rounds go on until every
    ratio is known (within 1 % without `at_least`, else to the verdict's confidence) or the time limit has come.
    """
    started = time.monotonic()
    device = conditions.resolve_device()
    vocab_size = base.vocab_size or 256
    runners = [_Runner(replace(x, vocab_size=x.vocab_size or vocab_size), conditions, device) for x in architectures]
    anchor = _Runner(replace(base, vocab_size=vocab_size), conditions, device)
    everyone = [anchor, *(runner for runner in runners if runner.architecture.id != anchor.architecture.id)]
    for runner in everyone:
        runner.warm_up()
    ratios = [LogRatio(conditions.confidence, at_least) for _ in runners]
    rounds = 0
    while rounds < MIN_ROUNDS or not all(ratio.is_known() for ratio in ratios):
        if rounds >= MIN_ROUNDS and time.monotonic() - started > conditions.time_limit:
            break
        for runner in everyone if rounds % 2 == 0 else reversed(everyone):
            runner.time_round()
        for runner, ratio in zip(runners, ratios, strict=True):
            same = runner.architecture.id == anchor.architecture.id
            ratio.add(1.0 if same else anchor.times[-1] / runner.times[-1])
        rounds += 1
    tokens = conditions.batch_size * conditions.length
    return [
        Measurement(
            architecture_id=runner.architecture.id,
            tokens_per_second=tokens / statistics.median(runner.times or anchor.times),
            base_tokens_per_second=tokens / statistics.median(anchor.times),
            ratio=ratio.median(),
            ratio_low=ratio.interval()[0],
            ratio_high=ratio.interval()[1],
            probability=ratio.probability(),
            verdict=ratio.verdict(),
            peak_memory_bytes=runner.peak_memory or anchor.peak_memory,
            device=describe_device(device),
            rounds=rounds,
            seconds=time.monotonic() - started,
        )
        for runner, ratio in zip(runners, ratios, strict=True)
    ]


def describe_device(device: torch.device) -> str:
    """Return the device in words, so that no figure stands without the machine it came from."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


class _Runner:
    """One architecture with its optimizer and a random batch on the device."""

    def __init__(self, architecture: Architecture, conditions: Conditions, device: torch.device) -> None:
        self.architecture, self.device = architecture, device
        self.dtype = PRECISIONS[conditions.precision]
        self.times: list[float] = []
        self.steps = 1
        self.peak_memory: int | None = None
        self._shape = (conditions.batch_size, conditions.length)

    def warm_up(self) -> None:
        """Build the model, run until compilation and caches are out of the way, and settle the steps of a round."""
        with self.device:
            self.model = HybridLM(self.architecture)
        self.optimizer = build_optimizer(self.model, OptimizerOptions())
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
        self._run(WARM_UP_STEPS)
        if self.device.type == "cuda":
            own = sum(x.numel() * x.element_size() for x in self.model.parameters())
            self.peak_memory = torch.cuda.max_memory_allocated(self.device) - before + own
        self.steps = max(1, round(ROUND_SECONDS / self._run(1)))

    def time_round(self) -> None:
        """Time one round and keep its seconds per step."""
        self.times.append(self._run(self.steps) / self.steps)

    def _run(self, steps: int) -> float:
        batch = self._batch()
        self._synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            with self._autocast():
                train_step(self.model, self.optimizer, batch, grad_clip=1.0)
        self._synchronize()
        return time.perf_counter() - started

    def _batch(self) -> dict[str, Tensor]:
        assert self.architecture.vocab_size is not None
        rows, length = self._shape
        tokens = torch.randint(self.architecture.vocab_size, (rows, length + 1), device=self.device)
        return {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
