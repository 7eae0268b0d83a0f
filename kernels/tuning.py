"""Tune the kernels of flash-linear-attention: compile every configuration in parallel, then time them one by one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from archsearch.kernels import verify
from archsearch.kernels.fla import load, tuners

WARM_UP_MS, TIMED_MS = 5, 25


@contextmanager
def compile_only(share: int, of: int) -> Iterator[None]:
    """Within, a tuner neither times nor runs: it compiles its configurations number `share`, `share + of`, ..."""
    from triton.runtime.autotuner import Autotuner

    def run(tuner: Any, *args: Any, **kwargs: Any) -> None:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        for config in tuner.prune_configs(kwargs)[share::of]:
            try:
                tuner.fn.run(*args, **{**kwargs, "warmup": True}, **config.all_kwargs())
            except Exception:  # the tuner meets it again and leaves the configuration out
                continue

    tuned_run, Autotuner.run = Autotuner.run, run
    try:
        with verify.trust():
            yield
    finally:
        Autotuner.run = tuned_run


def tune(run: Callable[[], None]) -> None:
    """Call `run` with tuners that know nothing, so that each times its configurations for the shapes it meets."""
    from triton.testing import do_bench

    run_once = _timed(do_bench)
    for tuner in tuners():
        tuner.cache = {}
        tuner._do_bench, tuner.cache_results = run_once, False
        tuner.__dict__.pop("do_bench", None)
    with verify.trust():
        run()


def _timed(do_bench: Callable[..., Any]) -> Callable[..., Any]:
    def time(call: Callable[[], None], quantiles: tuple[float, ...]) -> Any:
        return do_bench(call, warmup=WARM_UP_MS, rep=TIMED_MS, quantiles=quantiles)

    return time


def save(path: Path) -> int:
    """Add what the tuners have chosen to a file; returns how many choices it holds then."""
    kernels = {name: {json.dumps(key): config for key, config in entries} for name, entries in _existing(path).items()}
    for tuner in tuners():
        for key, config in tuner.cache.items():
            kernels.setdefault(tuner.base_fn.__name__, {})[json.dumps(key)] = _as_dict(config)
    values = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": version("triton"),
        "fla": version("fla-core"),
        "kernels": {
            name: [[json.loads(key), config] for key, config in sorted(entries.items())]
            for name, entries in sorted(kernels.items())
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(_one_line_each(values))
    partial.replace(path)
    return sum(map(len, kernels.values()))


def _existing(path: Path) -> dict[str, list[tuple[list[Any], dict[str, Any]]]]:
    return load(path) if path.exists() else {}


def _as_dict(config: Any) -> dict[str, Any]:
    names = ("kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg")
    return {name: value for name in names if (value := getattr(config, name)) is not None}


def _one_line_each(values: dict[str, Any]) -> str:
    """Return JSON with one line per choice, for readable differences."""
    head = json.dumps({name: value for name, value in values.items() if name != "kernels"}, indent=1)
    kernels = ",\n".join(
        f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in entries) + "\n ]"
        for name, entries in values["kernels"].items()
    )
    return head[:-2] + ',\n "kernels": {\n' + kernels + "\n}}\n"
