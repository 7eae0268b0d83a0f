"""Backward of M²RNN for bf16 and 16 < V <= 64 (Gluon): gluon_tile_backward with four warps on 64 rows and BV columns.

A chunk is 8 steps (its states fill 64 KiB of shared memory, two programs a multiprocessor). W, W^T and the
states of dW are wgmma operands in shared memory; nothing is prefetched, a chunk takes far longer than its loads.
The sweep is a loop over pairs of steps: written out, it takes LLVM and ptxas twice as long and spills.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from archsearch.kernels.m2rnn.gpu.gluon_pieces import clip, hide, keep_column, keep_row, tanh, widen
from archsearch.kernels.m2rnn.gpu.gluon_wide_pieces import (
    BY_STEP,
    LEFT,
    MMA,
    RIGHT,
    SHARED,
    SHARED_STEPS,
    STEP_ROWS,
    STEPS,
    TILE,
    WHOLE_ROWS,
    product,
    span,
    step,
)  # fmt: skip


@gluon.jit
def _store_step_rows(x, pointers, steps_left, STRIDE: gl.constexpr):
    """Store [64 rows, 8 steps] with rows L and L + 8 of each 16 side by side."""
    x = x.to(gl.bfloat16).reshape([4, 2, 8, 8]).permute([3, 0, 2, 1]).reshape([8, 64])
    x = gl.convert_layout(x, STEP_ROWS, assert_trivial=True)
    t = gl.arange(0, 8, layout=gl.SliceLayout(1, STEP_ROWS))[:, None]
    row = gl.arange(0, 64, layout=gl.SliceLayout(0, STEP_ROWS))[None, :]
    gl.store(pointers + t * STRIDE + row, x, mask=(t < steps_left) & (row < 64))


@gluon.jit(do_not_specialize=["T", "t_begin", "t_len", "rows_total"])
def backward_kernel(
    q, k, v, w, f, checkpoints, cu_seqlens, dy, carry, dq_heads, dk_heads, dv_parts, df_parts, dw_parts,
    bound, T, t_begin, t_len, rows_total,
    N: gl.constexpr, NQ: gl.constexpr, NK: gl.constexpr, NV: gl.constexpr, NF: gl.constexpr, NW: gl.constexpr,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr, CLIP: gl.constexpr, VARLEN: gl.constexpr,
):  # fmt: skip
    sequence = gl.program_id(0) // N
    n = gl.program_id(0) % N
    block = gl.program_id(1)
    first, local, length, chunk = span(cu_seqlens, sequence, T, t_begin, t_len, VARLEN)
    P: gl.constexpr = (K + 63) // 64

    b_rows = gl.arange(0, 16, layout=gl.SliceLayout(1, RIGHT))[:, None]
    b_rows += gl.arange(0, BV, layout=gl.SliceLayout(0, RIGHT))[None, :] * 0
    s_cols = gl.arange(0, 8, layout=gl.SliceLayout(0, RIGHT))[None, :]
    zeros16 = gl.zeros([16, BV], gl.int16, RIGHT)
    zeros_rows = gl.zeros([64, 8], gl.int32, RIGHT)
    zeros_cols = gl.zeros([BV, 8], gl.int32, RIGHT)
    zeros = gl.zeros([64, BV], gl.float32, MMA)

    chunks = (length + 7) // 8
    tile_t = gl.arange(0, 16, layout=gl.SliceLayout(1, TILE))[:, None]
    tile_k = block * 64 + gl.arange(0, 64, layout=gl.SliceLayout(0, TILE))[None, :]
    tile_v = gl.arange(0, BV, layout=gl.SliceLayout(0, TILE))[None, :]
    tile_f = gl.arange(0, 16, layout=STEPS)
    q_base = q + (first * NQ + n // (N // NQ)) * K
    k_base = k + (first * NK + n // (N // NK)) * K
    v_base = v + (first * NV + n // (N // NV)) * V
    u_base = dy + (first * N + n) * V
    f_base = f + first * NF + n // (N // NF)
    c_base = checkpoints + ((chunk * N + n) * P + block) * (64 * BV)
    k_shared = gl.allocate_shared_memory(gl.bfloat16, [16, 64], SHARED)
    q_shared = gl.allocate_shared_memory(gl.bfloat16, [16, 64], SHARED)
    v_shared = gl.allocate_shared_memory(gl.bfloat16, [16, BV], SHARED)
    u_shared = gl.allocate_shared_memory(gl.bfloat16, [16, BV], SHARED)
    WIDE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=2 * BV, element_bitwidth=16, rank=2)
    w_shared = gl.allocate_shared_memory(gl.bfloat16, [BV, BV], WIDE)
    f_shared = gl.allocate_shared_memory(gl.float32, [16], SHARED_STEPS)
    f_steps = f_shared._reinterpret(gl.float32, [16, 1], SHARED_STEPS)
    h_shared = ()
    d_shared = ()
    for _ in gl.static_range(8):
        h_shared = h_shared + (gl.allocate_shared_memory(gl.bfloat16, [64, BV], WIDE),)
    for _ in gl.static_range(2):
        d_shared = d_shared + (gl.allocate_shared_memory(gl.bfloat16, [64, BV], SHARED),)

    w_rows = gl.arange(0, BV, layout=gl.SliceLayout(1, TILE))[:, None]
    w_base = w + (n // (N // NW)) * V * V
    w_shared.store(gl.load(w_base + w_rows * V + tile_v, mask=(w_rows < V) & (tile_v < V), other=0.0))
    fence_async_shared()
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, MMA))[:, None]
    cols = gl.arange(0, BV, layout=gl.SliceLayout(0, MMA))[None, :]
    v_rows = gl.arange(0, BV, layout=gl.SliceLayout(1, MMA))[:, None]
    steps = gl.arange(0, 8, layout=gl.SliceLayout(0, MMA))[None, :]
    e_steps = gl.arange(0, 8, layout=gl.SliceLayout(0, BY_STEP))
    program = gl.cast(gl.program_id(0), gl.int64)
    wide_block = gl.cast(block, gl.int64)
    carry_pointers = carry + program * (K * V) + (block * 64 + rows) * V + cols
    in_state = (block * 64 + rows < K) & (cols < V)
    dh = gl.load(carry_pointers, mask=in_state, other=0.0)
    dw_pointers = dw_parts + (program * P + block) * (V * V) + cols * V + v_rows
    dw = gl.load(dw_pointers, mask=(v_rows < V) & (cols < V), other=0.0)  # transposed: D^T H
    dq_base = dq_heads + (local * N + n) * (P * 64) + block * 64
    dk_base = dk_heads + (local * N + n) * (P * 64) + block * 64
    dv_base = dv_parts + ((wide_block * rows_total + local) * N + n) * V
    df_base = df_parts + (wide_block * rows_total + local) * N + n

    for index in range(chunks):
        t = (chunks - 1 - index) * 8
        left = gl.minimum(length - t, 8)
        now = gl.cast(t, gl.int64)
        in_k = (tile_t < left) & (tile_k < K)
        in_v = (tile_t < left) & (tile_v < V)
        k_shared.store(gl.load(k_base + now * (NK * K) + (tile_t * (NK * K) + tile_k), mask=in_k, other=0.0))
        q_shared.store(gl.load(q_base + now * (NQ * K) + (tile_t * (NQ * K) + tile_k), mask=in_k, other=0.0))
        v_shared.store(gl.load(v_base + now * (NV * V) + (tile_t * (NV * V) + tile_v), mask=in_v, other=0.0))
        u_shared.store(gl.load(u_base + now * (N * V) + (tile_t * (N * V) + tile_v), mask=in_v, other=0.0))
        f_shared.store(gl.load(f_base + now * NF + tile_f * NF, mask=tile_f < left, other=1.0))
        low = gl.load(c_base + now * (N * P * 8 * BV) + (rows * BV + cols))
        h = low.to(gl.float32)
        k_left = k_shared.permute([1, 0]).load(LEFT)
        dq = gl.zeros([64, 8], gl.float32, MMA)
        u_columns = u_shared.slice(0, 8, dim=0).permute([1, 0]).load(RIGHT)
        for i in gl.static_range(8):
            h_shared[i].store(low)
            f_t = step(f_shared, i)
            x = mma_v2(k_left, keep_row(v_shared.load(RIGHT), zeros16, b_rows, i), zeros)
            fh = f_t * h
            z = tanh(product(gl.convert_layout(low, LEFT, assert_trivial=True), w_shared, x, BV))
            h = gl.fma(z, (1.0 - f_t) + zeros, fh)
            low = h.to(gl.bfloat16)
            h_left = gl.convert_layout(low, LEFT, assert_trivial=True)
            dq = mma_v2(h_left, keep_column(u_columns, zeros_cols, s_cols, i), dq)
        _store_step_rows(dq, dq_base + now * (N * P * 64), left, N * P * 64)

        fence_async_shared()  # the states, before wgmma reads them
        q_left = q_shared.permute([1, 0]).load(LEFT)
        dk = gl.zeros([64, 8], gl.float32, MMA)
        dv = gl.zeros([BV, 8], gl.float32, MMA)
        e_all = ()
        h_turn = ()  # buffers of the states, next one first; slots of one buffer would count as aliases when stored
        for i in gl.static_range(8):
            e_all = e_all + (gl.zeros([128], gl.float32, WHOLE_ROWS),)
            h_turn = h_turn + (h_shared[7 - i],)
        for pair in range(4):
            for j in gl.static_range(2):
                now_step = 7 - 2 * pair - j
                h_left = h_turn[j].load(LEFT)
                f_t = gl.expand_dims(f_steps.index(now_step).load(gl.SliceLayout(1, MMA)), 1)
                x = mma_v2(k_left, keep_row(v_shared.load(RIGHT), zeros16, b_rows, now_step), zeros)
                z = tanh(product(h_left, w_shared, x, BV))
                if CLIP:
                    dh = clip(dh, bound + zeros)
                r = mma_v2(q_left, keep_row(u_shared.load(RIGHT), zeros16, b_rows, now_step), dh)
                e = r * (widen(gl.convert_layout(h_left, MMA, assert_trivial=True)) - z)
                e = e.reshape([4, 2, 8, BV // 8, 4, 2]).permute([0, 2, 4, 1, 3, 5]).reshape([128, BV // 2])
                e_all = e_all[1:] + (gl.convert_layout(gl.sum(e, axis=1), WHOLE_ROWS, assert_trivial=True),)
                fr = f_t * r
                d_low = ((r - fr) * (1.0 - z * z)).to(gl.bfloat16)
                d_shared[j].store(d_low)
                d_left = gl.convert_layout(d_low, LEFT, assert_trivial=True)
                dh = product(d_left, w_shared.permute([1, 0]), fr, BV)
                v_columns = v_shared.slice(0, 8, dim=0).permute([1, 0]).load(RIGHT)
                dk = mma_v2(d_left, keep_column(v_columns, zeros_cols, s_cols, now_step), dk)
            for j in gl.static_range(1, -1, -1):
                dt_left = d_shared[j].permute([1, 0]).load(LEFT)
                if BV == 64:
                    dw = product(dt_left, h_turn[j], dw, BV)
                else:  # wgmma needs 64 rows
                    dw = mma_v2(dt_left, h_turn[j].load(RIGHT), dw)
                k_columns = k_shared.slice(0, 8, dim=0).permute([1, 0]).load(RIGHT)
                dv = mma_v2(dt_left, keep_column(k_columns, zeros_rows, s_cols, 7 - 2 * pair - j), dv)
            h_turn = h_turn[2:] + h_turn[:2]
        _store_step_rows(dk, dk_base + now * (N * P * 64), left, N * P * 64)
        e01 = gl.join(gl.join(e_all[7], e_all[3]), gl.join(e_all[5], e_all[1]))
        e23 = gl.join(gl.join(e_all[6], e_all[2]), gl.join(e_all[4], e_all[0]))
        df = gl.sum(gl.convert_layout(gl.join(e01, e23).reshape([128, 8]), BY_STEP), axis=0)
        gl.store(df_base + (t + e_steps) * N, df, mask=e_steps < left)
        dv_pointers = dv_base + now * (N * V) + v_rows + steps * (N * V)
        gl.store(dv_pointers, dv.to(dv_parts.dtype.element_ty), mask=(v_rows < V) & (steps < left))
    late_rows = hide(rows)  # or the addresses stay in registers, spilled, from the loads at the top
    late_cols = hide(cols)
    late_v_rows = hide(v_rows)
    late_program = gl.cast(hide(rows * 0 + gl.program_id(0)), gl.int64)
    carry_pointers = carry + late_program * (K * V) + (block * 64 + late_rows) * V + late_cols
    late_program = gl.cast(hide(v_rows * 0 + gl.program_id(0)), gl.int64)
    dw_pointers = dw_parts + (late_program * P + block) * (V * V) + late_cols * V + late_v_rows
    gl.store(carry_pointers, dh, mask=(block * 64 + late_rows < K) & (late_cols < V))
    gl.store(dw_pointers, dw, mask=(late_v_rows < V) & (late_cols < V))
