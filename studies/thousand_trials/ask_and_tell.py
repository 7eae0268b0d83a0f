"""Time one more trial, and `status`, in a study that has 1,000 of them already: what archsearch itself takes of it.

`python studies/thousand_trials/ask_and_tell.py [SAMPLER ...] [--trials 1000] [--storage URL] [-o FILE.json]`
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, create_trial

from archsearch.config import Where, load_yaml, save_yaml
from archsearch.search import study as study_module
from archsearch.search.candidates import given, sample
from archsearch.search.database import parse_database
from archsearch.search.rows import Result, describe
from archsearch.search.samplers import SAMPLERS
from archsearch.search.space import Space, parse_space
from archsearch.search.status import read_status
from archsearch.search.store import Store, trailing_repeats
from archsearch.search.study import Limits, Study
from archsearch.search.summary import print_status

SPACE = Path("search_spaces/hybrid_410m.yaml")
ASKED = 7
NAMES = [name for name in SAMPLERS if name != "brute_force"]  # the space is too large for that


def main() -> None:
    """Time every sampler."""
    parser = argparse.ArgumentParser(description="Time one more ask and tell, and status, in a large study.")
    parser.add_argument("samplers", nargs="*", default=NAMES, metavar="SAMPLER", help=", ".join(NAMES))
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--storage", help="a PostgreSQL database; SQLite without it")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    args = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        space = large()
        write(space, Path(folder), args.trials, args.storage)
        for name in args.samplers:
            asked = replace(space, study=replace(space.study, sampler=name))
            found.append(measure(asked, Path(folder), args.storage))
            print(json.dumps(found[-1]), flush=True)
    if args.output:
        args.output.write_text(json.dumps(found, indent=1) + "\n")


def large() -> Space:
    """Return the space of the published 410M hybrid, without the part of its budget that takes a GPU."""
    values = load_yaml(SPACE)
    values["name"] = "large"
    values["budget"] = {"parameters": {"at_most": 1.02, "of": "base"}}
    return parse_space(values, Where(str(SPACE)))


def write(space: Space, folder: Path, trials: int, storage: str | None) -> None:
    """Write a study of so many finished trials."""
    (folder / "trials").mkdir()
    save_yaml(folder / "space.yaml", space.written)
    with contextlib.closing(Store(folder, space, 0, parse_database(storage) if storage else None)) as store:
        for trial in synthetic(space, trials):
            store._study.add_trial(trial)
        for _ in given(space):  # they came first, in a study that has really been run
            store._study.tell(store._study.ask(), [0.0])


def measure(space: Space, folder: Path, storage: str | None) -> dict[str, Any]:
    """Return seconds, and those of them that this process ran: to open the study, of a further trial, of status."""
    study_module.run_trial = lambda *_, **__: answer(random.random())  # type: ignore[attr-defined]
    opening = Clock()
    with contextlib.closing(Store(folder, space, 0, parse_database(storage) if storage else None)) as store:
        opened = opening.read()
        trials, times, repeats = len(store.rows()), [], 0
        for _ in range(ASKED):
            asking = Clock()
            with store.lock:
                hold = store.ask()
                store.decide(hold)
                store.tell(hold, Result(outcome="completed", metrics=answer(random.random())["metrics"]))
            times.append(asking.read())
        finding = Clock()
        count = sum(row.outcome not in ("duplicate", "waiting") for row in store.rows())
        Study(space, store, Limits(trials=count + 1), Silent()).run()
        found, repeats = finding.read(), trailing(store)
    looking = Clock()
    with contextlib.redirect_stdout(io.StringIO()):
        print_status(read_status(folder, storage))
    return {
        "sampler": space.study.sampler,
        "storage": "PostgreSQL" if storage else "SQLite",
        "trials": trials,
        "opened": opened,
        "first_ask_and_tell": times[0],
        "ask_and_tell": [statistics.median(values) for values in zip(*times[1:], strict=True)],
        "next_new_candidate": found,
        "repeats_on_the_way": repeats,
        "status": looking.read(),
    }


def trailing(store: Store) -> int:
    """Return how many repeats were asked for before the last trial."""
    return trailing_repeats(store.rows()[:-1])


class Clock:
    """Read seconds since it was made: on the wall, and of this process alone."""

    def __init__(self) -> None:
        self._wall, self._own = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return round(time.perf_counter() - self._wall, 3), round(time.process_time() - self._own, 3)


class Silent:
    """A view for nobody."""

    def update(self, rows: Any, running: Any) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class Record:
    """Decide at random, and keep what Optuna would."""

    def __init__(self, drawing: random.Random) -> None:
        self.params: dict[str, Any] = {}
        self.distributions: dict[str, Any] = {}
        self._drawing = drawing

    def integer(self, name: str, low: int, high: int, step: int = 1) -> int:
        self.distributions[name] = IntDistribution(low, high, step=step)
        self.params[name] = self._drawing.randrange(low, high + 1, step)
        return int(self.params[name])

    def choice(self, name: str, values: Any) -> Any:
        self.distributions[name] = CategoricalDistribution(list(values))
        self.params[name] = self._drawing.choice(list(values))
        return self.params[name]


def synthetic(space: Space, number: int) -> list[FrozenTrial]:
    """Return finished trials of candidates drawn at random, each candidate once, as a study records them."""
    drawing, seen, trials = random.Random(0), set[str](), list[FrozenTrial]()
    while len(trials) < number:
        record = Record(drawing)
        candidate = sample(space, record)
        if candidate.illegal or candidate.key in seen:
            continue
        seen.add(candidate.key)
        result = Result(outcome="completed", **{key: answer(drawing.random())[key] for key in ("metrics", "seconds")})
        values = [result.metrics[objective.task][objective.key] for objective in space.objectives]
        attributes = {"candidate": asdict(describe(space, candidate)), "result": asdict(result)}
        constraints = {"legal": 0.0, "parameters": -0.01}
        trials.append(
            create_trial(
                values=values,
                params=record.params,
                distributions=record.distributions,
                user_attrs=json.loads(json.dumps(attributes)),
                constraints=constraints,
            )
        )
    return trials


def answer(merit: float) -> dict[str, Any]:
    """Return the report of a trial."""
    metrics = {"text": {"loss": 3 - merit, "perplexity": 20 - merit, "accuracy": merit, "tokens": 1e8}}
    return {"outcome": "completed", "metrics": metrics, "seconds": {"text": 600.0}}


if __name__ == "__main__":
    sys.exit(main())
