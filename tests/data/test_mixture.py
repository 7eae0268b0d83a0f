import pickle
from itertools import islice

import pytest
import torch

from archsearch.config import ConfigError
from archsearch.data import Mixture, Needle, Recall, StateTracking
from archsearch.data.interleave import Interleaving

PARTS = {
    "words": {"class": "StateTracking", "group": "S3", "weight": 0.7},
    "needle": {"class": "Needle", "length": 32, "batch_size": 2, "weight": 0.3},
}


def mixture(parts=PARTS, **arguments):
    return Mixture(parts, **{"length": 16, "batch_size": 4, "eval_lengths": [], **arguments})


@pytest.mark.parametrize("weights", [(0.7, 0.3), (5, 3, 2), (1, 99), (1,), (1, 1, 1, 1)])
def test_every_part_has_its_share_at_every_place_and_counts_on(weights):
    order, seen = Interleaving(weights), [0] * len(weights)
    for index in range(3000):
        part, number = order.place(index)
        assert number == seen[part]
        seen[part] += 1
        for count, weight in zip(seen, weights, strict=True):
            assert abs(count - (index + 1) * weight / sum(weights)) < 4
    assert order.counts(3000) == seen


def test_a_place_far_ahead_is_found_at_once():
    order = Interleaving((0.7, 0.3))
    counts = order.counts(10**12)
    assert sum(counts) == 10**12
    assert counts[0] == pytest.approx(0.7e12, rel=1e-6)
    part, number = order.place(10**12)
    assert number == counts[part]


def test_parts_do_not_come_in_bursts():
    turns = [Interleaving((0.5, 0.5)).place(i)[0] for i in range(2000)]
    assert all(0 < sum(turns[i : i + 4]) < 4 for i in range(1996))


def test_a_batch_is_the_next_of_its_part():
    words = StateTracking(group="S3", length=16, batch_size=4, seed=5).train_batches()
    needles = Needle(length=32, batch_size=2, seed=5).train_batches()
    counts = {16: 0, 32: 0}
    for batch in islice(mixture(seed=5).train_dataloader(), 50):
        length = batch["tokens"].shape[1]
        own = (words if length == 16 else needles)(counts[length])
        counts[length] += 1
        assert all(torch.equal(batch[name], own[name]) for name in ("tokens", "targets"))
    assert 33 <= counts[16] <= 37


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_mixture_goes_on_with_the_next_batch(num_workers):
    whole = list(islice(mixture(seed=5).train_dataloader(), 12))
    resumed = mixture(seed=5, num_workers=num_workers)
    resumed.load_state_dict({"batches": 7})
    for batch, expected in zip(islice(resumed.train_dataloader(), 5), whole[7:], strict=True):
        assert torch.equal(batch["tokens"], expected["tokens"])
    at = pickle.loads(pickle.dumps(mixture(seed=5).train_batches()))
    assert torch.equal(at(9)["tokens"], whole[9]["tokens"])


def test_parts_share_what_they_do_not_say_themselves():
    parts = {**PARTS, "recall": {"class": "Recall", "num_pairs": 2, "eval_pairs": [4], "eval_lengths": [64], "seed": 9}}
    mixed = mixture(parts, seed=5, eval_lengths=[24])
    assert [(p.length, p.batch_size, p.seed) for p in mixed.parts.values()] == [(16, 4, 5), (32, 2, 5), (16, 4, 9)]
    assert [p.eval_lengths for p in mixed.parts.values()] == [[16, 24], [32, 24], [16, 64]]
    assert mixed.vocab_size == 257
    assert mixture(PARTS).tokens_per_batch == 64
    assert mixture({"w": PARTS["words"], "r": {"class": "Recall", "num_pairs": 2}}).vocab_size == 128


def test_every_part_is_evaluated_under_its_name():
    mixed = mixture({**PARTS, "recall": {"class": "Recall", "num_pairs": 2, "length": 8, "eval_lengths": [32]}})
    evaluations = mixed.evaluations()
    names = ["words/16", "needle/32", "recall/8", "recall/32", "recall/32/8_pairs"]
    assert [e.name for e in evaluations] == names
    assert [e.name for e in evaluations if e.standard] == ["words/16", "needle/32", "recall/8"]
    assert [e.metrics for e in evaluations[:3]] == [("last_accuracy",), ("exact",), ("exact",)]
    own = Recall(num_pairs=2, length=8, eval_lengths=[32], batch_size=4).val_dataloader()
    for loader, expected in zip(mixed.val_dataloader()[2:], own, strict=True):
        assert torch.equal(next(iter(loader))["tokens"], next(iter(expected))["tokens"])


def test_the_arguments_stay_plain_for_a_checkpoint():
    assert mixture().hparams["parts"] == PARTS
    assert mixture().hparams["seed"] is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, r"data\.parts: must name at least one part; got \{\}"),
        ({"a": 3}, r"data\.parts\.a: must be a mapping with class, weight and arguments; got 3"),
        ({"a": {"weight": 1}}, r"data\.parts\.a: class: is required; known: StateTracking, Text, Recall, Needle$"),
        (
            {"a": {"class": "Needel"}},
            r"data\.parts\.a: class: unknown 'Needel' \(did you mean 'Needle'\?\); known: State",
        ),
        ({"a": {"class": "Mixture"}}, r"data\.parts\.a: class: unknown 'Mixture'"),
        ({"a/b": {"class": "Needle"}}, r"data\.parts: a name must not be empty or hold '/'"),
        ({"a": {"class": "Needle", "weight": 0}}, r"data\.parts\.a: weight: must be a positive number; got 0"),
        ({"a": {"class": "Needle", "weight": "x"}}, r"data\.parts\.a: weight: must be a positive number; got 'x'"),
        (
            {"a": {"class": "Needle", "lenght": 3}},
            r"data\.parts\.a: lenght: unknown key \(did you mean 'length'\?\); known: length, batch_size",
        ),
        ({"a": {"class": "Needle", "length": "long"}}, r"data\.parts\.a: length: value 'long' of type 'str'"),
        ({"a": {"class": "Needle", "length": 3}}, r"data\.parts\.a: length: must be at least 13, which needles"),
    ],
)
def test_parts_that_cannot_work_are_refused(parts, message):
    with pytest.raises(ConfigError, match=message):
        mixture(parts)


def test_a_part_that_fails_later_is_named(tmp_path):
    (tmp_path / "short.txt").write_text("short")
    parts = {"text": {"class": "Text", "path": str(tmp_path), "cache_dir": str(tmp_path / "cache")}}
    with pytest.raises(ConfigError, match=r"data\.parts\.text: path: a row of length 16 needs 17 tokens"):
        mixture(parts).train_dataloader()
