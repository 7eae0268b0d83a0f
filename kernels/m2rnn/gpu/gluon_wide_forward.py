"""Forward of M²RNN for bf16 and 16 < V <= 64 (Gluon): gluon_tile_forward with four warps on 64 rows and BV columns."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from archsearch.kernels.m2rnn.gpu.gluon_pieces import keep_column, keep_row, tanh
from archsearch.kernels.m2rnn.gpu.gluon_wide_pieces import (
    LEFT,
    MMA,
    RIGHT,
    SHARED,
    SHARED_STEPS,
    STEPS,
    TILE,
    product,
    span,
    step,
)  # fmt: skip


@gluon.jit(do_not_specialize=["T", "t_begin", "t_len", "rows_total"])
def forward_kernel(
    q, k, v, w, f, state_in, cu_seqlens, y_parts, state_out, checkpoints,
    T, t_begin, t_len, rows_total,
    N: gl.constexpr, NQ: gl.constexpr, NK: gl.constexpr, NV: gl.constexpr, NF: gl.constexpr, NW: gl.constexpr,
    K: gl.constexpr, V: gl.constexpr, BV: gl.constexpr,
    HAS_STATE: gl.constexpr, SAVE: gl.constexpr, VARLEN: gl.constexpr,
):  # fmt: skip
    sequence = gl.program_id(0) // N
    n = gl.program_id(0) % N
    block = gl.program_id(1)
    first, local, length, chunk = span(cu_seqlens, sequence, T, t_begin, t_len, VARLEN)
    P: gl.constexpr = (K + 63) // 64

    b_rows = gl.arange(0, 16, layout=gl.SliceLayout(1, RIGHT))[:, None]
    b_rows += gl.arange(0, BV, layout=gl.SliceLayout(0, RIGHT))[None, :] * 0
    q_cols = gl.arange(0, 8, layout=gl.SliceLayout(0, RIGHT))[None, :]
    zeros16 = gl.zeros([16, BV], gl.int16, RIGHT)
    zeros32 = gl.zeros([64, 8], gl.int32, RIGHT)
    zeros = gl.zeros([64, BV], gl.float32, MMA)

    tile_t = gl.arange(0, 16, layout=gl.SliceLayout(1, TILE))[:, None]
    tile_k = block * 64 + gl.arange(0, 64, layout=gl.SliceLayout(0, TILE))[None, :]
    tile_v = gl.arange(0, BV, layout=gl.SliceLayout(0, TILE))[None, :]
    tile_f = gl.arange(0, 16, layout=STEPS)
    q_pointers = q + (first * NQ + n // (N // NQ)) * K + tile_t * (NQ * K) + tile_k
    k_pointers = k + (first * NK + n // (N // NK)) * K + tile_t * (NK * K) + tile_k
    v_pointers = v + (first * NV + n // (N // NV)) * V + tile_t * (NV * V) + tile_v
    f_pointers = f + first * NF + n // (N // NF) + tile_f * NF
    w_rows = gl.arange(0, BV, layout=gl.SliceLayout(1, TILE))[:, None]
    w_base = w + (n // (N // NW)) * V * V
    WIDE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=2 * BV, element_bitwidth=16, rank=2)
    w_shared = gl.allocate_shared_memory(gl.bfloat16, [BV, BV], WIDE)
    w_shared.store(gl.load(w_base + w_rows * V + tile_v, mask=(w_rows < V) & (tile_v < V), other=0.0))
    fence_async_shared()
    k_shared = gl.allocate_shared_memory(gl.bfloat16, [16, 64], SHARED)
    q_shared = gl.allocate_shared_memory(gl.bfloat16, [16, 64], SHARED)
    v_shared = gl.allocate_shared_memory(gl.bfloat16, [16, BV], SHARED)
    f_shared = gl.allocate_shared_memory(gl.float32, [16], SHARED_STEPS)
    h_shared = ()
    for _ in gl.static_range(8):
        h_shared = h_shared + (gl.allocate_shared_memory(gl.bfloat16, [64, BV], SHARED),)

    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, MMA))[:, None]
    cols = gl.arange(0, BV, layout=gl.SliceLayout(0, MMA))[None, :]
    y_rows = gl.arange(0, BV, layout=gl.SliceLayout(1, MMA))[:, None]
    steps = gl.arange(0, 8, layout=gl.SliceLayout(0, MMA))[None, :]
    in_state = (block * 64 + rows < K) & (cols < V)
    state_offset = gl.cast(gl.program_id(0), gl.int64) * (K * V)
    state_index = (block * 64 + rows) * V + cols
    if HAS_STATE:
        h = gl.load(state_in + state_offset + state_index, mask=in_state, other=0.0)
    else:
        h = gl.zeros([64, BV], gl.float32, MMA)
    c_base = checkpoints + ((chunk * N + n) * P + block) * (64 * BV)
    c_index = rows * BV + cols
    y_base = y_parts + ((gl.cast(block, gl.int64) * rows_total + local) * N + n) * V

    k_next = gl.load(k_pointers, mask=(tile_t < length) & (tile_k < K), other=0.0)
    v_next = gl.load(v_pointers, mask=(tile_t < length) & (tile_v < V), other=0.0)
    q_next = gl.load(q_pointers, mask=(tile_t < length) & (tile_k < K), other=0.0)
    f_next = gl.load(f_pointers, mask=tile_f < length, other=1.0)
    low = h.to(gl.bfloat16)
    for t in range(0, length, 16):
        k_shared.store(k_next)
        v_shared.store(v_next)
        q_shared.store(q_next)
        f_shared.store(f_next)
        left = length - 16 - t
        k_pointers += 16 * NK * K
        v_pointers += 16 * NV * V
        q_pointers += 16 * NQ * K
        f_pointers += 16 * NF
        k_next = gl.load(k_pointers, mask=(tile_t < left) & (tile_k < K), other=0.0)
        v_next = gl.load(v_pointers, mask=(tile_t < left) & (tile_v < V), other=0.0)
        q_next = gl.load(q_pointers, mask=(tile_t < left) & (tile_k < K), other=0.0)
        f_next = gl.load(f_pointers, mask=tile_f < left, other=1.0)  # f = 1 leaves the state untouched past the end
        k_left = k_shared.permute([1, 0]).load(LEFT)
        v_right = v_shared.load(RIGHT)
        for half in gl.static_range(2):
            if SAVE:  # no chunk begins at or past the end
                c_now = c_base + gl.cast(t // 8 + half, gl.int64) * (N * P * 64 * BV)
                gl.store(c_now + c_index, low, mask=(rows + cols >= 0) & (t + half * 8 < length))
            for i in gl.static_range(8):
                f_t = step(f_shared, half * 8 + i)
                x = mma_v2(k_left, keep_row(v_right, zeros16, b_rows, half * 8 + i), zeros)
                fh = f_t * h
                z = tanh(product(gl.convert_layout(low, LEFT, assert_trivial=True), w_shared, x, BV))
                h = gl.fma(z, (1.0 - f_t) + zeros, fh)
                low = h.to(gl.bfloat16)
                h_shared[i].store(low)
            q_right = q_shared.slice(half * 8, 8, dim=0).permute([1, 0]).load(RIGHT)
            y = gl.zeros([BV, 8], gl.float32, MMA)
            for i in gl.static_range(8):
                h_left = h_shared[i].permute([1, 0]).load(LEFT)
                y = mma_v2(h_left, keep_column(q_right, zeros32, q_cols, i), y)
            y_pointers = y_base + (t + half * 8) * (N * V) + y_rows + steps * (N * V)
            in_y = (y_rows < V) & (steps < length - t - half * 8)
            gl.store(y_pointers, y.to(y_parts.dtype.element_ty), mask=in_y)
    gl.store(state_out + state_offset + state_index, h, mask=in_state)
