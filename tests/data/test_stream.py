import os
import signal
import threading
import time
from itertools import islice

import pytest
import torch

from archsearch.config import ConfigError
from archsearch.data.stream import AHEAD, BatchStream, FiniteBatchStream, RowsOfRank


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


def test_ranks_share_the_rows_of_a_batch_and_its_documents():
    tokens = torch.arange(24).view(4, 6)
    batch = {"tokens": tokens, "targets": tokens + 1, "cu_seqlens": torch.tensor([0, 4, 6, 12, 15, 18, 24])}
    first, second = (RowsOfRank(lambda _: batch, rank, 2)(0) for rank in (0, 1))
    assert torch.equal(torch.cat([first["tokens"], second["tokens"]]), tokens)
    assert torch.equal(second["targets"], tokens[2:] + 1)
    assert first["cu_seqlens"].tolist() == [0, 4, 6, 12]
    assert second["cu_seqlens"].tolist() == [0, 3, 6, 12]
    with pytest.raises(ConfigError, match=r"data\.batch_size: must be a multiple of the 3 devices; got 4"):
        RowsOfRank(lambda _: batch, 0, 3)(0)


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


def slowly(index):
    time.sleep(0.05)
    return numbered(index)


def test_batches_are_made_while_the_one_before_is_trained_on():
    """Twenty batches and twenty steps of 0.05 s each take 1 s side by side, at least 2 s one after the other."""

    def seconds():
        begun = time.perf_counter()
        for _ in islice(BatchStream(batch_at=slowly), 20):
            time.sleep(0.05)
        return time.perf_counter() - begun

    assert any(seconds() < 1.6 for _ in range(3))


def test_a_stream_makes_no_more_than_two_batches_ahead():
    made = []
    stream = iter(BatchStream(batch_at=lambda index: made.append(index) or numbered(index)))
    next(stream)
    for _ in range(100):
        if len(made) == 1 + AHEAD:
            break
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == [0, 1, 2]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_goes_wrong_in_a_batch_is_raised_when_its_turn_comes(num_workers):
    def batch_at(index):
        if index == 3:
            raise ConfigError("data.path: number 3 is damaged")
        return numbered(index)

    stream = iter(BatchStream(batch_at=batch_at, num_workers=num_workers))
    assert numbers(stream, 3) == [0, 1, 2]
    with pytest.raises(ConfigError, match="number 3 is damaged"):
        next(stream)


def test_no_thread_goes_on_when_nobody_asks_for_more():
    def threads():
        return {thread for thread in threading.enumerate() if thread.name.startswith("batches")}

    before = threads()
    stream = iter(BatchStream(batch_at=numbered))
    next(stream)
    (made_by,) = threads() - before
    del stream
    made_by.join(timeout=10)
    assert not made_by.is_alive()


@pytest.mark.parametrize("pinned", [False, True])
def test_batches_are_pinned_where_they_are_to_be(monkeypatch, pinned):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: x + 100)
    assert numbers(FiniteBatchStream(batch_at=numbered, stop=2, pinned=pinned)) == [100 * pinned, 100 * pinned + 1]


def test_workers_do_not_die_of_an_interrupt_which_is_for_the_process_that_trains():
    def batch_at(index):
        os.kill(os.getpid(), signal.SIGINT)
        return numbered(index)

    assert numbers(FiniteBatchStream(batch_at=batch_at, stop=3, num_workers=1)) == [0, 1, 2]


def test_workers_leave_the_global_random_numbers_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    numbers(BatchStream(batch_at=numbered, num_workers=1), 2)
    assert torch.equal(torch.rand(1), expected)
