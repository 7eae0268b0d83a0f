"""The passes of the recurrence, forward and backward: what is computed in which order, by which kernel.

With the heads of a group side by side, all that crosses a chunk's border is one matrix product per chunk and group;
these are cuBLAS's. Tensors of chunks are `[G B chunks, ...]`, groups first, zeros after the end of a sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.ssd.gpu.triton_decay import decay_gradient_kernel, sum_decays_kernel
from archsearch.kernels.ssd.gpu.triton_gradient import gradient_kernel
from archsearch.kernels.ssd.gpu.triton_output import output_kernel
from archsearch.kernels.ssd.gpu.triton_states import carry_gradients_kernel, carry_states_kernel, scale_kernel
from archsearch.kernels.strides import vector_width

CHUNK = 64  # steps
HEADS_A_PROGRAM = 16  # at most: more would save reads of B C^T, and leave too few programs
PROGRAMS = 2048  # wanted of a pass: several waves over the multiprocessors
STATE_TILE = {"BN": 16, "BD": 128}


class Shape(NamedTuple):
    """Sizes of a call."""

    batch: int
    steps: int
    heads: int
    head_dim: int
    groups: int
    state_dim: int

    @property
    def chunks(self) -> int:
        """Chunks of a sequence."""
        return -(-self.steps // CHUNK)

    @property
    def all_chunks(self) -> int:
        """Chunks of all sequences."""
        return self.batch * self.chunks

    @property
    def width(self) -> int:
        """Columns of a group: its heads side by side."""
        return self.heads // self.groups * self.head_dim

    def constants(self) -> dict[str, int]:
        return {"H": self.heads, "G": self.groups, "P": self.head_dim}


class Decays(NamedTuple):
    """What every kernel needs of the decays: `[B chunks CHUNK, H]` each but the last, `[B chunks, H]`."""

    total: Tensor
    """Log2 of the decay from the chunk's start to the step."""
    from_start: Tensor
    """What is left at the step of the state that entered the chunk."""
    to_end: Tensor
    """What is left at the chunk's end of what the step wrote."""
    written: Tensor
    """The same, times dt."""
    whole: Tensor
    """What is left at the chunk's end of the state that entered it."""


def shape_of(x: Tensor, b: Tensor) -> Shape:
    return Shape(*x.shape, *b.shape[2:])


def run_forward(
    x: Tensor, dt: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None,
    starts: Tensor | None, *, keep_state: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return y and the final state (no rows of it unless `keep_state`); `starts` are each step's `document_starts`."""
    shape = shape_of(x, b)
    b, c = _by_chunk(b, shape), _by_chunk(c, shape)
    decays = _sum_decays(log_decay, dt, starts, shape)
    states, final = _entering_states(_scale(x, decays.written, shape), b, decays, initial_state, shape, keep_state)
    carried = torch.bmm(c, states)
    y = x.new_empty(x.shape)
    share = _heads_a_program(shape, shape.all_chunks)
    output_kernel[shape.all_chunks, shape.groups * _shares(shape, share)](
        x, dt, b, c, decays.total, decays.from_start, carried, _or(starts, dt), y, x.stride(0),
        shape.steps, shape.chunks, shape.all_chunks, share, **_inside(x, b, c, shape, starts),
    )  # fmt: skip
    return y, final


def run_backward(
    x: Tensor, dt: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None,
    starts: Tensor | None, dy: Tensor, dfinal: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x, dt, the log decays, B, C and the initial state (no rows where there is none).

    The states are computed again: keeping them would take several times the memory of x.
    """
    shape = shape_of(x, b)
    b, c = _by_chunk(b, shape), _by_chunk(c, shape)
    decays = _sum_decays(log_decay, dt, starts, shape)
    scaled_x, scaled_dy = _scale(x, decays.written, shape), _scale(dy, decays.from_start, shape)
    states, final = _entering_states(scaled_x, b, decays, initial_state, shape, dfinal is not None)
    gradients = torch.bmm(c.mT, scaled_dy)
    dc = torch.bmm(scaled_dy, states.mT)
    outputs = torch.bmm(c, states)
    over_ends, dinitial = _leaving_gradients(gradients, states, decays, final, dfinal, initial_state, shape)
    del states
    db = torch.bmm(scaled_x, gradients.mT)
    del scaled_x
    carried = torch.bmm(b, gradients)
    del gradients

    share = _heads_a_program(shape, shape.all_chunks)
    dx = x.new_empty(x.shape)
    ddt, dlog_decay, dtotal = torch.empty_like(dt), torch.empty_like(log_decay), torch.empty_like(decays.total)
    dproducts = dt.new_empty(_shares(shape, share), len(b), CHUNK, CHUNK)
    gradient_kernel[shape.all_chunks, shape.groups * _shares(shape, share)](
        x, dt, b, c, decays.total, decays.to_end, carried, _or(starts, dt), dy,
        dx, ddt, dtotal, dproducts, x.stride(0), shape.steps, shape.chunks, shape.all_chunks,
        share, **_inside(x, b, c, shape, starts),
    )  # fmt: skip
    padded = _power_of_2(shape.head_dim)
    heads_a_program = max(1, min(4, 128 // padded))
    decay_gradient_kernel[shape.all_chunks, -(-shape.heads // heads_a_program)](
        dtotal, scaled_dy, outputs, over_ends, _or(starts, dt), dlog_decay, shape.steps, shape.chunks, len(over_ends),
        **shape.constants(), Q=CHUNK, HB=heads_a_program, BP=padded, PACKED=starts is not None,
        HAS_INITIAL=initial_state is not None,
    )  # fmt: skip
    summed = dproducts.sum(0).to(b.dtype)
    db, dc = torch.baddbmm(db, summed, c), torch.baddbmm(dc, summed.mT, b)
    return dx, ddt, dlog_decay, _by_step(db, shape), _by_step(dc, shape), dinitial


def _sum_decays(log_decay: Tensor, dt: Tensor, starts: Tensor | None, shape: Shape) -> Decays:
    rows, heads_a_program = shape.all_chunks * CHUNK, 16
    decays = Decays(*(dt.new_empty(count, shape.heads) for count in (rows, rows, rows, rows, shape.all_chunks)))
    sum_decays_kernel[shape.all_chunks, -(-shape.heads // heads_a_program)](
        log_decay, dt, _or(starts, dt), *decays, shape.steps, shape.chunks,
        H=shape.heads, Q=CHUNK, HB=heads_a_program, PACKED=starts is not None,
    )  # fmt: skip
    return decays


def _scale(x: Tensor, factor: Tensor, shape: Shape) -> Tensor:
    """Return `x` `[B, T, H, P]` by chunk, `[G B chunks, CHUNK, D]`, each step and head times its factor."""
    out = x.new_empty(shape.groups * shape.all_chunks, CHUNK, shape.width)
    rows, columns = 16, 256
    scale_kernel[shape.all_chunks * CHUNK // rows, shape.groups * -(-shape.width // columns)](
        x, factor, out, x.stride(0), x.stride(1), shape.steps, shape.chunks,
        **shape.constants(), Q=CHUNK, R=rows, BD=columns, VECTOR=vector_width(x),
    )  # fmt: skip
    return out


def _entering_states(
    scaled_x: Tensor, b: Tensor, decays: Decays, initial_state: Tensor | None, shape: Shape, keep: bool
) -> tuple[Tensor, Tensor]:
    """Return the state that enters each chunk, `[G B chunks, N, D]`, and the final ones where they are kept."""
    states = torch.bmm(b.mT, scaled_x)
    final = _new_state(decays.total, shape, keep)
    carry_states_kernel[_state_grid(shape)](
        states, decays.whole, _or(initial_state, final), final, shape.chunks, shape.all_chunks,
        **shape.constants(), N=shape.state_dim, **STATE_TILE, HAS_INITIAL=initial_state is not None, KEEP=keep,
    )  # fmt: skip
    return states, final


def _leaving_gradients(
    gradients: Tensor, states: Tensor, decays: Decays, final: Tensor, dfinal: Tensor | None,
    initial_state: Tensor | None, shape: Shape,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Turn `gradients` into those of the states that leave the chunks; return parts of their products, and dinitial."""
    parts = -(-shape.state_dim // STATE_TILE["BN"])
    products = decays.total.new_empty(parts, len(states), shape.width)
    dinitial = _new_state(decays.total, shape, initial_state is not None)
    carry_gradients_kernel[_state_grid(shape)](
        gradients, states, decays.whole, final, _or(dfinal, final), dinitial, products, shape.chunks, shape.all_chunks,
        **shape.constants(), N=shape.state_dim, **STATE_TILE,
        HAS_FINAL=dfinal is not None, HAS_INITIAL=initial_state is not None,
    )  # fmt: skip
    return products, dinitial


def _state_grid(shape: Shape) -> tuple[int, int]:
    tiles = -(-shape.state_dim // STATE_TILE["BN"]) * -(-shape.width // STATE_TILE["BD"])
    return tiles, shape.batch * shape.groups


def _new_state(like: Tensor, shape: Shape, kept: bool) -> Tensor:
    return like.new_empty(shape.batch if kept else 0, shape.heads, shape.state_dim, shape.head_dim)


def _by_chunk(x: Tensor, shape: Shape) -> Tensor:
    """Return `[B, T, G, N]` as `[G B chunks, CHUNK, N]`: a view where one group's steps fill whole chunks."""
    x = functional.pad(x, (0, 0, 0, 0, 0, -shape.steps % CHUNK)) if shape.steps % CHUNK else x
    x = x.reshape(shape.batch, shape.chunks, CHUNK, shape.groups, shape.state_dim).movedim(3, 0).flatten(0, 2)
    return x if x.stride(0) == CHUNK * x.stride(1) else x.contiguous()


def _by_step(x: Tensor, shape: Shape) -> Tensor:
    """Undo `_by_chunk`."""
    x = x.view(shape.groups, shape.batch, shape.chunks * CHUNK, shape.state_dim)
    return x[:, :, : shape.steps].movedim(0, 2).contiguous()


def _inside(x: Tensor, b: Tensor, c: Tensor, shape: Shape, starts: Tensor | None) -> dict[str, Any]:
    """Return what the kernels inside chunks have in common."""
    return {
        **shape.constants(), "BP": max(16, _power_of_2(shape.head_dim)), "Q": CHUNK, "PACKED": starts is not None,
        "N": shape.state_dim, "BN": _columns(shape.state_dim), "X_STEP": x.stride(1),
        "B_ROW": b.stride(1), "C_ROW": c.stride(1),
        "num_warps": 4, "num_stages": 2,
    }  # fmt: skip


def _columns(state_dim: int) -> int:
    """Return how many columns of B and C a product takes at a time, so that there are two where it is possible.

    On Hopper triton 3.7.1 gets a single product of 64 columns wrong in front of a loop with head dims up to 32.
    """
    return min(64, max(16, _power_of_2(state_dim) // 2))


def _heads_a_program(shape: Shape, programs: int) -> int:
    """Return how many of its group's heads a program runs over, where one for all would give `programs` a group."""
    share = min(HEADS_A_PROGRAM, shape.heads // shape.groups)
    while share > 4 and programs * shape.groups * _shares(shape, share) < PROGRAMS:
        share = -(-share // 2)
    return share


def _shares(shape: Shape, share: int) -> int:
    return -(-(shape.heads // shape.groups) // share)


def _power_of_2(x: int) -> int:
    return 1 << (x - 1).bit_length()


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    return other if x is None else x
