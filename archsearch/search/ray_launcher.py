"""`--launcher ray`: each trial is a task of a Ray cluster, which finds it a node, and another one when that dies.

The worker that asks for trials is Ray's driver: it alone knows the study and its locks, and is told of a trial's
progress by a small actor. Nothing but the installation has to be the same on the nodes. Where the trial's folder turns
out to be on a file system that both see, the task runs in it and a second attempt goes on from its checkpoint; where
not, the task runs in a scratch folder of its node and sends report and log back, and a second attempt goes on after the
tasks that were finished.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from archsearch.config import ConfigError
from archsearch.files import write_atomic
from archsearch.search import process
from archsearch.search.failures import CRASH, OUT_OF_MEMORY, cause_of
from archsearch.search.process import Report, read_report, run_trial

RETRIES = 3
"""So often Ray starts a trial again whose node or worker process is lost."""

LOG_BYTES = 200_000
"""So much of its log's end comes back from a node's scratch folder."""

POLL_SECONDS = 0.5
DRIVER = "driver"
"""A file in a trial's folder: whoever can read what the driver has written there sees the same folder."""


class RayLauncher:
    """A connection to the cluster that RAY_ADDRESS names, else to the one that this machine belongs to."""

    def __init__(self, devices: int) -> None:
        """Connect. Raises ConfigError without Ray, without a cluster, and without a node that has the devices."""
        try:
            import ray
        except ImportError:
            raise ConfigError("--launcher ray: needs Ray: pip install 'archsearch[ray]'") from None
        address = os.environ.get("RAY_ADDRESS", "auto")
        try:
            if not ray.is_initialized():
                ray.init(address=address, namespace="archsearch", log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError) as error:
            raise ConfigError(f"--launcher ray: no cluster at {address} (RAY_ADDRESS): {_one_line(error)}") from None
        resources = resources_of_trial([node["Resources"] for node in ray.nodes() if node["Alive"]], devices)
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        beside = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
        self._ray = ray
        self._task = ray.remote(run_task).options(max_retries=RETRIES, **resources)
        self._mailbox = ray.remote(Mailbox).options(**beside).remote()

    def __call__(
        self, folder: Path, config: Mapping[str, Any], *, timeout: float, watch: Callable[[Report], None]
    ) -> Report:
        """Run the trial on the cluster, as `process.run_trial` does here; it has `timeout` from its start on a node."""
        ray, token = self._ray, uuid.uuid4().hex
        process.prepare(folder, config)
        (folder / DRIVER).write_text(token, encoding="utf-8")
        self._ask(self._mailbox.expect, token, read_report(folder))
        where = (str(folder.absolute()), token)
        task = self._task.remote(self._mailbox, *where, dict(config), timeout, process.COMMAND[1:])
        try:
            while not ray.wait([task], timeout=POLL_SECONDS)[0]:
                if news := self._ask(self._mailbox.news, token):
                    write_atomic(folder / "metrics.json", json.dumps(news, indent=1))
                watch(read_report(folder))
        except BaseException:
            ray.cancel(task, force=True)
            self._mailbox.forget.remote(token)
            raise
        try:
            report, log = ray.get(task)
        except ray.exceptions.RayTaskError as error:
            found = {"cause": cause_of(error.cause), "reason": _one_line(error.cause)}
            return {**read_report(folder), "outcome": "failed", **found}
        except ray.exceptions.RayError as error:
            reason = f"lost by Ray after {RETRIES + 1} attempts: {_one_line(error)}"
            return {**read_report(folder), "outcome": "failed", "cause": _cause(ray, error), "reason": reason}
        finally:
            self._mailbox.forget.remote(token)
        if log is not None:
            (folder / "log.txt").write_text(log, encoding="utf-8")
            write_atomic(folder / "metrics.json", json.dumps(report, indent=1))
        return dict(report)

    def _ask(self, method: Any, *values: Any) -> Any:
        """Return the mailbox's answer. Raises ConnectionError where the cluster is gone, which is no trial's fault."""
        try:
            return self._ray.get(method.remote(*values))
        except self._ray.exceptions.RayError as error:
            raise ConnectionError(f"--launcher ray: the cluster is gone: {_one_line(error)}") from None


class Mailbox:
    """What trials have reported from folders that the driver cannot see; an actor beside the driver."""

    def __init__(self) -> None:
        self._reports: dict[str, Report] = {}
        self._attempts: dict[str, int] = {}
        self._news: set[str] = set()

    def expect(self, token: str, report: Report) -> None:
        """Wait for the trial with this token, which has got as far as this."""
        self._reports[token] = report

    def begin(self, token: str) -> tuple[int, Report]:
        """Return which attempt at the trial this is, and how far the one before has got."""
        self._attempts[token] = self._attempts.get(token, 0) + 1
        return self._attempts[token], self._reports.get(token, {})

    def put(self, token: str, report: Report) -> None:
        """Take a report; one of a trial that is over is dropped."""
        if token in self._reports:
            self._reports[token] = report
            self._news.add(token)

    def news(self, token: str) -> Report | None:
        """Return the latest report where there is one since the last call."""
        if token not in self._news:
            return None
        self._news.remove(token)
        return self._reports[token]

    def forget(self, token: str) -> None:
        """Wait no longer."""
        self._reports.pop(token, None)
        self._attempts.pop(token, None)
        self._news.discard(token)


def run_task(
    mailbox: Any, folder: str, token: str, config: dict[str, Any], timeout: float, arguments: tuple[str, ...]
) -> tuple[Report, str | None]:
    """Run the trial on the node where Ray has put this; the log comes back where the driver cannot read it."""
    import ray

    attempt, before = ray.get(mailbox.begin.remote(token))
    if attempt > RETRIES + 1:  # Ray's memory monitor would kill and start it again without end
        reason = f"lost by Ray after {attempt - 1} attempts"
        return {**before, "outcome": "failed", "cause": OUT_OF_MEMORY, "reason": reason}, None
    return run_here(
        Path(folder),
        token,
        config,
        timeout=timeout,
        command=(sys.executable, *arguments),
        before=before,
        tell=lambda report: mailbox.put.remote(token, report),
    )


def run_here(
    folder: Path,
    token: str,
    config: Mapping[str, Any],
    *,
    timeout: float,
    command: Sequence[str],
    before: Report,
    tell: Callable[[Report], None],
) -> tuple[Report, str | None]:
    """Run the trial in `folder` where it is the driver's, else in a scratch folder, going on after what is done."""
    if _is_drivers(folder, token):
        return run_trial(folder, config, timeout=timeout, watch=lambda _: None, command=command), None
    with tempfile.TemporaryDirectory(prefix="archsearch-") as name:
        scratch = Path(name)
        write_atomic(scratch / "metrics.json", json.dumps(before))
        known = dict(before)

        def watch(report: Report) -> None:
            if report and report != known:
                known.clear()
                known.update(report)
                tell(report)

        # a cost table is a file beside the driver; without it the trial measures for itself
        report = run_trial(scratch, {**config, "tables": {}}, timeout=timeout, watch=watch, command=command)
        log = scratch / "log.txt"
        text = log.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace") if log.exists() else ""
        if report.get("reason"):
            report["reason"] = report["reason"].replace(name, str(folder))
        return report, text


def resources_of_trial(nodes: Sequence[Mapping[str, float]], devices: int) -> dict[str, int]:
    """Return what a trial asks of a cluster whose nodes have these resources. Raises ConfigError where none has it."""
    kind = "GPU" if any(node.get("GPU", 0) for node in nodes) else "CPU"
    most = int(max((node.get(kind, 0) for node in nodes), default=0))
    if most < devices:
        raise ConfigError(f"--launcher ray: a trial needs {devices} {kind}s (study.devices) of one node; most: {most}")
    return {"num_gpus": devices, "num_cpus": 1} if kind == "GPU" else {"num_cpus": devices}


def _is_drivers(folder: Path, token: str) -> bool:
    try:
        return (folder / DRIVER).read_text(encoding="utf-8") == token
    except OSError:
        return False


def _cause(ray: Any, error: BaseException) -> str:
    """Return why Ray has lost a trial; it has tried often enough, so that this is not LOST, which is run again."""
    return OUT_OF_MEMORY if isinstance(error, ray.exceptions.OutOfMemoryError) else CRASH


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
