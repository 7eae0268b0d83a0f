"""Do to a study what clusters do, then count: workers and trials killed, trials that fail in every way, full disks.

`python studies/chaos/chaos.py [--storage URL] [--workers 4] [--trials 60] [--seed 0] [-o FILE.json]`
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy

from archsearch.config import load_yaml
from archsearch.lifetime import die_with_parent
from archsearch.search import process
from archsearch.search.process import read_report
from archsearch.search.rows import Row
from archsearch.search.trial import Journal, keep_record

SPACE = Path(__file__).with_name("space.yaml")

FATES = {"out_of_memory": 0.07, "not_finite": 0.07, "timeout": 0.04, "crash": 0.04, "signal": 0.04}
"""What a candidate does by itself, and how likely; the base is spared."""

DISK_FULL = {"trial": 0.05, "config": 0.05, "database": 0.002}
"""How likely the disk is full: for a trial, for what a worker writes before one, for one look at study.db."""

STEPS, STEP_SECONDS = 8, 0.05


def main() -> int:
    """Run the chaos from the command line; 0 where the study has come through it."""
    if sys.argv[1:2] == ["trial"]:
        return trial(Path(sys.argv[2]))
    parser = argparse.ArgumentParser(
        description="Kill workers and trials of a study at random, and count what is left."
    )
    parser.add_argument("--storage", help="a PostgreSQL database, as of `archsearch search`; SQLite without it")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument(
        "--every", type=float, default=3.0, metavar="SECONDS", help="time between two kills, on average"
    )
    parser.add_argument("--kills", type=int, default=100, help="at most so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = {"storage": args.storage, "trials": args.trials, "workers": args.workers}
        found = Chaos(Path(folder), SPACE, **options, every=args.every, kills=args.kills, seed=args.seed).run()
    text = json.dumps(found, indent=1)
    print(text)
    if args.output:
        args.output.write_text(text + "\n")
    return 1 if found["faults"] else 0


def trial(folder: Path) -> int:
    """Answer for a trial, after a few steps, or fail as its candidate is fated to; goes on from the step it came to."""
    die_with_parent()
    drawing = random.Random(f"{os.getpid()} {time.time()}")
    if drawing.random() < DISK_FULL["trial"]:
        return errno.ENOSPC
    keep_record(Journal(folder), lambda journal: work(load_yaml(folder / "config.yaml"), journal))
    return 0


def work(config: dict[str, Any], journal: Journal) -> None:
    """Take the steps that are left, the fate at half way."""
    pattern, fate = config["architecture"]["pattern"], fate_of(config)
    journal.write(phase="train s3", pid=os.getpid(), starts=journal.report.get("starts", 0) + 1)
    for step in range(journal.report.get("steps", 0) + 1, STEPS + 1):
        time.sleep(STEP_SECONDS)
        journal.write(steps=step)
        if step == STEPS // 2 and fate:
            suffer(fate)
    merit = (pattern.count("M") + 0.5 * pattern.startswith("M") + config["seed"] / 10000) / 10
    journal.report["metrics"] = {"s3": {"accuracy": merit, "accuracy/16": merit, "loss": 1 - merit}}
    journal.report["seconds"] = {"s3": STEPS * STEP_SECONDS}


def fate_of(config: dict[str, Any]) -> str | None:
    """Return how a candidate fails, always the same way, or None."""
    if "M" not in config["architecture"]["pattern"]:
        return None
    drawn = random.Random(json.dumps(config["architecture"], sort_keys=True)).random()
    for fate, share in FATES.items():
        drawn -= share
        if drawn < 0:
            return fate
    return None


def suffer(fate: str) -> None:
    """Fail."""
    if fate == "out_of_memory":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if fate == "not_finite":
        raise FloatingPointError("s3: loss is nan after training")
    if fate == "timeout":
        time.sleep(3600)
    if fate == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    raise KeyError("a mistake in a plugin")


def worker(arguments: Sequence[str], log: Path, seed: str) -> None:
    """Be `archsearch search` on a machine whose disk is full now and then."""
    from archsearch.cli import main as archsearch

    sys.stdout = sys.stderr = log.open("a", buffering=1)
    sys.argv = ["archsearch", *arguments]
    process.COMMAND = (sys.executable, str(Path(__file__).resolve()), "trial")
    process.POLL_SECONDS = 0.05
    fill_disks(random.Random(seed))
    sys.exit(archsearch(list(arguments)))


def fill_disks(drawing: random.Random) -> None:
    """Let files and study.db meet a full disk at random."""
    write = process.save_yaml

    def save_yaml(*values: Any) -> None:
        if drawing.random() < DISK_FULL["config"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*values)

    def look(connection: Any, *_: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            full = drawing.random() < DISK_FULL["database"]
            connection.execute(f"pragma max_page_count = {1 if full else 2**30}")  # 1: not a page more than there are

    process.save_yaml = save_yaml  # type: ignore[attr-defined]
    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "checkout", look)
    sqlalchemy.event.listen(sqlalchemy.pool.Pool, "checkout", look)


class Chaos:
    """A study, its workers, and whoever kills them and starts them again."""

    def __init__(
        self,
        folder: Path,
        space: Path,
        *,
        trials: int,
        workers: int,
        every: float,
        kills: int,
        seed: int,
        storage: str | None = None,
        patience: float = 1800.0,
    ) -> None:
        self.folder, self.name, self.storage, self.trials = folder, load_yaml(space)["name"], storage, trials
        self.arguments = ["search", str(space), "--trials", str(trials), "--seed", str(seed)]
        self.arguments += ["--storage", storage] if storage else []
        self.every, self.patience, self.count, self.space = every, patience, workers, space
        self.drawing = random.Random(seed)
        self.kills, self.most = Counter[str](), kills
        self.endings: Counter[str] = Counter()
        self.workers: dict[int, multiprocessing.process.BaseProcess] = {}
        self.starts = 0

    def run(self) -> dict[str, Any]:
        """Return what was done and found, `faults` among it: empty where the study has come through."""
        self.import_once()
        began = time.monotonic()
        try:
            for number in range(self.count):
                self.start(number)
            strike = began + self.every
            while self.workers and time.monotonic() < began + self.patience:
                time.sleep(0.05)
                if time.monotonic() > strike and self.kills.total() < self.most:
                    self.strike()
                    strike = time.monotonic() + self.drawing.expovariate(1 / self.every)
                self.look_after()
            late = bool(self.workers)
        finally:
            for left in self.workers.values():
                left.kill()
                left.join()
        return self.report(time.monotonic() - began, late=late)

    def import_once(self) -> None:
        """Import what a worker needs, once, before any is forked."""
        from archsearch.search import session, summary  # noqa: F401
        from archsearch.search.candidates import RandomSuggest, sample
        from archsearch.search.rows import describe
        from archsearch.search.space import load_space

        space = load_space(self.space)
        describe(space, sample(space, RandomSuggest(0)))

    def start(self, number: int) -> None:
        """Start a worker, or start it again."""
        self.starts += 1
        output = self.output(number)
        arguments = [*self.arguments, "--output", str(output)]
        log = self.folder / f"worker-{number}.txt"
        context = multiprocessing.get_context("fork")
        self.workers[number] = context.Process(target=worker, args=(arguments, log, f"{number} {self.starts}"))
        self.workers[number].start()

    def output(self, number: int) -> Path:
        """Return a worker's folder: workers of a database are on machines of their own."""
        return self.folder / (f"machine-{number}" if self.storage else "machine")

    def strike(self) -> None:
        """Kill a worker or a trial."""
        whom = "trials" if self.drawing.random() < 0.6 else "workers"
        living = [one.pid for one in self.workers.values() if one.pid and one.is_alive()]
        targets = [child for one in living for child in children(one)] if whom == "trials" else living
        if targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.drawing.choice(targets), signal.SIGKILL)
                self.kills[whom] += 1

    def look_after(self) -> None:
        """Start killed workers again; one that has nothing left to do is left in peace once there is a result."""
        for number, one in list(self.workers.items()):
            if one.exitcode is None:
                continue
            self.endings[str(one.exitcode)] += 1
            del self.workers[number]
            if one.exitcode != 0 or not (self.workers or self.has_result(number)):
                self.start(number)

    def has_result(self, number: int) -> bool:
        return (self.output(number) / self.name / "evidence.json").exists()

    def report(self, seconds: float, *, late: bool) -> dict[str, Any]:
        """Look at what is on record."""
        from archsearch.search.database import parse_database
        from archsearch.search.store import read_study

        database = parse_database(self.storage) if self.storage else None
        rows = read_study(self.output(0) / self.name, self.name, database).rows
        said = "".join(path.read_text() for path in sorted(self.folder.glob("worker-*.txt")))
        reports = [read_report(path.parent) for path in self.folder.glob("machine*/*/trials/[0-9]*/metrics.json")]
        distinct = [row for row in rows if row.outcome not in ("duplicate", "waiting")]
        return {
            "storage": "PostgreSQL" if self.storage else "SQLite",
            "workers": self.count,
            "seconds": round(seconds, 1),
            "killed": dict(self.kills),
            "worker_starts": self.starts,
            "worker_exit_codes": dict(self.endings),
            "outcomes": dict(Counter(row.outcome for row in rows)),
            "causes_of_failures": dict(Counter(str(row.result.cause) for row in rows if row.outcome == "failed")),
            "interruptions": dict(Counter(found["cause"] for row in distinct for found in row.result.interruptions)),
            "trials_run_again": sum(bool(row.result.interruptions) for row in distinct),
            "starts_of_trials": sum(report.get("starts", 0) for report in reports),
            "said_about_full_disks": said.count("waiting for room") + said.count("is full"),
            "reasons": sorted({row.result.reason.split("; see")[0] for row in rows if row.outcome == "failed"}),
            "faults": list(self.faults(rows, said, late=late)),
        }

    def faults(self, rows: Sequence[Row], said: str, *, late: bool) -> Iterator[str]:
        """Yield what must not be."""
        distinct = [row for row in rows if row.outcome not in ("duplicate", "waiting")]
        keys = [row.description.key if row.description else "nothing" for row in distinct]
        checks: dict[str, Callable[[], bool]] = {
            f"{len(distinct)} finished trials, not {self.trials}": lambda: len(distinct) != self.trials,
            "a candidate was tried twice": lambda: len(set(keys)) != len(keys),
            "a trial runs for ever": lambda: any(row.outcome in ("running", "waiting") for row in rows),
            "a failure without cause or reason": lambda: any(
                row.outcome == "failed" and not (row.result.cause and row.result.reason) for row in rows
            ),
            "a trial failed by what it was not to blame for, and was not run again": lambda: any(
                row.result.cause in ("killed", "lost") and len(row.result.interruptions) < 3 for row in rows
            ),
            "a trial failed because of a full disk": lambda: any(row.result.cause == "disk_full" for row in rows),
            "a worker ended with a traceback": lambda: "Traceback" in said,
            "the study had no end": lambda: late,
            "no result": lambda: not any(self.has_result(number) for number in range(self.count)),
            "study.db is damaged": lambda: not self.storage and not is_whole(self.output(0) / self.name / "study.db"),
        }
        yield from (fault for fault, is_so in checks.items() if is_so())


def children(pid: int) -> list[int]:
    """Return the processes that a process has started (Linux)."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            found += [int(child) for child in path.read_text().split()]
    return found


def is_whole(path: Path) -> bool:
    """Return whether SQLite finds no fault with a file."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("pragma integrity_check").fetchall() == [("ok",)]


if __name__ == "__main__":
    sys.exit(main())
