"""What the kernels inside chunks share: tiles of one head, products of B and C, and the decay between steps."""

import triton
import triton.language as tl


@triton.jit
def load_head(x, rows, ROW: tl.constexpr, head, there, P: tl.constexpr, BP: tl.constexpr):
    """Load one head's `[rows, BP]`, 0 beyond P and where `there` is false; rows are ROW elements apart."""
    p = tl.arange(0, BP)
    places = rows[:, None] * ROW + (head * P + p)[None, :]  # with the head in 32 bits: 64 would stay in registers
    return tl.load(x + places, mask=there[:, None] & (p < P)[None, :], other=0.0)


@triton.jit
def store_head(x, rows, ROW: tl.constexpr, head, there, values, P: tl.constexpr, BP: tl.constexpr):
    """Store what `load_head` would load."""
    p = tl.arange(0, BP)
    places = rows[:, None] * ROW + (head * P + p)[None, :]
    tl.store(x + places, values.to(x.dtype.element_ty), mask=there[:, None] & (p < P)[None, :])


@triton.jit
def row_products(
    left, right, LEFT_ROW: tl.constexpr, RIGHT_ROW: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, Q: tl.constexpr
):
    """Return `left right^T` `[Q, Q]` in float32, both `[Q, N]` with rows `LEFT_ROW` and `RIGHT_ROW` elements apart."""
    rows, columns = tl.arange(0, Q), tl.arange(0, BN)
    total = tl.zeros([Q, Q], tl.float32)
    for n in tl.range(0, N, BN):
        mask = (n + columns < N)[None, :]
        a = tl.load(left + rows[:, None] * LEFT_ROW + (n + columns)[None, :], mask=mask, other=0.0)
        b = tl.load(right + rows[:, None] * RIGHT_ROW + (n + columns)[None, :], mask=mask, other=0.0)
        total = tl.dot(a, tl.trans(b), acc=total, input_precision="ieee")
    return total


@triton.jit
def decay(later, earlier):
    """Return `2^(later - earlier)` of summed decays, and at most 1 where "later" is earlier: there it could overflow.

    What it is multiplied by is masked: once outside of the loop over heads, not here for each.
    """
    return tl.exp2(tl.minimum(later - earlier, 0.0))
