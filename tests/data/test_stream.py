from itertools import islice

import pytest
import torch

from archsearch.data.stream import BatchStream, FiniteBatchStream


def numbered(index):
    return {"tokens": torch.tensor([[index]])}


def numbers(stream, count=None):
    return [batch["tokens"].item() for batch in islice(stream, count)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_begins_where_it_is_told_whatever_the_workers(num_workers):
    stream = BatchStream(batch_at=numbered, start=lambda: 5, num_workers=num_workers)
    assert numbers(stream, 6) == [5, 6, 7, 8, 9, 10]


def test_ranks_share_the_batches():
    ranks = [numbers(BatchStream(batch_at=numbered, start=lambda: 3, rank=r, world_size=2), 3) for r in (0, 1)]
    assert ranks == [[3, 5, 7], [4, 6, 8]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_finite_stream_ends_and_knows_its_length(num_workers):
    stream = FiniteBatchStream(batch_at=numbered, stop=5, num_workers=num_workers)
    assert len(stream) == 5
    assert numbers(stream) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_evaluate_equally_many_batches_one_of_which_may_score_nothing(num_workers):
    def batch(index):
        number = torch.tensor([[index]])
        return {"tokens": number, "targets": number, "groups": number}

    shared = {"batch_at": batch, "stop": 5, "world_size": 2, "num_workers": num_workers}
    ranks = [FiniteBatchStream(rank=rank, **shared) for rank in (0, 1)]
    assert [len(stream) for stream in ranks] == [3, 3]
    batches = [[[x.item() for x in batch.values()] for batch in stream] for stream in ranks]
    assert batches == [[[0, 0, 0], [2, 2, 2], [4, 4, 4]], [[1, 1, 1], [3, 3, 3], [4, -100, -1]]]


def test_workers_leave_the_global_random_numbers_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    numbers(BatchStream(batch_at=numbered, num_workers=1), 2)
    assert torch.equal(torch.rand(1), expected)
