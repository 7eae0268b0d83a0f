"""Sum and RMSNorm in one pass over memory, forward and backward.

R rows of S channels make a tile. The backward pass adds the gradient that comes down the residual stream to the
norm's own, writes both precisions that are wanted, and sums the weight's gradient over the rows of a program.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def add_rms_norm_forward_kernel(
    x, update, weight, total, normed, scales, rows, eps,
    S: tl.constexpr, R: tl.constexpr, BS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    row = tl.cast(tl.program_id(0), tl.int64) * R + tl.arange(0, R)
    channels = tl.arange(0, BS)
    in_s = channels < S
    mask = (row < rows)[:, None] & in_s[None, :]
    places = (row * S)[:, None] + channels[None, :]
    value = tl.load(x + places, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(update + places, mask=mask, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + places, rounded, mask=mask)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1) / S + eps)
    tl.store(scales + row, scale, mask=row < rows)
    factors = tl.load(weight + channels, mask=in_s, other=0.0).to(tl.float32)
    tl.store(normed + places, (value * scale[:, None] * factors[None, :]).to(normed.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def add_rms_norm_backward_kernel(
    total, weight, scales, dtotal, dnormed, dx, dupdate, dweight_parts, rows,
    S: tl.constexpr, R: tl.constexpr, BS: tl.constexpr, STREAM: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    channels = tl.arange(0, BS)
    in_s = channels < S
    factors = tl.load(weight + channels, mask=in_s, other=0.0).to(tl.float32)[None, :]
    dweight = tl.zeros([R, BS], tl.float32)
    for first in range(program * R, rows, tl.num_programs(0) * R):
        row = tl.cast(first, tl.int64) + tl.arange(0, R)
        mask = (row < rows)[:, None] & in_s[None, :]
        places = (row * S)[:, None] + channels[None, :]
        d = tl.load(dnormed + places, mask=mask, other=0.0).to(tl.float32)
        scale = tl.load(scales + row, mask=row < rows, other=0.0)[:, None]
        unit = tl.load(total + places, mask=mask, other=0.0).to(tl.float32) * scale
        dweight += d * unit
        d *= factors
        d = scale * (d - unit * (tl.sum(d * unit, axis=1) / S)[:, None])
        if STREAM:
            d += tl.load(dtotal + places, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx + places, d.to(dx.dtype.element_ty), mask=mask)
        if NARROW:
            tl.store(dupdate + places, d.to(dupdate.dtype.element_ty), mask=mask)
    tl.store(dweight_parts + program * S + channels, tl.sum(dweight, axis=0), mask=in_s)
