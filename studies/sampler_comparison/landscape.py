"""Train every candidate of a space: `python landscape.py SPACE.yaml OUT.jsonl [--seeds 2] [--stop-after 480]`.

One line per candidate and seed: its key, its metrics by task. Goes on from what OUT holds. Workers share one GPU, which
models of this size leave idle most of the time, or the CPU.
"""

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

from archsearch.search.budget import check_exact
from archsearch.search.candidates import Candidate
from archsearch.search.enumeration import enumerate_candidates
from archsearch.search.rows import failed_checks
from archsearch.search.space import Space, load_space

MOST = 4000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("space")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds")
    args = parser.parse_args()
    space, until = load_space(args.space), time.monotonic() + args.stop_after
    candidates = legal(space)
    done = {(row["key"], row["seed"]) for row in read(args.out)}
    jobs = [(args.space, x.key, seed) for seed in range(args.seeds) for x in candidates if (x.key, seed) not in done]
    print(f"{len(candidates)} candidates, {len(jobs)} of {len(candidates) * args.seeds} runs to go", flush=True)
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.workers) as pool, args.out.open("a") as out:
        for count, row in enumerate(pool.imap_unordered(train, jobs), start=1):
            out.write(json.dumps(row) + "\n")
            out.flush()
            if time.monotonic() > until:
                print(f"stopped after {count} runs; the same command goes on")
                pool.terminate()
                break


def legal(space: Space) -> list[Candidate]:
    """Return the candidates that a study would train, those with the published shape included."""
    everything = enumerate_candidates(space, MOST) or []
    assert everything, f"the space has more than {MOST} ways to its candidates"
    return [
        x
        for x in everything
        if x.architecture and not x.illegal and not failed_checks(check_exact(space.budget, x.architecture))
    ]


def train(job: tuple[str, str, int]) -> dict[str, Any]:
    """Train one candidate on every task of its space."""
    from archsearch.training.run import train_and_evaluate

    path, key, seed = job
    space = load_space(path)
    (candidate,) = (x for x in legal(space) if x.key == key)
    assert candidate.architecture is not None
    started = time.monotonic()
    metrics = {
        name: train_and_evaluate(
            candidate.architecture, task.data, task.arguments, optimizer=task.optimizer, schedule=task.schedule,
            max_tokens=task.tokens, eval_lengths=task.evaluate, seed=seed,
        )
        for name, task in space.tasks.items()
    }  # fmt: skip
    return {"key": key, "seed": seed, "seconds": round(time.monotonic() - started, 1), "metrics": metrics}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
