import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from archsearch.cli import main
from archsearch.config import ConfigError, Where
from archsearch.tokens.megatron import documents, read_index
from archsearch.tokens.prepare import Options, prepare

ENDINGS = ("bin", "idx", "hashes.npy", "json")
SLOW = """
import sys, time
import archsearch.tokens.shards as shards
whole = shards.Lines._text
shards.Lines._text = lambda *arguments: (time.sleep(0.002), whole(*arguments))[1]
from archsearch.tokens.prepare import Options, prepare
if __name__ == "__main__":
    prepare(["texts.jsonl"], "out", Options(tokenizer=sys.argv[1], workers=int(sys.argv[2]), shard_bytes=2000))
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_lines(count=400):
    lines = [json.dumps({"id": i, "text": f"the cat sat on {i} mats é" * (i % 5 + 1)}) for i in range(count)]
    Path("texts.jsonl").write_text("\n".join(lines) + "\n")
    return [json.loads(line)["text"] for line in lines]


def read_documents(prefix="out"):
    index = read_index(Path(f"{prefix}.idx"))
    tokens = np.fromfile(f"{prefix}.bin", dtype=index.dtype)
    starts, lengths = documents(index, Where(""))
    return [tokens[start : start + length].tolist() for start, length in zip(starts, lengths, strict=True)]


def outputs(prefix="out"):
    """Return all that was written; the key in the JSON names the input's place and shards."""
    contents = {ending: Path(f"{prefix}.{ending}").read_bytes() for ending in ENDINGS}
    facts = json.loads(contents.pop("json"))
    return contents | {name: value for name, value in facts.items() if name not in ("sources_sha256", "tokenizer")}


def test_a_document_is_the_librarys_tokens_and_the_end_of_document(tokenizer_file):
    texts = write_lines()
    made = prepare(["texts.jsonl"], "out", Options(tokenizer=str(tokenizer_file), shard_bytes=3000))
    library = Tokenizer.from_file(str(tokenizer_file))
    assert read_documents() == [[*library.encode(text).ids, 1] for text in texts]
    assert (made.documents, made.vocab_size, made.eod, made.eod_token) == (400, 280, 1, "<|endoftext|>")
    assert made.tokens == sum(map(len, read_documents()))
    assert made.source_bytes == Path("texts.jsonl").stat().st_size
    assert made.bin_sha256 == hashlib.sha256(Path("out.bin").read_bytes()).hexdigest()
    assert made.tokenizer == "out.tokenizer.json"
    assert Path(made.tokenizer).read_text() == tokenizer_file.read_text()
    assert json.loads(Path("out.json").read_text()) == {k: v for k, v in vars(made).items() if v is not None}
    assert not Path("out.shards").exists()


def test_shards_and_workers_change_nothing(tokenizer_file):
    write_lines()
    for prefix, workers, shard_bytes in (("out", 1, 10**6), ("small", 1, 370), ("parallel", 2, 9000)):
        options = Options(tokenizer=str(tokenizer_file), workers=workers, shard_bytes=shard_bytes)
        prepare(["texts.jsonl"], prefix, options)
    assert outputs("small") == outputs("parallel") == outputs("out")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_goes_on_and_writes_the_same(tokenizer_file, workers):
    write_lines()
    prepare(["texts.jsonl"], "whole", Options(tokenizer=str(tokenizer_file), shard_bytes=2000))
    Path("slow.py").write_text(SLOW)
    command = [sys.executable, "slow.py", str(tokenizer_file), str(workers)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    while len(list(Path("out.shards").glob("*.npz"))) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 10
    while group_is_alive(process.pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not group_is_alive(process.pid)  # workers end with their parent
    kept = {path: path.stat().st_mtime_ns for path in Path("out.shards").glob("*.npz")}
    assert not Path("out.idx").exists()
    seen = []
    options = Options(tokenizer=str(tokenizer_file), shard_bytes=2000)
    prepare(["texts.jsonl"], "out", options, lambda x: seen.append((x.done_bytes, list(kept_now(kept)))))
    assert seen[0][0] == 2000 * len(kept)  # the bar begins where it was
    assert seen[-1][0] == Path("texts.jsonl").stat().st_size
    assert all(len(still) == len(kept) for _, still in seen)
    assert outputs("out") == outputs("whole")


def kept_now(kept):
    return (path for path, time in kept.items() if path.exists() and path.stat().st_mtime_ns == time)


def group_is_alive(group):
    """Return whether a process of the group does more than wait to be reaped."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[2] == str(group) and fields[0] != "Z":
            return True
    return False


def test_a_finished_run_is_not_repeated_and_other_text_not_overwritten():
    write_lines(10)
    first = prepare(["texts.jsonl"], "out", Options())
    before = os.stat("out.bin").st_mtime_ns
    assert prepare(["texts.jsonl"], "out", Options()) == first
    assert os.stat("out.bin").st_mtime_ns == before
    write_lines(20)
    with pytest.raises(ConfigError, match=r"out\.bin: exists, of other text, tokenizer or options; --force"):
        prepare(["texts.jsonl"], "out", Options())
    assert prepare(["texts.jsonl"], "out", Options(force=True)).documents == 20
    assert len(read_documents()) == 20


def test_shards_of_other_text_are_not_mixed_in():
    write_lines(10)
    Path("out.shards").mkdir()
    Path("out.shards/plan").write_text("other")
    Path("out.shards/00000000.npz").write_text("other")
    with pytest.raises(ConfigError, match=r"out\.shards: holds shards of other text, .* --force drops them"):
        prepare(["texts.jsonl"], "out", Options())
    assert prepare(["texts.jsonl"], "out", Options(force=True)).documents == 10


def test_shards_that_a_kill_left_without_their_plan_are_dropped():
    write_lines(10)
    prepare(["texts.jsonl"], "old", Options())
    expected = outputs("old")
    Path("out.shards").mkdir()
    tokens, empty = np.zeros(3, dtype=np.uint16), np.zeros(1, dtype=np.uint64)
    np.savez("out.shards/00000000.npz", tokens=tokens, lengths=np.array([3]), hashes=empty, not_utf8=0)
    prepare(["texts.jsonl"], "out", Options())
    assert outputs() == expected


def test_shards_without_a_finished_one_stop_nobody_from_mending_the_text():
    Path("texts.jsonl").write_text('{"txt": "a"}\n')
    with pytest.raises(ConfigError, match="must be an object with the key 'text'"):
        prepare(["texts.jsonl"], "out", Options())
    Path("texts.jsonl").write_text('{"text": "ab"}\n')
    assert prepare(["texts.jsonl"], "out", Options()).tokens == 3


def test_what_is_written_into_the_folder_that_is_read_is_no_text(tokenizer_file):
    Path("corpus").mkdir()
    Path("corpus/a.txt").write_text("the cat")
    options = Options(tokenizer=tokenizer_file)
    made = prepare(["corpus"], "corpus/out", options)
    assert prepare(["corpus"], "corpus/out", options) == made
    kept = Path("corpus/out.shards")
    kept.mkdir()
    (kept / "plan").write_text(made.sources_sha256)  # as a kill leaves it
    (kept / ".shard-x").write_text("half of one")
    assert prepare(["corpus"], "corpus/out", options) == made


def test_files_are_documents_and_folders_are_searched():
    Path("in/deep").mkdir(parents=True)
    Path("in/deep/b.txt").write_bytes(b"b\xff")
    Path("in/a.txt").write_text("aa")
    Path("in/.hidden.txt").write_text("no")
    Path("in/c.md").write_text("no")
    Path("in/empty.txt").touch()
    Path("z.txt").write_text("z")
    made = prepare(["z.txt", "in"], "out", Options(glob="*.txt"))
    assert read_documents() == [[ord("z"), 256], [97, 97, 256], [98, 255, 256]]
    assert (made.not_utf8, made.tokenizer, made.dtype, made.vocab_size) == (1, "bytes", "uint16", 257)


def test_empty_texts_and_lines_are_left_out():
    Path("texts.jsonl").write_text('{"text": ""}\n\n  \n{"text": "a"}')
    prepare(["texts.jsonl"], "out", Options())
    assert read_documents() == [[97, 256]]


def test_the_vocabulary_goes_to_its_largest_number_and_a_large_one_takes_four_bytes():
    library = Tokenizer(models.WordLevel({"</s>": 0, "a": 5, "z": 70_000}, unk_token="</s>"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.save("large.json")
    Path("a.txt").write_text("a z")
    made = prepare(["a.txt"], "out", Options(tokenizer="large.json"))
    assert (made.vocab_size, made.dtype) == (70_001, "int32")
    assert read_documents() == [[5, 70_000, 0]]


@pytest.mark.parametrize(
    ("line", "message", "workers"),
    [
        ("{", r"is not valid JSON: ", 1),
        ("{", r"is not valid JSON: ", 2),
        ("[" * 100_000, r"is not valid JSON: ", 1),
        (
            '{"content": "a", "id": 1}',
            r"must be an object with the key 'text' \(--text-key\); got the keys content, id",
            1,
        ),
        ("[1]", r"must be an object with the key 'text' \(--text-key\); got list", 1),
        ('{"text": 7}', r"text: must be text; got int", 1),
        (b"\xff".decode("latin1"), r"is not valid JSON: ", 1),
    ],
)
def test_an_unreadable_line_is_named_by_its_number(line, message, workers):
    Path("texts.jsonl").write_text('{"text": "a"}\n' * 100 + "\n" + line + "\n" + '{"text": "b"}\n' * 100)
    with pytest.raises(ConfigError, match=r"texts\.jsonl: line 102: " + message):
        prepare(["texts.jsonl"], "out", Options(shard_bytes=300, workers=workers))
    assert not Path("out.idx").exists()


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (["nowhere"], {}, "FILES: no such file or folder: nowhere"),
        (["."], {"glob": "*.md"}, r"FILES: no non-empty file in \."),
        (["x.gz"], {}, r"x\.gz: must be text or JSON Lines; unpack it first"),
        (["a.txt"], {"workers": 0}, "--workers: must be at least 1; got 0"),
        (["a.txt"], {"eod": "x"}, "--eod: bytes have their own end of document, 256; got 'x' without --tokenizer"),
        (["a.txt"], {"tokenizer": "no.json"}, r"--tokenizer: no\.json: no such file"),
        (["empty.jsonl"], {}, "FILES: hold no text"),
    ],
)
def test_what_cannot_be_prepared_is_refused(files, options, message):
    Path("x.gz").write_bytes(b"\x1f\x8b")
    Path("a.txt").write_text("a")
    Path("empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match=message):
        prepare(files, "out", Options(**options))


def test_the_command_says_what_it_made(capfd, tokenizer_file):
    write_lines(10)
    arguments = ["data", "prepare", "texts.jsonl", "--tokenizer", str(tokenizer_file), "-o", "out", "--workers", "1"]
    assert main([*arguments, "--eod", "<pad>"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("out.bin, out.idx: 10 documents, ")
    assert "documents end with 0 (<pad>)" in out
    assert "--data=Text --data.path=out.idx" in out
    assert err == ""
    assert main([*arguments, "--eod", "<pad>", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["documents"] == 10
    assert main(arguments) == 1
    assert (
        capfd.readouterr().err == "error: out.bin: exists, of other text, tokenizer or options; --force replaces it\n"
    )


def test_preparing_starts_without_heavy_imports():
    code = "import sys, archsearch.tokens.prepare; print([m for m in ('torch', 'lightning') if m in sys.modules])"
    root = Path(__file__).parents[2]
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=root).strip() == "[]"
