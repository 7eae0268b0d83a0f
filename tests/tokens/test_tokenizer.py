import json
import shutil
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from archsearch.config import ConfigError
from archsearch.tokens.tokenizer import ByteTokenizer, FileTokenizer

TEXT = "the café sat on the 猫 mat\n"


def test_tokens_are_those_of_the_library(tokenizer_file):
    tokenizer, library = FileTokenizer(tokenizer_file), Tokenizer.from_file(str(tokenizer_file))
    expected = library.encode(TEXT).ids
    assert len(expected) < len(TEXT.encode())
    assert tokenizer.encode(TEXT) == expected
    assert [x.tolist() for x in tokenizer.encode_documents([TEXT.encode(), b"dog"])] == [
        expected,
        library.encode("dog").ids,
    ]
    assert tokenizer.vocab_size == library.get_vocab_size() == 280
    assert tokenizer.decode([1, *expected]) == TEXT


def test_a_tokenizer_that_cuts_and_fills_texts_does_neither_here(tokenizer_file, tmp_path):
    library = Tokenizer.from_file(str(tokenizer_file))
    expected = library.encode(TEXT).ids
    library.enable_truncation(3)
    library.enable_padding(length=100)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = FileTokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.encode(TEXT) == expected
    assert [x.tolist() for x in tokenizer.encode_documents([TEXT.encode()])] == [expected]


def test_the_end_of_a_document_is_given_configured_or_usual(tokenizer_file, tmp_path):
    path = tmp_path / "tokenizer.json"
    shutil.copy(tokenizer_file, path)
    assert FileTokenizer(path).eod == 1
    for eos in ("<pad>", {"content": "<pad>"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
        assert FileTokenizer(path).eod == 0
    assert FileTokenizer(path, "<|endoftext|>").eod == 1


@pytest.mark.parametrize("tokenizer", ["bytes", "file"])
def test_a_decoder_waits_for_the_rest_of_a_character(tokenizer, tokenizer_file):
    codec = ByteTokenizer() if tokenizer == "bytes" else FileTokenizer(tokenizer_file)
    decode, ids = codec.decoder(), codec.encode("a猫")
    shown = [decode([token], False) for token in [codec.eod, *ids]]
    assert "".join(shown) == "a猫"
    assert "\ufffd" not in "".join(shown)
    assert decode([ids[1]], True) == "\ufffd"


def test_bytes_are_their_own_tokens():
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("aé") == [97, 0xC3, 0xA9]
    assert [x.tolist() for x in tokenizer.encode_documents([b"\xff\x00"])] == [[255, 0]]
    assert tokenizer.decode([256, 97]) == "a"


def test_bytes_that_are_no_text_become_replacement_characters(tokenizer_file):
    tokenizer = FileTokenizer(tokenizer_file)
    assert tokenizer.decode(tokenizer.encode_documents([b"a\xffb"])[0]) == "a\ufffdb"
    assert np.array_equal(tokenizer.encode("a\udcffb"), tokenizer.encode_documents([b"a\xffb"])[0])


@pytest.mark.parametrize(
    ("content", "eod", "message"),
    [
        (None, None, r"--tokenizer: .*tokenizer\.json: no such file"),
        ("{}", None, r"--tokenizer: .*tokenizer\.json: is no tokenizer file of Hugging Face: "),
        ("whole", "<|endoftxt|>", r"--eod: must be .*; got '<\|endoftxt\|>' \(did you mean '<\|endoftext\|>'\?\)"),
        ("whole", "猫", r"--eod: .*got '猫'; special tokens: <pad>, <\|endoftext\|>"),
        ("without", None, r"--tokenizer: .*: has no token <\|endoftext\|> or .*; say by --eod"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(tokenizer_file, tmp_path, content, eod, message):
    path, whole = tmp_path / "tokenizer.json", tokenizer_file.read_text()
    contents = {"whole": whole, "without": whole.replace("<|endoftext|>", "<other>")}
    if content is not None:
        path.write_text(contents.get(content, content))
    with pytest.raises(ConfigError, match=message):
        FileTokenizer(path, eod)


def test_the_missing_library_is_named(tokenizer_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"tokenizers is not installed: pip install 'archsearch\[data\]'"):
        FileTokenizer(tokenizer_file)
