"""Pieces of the 16-step tile kernels (Gluon, one warp a program, tensor-core fragments of 16 x 16)."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

MMA = gl.constexpr(gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, MMA, 2))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, MMA, 2))
TILE = gl.constexpr(gl.BlockedLayout([1, 8], [16, 2], [1, 1], [1, 0]))  # one 16-byte load per lane
STEPS = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))
SHARED = gl.constexpr(gl.SwizzledSharedLayout(8, 4, 2, [1, 0]))
SHARED_STEPS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
# A 16 x 16 fragment in lane order: each lane's 8 values side by side.
LANES = gl.constexpr(gl.DistributedLinearLayout([[1], [2], [4]], [[8], [16], [32], [64], [128]], [], [], [256]))
# [8 steps, 16 rows], rows L and L + 8 of the fragment side by side.
STEP_ROWS = gl.constexpr(
    gl.DistributedLinearLayout([[0, 1], [1, 0]], [[2, 0], [4, 0], [0, 2], [0, 4], [0, 8]], [], [], [8, 16])
)
BY_STEP = gl.constexpr(gl.BlockedLayout([8, 1], [4, 8], [1, 1], [0, 1]))


@gluon.jit
def tanh(x):
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def widen(x):
    """bf16 to float32, exact, two instructions a pair."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 a, b; shl.b32 a, $2, 16; and.b32 b, $2, 0xffff0000; mov.b32 $0, a; mov.b32 $1, b; }", "=f,=f,r",
        [x], dtype=gl.float32, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def clip(x, bound):
    """Clip to [-bound, bound] in one instruction."""
    return gl.inline_asm_elementwise(
        "min.xorsign.abs.f32 $0, $1, $2;", "=f,f,f", [x, bound], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def hide(x):
    """Hide that x is unchanged, so that nothing computed from it before is kept for it."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def keep_row(x, zeros16, rows, t: gl.constexpr):
    """Zero all rows but t of a right operand, so that left @ it is the outer product of column t and row t."""
    mask = gl.where(rows == t, gl.full_like(rows, -1), gl.zeros_like(rows)).to(gl.int16)
    return gl.inline_asm_elementwise(
        "and.b32 $0, $1, $2;", "=r,r,r", [x, mask + zeros16], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def keep_column(x, zeros32, columns, t: gl.constexpr):
    """Zero all columns but t of a right operand, so that left @ it puts left @ x[:, t] into column t."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.eq.s32 p, $2, $4; selp.b32 $0, $1, 0, p; }", "=r,r,r,r,r,r",
        [x, columns + zeros32, zeros32 + t], dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def left_half(tile, group):
    """Load steps 8 * group to 8 * group + 7 of a tile [16 steps, 16 rows] as [16 rows, 16], first 8 columns in use."""
    return _half(gl.convert_layout(tile.permute([1, 0]).load(LEFT), MMA, assert_trivial=True), group)


@gluon.jit
def right_half(tile, group):
    """Load the same steps of the other factor's tile [16 steps, 16 columns], laid out alike."""
    return _half(gl.convert_layout(tile.load(RIGHT).permute([1, 0]), MMA, assert_trivial=True), group)


@gluon.jit
def _half(x, group):
    group = group + gl.zeros([16, 16], gl.int32, MMA)
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $8, 0; selp.b32 $0, $6, $4, p; selp.b32 $1, $7, $5, p; "
        "mov.b32 $2, 0; mov.b32 $3, 0; }",
        "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r,r,r,r", [x, group], dtype=gl.bfloat16, is_pure=True, pack=8,
    )  # fmt: skip


@gluon.jit
def add_outer(left, right, x, steps8, t: gl.constexpr):
    """Return x plus the outer product of step t of `left_half` and `right_half`: two products of depth 8, masked.

    They cost less than products of depth 16, the least that `mma_v2` takes. `steps8` is a column's number modulo 8.
    """
    mask = gl.where(steps8 == t, gl.full_like(steps8, -1), gl.zeros_like(steps8)).to(gl.int16)
    mask += gl.zeros([16, 16], gl.int16, MMA)
    return gl.inline_asm_elementwise(
        "{ .reg .b32 x, y; and.b32 x, $20, $24; and.b32 y, $21, $24; "
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {$0, $1, $2, $3}, {$16, $17}, {x}, {$8, $9, $10, $11}; "
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {$4, $5, $6, $7}, {$16, $17}, {y}, {$12, $13, $14, $15}; }",
        "=&f,=&f,=&f,=&f,=&f,=&f,=&f,=&f,f,f,f,f,f,f,f,f,r,r,r,r,r,r,r,r,r,r,r,r", [x, left, right, mask],
        dtype=gl.float32, is_pure=True, pack=8,
    )  # fmt: skip


@gluon.jit
def advance(h, low, f_t, k_half, v_half, w_tile, zeros, steps8, t: gl.constexpr):
    """Return the next state, float32; `low` is h as a bfloat16 operand."""
    x = add_outer(k_half, v_half, zeros, steps8, t)
    fh = f_t * h  # while the products run
    z = tanh(mma_v2(gl.convert_layout(low, LEFT, assert_trivial=True), w_tile, x))
    return gl.fma(z, (1.0 - f_t) + zeros, fh)


@gluon.jit
def to_lanes(h):
    x = h.reshape([2, 8, 2, 4, 2]).permute([1, 3, 0, 2, 4]).reshape([256])
    return gl.convert_layout(x, LANES, assert_trivial=True)


@gluon.jit
def from_lanes(x):
    h = x.reshape([8, 4, 2, 2, 2]).permute([2, 0, 3, 1, 4]).reshape([16, 16])
    return gl.convert_layout(h, MMA, assert_trivial=True)


@gluon.jit
def step(steps, t: gl.constexpr):
    """Broadcast entry t of a shared vector to every lane, as [16, 1]."""
    return gl.expand_dims(steps.slice(t, 1).load(gl.SliceLayout(1, MMA)), 1)


@gluon.jit
def span(cu_seqlens, sequence, T, t_begin, t_len, VARLEN: gl.constexpr):
    """Return (first row in the packed tensors, first row in the segment's partial sums, steps, first checkpoint)."""
    if VARLEN:
        start = gl.load(cu_seqlens + sequence).to(gl.int64)
        length = (gl.load(cu_seqlens + sequence + 1).to(gl.int64) - start).to(gl.int32)
        return start, start, length, start // 16 + sequence
    wide = gl.cast(sequence, gl.int64)
    return wide * T + t_begin, wide * t_len, t_len, wide * ((T + 15) // 16) + t_begin // 16
