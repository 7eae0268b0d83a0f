"""`archsearch search`: run or resume the study of a search space."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from archsearch.commands.options import add_json_argument, add_plugin_argument, add_storage_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("space", metavar="SPACE.yaml", help="the search space")
    parser.add_argument(
        "--output", type=Path, default=Path("studies"), metavar="DIR", help="DIR/NAME is made (studies)"
    )
    parser.add_argument("--trials", type=int, help="distinct candidates to try, instead of the space's study.trials")
    parser.add_argument("--seed", type=int, help="instead of the space's study.seed")
    parser.add_argument("--timeout", metavar="TIME", help="begin no trial after this time (90s, 20min), then conclude")
    parser.add_argument("--stop-after", metavar="TIME", help="finish the trial in hand after this time, save, and stop")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="trials side by side (1)")
    parser.add_argument(
        "--launcher",
        choices=("local", "ray"),
        default="local",
        help="what runs the trials: this machine, or the Ray cluster that it or RAY_ADDRESS belongs to (local)",
    )
    parser.add_argument(
        "--table", action="append", default=[], metavar="FILE", help="a cost table to predict from, of any machine"
    )
    add_storage_argument(parser)
    parser.add_argument("--fresh", action="store_true", help="begin anew; the old folder is moved aside")
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="go on though count, placement, choices, study or seed have changed since the study began",
    )
    parser.add_argument("--dry-run", action="store_true", help="sample, check and inspect candidates, train nothing")
    parser.add_argument("--join", action="store_true", help=argparse.SUPPRESS)
    add_plugin_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Search; 0 with a winner or a stop that was asked for, 1 where nothing meets the budget."""
    from archsearch.search.space import load_space

    space = load_space(args.space)
    options = _options(args, space)
    if args.dry_run:
        from archsearch.search.dry_run import survey

        figures = survey(space, options.seed, file=args.space, tables=args.table)
        _print_json(figures) if args.json else _print_survey(space, figures)
        return 0
    from archsearch.search.session import run as run_session

    try:
        conclusion = run_session(space, options)
    except KeyboardInterrupt:
        print(f"\ninterrupted; everything that has ended is kept: archsearch search {args.space} goes on")
        return 130
    if conclusion.evidence is None:
        print(f"{conclusion.folder}: {conclusion.message}")
        return 0
    if args.json:
        _print_json(conclusion.evidence)
    else:
        from archsearch.search.summary import print_result

        print_result(space, conclusion.folder, conclusion.evidence, conclusion.message)
    return 0 if conclusion.evidence["winner"] is not None else 1


def _options(args: argparse.Namespace, space: Any) -> Any:
    from archsearch.config import ConfigError
    from archsearch.search.session import Options
    from archsearch.search.space import MOST_SEED

    trials = space.study.trials if args.trials is None else args.trials
    for name, value, least in (("--trials", trials, 1), ("--workers", args.workers, 1), ("--seed", args.seed or 0, 0)):
        if value < least:
            raise ConfigError(f"{name}: must be at least {least}; got {value}")
    if (args.seed or 0) > MOST_SEED:
        raise ConfigError(f"--seed: must be at most {MOST_SEED}; got {args.seed}")
    return Options(
        file=args.space,
        output=args.output,
        trials=trials,
        seed=space.study.seed if args.seed is None else args.seed,
        workers=args.workers,
        timeout=_seconds(args.timeout, "--timeout"),
        stop_after=_seconds(args.stop_after, "--stop-after"),
        fresh=args.fresh,
        accept_changes=args.accept_changes,
        storage=args.storage,
        join=args.join,
        launcher=args.launcher,
        plugins=tuple(args.plugin),
        tables=tuple(args.table),
    )


def _seconds(text: str | None, name: str) -> float | None:
    from archsearch.config import Where, parse_quantity

    return None if text is None else parse_quantity(text, "seconds", Where(name))


def _print_json(figures: dict[str, Any]) -> None:
    print(json.dumps(figures, indent=1))


def _print_survey(space: Any, figures: dict[str, Any]) -> None:
    from archsearch.search.summary import print_survey

    print_survey(space, figures)
