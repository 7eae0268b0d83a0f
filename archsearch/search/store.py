"""The study's database: Optuna on SQLite or PostgreSQL, each trial one worker's, its dead workers' trials adopted.

Optuna knows a worker's death by heartbeats only inside `optimize()`. Here a worker holds the lock of the trial that it
runs: a RUNNING trial whose lock can be taken belonged to a killed worker, and whoever takes it runs it again under the
same number and with the same parameters.
"""

from __future__ import annotations

import contextlib
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from archsearch.config import ConfigError, load_yaml
from archsearch.search.candidates import Candidate, build_given, given, given_decisions, replay_decisions, sample
from archsearch.search.changed import Names, accept, as_stored, entry
from archsearch.search.choices import Choices, Scalar
from archsearch.search.database import Database, ServerGoneError, one_line
from archsearch.search.failures import INFEASIBLE, KILLED, LOST
from archsearch.search.folder import SPACE as SPACE_FILE
from archsearch.search.folder import SQLITE, belong, read_evidence
from archsearch.search.locks import FileLocks, Lock, Locks
from archsearch.search.pattern_sampler import Features
from archsearch.search.process import Report
from archsearch.search.pruners import Pruning
from archsearch.search.retry import Interruption
from archsearch.search.rows import Description, Result, Row, describe
from archsearch.search.rungs import RUNGS, Rung, recorded
from archsearch.search.samplers import SAMPLERS, Setting, seed_of_trial
from archsearch.search.space import Space
from archsearch.search.work_folder import alone_in

# a trial that was begun before a change of the space keeps its decisions
warnings.filterwarnings("ignore", message="Inconsistent parameter values for distribution")

PATIENCE = 5
"""After this many repeats in a row the next trial is drawn at random instead."""

LEGAL, TRAINED = "legal", "trained"

RUN = "run"
"""What a trial has on record while it is run: whether a worker is at it, and the interruptions so far."""

SPACE, SEED, CHANGES = "space", "seed", "changes"
EVIDENCE, IDENTITY = "evidence", "identity"
"""What a study has on record besides its trials; the last two only where machines share it."""

CONFIRMATION = "confirmation:"
"""Before the key of each confirmation run that has ended."""


class Hold:
    """A trial that this process runs, and its lock."""

    def __init__(self, trial: Trial, lock: Lock, folder: Path, interruptions: Sequence[Interruption] = ()) -> None:
        self.trial, self.lock, self.folder, self.interruptions = trial, lock, folder, interruptions

    @property
    def number(self) -> int:
        return int(self.trial.number)

    def release(self) -> None:
        """Let go; the folder goes too where nothing but the lock is in it."""
        if self.folder.is_dir() and {path.name for path in self.folder.iterdir()} <= {"lock"}:
            (self.folder / "lock").unlink(missing_ok=True)
            self.folder.rmdir()
        self.lock.release()


class Store:
    """One study's trials, in the folder's SQLite file or in a database that other machines share."""

    def __init__(
        self, folder: Path, space: Space, seed: int, database: Database | None = None, *, accept_changes: bool = False
    ) -> None:
        self.folder, self.space, self.seed, self.database = folder, space, seed, database
        self._features, self._pruning = Features(space), Pruning(space)
        self._ended: dict[int, Row] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.locks = make_locks(folder, space.name, database)
        self.lock = self.locks.study()
        with contextlib.ExitStack() as opened:
            opened.callback(self.locks.close)
            with self.lock:
                self._storage = open_storage(folder, database)
                opened.callback(close_storage, self._storage)
                self._study = optuna.create_study(
                    study_name=space.name,
                    storage=self._storage,
                    directions=[objective.direction for objective in space.objectives],
                    load_if_exists=True,
                )
                trials = self._study.get_trials(deepcopy=False)
                self._accept_space(len(trials), accept_changes)
                self._names = Names(trials)
                if database:
                    belong(folder, database, self._identity())
                self._enqueue()
            self._opened = opened.pop_all()

    def rows(self) -> list[Row]:
        """Return every trial."""
        return [self._row(trial) for trial in self._study.get_trials(deepcopy=False)]

    def folder_of(self, number: int) -> Path:
        """Return where a trial keeps its files."""
        return trial_folder(self.folder, number)

    def work_in(self, folder: Path) -> contextlib.AbstractContextManager[Path]:
        """Return a context in which a run has a folder to itself; on one machine its lock has seen to that."""
        return alone_in(folder) if self.database else contextlib.nullcontext(folder)

    def adopt(self) -> Hold | None:
        """Take over a trial that a killed worker left running. Call with `lock` held."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if lock := self._try(trial.number):
                with contextlib.ExitStack() as held:
                    held.callback(lock.release)  # unless it is handed over: this process lives on, and so would it
                    found = self._storage.get_trial(trial._trial_id)
                    if found.state == TrialState.RUNNING:
                        self._study.sampler = self._sampler(trial.number, lambda _: False)
                        own, known = Trial(self._study, trial._trial_id), interruptions_of(found)
                        held.pop_all()
                        return Hold(own, lock, self.folder_of(trial.number), known)
        return None

    def ask(self, refuses: Callable[[Candidate], bool] = lambda _: False) -> Hold:
        """Begin a trial with a candidate that no formula or table `refuses`. Call with `lock` held."""
        rows = self.rows()
        waiting = [row.number for row in rows if row.outcome == "waiting"]
        number = waiting[0] if waiting else len(rows)
        self._study.sampler = self._sampler(number, refuses)
        trial = self._study.ask()
        lock = self._try(trial.number)
        if lock is None:  # our session ended under us, and whoever has the study's lock now was quicker
            raise ServerGoneError(f"{self.database}: trial {trial.number} has gone to another worker")
        return Hold(trial, lock, self.folder_of(trial.number))

    def decide(self, hold: Hold) -> tuple[Candidate, Description]:
        """Return the trial's candidate and put it on record; an adopted trial gets its own again."""
        suggest = _TrialSuggest(hold.trial, self._names)
        name = hold.trial.user_attrs.get("given")
        if found := next((found for found in given(self.space) if found.name == name), None):
            replay_decisions(self.space, given_decisions(self.space, found), suggest)
            candidate = build_given(self.space, found)
        else:
            candidate = sample(self.space, suggest)
        description = describe(self.space, candidate)
        known = hold.trial.user_attrs.get("candidate")
        if known and known["key"] != description.key:  # adopted after a change of the space
            hold.trial.set_user_attr(RUNGS, [])
        hold.trial.set_user_attr("candidate", asdict(description))
        return candidate, description

    def reach(self, hold: Hold, rung: Rung, *, may_prune: bool) -> str | None:
        """Put a rung on record, unless it is, and return why the pruner ends the trial there, or None."""
        trial = self._storage.get_trial(hold.trial._trial_id)
        own = recorded(trial.user_attrs)
        if known := next((found for found in own if found.is_at(rung)), None):
            return known.pruned if may_prune else None
        if self._report(hold, rung):
            trial = self._storage.get_trial(hold.trial._trial_id)
        trials = [x for x in self._study.get_trials(deepcopy=False) if x.number != hold.number]
        others = [found for x in trials for found in recorded(x.user_attrs) if found.is_at(rung)]
        verdict = self._pruning.judge(self._study, trial, rung, others)
        reason = verdict if may_prune and hold.trial.user_attrs.get("given") != "base" else None
        on_record = [asdict(found) for found in (*own, replace(rung, pruned=reason))]
        hold.trial.set_user_attr(RUNGS, on_record)
        return reason

    def note_run(self, hold: Hold, interruptions: Sequence[Interruption], *, is_running: bool = True) -> None:
        """Put on record that a worker is at the trial, or that it has left it in order, and what came in between."""
        hold.interruptions = interruptions
        hold.trial.set_user_attr(RUN, {"is_running": is_running, "interruptions": list(interruptions)})

    def tell(self, hold: Hold, result: Result) -> None:
        """Put a result on record: constraints first, so that nothing infeasible can ever count as feasible."""
        known = self._storage.get_trial(hold.trial._trial_id).constraints
        for key, value in constraints_of(result).items():
            if key not in known:
                hold.trial.set_constraint(key, value)
        hold.trial.set_user_attr("result", asdict(result))
        self._finish(hold, result)

    def tell_duplicate(self, hold: Hold, original: Row) -> None:
        """Put a repeat on record: what is known of the model counts for the sampler again, but is no new candidate."""
        for key, value in constraints_of(original.result).items():
            hold.trial.set_constraint(key, value)
        reason = f"the same model as trial {original.number}"
        result = Result(outcome="duplicate", reason=reason, duplicate_of=original.number)
        if original.outcome == "pruned":
            for rung in original.rungs:
                self._report(hold, rung)
        hold.trial.set_user_attr("result", asdict(result))
        self._finish(hold, original.result)

    def is_ours(self, hold: Hold) -> bool:
        """Return whether the trial is still this worker's to run and to tell.

        A lock that went with the server's connections is taken again, unless someone else has the trial by now. Raises
        `database.GONE` while the server is away.
        """
        return hold.lock.renew() and self._storage.get_trial(hold.trial._trial_id).state == TrialState.RUNNING

    @property
    def changes(self) -> list[dict[str, Any]]:
        """Return what has changed in the study since it began, and when."""
        found: list[dict[str, Any]] = self._study.user_attrs.get(CHANGES, [])
        return found

    def read_evidence(self) -> dict[str, Any] | None:
        """Return a finished study's evidence, whichever machine gathered it, or None."""
        return self._study.user_attrs.get(EVIDENCE) if self.database else read_evidence(self.folder)

    def share_evidence(self, evidence: Mapping[str, Any]) -> None:
        """Let the other machines know."""
        if self.database:
            self._study.set_user_attr(EVIDENCE, evidence)

    def confirmations(self) -> dict[str, Report]:
        """Return what confirmation runs have come to, by their keys."""
        known = self._study.user_attrs.items()
        return {name.removeprefix(CONFIRMATION): report for name, report in known if name.startswith(CONFIRMATION)}

    def record_confirmation(self, key: str, report: Report) -> None:
        """Put the end of a confirmation run on record, for all workers."""
        kept = {name: report.get(name) for name in ("outcome", "reason", "metrics", "seconds", "timeout")}
        self._study.set_user_attr(CONFIRMATION + key, kept)

    def forget_connection(self) -> None:
        """Let the next call begin with a new transaction; a lost connection would refuse it."""
        self._storage.remove_session()

    def close(self) -> None:
        """Close the database."""
        self._opened.close()

    def _finish(self, hold: Hold, result: Result) -> None:
        """Tell Optuna; what is infeasible counts as pruned, since TPE learns from the constraints of pruned trials."""
        if result.outcome == "completed":
            row = Row(number=hold.number, given=None, description=None, result=result)
            self._study.tell(hold.trial, [float(value) for value in row.values(self.space) if value is not None])
        else:
            infeasible = any(value > 0 for value in constraints_of(result).values())
            learned = infeasible or result.outcome == "pruned"
            self._study.tell(hold.trial, state=TrialState.PRUNED if learned else TrialState.FAIL)
        hold.release()

    def _report(self, hold: Hold, rung: Rung) -> bool:
        """Tell Optuna the value at a rung, of one objective only, and once: a killed worker may have done so."""
        value = rung.values[0] if len(self.space.objectives) == 1 else None
        if value is None or rung.tokens in self._storage.get_trial(hold.trial._trial_id).intermediate_values:
            return False
        hold.trial.report(value, rung.tokens)
        return True

    def _row(self, trial: FrozenTrial) -> Row:
        """Return a trial as a row; one that has ended stays as it is, and is read once."""
        if trial.number not in self._ended:
            row = to_row(trial)
            if not trial.state.is_finished():
                return row
            self._ended[trial.number] = row
        return self._ended[trial.number]

    def _accept_space(self, trials: int, accepted: bool) -> None:
        """See that the study goes on with the space and the seed that it began with, or put on record what is new.

        Raises ConfigError.
        """
        known, now = self._study.user_attrs, as_stored(self.space.written, self.seed)
        written = known.get(SPACE) or self._written_in_folder() or self.space.written
        saved = as_stored(written, known.get(SEED, self.seed))
        otherwise = "another name keeps both"
        if self.database is None:
            otherwise = f"--fresh begins anew and moves the old folder aside, {otherwise}"
        where = str(self.database or self.folder)
        if changed := accept(where, saved, now, accepted=accepted, otherwise=otherwise):
            self._study.set_user_attr(CHANGES, [*self.changes, entry(changed, saved, now, trials)])
        if known.get(SPACE) != now.pop(SEED) or changed or SEED not in known:
            self._study.set_user_attr(SPACE, now)
            self._study.set_user_attr(SEED, self.seed)

    def _written_in_folder(self) -> Mapping[str, Any] | None:
        """Return the space that an older release has kept in the folder alone."""
        saved = self.folder / SPACE_FILE
        return load_yaml(saved) if saved.exists() and not self.database else None

    def _identity(self) -> str:
        """Return what tells this study from an earlier one of its name."""
        if (known := self._study.user_attrs.get(IDENTITY)) is None:
            self._study.set_user_attr(IDENTITY, known := uuid.uuid4().hex)
        return str(known)

    def _enqueue(self) -> None:
        known = {trial.user_attrs.get("given") for trial in self._study.get_trials(deepcopy=False)}
        for candidate in given(self.space):
            if candidate.name not in known:
                decisions = given_decisions(self.space, candidate)
                decisions = {self._called(decision): value for decision, value in decisions.items()}
                self._study.enqueue_trial(decisions, user_attrs={"given": candidate.name})

    def _called(self, decision: str) -> str:
        """Return what the parameter of a decision is called, as `decide` will."""
        domain = self.space.decisions.get(decision)
        return self._names.of(decision, domain.values) if isinstance(domain, Choices) else decision

    def _sampler(self, number: int, refuses: Callable[[Candidate], bool]) -> optuna.samplers.BaseSampler:
        options, seed = self.space.study, seed_of_trial(self.seed, number)
        name = "random" if trailing_repeats(self.rows()) >= PATIENCE else options.sampler
        return SAMPLERS[name](
            Setting(space=self.space, seed=seed, startup=options.startup, refuses=refuses, features=self._features)
        )

    def _try(self, number: int) -> Lock | None:
        lock = self.locks.trial(number)
        return lock if lock.take(wait=False) else None


def make_locks(folder: Path, name: str, database: Database | None) -> Locks:
    """Return the locks of a study, which reach as far as its storage does."""
    if database is None:
        return FileLocks(folder)
    from archsearch.search.advisory_locks import AdvisoryLocks

    return AdvisoryLocks(database, name)


def open_storage(folder: Path, database: Database | None = None) -> RDBStorage:
    """Open, or create, the database of a study."""
    if database:
        return database.open()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            return RDBStorage(f"sqlite:///{folder / SQLITE}", engine_kwargs={"connect_args": {"timeout": 60}})
        except RuntimeError as error:  # tables of another Optuna
            raise ConfigError(f"{folder / SQLITE}: {one_line(error)}") from None


def close_storage(storage: RDBStorage) -> None:
    """Close its connections."""
    storage.remove_session()
    storage.engine.dispose()


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a study's database holds; space and evidence only where machines share it."""

    rows: list[Row]
    space: Mapping[str, Any] | None
    evidence: Mapping[str, Any] | None


def read_rows(folder: Path, name: str) -> list[Row]:
    """Return every trial of the study in a folder, changing nothing."""
    return read_study(folder, name).rows


def read_study(folder: Path, name: str, database: Database | None = None) -> Recorded:
    """Return what is on record of a study, changing nothing. Raises ConfigError where there is none."""
    storage, study = open_storage(folder, database), None
    try:
        with contextlib.suppress(KeyError):
            study = optuna.load_study(study_name=name, storage=storage)
        if study is None:
            raise ConfigError(f"{database or folder}: holds no study of the name {name}")
        known = study.user_attrs
        rows = [to_row(trial) for trial in study.get_trials(deepcopy=False)]
        return Recorded(rows=rows, space=known.get(SPACE), evidence=known.get(EVIDENCE))
    finally:
        close_storage(storage)


def trial_folder(folder: Path, number: int) -> Path:
    """Return where a trial keeps its files."""
    return folder / "trials" / f"{number:04d}"


def trailing_repeats(rows: Sequence[Row]) -> int:
    """Return how many of the latest ended trials, without a break, were repeats."""
    repeats = 0
    for row in reversed(rows):
        if row.outcome == "duplicate":
            repeats += 1
        elif row.outcome not in ("running", "waiting"):
            break
    return repeats


def constraints_of(result: Result) -> dict[str, float]:
    """Return what Optuna needs to know: at most 0 is feasible."""
    legal = 1.0 if result.outcome == "illegal" else 0.0
    # not where there are values: GPSampler wants the same constraints of all such trials, those on record too
    trained = {TRAINED: 1.0} if result.outcome == "failed" and result.cause in INFEASIBLE else {}
    return {LEGAL: legal, **{check["name"]: float(check["violation"]) for check in result.checks}, **trained}


def interruptions_of(trial: FrozenTrial) -> list[Interruption]:
    """Return the interruptions of a trial that its worker has left, this one too where it did not leave in order."""
    found = trial.user_attrs.get(RUN, {"is_running": False, "interruptions": []})
    lost = {"cause": LOST, "reason": "its worker was killed, or the worker's machine is gone"}
    return [*found["interruptions"], *([lost] if found["is_running"] else [])]


def to_row(trial: FrozenTrial) -> Row:
    """Return Optuna's trial as a row. Raises ConfigError where another release has put it on record."""
    begun = trial.user_attrs.get("candidate")
    ended: dict[str, Any] = {"outcome": "waiting" if trial.state == TrialState.WAITING else "running"}
    if trial.state.is_finished():  # killed before that it is run again, whatever its result
        otherwise = {"outcome": "failed", "cause": KILLED, "reason": "another program has ended it in the database"}
        ended = trial.user_attrs.get("result", otherwise)
    try:
        return Row(
            number=trial.number,
            given=trial.user_attrs.get("given"),
            description=Description(**begun) if begun else None,
            result=Result(**ended),
            rungs=recorded(trial.user_attrs),
        )
    except TypeError as error:
        raise ConfigError(f"trial {trial.number} was put on record by another release of archsearch: {error}") from None


class _TrialSuggest:
    """Let Optuna's sampler decide."""

    def __init__(self, trial: Trial, names: Names | None = None) -> None:
        self._trial, self._names = trial, names or Names(())

    def integer(self, name: str, low: int, high: int, step: int = 1) -> int:
        return self._trial.suggest_int(name, low, high, step=step)

    def choice(self, name: str, values: Sequence[Scalar]) -> Any:
        return self._trial.suggest_categorical(self._names.of(name, values), list(values))
