"""Tuned configurations of flash-linear-attention: which one a shape gets, and that a file keeps what was tuned."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from archsearch.kernels import fla, tuning
from archsearch.kernels.fla import SHIPPED, Tuned, load

BF16, FP16 = "torch.bfloat16", "torch.float16"


def test_a_tuned_shape_gets_its_own_choice_and_a_new_one_the_nearest_of_its_dtypes() -> None:
    tuned = Tuned({(2, 256, True, BF16): "wide", (2, 64, True, BF16): "narrow", (2, 100, True, FP16): "half"})
    assert tuned[2, 256, True, BF16] == "wide"
    assert tuned[2, 96, True, BF16] == "narrow"
    assert tuned[16, 250, True, BF16] == "wide"


def test_flags_count_before_sizes_and_anything_is_better_than_nothing() -> None:
    tuned = Tuned({(2, 64, False, BF16): "off", (2, 512, True, BF16): "on", (2, 64, True, BF16, BF16): "with a state"})
    assert tuned[2, 65, True, BF16] == "on"
    assert tuned[2, 65, True, BF16, BF16, BF16] == "with a state"
    assert (7, 7) in tuned


def test_a_kernel_that_was_never_tuned_is_left_to_the_tuner() -> None:
    tuned = Tuned({})
    assert (2, 64) not in tuned
    with pytest.raises(KeyError):
        tuned[2, 64]


@dataclass
class Config:
    kwargs: dict[str, int]
    num_warps: int = 4
    num_stages: int = 2
    num_ctas: int = 1
    maxnreg: int | None = None


@dataclass
class Tuner:
    cache: dict[tuple[Any, ...], Config]
    base_fn: Any = field(default_factory=lambda: SimpleNamespace(__name__="chunk_kernel"))


def test_a_file_keeps_what_was_tuned_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "version", lambda _: "1")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Test")
    path = tmp_path / "deep" / "card.json"
    for size, kwargs in ((64, {"BK": 32}), (256, {"BK": 64}), (64, {"BK": 16})):
        tuner = Tuner({(size, True, BF16): Config(kwargs)})
        monkeypatch.setattr(tuning, "tuners", lambda tuner=tuner: [tuner])
        tuning.save(path)
    entries = load(path)["chunk_kernel"]
    assert {key[0]: config["kwargs"] for key, config in entries} == {64: {"BK": 16}, 256: {"BK": 64}}
    assert list(path.parent.iterdir()) == [path]


def test_the_published_shape_is_shipped_for_the_h200() -> None:
    kernels = load(SHIPPED / "NVIDIA_H200.json")
    for name in ("chunk_fwd_kernel_o", "chunk_bwd_kernel_dqkwg", "prepare_wy_repr_bwd_kernel"):
        keys = [key for key, _ in kernels[name]]
        assert any(key[:4] == [2, 2, 256, 512] for key in keys), name


def test_without_a_gpu_the_reason_is_said() -> None:
    if not torch.cuda.is_available():
        assert fla.why_unavailable() == "no CUDA GPU"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kernels": {"chunk": [1]}}'])
def test_a_file_that_holds_no_configurations_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"card\.json: holds no tuned configurations; delete it"):
        load(path)
