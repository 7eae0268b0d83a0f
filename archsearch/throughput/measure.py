"""Time whole steps of architectures side by side, in interleaved rounds, until the ratios are known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from archsearch.architecture import Architecture
from archsearch.config import ConfigError
from archsearch.throughput.conditions import Conditions, describe_device
from archsearch.throughput.contestant import Contestant, Stage
from archsearch.throughput.cost_table import with_vocabulary
from archsearch.throughput.device_state import Watch, summarise
from archsearch.throughput.limits import limits_of_this_gpu
from archsearch.throughput.rounds import Log, Pass, interleave
from archsearch.throughput.verdict import LEAST_ROUNDS, LogRatio, Verdict


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is asked of a ratio to the anchor, or with `absolute` of the tokens/s themselves.

    With `narrow` the figure is wanted as well: within 1 %, as without a target.
    """

    at_least: float
    absolute: bool = False
    narrow: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.at_least < math.inf:
            raise ConfigError(f"at_least must be positive and finite; got {self.at_least}")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The throughput of one architecture, and its ratio to the anchor's with a confidence interval.

    `round_ratios` are those of the rounds that count, in order. `probability` and `verdict` answer a target. `repeated`
    says why rounds were done again, `disturbed` how many had to be kept in spite of it; `device_state` is what
    `device_state.summarise` returns.
    """

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
    mode: str = "train"
    tokens_per_second_low: float | None = None
    tokens_per_second_high: float | None = None
    milliseconds: float | None = None
    mfu: float | None = None
    repeated: tuple[str, ...] = ()
    disturbed: int = 0
    device_state: dict[str, Any] | None = None
    holding: str = ""
    round_ratios: tuple[float, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for JSON: a bound that too few rounds leave open is None there."""
        plain = asdict(self)
        for name in ("ratio_low", "ratio_high", "tokens_per_second_low", "tokens_per_second_high"):
            if plain[name] in (0, math.inf):
                plain[name] = None
        return plain


def compare(
    candidate: Architecture, base: Architecture, conditions: Conditions, *, target: Target | None = None
) -> Measurement:
    """Measure a candidate against the base; with a target until it is sure whether the candidate reaches it."""
    return measure([candidate], base, conditions, target=target)[0]


def measure(
    architectures: Sequence[Architecture], base: Architecture, conditions: Conditions, *, target: Target | None = None
) -> list[Measurement]:
    """Measure each architecture against `base` in interleaved rounds.

    Rounds go on until every ratio is known (within 1 % without a target, else to the verdict's confidence) or the time
    limit has come. Models are built before; compilation, tuning, first allocations and data are not in the times.
    """
    started = time.monotonic()
    device = conditions.resolve_device()
    watch = Watch(device)
    base = with_vocabulary(base)
    everyone = {base.id: base}
    for architecture in architectures:
        own = with_vocabulary(architecture, base)
        everyone.setdefault(own.id, own)
    contestants = [Contestant(x, conditions, device, watch) for x in everyone.values()]
    with Stage(contestants) as stage:
        names_anchor = any(with_vocabulary(x, base).id == base.id for x in architectures)
        contest = Contest(stage.passes(), conditions, target, names_anchor=names_anchor)
        contest.run(started + conditions.time_limit, time.monotonic, watch)
    common: dict[str, Any] = {
        "device": describe_device(device),
        "seconds": time.monotonic() - started,
        "holding": stage.holding(),
        "device_state": summarise(contest.log.states),
    }
    found = dict(zip(everyone, zip(contest.lanes, contestants, strict=True), strict=True))
    return [contest.measurement(*found[with_vocabulary(x, base).id], **common) for x in architectures]


class Lane:
    """What the rounds say about one contestant: its own speed, and its ratio to the anchor."""

    def __init__(self, number: int, confidence: float, target: Target | None) -> None:
        self.number, self.confidence, self.target = number, confidence, target
        absolute = target is not None and target.absolute
        self.speed = LogRatio(confidence, target.at_least if target and absolute else None)
        self.ratio = LogRatio(confidence, target.at_least if target and not absolute else None)

    @property
    def is_anchor(self) -> bool:
        return self.number == 0

    def add(self, seconds: Sequence[float], tokens: int) -> None:
        """Take the seconds per step of everyone in one round."""
        self.speed.add(tokens / seconds[self.number])
        self.ratio.add(seconds[0] / seconds[self.number])

    def probability(self) -> float | None:
        """Return the probability that the target is reached; that the anchor reaches a share of itself is certain."""
        if self.target is None or self.target.absolute:
            return self.speed.probability()
        return float(self.target.at_least <= 1) if self.is_anchor else self.ratio.probability()

    def verdict(self) -> Verdict | None:
        """Return what the target says."""
        if self.target is None or self.target.absolute:
            return self.speed.verdict()
        if self.is_anchor:
            return "feasible" if self.target.at_least <= 1 else "infeasible"
        return self.ratio.verdict()

    def is_known(self) -> bool:
        """Return whether more rounds are not needed."""
        own = self.speed if self.is_anchor else self.ratio
        if self.target is not None:
            return self.verdict() != "undecided" and (not self.target.narrow or own.is_narrow())
        return own.is_known()

    def ratio_interval(self) -> tuple[float, float]:
        return (1.0, 1.0) if self.is_anchor else self.ratio.interval()


class Contest:
    """Rounds of passes, the first being the anchor's, and what they say about each.

    With `names_anchor` the anchor is itself one of those that are asked about.
    """

    def __init__(
        self,
        passes: Sequence[Pass],
        conditions: Conditions,
        target: Target | None = None,
        *,
        names_anchor: bool = False,
    ) -> None:
        self.conditions = conditions
        self.lanes = [Lane(number, conditions.confidence, target) for number in range(len(passes))]
        self.log = Log()
        self._passes = passes
        asks_anchor = names_anchor and target is not None and target.absolute  # its ratio to itself is known
        self._asked = self.lanes if asks_anchor else self.lanes[1:] or self.lanes

    @property
    def rounds(self) -> int:
        """How many rounds count."""
        return self.lanes[0].speed.rounds

    def run(self, until: float, clock: Callable[[], float], watch: Watch | None = None) -> None:
        """Add rounds until all is known, or the clock says that it is time."""
        for found in interleave(self._passes, self.log, watch):
            for lane in self.lanes:
                lane.add(found.seconds, self.conditions.tokens_per_step)
            enough = all(lane.is_known() for lane in self._asked)
            if self.rounds >= LEAST_ROUNDS and (enough or clock() >= until):
                return

    def measurement(self, lane: Lane, contestant: Contestant, **common: Any) -> Measurement:
        """Return what is known of one contestant."""
        tokens = self.conditions.tokens_per_step
        speed, (low, high) = lane.speed.median(), lane.speed.interval()
        ratio_low, ratio_high = lane.ratio_interval()
        return Measurement(
            architecture_id=contestant.architecture.id,
            tokens_per_second=speed,
            base_tokens_per_second=self.lanes[0].speed.median(),
            ratio=1.0 if lane.is_anchor else lane.ratio.median(),
            ratio_low=ratio_low,
            ratio_high=ratio_high,
            probability=lane.probability(),
            verdict=lane.verdict(),
            peak_memory_bytes=contestant.peak_memory,
            rounds=self.rounds,
            mode=self.conditions.mode,
            tokens_per_second_low=low,
            tokens_per_second_high=high,
            milliseconds=1000 * tokens / speed,
            mfu=model_flops_utilisation(contestant.architecture, self.conditions, speed, contestant.device),
            repeated=tuple(self.log.repeated),
            disturbed=len(self.log.kept_disturbed),
            round_ratios=lane.ratio.ratios,
            **common,
        )


def model_flops_utilisation(
    architecture: Architecture, conditions: Conditions, tokens_per_second: float, device: torch.device
) -> float | None:
    """Return the share of the card's limit for dense bf16 products that the model's own products take.

    Nothing is recomputed in them, and training counts 3 forward passes. None on a CPU, in fp32, and in decoding, which
    no card does at its limit of arithmetic.
    """
    if device.type != "cuda" or conditions.precision == "fp32" or conditions.mode == "decode":
        return None
    limit = limits_of_this_gpu().flops
    passes = 3 if conditions.mode == "train" else 1
    flops = passes * architecture.flops_per_token(conditions.length)
    return flops * tokens_per_second / limit if limit else None
