import pickle
from itertools import islice

import numpy as np
import pytest
import torch

from archsearch.config import ConfigError
from archsearch.data import Recall
from archsearch.data.stream import IGNORED

SMALL = {"num_pairs": 4, "length": 16, "vocab_size": 40, "batch_size": 8}


def recall(**arguments):
    return Recall(**{**SMALL, **arguments})


def read(tokens, targets, num_pairs):
    """Read one sequence as a person would: return `(place, distance from the key, answer, target)` per question."""
    known, where = {}, {}
    for place in range(0, 2 * num_pairs, 2):
        known[tokens[place]] = tokens[place + 1]
        where[tokens[place]] = place
    assert len(known) == num_pairs
    assert targets[: 2 * num_pairs] == [IGNORED] * (2 * num_pairs)
    asked = [(t, token) for t, token in enumerate(tokens) if t >= 2 * num_pairs and token in known]
    return [(t, t - where[key], known[key], targets[t]) for t, key in asked]


@pytest.mark.parametrize("filler", ["random", "blank"])
@pytest.mark.parametrize("spacing", ["power_law", "uniform"])
def test_the_target_of_a_key_is_its_value_and_nothing_else_is_scored(spacing, filler):
    batch = next(iter(recall(spacing=spacing, filler=filler).train_dataloader()))
    assert batch["tokens"].shape == (8, 16)
    for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
        questions = read(tokens, targets, 4)
        assert len({tokens[t] for t, *_ in questions}) == len(questions) == 4
        assert [answer for _, _, answer, _ in questions] == [target for *_, target in questions]
        assert {t for t, target in enumerate(targets) if target != IGNORED} == {t for t, *_ in questions}
        assert all(20 < answer < 40 for _, _, answer, _ in questions)
        rest = set(tokens[8:]) - {tokens[t] for t, *_ in questions}
        assert rest == {0} if filler == "blank" else 0 not in rest


def test_fewer_queries_than_pairs_ask_for_any_of_them():
    batch = next(iter(recall(num_queries=1, batch_size=400).train_dataloader()))
    rows = zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True)
    questions = [read(tokens, targets, 4) for tokens, targets in rows]
    assert {len(found) for found in questions} == {1}
    keys = torch.tensor([(place - distance) // 2 for [(place, distance, *_)] in questions])
    assert (keys.bincount(minlength=4) - 100).abs().max() < 40


def test_a_power_law_asks_near_the_pairs_and_uniform_anywhere():
    def places(spacing):
        data = recall(num_queries=1, length=108, batch_size=2000, spacing=spacing, power=0.01)
        targets = next(iter(data.train_dataloader()))["targets"]
        return (targets != IGNORED).nonzero()[:, 1].numpy() - 8

    weights = np.arange(1, 101) ** -0.99
    first_ten = weights[:10].sum() / weights.sum()
    assert (places("power_law") < 10).mean() == pytest.approx(first_ten, abs=0.04)
    assert (places("uniform") < 10).mean() == pytest.approx(0.1, abs=0.03)


def test_evaluation_has_each_length_and_each_number_of_pairs_where_it_fits():
    data = recall(eval_lengths=[48, 64], eval_pairs=[16, 8], eval_size=20)
    pairs = ["48/16_pairs", "64/16_pairs", "48/8_pairs", "64/8_pairs"]
    assert [e.name for e in data.evaluations()] == ["16", "48", "64", *pairs]
    assert [e.name for e in data.evaluations() if e.standard] == ["16"]
    for evaluation, loader in zip(data.evaluations(), data.val_dataloader(), strict=True):
        num_pairs = int(evaluation.variant.removesuffix("_pairs") or 4)
        batches = [[batch[name].tolist() for name in ("tokens", "targets", "groups")] for batch in loader]
        rows = [row for batch in batches for row in zip(*batch, strict=True)]
        assert len(rows) == 20
        for tokens, targets, groups in rows:
            assert len(tokens) == evaluation.length
            questions = read(tokens, targets, num_pairs)
            assert len(questions) == num_pairs
            assert all(answer == target for _, _, answer, target in questions)
            assert {t for t, group in enumerate(groups) if group >= 0} == {t for t, *_ in questions}
            for place, distance, *_ in questions:
                low = int(evaluation.groups[groups[place]].removeprefix("distance_"))
                assert low <= distance < 4 * low


def test_four_times_the_pairs_at_four_times_the_length_is_the_default():
    assert [e.name for e in recall().evaluations()] == ["16", "64", "64/16_pairs"]
    assert [e.name for e in recall(eval_lengths=[]).evaluations()] == ["16"]


def test_evaluation_sequences_depend_on_neither_seed_nor_batch_size():
    def tokens(split, **arguments):
        data = recall(eval_size=20, **arguments)
        loaders = {"val": data.val_dataloader, "test": data.test_dataloader}[split]()
        return [torch.cat([batch["tokens"] for batch in loader]) for loader in loaders]

    first = tokens("val")
    for mine, others in zip(first, tokens("val", seed=9, batch_size=3), strict=True):
        assert torch.equal(mine, others)
    rows = [{tuple(row) for row in some[0].tolist()} for some in (first, tokens("test"))]
    trained = next(iter(recall(batch_size=200).train_dataloader()))["tokens"]
    assert not rows[0] & rows[1]
    assert not (rows[0] | rows[1]) & {tuple(row) for row in trained.tolist()}


def test_a_batch_follows_from_seed_and_index_alone():
    first, other = (recall(seed=seed).train_batches() for seed in (3, 4))
    again = pickle.loads(pickle.dumps(recall(seed=3).train_batches()))
    assert all(torch.equal(first(5)[name], again(5)[name]) for name in ("tokens", "targets"))
    assert not torch.equal(first(5)["tokens"], first(6)["tokens"])
    assert not torch.equal(first(5)["tokens"], other(5)["tokens"])
    data = recall(seed=3)
    data.load_state_dict({"batches": 5})
    assert torch.equal(next(iter(data.train_dataloader()))["tokens"], first(5)["tokens"])


def test_the_curriculum_grows_pairs_length_and_queries_together():
    data = recall(num_pairs=8, length=48, curriculum_start=2, curriculum_hold=3, curriculum_steps=9)
    batches = list(islice(data.train_dataloader(), 12))
    shapes = [(batch["tokens"].shape[1], (batch["targets"][0] != IGNORED).sum().item()) for batch in batches]
    assert shapes[:4] == [(12, 2)] * 4
    assert shapes[6] == (24, 4)
    assert shapes[9:] == [(48, 8)] * 3
    for batch, (_, pairs) in zip(batches, shapes, strict=True):
        for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
            assert all(answer == target for _, _, answer, target in read(tokens, targets, pairs))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 11}, r"data\.length: must be at least 2 x num_pairs plus the queries \(12\); got 11"),
        ({"eval_lengths": [10]}, r"data\.eval_lengths: must be at least 2 x num_pairs plus the queries \(12\); got 10"),
        ({"num_pairs": 0}, r"data\.num_pairs: must be at least 1; got 0"),
        ({"num_pairs": 21, "length": 99}, r"data\.num_pairs: must be at most vocab_size // 2 \(20\), the number of"),
        ({"eval_pairs": [21], "length": 99}, r"data\.eval_pairs: must be at most vocab_size // 2 \(20\), the number"),
        ({"eval_pairs": [0]}, r"data\.eval_pairs: must be at least 1; got 0"),
        (
            {"eval_pairs": [6], "eval_lengths": []},
            r"data\.eval_pairs: 2 x pairs plus the queries \(18\) must fit in an evaluation length \(at most 16\)",
        ),
        ({"num_queries": 5}, r"data\.num_queries: must be from 1 to num_pairs \(4\); got 5"),
        ({"vocab_size": 3}, r"data\.vocab_size: must be at least 4; got 3"),
        ({"power": 0.0}, r"data\.power: must be above 0 and at most 1; got 0\.0"),
        ({"spacing": "log"}, r"data\.spacing: must be power_law or uniform; got 'log'"),
        ({"filler": "none"}, r"data\.filler: must be random or blank; got 'none'"),
        ({"eval_size": 0}, r"data\.eval_size: must be at least 1; got 0"),
        ({"curriculum_start": 5}, r"data\.curriculum_start: must be from 1 to num_pairs \(4\); got 5"),
        ({"curriculum_start": 2}, r"data\.curriculum_steps: must be the number of batches after which the num_pairs"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        recall(**arguments)
