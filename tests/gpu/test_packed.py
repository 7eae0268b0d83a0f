"""Packed documents on a GPU: attention by its own kernels, and a forward and backward pass that waits for nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from archsearch.architecture import Architecture
from archsearch.config import Where
from archsearch.kernels.attention.op import BACKENDS, attention
from archsearch.kernels.dispatch import calls
from archsearch.model.language_model import HybridLM
from archsearch.training.step import training_losses

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

BOUNDS = [0, 1, 65, 300, 512, 900, 1024]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(sum(shape)), device="cuda")


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("window", [None, 1, 100])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("dim", [8, 64, 128])
def test_attention_within_documents_and_its_gradients(window: int | None, kv_heads: int, dim: int) -> None:
    if reason := BACKENDS.missing()["varlen"]:
        pytest.skip(reason)
    counts = (4, kv_heads, kv_heads)
    low = [normal(1, 1024, heads, dim + i)[..., :dim].bfloat16() for i, heads in enumerate(counts, start=1)]
    dy, before = normal(1, 1024, 4, dim).bfloat16(), calls["attention", "varlen"]
    leaves = [x.requires_grad_() for x in low]
    y = attention(*leaves, window=window, cu_seqlens=torch.tensor(BOUNDS))
    assert calls["attention", "varlen"] == before + 1
    exact = [x.detach().double().requires_grad_() for x in low]
    alone = [attention(*(x[:, i:j] for x in exact), window=window) for i, j in pairwise(BOUNDS)]
    expected = torch.cat(alone, dim=1)
    actual = [y, *torch.autograd.grad(y, leaves, dy)]
    wanted = [expected, *torch.autograd.grad(expected, exact, dy.double())]
    if window == 1:  # a query that sees itself alone has no say: what is left of its gradient is rounding
        assert max(x.abs().max().item() for x in actual[1:3]) < 1e-2
        actual, wanted = actual[::3], wanted[::3]
    assert max(relative_error(a, b) for a, b in zip(actual, wanted, strict=True)) < 1e-2


@pytest.mark.parametrize("letter", "AGDSMNU")
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.filterwarnings("ignore")  # of torch.compile's own
def test_a_packed_pass_does_not_wait_for_the_gpu(letter: str, compiled: bool) -> None:
    if compiled and letter in "NU":
        pytest.skip("a loop over time as one graph takes minutes to translate")
    heads = {"num_heads": 2, "key_head_dim": 64, "value_head_dim": 64}
    mixers = {
        "A": {"type": "attention", "num_heads": 2, "num_kv_heads": 1, "rope": True},
        "G": {"type": "gated_deltanet", **heads},
        "D": {"type": "gated_deltaproduct", **heads},
        "S": {"type": "mamba2", "num_heads": 2, "head_dim": 64, "state_dim": 64},
        "M": {"type": "m2rnn", **heads, "value_head_dim": 16},
        "N": {"type": "rnn", "num_heads": 2, "head_dim": 16},
        "U": {"type": "gru", "num_heads": 2, "head_dim": 16},
    }
    values = {"hidden_size": 128, "vocab_size": 50, "pattern": letter * 2, "mixers": mixers}
    model = HybridLM(Architecture.from_dict({**values, "mlp": {"intermediate_size": 128}}, Where("x"))).cuda()
    if compiled:
        model.compile_blocks()
    tokens = torch.randint(50, (2, 512), device="cuda")

    def run(bounds: list[int]) -> None:
        batch = {"tokens": tokens, "targets": tokens, "cu_seqlens": torch.tensor(bounds)}
        with torch.autocast("cuda", torch.bfloat16):
            loss, _ = training_losses(model, batch)
        loss.backward()

    for bounds in (BOUNDS, BOUNDS, [0, 500, 512, 700, 1024]):
        run(bounds)  # compilation and checks of kernels may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        run([0, 2, 3, 500, 512, 1000, 1001, 1024])
    finally:
        torch.cuda.set_sync_debug_mode("default")
