from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.training.run import NotFiniteError, train_and_evaluate

TINY = {
    "hidden_size": 16,
    "pattern": "M",
    "mixers": {"M": {"type": "m2rnn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4}},
    "mlp": {"intermediate_size": 16},
}
ARCHITECTURE = Architecture.from_dict(TINY, Where("tiny"))
WORDS = {"length": 6, "batch_size": 4, "eval_size": 8}


def run(**arguments: Any) -> dict[str, float]:
    return train_and_evaluate(ARCHITECTURE, "StateTracking", WORDS, eval_lengths=[9], **arguments)


def without_time(metrics):
    return {name: value for name, value in metrics.items() if name not in ("seconds", "train_loss")}


def test_metrics_are_named_by_length(capfd):
    metrics = run(max_tokens=24 * 3)
    names = {"loss", "perplexity", "accuracy", "last_accuracy"}
    lengths = {f"{name}/{length}" for name in names for length in (6, 9)}
    assert set(metrics) == names | lengths | {"train_loss", "tokens", "seconds", "stopped"}
    assert metrics["loss"] == metrics["loss/6"]
    assert metrics["tokens"] == 72
    assert all(math.isfinite(value) for value in metrics.values())
    assert capfd.readouterr() == ("", "")


def test_the_same_seed_gives_the_same_figures():
    assert without_time(run(max_steps=2, seed=3)) == without_time(run(max_steps=2, seed=3))
    assert run(max_steps=2, seed=3)["loss"] != run(max_steps=2, seed=4)["loss"]


def test_what_srun_says_of_the_search_is_not_said_of_a_run(monkeypatch):
    tasks = {"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "search", "SLURM_PROCID": "3"}
    for name, value in tasks.items():
        monkeypatch.setenv(name, value)
    assert run(max_steps=1)["tokens"] == 24


def test_a_run_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    whole = run(max_steps=6)
    monkeypatch.setattr("archsearch.training.run.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("archsearch.training.run.REPORT_SECONDS", 0.0)

    def kill(news):
        if news["step"] == 4:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(max_steps=6, checkpoint_dir=tmp_path, progress=kill)
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 3
    assert without_time(run(max_steps=6, checkpoint_dir=tmp_path)) == without_time(whole)
    nothing_left = run(max_steps=6, checkpoint_dir=tmp_path)
    assert without_time(nothing_left) == without_time(whole)
    assert all(math.isfinite(value) for value in nothing_left.values())  # a trial would have failed by a NaN


def test_progress_is_reported_and_a_run_can_be_stopped(monkeypatch):
    monkeypatch.setattr("archsearch.training.run.REPORT_SECONDS", 0.0)
    news: list[dict[str, Any]] = []
    metrics = run(max_steps=9, progress=news.append, stop=lambda: len(news) == 2)
    assert [x["step"] for x in news] == [1, 2, 3]
    assert news[-1]["total_steps"] == 9
    assert news[-1]["tokens"] == metrics["tokens"] == 72
    assert metrics["stopped"] == 1.0


def test_a_loss_that_is_not_finite_ends_the_run():
    with pytest.raises(NotFiniteError, match="the loss is nan at step"):
        run(max_steps=40, optimizer={"learning_rate": 1e30, "grad_clip": None})


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        ("StateTraking", {"max_steps": 1}, "data: unknown 'StateTraking' .did you mean 'StateTracking'"),
        ("StateTracking", {}, "one of max_tokens and max_steps must be given; got None and None"),
        ("StateTracking", {"max_steps": 1, "optimizer": {"lr": 1}}, r"model\.optimizer: lr: unknown key"),
    ],
)
def test_what_cannot_be_run_is_refused(data, arguments, message):
    with pytest.raises(ConfigError, match=message):
        train_and_evaluate(ARCHITECTURE, data, WORDS, **arguments)
