"""Decays of every step, summed within chunks and turned into factors; and the gradient of the decays."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["T", "chunks"])
def sum_decays_kernel(
    log_decay, dt, starts, total, from_start, to_end, written, whole, T, chunks,
    H: tl.constexpr, Q: tl.constexpr, HB: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Fill, for HB heads of a chunk of Q steps, the five tensors of `launch.Decays`.

    A document of `starts` takes no state over its first step: the factors over it are 0.
    """
    chunk = tl.cast(tl.program_id(0), tl.int64)
    heads = tl.program_id(1) * HB + tl.arange(0, HB)
    rows = tl.arange(0, Q)
    first = chunk % chunks * Q
    steps = first + rows
    mask = (steps < T)[:, None] & (heads < H)[None, :]
    source = (chunk // chunks * T + steps)[:, None] * H + heads[None, :]
    sums = tl.cumsum(tl.load(log_decay + source, mask=mask, other=0.0) * LOG2E, axis=0)
    end = tl.sum(tl.where((rows == Q - 1)[:, None], sums, 0.0), axis=0)
    entering, leaving, across = tl.exp2(sums), tl.exp2(end[None, :] - sums), tl.exp2(end)
    if PACKED:
        start = tl.load(starts + steps, mask=steps < T, other=T)
        last = tl.load(starts + tl.minimum(first + Q, T) - 1)
        entering = tl.where((start < first)[:, None], entering, 0.0)
        leaving = tl.where((start == last)[:, None], leaving, 0.0)
        across = tl.where(last < first, across, 0.0)
    target = (chunk * Q + rows)[:, None] * H + heads[None, :]
    in_h = tl.broadcast_to((heads < H)[None, :], [Q, HB])
    tl.store(total + target, sums, mask=in_h)
    tl.store(from_start + target, entering, mask=in_h)
    tl.store(to_end + target, leaving, mask=in_h)
    tl.store(written + target, leaving * tl.load(dt + source, mask=mask, other=0.0), mask=in_h)
    tl.store(whole + chunk * H + heads, across, mask=heads < H)


@triton.jit(do_not_specialize=["T", "chunks", "parts"])
def decay_gradient_kernel(
    dtotal, scaled_dy, outputs, carried, starts, dlog_decay, T, chunks, parts,
    H: tl.constexpr, G: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, HB: tl.constexpr, BP: tl.constexpr,
    PACKED: tl.constexpr, HAS_INITIAL: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of the summed decays from each step to its chunk's end, and what comes over that end.

    `dtotal` lacks the outputs of the state that entered the chunk: they are C times it, `[G, B chunks, Q, D]`, like dy,
    scaled by the decay. Other documents of the chunk need no mask: where no state enters, their gradients sum to 0.
    """
    HG: tl.constexpr = H // G
    D: tl.constexpr = HG * P
    chunk, all_chunks = tl.cast(tl.program_id(0), tl.int64), tl.num_programs(0)
    heads = tl.program_id(1) * HB + tl.arange(0, HB)
    rows, p = tl.arange(0, Q), tl.arange(0, BP)
    in_h = heads < H
    mask = in_h[:, None] & (p < P)[None, :]
    own = (heads // HG * tl.cast(all_chunks, tl.int64) + chunk)[:, None]  # [HB, 1], like what follows
    columns = (heads % HG * P)[:, None] + p[None, :]
    over_end = tl.zeros([HB], tl.float32)
    for part in range(parts):
        places = (part * G * tl.cast(all_chunks, tl.int64) + own) * D + columns
        over_end += tl.sum(tl.load(carried + places, mask=mask, other=0.0), axis=1)
    places = (own * (Q * D) + columns)[None, :, :] + (rows * D)[:, None, None]
    every = tl.broadcast_to(mask[None, :, :], [Q, HB, BP])
    entered = tl.load(outputs + places, mask=every, other=0.0).to(tl.float32)
    entered *= tl.load(scaled_dy + places, mask=every, other=0.0).to(tl.float32)
    source = (chunk * Q + rows)[:, None] * H + heads[None, :]
    gradient = tl.load(dtotal + source, mask=in_h[None, :], other=0.0) + tl.sum(entered, axis=2)
    gradient = tl.cumsum(gradient, axis=0, reverse=True) + over_end[None, :]
    steps = chunk % chunks * Q + rows
    if not HAS_INITIAL:  # a document's first decay meets no state: 0, and what is here is rounding
        start = tl.zeros([Q], tl.int32)
        if PACKED:
            start = tl.load(starts + steps, mask=steps < T, other=0)
        gradient = tl.where((start == steps)[:, None], 0.0, gradient)
    target = (chunk // chunks * T + steps)[:, None] * H + heads[None, :]
    tl.store(dlog_decay + target, gradient, mask=(steps < T)[:, None] & in_h[None, :])
