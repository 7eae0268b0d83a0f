"""Print, after a run that held the mixers to their contract, which mixer has which property; a third party's mixer."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from archsearch import registry

PLUGINS = Path(__file__).parent / "plugins"
PROVES = "proves"
PROPERTIES = [  # the columns, left to right
    "causal",
    "step = whole",
    "split = whole",
    "packed",
    "gradients",
    "bf16",
    "figures",
    "defaults",
    "backends",
    "refusals",
]

Cells = dict[str, dict[str, list[bool]]]
"""Per mixer and property, of every test whether it passed."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{PROVES}(property): a test of a mixer's contract, by the property it proves")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker(PROVES)
        if mark and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            # a report's user properties reach the controller of xdist's workers, where nothing is collected
            if mark.args[0] not in PROPERTIES:
                raise pytest.UsageError(f"{item.nodeid}: {PROVES}: must be one of {PROPERTIES}; got {mark.args[0]!r}")
            item.user_properties.append((PROVES, [item.callspec.params["name"], mark.args[0]]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stats = terminalreporter.stats
    reports = (report for outcome in ("passed", "failed", "error") for report in stats.get(outcome, ()))
    if cells := outcomes(report for report in reports if isinstance(report, pytest.TestReport)):
        terminalreporter.section("mixer contract")
        terminalreporter.write_line(table(cells))


def outcomes(reports: Iterable[pytest.TestReport]) -> Cells:
    """Sort the reports of contract tests by mixer and property."""
    cells: Cells = defaultdict(lambda: defaultdict(list))
    for report in reports:
        for mixer, proven in (value for key, value in report.user_properties if key == PROVES):
            cells[mixer][proven].append(report.passed)
    return cells


def table(cells: Cells) -> str:
    """Return one row per mixer and one column per property: how many tests passed, or how many of them failed."""
    properties = [proven for proven in PROPERTIES if any(proven in row for row in cells.values())]
    rows = [["", *properties]]
    rows += [[mixer, *(_cell(cells[mixer].get(proven, [])) for proven in properties)] for mixer in sorted(cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _cell(passed: list[bool]) -> str:
    if not passed:
        return "-"
    return f"{len(passed)} ok" if all(passed) else f"{passed.count(False)} of {len(passed)} FAILED"


@pytest.fixture
def empty_plugin_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test import the third party's package and register its mixer without other tests seeing it."""
    registry.names()
    monkeypatch.syspath_prepend(PLUGINS)
    monkeypatch.setattr(registry, "_plugins", dict(registry._plugins))
    monkeypatch.delitem(sys.modules, "leaky_average", raising=False)


@pytest.fixture
def third_party(empty_plugin_slot: None) -> None:  # noqa: ARG001
    """Register the third party's mixer, `leaky_average`, as `--plugin leaky_average` does."""
    registry.import_plugin("leaky_average")
