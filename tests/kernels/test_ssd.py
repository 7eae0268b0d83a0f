from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from archsearch.kernels.ssd.chunk import ssd_chunked
from archsearch.kernels.ssd.op import ssd
from archsearch.kernels.ssd.reference import ssd_loop

ROOT = Path(__file__).parents[2]
EXACT = {"rtol": 1e-9, "atol": 1e-10}  # float64: only the order of sums differs


def inputs(length: int, decay: float = 1.0, groups: int = 4) -> list[Tensor]:
    """Draw x, log_decay (about -decay), B, C and state for 2 sequences, 4 heads of 19, state dim 5."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    b, c = draw(2, length, groups, 5), draw(2, length, groups, 5)
    return [draw(2, length, 4, 19), -decay * draw(2, length, 4).abs(), b, c, draw(2, 4, 5, 19)]


def with_gradients(run: object, values: list[Tensor]) -> list[Tensor]:
    leaves = [value.clone().requires_grad_() for value in values]
    y, final = run(*leaves)  # type: ignore[operator]
    generator = torch.Generator().manual_seed(1)
    from_above = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in (y, final)]
    return [y, final, *torch.autograd.grad((y, final), leaves, from_above)]


def test_the_loop_is_the_equation() -> None:
    x, log_decay, b, c, state = inputs(3)
    y, final = ssd_loop(x, log_decay, b, c, state)
    h = state[1, 2]
    for t in range(3):
        h = log_decay[1, t, 2].exp() * h + torch.outer(b[1, t, 2], x[1, t, 2])
        torch.testing.assert_close(y[1, t, 2], h.T @ c[1, t, 2], **EXACT)
    torch.testing.assert_close(final[1, 2], h, **EXACT)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 100, 200])
@pytest.mark.parametrize("decay", [0.01, 1.0])
def test_chunks_are_the_loop_with_every_gradient(length: int, decay: float) -> None:
    values = inputs(length, decay)
    torch.testing.assert_close(with_gradients(ssd_chunked, values), with_gradients(ssd_loop, values), **EXACT)


def test_a_decay_that_forgets_everything_leaves_finite_gradients() -> None:
    values = [value.float() for value in inputs(100, decay=200.0)]
    actual = with_gradients(ssd_chunked, values)
    assert all(x.isfinite().all() for x in actual)
    torch.testing.assert_close(actual, with_gradients(ssd_loop, values), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("length", [4, 20])
def test_the_heads_of_a_group_share_b_and_c_and_dt_scales_what_is_written(groups: int, length: int) -> None:
    x, log_decay, b, c, state = inputs(length, groups=groups)
    dt = -log_decay / 3
    actual = ssd(x, dt, log_decay, b, c, initial_state=state)
    b, c = (part.repeat_interleave(4 // groups, dim=2) for part in (b, c))
    torch.testing.assert_close(actual, ssd_loop(x * dt[..., None], log_decay, b, c, state), **EXACT)


@pytest.mark.parametrize("bounds", [[0, 3, 5], [0, 30, 100]])
def test_packed_documents_end_in_their_own_states(bounds: list[int]) -> None:
    x, log_decay, b, c, _ = (part[:1] for part in inputs(bounds[-1]))
    dt = -log_decay
    y, final = ssd(x, dt, log_decay, b, c, cu_seqlens=torch.tensor(bounds))
    for i, (start, stop) in enumerate(pairwise(bounds)):
        _, alone = ssd(*(part[:, start:stop] for part in (x, dt, log_decay, b, c)))
        torch.testing.assert_close(final[i], alone[0], **EXACT)
    without, none = ssd(x, dt, log_decay, b, c, cu_seqlens=torch.tensor(bounds), keep_state=False)
    assert torch.equal(without, y)
    assert none.shape == (0, *final.shape[1:])


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, log_decay, b, c, state = inputs(4)
    dt = -log_decay
    with pytest.raises(ValueError, match=r"groups must divide x's heads; got x \(2, 4, 4, 19\), B \(2, 4, 3, 5\)"):
        ssd(x, dt, log_decay, b[:, :, :3], c[:, :, :3])
    with pytest.raises(ValueError, match=r"log_decay must have shape \(2, 4, 4\); got \(2, 4, 1\)"):
        ssd(x, dt, log_decay[..., :1], b, c)
    with pytest.raises(ValueError, match=r"dt must have shape \(2, 4, 4\); got \(2, 3, 4\)"):
        ssd(x, dt[:, 1:], log_decay, b, c)
    with pytest.raises(ValueError, match=r"initial_state must have shape \(2, 4, 5, 19\); got \(1, 4, 5, 19\)"):
        ssd(x, dt, log_decay, b, c, initial_state=state[:1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "bfloat16 or float16; got float64"),
        ({"dtype": torch.bfloat16, "length": 8}, "more than 8 steps; got 8"),
        ({"dtype": torch.bfloat16, "head_dim": 129}, "head dims up to 128; got 129"),
        ({"dtype": torch.bfloat16, "packed": True}, r"no states of packed documents \(keep_state=False\)"),
    ],
)
def test_the_kernels_are_refused_by_name_where_they_do_not_run(change: dict[str, object], reason: str) -> None:
    case = {"dtype": torch.float64, "length": 9, "head_dim": 2, "packed": False, **change}
    x = torch.zeros(1, case["length"], 2, case["head_dim"], dtype=case["dtype"])  # type: ignore[call-overload]
    shared, bounds = torch.zeros_like(x[..., :1]), torch.tensor([0, 4, 9]) if case["packed"] else None
    with pytest.raises(ValueError, match=f"backend 'triton' cannot be used: its kernels .*{reason}"):
        ssd(x, x[..., 0], x[..., 0], shared, shared, cu_seqlens=bounds, backend="triton")


@pytest.mark.slow
def test_the_interpreted_kernels_agree_with_the_float64_reference() -> None:
    pytest.importorskip("triton", reason="triton has no build for this platform")
    from tests.kernels.ssd_cases import INTERPRETER, LIMITS

    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.ssd_cases"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    errors = json.loads(run.stdout)
    assert set(errors) == set(map(str, INTERPRETER))
    for case, of in errors.items():
        assert len(of) >= 6, case  # y and five gradients
        assert max(of.values()) < LIMITS[torch.float32], (case, of)
