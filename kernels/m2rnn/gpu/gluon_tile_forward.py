"""Forward of M²RNN for bf16 and V <= 16: 16 time steps at a time on tensor-core tiles (Gluon).

One warp owns 16 rows of the state of one (sequence, head). The tiles of k, v, q, f of 16 steps arrive one chunk ahead;
k_t v_t^T is a product of the tiles with all steps of v but t zero; y_t = H_t^T q_t waits until 8 states lie in shared
memory and then is 8 products into one accumulator, one beside each of the next 8 steps. NOTES.md says what bounds it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from archsearch.kernels.m2rnn.gpu.gluon_pieces import (
    LANES,
    LEFT,
    MMA,
    RIGHT,
    SHARED,
    SHARED_STEPS,
    STEPS,
    TILE,
    advance,
    keep_column,
    left_half,
    right_half,
    span,
    step,
    to_lanes,
)  # fmt: skip


@gluon.jit
def _store_y(y, y_base, at, length, rows, steps, N: gl.constexpr, V: gl.constexpr):
    """Store the output of steps `at` to `at` + 7; before the first and past the end there is nothing to store."""
    pointers = y_base + at * (N * V) + rows + steps * (N * V)
    inside = (rows < V) & (at >= 0) & (steps < length - at)
    gl.store(pointers, y.to(y_base.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=["T", "t_begin", "t_len", "rows_total"])
def forward_kernel(
    q, k, v, w, f, state_in, cu_seqlens, y_parts, state_out, checkpoints,
    T, t_begin, t_len, rows_total,
    N: gl.constexpr, NQ: gl.constexpr, NK: gl.constexpr, NV: gl.constexpr, NF: gl.constexpr, NW: gl.constexpr,
    K: gl.constexpr, V: gl.constexpr,
    HAS_STATE: gl.constexpr, SAVE: gl.constexpr, VARLEN: gl.constexpr,
):  # fmt: skip
    sequence = gl.program_id(0) // N
    n = gl.program_id(0) % N
    block = gl.program_id(1)
    first, local, length, chunk = span(cu_seqlens, sequence, T, t_begin, t_len, VARLEN)
    P: gl.constexpr = (K + 15) // 16

    b_rows = gl.arange(0, 16, layout=gl.SliceLayout(1, RIGHT))[:, None]
    b_cols = gl.arange(0, 16, layout=gl.SliceLayout(0, RIGHT))[None, :]
    w_tile = gl.load(w + (n // (N // NW)) * V * V + b_rows * V + b_cols, mask=(b_rows < V) & (b_cols < V), other=0.0)
    q_cols = gl.arange(0, 8, layout=gl.SliceLayout(0, RIGHT))[None, :]
    zeros32 = gl.zeros([16, 8], gl.int32, RIGHT)
    zeros = gl.zeros([16, 16], gl.float32, MMA)

    tile_t = gl.arange(0, 16, layout=gl.SliceLayout(1, TILE))[:, None]
    tile_c = gl.arange(0, 16, layout=gl.SliceLayout(0, TILE))[None, :]
    tile_f = gl.arange(0, 16, layout=STEPS)
    in_k = tile_c >= 0 if K % 16 == 0 else block * 16 + tile_c < K
    in_v = tile_c >= 0 if V == 16 else tile_c < V
    q_pointers = q + (first * NQ + n // (N // NQ)) * K + block * 16 + tile_t * (NQ * K) + tile_c
    k_pointers = k + (first * NK + n // (N // NK)) * K + block * 16 + tile_t * (NK * K) + tile_c
    v_pointers = v + (first * NV + n // (N // NV)) * V + tile_t * (NV * V) + tile_c
    f_pointers = f + first * NF + n // (N // NF) + tile_f * NF
    k_shared = gl.allocate_shared_memory(gl.bfloat16, [16, 16], SHARED)
    q_shared = gl.allocate_shared_memory(gl.bfloat16, [16, 16], SHARED)
    v_shared = gl.allocate_shared_memory(gl.bfloat16, [16, 16], SHARED)
    f_shared = gl.allocate_shared_memory(gl.float32, [16], SHARED_STEPS)
    h_shared = ()  # an allocation per step: slots of one buffer count as aliases and cost a barrier per step
    for _ in gl.static_range(16):
        h_shared = h_shared + (gl.allocate_shared_memory(gl.bfloat16, [16, 16], SHARED),)

    rows = gl.arange(0, 16, layout=gl.SliceLayout(1, MMA))[:, None]
    cols = gl.arange(0, 16, layout=gl.SliceLayout(0, MMA))[None, :]
    steps8 = cols % 8
    steps = gl.arange(0, 8, layout=gl.SliceLayout(0, MMA))[None, :]
    in_state = rows + cols >= 0 if K % 16 == 0 and V == 16 else (block * 16 + rows < K) & (cols < V)
    state_offset = gl.cast(gl.program_id(0), gl.int64) * (K * V)
    state_index = (block * 16 + rows) * V + cols
    if HAS_STATE:
        h = gl.load(state_in + state_offset + state_index, mask=in_state, other=0.0)
    else:
        h = gl.zeros([16, 16], gl.float32, MMA)
    c_pointers = checkpoints + ((chunk * N + n) * P + block) * 256
    c_pointers += gl.arange(0, 256, layout=LANES)
    y_base = y_parts + ((gl.cast(block, gl.int64) * rows_total + local) * N + n) * V

    k_next = gl.load(k_pointers, mask=(tile_t < length) & in_k, other=0.0)
    v_next = gl.load(v_pointers, mask=(tile_t < length) & in_v, other=0.0)
    q_next = gl.load(q_pointers, mask=(tile_t < length) & in_k, other=0.0)
    f_next = gl.load(f_pointers, mask=tile_f < length, other=1.0)
    q_before = gl.zeros([16, 8], gl.bfloat16, RIGHT)
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
        k_next = gl.load(k_pointers, mask=(tile_t < left) & in_k, other=0.0)
        v_next = gl.load(v_pointers, mask=(tile_t < left) & in_v, other=0.0)
        q_next = gl.load(q_pointers, mask=(tile_t < left) & in_k, other=0.0)
        f_next = gl.load(f_pointers, mask=tile_f < left, other=1.0)  # f = 1 leaves the state untouched past the end
        if SAVE:
            gl.store(c_pointers, to_lanes(low))
            c_pointers += N * P * 256
        for half in gl.static_range(2):
            k_half = left_half(k_shared, half)
            v_half = right_half(v_shared, half)
            y = gl.zeros([16, 8], gl.float32, MMA)  # of the 8 steps before
            for i in gl.static_range(8):
                h_left = h_shared[(1 - half) * 8 + i].permute([1, 0]).load(LEFT)
                y = mma_v2(h_left, keep_column(q_before, zeros32, q_cols, i), y)
                h = advance(h, low, step(f_shared, half * 8 + i), k_half, v_half, w_tile, zeros, steps8, i)
                low = h.to(gl.bfloat16)
                h_shared[half * 8 + i].store(low)
            _store_y(y, y_base, t + half * 8 - 8, length, rows, steps, N, V)
            q_before = q_shared.slice(half * 8, 8, dim=0).permute([1, 0]).load(RIGHT)
    y = gl.zeros([16, 8], gl.float32, MMA)
    for i in gl.static_range(8):
        y = mma_v2(h_shared[8 + i].permute([1, 0]).load(LEFT), keep_column(q_before, zeros32, q_cols, i), y)
    _store_y(y, y_base, (length + 15) // 16 * 16 - 8, length, rows, steps, N, V)
    gl.store(state_out + state_offset + state_index, h, mask=in_state)
