"""Measure what a cost table is asked for and lacks: parts from N against 2N layers, and whole patterns."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.files import locked
from archsearch.pattern import compact
from archsearch.throughput.conditions import Conditions
from archsearch.throughput.contestant import Contestant, Stage
from archsearch.throughput.cost_table import (
    Anchor,
    Cost,
    CostTable,
    Whole,
    fixed_part,
    load_table,
    part_of,
    parts_of,
    with_vocabulary,
)
from archsearch.throughput.device_state import Watch
from archsearch.throughput.rounds import Log, Round, interleave
from archsearch.throughput.verdict import LEAST_ROUNDS

PRECISE_WITHIN = 0.005
"""A marginal is known once its standard error is at most this share of it, or a twentieth of this of the anchor."""

Say = Callable[[str], None]


def new_table(base: Architecture, conditions: Conditions, layers: int | None = None) -> CostTable:
    """Return an empty table for patterns around `base`; by default N is a sixth of its layers."""
    from archsearch.throughput.machine import key_of_this_machine

    return CostTable(key=key_of_this_machine(conditions), layers=layers or max(1, len(base.pattern) // 6))


@dataclass
class Tabulator:
    """Fills one table on this machine and saves it after each measurement.

    `limit` is how many seconds of rounds each part and each whole pattern gets at most; after `until`, of
    `time.monotonic()`, none is begun.
    """

    table: CostTable
    path: Path
    device: str | None = None
    say: Say = print
    until: float = math.inf
    limit: float = 30.0

    @property
    def conditions(self) -> Conditions:
        """What the table's key says."""
        key = self.table.key
        return Conditions(
            batch_size=key.batch_size,
            length=key.length,
            precision=key.precision,
            mode=key.mode,
            blocks=key.blocks,
            device=self.device,
        )

    def complete(self, architectures: Sequence[Architecture]) -> bool:
        """Measure every missing part of some architectures; returns False where `until` came first."""
        for architecture in map(with_vocabulary, architectures):
            for letter in sorted(dict.fromkeys(architecture.pattern), key=architecture.pattern.count, reverse=True):
                known = part_of(architecture, letter) in self.table.costs
                if known and fixed_part(architecture) in self.table.costs:
                    continue
                if time.monotonic() >= self.until:
                    return False
                self._measure_part(architecture, letter)
        return True

    def hold_out(self, architectures: Sequence[Architecture]) -> bool:
        """Measure whole patterns that the table has not; returns False where `until` came first."""
        for architecture in map(with_vocabulary, architectures):
            if architecture.id in self.table.wholes:
                continue
            if time.monotonic() >= self.until:
                return False
            self.table.wholes[architecture.id] = whole = self.measure_whole(architecture)
            self._save()
            self.say(f"whole {whole.label}: {1000 * whole.seconds:.3f} ms in {whole.rounds} rounds")
        return True

    def measure_whole(self, architecture: Architecture) -> Whole:
        """Measure a whole pattern beside the anchor of a table that has been begun, and leave the table as it is."""
        assert self.table.anchor is not None
        architecture = with_vocabulary(architecture)
        rounds = self._rounds([self._anchor(architecture), architecture])
        shares = [seconds[1] / seconds[0] for seconds in rounds.seconds]
        unit = self.table.anchor.seconds
        return Whole(
            label=_label(architecture),
            parts=parts_of(architecture),
            seconds=unit * statistics.median(shares),
            error=unit * standard_error(shares),
            bytes=rounds.peaks[1],
            rounds=len(shares),
        )

    def _measure_part(self, architecture: Architecture, letter: str) -> None:
        """Measure N against 2N layers of a letter beside the anchor: both the marginal and what is fixed."""
        layers, table = self.table.layers, self.table
        single, double = (dataclasses.replace(architecture, pattern=letter * count) for count in (layers, 2 * layers))
        anchor = self._anchor(single)
        contestants = [anchor, double] if anchor.id == single.id else [anchor, single, double]
        rounds = self._rounds(contestants, layers)
        if table.anchor is None:
            table.anchor = Anchor(
                architecture=anchor.to_dict(), seconds=statistics.median(seconds[0] for seconds in rounds.seconds)
            )
        unit = table.anchor.seconds
        of_single, of_double = rounds.peaks[-2], rounds.peaks[-1]
        marginals = [(seconds[-1] - seconds[-2]) / layers / seconds[0] for seconds in rounds.seconds]
        fixed = [(2 * seconds[-2] - seconds[-1]) / seconds[0] for seconds in rounds.seconds]
        counted = of_single is not None and of_double is not None
        option = architecture.mixers[letter]
        table.costs[part_of(architecture, letter)] = cost = Cost(
            label=f"{letter}: {option.type}, {option.options.shape()}",
            seconds=unit * max(0.0, statistics.median(marginals)),
            error=unit * standard_error(marginals),
            bytes=(of_double - of_single) / layers if counted else None,  # type: ignore[operator]
            rounds=len(marginals),
        )
        table.costs.setdefault(
            fixed_part(architecture),
            Cost(
                label=f"embedding and head, from {letter}{layers} against {letter}{2 * layers}",
                seconds=unit * max(0.0, statistics.median(fixed)),
                error=unit * standard_error(fixed),
                bytes=2 * of_single - of_double if counted else None,  # type: ignore[operator]
                rounds=len(fixed),
            ),
        )
        self._save()
        error = cost.error / cost.seconds if cost.seconds else math.inf
        self.say(f"{cost.label}: {1000 * cost.seconds:.4f} ms per layer (± {error:.1%}) in {cost.rounds} rounds")

    def _anchor(self, architecture: Architecture) -> Architecture:
        """Return the model beside which everything is measured: N layers of what was measured first."""
        if self.table.anchor is None:
            return architecture
        return Architecture.from_dict(self.table.anchor.architecture, Where(str(self.path), "anchor.architecture"))

    def _rounds(self, architectures: Sequence[Architecture], layers: int | None = None) -> _Rounds:
        conditions = self.conditions
        device = conditions.resolve_device()
        watch = Watch(device)
        contestants = [Contestant(x, conditions, device, watch) for x in architectures]
        try:
            with Stage(contestants) as stage:
                found = list(_until_precise(interleave(stage.passes(), Log(), watch), self.limit, layers))
        except torch.OutOfMemoryError:
            patterns = ", ".join(compact(x.pattern) for x in architectures)
            raise ConfigError(f"out of memory with {patterns} at {conditions.describe()}") from None
        return _Rounds(seconds=found, peaks=[contestant.peak_memory for contestant in contestants])

    def _save(self) -> None:
        with locked(self.path):
            if self.path.exists():  # another process may have begun it, or added to it
                self.table.take_in(load_table(self.path), self.path)
            self.table.save(self.path)


@dataclass(frozen=True, kw_only=True)
class _Rounds:
    """Seconds per step of all contestants, round by round, and the bytes of each at its peak."""

    seconds: Sequence[Sequence[float]]
    peaks: Sequence[int | None]


def _label(architecture: Architecture) -> str:
    """Return the pattern, and the shape of every letter but the commonest."""
    letters = sorted(set(architecture.pattern), key=architecture.pattern.count, reverse=True)
    shapes = [f"{letter} {architecture.mixers[letter].options.shape()}" for letter in letters[1:]]
    return "; ".join([compact(architecture.pattern), *shapes])


def standard_error(values: Sequence[float]) -> float:
    """Return that of the median, from the median absolute deviation (both exact for normal noise)."""
    middle = statistics.median(values)
    return 1.2533 * 1.4826 * statistics.median(abs(x - middle) for x in values) / math.sqrt(len(values))


def _until_precise(rounds: Iterator[Round], limit: float, layers: int | None) -> Iterator[Sequence[float]]:
    """Yield rounds until the last contestant's share, or with `layers` the marginal, is known, or the time is over."""
    started = time.monotonic()
    values: list[float] = []
    for found in rounds:
        seconds = found.seconds
        yield seconds
        difference = seconds[-1] - seconds[-2] if layers else seconds[-1]
        values.append(difference / (layers or 1) / seconds[0])
        if len(values) < LEAST_ROUNDS:
            continue
        enough = max(PRECISE_WITHIN * statistics.median(values), PRECISE_WITHIN / 20)
        if standard_error(values) <= enough or time.monotonic() - started >= limit:
            return
