"""Backward of the vector GRU through time: from the last step, STEPS of them a turn, with what they need read ahead."""

import triton
import triton.language as tl

from archsearch.kernels.rnn.gpu.triton_pieces import clipped, place, read_rows, read_turn, times


@triton.jit
def gru_step_back(
    carried, dy_t, renewal_t, r_t, slope_t, f_slope_t, r_slope_t, rows, f_rows, r_rows, weight, f_weight, r_weight,
    mask, dx, df, dr, at, clip, D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, CLIP: tl.constexpr,
    RELOAD: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a step's inputs and return that of the state before."""
    total = dy_t.to(tl.float32) + clipped(carried, clip, CLIP)
    d = total * slope_t.to(tl.float32)
    through_reset = times(d, rows, tl.zeros([R, BD], tl.float32), weight, mask, 1, D, R, BD, RELOAD)
    d_f = total * f_slope_t.to(tl.float32)
    before = times(d_f, f_rows, total - total * renewal_t.to(tl.float32), f_weight, mask, 1, D, R, BD, RELOAD)
    d_r = through_reset * r_slope_t.to(tl.float32)
    tl.store(dx + at, d.to(dx.dtype.element_ty), mask=mask)
    tl.store(df + at, d_f.to(df.dtype.element_ty), mask=mask)
    tl.store(dr + at, d_r.to(dr.dtype.element_ty), mask=mask)
    before += r_t.to(tl.float32) * through_reset
    return times(d_r, r_rows, before, r_weight, mask, 1, D, R, BD, RELOAD)


@triton.jit(do_not_specialize=["renewal", "resets", "slopes", "f_slopes", "r_slopes", "dy", "dx", "df", "dr", "T"])
def gru_backward_kernel(
    weight, f_weight, r_weight, cu_seqlens, renewal, resets, slopes, f_slopes, r_slopes, dy, dfinal,
    dx, df, dr, dinitial, clip, T,
    N: tl.constexpr, NW: tl.constexpr, NFW: tl.constexpr, NRW: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, STEPS: tl.constexpr,
    FETCH: tl.constexpr, HAS_FINAL: tl.constexpr, PACKED: tl.constexpr, CLIP: tl.constexpr, RELOAD: tl.constexpr,
):  # fmt: skip
    """`dx`, `df` and `dr` are each head's own `[B, T, N, D]`; what `gru_gates_kernel` stored is read."""
    GROUPS: tl.constexpr = (N + R - 1) // R
    STEP: tl.constexpr = N * D
    sequence = tl.program_id(0) // GROUPS
    heads = (tl.program_id(0) % GROUPS) * R + tl.arange(0, R)[:, None]
    cols = tl.arange(0, BD)[None, :]
    mask = (heads < N) & (cols < D)
    row, begin, length = place(cu_seqlens, sequence, T, PACKED)
    weight += (heads // (N // NW)) * (D * D) + cols * D
    f_weight += (heads // (N // NFW)) * (D * D) + cols * D
    r_weight += (heads // (N // NRW)) * (D * D) + cols * D
    rows = read_rows(weight, mask, 1, D, BD, RELOAD)
    f_rows = read_rows(f_weight, mask, 1, D, BD, RELOAD)
    r_rows = read_rows(r_weight, mask, 1, D, BD, RELOAD)
    out = heads * D + cols
    state = tl.cast(sequence, tl.int64) * STEP + out
    carried = tl.load(dfinal + state, mask=mask, other=0.0) if HAS_FINAL else tl.zeros([R, BD], tl.float32)
    at = (row * T + begin + length - 1) * STEP + out

    whole = length // STEPS * STEPS
    for _ in range(whole, length):
        carried = gru_step_back(
            carried, tl.load(dy + at, mask=mask, other=0.0), tl.load(renewal + at, mask=mask, other=0.0),
            tl.load(resets + at, mask=mask, other=0.0), tl.load(slopes + at, mask=mask, other=0.0),
            tl.load(f_slopes + at, mask=mask, other=0.0), tl.load(r_slopes + at, mask=mask, other=0.0),
            rows, f_rows, r_rows, weight, f_weight, r_weight, mask, dx, df, dr, at, clip, D, R, BD, CLIP, RELOAD,
        )  # fmt: skip
        at -= STEP
    dy_ahead = read_turn(dy + at, -STEP, mask, 0, whole, STEPS, FETCH)
    renewal_ahead = read_turn(renewal + at, -STEP, mask, 0, whole, STEPS, FETCH)
    r_ahead = read_turn(resets + at, -STEP, mask, 0, whole, STEPS, FETCH)
    slope_ahead = read_turn(slopes + at, -STEP, mask, 0, whole, STEPS, FETCH)
    f_slope_ahead = read_turn(f_slopes + at, -STEP, mask, 0, whole, STEPS, FETCH)
    r_slope_ahead = read_turn(r_slopes + at, -STEP, mask, 0, whole, STEPS, FETCH)
    for t in range(0, whole, STEPS):
        dy_now, renewal_now, r_now = dy_ahead, renewal_ahead, r_ahead
        slope_now, f_slope_now, r_slope_now = slope_ahead, f_slope_ahead, r_slope_ahead
        later = at - STEPS * STEP
        dy_ahead = read_turn(dy + later, -STEP, mask, t + STEPS, whole, STEPS, FETCH)
        renewal_ahead = read_turn(renewal + later, -STEP, mask, t + STEPS, whole, STEPS, FETCH)
        r_ahead = read_turn(resets + later, -STEP, mask, t + STEPS, whole, STEPS, FETCH)
        slope_ahead = read_turn(slopes + later, -STEP, mask, t + STEPS, whole, STEPS, FETCH)
        f_slope_ahead = read_turn(f_slopes + later, -STEP, mask, t + STEPS, whole, STEPS, FETCH)
        r_slope_ahead = read_turn(r_slopes + later, -STEP, mask, t + STEPS, whole, STEPS, FETCH)
        for u in tl.static_range(STEPS):
            carried = gru_step_back(
                carried, dy_now[u], renewal_now[u], r_now[u], slope_now[u], f_slope_now[u], r_slope_now[u],
                rows, f_rows, r_rows, weight, f_weight, r_weight, mask, dx, df, dr, at - u * STEP, clip,
                D, R, BD, CLIP, RELOAD,
            )  # fmt: skip
        at -= STEPS * STEP
    tl.store(dinitial + state, carried, mask=mask)
