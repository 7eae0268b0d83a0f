"""Evaluations on the way: they see what an evaluation at the end would see, and leave no trace."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from archsearch.data.evaluation import Evaluation
from archsearch.training import rungs
from archsearch.training.rungs import Rungs
from tests.training.test_resume import assert_equal
from tests.training.test_run import run, without_time


@pytest.fixture(autouse=True)
def _often(monkeypatch: Any) -> None:
    monkeypatch.setattr("archsearch.training.run.REPORT_SECONDS", 0.0)


def climb(steps: list[int], metrics: tuple[str, ...] = ("loss", "accuracy/9"), **arguments: Any) -> Any:
    """Train for six steps; returns the final metrics and the rungs' ones by step."""
    seen: dict[int, dict[str, float]] = {}
    found = run(max_steps=6, rungs=Rungs(steps=steps, metrics=metrics, report=seen.__setitem__), **arguments)
    return found, seen


def generators() -> list[Any]:
    return [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]


def test_a_training_with_rungs_is_the_same_bit_for_bit(tmp_path, monkeypatch):
    def draw(*arguments):
        torch.rand(3), random.random(), np.random.rand()  # whatever an evaluation may draw
        return update(*arguments)

    update = rungs._update
    monkeypatch.setattr(rungs, "_update", draw)
    plain = run(max_steps=6, checkpoint_dir=tmp_path / "plain")
    after_plain = generators()
    climbed, seen = climb([1, 4], checkpoint_dir=tmp_path / "climbed")
    assert list(seen) == [1, 4]
    assert_equal(generators(), after_plain)
    assert without_time(climbed) == without_time(plain)
    one, other = (torch.load(tmp_path / name / "last.ckpt", weights_only=True) for name in ("plain", "climbed"))
    for name in ("state_dict", "optimizer_states", "lr_schedulers", "tokens_seen"):
        assert_equal(one[name], other[name])


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_rung_sees_what_an_evaluation_at_the_end_sees(precision):
    wanted = ("loss", "accuracy", "loss/9", "last_accuracy/6")
    _, seen = climb([3], wanted, precision=precision)
    looked: list[Any] = []
    stopped = run(max_steps=6, precision=precision, progress=looked.append, stop=lambda: len(looked) == 2)
    assert stopped["tokens"] == 3 * 24
    assert seen == {3: {name: stopped[name] for name in wanted}}


def test_a_rung_looks_at_what_is_wanted_and_leaves_the_model_in_training(monkeypatch):
    def look(metrics, module, batch, number):
        looked.append((number, module.training))
        models.add(module)
        update(metrics, module, batch, number)

    looked: list[tuple[int, bool]] = []
    models: set[Any] = set()
    update = rungs._update
    monkeypatch.setattr(rungs, "_update", look)

    def report(_, found):
        assert list(found) == ["accuracy/9"]
        assert all(part.training for part in models.pop().modules())

    run(max_steps=3, rungs=Rungs(steps=[2], metrics=["accuracy/9"], report=report))
    assert set(looked) == {(1, False)}


def test_a_killed_run_goes_on_between_its_rungs(tmp_path, monkeypatch):
    whole, expected = climb([1, 5])
    monkeypatch.setattr("archsearch.training.run.CHECKPOINT_SECONDS", 0.0)

    def kill(news):
        if news["step"] == 4:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        climb([1, 5], checkpoint_dir=tmp_path, progress=kill)
    resumed, seen = climb([5], checkpoint_dir=tmp_path)
    assert seen == {5: expected[5]}
    assert without_time(resumed) == without_time(whole)


@pytest.mark.parametrize(
    ("evaluation", "wanted", "holds"),
    [
        (Evaluation(length=16), ["accuracy/16"], True),
        (Evaluation(length=16), ["accuracy"], False),
        (Evaluation(length=16, standard=True), ["accuracy"], True),
        (Evaluation(length=16), ["accuracy/16/depth_50"], True),
        (Evaluation(length=16), ["accuracy/160"], False),
        (Evaluation(length=16, part="s3", standard=True), ["loss/s3"], True),
        (Evaluation(length=16, part="s3", standard=True), ["loss/s5", "loss/s3/32"], False),
        (Evaluation(length=16, part="s3", variant="32_pairs"), ["exact/s3/16/32_pairs"], True),
    ],
)
def test_only_sets_that_a_wanted_metric_is_of_are_evaluated(evaluation, wanted, holds):
    assert rungs._holds_any(evaluation, wanted) is holds
