from __future__ import annotations

import resource
import tempfile
from contextlib import nullcontext
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch

from archsearch.training.callbacks import SaveLast


class KilledError(Exception):
    """The process has ended."""


class Record(lightning.Callback):
    """Keep the tokens of every batch; end the process, so to say, before batch `kill_at`."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.kill_at = kill_at
        self.batches: list[torch.Tensor] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if len(self.batches) == self.kill_at:
            raise KilledError
        self.batches.append(batch["tokens"].clone())


def assert_equal(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert a == b


@pytest.mark.parametrize(
    ("arguments", "data", "schedule", "killed_at", "saved_at"),
    [
        ({"max_steps": 20}, {"num_workers": 0}, {}, 10, 10),
        ({"max_steps": 20}, {"num_workers": 2}, {}, 10, 10),
        ({"max_steps": 5, "accumulate_grad_batches": 4}, {"num_workers": 0}, {}, 10, 8),
        ({"max_steps": 20}, {"curriculum_start": 2, "curriculum_steps": 15}, {"tokens": 400}, 10, 10),
        # epochs of 7 batches: killed in the middle of the second
        ({"max_epochs": 3, "limit_train_batches": 7}, {"num_workers": 0}, {}, 10, 10),
    ],
    ids=["0 workers", "2 workers", "between accumulated batches", "by tokens", "in the second epoch"],
)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    tmp_path, words, model, trainer, arguments, data, schedule, killed_at, saved_at
):
    def run(kill_at=None, folder="whole", ckpt_path=None):
        record = Record(kill_at)
        built = model(schedule=schedule)
        engine = trainer(callbacks=[record, SaveLast(str(tmp_path / folder), every_seconds=0)], **arguments)
        try:
            engine.fit(built, datamodule=words(**data), ckpt_path=ckpt_path, weights_only=True if ckpt_path else None)
        except KilledError:
            return built, None, record.batches
        return built, engine.optimizers[0], record.batches

    whole, whole_optimizer, whole_batches = run()
    _, _, before = run(kill_at=killed_at, folder="killed")
    last = tmp_path / "killed" / "last.ckpt"
    lightning.seed_everything(99, verbose=False)  # what a new process starts from must not matter
    resumed, resumed_optimizer, after = run(folder="killed", ckpt_path=last)

    assert_equal(before, whole_batches[:killed_at])
    assert_equal(after, whole_batches[saved_at:])
    assert_equal(resumed.state_dict(), whole.state_dict())
    assert_equal(resumed_optimizer.state_dict(), whole_optimizer.state_dict())
    assert resumed.tokens_seen == whole.tokens_seen
    next_batch = words(**data).train_batches()(len(whole_batches))["tokens"]
    assert not torch.equal(whole_batches[-1], next_batch)
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == ["last.ckpt"]


def test_a_run_can_be_made_longer(tmp_path, words, model, trainer):
    trainer(max_steps=3, callbacks=[SaveLast(str(tmp_path))]).fit(model(), datamodule=words())
    record = Record()
    engine = trainer(max_steps=5, callbacks=[record, SaveLast(str(tmp_path))])
    engine.fit(model(), datamodule=words(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert engine.global_step == 5
    expected = [words().train_batches()(i)["tokens"] for i in (3, 4)]
    assert_equal(record.batches, expected)


def test_drawn_batches_go_on_by_their_number_whatever_their_size(tmp_path, words, model, trainer):
    trainer(max_steps=3, callbacks=[SaveLast(str(tmp_path))]).fit(model(), datamodule=words())
    record, data = Record(), words(batch_size=2)
    engine = trainer(max_steps=4, callbacks=[record])
    engine.fit(model(), datamodule=data, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert_equal(record.batches, [data.train_batches()(3)["tokens"]])


def test_a_run_that_overfits_sees_the_same_batches_in_every_pass_and_after_a_resume(tmp_path, words, model, trainer):
    first, resumed = Record(), Record()
    trainer(max_steps=5, overfit_batches=2, callbacks=[first, SaveLast(str(tmp_path))]).fit(model(), datamodule=words())
    engine = trainer(max_steps=8, overfit_batches=2, callbacks=[resumed])
    engine.fit(model(), datamodule=words(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    expected = [words().train_batches()(i % 2)["tokens"] for i in range(8)]
    assert_equal([*first.batches, *resumed.batches], expected)


def test_a_checkpoint_needs_no_other_place_than_its_own(tmp_path, words, model, trainer, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    callbacks = [SaveLast(str(tmp_path / "runs" / "one"))]
    trainer(max_steps=2, callbacks=callbacks).fit(model(), datamodule=words())
    assert [path.name for path in (tmp_path / "runs" / "one").iterdir()] == ["last.ckpt"]


def test_a_checkpoint_that_does_not_fit_is_an_error_that_names_the_file(tmp_path, words, model, trainer):
    engine = trainer(max_steps=1, callbacks=[SaveLast(str(tmp_path))])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))  # bytes: a full disk, but for the number of the error
    try:
        with pytest.raises(OSError, match=r"File too large: '.*/\.last\.ckpt\.writing'"):
            engine.fit(model(), datamodule=words())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


class Progress(lightning.Callback):
    """Keep the steps done after every batch, and after which batches there was a validation."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.validated: list[int] = []

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.steps.append(trainer.global_step)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.validated.append(trainer.fit_loop.total_batch_idx + 1)


@pytest.mark.parametrize("killed", [False, True], ids=["ended", "killed"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (3, 2)])
def test_a_resumed_run_may_accumulate_another_number_of_batches(tmp_path, words, model, trainer, before, after, killed):
    save = SaveLast(str(tmp_path), every_seconds=0 if killed else 60)
    callbacks = [Record(kill_at=3 * before if killed else None), save]
    first = trainer(max_steps=9 if killed else 3, accumulate_grad_batches=before, callbacks=callbacks)
    with pytest.raises(KilledError) if killed else nullcontext():
        first.fit(model(), datamodule=words())
    record, progress = Record(), Progress()
    validate = {"limit_val_batches": 1, "val_check_interval": 4, "check_val_every_n_epoch": None}
    engine = trainer(max_steps=5, accumulate_grad_batches=after, callbacks=[record, progress], **validate)
    engine.fit(model(), datamodule=words(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    taken = range(3 * before, 3 * before + 2 * after)
    assert_equal(record.batches, [words().train_batches()(i)["tokens"] for i in taken])
    assert progress.steps == [3 + n // after for n in range(1, 2 * after + 1)]
    assert progress.validated == [i + 1 for i in taken if (i + 1) % 4 == 0]


class StopAt(lightning.Callback):
    """Ask the run to stop once, after batch `number`."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.number:
            trainer.should_stop = True


@pytest.mark.parametrize(
    ("stop_at", "tokens"), [([StopAt(0)], None), ([], 30)], ids=["by a callback", "by the tokens seen"]
)
def test_a_run_stops_where_accumulated_batches_have_made_a_step(tmp_path, words, model, trainer, stop_at, tokens):
    save, record = SaveLast(str(tmp_path)), Record()
    engine = trainer(max_steps=9, accumulate_grad_batches=3, callbacks=[*stop_at, record, save])
    engine.fit(model(schedule={"tokens": tokens}), datamodule=words())
    assert (engine.global_step, len(record.batches)) == (1, 3)
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["tokens_seen"] == 3 * 24
