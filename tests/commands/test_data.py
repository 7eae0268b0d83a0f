"""From text to token files, a model trained on them, and what it writes."""

from __future__ import annotations

import copy
import json
import os
import warnings
from pathlib import Path

import jsonargparse._common
import pytest

from archsearch.cli import main
from archsearch.model.generation import generate
from archsearch.tokens.tokenizer import FileTokenizer
from archsearch.training.checkpoint import load_checkpoint, load_model
from tests.tokens.tiny_tokenizer import train_tokenizer

MODEL = """
hidden_size: 16
pattern: MA
mixers: {M: {type: m2rnn, num_heads: 2, key_head_dim: 4, value_head_dim: 4}}
mlp: {intermediate_size: 16}
"""
FIT = ["fit", "--model.architecture=model.yaml", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
DATA = ["--data=Text", "--data.path=out.idx", "--data.cache_dir=cache", "--data.length=8", "--data.eval_tokens=8"]
CHECKPOINT = "lightning_logs/version_0/checkpoints/last.ckpt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prepare a text and train a tiny model on it; returns the folder that holds both."""
    folder, before = tmp_path_factory.mktemp("run"), os.getcwd()
    (folder / "model.yaml").write_text(MODEL)
    (folder / "texts.jsonl").write_text(
        "".join(json.dumps({"t": f"the cat sat on {i} mats"}) + "\n" for i in range(200))
    )
    train_tokenizer(folder / "tiny.json")
    settings = copy.copy(jsonargparse._common.parsing_settings)
    os.chdir(folder)
    try:
        prepare = ["data", "prepare", "texts.jsonl", "--text-key", "t", "--tokenizer", "tiny.json", "-o", "out"]
        assert main([*prepare, "--workers", "1"]) == 0
        os.unlink("tiny.json")  # it is kept beside the tokens
        with warnings.catch_warnings():
            assert main([*FIT, *DATA, "--trainer.max_steps=2"]) == 0
    finally:
        os.chdir(before)
        jsonargparse._common.parsing_settings = settings
    return folder


@pytest.fixture(autouse=True)
def _in_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


def run(*arguments):
    return main(["generate", CHECKPOINT, "--device", "cpu", "--max-new-tokens", "9", "--temperature", "0", *arguments])


def test_a_prompt_is_read_and_continued_by_the_tokenizer_beside_the_data(capfd):
    tokenizer, model = FileTokenizer("out.tokenizer.json"), load_model(load_checkpoint(CHECKPOINT), CHECKPOINT)
    assert model.architecture.vocab_size == 280
    expected = generate(model, [[1, *tokenizer.encode("the café")]], 9, stop=1)[0]
    assert run("--prompt", "the café") == 0
    assert capfd.readouterr().out == f"the café{tokenizer.decode(expected)}\n"
    assert run("--prompt", "the café", "--json") == 0
    figures = json.loads(capfd.readouterr().out)
    assert figures["prefill"]["tokens"] == 1 + len(tokenizer.encode("the café"))
    [row] = figures["continuations"]
    assert row == {
        "prompt": "the café",
        "text": tokenizer.decode(expected),
        "tokens": expected,
        "ended": expected[-1] == 1,
    }


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        (
            "out.tokenizer.json",
            "was trained on out.idx, which has no tokenizer beside it; prompt it with --tokens 1,2,3",
        ),
        ("out.idx", "data.path: no such file: out.idx; prompt it with --tokens 1,2,3"),
    ],
)
def test_without_its_tokenizer_a_model_takes_and_writes_numbers(folder, capfd, gone, message):
    Path(gone).rename("elsewhere")
    try:
        assert run("--prompt", "the") == 1
        err = capfd.readouterr().err
        assert err.startswith(f"error: CHECKPOINT: {CHECKPOINT}")
        assert err.endswith(f"{message}\n")
        assert run("--tokens", "1,2") == 0
        assert capfd.readouterr().out.startswith("1 2 ")
    finally:
        (folder / "elsewhere").rename(gone)
