"""Measure each architecture in a fresh process, beside an anchor of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from archsearch.architecture import Architecture
from archsearch.config import ConfigError
from archsearch.lifetime import die_with_parent
from archsearch.throughput.conditions import Conditions
from archsearch.throughput.measure import Measurement, Target


def measure_isolated(
    architectures: Sequence[Architecture],
    base: Architecture,
    conditions: Conditions,
    *,
    target: Target | None = None,
    plugins: Sequence[str] = (),
) -> list[Measurement]:
    """Measure as `measure` does, but each architecture in a process of its own. Raises ConfigError where one fails."""
    return [_measure_one(x, base, conditions, target, plugins) for x in architectures]


def _measure_one(
    architecture: Architecture,
    base: Architecture,
    conditions: Conditions,
    target: Target | None,
    plugins: Sequence[str],
) -> Measurement:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        architecture.save(folder / "own.yaml")
        base.save(folder / "base.yaml")
        given = {"conditions": asdict(conditions), "target": asdict(target) if target else None, "plugins": [*plugins]}
        (folder / "given.json").write_text(json.dumps(given), encoding="utf-8")
        reading, writing = os.pipe()  # closed by the system if this process is killed, which ends the other one
        try:
            command = [sys.executable, "-m", "archsearch.throughput.isolate", name]
            done = subprocess.run(command, stdin=reading, stderr=subprocess.PIPE, text=True)
        finally:
            os.close(reading)
            os.close(writing)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise ConfigError(f"{architecture.pattern}: {lines[-1]}")
        found = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
        return Measurement(**{**found, **{name: tuple(found[name]) for name in ("repeated", "round_ratios")}})


def main(folder: Path) -> None:
    """Measure what the files in `folder` say, and write measured.json there."""
    from archsearch.registry import import_plugin
    from archsearch.throughput.measure import compare

    die_with_parent(alone=True)
    given = json.loads((folder / "given.json").read_text(encoding="utf-8"))
    for plugin in given["plugins"]:
        import_plugin(plugin)
    target = Target(**given["target"]) if given["target"] else None
    own, base = Architecture.load(folder / "own.yaml"), Architecture.load(folder / "base.yaml")
    found = compare(own, base, Conditions(**given["conditions"]), target=target)
    (folder / "measured.json").write_text(json.dumps(asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
