from itertools import islice

import numpy as np
import pytest
import torch

from archsearch.config import ConfigError
from archsearch.data import StateTracking
from archsearch.data.curriculum import grown_size
from archsearch.data.groups import multiplication_table


@pytest.mark.parametrize(("group", "order"), [("S3", 6), ("A5", 60), ("S5", 120), ("Z2", 2), ("Z60", 60)])
def test_a_table_is_that_of_a_group(group, order):
    table = multiplication_table(group)
    everything = np.arange(order)
    assert table.shape == (order, order)
    assert (table[0] == everything).all()
    assert (table[:, 0] == everything).all()
    assert (everything == np.sort(table, axis=0).T).all()
    assert (np.sort(table, axis=1) == everything).all()
    assert (table[table] == table[:, table]).all()  # (a b) c = a (b c)
    assert (table == table.T).all() == group.startswith("Z")


def test_permutations_are_multiplied_first_to_last():
    # lexicographic: 0 (0,1,2), 1 (0,2,1), 2 (1,0,2), 3 (1,2,0), 4 (2,0,1), 5 (2,1,0)
    # first swap points 1 and 2, then 0 and 1: 0 -> 0 -> 1, 1 -> 2 -> 2, 2 -> 1 -> 0
    assert multiplication_table("S3")[1, 2] == 3
    assert multiplication_table("S3")[2, 1] == 4


def test_targets_are_the_running_products():
    table = multiplication_table("S3")
    batch = next(iter(StateTracking(batch_size=4, length=10).train_dataloader()))
    for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
        product = 0
        for token, target in zip(tokens, targets, strict=True):
            product = table[product, token]
            assert target == product


def test_tokens_are_uniform():
    batch = next(iter(StateTracking(batch_size=1000, length=60).train_dataloader()))
    counts = batch["tokens"].flatten().bincount()
    assert (counts - 10_000).abs().max() < 500


def test_a_batch_follows_from_seed_and_index_alone():
    first, again, other = (StateTracking(seed=seed, length=8).train_batches() for seed in (3, 3, 4))
    assert torch.equal(first(5)["tokens"], again(5)["tokens"])
    assert not torch.equal(first(5)["tokens"], first(6)["tokens"])
    assert not torch.equal(first(5)["tokens"], other(5)["tokens"])


def test_evaluation_sequences_depend_on_neither_seed_nor_batch_size():
    def words(split, **arguments):
        data = StateTracking(length=8, eval_size=50, **arguments)
        loaders = {"val": data.val_dataloader, "test": data.test_dataloader}[split]()
        return [torch.cat([batch["tokens"] for batch in loader]) for loader in loaders]

    short, long = words("val")
    assert short.shape == (50, 8)
    assert long.shape == (50, 32)
    assert torch.equal(short, words("val", seed=9, batch_size=7)[0])
    assert not torch.equal(short, words("test")[0])


def test_the_curriculum_stays_at_its_first_length_and_grows_by_equal_factors():
    lengths = [grown_size(i, size=32, start=4, hold=10, steps=40) for i in range(50)]
    assert lengths[:11] == [4] * 11
    assert [lengths[i] for i in (20, 30, 40)] == [8, 16, 32]
    assert lengths[40:] == [32] * 10
    assert lengths == sorted(lengths)
    data = StateTracking(length=32, curriculum_start=4, curriculum_hold=10, curriculum_steps=40)
    assert [batch["tokens"].shape[1] for batch in islice(data.train_dataloader(), 50)] == lengths


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"group": "Q8"}, r"data\.group: must be S<n>, A<n> or Z<n>, such as S3, A5 or Z60; got 'Q8'"),
        ({"group": "S7"}, r"data\.group: must have at most 720 elements; got 'S7'"),
        ({"length": 0}, r"data\.length: must be at least 1; got 0"),
        ({"eval_lengths": [8, -1]}, r"data\.eval_lengths: must be at least 1; got -1"),
        ({"eval_size": 0}, r"data\.eval_size: must be at least 1; got 0"),
        ({"curriculum_start": 40, "curriculum_steps": 9}, r"data\.curriculum_start: must be from 1 to length \(32\)"),
        (
            {"curriculum_start": 4, "curriculum_hold": 9, "curriculum_steps": 8},
            r"data\.curriculum_hold: must be from 0 to",
        ),
        ({"curriculum_start": 4}, r"data\.curriculum_steps: must be the number of batches"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        StateTracking(**arguments)
