import math

import lightning.pytorch as lightning
import pytest
import torch

from archsearch.architecture import small
from archsearch.config import ConfigError
from archsearch.data import Mixture, Recall, Text
from archsearch.data.stream import IGNORED
from archsearch.training import step
from archsearch.training.callbacks import SaveLast, TokensPerSecond
from archsearch.training.module import LanguageModel, describe


class Rates(lightning.Callback):
    def __init__(self):
        self.rates, self.speeds = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.speeds.append(trainer.callback_metrics.get("tokens/s"))


def rates(trainer, model, data, **arguments):
    record = Rates()
    trainer(callbacks=[record], enable_checkpointing=False, **arguments).fit(model, datamodule=data)
    return record.rates


def test_a_word_problem_is_learnt(words, model, trainer):
    learner = model(optimizer={"learning_rate": 0.02, "weight_decay": 0.0})
    data = words(group="Z2", length=3, batch_size=64, eval_lengths=[])
    engine = trainer(max_steps=60, limit_val_batches=1.0)
    engine.fit(learner, datamodule=data)
    metrics = engine.validate(learner, datamodule=data, verbose=False)[0]
    assert metrics["val/accuracy"] > 0.95
    assert metrics["val/loss"] < 0.3


def test_metrics_are_those_of_the_logits_at_each_length(words, model, trainer):
    learner, data = model(), words(batch_size=5)
    results = trainer(limit_val_batches=1.0).validate(learner, datamodule=data, verbose=False)
    metrics = {key: value for result in results for key, value in result.items()}
    for length in (6, 9):
        batch_at, stop = data.eval_batches("val", length)
        batches = [batch_at(i) for i in range(stop)]
        tokens, targets = (torch.cat([batch[name] for batch in batches]) for name in ("tokens", "targets"))
        assert tokens.shape == (8, length)
        logits = learner(tokens)
        hits = logits.argmax(-1) == targets
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
        assert metrics[f"val/loss/{length}"] == pytest.approx(loss, rel=1e-5)
        assert metrics[f"val/perplexity/{length}"] == pytest.approx(math.exp(loss), rel=1e-5)
        assert metrics[f"val/accuracy/{length}"] == pytest.approx(hits.float().mean().item())
        assert metrics[f"val/last_accuracy/{length}"] == pytest.approx(hits[:, -1].float().mean().item())
    assert metrics["val/loss"] == metrics["val/loss/6"]


def test_text_trains_on_packed_documents_and_has_no_last_position(tmp_path, model, trainer):
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text("abc " * (i + 1))
    data = Text(str(tmp_path), "*.txt", length=12, batch_size=2, cache_dir=str(tmp_path / "cache"), eval_tokens=24)
    learner = model(vocab_size=257)
    engine = trainer(max_steps=3, limit_val_batches=1.0)
    engine.fit(learner, datamodule=data)
    metrics = engine.test(learner, datamodule=data, verbose=False)[0]
    assert metrics["test/loss/12"] < math.log(300)
    assert not any("last" in name for name in metrics)


def scores(learner, data, evaluation):
    """Return the metrics of an evaluation by hand: of all scored positions, of each group, and the exact rows."""
    batch_at, stop = data.eval_set("val", evaluation)
    batches = [batch_at(i) for i in range(stop)]
    tokens, targets, groups = (torch.cat([b[name] for b in batches]) for name in ("tokens", "targets", "groups"))
    log_probabilities = learner(tokens).log_softmax(-1)
    losses = -log_probabilities.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    hits = log_probabilities.argmax(-1) == targets
    for number, group in [(None, ""), *enumerate(evaluation.groups)]:
        chosen = targets != IGNORED if number is None else groups == number
        yield group, chosen.sum().item(), losses[chosen].mean().item(), hits[chosen].float().mean().item()
    yield "exact", len(tokens), None, (hits | (targets == IGNORED)).all(-1).float().mean().item()


def test_groups_and_exact_rows_are_measured_over_scored_positions_only(model, trainer):
    data = Recall(num_pairs=2, length=20, vocab_size=6, eval_pairs=[3], eval_lengths=[30], eval_size=50, batch_size=8)
    learner = model()
    engine = trainer(max_steps=30, limit_val_batches=1.0)
    engine.fit(learner, datamodule=data)
    metrics = {k: v for result in engine.validate(learner, datamodule=data, verbose=False) for k, v in result.items()}
    for evaluation in data.evaluations():
        for group, scored, loss, accuracy in scores(learner, data, evaluation):
            where = "/".join(filter(None, [evaluation.name, group]))
            if group == "exact":
                assert 0 < accuracy < 1
                assert metrics[f"val/exact/{evaluation.name}"] == pytest.approx(accuracy)
            elif scored:
                assert metrics[f"val/loss/{where}"] == pytest.approx(loss, rel=1e-4)
                assert metrics[f"val/accuracy/{where}"] == pytest.approx(accuracy)
            else:
                assert f"val/loss/{where}" not in metrics
    assert {"val/accuracy/30/3_pairs/distance_4", "val/loss/20/distance_16"} <= set(metrics)
    assert not any(name.startswith("val/perplexity") and "distance" in name for name in metrics)
    assert metrics["val/exact"] == metrics["val/exact/20"]


def test_parts_of_a_mixture_are_measured_apart(model, trainer):
    parts = {
        "words": {"class": "StateTracking", "length": 6, "eval_size": 8},
        "recall": {"class": "Recall", "num_pairs": 1, "length": 8, "vocab_size": 6, "eval_size": 8},
    }
    data = Mixture(parts, batch_size=4, eval_lengths=[9])
    learner = model()
    engine = trainer(max_steps=4, limit_val_batches=1.0)
    engine.fit(learner, datamodule=data)
    assert learner.tokens_seen == 4 * (2 * 6 + 2 * 8)
    mixed = {k: v for result in engine.validate(learner, datamodule=data, verbose=False) for k, v in result.items()}
    for name, part in data.parts.items():
        results = trainer(limit_val_batches=1.0).validate(learner, datamodule=part, verbose=False)
        for key, value in {k: v for result in results for k, v in result.items()}.items():
            stage, metric, *where = key.split("/")
            assert mixed.pop("/".join([stage, metric, name, *where])) == pytest.approx(value), key
    assert mixed == {}


def test_what_is_not_scored_is_said_alike_by_data_and_training():
    assert step.IGNORED == IGNORED


@pytest.mark.parametrize(("batches", "accumulate"), [(8, 1), (1, 8)], ids=["accumulate 1", "accumulate 8"])
def test_tokens_are_counted_by_batch_however_many_make_a_step(words, model, trainer, batches, accumulate):
    learner, speed, record = model(), TokensPerSecond(), Rates()
    engine = trainer(
        max_steps=batches,
        accumulate_grad_batches=accumulate,
        callbacks=[speed, record],
        enable_checkpointing=False,
    )
    engine.fit(learner, datamodule=words())
    assert engine.global_step == batches
    assert learner.tokens_seen == 8 * 4 * 6
    (start, before), (stop, after) = speed._marks[0], speed._marks[-1]
    assert (before, after) == (0, 8 * 4 * 6)
    assert speed.rate() == pytest.approx(8 * 4 * 6 / (stop - start))
    assert float(engine.callback_metrics["tokens/s"]) == pytest.approx(speed.rate(), rel=1e-5)


def test_the_schedule_runs_over_the_steps(words, model, trainer):
    schedule = {"warmup": 0.4, "final": 0.1}
    seen = rates(trainer, model(optimizer={"learning_rate": 1.0}, schedule=schedule), words(), max_steps=10)
    assert seen[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert seen == [*seen[:4], *sorted(seen[4:], reverse=True)]
    assert seen[-1] == pytest.approx(0.1)


def test_the_schedule_runs_over_the_tokens_and_ends_the_run(words, model, trainer):
    learner = model(optimizer={"learning_rate": 1.0}, schedule={"warmup": 0.5, "tokens": 24 * 10, "final": 0.0})
    seen = rates(trainer, learner, words())
    assert learner.tokens_seen == 240
    assert seen[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert seen[-1] == pytest.approx(0.0, abs=1e-9)


def test_cuda_graphs_need_one_batch_a_step_and_a_gpu(words, model, trainer):
    with pytest.raises(ConfigError, match=r"one batch a step; got 1 and trainer.accumulate_grad_batches=2"):
        trainer(max_steps=2, accumulate_grad_batches=2).fit(model(cuda_graphs=True), datamodule=words())
    with pytest.raises(ConfigError, match="cuda_graphs: needs a CUDA GPU"):
        trainer(max_steps=2).fit(model(cuda_graphs=True), datamodule=words())


def test_warm_up_may_be_given_in_steps(words, model, trainer):
    options = {"optimizer": {"learning_rate": 1.0}, "schedule": {"warmup_steps": 2, "type": "constant"}}
    assert rates(trainer, model(**options), words(), max_steps=4) == pytest.approx([0.5, 1.0, 1.0, 1.0])
    assert rates(trainer, model(**options), words(), max_time="00:00:00:01")[:1] == pytest.approx([0.5])


def test_a_cosine_without_an_end_is_refused(words, model, trainer):
    with pytest.raises(ConfigError, match=r"model\.schedule: the schedule needs the length of the run"):
        trainer(max_time="00:00:00:01").fit(model(), datamodule=words())


@pytest.mark.parametrize(("own", "trainers", "expected"), [(0.25, None, 0.25), (None, None, None), (0.25, 0.5, 0.5)])
def test_the_trainers_clipping_goes_before_the_models(words, model, trainer, own, trainers, expected):
    class Norm(lightning.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            self.before = torch.cat([p.grad.flatten() for p in pl_module.parameters()]).norm().item()

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.after = torch.cat([p.grad.flatten() for p in pl_module.parameters()]).norm().item()

    norm = Norm()
    engine = trainer(max_steps=1, gradient_clip_val=trainers, callbacks=[norm], enable_checkpointing=False)
    engine.fit(model(optimizer={"grad_clip": own}), datamodule=words())
    assert norm.before > 0.5
    assert norm.after == pytest.approx(norm.before if expected is None else expected, rel=1e-3)


def test_a_checkpoint_is_plain_data_that_builds_the_same_model(tmp_path, words, model, trainer):
    learner = model(optimizer={"learning_rate": 0.5}, schedule={"tokens": "1k"})
    trainer(max_steps=2, callbacks=[SaveLast(str(tmp_path))]).fit(learner, datamodule=words())
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert checkpoint["tokens_seen"] == 48
    assert checkpoint["data_class"] == "archsearch.data.state_tracking.StateTracking"
    assert checkpoint["datamodule_hyper_parameters"]["length"] == 6
    loaded = LanguageModel.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert loaded.architecture.id == learner.architecture.id
    assert loaded.optimizer_options == learner.optimizer_options
    assert loaded.schedule_options.total_tokens == 1000
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded(tokens), learner(tokens))


def test_predictions_are_the_likeliest_tokens_and_the_targets_log_probabilities(words, model, trainer):
    learner = model()
    batches = trainer().predict(learner, datamodule=words())
    with torch.inference_mode():
        probabilities = learner(batches[0]["tokens"]).softmax(-1)
    assert torch.equal(batches[0]["predictions"], probabilities.argmax(-1))
    chosen = probabilities.gather(-1, batches[0]["targets"][..., None])[..., 0]
    torch.testing.assert_close(batches[0]["log_probabilities"], chosen.log())


def test_an_architecture_is_given_by_mapping_file_or_pattern(tmp_path):
    values = small().with_pattern("R2M").to_dict()
    small().with_pattern("R2M").save(tmp_path / "a.yaml")
    expected = describe(values, None, 6)
    assert describe(str(tmp_path / "a.yaml"), None, 6).id == expected.id
    assert describe(None, "R2M", 6).id == expected.id
    assert describe({**values, "pattern": "A"}, "R2M", 6).pattern == "RRM"
    assert describe({"hidden_size": 64}, "RM", 6).pattern == "RM"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None, 6), r"model\.pattern: is required unless model\.architecture is given"),
        ((None, "RX", 6), "pattern: unknown letter 'X' at position 2"),
        (({"hidden_size": 64, "hiden": 1}, "R", 6), r"model\.architecture: hiden: unknown key"),
        (({"hidden_size": 64, "vocab_size": 7}, "R", 6), "vocab_size: must be 6, the data's vocabulary; got 7"),
        (("nowhere.yaml", None, 6), r"nowhere\.yaml: no such file"),
    ],
)
def test_architectures_that_cannot_be_built_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        describe(*arguments)
