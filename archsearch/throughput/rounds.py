"""Interleaved rounds: A B C C B A, so that whatever drifts evenly hits all alike, whoever comes first."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from archsearch.throughput.device_state import DeviceState

PILOT = 3
"""The first rounds are judged together: before them nobody knows how long a pass takes."""

STALL = 1.3
"""A pass that takes so many times the median, and lies 8 standard deviations off, was held up by something else."""

FREE_REPEATS = 3
"""So many rounds more than were kept are repeated; what is disturbed all the time is measured as it is, and said so."""

Pass = Callable[[], float]
"""Runs one contestant for a while and returns its seconds per step."""


class Watch(Protocol):
    """Whoever looks at the device while a pass runs."""

    def last(self) -> DeviceState | None: ...


@dataclass(frozen=True, kw_only=True)
class Round:
    """Seconds per step of each contestant, there and back, and what the device was like."""

    passes: tuple[tuple[float, float], ...]
    states: tuple[DeviceState, ...] = ()

    @property
    def seconds(self) -> tuple[float, ...]:
        """The mean of both passes: an even drift cancels in every ratio of them."""
        return tuple((there + back) / 2 for there, back in self.passes)


@dataclass
class Log:
    """What happened besides: why rounds were repeated, and how many disturbed ones had to be kept."""

    repeated: list[str] = field(default_factory=list)
    kept_disturbed: list[str] = field(default_factory=list)
    states: list[DeviceState] = field(default_factory=list)


def interleave(passes: Sequence[Pass], log: Log, watch: Watch | None = None) -> Iterator[Round]:
    """Yield rounds without end; a disturbed one is repeated and noted in `log`."""
    kept: list[Round] = []
    pilot = [_run(passes, watch) for _ in range(PILOT)]
    for found in pilot:
        if _accept(found, pilot, kept, log):
            kept.append(found)
            yield found
    while True:
        found = _run(passes, watch)
        if _accept(found, kept if len(kept) >= PILOT else [*kept, *pilot], kept, log):
            kept.append(found)
            yield found


def _run(passes: Sequence[Pass], watch: Watch | None) -> Round:
    states: list[DeviceState] = []

    def timed(run: Pass) -> float:
        seconds = run()
        if watch is not None and (state := watch.last()):
            states.append(state)
        return seconds

    there = [timed(run) for run in passes]
    back = [timed(run) for run in reversed(passes)]
    return Round(passes=tuple(zip(there, reversed(back), strict=True)), states=tuple(states))


def _accept(found: Round, others: Sequence[Round], kept: Sequence[Round], log: Log) -> bool:
    log.states.extend(found.states)
    reason = _disturbance(found, others)
    if reason is None:
        return True
    if len(log.repeated) < len(kept) + FREE_REPEATS:
        log.repeated.append(reason)
        return False
    log.kept_disturbed.append(reason)
    return True


def _disturbance(found: Round, others: Sequence[Round]) -> str | None:
    """Return what disturbed a round: what the device says, or a pass far longer than the same one is otherwise."""
    for state in found.states:
        if state.disturbance:
            return state.disturbance
    for number, own in enumerate(found.passes):
        times = [seconds for other in others for seconds in other.passes[number]]
        middle = statistics.median(times)
        spread = 1.4826 * statistics.median(abs(seconds - middle) for seconds in times)
        if max(own) > max(STALL * middle, middle + 8 * spread):
            return f"a stall: {max(own) / middle:.1f} x the usual time"
    return None
