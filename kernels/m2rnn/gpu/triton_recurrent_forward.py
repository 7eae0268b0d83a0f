"""Forward of M²RNN step by step in plain Triton: any dtype, any K and V.

One program owns BK rows of the state of one (sequence, head); rows never mix, so only y is a sum over programs.
"""

import triton
import triton.language as tl

from archsearch.kernels.m2rnn.gpu.triton_pieces import span, tanh


@triton.jit(do_not_specialize=["T", "t_begin", "t_len", "rows_total"])
def forward_kernel(
    q, k, v, w, f, state_in, cu_seqlens, y_parts, state_out, checkpoints,
    T, t_begin, t_len, rows_total,
    N: tl.constexpr, NQ: tl.constexpr, NK: tl.constexpr, NV: tl.constexpr, NF: tl.constexpr, NW: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    HAS_STATE: tl.constexpr, SAVE: tl.constexpr, VARLEN: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0) // N
    n = tl.program_id(0) % N
    block = tl.program_id(1)
    first, local, length, chunk = span(cu_seqlens, sequence, T, t_begin, t_len, C, VARLEN)
    rows = block * BK + tl.arange(0, BK)
    cols = tl.arange(0, BV)
    tile = (rows < K)[:, None] & (cols < V)[None, :]
    inner = rows[:, None] * V + cols[None, :]
    KP: tl.constexpr = (K + BK - 1) // BK * BK

    w_tile = tl.load(
        w + (n // (N // NW)) * V * V + cols[:, None] * V + cols[None, :],
        mask=(cols < V)[:, None] & (cols < V)[None, :],
        other=0.0,
    )
    state_offset = tl.cast(tl.program_id(0), tl.int64) * (K * V)
    if HAS_STATE:
        h = tl.load(state_in + state_offset + inner, mask=tile, other=0.0)
    else:
        h = tl.zeros((BK, BV), tl.float32)
    q_pointers = q + (first * NQ + n // (N // NQ)) * K + rows
    k_pointers = k + (first * NK + n // (N // NK)) * K + rows
    v_pointers = v + (first * NV + n // (N // NV)) * V + cols
    f_pointer = f + first * NF + n // (N // NF)
    y_pointers = y_parts + ((tl.cast(block, tl.int64) * rows_total + local) * N + n) * V + cols
    c_pointers = checkpoints + (chunk * N + n) * (KP * BV) + rows[:, None] * BV + cols[None, :]

    q_next = tl.load(q_pointers, mask=(rows < K) & (length > 0), other=0.0)
    k_next = tl.load(k_pointers, mask=(rows < K) & (length > 0), other=0.0)
    v_next = tl.load(v_pointers, mask=(cols < V) & (length > 0), other=0.0)
    f_next = tl.load(f_pointer, mask=length > 0, other=1.0)
    for t in range(length):
        q_t, k_t, v_t, f_t = q_next.to(tl.float32), k_next.to(tl.float32), v_next.to(tl.float32), f_next
        more = t + 1 < length
        q_pointers += NQ * K
        k_pointers += NK * K
        v_pointers += NV * V
        f_pointer += NF
        q_next = tl.load(q_pointers, mask=(rows < K) & more, other=0.0)
        k_next = tl.load(k_pointers, mask=(rows < K) & more, other=0.0)
        v_next = tl.load(v_pointers, mask=(cols < V) & more, other=0.0)
        f_next = tl.load(f_pointer, mask=more, other=1.0)
        if SAVE:
            if t % C == 0:
                tl.store(c_pointers, h.to(checkpoints.dtype.element_ty))
                c_pointers += N * KP * BV
        x = k_t[:, None] * v_t[None, :]
        z = tanh(tl.dot(h.to(w.dtype.element_ty), w_tile, acc=x, input_precision=PRECISION), FAST)
        h = f_t * h + (1.0 - f_t) * z
        y_t = tl.sum(q_t[:, None] * h, axis=0)
        tl.store(y_pointers, y_t.to(y_parts.dtype.element_ty), mask=cols < V)
        y_pointers += N * V
    tl.store(state_out + state_offset + inner, h, mask=tile)
