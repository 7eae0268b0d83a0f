"""The search itself: take a trial, refuse what can be refused for nothing, run the rest, put it on record."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from archsearch.search.budget import Check, check_exact, to_plain
from archsearch.search.candidates import Candidate
from archsearch.search.climb import PrunedError, reached, trained_tokens
from archsearch.search.database import GONE, one_line
from archsearch.search.enumeration import ENUMERABLE, enumerate_candidates
from archsearch.search.failures import CRASH, DEVICE, HeldUpError, distrust, is_disk_full, unless_disk_full
from archsearch.search.judge import Table, predict
from archsearch.search.measures import exact_figures
from archsearch.search.process import Launcher, Report, read_report, run_trial
from archsearch.search.retry import RETRY_SECONDS, WAIT_SECONDS, Interruption, is_spent, run_to_its_end
from archsearch.search.rows import Result, Row, failed_checks, objective_value, plain
from archsearch.search.rungs import orders
from archsearch.search.space import Space
from archsearch.search.store import PATIENCE, Hold, Store, trailing_repeats
from archsearch.throughput.predict import Predictor

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
"""A candidate is trained in the precision that it is timed in; Lightning's names."""

MAX_REPEATS = 200


T = TypeVar("T")


class TrialTakenError(Exception):
    """Another worker has adopted the trial that this one runs: the server has let go of its lock."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to stop. `trials` counts distinct candidates; the moments are of `time.monotonic()`.

    After `ask_until` no new trial begins and the result is drawn from those there are; after `stop_at` the trial in
    hand is the last for now, and the same command goes on.
    """

    trials: int
    ask_until: float | None = None
    stop_at: float | None = None

    def stopped(self) -> bool:
        return self.stop_at is not None and time.monotonic() >= self.stop_at


class View(Protocol):
    """Whoever watches a study."""

    def update(self, rows: Sequence[Row], running: Mapping[int, Report]) -> None: ...

    def say(self, text: str) -> None: ...


@dataclass
class Study:
    """One worker's part in a study."""

    space: Space
    store: Store
    limits: Limits
    view: View
    plugins: Sequence[str] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    launch: Launcher | None = None
    _every_key: set[str] | None = field(default=None, init=False)

    def run(self) -> str | None:
        """Run trials until there is nothing left to ask; returns why, or None where `stop_at` came first."""
        while not self.limits.stopped():
            taken = self.patiently(self._take)
            if isinstance(taken, str):
                return taken
            try:
                self._run_and_tell(*taken)
            except HeldUpError:
                if self.limits.stopped():
                    return None
                raise
            self.patiently(self.refresh)
        return None

    def refresh(self) -> None:
        """Show what there is."""
        self.view.update(self.store.rows(), {})

    def predictors(self) -> dict[str, Predictor]:
        """Return what predicts each mode, from the tables as they are now: trials add to them."""
        return {mode: table.predictor() for mode, table in self.tables.items()}

    def running(self) -> list[int]:
        """Return the trials that have begun and not ended: while this worker runs none, those of others."""
        return [row.number for row in self.store.rows() if row.outcome == "running"]

    def patiently(self, call: Callable[[], T]) -> T:
        """Call, and again while the server is away that machines share, or the disk is full: neither may cost a trial.

        Raises HeldUpError where the disk stays full.
        """
        until = None
        while True:
            try:
                return call()
            except (*GONE, OSError) as error:
                self.store.forget_connection()
                if (waiting := self._waits_for(error)) is None:
                    raise
                if until is None:
                    until = time.monotonic() + WAIT_SECONDS
                    self.view.say(f"waiting {waiting}: {one_line(error)}")
                if time.monotonic() > until or self.limits.stopped():
                    if self.store.database and isinstance(error, GONE):
                        raise
                    raise HeldUpError(
                        f"gave up waiting {waiting}: {one_line(error)}; the same command goes on"
                    ) from None
                time.sleep(RETRY_SECONDS)

    def _waits_for(self, error: Exception) -> str | None:
        """Return what an error asks one to wait for, None where waiting does not help."""
        if self.store.database and isinstance(error, GONE):
            return "for the server"
        if is_disk_full(error):
            return f"for room on the disk of {self.store.folder}"
        return "for study.db" if "database is locked" in one_line(error) else None

    def _run_and_tell(self, hold: Hold, checks: Sequence[Check]) -> None:
        try:
            result = self._run_trial(hold, checks)
            self.patiently(partial(self._tell, hold, result))
        except TrialTakenError:
            self.view.say(f"trial {hold.number}: another worker has it by now; what this one found is dropped")
            return
        except BaseException:
            self._leave(hold)
            raise
        finally:
            hold.lock.release()
        if result.cause == DEVICE:
            raise distrust(f"trial {hold.number}", result.reason)

    def _take(self) -> tuple[Hold, list[Check]] | str:
        """Return a trial that must be run and its exact checks, or why there is none."""
        with self.store.lock:
            return self._take_locked()

    def _tell(self, hold: Hold, result: Result) -> None:
        """Put a result on record, under the lock under which others would adopt the trial."""
        with self.store.lock:
            if not self.store.is_ours(hold):
                raise TrialTakenError
            self.store.tell(hold, result)

    def _watch(self, hold: Hold, report: Report) -> None:
        """Show a running trial, and end it where another worker has it; while the server is away, nobody can."""
        with contextlib.suppress(*GONE), unless_disk_full():
            if not self.store.is_ours(hold):
                raise TrialTakenError
            self.view.update(self.store.rows(), {hold.number: report})

    def _take_locked(self) -> tuple[Hold, list[Check]] | str:
        while True:
            hold = self.store.adopt()
            if hold is None:
                rows = self.store.rows()
                if ending := self._ending(rows):
                    return ending
                hold = self.store.ask(self._refuses)
            try:
                candidate, _ = self.store.decide(hold)
                checks = self._settle(hold, candidate)
            except BaseException:
                hold.lock.release()
                raise
            if checks is not None:
                return hold, checks
            self.refresh()

    def _refuses(self, candidate: Candidate) -> bool:
        """Say whether a candidate would end without training, as `_settle` ends it."""
        if candidate.illegal or candidate.architecture is None:
            return True
        if failed_checks(check_exact(self.space.budget, candidate.architecture)):
            return True
        found = predict(self.space.budget, candidate.architecture, self.predictors())
        return bool(failed_checks(list(found.checks.values())))

    def _settle(self, hold: Hold, candidate: Candidate) -> list[Check] | None:
        """End the trial where that takes no training (a repeat, illegal, over an exact limit), or return its checks."""
        if is_spent(hold.interruptions, self.space.study.retries):
            self.store.tell(hold, _spent(hold.interruptions))
            return None
        original = next((row for row in self.store.rows() if _is_same(row, candidate, hold.number)), None)
        if original:
            self.store.tell_duplicate(hold, original)
            return None
        if candidate.illegal or candidate.architecture is None:
            self.store.tell(hold, Result(outcome="illegal", reason=candidate.illegal))
            return None
        checks = check_exact(self.space.budget, candidate.architecture)
        if refusal := failed_checks(checks):
            self.store.tell(hold, Result(outcome="refused", reason=refusal, checks=plain(checks)))
            return None
        found = predict(self.space.budget, candidate.architecture, self.predictors())
        if refusal := failed_checks(list(found.checks.values())):
            everything = plain([*checks, *found.checks.values()])
            result = Result(outcome="refused", reason=refusal, checks=everything, measurement=found.figures)
            self.store.tell(hold, result)
            return None
        return checks

    def _run_trial(self, hold: Hold, checks: Sequence[Check]) -> Result:
        rows = self.patiently(self.store.rows)
        row = next(row for row in rows if row.number == hold.number)
        description = row.description
        assert description is not None
        config = trial_config(
            self.space, description.architecture, self.store.seed, self.plugins, tables=self.tables, rungs=True
        )
        show, climb = Throttled(partial(self._watch, hold)), _Climb(self, hold, description.architecture or {})

        def watch(report: Report) -> None:
            show(report)
            with contextlib.suppress(*GONE), unless_disk_full():
                climb.look(report)

        self.patiently(partial(self.store.note_run, hold, hold.interruptions))
        with self.store.work_in(hold.folder) as folder:
            launch = partial(
                self.launch or run_trial, folder, config, timeout=self.space.study.timeout_per_trial, watch=watch
            )
            try:
                if reason := next((rung.pruned for rung in row.rungs if rung.pruned), None):
                    raise PrunedError(reason)  # a killed worker has seen its end
                report = run_to_its_end(
                    launch,
                    folder,
                    retries=self.space.study.retries,
                    interruptions=hold.interruptions,
                    note=lambda found: self.patiently(partial(self.store.note_run, hold, found)),
                    say=self.view.say,
                    stopped=self.limits.stopped,
                )
                self.patiently(partial(climb.look, report, ended=True))
            except PrunedError as pruned:
                known = {"outcome": "pruned", "reason": str(pruned), "interruptions": hold.interruptions}
                report = {**read_report(folder), **known}
            for checkpoint in folder.glob("*/*last.ckpt*"):
                checkpoint.unlink(missing_ok=True)  # a study would fill the disk with them
        return result_of(self.space, report, checks, description.architecture or {})

    def _leave(self, hold: Hold) -> None:
        """Put on record, where that can be done, that the trial was left in order: that is no interruption."""
        with contextlib.suppress(*GONE, OSError):
            if hold.lock.renew():
                self.store.note_run(hold, hold.interruptions, is_running=False)

    def _ending(self, rows: Sequence[Row]) -> str | None:
        distinct = [row for row in rows if row.outcome not in ("duplicate", "waiting")]
        if len(distinct) >= self.limits.trials:
            return f"{len(distinct)} distinct candidates have been tried"
        if self.limits.ask_until is not None and time.monotonic() >= self.limits.ask_until:
            return f"the time limit has come after {len(distinct)} distinct candidates"
        repeats = trailing_repeats(rows)
        if repeats >= PATIENCE and self._all_seen(rows):
            return f"every candidate of the space has been seen ({len(distinct)})"
        if repeats >= MAX_REPEATS:
            return f"{repeats} repeats in a row: the space seems to hold no more than {len(distinct)} candidates"
        return None

    def _all_seen(self, rows: Sequence[Row]) -> bool:
        if self._every_key is None:
            self._every_key = {candidate.key for candidate in enumerate_candidates(self.space, ENUMERABLE) or []}
        return bool(self._every_key) and self._every_key <= {row.description.key for row in rows if row.description}


class _Climb:
    """A trial's way up the rungs; each is looked at once."""

    def __init__(self, study: Study, hold: Hold, architecture: Mapping[str, Any]) -> None:
        self._study, self._hold, self._seen = study, hold, 0
        self._exact = exact_figures(study.space.objectives, architecture, study.space.budget.precision)

    def look(self, report: Report, *, ended: bool = False) -> None:
        """Put new rungs on record; raises PrunedError where the pruner ends the trial, if it has not `ended`."""
        space, store, hold = self._study.space, self._study.store, self._hold
        ended = ended or report.get("outcome") is not None
        known = {**report, "figures": {**report.get("figures", {}), **self._exact}}
        for rung in reached(space, known)[self._seen :]:
            if not store.is_ours(hold):
                raise TrialTakenError
            if reason := store.reach(hold, rung, may_prune=not ended):
                raise PrunedError(reason)
            self._seen += 1


class Throttled:
    """Pass a call on at most once a second."""

    def __init__(self, call: Callable[[Any], None]) -> None:
        self._call, self._last = call, -1.0

    def __call__(self, value: Any) -> None:
        if time.monotonic() - self._last >= 1:
            self._call(value)
            self._last = time.monotonic()


def trial_config(
    space: Space,
    architecture: Mapping[str, Any] | None,
    seed: int,
    plugins: Sequence[str],
    *,
    budget: bool = True,
    tables: Mapping[str, Table] | None = None,
    rungs: bool = False,
) -> dict[str, Any]:
    """Return what a trial's process needs to know, as plain values."""
    return {
        "architecture": dict(architecture or {}),
        "budget": to_plain(space.budget) if budget and space.budget.measured else None,
        "tables": {mode: table.to_plain() for mode, table in (tables or {}).items()},
        "tasks": {
            name: {
                "data": task.data,
                "arguments": dict(task.arguments),
                "evaluate": list(task.evaluate),
                "tokens": task.tokens,
                "optimizer": dict(task.optimizer),
                "schedule": dict(task.schedule),
                "precision": PRECISIONS[space.budget.precision],
                **(orders(space, name) if rungs else {}),
            }
            for name, task in space.tasks.items()
        },
        "seed": seed,
        "devices": space.study.devices,
        "strategy": space.study.strategy,
        "plugins": list(plugins),
    }


def result_of(space: Space, report: Report, checks: Sequence[Check], architecture: Mapping[str, Any]) -> Result:
    """Return a trial's result from its last report, and what formulas add of its architecture."""
    outcome, reason, cause = report["outcome"], report.get("reason"), report.get("cause")
    metrics, figures = report.get("metrics", {}), dict(report.get("figures", {}))
    if outcome == "completed":
        figures |= exact_figures(space.objectives, architecture, space.budget.precision)
        for objective in space.objectives:
            if objective_value(metrics, objective, figures) is None:
                name = "the measurement" if objective.measure else objective.task
                known = ", ".join(figures if objective.measure else metrics.get(objective.task, {}))
                outcome, cause = "failed", CRASH
                reason = f"{name} reports no {objective.key}, only {known}"
    return Result(
        outcome=outcome,
        reason=reason,
        checks=[*plain(checks), *report.get("checks", [])],
        metrics=metrics,
        measurement=report.get("measurement"),
        seconds=report.get("seconds", {}),
        figures=figures,
        trained_tokens=trained_tokens(space, report) if outcome == "pruned" else None,
        cause=cause,
        interruptions=report.get("interruptions", ()),
        memory=report.get("memory", {}),
    )


def _spent(interruptions: Sequence[Interruption]) -> Result:
    """Return the result of a trial that has been interrupted too often."""
    last = interruptions[-1]
    return Result(outcome="failed", cause=last["cause"], reason=last["reason"], interruptions=interruptions)


def _is_same(row: Row, candidate: Candidate, number: int) -> bool:
    """Return whether another trial is the original of this candidate."""
    known = row.description is not None and row.description.key == candidate.key
    return known and row.number != number and row.outcome not in ("duplicate", "waiting")
