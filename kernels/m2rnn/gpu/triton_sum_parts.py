"""Sum the partial sums that the row-block kernels leave, over row blocks and shared heads, in one pass."""

import triton
import triton.language as tl


@triton.jit
def _sum_one(
    parts, out, row, rows_total, block,
    T, t_begin, t_len, SHARED_ROWS: tl.constexpr,
    P: tl.constexpr, G: tl.constexpr, NX: tl.constexpr, W: tl.constexpr, WP: tl.constexpr,
    NB: tl.constexpr, LANE_ORDER: tl.constexpr,
):  # fmt: skip
    """Sum parts [P, rows, NX * G, WP] to out [rows, NX, W] for NB of the NX heads of one row."""
    GP: tl.constexpr = triton.next_power_of_2(G)
    WB: tl.constexpr = triton.next_power_of_2(WP)
    heads = block * NB + tl.arange(0, NB)
    group = tl.arange(0, GP)
    column = tl.arange(0, WB)
    source = heads[:, None, None] * G + group[None, :, None]
    mask = ((heads < NX)[:, None, None] & (group < G)[None, :, None]) & (column < WP)[None, None, :]
    pointers = parts + tl.cast(row, tl.int64) * (NX * G * WP) + source * WP + column[None, None, :]
    total = tl.zeros((NB, GP, WB), tl.float32)
    for p in tl.static_range(P):
        skipped = tl.cast(rows_total, tl.int64) * (p * NX * G * WP)
        total += tl.load(pointers + skipped, mask=mask, other=0.0).to(tl.float32)
    total = tl.sum(total, axis=1)
    if SHARED_ROWS:
        out_row = tl.cast(row, tl.int64)
    else:
        out_row = tl.cast(row // t_len, tl.int64) * T + t_begin + row % t_len
    if LANE_ORDER:  # the tensor core's lanes hold rows L and L + 8 side by side
        target = column // 16 * 16 + column % 2 * 8 + column // 2 % 8
    else:
        target = column
    out_pointers = out + (out_row * NX + heads[:, None]) * W + target[None, :]
    tl.store(out_pointers, total.to(out.dtype.element_ty), mask=(heads < NX)[:, None] & (target < W)[None, :])


@triton.jit(do_not_specialize=["rows_total", "T", "t_begin", "t_len"])
def sum_output_kernel(
    parts, y, rows_total, T, t_begin, t_len, SHARED_ROWS: tl.constexpr,
    P: tl.constexpr, N: tl.constexpr, V: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    _sum_one(parts, y, tl.program_id(0), rows_total, tl.program_id(1), T, t_begin, t_len, SHARED_ROWS,
             P, 1, N, V, V, NB, False)  # fmt: skip


@triton.jit(do_not_specialize=["rows_total", "T", "t_begin", "t_len"])
def sum_gradients_kernel(
    dq_heads, dk_heads, dv_parts, df_parts, dq, dk, dv, df, rows_total, T, t_begin, t_len,
    SHARED_ROWS: tl.constexpr, P: tl.constexpr, N: tl.constexpr,
    NQ: tl.constexpr, NK: tl.constexpr, NV: tl.constexpr, NF: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, V: tl.constexpr,
    NBQ: tl.constexpr, NBK: tl.constexpr, NBV: tl.constexpr, NBF: tl.constexpr,
    LANE_ORDER: tl.constexpr,
):  # fmt: skip
    GQ: tl.constexpr = (NQ + NBQ - 1) // NBQ
    GK: tl.constexpr = (NK + NBK - 1) // NBK
    GV: tl.constexpr = (NV + NBV - 1) // NBV
    row = tl.program_id(0)
    job = tl.program_id(1)
    if job < GQ:
        _sum_one(dq_heads, dq, row, rows_total, job, T, t_begin, t_len, SHARED_ROWS,
                 1, N // NQ, NQ, K, KP, NBQ, LANE_ORDER)  # fmt: skip
    elif job < GQ + GK:
        _sum_one(dk_heads, dk, row, rows_total, job - GQ, T, t_begin, t_len, SHARED_ROWS,
                 1, N // NK, NK, K, KP, NBK, LANE_ORDER)  # fmt: skip
    elif job < GQ + GK + GV:
        _sum_one(dv_parts, dv, row, rows_total, job - GQ - GK, T, t_begin, t_len, SHARED_ROWS,
                 P, N // NV, NV, V, V, NBV, False)  # fmt: skip
    else:
        _sum_one(df_parts, df, row, rows_total, job - GQ - GK - GV, T, t_begin, t_len, SHARED_ROWS,
                 P, N // NF, NF, 1, 1, NBF, False)  # fmt: skip
