"""Check the state-space kernels at a head shape before their first use."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels import verify
from archsearch.kernels.heads import expand_heads
from archsearch.kernels.ssd.chunk import ssd_chunked
from archsearch.kernels.ssd.gpu.custom_op import ssd_triton


@verify.once
def why_wrong(heads: int, groups: int, head_dim: int, state_dim: int, dtype: torch.dtype, packed: bool) -> str | None:
    """Return why the kernels are not to be trusted at a head shape on this machine, and warn; None where they are."""

    def fast(x: Tensor, dt: Tensor, log_decay: Tensor, b: Tensor, c: Tensor) -> Tensor:
        starts = torch.zeros(verify.STEPS, dtype=torch.int32, device="cuda") if packed else None
        return ssd_triton(x, dt, log_decay, b, c, None, starts, not packed)[0]

    def exact(x: Tensor, dt: Tensor, log_decay: Tensor, b: Tensor, c: Tensor) -> Tensor:
        state = x.new_zeros(1, heads, state_dim, head_dim)
        b, c = expand_heads(b, heads), expand_heads(c, heads)
        return ssd_chunked(x * dt[..., None], log_decay, b, c, state)[0]

    sequence = 1, verify.STEPS
    b, c = (verify.normal(*sequence, groups, state_dim + i)[..., :state_dim] * state_dim**-0.5 for i in range(2))
    inputs = {
        "x": verify.normal(*sequence, heads, head_dim).to(dtype),
        "dt": torch.sigmoid(verify.normal(*sequence, heads + 1)[..., :heads]),
        "the log decay": functional.logsigmoid(verify.normal(*sequence, heads) + 2),
        "B": b.to(dtype),
        "C": c.to(dtype),
    }
    shape = f"{heads} heads of {head_dim}, {groups} groups, state {state_dim}, {str(dtype).removeprefix('torch.')}"
    return verify.why_wrong(shape, fast, exact, inputs)
