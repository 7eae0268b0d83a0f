"""End a process with the one that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading


def die_with_parent(*, alone: bool = False) -> None:
    """End this process and its group, at once, when the one that started it is gone (called in the child).

    Does nothing where a person has started it: there is no pipe from a parent then. `alone`: the group is another's.
    """
    if not stat.S_ISFIFO(os.fstat(0).st_mode) or not (alone or os.getpgrp() == os.getpid()):
        return

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):
                pass
        os.kill(os.getpid() if alone else 0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True, name="die-with-parent").start()
