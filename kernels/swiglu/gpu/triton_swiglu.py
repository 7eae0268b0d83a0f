"""`silu(gate) * up` in one pass over memory, forward and backward; gate and up, and their gradients, share rows."""

import triton
import triton.language as tl


@triton.jit
def swiglu_forward_kernel(gate_up, y, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.cast(tl.program_id(0), tl.int64)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < WIDTH
    gate = tl.load(gate_up + row * (2 * WIDTH) + channels, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * WIDTH) + WIDTH + channels, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + row * WIDTH + channels, (gate * tl.sigmoid(gate) * up).to(y.dtype.element_ty), mask=mask)


@triton.jit
def swiglu_backward_kernel(gate_up, dy, dgate_up, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.cast(tl.program_id(0), tl.int64)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < WIDTH
    gate = tl.load(gate_up + row * (2 * WIDTH) + channels, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * WIDTH) + WIDTH + channels, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(dy + row * WIDTH + channels, mask=mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    dgate = d * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
    tl.store(dgate_up + row * (2 * WIDTH) + channels, dgate.to(dgate_up.dtype.element_ty), mask=mask)
    tl.store(
        dgate_up + row * (2 * WIDTH) + WIDTH + channels, (d * gate * sigmoid).to(dgate_up.dtype.element_ty), mask=mask
    )
