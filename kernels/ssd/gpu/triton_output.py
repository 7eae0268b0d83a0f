"""The outputs of a chunk: what its own steps wrote, plus what the state that entered it gives.

A program runs over several heads of one group, which share the products of C and B.
"""

import triton
import triton.language as tl

from archsearch.kernels.ssd.gpu.triton_pieces import decay, load_head, row_products, store_head


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "share", "x_row"])
def output_kernel(
    x, dt, b, c, total, from_start, carried, starts, y, x_row, T, chunks, all_chunks, share,
    X_STEP: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr, H: tl.constexpr, G: tl.constexpr, P: tl.constexpr,
    N: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, Q: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Compute y `[B, T, H, P]` of `share` heads of a chunk of Q steps.

    `b` and `c` are by chunk, their steps `B_ROW` and `C_ROW` elements apart. `carried` is C times the state that enters
    the chunk, `[G, all_chunks, Q, H / G P]`.
    """
    HG: tl.constexpr = H // G
    D: tl.constexpr = HG * P
    chunk = tl.cast(tl.program_id(0), tl.int64)
    shares = tl.num_programs(1) // G
    group = tl.program_id(1) // shares
    first_head = tl.program_id(1) % shares * share
    index = tl.arange(0, Q)
    sequence, first = chunk // chunks, chunk % chunks * Q
    there = index < (T - first).to(tl.int32)
    own = group * tl.cast(all_chunks, tl.int64) + chunk
    step, row = (sequence * T + first) * H + group * HG, chunk * (Q * H) + group * HG
    x += sequence * x_row + first * X_STEP + group * D
    y += step * P
    carried += own * (Q * D)
    cb = row_products(c + own * Q * C_ROW, b + own * Q * B_ROW, C_ROW, B_ROW, N, BN, Q)
    cb = tl.where(index[:, None] >= index[None, :], cb, 0.0)
    if PACKED:
        start = (tl.load(starts + first + index, mask=there, other=0) - first).to(tl.int32)
        cb = tl.where(index[None, :] >= start[:, None], cb, 0.0)
    for h in range(first_head, tl.minimum(first_head + share, HG)):
        own_x = load_head(x, index, X_STEP, h, there, P, BP)
        from_state = load_head(carried, index, D, h, there, P, BP)
        a = tl.load(total + row + index * H + h)
        entering = tl.load(from_start + row + index * H + h)
        own_dt = tl.load(dt + step + index * H + h, mask=there, other=0.0)
        weights = decay(a[:, None], a[None, :]) * cb * own_dt[None, :]
        out = tl.dot(weights.to(own_x.dtype), own_x, acc=entering[:, None] * from_state, input_precision="ieee")
        store_head(y, index, H * P, h, there, out, P, BP)
