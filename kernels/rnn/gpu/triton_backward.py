"""Backward of the vector RNN through time: from the last step, STEPS of them a turn, with what they need read ahead.

W's gradient is a sum over steps that need not wait for one another: `triton_weight_gradient.py` makes it afterwards.
"""

import triton
import triton.language as tl

from archsearch.kernels.rnn.gpu.triton_pieces import clipped, place, read_rows, read_turn, times


@triton.jit
def slope(y_t):
    """Return the slope of tanh where it gave y_t."""
    h = y_t.to(tl.float32)
    return 1.0 - h * h


@triton.jit(do_not_specialize=["y", "dy", "dx", "T"])
def rnn_backward_kernel(
    weight, cu_seqlens, y, dy, dfinal, dx, dinitial, clip, T,
    N: tl.constexpr, NW: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, STEPS: tl.constexpr,
    FETCH: tl.constexpr,
    HAS_FINAL: tl.constexpr, PACKED: tl.constexpr, CLIP: tl.constexpr, RELOAD: tl.constexpr,
):  # fmt: skip
    """`dx` is each head's own `[B, T, N, D]`."""
    GROUPS: tl.constexpr = (N + R - 1) // R
    STEP: tl.constexpr = N * D
    sequence = tl.program_id(0) // GROUPS
    heads = (tl.program_id(0) % GROUPS) * R + tl.arange(0, R)[:, None]
    cols = tl.arange(0, BD)[None, :]
    mask = (heads < N) & (cols < D)
    row, begin, length = place(cu_seqlens, sequence, T, PACKED)
    weight += (heads // (N // NW)) * (D * D) + cols * D
    columns = read_rows(weight, mask, 1, D, BD, RELOAD)
    out = heads * D + cols
    state = tl.cast(sequence, tl.int64) * STEP + out
    carried = tl.load(dfinal + state, mask=mask, other=0.0) if HAS_FINAL else tl.zeros([R, BD], tl.float32)
    last = (row * T + begin + length - 1) * STEP + out
    y += last
    dy += last
    dx += last

    whole = length // STEPS * STEPS
    for _ in range(whole, length):
        slope_t = slope(tl.load(y, mask=mask, other=0.0))
        from_above = tl.load(dy, mask=mask, other=0.0).to(tl.float32)
        d = clipped(carried, clip, CLIP) * slope_t + from_above * slope_t
        tl.store(dx, d.to(dx.dtype.element_ty), mask=mask)
        carried = times(d, columns, tl.zeros([R, BD], tl.float32), weight, mask, 1, D, R, BD, RELOAD)
        y -= STEP
        dy -= STEP
        dx -= STEP
    y_ahead = read_turn(y, -STEP, mask, 0, whole, STEPS, FETCH)
    dy_ahead = read_turn(dy, -STEP, mask, 0, whole, STEPS, FETCH)
    y -= STEPS * STEP
    dy -= STEPS * STEP
    for t in range(0, whole, STEPS):
        y_now, dy_now = y_ahead, dy_ahead
        y_ahead = read_turn(y, -STEP, mask, t + STEPS, whole, STEPS, FETCH)
        dy_ahead = read_turn(dy, -STEP, mask, t + STEPS, whole, STEPS, FETCH)
        y -= STEPS * STEP
        dy -= STEPS * STEP
        for u in tl.static_range(STEPS):
            slope_t = slope(y_now[u])
            d = clipped(carried, clip, CLIP) * slope_t + dy_now[u].to(tl.float32) * slope_t
            tl.store(dx - u * STEP, d.to(dx.dtype.element_ty), mask=mask)
            carried = times(d, columns, tl.zeros([R, BD], tl.float32), weight, mask, 1, D, R, BD, RELOAD)
        dx -= STEPS * STEP
    tl.store(dinitial + state, carried, mask=mask)
