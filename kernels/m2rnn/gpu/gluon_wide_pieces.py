"""Layouts and pieces of the wide kernels (Gluon, 16 < V <= 64): four warps own 64 rows of the state."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

MMA = gl.constexpr(gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1], instr_shape=[16, 8]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, MMA, 2))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, MMA, 2))
TILE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
STEPS = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
SHARED = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
SHARED_STEPS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
STEP_ROWS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [1, 0]], [[2, 0], [4, 0], [0, 2], [0, 4], [0, 8]], [[0, 16], [0, 32]], [], [8, 64]
    )
)
WHOLE_ROWS = gl.constexpr(gl.SliceLayout(1, gl.BlockedLayout([1, 1], [32, 1], [4, 1], [1, 0])))  # one of 128 a lane
BY_STEP = gl.constexpr(gl.BlockedLayout([8, 1], [16, 2], [1, 4], [0, 1]))


@gluon.jit
def product(left, right, accumulator, BV: gl.constexpr):
    """Return left @ right + accumulator through wgmma, right in shared memory, the rest in the lanes of MMA."""
    WIDE: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BV, 16])
    a = gl.convert_layout(left, gl.DotOperandLayout(0, WIDE, 2), assert_trivial=True)
    c = gl.convert_layout(accumulator, WIDE, assert_trivial=True)
    return gl.convert_layout(warpgroup_mma(a, right, c), MMA, assert_trivial=True)


@gluon.jit
def step(steps, t: gl.constexpr):
    """Broadcast entry t of a shared vector to every lane, as [64, 1]."""
    return gl.expand_dims(steps.slice(t, 1).load(gl.SliceLayout(1, MMA)), 1)


@gluon.jit
def span(cu_seqlens, sequence, T, t_begin, t_len, VARLEN: gl.constexpr):
    """Return (first row in the packed tensors, first row in the segment's partial sums, steps, first checkpoint)."""
    if VARLEN:
        start = gl.load(cu_seqlens + sequence).to(gl.int64)
        length = (gl.load(cu_seqlens + sequence + 1).to(gl.int64) - start).to(gl.int32)
        return start, start, length, start // 8 + sequence
    wide = gl.cast(sequence, gl.int64)
    return wide * T + t_begin, wide * t_len, t_len, wide * ((T + 7) // 8) + t_begin // 8
