import numpy as np
import pytest
import torch

from archsearch.data import Needle, Recall, StateTracking
from archsearch.data.corpus import open_corpus
from archsearch.data.groups import multiplication_table
from archsearch.data.needle_row import Noise
from archsearch.data.packing import START, PackedRows
from archsearch.data.recall import Shape
from archsearch.evaluate.rows import Needles, Pairs, Passages, Words

S3 = multiplication_table("S3")


def recalls(seed):
    return Pairs(Recall().sampler, Shape(24, 4, 3), seed)


def needles(seed):
    return Needles(Needle(num_distractors=2).row_format, Noise(), 64, seed)


def words(seed):
    return Words(S3, 9, seed)


@pytest.mark.parametrize("make", [words, recalls, needles])
def test_a_row_depends_on_seed_and_number_alone(make):
    whole = make(5).batch(range(6))
    for parts in ([range(3), range(3, 6)], [range(r, r + 1) for r in range(6)]):
        pieces = [make(5).batch(part) for part in parts]
        for name, values in whole.items():
            assert torch.equal(torch.cat([piece[name] for piece in pieces]), values)
    assert not torch.equal(make(6).batch(range(6))["tokens"], whole["tokens"])
    assert len({tuple(row.tolist()) for row in whole["tokens"]}) == 6


def test_rows_are_none_of_training_or_validation():
    data = StateTracking(length=24, batch_size=64, eval_lengths=[], eval_size=64, seed=0)
    seen = [data.train_batches()(0), *(data.eval_batches(split, 24)[0](0) for split in ("val", "test"))]
    known = {tuple(row.tolist()) for batch in seen for row in batch["tokens"]}
    own = Words(S3, 24, 0).batch(range(64))["tokens"]
    assert not known & {tuple(row.tolist()) for row in own}


def test_answers_and_groups_are_those_of_the_tasks():
    batch = words(1).batch(range(2))
    assert batch["targets"][0, 0] == batch["tokens"][0, 0]
    assert batch["targets"][1, 1] == S3[batch["tokens"][1, 0], batch["tokens"][1, 1]]
    batch = recalls(1).batch(range(4))
    assert ((batch["targets"] >= 0).sum(1) == 3).all()
    assert torch.equal(batch["groups"] >= 0, batch["targets"] >= 0)
    for row in range(4):
        pairs = dict(batch["tokens"][row, :8].view(4, 2).tolist())
        for place in batch["groups"][row].ge(0).nonzero().flatten():
            assert pairs[int(batch["tokens"][row, place])] == batch["targets"][row, place]
    batch = needles(1).batch(range(4))
    assert ((batch["targets"] >= 0).sum(1) == 2).all()
    assert torch.equal(batch["groups"] >= 0, batch["targets"] >= 0)
    assert set(batch["groups"].unique().tolist()) <= {-1, 0, 1, 2, 3}


def test_a_position_of_text_knows_its_document(tmp_path):
    for i in range(9):
        (tmp_path / f"{i}.txt").write_text(str(i) * (5 + 3 * i))
    corpus = open_corpus(str(tmp_path), "*.txt", str(tmp_path / "cache"))
    rows = Passages(PackedRows(corpus, np.arange(9), 16, seed=3), True, ())
    batch = rows.batch(range(rows.packed.rows))
    assert rows.packed.rows == 10
    inside = batch["tokens"] != START
    names = torch.tensor([int(chr(corpus.read(i, 0, 1)[0])) for i in range(9)])
    assert torch.equal(names[batch["units"][inside]], batch["tokens"][inside] - ord("0"))
    starts = (batch["tokens"] == START).nonzero().tolist()
    for row, place in [(r, p) for r, p in starts if p < 15]:
        assert batch["units"][row, place] == batch["units"][row, place + 1]
