"""What the processes of one training run tell each other between steps."""

from __future__ import annotations

from functools import cache

import torch
from torch import distributed


def sum_over_ranks(number: int) -> int:
    """Return the sum of the `number` of every rank. All ranks must call it, and wait for each other."""
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return number
    total = torch.tensor(number)
    distributed.all_reduce(total, group=_cpu_group())
    return int(total)


def any_rank(decision: bool) -> bool:
    """Return whether any rank says so. All ranks must call it, and wait for each other."""
    return sum_over_ranks(int(decision)) > 0


def leave() -> None:
    """Leave the group of processes: what is left of its threads when the interpreter ends aborts a finished run."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
        _cpu_group.cache_clear()


@cache
def _cpu_group() -> distributed.ProcessGroup:
    """Return a group of all ranks that needs no GPU: to ask a GPU would wait for everything that it has still to do."""
    group: distributed.ProcessGroup = distributed.new_group(backend="gloo")
    return group
