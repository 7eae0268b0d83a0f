import json
import pickle
from itertools import islice

import numpy as np
import pytest
import torch

from archsearch.config import ConfigError
from archsearch.data import Text
from archsearch.data.packing import PackedRows
from archsearch.data.token_corpus import TokenCorpus
from archsearch.tokens.megatron import write_index
from archsearch.tokens.prepare import Options, prepare

EOD = 9


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def text(path, **arguments):
    return Text(path=path, cache_dir="cache", **{"length": 16, "batch_size": 3, **arguments})


def megatron(name, documents, dtype="uint16", **facts):
    """Write a Megatron pair, and the JSON beside it where there are `facts`."""
    np.concatenate(documents).astype(dtype).tofile(f"{name}.bin")
    with open(f"{name}.idx", "wb") as file:
        write_index(file, np.dtype(dtype), np.array([len(document) for document in documents]))
    if facts:
        write_json(name, **facts)


def write_json(name, **facts):
    with open(f"{name}.json", "w") as file:
        json.dump(facts, file)


def numbered(count=60):
    """Return documents of 1 to 40 tokens; token 10 + i belongs to document i alone."""
    return [[10 + i] * (i % 40 + 1) for i in range(count)]


def documents_of(corpus):
    return [corpus.read(i, 0, length).tolist() for i, length in enumerate(corpus.lengths)]


FORMAT = {"vocabulary": 100, "eod": EOD}


def test_bytes_and_prepared_bytes_give_the_same_batches(tmp_path):
    (tmp_path / "in/deep").mkdir(parents=True)
    for i in range(80):
        (tmp_path / f"in/deep/{i}.txt").write_text(f"text {i} é\n" * (i % 7 + 1))
    made = prepare(["in"], "out", Options(shard_bytes=300))
    assert made.documents == 80
    check_same_batches("in", "out.idx")


def test_a_single_file_and_its_prepared_bytes_give_the_same_batches(tmp_path):
    (tmp_path / "book.txt").write_text("".join(f"line {i}\n" for i in range(40_000)))
    prepare(["book.txt"], "out", Options(shard_bytes=40_000))
    check_same_batches("book.txt", "out.bin")


def check_same_batches(source, prepared):
    as_bytes, as_tokens = text(source, seed=3), text(prepared, seed=3)
    assert as_tokens.vocab_size == as_bytes.vocab_size == 257
    ours, theirs = as_bytes.train_batches(), as_tokens.train_batches()
    for i in (0, 1, 7, 200):
        check_equal(ours(i), theirs(i))
    for split in ("val", "test"):
        (ours, count), (theirs, same) = (data.eval_batches(split, 64) for data in (as_bytes, as_tokens))
        assert count == same > 0
        check_equal(ours(count - 1), theirs(count - 1))


def check_equal(batch, other):
    assert batch.keys() == other.keys()
    assert all(torch.equal(batch[name], other[name]) for name in batch)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "int64"])
def test_a_raw_file_is_cut_at_the_ends_of_documents(dtype):
    stream = [token for document in numbered() for token in [*document, EOD]]
    np.array([EOD, *stream, 7, 7]).astype(dtype).tofile("x.bin")
    assert documents_of(text("x.bin", dtype=dtype, **FORMAT).corpus) == [*numbered(), [7, 7]]
    write_json("x", dtype=dtype, vocab_size=100, eod=EOD)
    data = text("x.bin")
    assert data.vocab_size == 100
    assert documents_of(data.corpus) == [*numbered(), [7, 7]]


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_megatron_documents_are_read_with_and_without_their_ends(dtype):
    ended = [[*document, EOD] if i % 3 else document for i, document in enumerate(numbered())]
    megatron("x", [*ended, [EOD]], dtype)
    for path in ("x.bin", "x.idx"):
        assert documents_of(text(path, **FORMAT).corpus) == numbered()


def test_rows_hold_every_document_once_between_separators():
    megatron("x", numbered())
    corpus = text("x.idx", **FORMAT).corpus
    packed = PackedRows(corpus, np.arange(60), length=16)
    stream = np.concatenate([packed.row(number)[:-1] for number in range(packed.rows)])
    expected = [token for document in numbered() for token in [EOD, *document]]
    assert stream.tolist() == expected[: len(stream)]
    assert len(expected) - len(stream) <= 16


def test_documents_and_rows_bound_what_a_position_sees():
    megatron("x", numbered())
    batch = text("x.idx", **FORMAT).train_batches()(0)
    starts = (batch["tokens"].flatten() == EOD).nonzero().flatten().tolist()
    assert set(batch["cu_seqlens"].tolist()) == {0, 16, 32, 48, *starts}
    assert torch.equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])


def test_without_document_masks_rows_are_the_same_and_plain():
    megatron("x", numbered() * 8)
    masked, plain = (text("x.idx", length=100, document_mask=mask, **FORMAT) for mask in (True, False))
    batch = plain.train_batches()(2)
    assert set(batch) == {"tokens", "targets"}
    assert torch.equal(batch["tokens"], masked.train_batches()(2)["tokens"])
    groups = plain.eval_batches("val", 100)[0](0)["groups"]
    assert groups[0].tolist() == [int(place >= 64) for place in range(100)]


def test_a_batch_follows_from_seed_and_index_alone_in_workers_too():
    megatron("x", numbered())
    first, other = (text("x.idx", seed=seed, **FORMAT).train_batches() for seed in (1, 2))
    assert not torch.equal(first(40)["tokens"], other(40)["tokens"])
    workers = islice(text("x.idx", seed=1, num_workers=2, **FORMAT).train_dataloader(), 3)
    for i, batch in enumerate(workers):
        check_equal(batch, first(i))


def test_a_corpus_travels_as_its_folder():
    megatron("x", numbered())
    corpus = text("x.idx", **FORMAT).corpus
    assert len(pickle.dumps(corpus)) < 1000
    assert documents_of(pickle.loads(pickle.dumps(corpus))) == numbered()


@pytest.mark.parametrize(
    ("path", "glob"), [("a.idx,b.bin", "*"), ("?.idx", "*"), ("*.bin", "*"), (".", "*.idx"), ("b.idx, a.bin", "*")]
)
def test_several_files_are_one_corpus(path, glob):
    megatron("a", numbered()[:30])
    megatron("b", numbered()[30:], "int32")
    found = documents_of(text(path, glob=glob, **FORMAT).corpus)
    assert found == (numbered() if path[0] != "b" else numbered()[30:] + numbered()[:30])


def test_a_document_stays_in_its_split_when_others_come():
    megatron("x", numbered())
    before = text("x.idx", **FORMAT).corpus.documents("val")
    megatron("x", numbered() + numbered())
    after = text("x.idx", **FORMAT).corpus.documents("val")
    assert 0 < len(before) < 15
    assert after[after < 60].tolist() == before.tolist()


def test_few_long_documents_are_cut_so_that_each_split_has_some():
    np.arange(100_000).astype(np.uint16).__mod__(9).tofile("x.bin")
    data = text("x.bin", dtype="uint16", **FORMAT)
    assert data.corpus.lengths.tolist() == [16384] * 6 + [100_000 - 6 * 16384]
    assert all(len(data.corpus.documents(split)) for split in ("train", "val", "test"))


def test_more_than_2_31_tokens_are_reached_without_reading_them():
    length, count = 2**30 + 5, 4
    with open("x.bin", "wb") as file:
        file.truncate(2 * length * count)
        file.seek(2 * (length * count - 3))
        np.array([7, 8, EOD], dtype=np.uint16).tofile(file)
    with open("x.idx", "wb") as file:
        write_index(file, np.dtype(np.uint16), np.array([length] * count))
    write_json("x", vocab_size=100, eod=EOD, eod_ends_documents=True)
    corpus = text("x.idx").corpus
    packed = PackedRows(corpus, np.arange(count), length=1024)
    assert packed.tokens == length * count
    assert packed.tokens_from(length * count - 3, 3).tolist() == [0, 7, 8]
    assert packed.tokens_from(3 * length - 1, 3).tolist() == [0, EOD, 0]
    assert packed.row(packed.rows - 1).shape == (1025,)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of Lightning
@pytest.mark.parametrize("mask", [True, False])
def test_a_model_trains_on_token_files(mask):
    megatron("x", numbered(), vocab_size=100, eod=EOD)
    data = text("x.idx", document_mask=mask)
    assert isinstance(data.corpus, TokenCorpus)
    assert 4 < fit_two_steps(data) < 5.5  # log(100) = 4.6


def fit_two_steps(data):
    from lightning.pytorch import Trainer

    from archsearch.training.module import LanguageModel

    model = LanguageModel(
        {
            "hidden_size": 16,
            "pattern": "MA",
            "mixers": {"M": {"type": "m2rnn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4}},
            "mlp": {"intermediate_size": 16},
        },
        vocab_size=data.vocab_size,
    )
    trainer = Trainer(
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(model, datamodule=data)
    assert trainer.global_step == 2
    return trainer.callback_metrics["train/loss"].item()


def test_a_token_beyond_the_vocabulary_is_named_when_it_is_read():
    documents = numbered()
    megatron("x", documents)
    corpus = text("x.idx", vocabulary=60, eod=EOD).corpus
    place = sum(map(len, documents[:50]))
    corpus.read(49, 0, 1)
    with pytest.raises(ConfigError, match=rf"x\.bin: token {place + 1}: must be from 0 to 59, .*; got 60"):
        corpus.read(50, 1, 2)
    np.array([1, -2] * 20).astype(np.int32).tofile("y.bin")
    with pytest.raises(ConfigError, match=r"y\.bin: token 1: must be from 0 to 99, below the vocabulary; got -2"):
        text("y.bin", dtype="int32", **FORMAT).prepare_data()


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("x.idx", {}, r"data\.vocabulary: is required for x\.bin, unless x\.json beside it says vocab_size"),
        ("x.idx", {"vocabulary": 100}, r"data\.eod: is required for x\.bin, unless x\.json beside it says eod"),
        ("x.idx", {"vocabulary": 0, "eod": 0}, r"data\.vocabulary: must be at least 1; got 0"),
        ("x.idx", {"vocabulary": 9, "eod": 9}, r"data\.eod: must be from 0 to below the vocabulary 9; got 9"),
        (
            "x.idx",
            {**FORMAT, "dtype": "int32"},
            r"data\.dtype: must be uint16 as x\.idx says, or left out; got 'int32'",
        ),
        ("raw.bin", FORMAT, r"data\.dtype: is required for raw\.bin, which has neither \.idx nor \.json"),
        ("raw.bin", {**FORMAT, "dtype": "uint17"}, r"data\.dtype: must be one of uint8, .*; got 'uint17' \(did you"),
        ("raw.bin", {**FORMAT, "dtype": "int32"}, r"raw\.bin: must hold tokens of 4 bytes \(int32\); got 6 bytes"),
        ("empty.bin", {**FORMAT, "dtype": "int32"}, r"empty\.bin: is empty"),
        ("nowhere.idx", FORMAT, r"data\.path: no such file: nowhere\.idx"),
        ("raw.idx", FORMAT, r"data\.path: no such file: raw\.idx"),
        ("alone.idx", FORMAT, r"data\.path: no such file: alone\.bin"),
        ("no*.idx", FORMAT, r"data\.path: no file matches no\*\.idx"),
        ("text.txt", {"eod": 3}, r"data\.eod: is for token files \(\.bin, \.idx\) alone; got 3"),
        ("short.idx", FORMAT, r"short\.idx: belongs to a \.bin of 6 bytes; short\.bin has 4"),
        ("long.idx", FORMAT, r"long\.idx: belongs to a \.bin of 6 bytes; long\.bin has 8"),
        ("magic.idx", FORMAT, r"magic\.idx: is no Megatron index: must begin with"),
        ("hashes.idx", FORMAT, r"hashes\.hashes\.npy: must hold 1 uint64 numbers; got \(3,\) of float64"),
        ("json.idx", {}, r"json\.json: vocab: unknown key \(did you mean 'vocab_size'\?\)"),
        ("x.idx,said.idx", {"vocabulary": 100}, r"data\.eod: is required for x\.bin"),
        (
            "said.idx,other.idx",
            {},
            r"data\.path: all files must have one vocabulary; got 70 in other\.bin and 60 in said",
        ),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, path, arguments, message):
    for name in ("x", "short", "long", "magic", "hashes", "json", "alone", "said", "other"):
        megatron(name, [[1, 2, 3]])
    (tmp_path / "alone.bin").unlink()
    (tmp_path / "short.bin").write_bytes(b"1234")
    (tmp_path / "long.bin").write_bytes(b"12345678")
    (tmp_path / "magic.idx").write_bytes(b"x" * 100)
    (tmp_path / "raw.bin").write_bytes(b"123456")
    (tmp_path / "empty.bin").touch()
    (tmp_path / "text.txt").write_text("text")
    np.save("hashes.hashes.npy", np.zeros(3))
    write_json("json", vocab=3)
    write_json("said", vocab_size=60, eod=3)
    write_json("other", vocab_size=70, eod=3)
    with pytest.raises(ConfigError, match=message):
        text(path, **arguments).prepare_data()
