"""The gated delta product (Siems et al., arXiv:2502.10297): several delta-rule steps per token."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from archsearch.kernels.gated_delta_rule.op import gated_delta_rule
from archsearch.kernels.packing import stretched


def gated_delta_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    *,
    scale: float = 1.0,
    normalise: bool = False,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return `y_t = scale S_t^T q_t` and the final state, S_t made from S_{t-1} by n steps (section 3 there).

    `S_{t,0} = a_t S_{t-1}`, `S_{t,i} = (I - b_{t,i} k_{t,i} k_{t,i}^T) S_{t,i-1} + b_{t,i} k_{t,i} v_{t,i}^T`,
    `S_t = S_{t,n}`. `q` `[B, T, Nk, K]`, `k` `[B, T, n, Nk, K]`, `v` `[B, T, n, N, V]`, `log_decay` `[B, T, N]`, `beta`
    `[B, T, n, N]`; all else as `gated_delta_rule`, which runs it as n T steps: it decays at the first step of a token
    only, and its outputs at the other steps than the last are dropped. Raises ValueError.
    """
    n = k.shape[2]
    with stretched(cu_seqlens, n) as bounds:
        y, final = gated_delta_rule(
            _spread(q, n, last=True),
            k.flatten(1, 2),
            v.flatten(1, 2),
            _spread(log_decay, n, last=False),
            beta.flatten(1, 2),
            scale=scale,
            normalise=normalise,
            initial_state=initial_state,
            cu_seqlens=bounds,
            backend=backend,
        )
    return y[:, n - 1 :: n], final


def _spread(x: Tensor, n: int, last: bool) -> Tensor:
    """Return `[B, T, ...]` as `[B, n T, ...]`: each at its token's first or last step, zeros at the others."""
    if n == 1:
        return x  # not the copy that padding by nothing would be
    around = (n - 1, 0) if last else (0, n - 1)
    return functional.pad(x.unsqueeze(2), (0, 0) * (x.ndim - 2) + around).flatten(1, 2)
