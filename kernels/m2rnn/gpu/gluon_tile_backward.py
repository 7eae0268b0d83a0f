"""Backward of M²RNN for bf16 and V <= 16: 16 time steps at a time on tensor-core tiles (Gluon).

From the last chunk to the first: recompute the 16 states of the chunk from its checkpoint into shared memory (bf16),
then sweep backwards; Z is recomputed from that very operand. Sums over rows wait for 4 steps, then are products.
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
    SHARED_STEPS,
    STEP_ROWS,
    STEPS,
    TILE,
    clip,
    from_lanes,
    keep_column,
    keep_row,
    opaque,
    span,
    step,
    tanh,
    widen,
)  # fmt: skip


@gluon.jit
def _store_step_rows(x, pointers, steps_left, STRIDE: gl.constexpr):
    """Store [16 rows, 8 steps] with rows L and L + 8 side by side (32 bytes a step and quarter warp)."""
    x = x.to(gl.bfloat16).reshape([2, 8, 8]).permute([2, 1, 0]).reshape([8, 16])
    x = gl.convert_layout(x, STEP_ROWS, assert_trivial=True)
    t = gl.arange(0, 8, layout=gl.SliceLayout(1, STEP_ROWS))[:, None]
    row = gl.arange(0, 16, layout=gl.SliceLayout(0, STEP_ROWS))[None, :]
    gl.store(pointers + t * STRIDE + row, x, mask=(t < steps_left) & (row < 16))


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
    zeros16 = gl.zeros([16, 16], gl.int16, RIGHT)
    zeros32 = gl.zeros([16, 8], gl.int32, RIGHT)
    zeros = gl.zeros([16, 16], gl.float32, MMA)

    chunks = (length + 15) // 16
    tile_t = gl.arange(0, 16, layout=gl.SliceLayout(1, TILE))[:, None]
    tile_c = gl.arange(0, 16, layout=gl.SliceLayout(0, TILE))[None, :]
    tile_f = gl.arange(0, 16, layout=STEPS)
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
    k_shared = gl.allocate_shared_memory(gl.bfloat16, [16, 16], SHARED)
    q_shared = gl.allocate_shared_memory(gl.bfloat16, [16, 16], SHARED)
    v_shared = gl.allocate_shared_memory(gl.bfloat16, [16, 16], SHARED)
    u_shared = gl.allocate_shared_memory(gl.bfloat16, [16, 16], SHARED)
    f_shared = gl.allocate_shared_memory(gl.float32, [16], SHARED_STEPS)
    h_shared = ()
    d_shared = ()
    for _ in gl.static_range(16):
        h_shared = h_shared + (gl.allocate_shared_memory(gl.bfloat16, [16, 16], SHARED),)
    for _ in gl.static_range(4):
        d_shared = d_shared + (gl.allocate_shared_memory(gl.bfloat16, [16, 16], SHARED),)

    rows = gl.arange(0, 16, layout=gl.SliceLayout(1, MMA))[:, None]
    cols = gl.arange(0, 16, layout=gl.SliceLayout(0, MMA))[None, :]
    steps = gl.arange(0, 8, layout=gl.SliceLayout(0, MMA))[None, :]
    e_steps = gl.arange(0, 8, layout=gl.SliceLayout(0, BY_STEP))
    in_state = rows + cols >= 0 if K % 16 == 0 and V == 16 else (block * 16 + rows < K) & (cols < V)
    program = gl.cast(gl.program_id(0), gl.int64)
    carry_pointers = carry + program * (K * V) + (block * 16 + rows) * V + cols
    dw_pointers = dw_parts + (program * P + block) * (V * V) + cols * V + rows
    dh = gl.load(carry_pointers, mask=in_state, other=0.0)
    dw = gl.load(dw_pointers, mask=(rows < V) & (cols < V), other=0.0)  # transposed: D^T H
    wide_block = gl.cast(block, gl.int64)
    dq_base = dq_heads + (local * N + n) * (P * 16) + block * 16
    dk_base = dk_heads + (local * N + n) * (P * 16) + block * 16
    dv_base = dv_parts + ((wide_block * rows_total + local) * N + n) * V
    df_base = df_parts + (wide_block * rows_total + local) * N + n

    left = gl.where(length > 0, length - (chunks - 1) * 16, 0)
    now = gl.cast(length - left, gl.int64)
    k_next = gl.load(k_base + now * (NK * K) + k_lanes, mask=(tile_t < left) & in_k, other=0.0)
    q_next = gl.load(q_base + now * (NQ * K) + q_lanes, mask=(tile_t < left) & in_k, other=0.0)
    v_next = gl.load(v_base + now * (NV * V) + v_lanes, mask=(tile_t < left) & in_v, other=0.0)
    u_next = gl.load(u_base + now * (N * V) + u_lanes, mask=(tile_t < left) & in_v, other=0.0)
    f_next = gl.load(f_base + now * NF + f_lanes, mask=tile_f < left, other=1.0)
    h_next = gl.load(c_base + now * (N * P * 16) + lanes, mask=(lanes >= 0) & (chunks > 0), other=0.0)
    for index in range(chunks):
        t = (chunks - 1 - index) * 16
        k_shared.store(k_next)
        q_shared.store(q_next)
        v_shared.store(v_next)
        u_shared.store(u_next)
        f_shared.store(f_next)
        h = widen(from_lanes(h_next))
        k_left = k_shared.permute([1, 0]).load(LEFT)
        v_right = v_shared.load(RIGHT)
        low = h.to(gl.bfloat16)
        for half in gl.static_range(2):
            dq = gl.zeros([16, 8], gl.float32, MMA)
            u_columns = u_shared.slice(half * 8, 8, dim=0).permute([1, 0]).load(RIGHT)
            for i in gl.static_range(8):
                h_shared[half * 8 + i].store(low)
                f_t = step(f_shared, half * 8 + i)
                x = mma_v2(k_left, keep_row(v_right, zeros16, b_rows, half * 8 + i), zeros)
                fh = f_t * h
                z = tanh(mma_v2(gl.convert_layout(low, LEFT, assert_trivial=True), w_tile, x))
                h = gl.fma(z, (1.0 - f_t) + zeros, fh)
                low = h.to(gl.bfloat16)
                dq = mma_v2(
                    gl.convert_layout(low, LEFT, assert_trivial=True), keep_column(u_columns, zeros32, s_cols, i), dq
                )
            _store_step_rows(dq, dq_base + (t + half * 8) * (N * P * 16), length - t - half * 8, N * P * 16)
        q_left = q_shared.permute([1, 0]).load(LEFT)
        u_right = u_shared.load(RIGHT)
        for half in gl.static_range(1, -1, -1):
            v_right = opaque(v_right)
            u_right = opaque(u_right)
            if half == 0:
                more = t > 0
                before = gl.cast(gl.maximum(t - 16, 0), gl.int64)
                k_next = gl.load(k_base + before * (NK * K) + k_lanes, mask=more & in_k, other=0.0)
                q_next = gl.load(q_base + before * (NQ * K) + q_lanes, mask=more & in_k, other=0.0)
                v_next = gl.load(v_base + before * (NV * V) + v_lanes, mask=more & in_v, other=0.0)
                u_next = gl.load(u_base + before * (N * V) + u_lanes, mask=more & in_v, other=0.0)
                f_next = gl.load(f_base + before * NF + f_lanes, mask=(tile_f >= 0) & more, other=1.0)
                h_next = gl.load(c_base + before * (N * P * 16) + lanes)
            dk = gl.zeros([16, 8], gl.float32, MMA)
            dv = gl.zeros([16, 8], gl.float32, MMA)
            e_all = ()
            v_columns = v_shared.slice(half * 8, 8, dim=0).permute([1, 0]).load(RIGHT)
            k_columns = k_shared.slice(half * 8, 8, dim=0).permute([1, 0]).load(RIGHT)
            for i in gl.static_range(7, -1, -1):
                h_left = h_shared[half * 8 + i].load(LEFT)
                f_t = step(f_shared, half * 8 + i)
                x = mma_v2(k_left, keep_row(v_right, zeros16, b_rows, half * 8 + i), zeros)
                z = tanh(mma_v2(h_left, w_tile, x))
                if CLIP:
                    dh = clip(dh, bound + zeros)
                r = mma_v2(q_left, keep_row(u_right, zeros16, b_rows, half * 8 + i), dh)
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
                        dw = mma_v2(dt_left, h_shared[half * 8 + i + m].load(RIGHT), dw)
                        dv = mma_v2(dt_left, keep_column(k_columns, zeros32, s_cols, i + m), dv)
            left = length - t - half * 8
            _store_step_rows(dk, dk_base + (t + half * 8) * (N * P * 16), left, N * P * 16)
            e01 = gl.join(gl.join(e_all[7], e_all[3]), gl.join(e_all[5], e_all[1]))
            e23 = gl.join(gl.join(e_all[6], e_all[2]), gl.join(e_all[4], e_all[0]))
            df = gl.sum(gl.convert_layout(gl.join(e01, e23).reshape([32, 8]), BY_STEP), axis=0)
            gl.store(df_base + (t + half * 8 + e_steps) * N, df, mask=e_steps < left)
            dv_pointers = dv_base + (t + half * 8) * (N * V) + rows + steps * (N * V)
            gl.store(dv_pointers, dv.to(dv_parts.dtype.element_ty), mask=(rows < V) & (steps < left))
    gl.store(carry_pointers, dh, mask=in_state)
    gl.store(dw_pointers, dw, mask=(rows < V) & (cols < V))
