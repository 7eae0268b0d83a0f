"""Backward of M²RNN for bf16 and V <= 16: 16 time steps at a time on tensor-core tiles (Gluon).

From the last chunk to the first: the 16 states of a chunk are recomputed from its checkpoint into shared memory (bf16),
then it is swept backwards; Z is recomputed from that very operand. The sweep of one chunk and the recomputation of the
chunk before run step by step beside each other, since one warp alone waits most of the time. Sums over rows wait for 4
steps, then are products. Loops of 8 steps keep the code (23 KiB) below the size at which fetching it is the limit.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from archsearch.kernels.m2rnn.gpu.gluon_pieces import (
    BY_STEP,
    LANES,
    LEFT,
    MMA,
    RIGHT,
    SHARED,
    STEP_ROWS,
    TILE,
    add_outer,
    advance,
    clip,
    from_lanes,
    hide,
    keep_column,
    left_half,
    right_half,
    span,
    tanh,
    widen,
)  # fmt: skip


@gluon.jit
def _of_group(f, g):
    """Return entries 8 * g to 8 * g + 7 of f [16], one in each quarter warp."""
    g = g + gl.zeros([16], gl.int32, gl.SliceLayout(1, MMA))
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $4, 0; selp.b32 $0, $3, $2, p; selp.b32 $1, $3, $2, p; }",
        "=&r,=&r,r,r,r,r", [f, g], dtype=gl.float32, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def _spread(f, i: gl.constexpr):
    """Give entry i of a group to all lanes, as [16, 1]."""
    lane = gl.full([16], 4 * i, gl.int32, gl.SliceLayout(1, MMA))
    x = gl.inline_asm_elementwise(
        "{ shfl.sync.idx.b32 $0, $2, $4, 31, 0xffffffff; mov.b32 $1, $0; }",
        "=&r,=&r,r,r,r,r", [f, lane], dtype=gl.float32, is_pure=True, pack=2,
    )  # fmt: skip
    return gl.expand_dims(x, 1)


@gluon.jit
def _columns(tile, g, zeros32):
    """Load steps 8 * g to 8 * g + 7 of a tile [16 steps, 16], transposed, as a right operand."""
    first = tile.slice(0, 8, dim=0).permute([1, 0]).load(RIGHT)
    second = tile.slice(8, 8, dim=0).permute([1, 0]).load(RIGHT)
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $3, 0; selp.b32 $0, $2, $1, p; }",
        "=r,r,r,r,r", [first, second, zeros32 + g], dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def _load_chunk(
    k_base, q_base, v_base, u_base, f_base, c_base, k_lanes, q_lanes, v_lanes, u_lanes, f_lanes, lanes,
    in_k, in_v, t, length,
    N: gl.constexpr, NQ: gl.constexpr, NK: gl.constexpr, NV: gl.constexpr, NF: gl.constexpr,
    K: gl.constexpr, V: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """Return the tiles of 16 steps and the checkpoint before them; zeros (and f = 1) past the end and where t < 0.

    A WHOLE chunk has its 16 steps, or none.
    """
    P: gl.constexpr = (K + 15) // 16
    tile_t = gl.arange(0, 16, layout=gl.SliceLayout(1, TILE))[:, None]
    at = gl.cast(gl.maximum(t, 0), gl.int64)
    some = t >= 0
    inside = some if WHOLE else some & (tile_t < length - t)
    inside_f = some if WHOLE else some & (gl.arange(0, 16, layout=gl.SliceLayout(1, MMA)) < length - t)
    k = gl.load(k_base + at * (NK * K) + k_lanes, mask=inside & in_k, other=0.0)
    q = gl.load(q_base + at * (NQ * K) + q_lanes, mask=inside & in_k, other=0.0)
    v = gl.load(v_base + at * (NV * V) + v_lanes, mask=inside & in_v, other=0.0)
    u = gl.load(u_base + at * (N * V) + u_lanes, mask=inside & in_v, other=0.0)
    f = gl.load(f_base + at * NF + f_lanes, mask=(f_lanes >= 0) & inside_f, other=1.0)
    h = gl.load(c_base + at * (N * P * 16) + lanes, mask=(lanes >= 0) & some, other=0.0)
    return k, q, v, u, f, h


@gluon.jit
def _store_step_rows(x, base, at, length, STRIDE: gl.constexpr):
    """Store [16 rows, 8 steps] of the steps from `at`, rows L and L + 8 side by side (32 bytes a step)."""
    x = x.to(gl.bfloat16).reshape([2, 8, 8]).permute([2, 1, 0]).reshape([8, 16])
    x = gl.convert_layout(x, STEP_ROWS, assert_trivial=True)
    t = gl.arange(0, 8, layout=gl.SliceLayout(1, STEP_ROWS))[:, None]
    row = gl.arange(0, 16, layout=gl.SliceLayout(0, STEP_ROWS))[None, :]
    gl.store(base + (at + t) * STRIDE + row, x, mask=(at >= 0) & (t < length - at) & (row < 16))


@gluon.jit(do_not_specialize=["T", "t_begin", "t_len", "rows_total"])
def backward_kernel(
    q, k, v, w, f, checkpoints, cu_seqlens, dy, carry, dq_heads, dk_heads, dv_parts, df_parts, dw_parts,
    bound, T, t_begin, t_len, rows_total,
    N: gl.constexpr, NQ: gl.constexpr, NK: gl.constexpr, NV: gl.constexpr, NF: gl.constexpr, NW: gl.constexpr,
    K: gl.constexpr, V: gl.constexpr, CLIP: gl.constexpr, VARLEN: gl.constexpr,
):  # fmt: skip
    sequence = gl.program_id(0) // N
    n = gl.program_id(0) % N
    block = gl.program_id(1)
    first, local, length, chunk = span(cu_seqlens, sequence, T, t_begin, t_len, VARLEN)
    P: gl.constexpr = (K + 15) // 16

    b_rows = gl.arange(0, 16, layout=gl.SliceLayout(1, RIGHT))[:, None]
    b_cols = gl.arange(0, 16, layout=gl.SliceLayout(0, RIGHT))[None, :]
    w_mask = (b_rows < V) & (b_cols < V)
    w_base = w + (n // (N // NW)) * V * V
    w_tile = gl.load(w_base + b_rows * V + b_cols, mask=w_mask, other=0.0)
    wt_tile = gl.load(w_base + b_cols * V + b_rows, mask=w_mask, other=0.0)
    s_cols = gl.arange(0, 8, layout=gl.SliceLayout(0, RIGHT))[None, :]
    zeros32 = gl.zeros([16, 8], gl.int32, RIGHT)
    zeros = gl.zeros([16, 16], gl.float32, MMA)

    chunks = (length + 15) // 16
    tile_t = gl.arange(0, 16, layout=gl.SliceLayout(1, TILE))[:, None]
    tile_c = gl.arange(0, 16, layout=gl.SliceLayout(0, TILE))[None, :]
    tile_f = gl.arange(0, 16, layout=gl.SliceLayout(1, MMA))
    lanes = gl.arange(0, 256, layout=LANES)
    in_k = tile_c >= 0 if K % 16 == 0 else block * 16 + tile_c < K
    in_v = tile_c >= 0 if V == 16 else tile_c < V
    # a pointer of the program (uniform registers) plus 32-bit offsets of the lanes: 64-bit lane pointers spill
    q_base = q + (first * NQ + n // (N // NQ)) * K + block * 16
    k_base = k + (first * NK + n // (N // NK)) * K + block * 16
    v_base = v + (first * NV + n // (N // NV)) * V
    u_base = dy + (first * N + n) * V
    f_base = f + first * NF + n // (N // NF)
    c_base = checkpoints + ((chunk * N + n) * P + block) * 256
    q_lanes = tile_t * (NQ * K) + tile_c
    k_lanes = tile_t * (NK * K) + tile_c
    v_lanes = tile_t * (NV * V) + tile_c
    u_lanes = tile_t * (N * V) + tile_c
    f_lanes = tile_f * NF
    k_shared = gl.allocate_shared_memory(gl.bfloat16, [2, 16, 16], SHARED)
    q_shared = gl.allocate_shared_memory(gl.bfloat16, [2, 16, 16], SHARED)
    v_shared = gl.allocate_shared_memory(gl.bfloat16, [2, 16, 16], SHARED)
    u_shared = gl.allocate_shared_memory(gl.bfloat16, [2, 16, 16], SHARED)
    h_shared = ()
    d_shared = ()
    for _ in gl.static_range(8):
        h_shared = h_shared + (gl.allocate_shared_memory(gl.bfloat16, [4, 16, 16], SHARED),)
    for _ in gl.static_range(4):
        d_shared = d_shared + (gl.allocate_shared_memory(gl.bfloat16, [16, 16], SHARED),)

    rows = gl.arange(0, 16, layout=gl.SliceLayout(1, MMA))[:, None]
    cols = gl.arange(0, 16, layout=gl.SliceLayout(0, MMA))[None, :]
    steps8 = cols % 8
    steps = gl.arange(0, 8, layout=gl.SliceLayout(0, MMA))[None, :]
    e_steps = gl.arange(0, 8, layout=gl.SliceLayout(0, BY_STEP))
    in_state = rows + cols >= 0 if K % 16 == 0 and V == 16 else (block * 16 + rows < K) & (cols < V)
    program = gl.cast(gl.program_id(0), gl.int64)
    dh = gl.load(carry + program * (K * V) + (block * 16 + rows) * V + cols, mask=in_state, other=0.0)
    dw_at = (program * P + block) * (V * V)
    dw = gl.load(dw_parts + dw_at + cols * V + rows, mask=(rows < V) & (cols < V), other=0.0)  # transposed: D^T H
    wide_block = gl.cast(block, gl.int64)
    dq_base = dq_heads + (local * N + n) * (P * 16) + block * 16
    dk_base = dk_heads + (local * N + n) * (P * 16) + block * 16
    dv_base = dv_parts + ((wide_block * rows_total + local) * N + n) * V
    df_base = df_parts + (wide_block * rows_total + local) * N + n

    last = (chunks - 1) * 16  # -16 where there is no step
    k_next, q_next, v_next, u_next, f_fresh, h_next = _load_chunk(
        k_base, q_base, v_base, u_base, f_base, c_base, k_lanes, q_lanes, v_lanes, u_lanes, f_lanes, lanes,
        in_k, in_v, last, length, N, NQ, NK, NV, NF, K, V, False,
    )  # fmt: skip
    k_shared.index(0).store(k_next)
    q_shared.index(0).store(q_next)
    v_shared.index(0).store(v_next)
    u_shared.index(0).store(u_next)
    h = widen(from_lanes(h_next))
    low = h.to(gl.bfloat16)
    for g in range(2):
        k_half = left_half(k_shared.index(0), g)
        v_half = right_half(v_shared.index(0), g)
        u_columns = _columns(u_shared.index(0), g, zeros32)
        f_group = _of_group(f_fresh, g)
        dq = gl.zeros([16, 8], gl.float32, MMA)
        for i in gl.static_range(8):
            h_shared[i].index(g).store(low)
            h = advance(h, low, _spread(f_group, i), k_half, v_half, w_tile, zeros, steps8, i)
            low = h.to(gl.bfloat16)
            dq = mma_v2(
                gl.convert_layout(low, LEFT, assert_trivial=True), keep_column(u_columns, zeros32, s_cols, i), dq
            )
        _store_step_rows(dq, dq_base, last + g * 8, length, N * P * 16)
    k_next, q_next, v_next, u_next, f_next, h_next = _load_chunk(
        k_base, q_base, v_base, u_base, f_base, c_base, k_lanes, q_lanes, v_lanes, u_lanes, f_lanes, lanes,
        in_k, in_v, last - 16, length, N, NQ, NK, NV, NF, K, V, True,
    )  # fmt: skip
    for index in range(chunks):  # sweep chunk t, recompute the one before: two chains that do not wait for each other
        t = last - index * 16
        old = index % 2
        fresh = 1 - old
        k_shared.index(fresh).store(k_next)
        q_shared.index(fresh).store(q_next)
        v_shared.index(fresh).store(v_next)
        u_shared.index(fresh).store(u_next)
        f_old = f_fresh
        f_fresh = f_next
        h = widen(from_lanes(h_next))
        low = h.to(gl.bfloat16)
        k_next, q_next, v_next, u_next, f_next, h_next = _load_chunk(
            k_base, q_base, v_base, u_base, f_base, c_base, k_lanes, q_lanes, v_lanes, u_lanes, f_lanes, lanes,
            in_k, in_v, t - 32, length, N, NQ, NK, NV, NF, K, V, True,
        )  # fmt: skip
        for g in range(2):
            back = 1 - g
            k_half = left_half(k_shared.index(fresh), g)
            v_half = right_half(v_shared.index(fresh), g)
            u_columns = _columns(u_shared.index(fresh), g, zeros32)
            f_group = _of_group(f_fresh, g)
            dq = gl.zeros([16, 8], gl.float32, MMA)
            k_half_old = left_half(k_shared.index(old), back)
            q_half = left_half(q_shared.index(old), back)
            v_half_old = right_half(v_shared.index(old), back)
            u_half = right_half(u_shared.index(old), back)
            v_columns = _columns(v_shared.index(old), back, zeros32)
            k_columns = _columns(k_shared.index(old), back, zeros32)
            f_group_old = _of_group(f_old, back)
            dk = gl.zeros([16, 8], gl.float32, MMA)
            dv = gl.zeros([16, 8], gl.float32, MMA)
            e_all = ()
            for i in gl.static_range(7, -1, -1):
                # the sweep's step i
                h_left = h_shared[i].index(old * 2 + back).load(LEFT)
                f_t = _spread(f_group_old, i)
                x = add_outer(k_half_old, v_half_old, zeros, steps8, i)
                z = tanh(mma_v2(h_left, w_tile, x))
                # the recomputation's step 7 - i
                h_shared[7 - i].index(fresh * 2 + g).store(low)
                h = advance(h, low, _spread(f_group, 7 - i), k_half, v_half, w_tile, zeros, steps8, 7 - i)
                low = h.to(gl.bfloat16)
                dq = mma_v2(
                    gl.convert_layout(low, LEFT, assert_trivial=True),
                    keep_column(u_columns, zeros32, s_cols, 7 - i),
                    dq,
                )
                if CLIP:
                    dh = clip(dh, bound + zeros)
                r = add_outer(q_half, u_half, dh, steps8, i)
                e = r * (widen(gl.convert_layout(h_left, MMA, assert_trivial=True)) - z)
                e = e.reshape([2, 8, 2, 4, 2]).permute([1, 3, 0, 2, 4]).reshape([32, 8])
                e_all = e_all + (gl.sum(e, axis=1),)
                fr = f_t * r
                d_low = ((r - fr) * (1.0 - z * z)).to(gl.bfloat16)
                d_shared[i % 4].store(d_low)
                d_left = gl.convert_layout(d_low, LEFT, assert_trivial=True)
                dh = mma_v2(d_left, wt_tile, fr)
                dk = mma_v2(d_left, keep_column(v_columns, zeros32, s_cols, i), dk)
                if i % 4 == 0:
                    for m in gl.static_range(4):
                        dt_left = d_shared[m].permute([1, 0]).load(LEFT)
                        dw = mma_v2(dt_left, h_shared[i + m].index(old * 2 + back).load(RIGHT), dw)
                        dv = mma_v2(dt_left, keep_column(k_columns, zeros32, s_cols, i + m), dv)
            at = t + back * 8
            left = length - at
            _store_step_rows(dq, dq_base, t - 16 + g * 8, length, N * P * 16)
            _store_step_rows(dk, dk_base, at, length, N * P * 16)
            e01 = gl.join(gl.join(e_all[7], e_all[3]), gl.join(e_all[5], e_all[1]))
            e23 = gl.join(gl.join(e_all[6], e_all[2]), gl.join(e_all[4], e_all[0]))
            df = gl.sum(gl.convert_layout(gl.join(e01, e23).reshape([32, 8]), BY_STEP), axis=0)
            gl.store(df_base + (at + e_steps) * N, df, mask=e_steps < left)
            dv_pointers = dv_base + at * (N * V) + rows + steps * (N * V)
            gl.store(dv_pointers, dv.to(dv_parts.dtype.element_ty), mask=(rows < V) & (steps < left))
    rows = hide(rows)  # or the addresses stay in registers, spilled, from the loads at the top
    cols = hide(cols)
    program = gl.cast(hide(rows * 0 + gl.program_id(0)), gl.int64)
    block = hide(rows * 0 + gl.program_id(1))
    in_state = rows + cols >= 0 if K % 16 == 0 and V == 16 else (block * 16 + rows < K) & (cols < V)
    gl.store(carry + program * (K * V) + (block * 16 + rows) * V + cols, dh, mask=in_state)
    dw_at = (program * P + block) * (V * V)
    gl.store(dw_parts + dw_at + cols * V + rows, dw, mask=(rows < V) & (cols < V))
