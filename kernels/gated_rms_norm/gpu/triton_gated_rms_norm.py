"""Skip, gate and RMSNorm in one pass over memory, forward and backward.

A norm of S channels is a row of a tile; R rows make a program. The backward pass recomputes everything from the inputs
and sums the gradients of the weights over the rows of a program; what the programs leave is summed by PyTorch.
"""

import triton
import triton.language as tl


@triton.jit
def _gated(y, gate, skip, skip_weight, GATE: tl.constexpr, SKIP: tl.constexpr):
    """Return the sum with the skip connection, the gate's sigmoid and the gated sum."""
    total = y
    if SKIP:
        total += skip_weight * skip
    if GATE:
        sigmoid = tl.sigmoid(gate)
        return total, sigmoid, total * gate * sigmoid
    return total, total, total


@triton.jit
def _load(x, step, steps_in_row, x_row, x_step, columns, mask, VECTOR: tl.constexpr):
    """Load [R, S] elements of the steps [R], counted over all rows, at `columns` [R, S] of their channels."""
    row, time = step // steps_in_row, step % steps_in_row
    offset = row * tl.multiple_of(tl.cast(x_row, tl.int64), VECTOR)
    offset += time * tl.multiple_of(tl.cast(x_step, tl.int64), VECTOR)
    return tl.load(x + offset[:, None] + columns, mask=mask, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["rows", "T", "gate_row", "gate_step", "skip_row", "skip_step"])
def gated_rms_norm_forward_kernel(
    y, weight, gate, skip, skip_weight, out, rows, T, gate_row, gate_step, skip_row, skip_step, eps,
    G: tl.constexpr, S: tl.constexpr, R: tl.constexpr, BS: tl.constexpr, VECTOR: tl.constexpr,
    GATE: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    index = tl.cast(tl.program_id(0), tl.int64) * R + tl.arange(0, R)  # of a norm: (step, group)
    channels = tl.arange(0, BS)
    mask = (index < rows * G)[:, None] & (channels < S)[None, :]
    columns = (index % G * S)[:, None] + channels[None, :]
    places = (index * S)[:, None] + channels[None, :]
    step = index // G
    total = tl.load(y + places, mask=mask, other=0.0).to(tl.float32)
    gates, skips, factor = total, total, total
    if GATE:
        gates = _load(gate, step, T, gate_row, gate_step, columns, mask, VECTOR)
    if SKIP:
        skips = _load(skip, step, T, skip_row, skip_step, columns, mask, VECTOR)
        factor = tl.load(skip_weight + columns, mask=mask, other=0.0).to(tl.float32)
    _, _, gated = _gated(total, gates, skips, factor, GATE, SKIP)
    scale = tl.rsqrt(tl.sum(gated * gated, axis=1) / S + eps)
    factors = tl.load(weight + channels, mask=channels < S, other=0.0).to(tl.float32)
    tl.store(out + places, (gated * scale[:, None] * factors[None, :]).to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "T", "gate_row", "gate_step", "skip_row", "skip_step"])
def gated_rms_norm_backward_kernel(
    y, weight, gate, skip, skip_weight, dout, dy, dgate, dskip, dweight_parts, dskip_weight_parts,
    rows, T, gate_row, gate_step, skip_row, skip_step, eps,
    G: tl.constexpr, S: tl.constexpr, R: tl.constexpr, BS: tl.constexpr, VECTOR: tl.constexpr,
    GATE: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    program, group = tl.program_id(0), tl.program_id(1)
    channels = tl.arange(0, BS)
    in_s = channels < S
    columns = tl.broadcast_to((group * S + channels)[None, :], [R, BS])
    factors = tl.load(weight + channels, mask=in_s, other=0.0).to(tl.float32)[None, :]
    factor = factors
    if SKIP:
        factor = tl.load(skip_weight + group * S + channels, mask=in_s, other=0.0).to(tl.float32)[None, :]
    dweight = tl.zeros([R, BS], tl.float32)
    dskip_weight = tl.zeros([R, BS], tl.float32)
    for first in range(program * R, rows, tl.num_programs(0) * R):
        step = tl.cast(first, tl.int64) + tl.arange(0, R)
        mask = (step < rows)[:, None] & in_s[None, :]
        places = ((step * G + group) * S)[:, None] + channels[None, :]
        own = tl.load(y + places, mask=mask, other=0.0).to(tl.float32)
        d = tl.load(dout + places, mask=mask, other=0.0).to(tl.float32)
        gates, skips = own, own
        if GATE:
            gates = _load(gate, step, T, gate_row, gate_step, columns, mask, VECTOR)
        if SKIP:
            skips = _load(skip, step, T, skip_row, skip_step, columns, mask, VECTOR)
        total, sigmoid, gated = _gated(own, gates, skips, factor, GATE, SKIP)
        scale = tl.rsqrt(tl.sum(gated * gated, axis=1) / S + eps)[:, None]
        normed = gated * scale
        dweight += d * normed
        d *= factors
        d = scale * (d - normed * (tl.sum(d * normed, axis=1) / S)[:, None])
        if GATE:
            dgates = d * total * sigmoid * (1.0 + gates * (1.0 - sigmoid))
            tl.store(dgate + places, dgates.to(dgate.dtype.element_ty), mask=mask)
            d *= gates * sigmoid
        tl.store(dy + places, d.to(dy.dtype.element_ty), mask=mask)
        if SKIP:
            dskip_weight += d * skips
            tl.store(dskip + places, (d * factor).to(dskip.dtype.element_ty), mask=mask)
    part = (program * G + group) * S + channels
    tl.store(dweight_parts + part, tl.sum(dweight, axis=0), mask=in_s)
    if SKIP:
        tl.store(dskip_weight_parts + part, tl.sum(dskip_weight, axis=0), mask=in_s)
