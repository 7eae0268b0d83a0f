"""`archsearch tune`: find the fastest configurations of library kernels for an architecture's shapes on this GPU."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import warnings

from archsearch.commands.options import add_architecture_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("architectures", nargs="+", metavar="PATTERN|FILE", help="whose mixers to tune")
    add_architecture_arguments(parser)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences per step (8)")
    parser.add_argument("--length", type=int, default=4096, help="tokens per sequence (4096)")
    parser.add_argument("--output", metavar="FILE", help="where to add the choices (default: archsearch's cache)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile (one per core)")
    parser.add_argument("--compile-share", type=int, help=argparse.SUPPRESS)  # of --jobs, in a process of its own


def run(args: argparse.Namespace) -> int:
    """Compile all configurations side by side, time them, and save the fastest by kernel and shape."""
    from pathlib import Path

    from archsearch.architecture import resolve
    from archsearch.config import ConfigError
    from archsearch.kernels import fla, tuning, verify
    from archsearch.throughput.layers import Layers

    if reason := fla.why_unavailable():
        raise ConfigError(f"nothing to tune: {reason}")
    for name in ("batch_size", "length"):
        if (value := getattr(args, name)) < 1:
            raise ConfigError(f"--{name.replace('_', '-')}: must be at least 1; got {value}")
    layers = Layers([resolve(text, args.like) for text in args.architectures], args.batch_size, args.length)
    jobs = max(1, args.jobs)
    command = [sys.executable, "-m", "archsearch.cli", *sys.argv[1:]]
    others = range(1, jobs) if args.compile_share is None else ()
    shares = [subprocess.Popen([*command, "--compile-share", str(share)]) for share in others]
    with tuning.compile_only(args.compile_share or 0, jobs):
        layers.run()  # here, too, so that the modules whose tuners count are imported
    for share in shares:
        share.wait()
    if args.compile_share is not None:
        return 0
    if not any(fla.tuners()):
        raise ConfigError("nothing to tune: none of these mixers runs on library kernels")
    tuning.tune(layers.run)
    with warnings.catch_warnings():
        warnings.simplefilter("error", verify.WrongKernelWarning)
        try:
            layers.run()
        except verify.WrongKernelWarning as warning:
            raise ConfigError(f"nothing is saved: {warning}") from None
    path = Path(args.output) if args.output else fla.own_folder() / f"{fla.card()}.json"
    print(f"{path}: {tuning.save(path)} choices")
    return 0
