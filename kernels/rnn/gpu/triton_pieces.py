"""Small pieces shared by the kernels of vector states.

A step waits for the one before, so its latency is all that counts. A program is one warp with one column of a head's
state in each thread (R heads side by side where a head has fewer than 32 columns): an element of the state reaches the
other threads by one shuffle, and `h W` is sums within each thread, of which the rows of W stay in registers.
"""

import triton
import triton.language as tl

FAR = tl.constexpr(32)  # steps: they take longer than memory does to answer


@triton.jit
def place(cu_seqlens, sequence, T, PACKED: tl.constexpr):
    """Return where a sequence lies: (row, first step, steps)."""
    if PACKED:
        begin = tl.load(cu_seqlens + sequence).to(tl.int64)
        length = (tl.load(cu_seqlens + sequence + 1).to(tl.int64) - begin).to(tl.int32)
        return tl.cast(0, tl.int64), begin, length
    return tl.cast(sequence, tl.int64), tl.cast(0, tl.int64), T


@triton.jit
def read_rows(matrix, mask, STRIDE: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, RELOAD: tl.constexpr):
    """Return the BD rows of a matrix whose first lies at `matrix`, as float32; none where they are to be reloaded."""
    rows = ()
    if not RELOAD:
        for i in tl.static_range(BD):
            rows = rows + (tl.load(matrix + i * STRIDE, mask=mask & (i < D), other=0.0).to(tl.float32),)
    return rows


@triton.jit
def times(
    h, rows, plus, matrix, mask,
    STRIDE: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, RELOAD: tl.constexpr,
):  # fmt: skip
    """Return `h @ matrix + plus` for h `[R, BD]`; two sums, because an addition takes as long as two shuffles."""
    even = plus
    odd = tl.zeros([R, BD], tl.float32)
    if RELOAD:
        for i in range(BD):
            row = tl.load(matrix + i * STRIDE, mask=mask & (i < D), other=0.0).to(tl.float32)
            even += tl.gather(h, tl.zeros([R, BD], tl.int32) + i, axis=1) * row
    else:
        for i in tl.static_range(0, BD, 2):
            even += tl.gather(h, tl.full([R, BD], i, tl.int32), axis=1) * rows[i]
            odd += tl.gather(h, tl.full([R, BD], i + 1, tl.int32), axis=1) * rows[i + 1]
    return even + odd


@triton.jit
def read_turn(x, stride, mask, t, whole, STEPS: tl.constexpr, FETCH: tl.constexpr):
    """Return the elements at `x` of STEPS steps, the t-th and the next of `whole`; have later ones brought to L2.

    To hold more than a turn in registers does not help: to hand them on, a turn would wait until they are there.
    """
    values = ()
    for u in tl.static_range(STEPS):
        values = values + (tl.load(x + u * stride, mask=mask & (t < whole), other=0.0),)
    if FETCH:
        inside = (mask & (t + FAR + STEPS <= whole)).to(tl.int32)
        for u in tl.static_range(STEPS):
            tl.inline_asm_elementwise(
                "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l,r",
                [(x + (FAR + u) * stride).to(tl.int64), inside], dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
    return values


@triton.jit
def clipped(grad, clip, CLIP: tl.constexpr):
    """Return a carried gradient as it arrives one step earlier."""
    return tl.minimum(tl.maximum(grad, -clip), clip) if CLIP else grad


@triton.jit
def states_before(
    y, initial, cu_seqlens, documents, b, t, n, T,
    N: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, HAS_STATE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Return the states `[steps, BD]` in front of the steps `t` of row b, head n, as y holds them."""
    cols = tl.arange(0, BD)
    if PACKED:
        sequence = tl.load(documents + t, mask=t < T, other=0)
        begin = tl.load(cu_seqlens + sequence).to(tl.int32)
    else:
        sequence = tl.zeros_like(t) + b
        begin = tl.zeros_like(t)
    inside = ((t > begin) & (t < T))[:, None] & (cols < D)[None, :]
    at = ((tl.cast(b, tl.int64) * T + t - 1) * N + n)[:, None] * D + cols[None, :]
    h = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_STATE:
        first = ((t == begin) & (t < T))[:, None] & (cols < D)[None, :]
        h += tl.load(initial + (sequence.to(tl.int64) * N + n)[:, None] * D + cols[None, :], mask=first, other=0.0)
    return h
