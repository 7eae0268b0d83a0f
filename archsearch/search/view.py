"""How a running study shows itself: a live table on a terminal, one line per event elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.text import Text

from archsearch.search.failures import unless_disk_full
from archsearch.search.front import front
from archsearch.search.process import Report, read_report
from archsearch.search.rows import Row
from archsearch.search.space import Space
from archsearch.search.store import trial_folder
from archsearch.search.tables import cells, doing, headings, make_console, rows_table

SHOWN = 30
"""The live table holds so many of the latest trials; the final one holds all."""


class StudyView:
    """Show trials as they come; a context manager."""

    def __init__(self, space: Space, folder: Path, trials: int, estimate: Callable[[Sequence[Row]], str]) -> None:
        self._space, self._folder, self._trials, self._estimate = space, folder, trials, estimate
        self._console = make_console()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._printed: set[tuple[int, str]] = set()
        self._estimated = 0

    def __enter__(self) -> StudyView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the table."""
        with unless_disk_full():  # what is printed may go to a file
            self._console.print(text, markup=False)

    def update(self, rows: Sequence[Row], running: Mapping[int, Report]) -> None:
        """Show the trials; those of other workers too, as far as their folders tell."""
        if self._live is None:
            self._print_news(rows)
            return
        numbers = [row.number for row in rows if row.outcome == "running"]
        reports = {number: read_report(trial_folder(self._folder, number)) for number in numbers}
        shown = [row for row in rows if row.outcome not in ("duplicate", "waiting")][-SHOWN:]
        best = [row.number for row in front(self._space, rows)]
        table = rows_table(self._space, shown, {**reports, **running}, best)
        self._live.update(Group(table, Text(self._status(rows))), refresh=True)

    def confirming(self, row: Row, seed: int, report: Report) -> None:
        """Show a confirmation run."""
        pattern = row.description.pattern if row.description else ""
        text = f"confirming trial {row.number} ({pattern}) with seed {seed}"
        if self._live:
            self._live.update(Text(f"{text}: {doing(report)}"), refresh=True)
        elif (row.number, text) not in self._printed:
            self._printed.add((row.number, text))
            self.say(text)

    def _print_news(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.outcome not in ("duplicate", "waiting", "running") and (row.number, "ended") not in self._printed:
                if not any(what == "ended" for _, what in self._printed):
                    self.say(f"{'  '.join(headings(self._space))}; * as written in the space")
                self._printed.add((row.number, "ended"))
                self.say("  ".join(text or "-" for text in cells(self._space, row)))
        ended = sum(row.outcome == "completed" for row in rows)
        if ended and not self._estimated:
            self._estimated = ended
            self.say(self._estimate(rows))

    def _status(self, rows: Sequence[Row]) -> str:
        repeats = sum(row.outcome == "duplicate" for row in rows)
        distinct = sum(row.outcome not in ("duplicate", "waiting") for row in rows)
        return f"{distinct} of {self._trials} candidates, {repeats} repeats; * as written; {self._estimate(rows)}"
