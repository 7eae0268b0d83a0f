"""Which ops need numbers from a tensor on the CPU: on a GPU, each of them waits until it has done all its work."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
READERS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.repeat_interleave, aten.bincount}


class ReadBack(TorchDispatchMode):
    """Note the ops in this context that read values to decide what to do, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = func.overloadpacket is aten.index and any(x is not None and x.dtype == torch.bool for x in args[1])
        if func.overloadpacket in READERS or masks:
            self.ops.append(str(func))
        return func(*args, **(kwargs or {}))
