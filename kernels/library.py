"""Kernels as ops of torch.library: opaque to torch.compile, with a fake and a registered gradient.

Defined by hand, not by `torch.library.custom_op`: that imports torch._dynamo at the first call (over a second), and its
wrappers cost the CPU time of several launches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]


class Op:
    """The op `archsearch::NAME`, which changes none of its arguments and returns fresh tensors."""

    def __init__(self, name: str, kernel: Function) -> None:
        self.name = f"archsearch::{name}"
        schema = torch.library.infer_schema(kernel, mutates_args=())
        torch.library.define(self.name, schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(self.name, "default", _Untraced(kernel))
        self.overload: Any = getattr(torch.ops.archsearch, name).default

    def __call__(self, *arguments: Any) -> Any:
        return self.overload(*arguments)

    def register_fake(self, fake: Function) -> Function:
        """Say what the results look like without computing them."""
        torch.library.register_fake(self.name, fake)
        return fake

    def register_autograd(self, backward: Function, *, setup_context: Function) -> None:
        """Say how to differentiate, as `torch.library.register_autograd` does."""
        torch.library.register_autograd(self.name, backward, setup_context=setup_context)


def define_op(name: str) -> Callable[[Function], Op]:
    """Make an op of the decorated function, whose annotations give the schema."""
    return lambda kernel: Op(name, kernel)


class _Untraced:
    """A kernel that torch.compile does not look into, once there is a torch.compile in the process."""

    def __init__(self, kernel: Function) -> None:
        self._kernel, self._hidden = kernel, False

    def __call__(self, *arguments: Any) -> Any:
        if not self._hidden and (disable := getattr(sys.modules.get("torch._dynamo"), "disable", None)):
            self._kernel, self._hidden = disable(self._kernel), True
        return self._kernel(*arguments)
