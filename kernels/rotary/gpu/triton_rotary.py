"""Turn pairs of channels by angles that grow with the position; the gradient is turned back.

A program owns BT steps of a row, computes their sines once and goes through the heads.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["T"])
def rotary_kernel(
    x, positions, frequencies, y, T, x_row, x_step,
    H: tl.constexpr, HALF: tl.constexpr, BH: tl.constexpr, BT: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    row = tl.cast(tl.program_id(1), tl.int64)
    steps = tl.program_id(0) * BT + tl.arange(0, BT)
    pairs = tl.arange(0, BH)
    mask = (steps < T)[:, None] & (pairs < HALF)[None, :]
    position = tl.load(positions + steps, mask=steps < T, other=0).to(tl.float32)
    angles = position[:, None] * tl.load(frequencies + pairs, mask=pairs < HALF, other=0.0)[None, :]
    sin, cos = tl.sin(angles), tl.cos(angles)
    if BACK:
        sin = -sin
    source = x + row * x_row + (tl.cast(steps, tl.int64) * x_step)[:, None] + pairs[None, :]
    target = y + ((row * T + steps) * (2 * H * HALF))[:, None] + pairs[None, :]
    for head in range(H):
        place = head * 2 * HALF
        first = tl.load(source + place, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(source + place + HALF, mask=mask, other=0.0).to(tl.float32)
        tl.store(target + place, (first * cos - second * sin).to(y.dtype.element_ty), mask=mask)
        tl.store(target + place + HALF, (second * cos + first * sin).to(y.dtype.element_ty), mask=mask)
