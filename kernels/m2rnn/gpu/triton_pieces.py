"""Small pieces shared by the plain-Triton kernels."""

import triton
import triton.language as tl


@triton.jit
def tanh(x, FAST: tl.constexpr):
    """One special-function instruction (absolute error 5e-4 x) or float32 accuracy."""
    if FAST:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    a = tl.abs(x)
    s = x * x
    small = -5.70498872745e-3 * s + 2.06390887954e-2  # Cephes tanhf: 1 - exp(-2x) would cancel near 0
    small = small * s - 5.37397155531e-2
    small = small * s + 1.33314422036e-1
    small = small * s - 3.33332819422e-1
    e = tl.exp(-2.0 * a)
    large = (1.0 - e) / (1.0 + e)
    return tl.where(a < 0.625, x + x * s * small, tl.where(x < 0, -large, large))


@triton.jit
def product_in_slices(
    left, right, ROW: tl.constexpr, COLUMN: tl.constexpr, accumulator,
    V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return left @ right + accumulator, both read from memory 32 of the inner dimension at a time.

    `left` is [BK, BV] row by row; `right` [V, V] with strides ROW and COLUMN.
    """
    inner = tl.arange(0, 32)
    cols = tl.arange(0, BV)
    left_index = tl.arange(0, BK)[:, None] * BV + inner[None, :]
    for i in tl.range(0, BV, 32):
        a = tl.load(left + i + left_index)
        b_index = (i + inner)[:, None] * ROW + cols[None, :] * COLUMN
        b = tl.load(right + b_index, mask=(i + inner < V)[:, None] & (cols < V)[None, :], other=0.0)
        accumulator = tl.dot(a, b, acc=accumulator, input_precision=PRECISION)
    return accumulator


@triton.jit
def span(cu_seqlens, sequence, T, t_begin, t_len, C: tl.constexpr, VARLEN: tl.constexpr):
    """Return (first row in the packed tensors, first row in the segment's partial sums, steps, first checkpoint)."""
    if VARLEN:
        start = tl.load(cu_seqlens + sequence).to(tl.int64)
        length = (tl.load(cu_seqlens + sequence + 1).to(tl.int64) - start).to(tl.int32)
        return start, start, length, start // C + sequence
    first = tl.cast(sequence, tl.int64) * T + t_begin
    local = tl.cast(sequence, tl.int64) * t_len
    return first, local, t_len, tl.cast(sequence, tl.int64) * ((T + C - 1) // C) + t_begin // C
