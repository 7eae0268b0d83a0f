"""How many trials each sampler needs on a known landscape.

    python studies/sampler_comparison/compare.py [-o comparison.json] [--repetitions 50] [--workers 2]

A sampler sees what a study would see: the candidates that every study begins with, then the value of each candidate
that it proposes. It has arrived when it has tried one of the best 1 % (at least three). Repeats do not count as trials,
as in a study, and illegal candidates are told as a study tells them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import time
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import optuna

from archsearch.files import write_atomic
from archsearch.search.candidates import build_given, given, given_decisions, replay_decisions, sample
from archsearch.search.pattern_sampler import Features
from archsearch.search.rows import describe
from archsearch.search.samplers import SAMPLERS, Setting, seed_of_trial
from archsearch.search.space import Space, load_space
from archsearch.search.store import PATIENCE, _TrialSuggest

HERE = Path(__file__).parent
NAMES = [name for name in SAMPLERS if name != "brute_force"]
AGAINST, OURS = "tpe", "pattern"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", default=str(HERE / "space.yaml"))
    parser.add_argument("--landscape", type=Path, default=HERE / "landscape.jsonl")
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--samplers", nargs="*", default=NAMES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    space = load_space(args.space)
    values = read(space, args.landscape)
    goal = best(space, values)
    jobs = [(name, seed) for seed in range(args.repetitions) for name in args.samplers]
    found: dict[str, list[int]] = defaultdict(list)
    started, context = time.monotonic(), multiprocessing.get_context("spawn")
    with context.Pool(args.workers) as pool:
        for name, trials in pool.imap_unordered(partial(run, args.space, values, goal), jobs):
            found[name].append(trials)
    figures = {
        "candidates": len(values),
        "goal": len(goal),
        "repetitions": args.repetitions,
        "seconds": round(time.monotonic() - started),
        "trials": {name: summary(found[name]) for name in args.samplers},
    }
    if {OURS, AGAINST} <= set(found):
        figures[f"{AGAINST} / {OURS}"] = ratio(found[AGAINST], found[OURS])
    print(json.dumps(figures, indent=1))
    if args.output:
        write_atomic(args.output, json.dumps({**figures, "all": dict(found)}, indent=1) + "\n")


def read(space: Space, path: Path) -> dict[str, float]:
    """Return each candidate's value of the first objective, its mean over seeds."""
    (objective,) = space.objectives
    found: dict[str, list[float]] = defaultdict(list)
    for row in map(json.loads, path.read_text().splitlines()):
        found[row["key"]].append(row["metrics"][objective.task][objective.key])
    return {key: statistics.mean(values) for key, values in found.items()}


def best(space: Space, values: dict[str, float]) -> set[str]:
    """Return the best 1 % of the candidates, at least three."""
    better = sorted(values, key=lambda key: space.objectives[0].better(values[key]), reverse=True)
    return set(better[: max(3, len(better) // 100)])


def run(path: str, values: dict[str, float], goal: set[str], job: tuple[str, int]) -> tuple[str, int]:
    """Return the sampler and the distinct candidates that it has tried when it has arrived."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    (name, seed), space = job, load_space(path)
    study, features = optuna.create_study(direction=space.objectives[0].direction), Features(space)
    first = {x.name: x for x in given(space)}
    for x in first.values():
        study.enqueue_trial(given_decisions(space, x), user_attrs={"given": x.name})
    seen: set[str] = set()
    repeats = number = 0
    while len(seen) < len(values):
        setting = Setting(
            space=space,
            seed=seed_of_trial(seed, number),
            startup=space.study.startup,
            refuses=lambda candidate: candidate.key not in values,
            features=features,
        )
        study.sampler = SAMPLERS["random" if repeats >= PATIENCE else name](setting)
        trial, number = study.ask(), number + 1
        if found := first.get(trial.user_attrs.get("given")):
            replay_decisions(space, given_decisions(space, found), _TrialSuggest(trial))
            candidate = build_given(space, found)
        else:
            candidate = sample(space, _TrialSuggest(trial))
        trial.set_user_attr("candidate", asdict(describe(space, candidate)))
        trial.set_constraint("legal", float(candidate.key not in values))
        repeats = repeats + 1 if candidate.key in seen else 0
        if candidate.key not in values:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        study.tell(trial, values[candidate.key])
        seen.add(candidate.key)
        if candidate.key in goal:
            break
    return name, len(seen)


def summary(counts: list[int]) -> dict[str, Any]:
    """Return median, quartiles and mean with its standard error."""
    low, middle, high = statistics.quantiles(counts, n=4)
    error = statistics.stdev(counts) / len(counts) ** 0.5
    mean = statistics.mean(counts)
    return {"median": middle, "quartiles": [low, high], "mean": round(mean, 1), "error": round(error, 1)}


def ratio(one: list[int], other: list[int], draws: int = 10_000) -> dict[str, Any]:
    """Return the ratio of medians with its 95 % interval (bootstrap)."""
    drawing = random.Random(0)

    def median(values: list[int]) -> float:
        return statistics.median(drawing.choices(values, k=len(values)))

    drawn = sorted(median(one) / median(other) for _ in range(draws))
    interval = [round(drawn[int(draws * share)], 2) for share in (0.025, 0.975)]
    return {"median": round(statistics.median(one) / statistics.median(other), 2), "interval": interval}


if __name__ == "__main__":
    main()
