"""Causal depthwise convolution and SiLU in one pass over memory, forward and backward.

A program owns STEPS steps of up to BC channels of one of three parts, which have outputs of their own, and walks
through time with the last three inputs in registers, so that every element is read once. Filters of fewer than four
taps are filters of four with zeros in front. The backward pass computes the sums in front of the SiLU again; a
gradient is complete, and stored, three steps after its input was met.
"""

import triton
import triton.language as tl


@triton.jit
def _tap(weight, channels, in_c, W: tl.constexpr, back: tl.constexpr):
    """Load the factor of the input `back` steps before, zero where the filter does not reach that far."""
    if back >= W:
        return tl.zeros([channels.shape[0]], tl.float32)
    return tl.load(weight + channels * W + (W - 1 - back), mask=in_c, other=0.0).to(tl.float32)


@triton.jit
def _earlier(x, taps, t, row, channels, in_c, stride, C: tl.constexpr, W: tl.constexpr, GIVEN: tl.constexpr):
    """Load the input at step t, which may lie before the first: zeros, or the taps that were given."""
    value = tl.load(x + t * stride + channels, mask=in_c & (t >= 0), other=0.0).to(tl.float32)
    if GIVEN:
        place = taps + (row * (W - 1) + W - 1 + t) * C + channels
        value += tl.load(place, mask=in_c & (t < 0) & (t >= 1 - W), other=0.0).to(tl.float32)
    return value


@triton.jit
def _part(block, BC: tl.constexpr, C0: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, ALIGN: tl.constexpr):
    """Return the number of a block's part, the part's first channel and width, and the block's first channel."""
    before1: tl.constexpr = (C0 + BC - 1) // BC
    before2: tl.constexpr = before1 + (C1 + BC - 1) // BC
    part = (block >= before1).to(tl.int32) + (block >= before2).to(tl.int32)
    begin = tl.where(part == 0, 0, tl.where(part == 1, C0, C0 + C1))
    width = tl.where(part == 0, C0, tl.where(part == 1, C1, C2))
    first = begin + (block - tl.where(part == 0, 0, tl.where(part == 1, before1, before2))) * BC
    return part, tl.multiple_of(begin, ALIGN), tl.multiple_of(width, ALIGN), tl.multiple_of(first, ALIGN)


@triton.jit
def _choose(part, a0, a1, a2, C1: tl.constexpr, C2: tl.constexpr):
    """Return the pointer that belongs to a part."""
    chosen = a0
    if C1 > 0:
        if part == 1:
            chosen = a1
    if C2 > 0:
        if part == 2:
            chosen = a2
    return chosen


@triton.jit
def _begin(starts, t, VARLEN: tl.constexpr):
    """Return the first step whose input step t may see."""
    if VARLEN:
        return tl.load(starts + t)
    return -4


@triton.jit(do_not_specialize=["T", "x_row", "x_time"])
def short_conv_forward_kernel(
    x, weight, bias, taps, starts, y0, y1, y2, T, x_row, x_time,
    C: tl.constexpr, C0: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, ALIGN: tl.constexpr,
    W: tl.constexpr, STEPS: tl.constexpr, BC: tl.constexpr, VECTOR: tl.constexpr,
    BIAS: tl.constexpr, SILU: tl.constexpr, GIVEN: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    row = tl.cast(tl.program_id(2), tl.int64)
    first = tl.program_id(0) * STEPS
    part, begin_c, width, first_c = _part(tl.program_id(1), BC, C0, C1, C2, ALIGN)
    channels = first_c + tl.arange(0, BC)
    in_c = channels < begin_c + width
    stride = tl.multiple_of(tl.cast(x_time, tl.int64), VECTOR)
    own = x + row * tl.multiple_of(tl.cast(x_row, tl.int64), VECTOR)
    w0, w1 = _tap(weight, channels, in_c, W, 0), _tap(weight, channels, in_c, W, 1)
    w2, w3 = _tap(weight, channels, in_c, W, 2), _tap(weight, channels, in_c, W, 3)
    offset = tl.zeros([BC], tl.float32)
    if BIAS:
        offset += tl.load(bias + channels, mask=in_c, other=0.0).to(tl.float32)
    x1 = _earlier(own, taps, first - 1, row, channels, in_c, stride, C, W, GIVEN)
    x2 = _earlier(own, taps, first - 2, row, channels, in_c, stride, C, W, GIVEN)
    x3 = _earlier(own, taps, first - 3, row, channels, in_c, stride, C, W, GIVEN)
    y = _choose(part, y0, y1, y2, C1, C2)
    for t in range(first, tl.minimum(first + STEPS, T)):
        x0 = tl.load(own + t * stride + channels, mask=in_c, other=0.0).to(tl.float32)
        if VARLEN:
            begin = _begin(starts, t, VARLEN)
            x1, x2, x3 = x1 * (t - 1 >= begin), x2 * (t - 2 >= begin), x3 * (t - 3 >= begin)
        total = offset + x0 * w0 + x1 * w1 + x2 * w2 + x3 * w3
        if SILU:
            total = total * tl.sigmoid(total)
        tl.store(y + (row * T + t) * width + (channels - begin_c), total.to(y.dtype.element_ty), mask=in_c)
        x3, x2, x1 = x2, x1, x0


@triton.jit(do_not_specialize=["T", "x_row", "x_time"])
def short_conv_backward_kernel(
    x, weight, bias, taps, starts, dy0, dy1, dy2, dx, dweight_parts, dbias_parts, T, x_row, x_time,
    C: tl.constexpr, C0: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, ALIGN: tl.constexpr,
    W: tl.constexpr, STEPS: tl.constexpr, BC: tl.constexpr, VECTOR: tl.constexpr,
    BIAS: tl.constexpr, SILU: tl.constexpr, GIVEN: tl.constexpr, VARLEN: tl.constexpr,
):  # fmt: skip
    row = tl.cast(tl.program_id(2), tl.int64)
    first = tl.program_id(0) * STEPS
    last = tl.minimum(first + STEPS, T)
    part, begin_c, width, first_c = _part(tl.program_id(1), BC, C0, C1, C2, ALIGN)
    channels = first_c + tl.arange(0, BC)
    in_c = channels < begin_c + width
    stride = tl.multiple_of(tl.cast(x_time, tl.int64), VECTOR)
    own = x + row * tl.multiple_of(tl.cast(x_row, tl.int64), VECTOR)
    w0, w1 = _tap(weight, channels, in_c, W, 0), _tap(weight, channels, in_c, W, 1)
    w2, w3 = _tap(weight, channels, in_c, W, 2), _tap(weight, channels, in_c, W, 3)
    offset = tl.zeros([BC], tl.float32)
    if BIAS:
        offset += tl.load(bias + channels, mask=in_c, other=0.0).to(tl.float32)
    x1 = _earlier(own, taps, first - 1, row, channels, in_c, stride, C, W, GIVEN)
    x2 = _earlier(own, taps, first - 2, row, channels, in_c, stride, C, W, GIVEN)
    x3 = _earlier(own, taps, first - 3, row, channels, in_c, stride, C, W, GIVEN)
    zeros = tl.zeros([BC], tl.float32)
    dw0, dw1, dw2, dw3, db = zeros, zeros, zeros, zeros, zeros
    p1, p2, p3 = zeros, zeros, zeros  # what the inputs 1, 2 and 3 steps before have gathered
    dy = _choose(part, dy0, dy1, dy2, C1, C2)
    for t in range(first, last + 3):
        in_row = in_c & (t < T)
        x0 = tl.load(own + t * stride + channels, mask=in_row, other=0.0).to(tl.float32)
        d = tl.load(dy + (row * T + t) * width + (channels - begin_c), mask=in_row, other=0.0).to(tl.float32)
        begin = _begin(starts, tl.minimum(t, T - 1), VARLEN)
        if VARLEN:
            x1, x2, x3 = x1 * (t - 1 >= begin), x2 * (t - 2 >= begin), x3 * (t - 3 >= begin)
        if SILU:
            total = offset + x0 * w0 + x1 * w1 + x2 * w2 + x3 * w3
            gate = tl.sigmoid(total)
            d *= gate * (1.0 + total * (1.0 - gate))
        if t < last:
            dw0 += d * x0
            dw1 += d * x1
            dw2 += d * x2
            dw3 += d * x3
            db += d
        if VARLEN:
            p1 += d * w1 * (t - 1 >= begin)
            p2 += d * w2 * (t - 2 >= begin)
            p3 += d * w3 * (t - 3 >= begin)
        else:
            p1 += d * w1
            p2 += d * w2
            p3 += d * w3
        done = t - 3
        place = dx + (row * T + done) * C + channels
        tl.store(place, p3.to(dx.dtype.element_ty), mask=in_c & (done >= first) & (done < last))
        x3, x2, x1 = x2, x1, x0
        p3, p2, p1 = p2, p1, d * w0
    place = (row * tl.num_programs(0) + tl.program_id(0)) * C + channels
    if BIAS:
        tl.store(dbias_parts + place, db, mask=in_c)
    tl.store(dweight_parts + place * W + (W - 1), dw0, mask=in_c)
    if W > 1:
        tl.store(dweight_parts + place * W + (W - 2), dw1, mask=in_c)
    if W > 2:
        tl.store(dweight_parts + place * W + (W - 3), dw2, mask=in_c)
    if W > 3:
        tl.store(dweight_parts + place * W + (W - 4), dw3, mask=in_c)
