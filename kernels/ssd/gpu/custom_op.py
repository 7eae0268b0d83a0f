"""The state-space recurrence as an op of torch.library: opaque to torch.compile, with a registered gradient."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from archsearch.kernels.dispatch import full_precision
from archsearch.kernels.library import define_op
from archsearch.kernels.ssd.gpu.launch import run_backward, run_forward
from archsearch.kernels.strides import rows_side_by_side


def ssd_triton(
    x: Tensor, dt: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None = None,
    starts: Tensor | None = None, keep_state: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return what `ssd` does, which checks the inputs; `starts` `[T]` are the `document_starts` of packed ones.

    B and C are cast to x's dtype, the type of all products' operands, of y and of the states between chunks; decays,
    sums and the final state are float32. Two runs give the same bits.
    """
    x, b, c = (rows_side_by_side(part.to(x.dtype)) for part in (x, b, c))
    dt, log_decay = (part.float().contiguous() for part in (dt, log_decay))
    initial_state = None if initial_state is None else initial_state.float().contiguous()
    y, final = _forward(x, dt, log_decay, b, c, initial_state, starts, keep_state)
    return y, final


@define_op("ssd_forward")
def _forward(
    x: Tensor, dt: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None,
    starts: Tensor | None, keep_state: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    with full_precision(x):
        return run_forward(x, dt, log_decay, b, c, initial_state, starts, keep_state=keep_state)


@_forward.register_fake
def _(
    x: Tensor, dt: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None,
    starts: Tensor | None, keep_state: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, _, heads, head_dim = x.shape
    final = dt.new_empty(batch if keep_state else 0, heads, b.shape[3], head_dim)
    return x.new_empty(x.shape), final


@define_op("ssd_backward")
def _backward(
    x: Tensor, dt: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None,
    starts: Tensor | None, dy: Tensor, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    with full_precision(x):
        return run_backward(x, dt, log_decay, b, c, initial_state, starts, dy, dfinal)


@_backward.register_fake
def _(
    x: Tensor, dt: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None,
    starts: Tensor | None, dy: Tensor, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dx, ddt, ddecay, db, dc = (part.new_empty(part.shape) for part in (x, dt, log_decay, b, c))
    dinitial = dt.new_empty(0 if initial_state is None else len(x), x.shape[2], b.shape[3], x.shape[3])
    return dx, ddt, ddecay, db, dc, dinitial


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, dy: Tensor | None, dfinal: Tensor | None) -> tuple[Tensor | None, ...]:
    inputs = ctx.saved_tensors
    dy = inputs[0].new_zeros(inputs[0].shape) if dy is None else dy.contiguous()
    dfinal = None if dfinal is None or not dfinal.numel() else dfinal.contiguous()
    *gradients, dinitial = _backward(*inputs, dy, dfinal)
    return *gradients, None if inputs[5] is None else dinitial, None, None


_forward.register_autograd(_differentiate, setup_context=_save_for_backward)
