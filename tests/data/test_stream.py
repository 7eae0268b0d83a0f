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
    assert ranks == [[6, 8, 10], [7, 9, 11]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_finite_stream_ends_and_knows_its_length(num_workers):
    stream = FiniteBatchStream(batch_at=numbered, stop=5, num_workers=num_workers)
    assert len(stream) == 5
    assert numbers(stream) == [0, 1, 2, 3, 4]
    assert [len(FiniteBatchStream(batch_at=numbered, stop=5, rank=r, world_size=2)) for r in (0, 1)] == [3, 2]


def test_workers_leave_the_global_random_numbers_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    numbers(BatchStream(batch_at=numbered, num_workers=1), 2)
    assert torch.equal(torch.rand(1), expected)
