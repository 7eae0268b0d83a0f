"""How much memory a computation needs at once, told by its largest tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """Keep the number of elements of the largest result of any operation inside this context."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else [result]:
            self.elements = max(self.elements, part.numel() if isinstance(part, Tensor) else 0)
        return result
