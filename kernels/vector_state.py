"""What the ops whose state is one vector per head share: checks, shared heads, packed documents, the final state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from archsearch.kernels.dispatch import REFERENCE, Backends, full_precision
from archsearch.kernels.heads import expand_heads
from archsearch.kernels.packing import last_steps, pad, state_shape, unpad
from archsearch.kernels.steps import check_clip, clip_carried

WIDEST = 64
"""The largest head dim that the kernels take."""


def run_vector_state(
    run: Callable[..., Tensor],
    backends: Backends,
    inputs: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    *,
    initial_state: Tensor | None,
    gradient_clip: float | None,
    cu_seqlens: Tensor | None,
    backend: str,
    kernels: Callable[..., tuple[Tensor, Tensor]] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run `run(*inputs, *weights, state, clip)`, which returns all states, on any head counts and packed documents.

    Where the backend chosen is not the reference, `kernels(*inputs, *weights, state, clip, cu_seqlens)` does it all.

    `inputs` `[B, T, Nx, D]` and `weights` `[Nw, D, D]` by name: every count divides the largest, N, and head n reads
    head n // (N / count) of each. Returns the states `[B, T, N, D]` and the final ones `[B, N, D]` (one row per
    document when packed) in at least float32. Raises ValueError.
    """
    num_heads = _check(inputs, weights)
    first = next(iter(inputs.values()))
    shape = state_shape(first, cu_seqlens, (num_heads, first.shape[-1]), initial_state)
    check_clip(gradient_clip)
    refusal = why_refused([*inputs.values(), *weights.values()])
    if backends.choose(backend, first, {"triton": refusal} if refusal else None) != REFERENCE:
        assert kernels is not None, "a backend without kernels"
        return kernels(*inputs.values(), *weights.values(), initial_state, gradient_clip, cu_seqlens)

    dtype = torch.promote_types(first.dtype, torch.float32)
    state = first.new_zeros(shape, dtype=dtype) if initial_state is None else initial_state.to(dtype)
    rows = [x if cu_seqlens is None else pad(x, cu_seqlens) for x in inputs.values()]
    rows = [expand_heads(x, num_heads).to(dtype) for x in rows]
    matrices = [expand_heads(weight, num_heads, dim=0).to(dtype) for weight in weights.values()]
    with full_precision(first):
        states = run(*rows, *matrices, state, gradient_clip)
    final = clip_carried(states[:, -1] if cu_seqlens is None else last_steps(states, cu_seqlens), gradient_clip)
    y = states if cu_seqlens is None else unpad(states, cu_seqlens)
    return y.to(first.dtype), final


def why_refused(tensors: list[Tensor]) -> str | None:
    """Return why these inputs and weights rule the kernels out, or None."""
    dtypes = {x.dtype for x in tensors}
    if not dtypes <= {torch.bfloat16, torch.float16, torch.float32}:
        return f"its kernels take bfloat16, float16 or float32; got {', '.join(sorted(map(str, dtypes)))}"
    if tensors[0].shape[-1] > WIDEST:
        return f"its kernels take head dims up to {WIDEST}; got {tensors[0].shape[-1]}"
    if any(0 in x.shape for x in tensors):
        return f"its kernels take no empty tensors; got {', '.join(str(tuple(x.shape)) for x in tensors)}"
    return None


def _check(inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> int:
    first = next(iter(inputs.values()))
    size = first.shape[-1]
    steps_fit = all(x.shape[:2] == first.shape[:2] and x.shape[-1] == size for x in inputs.values())
    if not steps_fit or any(weight.shape[1:] != (size, size) for weight in weights.values()):
        got = ", ".join(f"{name} {tuple(x.shape)}" for name, x in {**inputs, **weights}.items())
        raise ValueError(f"inputs must share batch, length and head dim D, and weights be D x D; got {got}")
    counts = [*(x.shape[2] for x in inputs.values()), *(weight.shape[0] for weight in weights.values())]
    if any(max(counts) % count for count in counts):
        raise ValueError(f"every head count must divide the largest; got {', '.join([*inputs, *weights])} = {counts}")
    return max(counts)
