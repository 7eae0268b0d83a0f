"""What happens around a step does not wait for the device: a GPU that is asked for a number has to finish its work."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import RichProgressBar

from archsearch.training import callbacks
from archsearch.training.callbacks import ProgressBar, TokensPerSecond
from archsearch.training.metrics import LanguageMetrics
from tests.read_back import ReadBack


def test_what_is_logged_at_every_step_is_a_tensor_already(model, words, trainer, monkeypatch):
    """Lightning would copy a number to the GPU, and wait for that."""
    built, logged = model(), {}
    log = type(built).log
    monkeypatch.setattr(type(built), "log", lambda *a, **b: (logged.update({a[1]: a[2]}), log(*a, **b)))
    trainer(max_steps=3, callbacks=[TokensPerSecond()]).fit(built, datamodule=words())
    assert {"train/loss", "train/tokens", "tokens/s"} <= logged.keys()
    assert all(isinstance(value, torch.Tensor) for value in logged.values()), logged
    assert {logged[name].device.type for name in ("train/tokens", "tokens/s")} == {"cpu"}
    assert logged["train/tokens"] == 3 * 4 * 6


def test_the_bar_asks_for_the_loss_once_a_second(monkeypatch):
    reads, now = [], 0.0
    monkeypatch.setattr(RichProgressBar, "get_metrics", lambda *_: reads.append(now) or {"loss": now, "v_num": 1})
    monkeypatch.setattr(RichProgressBar, "on_train_epoch_end", lambda *_: None)
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: now))
    bar, training, validating = ProgressBar(), SimpleNamespace(training=True), SimpleNamespace(training=False)
    shown = []
    for now in (0.0, 0.4, 0.9, 1.1, 1.2, 2.5):  # noqa: B007 - read above
        shown.append(bar.get_metrics(training, None)["loss"])
    assert shown == [0.0, 0.0, 0.0, 1.1, 1.1, 2.5]
    now = 2.6
    assert bar.get_metrics(validating, None) == {"loss": 2.6}
    now = 2.7
    bar.on_train_epoch_end(training, None)
    assert bar.get_metrics(training, None) == {"loss": 2.7}
    assert reads == [0.0, 1.1, 2.5, 2.6, 2.7]


@pytest.mark.parametrize("groups", [(), ("near", "far")])
def test_an_evaluation_batch_is_summed_without_asking(groups):
    metrics = LanguageMetrics(("exact",), groups)
    targets = torch.tensor([[1, 0, -100], [2, 2, 1]])
    with ReadBack() as read_back:
        metrics.update(torch.randn(2, 3, 4), targets, torch.tensor([[0, 1, 1], [-1, 0, 1]]) if groups else None)
    assert read_back.ops == []
    assert metrics.group_scored.tolist() == ([2, 2] if groups else [])
