import math

import numpy as np
import pytest
import torch

from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.data.stream import IGNORED
from archsearch.evaluate import score as scoring
from archsearch.evaluate.intervals import mean_of_positions, share_of_positions, wilson
from archsearch.evaluate.score import Scores, default_batch_size, score
from archsearch.evaluate.tally import Tally
from archsearch.model.language_model import HybridLM
from archsearch.training.metrics import LanguageMetrics

TINY = {
    "hidden_size": 16,
    "vocab_size": 11,
    "pattern": "MA",
    "mixers": {"M": {"type": "m2rnn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4}},
    "mlp": {"intermediate_size": 16},
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = HybridLM(Architecture.from_dict(TINY, Where("test"))).eval()
    with torch.no_grad():
        model.head.weight *= 20  # so that some answers are right
    return model


def drawn_batch(groups=2):
    generator = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(11, (2, 6, 10), generator=generator)
    targets[torch.rand(targets.shape, generator=generator) < 0.3] = IGNORED
    return {"tokens": tokens, "targets": targets, "groups": torch.randint(-1, groups, (6, 10), generator=generator)}


def test_figures_are_sums_over_rows_with_the_intervals_of_their_kind():
    losses = np.array([[1.0, 3.0, 0.0], [2.0, 2.0, 5.0]])
    hits = np.array([[True, True, False], [False, False, True]])
    batch = {"targets": torch.tensor([[1, 1, IGNORED], [1, 1, 1]]), "groups": torch.tensor([[0, 1, 1], [0, 0, -1]])}
    tally = Tally(("a", "b", "none"))
    tally.add(batch, Scores(losses, hits))
    found = {(f.part, f.metric): f for f in tally.figures(("exact", "last_accuracy", "accuracy", "loss"))}
    assert found["", "exact"].estimate == wilson(1, 2)
    assert found["", "last_accuracy"].estimate == wilson(1, 2)
    assert found["", "accuracy"].estimate == share_of_positions([2, 1], [2, 3])
    assert found["", "loss"].estimate == mean_of_positions([4, 9], [2, 3])
    assert found["a", "loss"].estimate == mean_of_positions([1, 4], [1, 2])
    assert found["b", "accuracy"].estimate.value == 1.0
    assert {part for part, _ in found} == {"", "a", "b"}
    assert [found["", "loss"].count, found["b", "loss"].count] == [2, 1]


def test_perplexity_is_that_of_the_loss_and_its_ends():
    tally = Tally(())
    tally.add({"targets": torch.zeros(3, 2).long()}, Scores(np.array([[1.0, 1], [2, 2], [4, 4]]), np.zeros((3, 2)) > 0))
    loss, perplexity = (figure.estimate for figure in tally.figures(("loss", "perplexity")))
    assert perplexity == pytest.approx([math.exp(x) for x in loss])


def test_a_document_in_several_batches_is_one_unit():
    tally = Tally(())
    for documents, losses in (([[7, 7, 8]], [[1.0, 2, 3]]), ([[8, 9, 9]], [[4.0, 5, 6]])):
        batch = {"targets": torch.zeros(1, 3).long(), "units": torch.tensor(documents)}
        tally.add(batch, Scores(np.array(losses), np.zeros((1, 3)) > 0))
    figure = tally.figures(("loss",))[0]
    assert figure.count == 3
    assert figure.estimate == mean_of_positions([3, 7, 11], [2, 2, 2])


def test_figures_agree_with_the_metrics_of_training(model):
    batch, tally, metrics = drawn_batch(), Tally(("a", "b")), LanguageMetrics(("exact", "last_accuracy"), ("a", "b"))
    tally.add(batch, score(model, batch))
    metrics.update(model(batch["tokens"])[0], batch["targets"], batch["groups"])
    expected = metrics.compute()
    found = {(f.part, f.metric): f.estimate.value for f in tally.figures(("loss", "perplexity", "accuracy", "exact"))}
    assert 0 < found["", "accuracy"] < 1
    for (part, metric), value in found.items():
        if not (part and metric == "perplexity"):
            assert value == pytest.approx(float(expected[part][metric]), rel=1e-5)


def test_chunks_with_states_score_as_the_whole_row_does(model, monkeypatch):
    batch = drawn_batch()
    batch["targets"][:, 3:6] = IGNORED  # a chunk whose logits nobody needs
    whole = score(model, batch)
    logits = model(batch["tokens"])[0].double().log_softmax(-1)
    scored = batch["targets"] != IGNORED
    direct = -logits.gather(-1, batch["targets"].clamp(min=0)[..., None])[..., 0] * scored
    np.testing.assert_allclose(whole.losses, direct.detach(), rtol=1e-4, atol=1e-5)
    assert (whole.hits == ((logits.argmax(-1) == batch["targets"]) & scored).numpy()).all()
    monkeypatch.setattr(scoring, "PREFILL_CHUNK", 3)
    seen = []
    hook = model.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    cut = score(model, batch)
    hook.remove()
    assert seen == [3, 3, 3, 1]
    np.testing.assert_allclose(cut.losses, whole.losses, rtol=1e-4, atol=1e-5)
    assert (cut.hits == whole.hits).all()


def test_batches_and_chunks_hold_a_bounded_number_of_logits(model, monkeypatch):
    assert default_batch_size(model, 10) == 32
    monkeypatch.setattr(scoring, "MOST_LOGITS", 11 * 40)
    assert default_batch_size(model, 10) == 4
    assert default_batch_size(model, 1000) == 1
    seen = []
    hook = model.head.register_forward_hook(lambda _, __, out: seen.append(out.numel()))
    score(model, drawn_batch())
    hook.remove()
    assert max(seen) == 11 * 36


def test_logits_that_are_not_finite_are_refused(model):
    broken = HybridLM(model.architecture).eval()
    torch.nn.init.constant_(broken.head.weight, math.nan)
    with pytest.raises(ConfigError, match="the model's logits are not finite"):
        score(broken, drawn_batch())
