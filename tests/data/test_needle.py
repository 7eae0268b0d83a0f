import pickle
import re
from itertools import islice

import pytest
import torch

from archsearch.config import ConfigError
from archsearch.data import Needle
from archsearch.data.packing import START
from archsearch.data.stream import IGNORED

VARIANTS = {
    "single": {},
    "distractors": {"num_distractors": 3},
    "several queries": {"num_queries": 3, "num_distractors": 1},
    "several values": {"num_values": 3, "num_distractors": 2},
    "everything": {"num_queries": 2, "num_values": 2, "num_distractors": 2, "key_length": 1, "value_length": 3},
}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "text"
    root.mkdir()
    for i in range(60):
        # letters say the document; the markers of a needle in a text must not make one
        (root / f"{i:02}.txt").write_bytes(bytes([65 + i % 26, 97 + i // 26]) * 90 + b"\1xx\x0299\3 \5xx\2")
    return root


def in_text(folder, **arguments):
    return Needle(haystack="text", path=str(folder), cache_dir=str(folder.parent / "cache"), **arguments)


def read(tokens, targets):
    """Read a row as a person would: return the scored bytes in order, and what they should be."""
    assert tokens[0] == START
    text = bytes(tokens[1:]).decode("latin-1")
    body, *questions = text.split("\x05")
    said = {}
    for key, value in re.findall("\x01([a-z]+)\x02([0-9]+)\x03", body):
        said.setdefault(key, []).append(value)
    answers = [said[question.split("\x02")[0]] for question in questions]
    scored = [(t, target) for t, target in enumerate(targets) if target != IGNORED]
    assert all(tokens[t + 1] == target for t, target in scored if t + 1 < len(tokens))
    # an answer is scored where it stands: what follows a question's STX
    assert {t for t, _ in scored if t + 1 < len(tokens)} == {
        t for t in range(len(text) - len("".join(questions)) - len(questions), len(text)) if text[t].isdigit()
    }
    return "".join(chr(target) for _, target in scored), "".join("".join(values) for values in answers), said


@pytest.mark.parametrize("haystack", ["noise", "text"])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_scored_bytes_answer_the_questions(folder, haystack, variant):
    data = in_text(folder, **variant) if haystack == "text" else Needle(**variant)
    batch = next(iter(data.train_dataloader()))
    assert batch["tokens"].shape == batch["targets"].shape == (32, 128)
    form = data.row_format
    for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
        scored, answers, said = read(tokens, targets)
        assert scored == answers
        assert len(answers) == form.num_queries * form.num_values * form.value_length
        assert len(said) == form.num_queries + form.num_distractors
        assert sum(len(values) > 1 for values in said.values()) == (form.num_queries if form.num_values > 1 else 0)


def test_noise_is_printable_and_text_is_text(folder):
    def filler(data):
        tokens = next(iter(data.train_dataloader()))["tokens"]
        return [re.sub("\x01.*?\x03|\x05.*", "", bytes(row[1:]).decode("latin-1")) for row in tokens.tolist()]

    assert all(text.isprintable() for text in filler(Needle()))
    words = re.compile(r"(?P<a>[A-Z][a-c])(?P=a)+")
    for text in filler(in_text(folder)):
        assert not set(text) & set("\1\2\3\5")
        assert words.search(text)


def test_text_of_evaluation_is_in_documents_that_training_never_sees(folder):
    def documents(batches):
        text = "".join(bytes(row[1:]).decode("latin-1") for batch in batches for row in batch["tokens"].tolist())
        return {match[1] for match in re.finditer("([A-Z][a-c])\\1", text)}

    data = in_text(folder, length=200, eval_lengths=[], eval_size=40)
    names = [documents(stream) for stream in (islice(data.train_dataloader(), 20), *data.val_dataloader())]
    assert all(names)
    assert not names[0] & names[1]


def test_needles_lie_at_every_depth_and_the_groups_say_which():
    data = Needle(length=200, eval_lengths=[], eval_size=400)
    names = ("tokens", "targets", "groups")
    batches = [[batch[name].tolist() for name in names] for batch in data.val_dataloader()[0]]
    rows = [row for batch in batches for row in zip(*batch, strict=True)]
    assert data.evaluations()[0].groups == ("depth_0", "depth_25", "depth_50", "depth_75")
    filler = 200 - data.row_format.shortest
    seen = torch.zeros(4, dtype=torch.int64)
    for tokens, targets, groups in rows:
        depth = (tokens.index(1) - 1) / (filler + 1)
        scored = [group for target, group in zip(targets, groups, strict=True) if target != IGNORED]
        assert scored == [int(4 * depth)] * 2
        assert all(group == -1 for target, group in zip(targets, groups, strict=True) if target == IGNORED)
        seen[int(4 * depth)] += 1
    assert (seen - 100).abs().max() < 35


def test_evaluation_rows_depend_on_neither_seed_nor_batch_size():
    def tokens(split, **arguments):
        data = Needle(length=40, eval_size=20, **arguments)
        loaders = {"val": data.val_dataloader, "test": data.test_dataloader}[split]()
        return [torch.cat([batch["tokens"] for batch in loader]) for loader in loaders]

    short, long = tokens("val")
    assert (short.shape, long.shape) == ((20, 40), (20, 160))
    assert torch.equal(long, tokens("val", seed=9, batch_size=3)[1])
    assert not (short == tokens("test")[0]).all(1).any()


@pytest.mark.parametrize("haystack", ["noise", "text"])
def test_a_batch_follows_from_seed_and_index_alone(folder, haystack):
    def batches(seed):
        return (in_text(folder, seed=seed) if haystack == "text" else Needle(seed=seed)).train_batches()

    first, again, other = batches(3), pickle.loads(pickle.dumps(batches(3))), batches(4)
    assert all(torch.equal(first(5)[name], again(5)[name]) for name in ("tokens", "targets"))
    assert not torch.equal(first(5)["tokens"], first(6)["tokens"])
    assert not torch.equal(first(5)["tokens"], other(5)["tokens"])


def test_the_curriculum_grows_the_length():
    data = Needle(length=128, curriculum_start=32, curriculum_hold=2, curriculum_steps=6)
    lengths = [batch["tokens"].shape[1] for batch in islice(data.train_dataloader(), 8)]
    assert lengths == [32, 32, 32, 45, 64, 90, 128, 128]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 12}, r"data\.length: must be at least 13, which needles and questions take; got 12"),
        ({"eval_lengths": [9]}, r"data\.eval_lengths: must be at least 13, which needles and questions take; got 9"),
        (
            {"num_queries": 2, "num_distractors": 25, "key_length": 1, "length": 999},
            r"data\.key_length: must make num_queries \+ num_distractors \(27\) different keys of 26 letters; got 1",
        ),
        ({"num_values": 0}, r"data\.num_values: must be at least 1; got 0"),
        ({"num_distractors": -1}, r"data\.num_distractors: must be at least 0; got -1"),
        ({"haystack": "hay"}, r"data\.haystack: must be noise or text; got 'hay'"),
        ({"path": "nowhere"}, r"data\.path: no such file or folder: nowhere"),
        ({"curriculum_start": 9, "curriculum_steps": 5}, r"data\.curriculum_start: must be from 13 to length \(128\)"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Needle(**arguments)


def test_a_text_shorter_than_the_haystack_is_refused(folder):
    with pytest.raises(
        ConfigError, match=r"data\.path: a row with 29988 bytes of filler needs a longer text; the train"
    ):
        next(iter(in_text(folder, length=30_001, batch_size=1).train_dataloader()))


def test_the_shortest_row_has_no_filler():
    batch = next(iter(Needle(length=13).train_dataloader()))
    text = bytes(batch["tokens"][0, 1:].tolist()).decode("latin-1")
    assert re.fullmatch("\x01([a-z]{2})\x02([0-9])[0-9]\x03\x05\\1\x02\\2", text)
