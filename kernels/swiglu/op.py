"""The gate of a SwiGLU MLP: `silu(gate) * up`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels.dispatch import REFERENCE, Backends, why_no_triton

BACKENDS = Backends("swiglu", {"triton": why_no_triton})


def swiglu(gate_up: Tensor, *, backend: str = "auto") -> Tensor:
    """Return `silu(gate) * up` `[..., I]` for gate and up side by side in `gate_up` `[..., 2 I]`."""
    refusal = None
    if gate_up.dtype not in (torch.bfloat16, torch.float16, torch.float32) or 0 in gate_up.shape:
        got = f"{str(gate_up.dtype).removeprefix('torch.')} {tuple(gate_up.shape)}"
        refusal = f"its kernels take non-empty bfloat16, float16 or float32; got {got}"
    if BACKENDS.choose(backend, gate_up, {"triton": refusal} if refusal else None) != REFERENCE:
        from archsearch.kernels.swiglu.gpu.custom_op import swiglu_triton  # some platforms lack Triton

        return swiglu_triton(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up
