import pickle
from itertools import islice, pairwise

import numpy as np
import pytest
import torch

from archsearch.config import ConfigError
from archsearch.data import Text
from archsearch.data.corpus import assign_splits, open_corpus
from archsearch.data.packing import START, PackedRows


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "text"
    (root / "deep").mkdir(parents=True)
    for i in range(30):
        (root / "deep" / f"{i:02}.txt").write_bytes(bytes([i]) * (i + 1))
    (root / "empty.txt").touch()
    (root / ".hidden.txt").write_text("no")
    (root / "code.py").write_text("print()\n")
    return root


def text(folder, **arguments):
    return Text(path=str(folder), cache_dir=str(folder.parent / "cache"), **{"length": 16, **arguments})


def stream_of(packed, rows):
    return [packed.row(number) for number in rows]


def test_rows_hold_every_document_once_between_starts(folder):
    corpus = open_corpus(str(folder), "*.txt", str(folder.parent / "cache"))
    packed = PackedRows(corpus, np.arange(30), length=16)
    assert packed.tokens == sum(range(1, 31)) + 30
    rows = stream_of(packed, range(packed.rows))
    assert all(a[-1] == b[0] for a, b in pairwise(rows))  # the last target is the next row's token
    stream = np.concatenate([row[:-1] for row in rows])
    expected = np.concatenate([[START, *[i] * (i + 1)] for i in range(30)])
    assert (stream == expected[: len(stream)]).all()
    assert packed.tokens - len(stream) <= 16


def test_every_epoch_takes_all_rows_in_a_new_order(folder):
    corpus = open_corpus(str(folder), "*.txt", str(folder.parent / "cache"))
    packed = PackedRows(corpus, np.arange(30), length=4, seed=1)
    epochs = [np.stack(stream_of(packed, range(e * packed.rows, (e + 1) * packed.rows)))[:, :-1] for e in (0, 1)]
    for epoch in epochs:
        counts = np.bincount(epoch.flatten(), minlength=257)
        missing = np.array([*range(1, 31), *[0] * 226, 30]) - counts
        assert (missing >= 0).all()
        assert missing.sum() <= 4
    assert not (epochs[0] == epochs[1]).all()


def test_documents_and_rows_bound_what_a_position_sees(folder):
    batch = next(iter(text(folder, batch_size=3).train_dataloader()))
    tokens, bounds = batch["tokens"].flatten(), batch["cu_seqlens"].tolist()
    assert bounds[0] == 0
    assert bounds[-1] == 48
    assert set(bounds[:-1]) == {0, 16, 32, *(tokens == START).nonzero().flatten().tolist()}
    assert torch.equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])
    assert (batch["targets"] >= 0).all()  # the end of a document is predicted, too


def test_bounds_stay_on_the_cpu_when_a_batch_moves(folder):
    data = text(folder, batch_size=3)
    batch = next(iter(data.train_dataloader()))
    moved = data.transfer_batch_to_device(batch, torch.device("meta"), 0)
    assert {name: x.device.type for name, x in moved.items()} == {
        "tokens": "meta", "targets": "meta", "cu_seqlens": "cpu",
    }  # fmt: skip
    assert "cu_seqlens" not in data.transfer_batch_to_device({"tokens": batch["tokens"]}, torch.device("meta"), 0)


def test_a_batch_follows_from_seed_and_index_alone(folder):
    first, again, other = (text(folder, seed=seed).train_batches() for seed in (1, 1, 2))
    assert torch.equal(first(40)["tokens"], again(40)["tokens"])
    assert not torch.equal(first(40)["tokens"], other(40)["tokens"])
    workers = islice(text(folder, seed=1, num_workers=2).train_dataloader(), 3)
    assert [torch.equal(batch["tokens"], first(i)["tokens"]) for i, batch in enumerate(workers)] == [True] * 3


@pytest.mark.parametrize(("size", "first_row"), [(4, 24), (8, 24), (2, 24), (7, 21), (48, 0)])
def test_no_row_is_left_out_when_the_batch_size_changes(folder, size, first_row):
    data = text(folder, batch_size=size, seed=1)
    data.load_state_dict({"batches": 6, "batches_of_a_rank": 3, "batch_size": 4})
    batch = next(iter(data.train_dataloader()))
    packed = data.train_batches().packed
    assert (batch["tokens"].numpy() == [packed.row(first_row + i)[:-1] for i in range(size)]).all()
    assert data.state_dict() == {"batches": first_row // size, "batches_of_a_rank": 3, "batch_size": size}


def test_a_checkpoint_that_does_not_say_its_batch_size_counts_batches(folder):
    data = text(folder, batch_size=8)
    data.load_state_dict({"batches": 6})
    assert data.state_dict() == {"batches": 6, "batches_of_a_rank": 6, "batch_size": 8}


def test_a_document_is_in_one_split_and_stays_there_when_others_come():
    names = [f"{i}.txt" for i in range(2000)]
    splits = assign_splits(names)
    assert (assign_splits(names[:1000]) == splits[:1000]).all()
    assert 0.03 < (splits == 1).mean() < 0.07
    assert 0.03 < (splits == 2).mean() < 0.07


def test_few_documents_still_give_three_splits():
    assert sorted(assign_splits(["a", "b", "c"])) == [0, 1, 2]


def test_hidden_empty_and_other_files_are_left_out(folder):
    cache = str(folder.parent / "cache")
    assert len(open_corpus(str(folder), "*.txt", cache).bounds) == 31
    assert len(open_corpus(str(folder), "*", cache).bounds) == 32


def test_the_cache_is_built_once_and_again_when_a_file_changes(folder):
    cache = folder.parent / "cache"
    first = open_corpus(str(folder), "*.txt", str(cache))
    assert open_corpus(str(folder), "*.txt", str(cache)).folder == first.folder
    (folder / "deep" / "00.txt").write_text("changed")
    assert open_corpus(str(folder), "*.txt", str(cache)).folder != first.folder
    assert len(list(cache.iterdir())) == 2


def test_a_corpus_travels_to_workers_as_its_folder(folder):
    corpus = open_corpus(str(folder), "*.txt", str(folder.parent / "cache"))
    assert len(corpus.bytes) == 465
    assert len(pickle.dumps(corpus)) < 1000


def test_a_single_file_is_cut_at_line_ends(tmp_path):
    file = tmp_path / "book.txt"
    file.write_text("".join(f"line {i}\n" for i in range(20_000)))
    corpus = open_corpus(str(file), "*", str(tmp_path / "cache"))
    assert bytes(corpus.bytes) == file.read_bytes()
    assert all(corpus.bytes[end - 1] == ord("\n") for end in corpus.bounds[1:])
    assert np.diff(corpus.bounds)[:-1].min() > 16 * 1024
    assert all(len(corpus.documents(split)) > 0 for split in ("train", "val", "test"))


def test_evaluation_takes_each_length_up_to_the_tokens_allowed(folder):
    data = text(folder, length=8, eval_lengths=[4], eval_tokens=16, batch_size=1)
    shapes = [[tuple(batch["tokens"].shape) for batch in loader] for loader in data.val_dataloader()]
    assert shapes == [[(1, 8), (1, 8)], [(2, 4), (2, 4)]]


def test_groups_say_how_much_context_a_position_has(folder):
    for i in range(40):
        (folder / f"{i}.md").write_text("a" * (20 * i + 1))
    data = text(folder, glob="*.md", length=100, eval_lengths=[16], eval_tokens=600)
    assert [e.groups for e in data.evaluations()] == [("context_0", "context_64"), ()]
    seen = set()
    for batch in data.val_dataloader()[0]:
        for row, groups in zip(batch["tokens"].tolist(), batch["groups"].tolist(), strict=True):
            start = 0
            for place, (token, group) in enumerate(zip(row, groups, strict=True)):
                start = place if token == START else start
                assert group == (place - start >= 64)
                seen.add(group)
    assert seen == {0, 1}
    assert "groups" not in data.val_dataloader()[1].batch_at(0)
    assert "groups" not in data.train_batches()(0)


def test_the_standard_library_is_the_default_text(tmp_path):
    data = Text(cache_dir=str(tmp_path), length=64, batch_size=2)
    assert data.vocab_size == 257
    assert len(data.corpus.bytes) > 5_000_000
    assert len(data.corpus.documents("val")) > 10
    assert next(iter(data.train_dataloader()))["tokens"].shape == (2, 64)


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("nowhere", {}, r"data\.path: no such file or folder: .*nowhere"),
        ("text", {"glob": "*.md"}, r"data\.path: no non-empty file that matches '\*\.md' in .*text"),
        (
            "text",
            {"length": 5000},
            r"data\.path: a row of length 5000 needs 5001 tokens; the train split .* has \d+",
        ),
        ("text", {"eval_tokens": 0}, r"data\.eval_tokens: must be at least 1; got 0"),
    ],
)
def test_text_that_cannot_be_used_is_refused(folder, path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        text(folder.parent / path, **arguments).train_dataloader()


def test_a_cache_that_cannot_be_written_is_named(folder):
    with pytest.raises(ConfigError, match=r"data\.cache_dir: cannot be written: .*code\.py"):
        Text(path=str(folder), cache_dir=str(folder / "code.py" / "cache")).prepare_data()
