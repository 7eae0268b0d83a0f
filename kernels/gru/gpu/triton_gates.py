"""What a GRU's gradient needs of each step, computed again from the stored states: all steps at once."""

import triton
import triton.language as tl

from archsearch.kernels.m2rnn.gpu.triton_pieces import tanh
from archsearch.kernels.rnn.gpu.triton_pieces import states_before


@triton.jit
def tile_of(x, row_stride, step_stride, head, b, t, T, D: tl.constexpr, BD: tl.constexpr):
    """Read the steps `t` of one head in float32."""
    cols = tl.arange(0, BD)
    at = tl.cast(b, tl.int64) * row_stride + t.to(tl.int64) * step_stride + head * D
    inside = (t < T)[:, None] & (cols < D)[None, :]
    return tl.load(x + at[:, None] + cols[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def product(h, weight, head, D: tl.constexpr, BD: tl.constexpr):
    i = tl.arange(0, BD)
    inside = (i < D)[:, None] & (i < D)[None, :]
    matrix = tl.load(weight + head * (D * D) + i[:, None] * D + i[None, :], mask=inside, other=0.0).to(tl.float32)
    return tl.dot(h, matrix, input_precision="tf32x3")


@triton.jit(do_not_specialize=["T", "x_row", "x_step", "f_row", "f_step", "r_row", "r_step"])
def gru_gates_kernel(
    x, forget, reset, weight, f_weight, r_weight, y, initial, cu_seqlens, documents,
    renewal, resets, slopes, f_slopes, r_slopes, T, x_row, x_step, f_row, f_step, r_row, r_step,
    N: tl.constexpr, NX: tl.constexpr, NF: tl.constexpr, NR: tl.constexpr,
    NW: tl.constexpr, NFW: tl.constexpr, NRW: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr,
    HAS_STATE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Store `[B, T, N, D]`: 1 - f, r, and the slopes dh/dx_t, dh/df_t and d(r h)/dr_t, in front of their functions.

    1 - f and not f: rounded to 16 bits, f near 1 would lose how long the state lasts.
    """
    n = tl.program_id(0) % N
    tiles = (T + BT - 1) // BT
    b = tl.program_id(0) // N // tiles
    t = (tl.program_id(0) // N % tiles) * BT + tl.arange(0, BT)
    h = states_before(y, initial, cu_seqlens, documents, b, t, n, T, N, D, BD, HAS_STATE, PACKED)
    x_t = tile_of(x, x_row, x_step, n // (N // NX), b, t, T, D, BD)
    f_t = tile_of(forget, f_row, f_step, n // (N // NF), b, t, T, D, BD)
    r_t = tile_of(reset, r_row, r_step, n // (N // NR), b, t, T, D, BD)
    r = tl.sigmoid(product(h, r_weight, n // (N // NRW), D, BD) + r_t)
    forget_sum = product(h, f_weight, n // (N // NFW), D, BD) + f_t
    f = tl.sigmoid(forget_sum)
    new = tl.sigmoid(-forget_sum)  # 1 - f without cancellation
    z = tanh(product(r * h, weight, n // (N // NW), D, BD) + x_t, False)

    cols = tl.arange(0, BD)
    inside = (t < T)[:, None] & (cols < D)[None, :]
    at = ((tl.cast(b, tl.int64) * T + t) * N + n)[:, None] * D + cols[None, :]
    tl.store(renewal + at, new.to(renewal.dtype.element_ty), mask=inside)
    tl.store(resets + at, r.to(resets.dtype.element_ty), mask=inside)
    tl.store(slopes + at, (new * (1.0 - z * z)).to(slopes.dtype.element_ty), mask=inside)
    tl.store(f_slopes + at, ((h - z) * f * new).to(f_slopes.dtype.element_ty), mask=inside)
    tl.store(r_slopes + at, (h * r * (1.0 - r)).to(r_slopes.dtype.element_ty), mask=inside)
