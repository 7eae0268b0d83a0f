"""What the commands print: a study's result, its status, and the survey of a space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from archsearch.search import ledger
from archsearch.search.front import front
from archsearch.search.rows import Description, Result, Row
from archsearch.search.space import Space
from archsearch.search.status import Status
from archsearch.search.tables import FRONT, confirmed_table, make_console, rows_table

AS_WRITTEN = "* as written in the space, exempt from the size tolerance"

REASONS = 12
"""A survey prints so many of the commonest reasons."""


def print_result(space: Space, folder: Path, evidence: Mapping[str, Any], message: str) -> None:
    """Print all candidates, the confirmed ones, and the verdict."""
    console = make_console()
    rows = [_row(trial) for trial in evidence["trials"]]
    console.print(rows_table(space, rows, {}, evidence.get("front", ())))
    console.print(AS_WRITTEN)
    _print_sources(console, rows)
    _print_front(console, space, rows)
    console.print()
    counts = ", ".join(f"{count} {outcome}" for outcome, count in evidence["counts"].items() if outcome != "waiting")
    console.print(f"{message}: {counts}", markup=False)
    _print_ledger(console, evidence.get("pruning"))
    if evidence["confirmed"]:
        console.print(
            f"\ntrained again with fresh seeds (mean ± {evidence['confidence']:.0%} t-interval{_together(evidence)}):\n"
        )
        console.print(confirmed_table(evidence))
        for line in _missing_seeds(evidence["confirmed"]):
            console.print(line, markup=False)
    console.print()
    console.print(verdict(evidence, folder), markup=False)


def verdict(evidence: Mapping[str, Any], folder: Path) -> str:
    """Return the outcome of a study in words."""
    trials = {trial["number"]: trial for trial in evidence["trials"]}
    if evidence["winner"] is None:
        return _nothing(evidence, trials)
    best = trials[evidence["winner"]]
    text = f"winner: trial {best['number']}, {_name(best)}"
    found = next((x for x in evidence["confirmed"] if x["trial"] == best["number"]), None)
    written = f"written to {folder / 'best'} and {folder / 'evidence.json'}"
    return f"{text}; {_against_base(found, evidence)}{_ties(evidence)}\n{written}"


def print_status(status: Status) -> None:
    """Print what a study ran, is running and refused."""
    console = make_console()
    doing = {**status.alive, **{number: {"phase": "interrupted"} for number in status.abandoned}}
    console.print(rows_table(status.space, status.rows, doing, status.front))
    _print_sources(console, status.rows)
    _print_front(console, status.space, status.rows)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in status.counts.items())
    console.print(f"\n{status.folder}: {counts or 'no trials yet'}", markup=False)
    _print_ledger(console, status.pruning)
    if status.abandoned:
        numbers = ", ".join(map(str, status.abandoned))
        console.print(
            f"interrupted, or left by a killed worker: {numbers}; the next worker of this study goes on there"
        )
    if status.evidence:
        console.print(verdict(status.evidence, status.folder), markup=False)


def _print_sources(console: Console, rows: Sequence[Row]) -> None:
    """Say which throughputs were predicted, and for which machine where that is not this one."""
    if any(row.is_predicted for row in rows):
        console.print("~ predicted from the study's cost table; the others were measured")
    for warning in sorted({row.warning for row in rows if row.warning}):
        console.print(f"warning: {warning}", markup=False)


def _print_front(console: Console, space: Space, rows: Sequence[Row]) -> None:
    """Print the Pareto front, where several objectives make one."""
    if best := front(space, rows):
        console.print(f"\n{FRONT} the Pareto front: nothing else is as good in every objective and better in one\n")
        console.print(rows_table(space, best, {}))


def _print_ledger(console: Console, found: Mapping[str, Any] | None) -> None:
    for line in ledger.lines(found):
        console.print(line, markup=False)


def print_survey(space: Space, figures: Mapping[str, Any]) -> None:
    """Print how large a space is, which share is legal, what the budget refuses and why, and a few candidates."""
    console = make_console()
    legal, samples = figures["legal"], figures["samples"]
    console.print(f"{space.name}: {_size(figures)}")
    console.print(f"{legal} of {samples} sampled candidates are legal ({legal / samples:.0%})")
    reasons = list(figures["reasons"].items())
    for reason, count in reasons[:REASONS]:
        console.print(f"  {count:>5} {reason}", markup=False)
    if rest := reasons[REASONS:]:
        console.print(f"  {sum(count for _, count in rest):>5} for {len(rest)} other reasons (--json shows all)")
    _print_budget(console, figures["budget"])
    console.print()
    _print_inspected(console, [*figures["given"], *figures["examples"]])


def _size(figures: Mapping[str, Any]) -> str:
    """Return how many ways of deciding there are and, as far as that can be counted, how many models."""
    ways = f"{figures['ways']:,} ways to decide"
    if figures["distinct_in_space"] is not None:
        return f"{ways}, {figures['distinct_in_space']:,} different models in all, {figures['legal_in_space']:,} legal"
    return f"{ways}, at most {figures['models_at_most']:,} different legal models"


def _print_budget(console: Console, budget: Mapping[str, Any]) -> None:
    """Print what a budget refuses of the legal samples before anything is measured, and what is left open."""
    legal, refused = budget["legal"], budget["refused"]
    if legal:
        console.print(f"the budget refuses {refused} of these {legal} without a measurement ({refused / legal:.0%})")
    for name, limit in budget["limits"].items():
        console.print(f"  {limit['refused']:>5} {name}; one of them: {limit['example']}", markup=False)
    for name, limit in budget["open"].items():
        console.print(f"  {limit['left']:>5} wait for a measurement of {name}: {limit['reason']}", markup=False)
    for line in budget["tables"]:
        console.print(f"  {line}", markup=False)


def _print_inspected(console: Console, inspected: list[Mapping[str, Any]]) -> None:
    table = Table("", "pattern", "shape", box=None, pad_edge=False, header_style="bold")
    for name in ("parameters", "vs base", "state bytes"):
        table.add_column(name, justify="right")
    table.add_column("")
    for found in inspected:
        figures = [f"{found[key]:,}" if found[key] is not None else "" for key in ("parameters", "state_bytes")]
        change = f"{found['parameters_change']:+.1%}" if found["parameters_change"] is not None else ""
        texts = [
            f"{found['given']}*" if found["given"] else "",
            found["pattern"],
            found["shape"],
            figures[0],
            change,
            figures[1],
        ]
        table.add_row(*(escape(text) for text in [*texts, found["refusal"] or "legal"]))
    console.print(table)
    console.print(AS_WRITTEN)


def _nothing(evidence: Mapping[str, Any], trials: Mapping[int, Mapping[str, Any]]) -> str:
    if evidence["nearest"] is None:
        reasons = [trial["reason"] for trial in evidence["trials"] if trial["outcome"] in ("failed", "illegal")]
        return f"no candidate could be trained; the first reason: {reasons[0] if reasons else 'none was tried'}"
    near = trials[evidence["nearest"]]
    return f"no candidate meets the budget; the nearest is trial {near['number']}, {_name(near)}: {near['reason']}"


def _against_base(found: Mapping[str, Any] | None, evidence: Mapping[str, Any]) -> str:
    if found is None:
        return "not confirmed with fresh seeds (study.confirm)"
    if found["is_base"]:
        return _base_itself(evidence)
    objective = found["objectives"][0]
    difference = objective["difference_to_base"]
    if difference is None or difference["low"] is None:
        return f"{objective['label']}: the difference to the base is not known from these seeds"
    interval = f"{difference['mean']:+.3g} [{difference['low']:+.3g}, {difference['high']:+.3g}]"
    if difference["is_tie"]:
        return f"{objective['label']} against the base {interval}: a tie"
    return f"{objective['label']} against the base {interval} over {difference['seeds']} seeds"


def _base_itself(evidence: Mapping[str, Any]) -> str:
    """Return why the base has won: nothing is better, or nothing else could be trained."""
    others = [x for x in evidence["trials"] if x["given"] != "base" and x["outcome"] not in ("duplicate", "waiting")]
    if not others or any(x["outcome"] in ("completed", "pruned") for x in others):
        return "the base itself: nothing that was tried is better"
    ends = ", ".join(f"{count} {end}" for end, count in Counter(x["outcome"] for x in others).items())
    undecided = any(": undecided, from" in (x["reason"] or "") for x in others)
    hint = "; a longer budget.time_limit, or a cost table, decides more" if undecided else ""
    return f"the base itself: no other candidate was trained ({ends}){hint}; the first: {others[0]['reason']}"


def _missing_seeds(confirmed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why seeds have no result, and what helps."""
    missing = [(x["trial"], seed, reason) for x in confirmed for seed, reason in x["failures"].items()]
    lines = [f"trial {number} with seed {seed} failed: {reason}" for number, seed, reason in missing]
    if any("(study.timeout_per_trial)" in line for line in lines):
        lines.append("with a longer study.timeout_per_trial and --accept-changes these seeds go on")
    return lines


def _ties(evidence: Mapping[str, Any]) -> str:
    """Return what the seeds cannot tell from the winner, in words; a tie with the base has been called one before."""
    bases = [found["trial"] for found in evidence["confirmed"] if found["is_base"]]
    if not (numbers := [number for number in evidence.get("ties", []) if number not in bases]):
        return ""
    label = evidence["objectives"][0]["label"]
    trials = f"trial{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
    return f"\n{trials}: not told apart from it in {label} by these seeds; the best mean was taken"


def _together(evidence: Mapping[str, Any]) -> str:
    """Return that the intervals of the differences are wider, where the best of several was looked for."""
    number = evidence.get("comparisons", 1)
    return f"; the {number} differences to the base hold together" if number > 1 else ""


def _name(trial: Mapping[str, Any]) -> str:
    shape = f" with {trial['shape']}" if trial["shape"] else ""
    return f"{trial['pattern']}{shape}"


def _row(trial: Mapping[str, Any]) -> Row:
    """Return a trial of the evidence as a row."""

    def taken(schema: Any) -> dict[str, Any]:
        return {name: trial[name] for name in schema.__dataclass_fields__ if name in trial}

    described = Description(**taken(Description)) if "key" in trial else None
    return Row(number=trial["number"], given=trial["given"], description=described, result=Result(**taken(Result)))
