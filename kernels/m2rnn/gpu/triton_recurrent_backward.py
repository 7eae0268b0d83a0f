"""Backward of M²RNN step by step in plain Triton: any dtype, any K and V.

Chunk by chunk from the last: recompute the states of a chunk from its checkpoint into a scratch buffer of the program,
then sweep backwards, storing D there too; dW of the chunk is then one product over its steps and rows. Z is computed
again in the sweep from the very operand that the first pass used.
"""

import triton
import triton.language as tl

from archsearch.kernels.m2rnn.gpu.triton_pieces import product_in_slices, span, tanh


@triton.jit(do_not_specialize=["T", "t_begin", "t_len", "rows_total"])
def backward_kernel(
    q, k, v, w, f, checkpoints, cu_seqlens, dy, carry, dq_heads, dk_heads, dv_parts, df_parts, dw_parts,
    h_scratch, d_scratch, clip, T, t_begin, t_len, rows_total,
    N: tl.constexpr, NQ: tl.constexpr, NK: tl.constexpr, NV: tl.constexpr, NF: tl.constexpr, NW: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    CLIP: tl.constexpr, RELOAD: tl.constexpr, SUM_ROWS: tl.constexpr, SUM_STAGES: tl.constexpr,
    VARLEN: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0) // N
    n = tl.program_id(0) % N
    block = tl.program_id(1)
    first, local, length, chunk = span(cu_seqlens, sequence, T, t_begin, t_len, C, VARLEN)
    rows = block * BK + tl.arange(0, BK)
    cols = tl.arange(0, BV)
    in_k = rows < K
    in_v = cols < V
    tile = in_k[:, None] & in_v[None, :]
    KP: tl.constexpr = (K + BK - 1) // BK * BK
    LOW: tl.constexpr = w.dtype.element_ty
    GRAD: tl.constexpr = tl.float32 if LOW == tl.float32 else tl.bfloat16  # float16 would underflow

    w_offset = (n // (N // NW)) * V * V
    w_mask = in_v[:, None] & in_v[None, :]
    if not RELOAD:  # else W, its transpose and their tf32 splits fit neither in shared memory nor in registers
        w_tile = tl.load(w + w_offset + cols[:, None] * V + cols[None, :], mask=w_mask, other=0.0)
        wt_tile = tl.load(w + w_offset + cols[None, :] * V + cols[:, None], mask=w_mask, other=0.0).to(GRAD)
    program = tl.cast(tl.program_id(0), tl.int64)
    carry_pointers = carry + program * (K * V) + rows[:, None] * V + cols[None, :]
    dw_pointers = dw_parts + (program * (KP // BK) + block) * (V * V) + cols[:, None] * V + cols[None, :]
    dh = tl.load(carry_pointers, mask=tile, other=0.0)
    c_pointers = checkpoints + (chunk * N + n) * (KP * BV) + rows[:, None] * BV + cols[None, :]
    scratch = (program * (KP // BK) + block) * (C * BK * BV)
    s_index = tl.arange(0, BK)[:, None] * BV + cols[None, :]
    hs_pointers = h_scratch + scratch + s_index
    ds_pointers = d_scratch + scratch + s_index
    sum_rows = tl.arange(0, SUM_ROWS)
    chunks = (length + C - 1) // C
    for step in range(chunks):
        c = chunks - 1 - step
        count = tl.minimum(C, length - c * C)
        row = first + c * C
        part = local + c * C
        k_pointers = k + (row * NK + n // (N // NK)) * K + rows
        v_pointers = v + (row * NV + n // (N // NV)) * V + cols
        u_pointers = dy + (row * N + n) * V + cols
        f_pointer = f + row * NF + n // (N // NF)
        dq_pointers = dq_heads + (part * N + n) * KP + rows
        h = tl.load(c_pointers + tl.cast(c, tl.int64) * (N * KP * BV)).to(tl.float32)
        k_next = tl.load(k_pointers, mask=in_k, other=0.0)
        v_next = tl.load(v_pointers, mask=in_v, other=0.0)
        u_next = tl.load(u_pointers, mask=in_v, other=0.0)
        f_next = tl.load(f_pointer)
        for i in range(count):
            k_t, v_t, u_t = k_next.to(tl.float32), v_next.to(tl.float32), u_next.to(tl.float32)
            f_t = f_next
            more = i + 1 < count
            k_pointers += NK * K
            v_pointers += NV * V
            u_pointers += N * V
            f_pointer += NF
            k_next = tl.load(k_pointers, mask=in_k & more, other=0.0)
            v_next = tl.load(v_pointers, mask=in_v & more, other=0.0)
            u_next = tl.load(u_pointers, mask=in_v & more, other=0.0)
            f_next = tl.load(f_pointer, mask=more, other=0.0)
            low = h.to(LOW)
            tl.store(hs_pointers + i * (BK * BV), low)
            x = k_t[:, None] * v_t[None, :]
            if RELOAD:
                tl.debug_barrier()  # before the state is read back
                states = h_scratch + scratch + i * (BK * BV)
                z = tanh(product_in_slices(states, w + w_offset, V, 1, x, V, BK, BV, PRECISION), FAST)
            else:
                z = tanh(tl.dot(low, w_tile, acc=x, input_precision=PRECISION), FAST)
            h = f_t * h + (1.0 - f_t) * z
            tl.store(dq_pointers, tl.sum(h * u_t[None, :], axis=1).to(dq_heads.dtype.element_ty))
            dq_pointers += N * KP
        tl.debug_barrier()  # the scratch is read in another layout than it was written in

        last = row + count - 1
        q_pointers = q + (last * NQ + n // (N // NQ)) * K + rows
        k_pointers = k + (last * NK + n // (N // NK)) * K + rows
        v_pointers = v + (last * NV + n // (N // NV)) * V + cols
        u_pointers = dy + (last * N + n) * V + cols
        f_pointer = f + last * NF + n // (N // NF)
        part += count - 1
        dk_pointers = dk_heads + (part * N + n) * KP + rows
        dv_pointers = dv_parts + ((tl.cast(block, tl.int64) * rows_total + part) * N + n) * V + cols
        df_pointer = df_parts + (tl.cast(block, tl.int64) * rows_total + part) * N + n
        q_next = tl.load(q_pointers, mask=in_k, other=0.0)
        k_next = tl.load(k_pointers, mask=in_k, other=0.0)
        v_next = tl.load(v_pointers, mask=in_v, other=0.0)
        u_next = tl.load(u_pointers, mask=in_v, other=0.0)
        f_next = tl.load(f_pointer)
        low_next = tl.load(hs_pointers + (count - 1) * (BK * BV))
        for j in range(count):
            q_t, k_t = q_next.to(tl.float32), k_next.to(tl.float32)
            v_t, u_t = v_next.to(tl.float32), u_next.to(tl.float32)
            f_t = f_next
            low = low_next
            more = j + 1 < count
            q_pointers -= NQ * K
            k_pointers -= NK * K
            v_pointers -= NV * V
            u_pointers -= N * V
            f_pointer -= NF
            q_next = tl.load(q_pointers, mask=in_k & more, other=0.0)
            k_next = tl.load(k_pointers, mask=in_k & more, other=0.0)
            v_next = tl.load(v_pointers, mask=in_v & more, other=0.0)
            u_next = tl.load(u_pointers, mask=in_v & more, other=0.0)
            f_next = tl.load(f_pointer, mask=more, other=0.0)
            low_next = tl.load(hs_pointers + tl.maximum(count - 2 - j, 0) * (BK * BV))
            x = k_t[:, None] * v_t[None, :]
            if RELOAD:
                states = h_scratch + scratch + (count - 1 - j) * (BK * BV)
                z = tanh(product_in_slices(states, w + w_offset, V, 1, x, V, BK, BV, PRECISION), FAST)
            else:
                z = tanh(tl.dot(low, w_tile, acc=x, input_precision=PRECISION), FAST)
            if CLIP:
                dh = tl.minimum(tl.maximum(dh, -clip), clip)
            r = dh + q_t[:, None] * u_t[None, :]
            df_t = tl.sum(tl.sum(r * (low.to(tl.float32) - z), axis=1), axis=0)
            fr = f_t * r
            d = (r - fr) * (1.0 - z * z)
            d_low = d.to(GRAD)
            tl.store(ds_pointers + (count - 1 - j) * (BK * BV), d_low)
            if RELOAD:
                tl.debug_barrier()
                gradients = d_scratch + scratch + (count - 1 - j) * (BK * BV)
                dh = product_in_slices(gradients, w + w_offset, 1, V, fr, V, BK, BV, PRECISION)
            else:
                dh = tl.dot(d_low, wt_tile, acc=fr, input_precision=PRECISION)
            tl.store(dk_pointers, tl.sum(d * v_t[None, :], axis=1).to(dk_heads.dtype.element_ty))
            tl.store(dv_pointers, tl.sum(d * k_t[:, None], axis=0).to(dv_parts.dtype.element_ty), mask=in_v)
            tl.store(df_pointer, df_t)
            dk_pointers -= N * KP
            dv_pointers -= N * V
            df_pointer -= N
        tl.debug_barrier()

        dw = tl.load(dw_pointers, mask=w_mask, other=0.0)
        for r in tl.range(0, count * BK, SUM_ROWS, num_stages=SUM_STAGES):
            used = r + sum_rows < count * BK
            ht = tl.load(
                h_scratch + scratch + (r + sum_rows)[None, :] * BV + cols[:, None], mask=used[None, :], other=0.0
            )
            d = tl.load(
                d_scratch + scratch + (r + sum_rows)[:, None] * BV + cols[None, :], mask=used[:, None], other=0.0
            )
            dw = tl.dot(ht.to(GRAD), d, acc=dw, input_precision=PRECISION)
        tl.store(dw_pointers, dw, mask=w_mask)
        tl.debug_barrier()
    tl.store(carry_pointers, dh, mask=tile)
