"""Where an architecture comes from, as comment lines at the head of its file: the evidence travels with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from archsearch.search.tables import number


def header(evidence: Mapping[str, Any], trial_number: int) -> str:
    """Return a trial's part in a study's evidence: figures, seeds, budget verdict, versions, device, command."""
    trial = next(trial for trial in evidence["trials"] if trial["number"] == trial_number)
    role = "winner" if trial_number == evidence["winner"] else "on the Pareto front"
    shape = f" with {trial['shape']}" if trial["shape"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in evidence["versions"].items())
    lines = [
        f"{role} of the study {evidence['name']}: trial {trial_number}, {trial['pattern']}{shape}",
        *_objectives(evidence, trial),
        *(f"budget: {_words(check)}: {check['verdict']}" for check in trial["checks"]),
        f"device {evidence['device']}; {versions}; {evidence['finished']}",
        f"command: {evidence['command']}",
    ]
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


def _objectives(evidence: Mapping[str, Any], trial: Mapping[str, Any]) -> Sequence[str]:
    """Return a line per objective: over fresh seeds where there were any, else of the search's own run."""
    found = next((x for x in evidence.get("confirmed", []) if x["trial"] == trial["number"]), None)
    if found is None:
        run = f"one run, the search's seed {evidence['seed']}"
        values = zip(evidence["objectives"], trial["values"], strict=True)
        return [
            f"{x['label']}: {number(value)} ({'measured once' if x.get('measure') else run})" for x, value in values
        ]
    return [_confirmed(objective, evidence["confidence"], found["is_base"]) for objective in found["objectives"]]


def _confirmed(objective: Mapping[str, Any], confidence: float, is_base: bool) -> str:
    mean, difference = objective["estimate"], objective["difference_to_base"]
    if mean is None:
        return f"{objective['label']}: unknown"
    text = f"{objective['label']}: {number(mean['mean'])}{_interval(mean)}"
    if objective["values"]:
        text += f", {confidence:.0%} t-interval over the fresh seeds {', '.join(objective['values'])}"
    if difference is not None:
        tie = ", a tie" if difference["is_tie"] else ""
        return f"{text}; against the base {number(difference['mean'], '+')}{_interval(difference, '+')}{tie}"
    return f"{text}; it is the base" if is_base else text


def _interval(estimate: Mapping[str, Any], sign: str = "") -> str:
    if estimate["low"] is None or (estimate["seeds"] == 0 and estimate["low"] == estimate["high"]):  # by formula
        return ""
    return f" [{number(estimate['low'], sign)}, {number(estimate['high'], sign)}]"


def _words(check: Mapping[str, Any]) -> str:
    return check.get("words") or f"{check['name']} {check['value']:,.6g}, must be {check['limit']}"
