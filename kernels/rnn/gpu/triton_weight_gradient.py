"""Gradient of a weight of a vector state: the sum of `(factor_t * h_{t-1})^T d_t` over a part of a row's steps."""

import triton
import triton.language as tl

from archsearch.kernels.rnn.gpu.triton_pieces import states_before


@triton.jit(do_not_specialize=["T"])
def weight_gradient_kernel(
    y, initial, cu_seqlens, documents, factor, d, parts, T,
    N: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, PART: tl.constexpr,
    HAS_STATE: tl.constexpr, PACKED: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    """`factor` and `d` `[B, T, N, D]`, `parts` `[B * parts of T, N, D, D]`."""
    n = tl.program_id(0) % N
    part = tl.program_id(0) // N
    in_row = (T + PART - 1) // PART
    b = part // in_row
    begin = (part % in_row) * PART
    cols = tl.arange(0, BD)
    total = tl.zeros([BD, BD], tl.float32)
    for i in range(begin, tl.minimum(begin + PART, T), BT):
        t = i + tl.arange(0, BT)
        h = states_before(y, initial, cu_seqlens, documents, b, t, n, T, N, D, BD, HAS_STATE, PACKED)
        inside = (t < T)[:, None] & (cols < D)[None, :]
        at = ((tl.cast(b, tl.int64) * T + t) * N + n)[:, None] * D + cols[None, :]
        if FACTOR:
            h *= tl.load(factor + at, mask=inside, other=0.0).to(tl.float32)
        d_t = tl.load(d + at, mask=inside, other=0.0).to(tl.float32)
        total = tl.dot(tl.trans(h), d_t, acc=total, input_precision="tf32x3")
    at = tl.cast(tl.program_id(0), tl.int64) * (D * D) + cols[:, None] * D + cols[None, :]
    tl.store(parts + at, total, mask=(cols < D)[:, None] & (cols < D)[None, :])
