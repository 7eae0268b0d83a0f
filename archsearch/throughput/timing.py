"""Time GPU work of a few milliseconds: medians with intervals, peak memory, and kernel time by kind."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

ROUNDS = 40
WARM_UP = 5
CACHE_BYTES = 256 << 20  # written before every timed call, so that no input is left in the L2 cache
AHEAD_CYCLES = 40_000_000  # about 20 ms in which the GPU waits, so that launches are queued before the clock starts


@dataclass(frozen=True, kw_only=True)
class Times:
    """Milliseconds: the median and its 95 % interval (of the order statistics, no distribution assumed)."""

    median: float
    low: float
    high: float
    runs: int


def time_side_by_side(calls: Mapping[str, Callable[[], None]], rounds: int = ROUNDS) -> dict[str, Times]:
    """Return the GPU's time for each call, in interleaved rounds, so that clock drift hits all alike."""
    flush = torch.empty(CACHE_BYTES, dtype=torch.int8, device="cuda")
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(rounds):
        for name in list(calls)[:: 1 if index % 2 == 0 else -1]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            flush.zero_()
            torch.cuda._sleep(AHEAD_CYCLES)  # type: ignore[no-untyped-call]
            start.record()
            calls[name]()
            end.record()
            torch.cuda.synchronize()
            found[name].append(start.elapsed_time(end))
    return {name: summarise(times) for name, times in found.items()}


def launch_time(call: Callable[[], None], runs: int = 5) -> float:
    """Return the milliseconds that the CPU takes to queue a call's work; above the GPU's time it is what counts."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(runs):
        call()
    seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1000 * seconds / runs


def summarise(times: list[float]) -> Times:
    """Return the median of `times` and the order statistics that hold the true one with 95 % probability."""
    ordered, count = sorted(times), len(times)
    reach = 0.98 * count**0.5  # 1.96 standard deviations of a binomial(count, 1 / 2)
    low, high = max(0, int(count / 2 - reach)), min(count - 1, int(count / 2 + reach))
    return Times(median=median(ordered), low=ordered[low], high=ordered[high], runs=count)


def peak_extra_memory(call: Callable[[], None]) -> int:
    """Return the bytes that a call allocates at its peak beyond what was allocated before."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def kernel_time(call: Callable[[], None], kinds: Mapping[str, tuple[str, ...]], runs: int = 5) -> dict[str, float]:
    """Return the milliseconds that a call's kernels take by kind: the first whose words a kernel's name holds.

    What no kind names is `elementwise`. Kernels do not overlap here, so the parts add up to the busy time.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:
        for _ in range(runs):
            call()
        torch.cuda.synchronize()
    totals = dict.fromkeys((*kinds, "elementwise"), 0.0)
    for event in recorded.events():
        if event.device_type.name != "CUDA":
            continue
        name = event.name.lower()
        kind = next((kind for kind, words in kinds.items() if any(word in name for word in words)), "elementwise")
        totals[kind] += event.device_time_total / 1000 / runs
    return totals
