"""The fused passes around a recurrence: their PyTorch reference, and their Triton kernels without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from archsearch.kernels.gated_rms_norm.op import gated_rms_norm
from archsearch.kernels.packing import document_starts

ROOT = Path(__file__).parents[2]


def test_the_norm_is_of_the_gated_sum() -> None:
    y, gate, skip = (torch.randn(2, 5, 3, 4, dtype=torch.float64) for _ in range(3))
    skip_weight, weight = torch.randn(3, 4, dtype=torch.float64), torch.randn(12, dtype=torch.float64)
    out = gated_rms_norm(y, weight, 1e-5, gate=gate, skip=skip, skip_weight=skip_weight)
    z = ((y + skip_weight * skip) * gate * torch.sigmoid(gate)).reshape(2, 5, 12)
    torch.testing.assert_close(out, z / (z.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight)


def test_a_weight_of_one_heads_width_norms_each_head_alone() -> None:
    y, weight = torch.randn(1, 2, 3, 4), torch.randn(4)
    out = gated_rms_norm(y, weight, 1e-5)
    for head in range(3):
        expected = functional.rms_norm(y[:, :, head], (4,), weight, 1e-5)
        torch.testing.assert_close(out[..., 4 * head : 4 * head + 4], expected)


def test_a_weight_that_fits_neither_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the norm's weight must have 4 or 12 numbers; got \(5,\)"):
        gated_rms_norm(torch.randn(1, 2, 3, 4), torch.ones(5), 1e-5)


def test_each_step_knows_where_its_document_starts() -> None:
    assert document_starts(torch.tensor([0, 1, 3, 7]), 7).tolist() == [0, 1, 1, 3, 3, 3, 3]


@pytest.mark.slow
def test_the_interpreted_kernels_agree_with_the_float64_reference() -> None:
    pytest.importorskip("triton", reason="triton has no build for this platform")
    from tests.kernels.fused_cases import INTERPRETER, LIMITS

    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.fused_cases"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    errors = json.loads(run.stdout)
    assert set(errors) == set(map(str, INTERPRETER))
    for case, of in errors.items():
        assert len(of) >= 2, case  # the output and at least one gradient
        assert max(of.values()) < LIMITS[torch.float32], (case, of)
