"""Measure the memory of a worker after 50, 100, 150 and 200 trials, each a process that answers at once.

`python studies/thousand_trials/memory.py [-o FILE.json]`
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from archsearch.config import Where, load_yaml
from archsearch.search import process
from archsearch.search.space import parse_space
from archsearch.search.store import Store
from archsearch.search.study import Limits, Study

SPACE = Path("studies/chaos/space.yaml")

ANSWER = """
import json, sys
metrics = {"s3": {"accuracy": 0.5, "accuracy/16": 0.5, "loss": 0.5}}
report = {"outcome": "completed", "metrics": metrics, "seconds": {"s3": 1.0}}
json.dump(report, open(sys.argv[1] + "/metrics.json", "w"))
"""


class Silent:
    """A view for nobody."""

    def update(self, rows: Any, running: Any) -> None:
        pass

    def say(self, text: str) -> None:
        pass


def main() -> None:
    """Run the trials in stages."""
    parser = argparse.ArgumentParser(description="Measure the memory of a worker while its study grows.")
    parser.add_argument("--stages", type=int, nargs="*", default=[10, 50, 100, 150, 200])
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    args = parser.parse_args()
    values = load_yaml(SPACE)
    values["space"]["count"]["high"] = 6
    values["study"] |= {"sampler": "random"}
    process.COMMAND, process.POLL_SECONDS = (sys.executable, "-S", "-c", ANSWER), 0.02
    with tempfile.TemporaryDirectory() as folder:
        found = measure(parse_space(values, Where(str(SPACE))), Path(folder), args.stages)
    print(json.dumps(found))
    if args.output:
        args.output.write_text(json.dumps(found, indent=1) + "\n")


def measure(space: Any, folder: Path, stages: list[int]) -> dict[str, float]:
    """Return this process's resident MiB by the number of candidates tried."""
    (folder / "trials").mkdir()
    store, found = Store(folder, space, 0), {}
    for trials in stages:
        Study(space, store, Limits(trials=trials), Silent()).run()
        found[str(trials)] = round(resident() / 2**20, 1)
    store.close()
    return found


def resident() -> int:
    """Return this process's resident memory in bytes (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    main()
