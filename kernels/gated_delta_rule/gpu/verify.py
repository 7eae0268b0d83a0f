"""Check the gated delta rule's kernels at a head shape before their first use."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from archsearch.kernels import verify
from archsearch.kernels.gated_delta_rule.chunk import gated_delta_rule_chunked
from archsearch.kernels.gated_delta_rule.gpu.custom_op import gated_delta_rule_fla
from archsearch.kernels.heads import expand_heads
from archsearch.kernels.packing import read_documents


@verify.once
def why_wrong(heads: int, value_heads: int, key: int, value: int, dtype: torch.dtype, packed: bool) -> str | None:
    """Return why the kernels are not to be trusted at a head shape on this machine, and warn; None where they are."""

    def fast(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
        documents = read_documents(torch.tensor([0, verify.STEPS]), verify.STEPS, q.device) if packed else None
        return gated_delta_rule_fla(q, k, v, log_decay, beta, key**-0.5, None, documents, False)[0]

    def exact(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
        state = q.new_zeros(1, value_heads, key, value)
        q, k = expand_heads(q, value_heads), expand_heads(k, value_heads)
        return gated_delta_rule_chunked(q, k, v, log_decay, beta, key**-0.5, state)[0]

    sequence = 1, verify.STEPS
    q, k = (functional.normalize(verify.normal(*sequence, heads, key + i)[..., :key], dim=-1) for i in range(2))
    inputs = {
        "q": q.to(dtype),
        "k": k.to(dtype),
        "v": verify.normal(*sequence, value_heads, value).to(dtype),
        "the log decay": functional.logsigmoid(verify.normal(*sequence, value_heads) + 2),
        "beta": torch.sigmoid(verify.normal(*sequence, value_heads)),
    }
    shape = f"{heads} key heads of {key}, {value_heads} value heads of {value}, {str(dtype).removeprefix('torch.')}"
    return verify.why_wrong(shape, fast, exact, inputs)
