"""Forward of the vector GRU: R heads of one sequence a program, STEPS of its steps a turn, with inputs read ahead."""

import triton
import triton.language as tl

from archsearch.kernels.m2rnn.gpu.triton_pieces import tanh
from archsearch.kernels.rnn.gpu.triton_pieces import place, read_rows, read_turn, times

NOT_SPECIALIZED = ["x", "forget", "reset", "y", "T", "x_row", "x_step", "f_row", "f_step", "r_row", "r_step"]


@triton.jit
def reset_gate(before, FAST: tl.constexpr):
    """Return sigmoid(before), to 2.5e-4 where FAST; not for the forget gate, of which 1 - f matters too."""
    return 0.5 + 0.5 * tanh(0.5 * before, FAST) if FAST else tl.sigmoid(before)


@triton.jit
def gru_step(
    h, x_t, f_t, r_t, rows, f_rows, r_rows, weight, f_weight, r_weight, mask,
    D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, FAST: tl.constexpr, RELOAD: tl.constexpr,
):  # fmt: skip
    r = reset_gate(times(h, r_rows, r_t.to(tl.float32), r_weight, mask, D, D, R, BD, RELOAD), FAST)
    f = tl.sigmoid(times(h, f_rows, f_t.to(tl.float32), f_weight, mask, D, D, R, BD, RELOAD))
    z = tanh(times(r * h, rows, x_t.to(tl.float32), weight, mask, D, D, R, BD, RELOAD), FAST)
    return z + f * (h - z)


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def gru_forward_kernel(
    x, forget, reset, weight, f_weight, r_weight, initial, cu_seqlens, y, final,
    T, x_row, x_step, f_row, f_step, r_row, r_step,
    N: tl.constexpr, NX: tl.constexpr, NF: tl.constexpr, NR: tl.constexpr,
    NW: tl.constexpr, NFW: tl.constexpr, NRW: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, STEPS: tl.constexpr, FETCH: tl.constexpr,
    HAS_STATE: tl.constexpr, PACKED: tl.constexpr, FAST: tl.constexpr, RELOAD: tl.constexpr,
):  # fmt: skip
    GROUPS: tl.constexpr = (N + R - 1) // R
    sequence = tl.program_id(0) // GROUPS
    heads = (tl.program_id(0) % GROUPS) * R + tl.arange(0, R)[:, None]
    cols = tl.arange(0, BD)[None, :]
    mask = (heads < N) & (cols < D)
    row, begin, length = place(cu_seqlens, sequence, T, PACKED)
    weight += (heads // (N // NW)) * (D * D) + cols
    f_weight += (heads // (N // NFW)) * (D * D) + cols
    r_weight += (heads // (N // NRW)) * (D * D) + cols
    rows = read_rows(weight, mask, D, D, BD, RELOAD)
    f_rows = read_rows(f_weight, mask, D, D, BD, RELOAD)
    r_rows = read_rows(r_weight, mask, D, D, BD, RELOAD)
    x += row * x_row + begin * x_step + (heads // (N // NX)) * D + cols
    forget += row * f_row + begin * f_step + (heads // (N // NF)) * D + cols
    reset += row * r_row + begin * r_step + (heads // (N // NR)) * D + cols
    out = heads * D + cols
    y += (row * T + begin) * (N * D)
    state = tl.cast(sequence, tl.int64) * (N * D) + out
    h = tl.load(initial + state, mask=mask, other=0.0) if HAS_STATE else tl.zeros([R, BD], tl.float32)

    whole = length // STEPS * STEPS
    x_ahead = read_turn(x, x_step, mask, 0, whole, STEPS, FETCH)
    f_ahead = read_turn(forget, f_step, mask, 0, whole, STEPS, FETCH)
    r_ahead = read_turn(reset, r_step, mask, 0, whole, STEPS, FETCH)
    x += STEPS * x_step
    forget += STEPS * f_step
    reset += STEPS * r_step
    for t in range(0, whole, STEPS):
        x_now, f_now, r_now = x_ahead, f_ahead, r_ahead
        x_ahead = read_turn(x, x_step, mask, t + STEPS, whole, STEPS, FETCH)
        f_ahead = read_turn(forget, f_step, mask, t + STEPS, whole, STEPS, FETCH)
        r_ahead = read_turn(reset, r_step, mask, t + STEPS, whole, STEPS, FETCH)
        x += STEPS * x_step
        forget += STEPS * f_step
        reset += STEPS * r_step
        for u in tl.static_range(STEPS):
            h = gru_step(
                h, x_now[u], f_now[u], r_now[u], rows, f_rows, r_rows, weight, f_weight, r_weight, mask,
                D, R, BD, FAST, RELOAD,
            )  # fmt: skip
            tl.store(y + u * (N * D) + out, h.to(y.dtype.element_ty), mask=mask)
        y += STEPS * (N * D)
    x -= STEPS * x_step
    forget -= STEPS * f_step
    reset -= STEPS * r_step
    for _ in range(whole, length):
        x_t = tl.load(x, mask=mask, other=0.0)
        f_t = tl.load(forget, mask=mask, other=0.0)
        r_t = tl.load(reset, mask=mask, other=0.0)
        h = gru_step(
            h, x_t, f_t, r_t, rows, f_rows, r_rows, weight, f_weight, r_weight, mask, D, R, BD, FAST, RELOAD
        )  # fmt: skip
        tl.store(y + out, h.to(y.dtype.element_ty), mask=mask)
        x += x_step
        forget += f_step
        reset += r_step
        y += N * D
    tl.store(final + state, h, mask=mask)
