"""The gradients of a chunk's x, dt, summed decays, and of its products of B and C.

A program runs over several heads of one group, which share those products. Tiles lie with the earlier step in rows, so
that no product is of a transposed sum.
"""

import triton
import triton.language as tl

from archsearch.kernels.ssd.gpu.triton_pieces import decay, load_head, row_products, store_head


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "share", "x_row"])
def gradient_kernel(
    x, dt, b, c, total, to_end, carried, starts, dy, dx, ddt, dtotal, dproducts,
    x_row, T, chunks, all_chunks, share,
    X_STEP: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr, H: tl.constexpr, G: tl.constexpr, P: tl.constexpr,
    N: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, Q: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Compute dx, ddt, the gradient of the summed decays, and that of B C^T, `[shares, G, all_chunks, Q, Q]`.

    `b` and `c` are as in `output_kernel`; `carried` is B times the gradient of the state that leaves the chunk,
    `[G, all_chunks, Q, H / G P]`. A term of y grows with the decays up to its step and shrinks with those up to its
    source: `<dy, y> - <dx, x>`, summed over later steps. Both are sums of the same products here, so that what cancels
    there does; from y and dx, which are rounded, it would not. `decay_gradient_kernel` adds the entering state's part.
    """
    HG: tl.constexpr = H // G
    D: tl.constexpr = HG * P
    chunk = tl.cast(tl.program_id(0), tl.int64)
    shares = tl.num_programs(1) // G
    group, part = tl.program_id(1) // shares, tl.program_id(1) % shares
    first_head = part * share
    index = tl.arange(0, Q)
    sequence, first = chunk // chunks, chunk % chunks * Q
    there = index < (T - first).to(tl.int32)
    own = group * tl.cast(all_chunks, tl.int64) + chunk
    step, row = (sequence * T + first) * H + group * HG, chunk * (Q * H) + group * HG
    x += sequence * x_row + first * X_STEP + group * D
    dy += step * P
    dx += step * P
    carried += own * (Q * D)
    kept = index[:, None] <= index[None, :]
    if PACKED:
        start = (tl.load(starts + first + index, mask=there, other=0) - first).to(tl.int32)
        kept = kept & (index[:, None] >= start[None, :])
    bc = row_products(b + own * Q * B_ROW, c + own * Q * C_ROW, B_ROW, C_ROW, N, BN, Q)
    bc = tl.where(kept, bc, 0.0)
    dbc = tl.zeros([Q, Q], tl.float32)
    for h in range(first_head, tl.minimum(first_head + share, HG)):
        own_x = load_head(x, index, X_STEP, h, there, P, BP)
        own_dy = load_head(dy, index, H * P, h, there, P, BP)
        leaving = tl.load(to_end + row + index * H + h)
        du = leaving[:, None] * load_head(carried, index, D, h, there, P, BP)
        own_ddt = tl.sum(own_x * du, axis=1)
        a = tl.load(total + row + index * H + h)
        own_dt = tl.load(dt + step + index * H + h, mask=there, other=0.0)
        factor = decay(a[None, :], a[:, None])
        du = tl.dot((factor * bc).to(own_dy.dtype), own_dy, acc=du, input_precision="ieee")
        store_head(dx, index, H * P, h, there, du * own_dt[:, None], P, BP)
        dfactor = tl.dot(own_x, tl.trans(own_dy), input_precision="ieee") * factor
        dbc += dfactor * own_dt[:, None]
        dfactor *= bc
        own_ddt += tl.sum(dfactor, axis=1)
        tl.store(ddt + step + index * H + h, own_ddt, mask=there)
        gained = tl.sum(dfactor * own_dt[:, None], axis=0)
        tl.store(dtotal + row + index * H + h, gained - own_dt * own_ddt)
    place = (part * G * tl.cast(all_chunks, tl.int64) + own) * (Q * Q)
    tl.store(dproducts + place + index[:, None] * Q + index[None, :], tl.where(kept, dbc, 0.0))
