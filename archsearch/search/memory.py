"""How much memory this process has taken at most."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def peaks(before: Mapping[str, int]) -> dict[str, int]:
    """Return the peaks in bytes, or those of before where they were higher: `host`, and `gpu` once one is in use.

    `host` is this process's resident memory, that of ended data workers counted alone; `gpu` is what tensors took on
    the device that took most.
    """
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    used = (resource.getrusage(who).ru_maxrss * unit for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    found = {"host": max(used), **_gpu()}
    return {name: max(size, before.get(name, 0)) for name, size in {**before, **found}.items()}


def _gpu() -> dict[str, int]:
    torch = sys.modules.get("torch")  # a trial that has not come so far has taken none
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {"gpu": max(torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count()))}
