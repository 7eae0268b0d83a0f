"""Blocks replayed as CUDA graphs train as they do when they are launched one kernel at a time."""

from __future__ import annotations

import copy

import lightning.pytorch as lightning
import pytest
import torch

from archsearch.architecture import resolve
from archsearch.config import ConfigError
from archsearch.data import StateTracking
from archsearch.model.language_model import HybridLM
from archsearch.training.module import LanguageModel
from archsearch.training.step import OptimizerOptions, build_optimizer, train_step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


def batch(seed: int, rows: int = 2, length: int = 200) -> dict[str, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    tokens = torch.randint(256, (rows, length + 1), generator=generator, device="cuda")
    return {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}


def build(pattern: str) -> HybridLM:
    torch.manual_seed(0)
    architecture = resolve(pattern)
    return HybridLM(type(architecture)(**{**vars(architecture), "vocab_size": 256})).cuda()


def train(model: HybridLM, record: bool) -> list[float]:
    """Return the losses of five steps in bfloat16 autocast, the last on rows of another length."""
    optimizer = build_optimizer(model, OptimizerOptions(learning_rate=1e-3))
    losses = []
    with torch.autocast("cuda", torch.bfloat16):
        if record:
            model.record_blocks(2, 200)
        for step in range(5):
            losses.append(train_step(model, optimizer, batch(step, length=200 if step < 4 else 100), 1.0).item())
    return losses


@pytest.mark.parametrize("pattern", ["RMA", "SD"])
def test_losses_and_weights_are_those_of_plain_launches(pattern: str) -> None:
    plain, recorded = build(pattern), build(pattern)
    expected, actual = train(plain, False), train(recorded, True)
    assert actual == pytest.approx(expected, abs=2e-3)
    for a, b in zip(recorded.parameters(), plain.parameters(), strict=True):
        assert (a - b).norm() <= 1e-2 * b.norm()


def test_evaluation_and_generation_run_as_before() -> None:
    model = build("RMA")
    with torch.autocast("cuda", torch.bfloat16):
        model.record_blocks(2, 200)
        model.eval()
        logits, states = model(batch(0)["tokens"])
    assert logits.shape == (2, 200, 256)
    assert states is not None
    assert len(states) == 3


def test_a_model_that_is_garbage_by_then_does_not_disturb_the_next() -> None:
    for pattern in ("RMA", "MM", "SA"):
        model = build(pattern)
        model.own = model  # only a collection frees it
        assert all(loss > 0 for loss in train(model, True))


def fitted(cuda_graphs: bool) -> LanguageModel:
    """Return a model that Lightning has trained for eight steps on words of four to six letters."""
    torch.manual_seed(0)
    data = StateTracking(length=6, batch_size=16, curriculum_start=4, curriculum_hold=2, curriculum_steps=4, seed=0)
    model = LanguageModel(pattern="RMA", vocab_size=data.vocab_size, cuda_graphs=cuda_graphs)
    trainer = lightning.Trainer(
        max_steps=8, precision="bf16-mixed", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(model, datamodule=data)
    return model


@pytest.mark.filterwarnings("ignore:.*(GPU|dataloader|workers)")
def test_fit_records_each_shape_of_batch_and_trains_as_it_does_without() -> None:
    plain, recorded = fitted(False), fitted(True)
    assert len(recorded.model._recorded) >= 2
    for a, b in zip(recorded.parameters(), plain.parameters(), strict=True):
        assert (a - b).norm() <= 1e-2 * b.norm().clamp(min=1e-3)


def test_what_cannot_be_recorded_is_refused() -> None:
    model = build("RM")
    checkpointed = copy.deepcopy(model)
    checkpointed.activation_checkpointing = True
    with pytest.raises(ConfigError, match="cuda_graphs: cannot be combined with activation_checkpointing or compile"):
        checkpointed.record_blocks(2, 8)
    with pytest.raises(ConfigError, match="cuda_graphs: needs a CUDA GPU"):
        model.cpu().record_blocks(2, 8)
