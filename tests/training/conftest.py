from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import lightning.pytorch as lightning
import pytest

from archsearch.data import StateTracking
from archsearch.training.module import LanguageModel

TINY = {
    "hidden_size": 16,
    "pattern": "M",
    "mixers": {"M": {"type": "m2rnn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4}},
    "mlp": {"intermediate_size": 16},
}


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """Lightning's own use of what torch has deprecated is no warning of ours."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\).*")
        yield


@pytest.fixture
def words() -> Callable[..., StateTracking]:
    def build(**arguments: Any) -> StateTracking:
        return StateTracking(**{"length": 6, "batch_size": 4, "eval_lengths": [9], "eval_size": 8, **arguments})

    return build


@pytest.fixture
def model() -> Callable[..., LanguageModel]:
    def build(**arguments: Any) -> LanguageModel:
        lightning.seed_everything(1, verbose=False)
        return LanguageModel(**{"architecture": TINY, "vocab_size": 6, **arguments})

    return build


@pytest.fixture
def trainer(tmp_path: Any) -> Callable[..., lightning.Trainer]:
    def build(**arguments: Any) -> lightning.Trainer:
        quiet = {
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": bool(arguments.get("callbacks")),
            "accelerator": "cpu",
            "max_epochs": -1,
            "limit_val_batches": 0,
            "default_root_dir": tmp_path,
        }
        return lightning.Trainer(**{**quiet, **arguments})

    return build
