"""Why a trial has ended without a result: its cause in one word, and what follows from it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

OUT_OF_MEMORY = "out_of_memory"
NOT_FINITE = "not_finite"
TIMEOUT = "timeout"
CRASH = "crash"
SIGNAL = "signal"
KILLED = "killed"
LOST = "lost"
DEVICE = "device"
DISK_FULL = "disk_full"

INFEASIBLE = frozenset({OUT_OF_MEMORY, NOT_FINITE, TIMEOUT})
"""What says that this shape cannot be trained at this batch, in this precision or in this time: samplers learn it."""

NOT_ITS_FAULT = frozenset({KILLED, LOST, DEVICE, DISK_FULL})
"""What would have happened to any candidate: killed from outside, worker or machine gone, GPU broken, disk full."""

DISK_FULL_STATUS = errno.ENOSPC
"""The exit status of a trial that could not even write why it ends."""

FULL = (errno.ENOSPC, errno.EDQUOT)
SENT = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
"""Signals that nobody sends to himself by mistake."""

MESSAGES = (
    (DISK_FULL, r"No space left on device|Disk quota exceeded|database or disk is full|PytorchStreamWriter failed"),
    (OUT_OF_MEMORY, r"out of memory|MemoryError|allocate memory|ALLOC_FAILED|out of resource"),
    (NOT_FINITE, r"(NotFinite|FloatingPoint)Error"),
    (KILLED, r"killed by signal: (Killed|Terminated)"),  # a data worker of torch
    (
        DEVICE,
        r"uncorrectable ECC|hardware stack error|fallen off the bus|NVLink error|system not yet initialized|"
        r"CUDA(-capable)? (driver error|device\(s\) is/are busy or unavailable|error: unknown error)|"
        r"no CUDA-capable device|driver shutting down|Unable to determine the device handle",
    ),
)
"""What a library or a driver says, by the cause; `Type: message`."""


class HeldUpError(OSError):
    """This worker cannot go on where it is; its trial is kept for the next one."""


def distrust(run: str, reason: str | None) -> HeldUpError:
    """Return why a worker stops whose GPU has failed a run as often as it may be tried."""
    return HeldUpError(f"{run}: {reason}; this worker trusts its GPU no longer and stops")


def cause_of(error: BaseException) -> str:
    """Return the cause that an exception, or one that it came from, tells of."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in FULL:
            return DISK_FULL
        if (cause := cause_in(f"{type(seen).__name__}: {seen}")) != CRASH:
            return cause
        seen = seen.__cause__ or seen.__context__
    return CRASH


def cause_in(text: str) -> str:
    """Return the cause that a line of a log tells of."""
    return next((cause for cause, message in MESSAGES if re.search(message, text)), CRASH)


def cause_of_end(status: int, log: Path, *, memory_ran_out: bool) -> tuple[str, str]:
    """Return cause and reason of a process that has ended without a word, by its exit status or minus its signal.

    `memory_ran_out` says that the kernel has killed for want of memory meanwhile.
    """
    if status < 0:
        name = signal.Signals(-status).name
        if name == "SIGKILL" and memory_ran_out:
            return OUT_OF_MEMORY, f"ended by SIGKILL: the kernel ran out of memory; see {log}"
        if name in SENT:
            return KILLED, f"ended by {name} from outside; see {log}"
        return SIGNAL, f"ended by {name}; see {log}"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    if status == DISK_FULL_STATUS:
        return DISK_FULL, f"the disk of {log.parent} is full"
    last = lines[-1] if lines else "nothing in its log"
    return cause_in(last), f"exit status {status}: {last}"


def is_disk_full(error: BaseException) -> bool:
    """Return whether an exception says that a disk, or one's share of it, is full; SQLite has words of its own."""
    return cause_of(error) == DISK_FULL


@contextlib.contextmanager
def unless_disk_full() -> Iterator[None]:
    """Do without what can be done without where the disk is full."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise


def count_memory_kills() -> int:
    """Return how often the kernel has killed a process for want of memory, here or at least on this machine (Linux)."""
    for path, name in _counters():
        with contextlib.suppress(OSError):
            if found := re.search(rf"^{name} (\d+)$", path.read_text(), re.MULTILINE):
                return int(found[1])
    return 0


def _counters() -> Iterator[tuple[Path, str]]:
    """Yield where kernels count: this control group in version 2, in version 1, the machine."""
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text().splitlines() if os.access(groups, os.R_OK) else []:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            yield Path(f"/sys/fs/cgroup{group}/memory.events"), "oom_kill"
        elif "memory" in controllers.split(","):
            yield Path(f"/sys/fs/cgroup/memory{group}/memory.oom_control"), "oom_kill"
    yield Path("/sys/fs/cgroup/memory.events"), "oom_kill"
    yield Path("/proc/vmstat"), "oom_kill"
