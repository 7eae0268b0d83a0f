"""Further workers of a command whose trials run elsewhere: threads, since all they do is ask, wait and tell."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from archsearch.search.process import Launcher, Report
from archsearch.search.rows import Row
from archsearch.search.store import Store
from archsearch.search.study import Limits, Study


@contextlib.contextmanager
def helped(study: Study, number: int, take_part: Callable[[Study], None]) -> Iterator[None]:
    """Let `number` threads take part in the study, each with locks and a connection of its own.

    They end by themselves, as `study` does; an exception here ends their trials too.
    """
    leave, store = threading.Event(), study.store

    def work() -> None:
        with contextlib.closing(Store(store.folder, store.space, store.seed, store.database)) as own:
            assert study.launch is not None
            limits = _Limits(**asdict(study.limits), left=leave.is_set)
            launch = _Interruptible(study.launch, leave)
            take_part(replace(study, store=own, view=_Silent(), limits=limits, launch=launch))

    with ThreadPoolExecutor(max(1, number), thread_name_prefix="worker") as pool:
        workers = [pool.submit(work) for _ in range(number)]
        try:
            yield
        except BaseException:
            leave.set()
            raise
    for worker in workers:
        if error := worker.exception():
            study.view.say(f"a further worker has ended: {type(error).__name__}: {error}")


@dataclass(frozen=True, kw_only=True)
class _Limits(Limits):
    """The study's limits, and its end by an exception."""

    left: Callable[[], bool]

    def stopped(self) -> bool:
        return self.left() or super().stopped()


@dataclass(frozen=True)
class _Interruptible:
    """The study's launcher, whose trials end with the study."""

    launch: Launcher
    leave: threading.Event

    def __call__(
        self, folder: Path, config: Mapping[str, Any], *, timeout: float, watch: Callable[[Report], None]
    ) -> Report:
        def look(report: Report) -> None:
            if self.leave.is_set():
                raise InterruptedError
            watch(report)

        return self.launch(folder, config, timeout=timeout, watch=look)


class _Silent:
    """A view of one worker among several: the first one shows all there is."""

    def update(self, rows: Sequence[Row], running: Mapping[int, Report]) -> None:
        pass

    def say(self, text: str) -> None:
        pass
