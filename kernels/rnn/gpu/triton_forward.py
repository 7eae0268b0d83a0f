"""Forward of the vector RNN: R heads of one sequence a program, STEPS of its steps a turn, with inputs read ahead."""

import triton
import triton.language as tl

from archsearch.kernels.m2rnn.gpu.triton_pieces import tanh
from archsearch.kernels.rnn.gpu.triton_pieces import place, read_rows, read_turn, times


@triton.jit(do_not_specialize=["x", "y", "T", "x_row", "x_step"])
def rnn_forward_kernel(
    x, weight, initial, cu_seqlens, y, final, T, x_row, x_step,
    N: tl.constexpr, NX: tl.constexpr, NW: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr,
    STEPS: tl.constexpr, FETCH: tl.constexpr, HAS_STATE: tl.constexpr, PACKED: tl.constexpr, FAST: tl.constexpr,
    RELOAD: tl.constexpr,
):  # fmt: skip
    GROUPS: tl.constexpr = (N + R - 1) // R
    sequence = tl.program_id(0) // GROUPS
    heads = (tl.program_id(0) % GROUPS) * R + tl.arange(0, R)[:, None]
    cols = tl.arange(0, BD)[None, :]
    mask = (heads < N) & (cols < D)
    row, begin, length = place(cu_seqlens, sequence, T, PACKED)
    weight += (heads // (N // NW)) * (D * D) + cols
    rows = read_rows(weight, mask, D, D, BD, RELOAD)
    x += row * x_row + begin * x_step + (heads // (N // NX)) * D + cols
    out = heads * D + cols
    y += (row * T + begin) * (N * D)
    state = tl.cast(sequence, tl.int64) * (N * D) + out
    h = tl.load(initial + state, mask=mask, other=0.0) if HAS_STATE else tl.zeros([R, BD], tl.float32)

    whole = length // STEPS * STEPS
    ahead = read_turn(x, x_step, mask, 0, whole, STEPS, FETCH)
    x += STEPS * x_step
    for t in range(0, whole, STEPS):
        now = ahead
        ahead = read_turn(x, x_step, mask, t + STEPS, whole, STEPS, FETCH)
        x += STEPS * x_step
        for u in tl.static_range(STEPS):
            h = tanh(times(h, rows, now[u].to(tl.float32), weight, mask, D, D, R, BD, RELOAD), FAST)
            tl.store(y + u * (N * D) + out, h.to(y.dtype.element_ty), mask=mask)
        y += STEPS * (N * D)
    x -= STEPS * x_step
    for _ in range(whole, length):
        x_t = tl.load(x, mask=mask, other=0.0).to(tl.float32)
        h = tanh(times(h, rows, x_t, weight, mask, D, D, R, BD, RELOAD), FAST)
        tl.store(y + out, h.to(y.dtype.element_ty), mask=mask)
        x += x_step
        y += N * D
    tl.store(final + state, h, mask=mask)
