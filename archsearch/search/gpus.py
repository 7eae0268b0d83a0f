"""Which of a machine's GPUs each worker's trials get."""

from __future__ import annotations

import os
from collections.abc import Sequence

from archsearch.config import ConfigError

VARIABLE = "CUDA_VISIBLE_DEVICES"


def assign(visible: Sequence[str], workers: int, devices: int) -> list[tuple[str, ...]]:
    """Return the GPUs of each worker, `devices` of its own; none at all where the machine has none.

    Raises ConfigError where it has some, but too few.
    """
    needed = workers * devices
    if 0 < len(visible) < needed:
        each = f"{workers} x {devices} GPU{'s' if devices > 1 else ''} (study.devices) = {needed}"
        raise ConfigError(
            f"--workers: needs {each}, and there {'is' if len(visible) == 1 else 'are'} {len(visible)} "
            f"({VARIABLE}={','.join(visible)}); an empty {VARIABLE} trains on the CPU"
        )
    return [tuple(visible[i * devices : (i + 1) * devices]) if visible else () for i in range(workers)]


def visible() -> list[str]:
    """Return the GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES knows them by."""
    import torch

    count = torch.cuda.device_count()  # asks the driver without starting CUDA here
    named = os.environ.get(VARIABLE)
    names = [str(i) for i in range(count)] if named is None else [name.strip() for name in named.split(",")]
    return names[:count]


def use(gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment variables that confine a process and its children to these GPUs."""
    return {VARIABLE: ",".join(gpus)} if gpus else {}
