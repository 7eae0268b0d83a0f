"""The states between chunks: what goes into their matrix products, and the scans over chunks, elementwise."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["T", "chunks", "x_row", "x_step"])
def scale_kernel(
    x, factor, out, x_row, x_step, T, chunks,
    H: tl.constexpr, G: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, BD: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Multiply R steps of `x` `[B, T, H, P]` by one factor per head; `out` is `[G, B chunks, Q, D]`, 0 after T."""
    D: tl.constexpr = H // G * P
    BLOCKS: tl.constexpr = (D + BD - 1) // BD
    chunk, all_chunks = tl.cast(tl.program_id(0) // (Q // R), tl.int64), tl.num_programs(0) // (Q // R)
    rows = tl.program_id(0) % (Q // R) * R + tl.arange(0, R)
    group = tl.program_id(1) // BLOCKS
    columns = tl.program_id(1) % BLOCKS * BD + tl.arange(0, BD)
    steps = chunk % chunks * Q + rows
    in_d = (columns < D)[None, :]
    offset = chunk // chunks * tl.multiple_of(tl.cast(x_row, tl.int64), VECTOR)
    offsets = offset + steps * tl.multiple_of(tl.cast(x_step, tl.int64), VECTOR)
    mask = (steps < T)[:, None] & in_d
    values = tl.load(x + offsets[:, None] + (group * D + columns)[None, :], mask=mask, other=0.0).to(tl.float32)
    heads = group * (H // G) + columns // P
    factors = tl.load(factor + ((chunk * Q + rows) * H)[:, None] + heads[None, :], mask=mask, other=0.0)
    row = (group * tl.cast(all_chunks, tl.int64) + chunk) * Q + rows
    places = (row * D)[:, None] + columns[None, :]
    tl.store(out + places, (values * factors).to(out.dtype.element_ty), mask=tl.broadcast_to(in_d, [R, BD]))


@triton.jit
def _tile(program, H: tl.constexpr, G: tl.constexpr, N: tl.constexpr, P: tl.constexpr, BN: tl.constexpr,
          BD: tl.constexpr):  # fmt: skip
    """Return of a program's [BN, BD] tile: places in a chunk's [N, D] and in [H, N, P], heads, columns and mask."""
    HG: tl.constexpr = H // G
    D: tl.constexpr = HG * P
    BLOCKS: tl.constexpr = (D + BD - 1) // BD
    group = tl.program_id(1) % G
    n = program // BLOCKS * BN + tl.arange(0, BN)
    d = program % BLOCKS * BD + tl.arange(0, BD)
    heads = group * HG + d // P
    places = n[:, None] * D + d[None, :]
    own = (heads * (N * P) + d % P)[None, :] + (n * P)[:, None]
    return places, own, heads, d, (n < N)[:, None] & (d < D)[None, :]


@triton.jit
def _load(x, whole, i, places, heads, mask, there, H: tl.constexpr, ND: tl.constexpr):
    """Load chunk i's tile and, by column, what is left at its end of the state that enters it."""
    tile = tl.load(x + i * ND + places, mask=mask & there, other=0.0)
    return tile, tl.load(whole + i * H + heads, mask=(heads < H) & there, other=1.0)


@triton.jit
def _pass_on(carried, written, left, states, i, chunks, places, mask, ND: tl.constexpr):
    """Leave chunk i the state that enters it, and return the one that leaves it."""
    tl.store(states + i * ND + places, carried.to(states.dtype.element_ty), mask=mask & (i < chunks))
    return carried * left[None, :] + written.to(tl.float32)


@triton.jit(do_not_specialize=["chunks", "all_chunks"])
def carry_states_kernel(
    states, whole, initial, final, chunks, all_chunks,
    H: tl.constexpr, G: tl.constexpr, N: tl.constexpr, P: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    HAS_INITIAL: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Turn `states` `[G, B chunks, N, D]` from what each chunk wrote into what enters it, in place."""
    ND: tl.constexpr = N * (H // G) * P
    sequence, group = tl.cast(tl.program_id(1) // G, tl.int64), tl.program_id(1) % G
    places, own, heads, _, mask = _tile(tl.program_id(0), H, G, N, P, BN, BD)
    own += sequence * (H * N * P)
    states += (group * tl.cast(all_chunks, tl.int64) + sequence * chunks) * ND
    whole += sequence * chunks * H
    carried = tl.zeros([BN, BD], tl.float32)
    if HAS_INITIAL:
        carried = tl.load(initial + own, mask=mask, other=0.0)
    for first in range(0, chunks, 4):  # four loads are under way before the first is waited for
        i = tl.cast(first, tl.int64)
        written0, left0 = _load(states, whole, i, places, heads, mask, i < chunks, H, ND)
        written1, left1 = _load(states, whole, i + 1, places, heads, mask, i + 1 < chunks, H, ND)
        written2, left2 = _load(states, whole, i + 2, places, heads, mask, i + 2 < chunks, H, ND)
        written3, left3 = _load(states, whole, i + 3, places, heads, mask, i + 3 < chunks, H, ND)
        tl.debug_barrier()  # a thread may store what another is to load
        carried = _pass_on(carried, written0, left0, states, i, chunks, places, mask, ND)
        carried = _pass_on(carried, written1, left1, states, i + 1, chunks, places, mask, ND)
        carried = _pass_on(carried, written2, left2, states, i + 2, chunks, places, mask, ND)
        carried = _pass_on(carried, written3, left3, states, i + 3, chunks, places, mask, ND)
    if KEEP:
        tl.store(final + own, carried, mask=mask)


@triton.jit
def _pass_back(carried, after, local, left, gradients, products, i, places, d, mask, D: tl.constexpr, ND: tl.constexpr):
    """Leave chunk i the gradient of the state after it and that state's product with it; return the one before it."""
    tl.store(products + i * D + d, tl.sum(carried * after, axis=0), mask=(d < D) & (i >= 0))
    tl.store(gradients + i * ND + places, carried.to(gradients.dtype.element_ty), mask=mask & (i >= 0))
    return carried * left[None, :] + local.to(tl.float32)


@triton.jit(do_not_specialize=["chunks", "all_chunks"])
def carry_gradients_kernel(
    gradients, states, whole, final, dfinal, dinitial, products, chunks, all_chunks,
    H: tl.constexpr, G: tl.constexpr, N: tl.constexpr, P: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    HAS_FINAL: tl.constexpr, HAS_INITIAL: tl.constexpr,
):  # fmt: skip
    """Turn `gradients` from that of the state which enters a chunk, by its outputs alone, into that of what leaves it.

    `products` `[N / BN, G, B chunks, D]`: the product of the state after a chunk and its gradient, summed over BN rows.
    """
    D: tl.constexpr = H // G * P
    ND: tl.constexpr = N * D
    BLOCKS: tl.constexpr = (D + BD - 1) // BD
    sequence, group = tl.cast(tl.program_id(1) // G, tl.int64), tl.program_id(1) % G
    places, own, heads, d, mask = _tile(tl.program_id(0), H, G, N, P, BN, BD)
    own += sequence * (H * N * P)
    chunk = group * tl.cast(all_chunks, tl.int64) + sequence * chunks
    gradients += chunk * ND
    states += chunk * ND
    products += (tl.program_id(0) // BLOCKS * G * tl.cast(all_chunks, tl.int64) + chunk) * D
    whole += sequence * chunks * H
    carried, after = tl.zeros([BN, BD], tl.float32), tl.zeros([BN, BD], tl.float32)
    if HAS_FINAL:
        carried = tl.load(dfinal + own, mask=mask, other=0.0)
        after = tl.load(final + own, mask=mask, other=0.0)
    for done in range(0, chunks, 2):
        i = tl.cast(chunks - 1 - done, tl.int64)
        local0, left0 = _load(gradients, whole, i, places, heads, mask, i >= 0, H, ND)
        local1, left1 = _load(gradients, whole, i - 1, places, heads, mask, i > 0, H, ND)
        entering0 = tl.load(states + i * ND + places, mask=mask, other=0.0)
        entering1 = tl.load(states + (i - 1) * ND + places, mask=mask & (i > 0), other=0.0)
        tl.debug_barrier()  # as above
        carried = _pass_back(carried, after, local0, left0, gradients, products, i, places, d, mask, D, ND)
        after = entering0.to(tl.float32)
        carried = _pass_back(carried, after, local1, left1, gradients, products, i - 1, places, d, mask, D, ND)
        after = entering1.to(tl.float32)
    if HAS_INITIAL:
        tl.store(dinitial + own, carried, mask=mask)
