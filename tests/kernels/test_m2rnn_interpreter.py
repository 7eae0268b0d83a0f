"""The plain-Triton kernels of M²RNN on the CPU, in a process of their own: Triton reads TRITON_INTERPRET at import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.m2rnn_cases import INTERPRETER, LIMITS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_interpreted_kernels_agree_with_the_float64_loop() -> None:
    pytest.importorskip("triton", reason="triton has no build for this platform")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.m2rnn_cases"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    errors = json.loads(run.stdout)
    assert set(errors) == set(map(str, INTERPRETER))
    for case, of in errors.items():
        assert len(of) >= 7, case  # y, the final state and at least five gradients
        assert max(of.values()) < LIMITS[torch.float32], (case, of)
