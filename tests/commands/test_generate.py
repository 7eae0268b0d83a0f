from __future__ import annotations

import copy
import json
import os
import warnings

import jsonargparse._common
import pytest
import torch

from archsearch.cli import main
from archsearch.commands.generate import Writer
from archsearch.data.packing import START
from archsearch.model.generation import Step, generate
from archsearch.tokens.tokenizer import ByteTokenizer
from archsearch.training.checkpoint import load_checkpoint, load_model

MODEL = """
hidden_size: 16
pattern: MA
mixers: {M: {type: m2rnn, num_heads: 2, key_head_dim: 4, value_head_dim: 4}}
mlp: {intermediate_size: 16}
"""
FIT = ["fit", "--model.architecture=model.yaml", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
TEXT = ["--data=Text", "--data.path=text.txt", "--data.cache_dir=cache", "--data.length=8", "--data.eval_tokens=8"]
WORDS = ["--data=StateTracking", "--data.length=6", "--data.eval_lengths=[6]", "--data.eval_size=2"]
TEXT_RUN, WORDS_RUN = "lightning_logs/version_0", "lightning_logs/version_1"
CPU = ["--device", "cpu"]
BYTES = ByteTokenizer()
decode = BYTES.decode


def encode(text):
    return [START, *BYTES.encode(text)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train two tiny models, on text and on something else; returns the folder that holds their runs."""
    folder, before = tmp_path_factory.mktemp("runs"), os.getcwd()
    (folder / "model.yaml").write_text(MODEL)
    (folder / "text.txt").write_text("def f(x):\n    return x\n" * 4000)
    settings = copy.copy(jsonargparse._common.parsing_settings)
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            for data in (TEXT, WORDS):
                assert main([*FIT, *data, "--trainer.max_steps=3"]) == 0
    finally:
        os.chdir(before)
        jsonargparse._common.parsing_settings = settings
    return folder


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_runs(runs, monkeypatch):
    monkeypatch.chdir(runs)


def trained(run=TEXT_RUN):
    path = f"{run}/checkpoints/last.ckpt"
    return load_model(load_checkpoint(path), path)


def run(*arguments):
    return main(["generate", *arguments, *CPU])


def test_a_prompt_is_printed_with_its_continuation_and_the_figures_apart(capfd):
    expected = generate(trained(), [encode("def ")], 20, stop=START)[0]
    assert run(TEXT_RUN, "--prompt", "def ", "--max-new-tokens", "20", "--temperature", "0") == 0
    out, err = capfd.readouterr()
    assert out == "def " + decode(expected) + "\n"
    assert err.startswith("MA: prefill 5 tokens at ")
    assert err.count("\n") == 1
    assert "tokens/s, state " in err
    assert "fp32 on CPU" in err


def test_several_prompts_are_continued_as_one_batch_and_printed_in_turn(runs, capfd):
    (runs / "prompts.txt").write_text("def \n\nclass é\n")
    expected = generate(
        trained(), [encode("def "), encode("class é")], 9, temperature=0.7, top_p=0.9, stop=START, seed=2
    )
    flags = ["--max-new-tokens", "9", "--temperature", "0.7", "--top-p", "0.9", "--seed", "2"]
    shown = f"--- 1 of 2 ---\ndef {decode(expected[0])}\n--- 2 of 2 ---\nclass é{decode(expected[1])}\n"
    assert run(TEXT_RUN, "--prompt", "def ", "--prompt", "class é", *flags) == 0
    assert capfd.readouterr().out == shown
    assert run(TEXT_RUN, "--prompts", "prompts.txt", *flags) == 0
    assert capfd.readouterr().out == shown


def test_a_prompt_goes_to_the_end_of_its_line_whatever_else_would_break_one(runs, capfd):
    (runs / "prompts.txt").write_bytes("a\f\x1c\r b\r\n\r\nc\u2028\x85d".encode())
    assert run(TEXT_RUN, "--prompts", "prompts.txt", "--max-new-tokens", "1", "--json") == 0
    texts = json.loads(capfd.readouterr().out)["continuations"]
    assert [text["prompt"] for text in texts] == ["a\f\x1c\r b", "c\u2028\x85d"]


def test_json_gives_texts_tokens_speeds_and_the_states_bytes(capfd):
    flags = ["--max-new-tokens", "6", "--temperature", "0", "--json"]
    assert run(f"{TEXT_RUN}/checkpoints/last.ckpt", "--prompt", "", "--prompt", "ab", *flags) == 0
    out, err = capfd.readouterr()
    assert err == ""
    figures = json.loads(out)
    model = trained()
    rows = generate(model, [[START], [START, 97, 98]], 6, stop=START)
    assert [text["tokens"] for text in figures["continuations"]] == rows
    assert [text["text"] for text in figures["continuations"]] == [decode(row) for row in rows]
    assert [text["prompt"] for text in figures["continuations"]] == ["", "ab"]
    assert [text["ended"] for text in figures["continuations"]] == [row[-1] == START for row in rows]
    assert (figures["prefill"]["tokens"], figures["decode"]["tokens"]) == (2, 14)
    assert figures["decode"]["tokens_per_second"] == pytest.approx(14 / figures["decode"]["seconds"])
    assert figures["state_bytes"] == 2 * model.architecture.cache_bytes(8, "float32")
    assert (figures["pattern"], figures["precision"]) == ("MA", "fp32")


def test_precision_is_that_of_weights_and_caches(capfd):
    flags = ["--prompt", "ab", "--max-new-tokens", "6", "--json"]
    assert run(TEXT_RUN, *flags, "--precision", "bf16") == 0
    assert json.loads(capfd.readouterr().out)["state_bytes"] == trained().architecture.cache_bytes(8, "bfloat16")


def test_other_data_than_text_is_prompted_and_printed_as_numbers(capfd):
    assert run(WORDS_RUN, "--tokens", "1,2,3", "--max-new-tokens", "4", "--temperature", "0") == 0
    row = generate(trained(WORDS_RUN), [[1, 2, 3]], 4)[0]
    assert capfd.readouterr().out == f"1 2 3 {row[0]} {row[1]} {row[2]} {row[3]} \n"


def steps(*rows):
    return [Step(list(tokens), torch.empty(0), []) for tokens in zip(*rows, strict=True)]


def test_a_character_is_printed_when_all_its_bytes_have_come(capsys):
    writer = Writer([encode("a")], BYTES, 3, quiet=False)
    shown = []
    for step in steps(["é".encode()[0], "é".encode()[1], 0xFF]):
        writer.add(step)
        shown.append(capsys.readouterr().out)
    assert shown == ["a", "é", "\ufffd\n"]


def test_a_row_is_printed_as_it_comes_and_the_next_when_it_is_done(capsys):
    writer = Writer([encode("x"), encode("y")], BYTES, 3, quiet=False)
    shown = []
    for step in steps([97, START, None], [None, 98, START]):
        writer.add(step)
        shown.append(capsys.readouterr().out)
    assert shown == ["--- 1 of 2 ---\nxa", "\n--- 2 of 2 ---\nyb", "\n"]


def test_a_terminal_does_not_obey_what_a_model_writes(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    writer = Writer([encode("x")], BYTES, 9, quiet=False)
    for step in steps([*b"\x1b[2J\n[b]"]):
        writer.add(step)
    assert "\ufffd[2J\n[b]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--prompt", "a"], "CHECKPOINT: no such file: nowhere"),
        (["lightning_logs", "--prompt", "a"], "CHECKPOINT: no such file: lightning_logs"),
        (["model.yaml", "--prompt", "a"], "CHECKPOINT: model.yaml is no checkpoint of plain tensors and values: "),
        (["half.ckpt", "--prompt", "a"], "CHECKPOINT: half.ckpt is no checkpoint of plain tensors and values: "),
        (["bytes.ckpt", "--prompt", "a"], "CHECKPOINT: bytes.ckpt is no checkpoint of plain tensors and values: "),
        (["pickled.ckpt", "--prompt", "a"], "CHECKPOINT: pickled.ckpt is no checkpoint of plain tensors and values: "),
        (["foreign.ckpt", "--prompt", "a"], "CHECKPOINT: foreign.ckpt is no checkpoint of this program"),
        (
            ["whole.ckpt", "--prompt", "a"],
            "CHECKPOINT: whole.ckpt: model.norm.weight: must be floating-point numbers; holds torch.int64",
        ),
        (["other.ckpt", "--prompt", "a"], "CHECKPOINT: other.ckpt: holds other weights than its architecture has: "),
        (
            ["imported.ckpt", "--prompt", "a"],
            "CHECKPOINT: imported.ckpt was trained on data that it does not name, not on",
        ),
        ([WORDS_RUN, "--prompt", "a"], f"CHECKPOINT: {WORDS_RUN}/checkpoints/last.ckpt was trained on StateTracking, "),
        ([WORDS_RUN, "--tokens", "1,x"], "--tokens: must be numbers between commas; got '1,x'"),
        ([WORDS_RUN, "--tokens", "1,9"], "prompts[0]: tokens must be from 0 to 5; got 9"),
        ([TEXT_RUN, "--prompts", "nowhere.txt"], "--prompts: nowhere.txt: cannot be read: No such file or directory"),
        ([TEXT_RUN, "--prompts", "empty.txt"], "--prompts: empty.txt: holds no prompt"),
        ([TEXT_RUN, "--prompt", "a", "--max-new-tokens", "0"], "max_new_tokens: must be at least 1; got 0"),
        ([TEXT_RUN, "--prompt", "a", "--top-p", "2"], "top_p: must be above 0 and at most 1; got 2.0"),
        ([TEXT_RUN, "--prompt", "a", "--precision", "fp8"], "precision must be one of fp32, bf16, fp16; got 'fp8'"),
    ],
)
def test_a_users_errors_are_one_line(runs, capfd, arguments, message):
    content = (runs / TEXT_RUN / "checkpoints" / "last.ckpt").read_bytes()
    (runs / "half.ckpt").write_bytes(content[: len(content) // 2])
    (runs / "bytes.ckpt").write_bytes(b"\x80\xff" * 1000)
    (runs / "empty.txt").write_text("\n\n")
    torch.save({"model": torch.nn.Linear(1, 1)}, runs / "pickled.ckpt")
    torch.save({"hyper_parameters": None, "state_dict": {}}, runs / "foreign.ckpt")
    whole = {"model.norm.weight": torch.ones(16, dtype=torch.int64)}
    for name, weights in (("whole", whole), ("other", {})):
        changed = {**load_checkpoint(f"{TEXT_RUN}/checkpoints/last.ckpt"), "state_dict": weights}
        torch.save(changed, runs / f"{name}.ckpt")
    torch.save({"hyper_parameters": {"architecture": {}}}, runs / "imported.ckpt")
    assert run(*arguments) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_a_prompt_is_required_and_of_one_kind(capfd):
    for arguments in ([], ["--prompt", "a", "--tokens", "1"]):
        with pytest.raises(SystemExit) as stopped:
            run(TEXT_RUN, *arguments)
        assert stopped.value.code == 2
    assert "not allowed with argument --prompt" in capfd.readouterr().err
