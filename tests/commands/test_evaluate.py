from __future__ import annotations

import copy
import json
import os
import sys
import warnings

import jsonargparse._common
import numpy as np
import pytest
import torch

from archsearch.architecture import Architecture
from archsearch.cli import main
from archsearch.commands.evaluate import HARNESS
from archsearch.config import Where
from archsearch.data import Needle, Recall, StateTracking, Text
from archsearch.data.needle_row import Noise
from archsearch.data.text import context_lengths
from archsearch.evaluate import suites
from archsearch.evaluate.intervals import mean_of_positions, wilson
from archsearch.evaluate.rows import Passages
from archsearch.evaluate.suites import Asked, cases
from archsearch.evaluate.trained import Trained, read_trained
from archsearch.model.language_model import HybridLM
from archsearch.training.checkpoint import PREFIX, find_checkpoint, fresh_checkpoint, load_checkpoint, load_model
from archsearch.training.metrics import LanguageMetrics
from tests.tokens.tiny_tokenizer import train_tokenizer

MODEL = """
hidden_size: 16
pattern: MA
mixers: {M: {type: m2rnn, num_heads: 2, key_head_dim: 4, value_head_dim: 4}}
mlp: {intermediate_size: 16}
"""
SENTENCES = ["def f(x):", "    return x", "", "class B:", "    pass", "# what is said here is said", "x = [1, 2, 3]"]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Make checkpoints of fresh models, each as trained on other data, and work in their folder."""
    folder, before = tmp_path_factory.mktemp("evaluate"), os.getcwd()
    os.chdir(folder)
    (folder / "model.yaml").write_text(MODEL)
    lines = np.random.default_rng(0).choice(SENTENCES, size=60_000)
    (folder / "text.txt").write_text("\n".join(lines))
    (folder / "short.txt").write_text("too short\n")
    text = {"path": "text.txt", "cache_dir": "cache", "length": 128}
    save("words", StateTracking(group="Z2", length=6))
    save("pairs", Recall(vocab_size=12, num_pairs=2, length=12))
    save("bytes", Text(**text))
    save("needles", Needle(length=96, haystack="text", path="text.txt", cache_dir="cache"))
    save("imported", None, vocab_size=257)
    yield folder
    os.chdir(before)


def save(name, data, vocab_size=None):
    torch.manual_seed(0)
    vocab_size = vocab_size or data.vocab_size
    architecture = Architecture.from_dict(
        {**Architecture.load("model.yaml").to_dict(), "vocab_size": vocab_size}, Where(name)
    )
    weights = HybridLM(architecture).state_dict()
    weights["head.weight"] *= 20
    checkpoint = fresh_checkpoint(architecture, weights)
    if data is not None:
        checkpoint["data_class"] = f"{type(data).__module__}.{type(data).__qualname__}"
        checkpoint["datamodule_hyper_parameters"] = dict(data.hparams)
    os.makedirs(name, exist_ok=True)
    torch.save(checkpoint, f"{name}/last.ckpt")


def evaluate(*arguments):
    return main(["evaluate", *arguments, "--device", "cpu"])


def figures(capfd, *arguments):
    assert evaluate(*arguments, "--json") == 0
    return json.loads(capfd.readouterr().out)["figures"]


def opened(name):
    path = find_checkpoint(name)
    checkpoint = load_checkpoint(path)
    model = load_model(checkpoint, path).eval()
    return model, read_trained(checkpoint, model.embedding.num_embeddings)


def by_training_metrics(name, task, asked):
    """Measure the rows of a task by the metrics that training logs, all rows in one batch."""
    model, trained = opened(name)
    expected = {}
    for case in cases(task, trained, asked):
        batch = case.source.batch(range(case.rows))
        metrics = LanguageMetrics(("exact", "last_accuracy"), case.source.groups)
        with torch.inference_mode():
            logits = model(batch["tokens"], None, batch.get("cu_seqlens"))[0]
            metrics.update(logits, batch["targets"], batch.get("groups"))
        for part, values in metrics.compute().items():
            for metric, value in values.items():
                expected[case.length, case.variant, part, metric] = float(value)
    return expected


@pytest.mark.parametrize(
    ("name", "task", "flags", "asked", "lengths", "parts"),
    [
        ("words", "state_tracking", [], Asked(rows=20), {6, 24}, {""}),
        ("pairs", "recall", ["--lengths", "12,24"], Asked(rows=20, lengths=(12, 24)), {12, 24}, {"", "distance_1"}),
        ("needles", "needle", ["--lengths", "64"], Asked(rows=20, lengths=(64,)), {64}, {"", "depth_0", "depth_75"}),
        ("bytes", "needle_multi", [], Asked(rows=20), {128, 512}, {"", "depth_50"}),
        ("imported", "needle_query", [], Asked(rows=20), {128, 512}, {"", "depth_25"}),
        ("needles", "needle_value", ["--seed", "3"], Asked(rows=20, seed=3), {96, 384}, {"", "depth_25"}),
        ("bytes", "perplexity", [], Asked(rows=20), {128}, {"", "context_0", "context_64"}),
    ],
)
def test_every_suite_measures_its_rows_as_training_does(capfd, name, task, flags, asked, lengths, parts):
    found = figures(capfd, name, "--tasks", task, "--rows", "20", *flags, "--batch-size", "7")
    expected = by_training_metrics(name, task, asked)
    assert {row["length"] for row in found} == lengths
    assert parts <= {row["part"] for row in found}
    assert {row["metric"] for row in found} == set(suites.PRESETS[task].metrics)
    for row in found:
        key = row["length"], row["variant"], row["part"], row["metric"]
        if key in expected:
            assert row["value"] == pytest.approx(expected[key], rel=1e-4, abs=1e-6)
        assert row["low"] <= row["value"] <= row["high"]
        if row["metric"] in ("exact", "last_accuracy"):
            assert (row["count"], row["unit"]) == (20, "rows")
            assert row["low"] == wilson(round(20 * row["value"]), 20).low


def test_a_model_of_bytes_has_its_own_text_as_the_haystack():
    _, trained = opened("bytes")
    haystack = cases("needle", trained, Asked(data={"haystack": "text"}))[0].source.haystack
    assert haystack.corpus == cases("perplexity", trained, Asked())[0].source.packed.corpus
    _, trained = opened("needles")
    assert cases("needle", trained, Asked(data={"haystack": "noise"}))[0].source.haystack == Noise()
    assert cases("needle", trained, Asked())[0].source.haystack == haystack


def test_the_tasks_are_what_their_names_say():
    _, trained = opened("bytes")
    formats = {
        name: cases(name, trained, Asked(rows=1))[0].source.row_format for name in suites.PRESETS if "needle" in name
    }
    shapes = {name: (f.num_queries, f.num_values, f.num_distractors) for name, f in formats.items()}
    assert shapes == {
        "needle": (1, 1, 0),
        "needle_multi": (1, 1, 3),
        "needle_query": (4, 1, 0),
        "needle_value": (1, 4, 0),
    }


def test_recall_is_measured_by_pairs_where_they_fit(capfd):
    found = figures(capfd, "pairs", "--tasks", "recall", "--rows", "4")
    assert {(row["length"], row["variant"]) for row in found} == {(12, "2_pairs"), (48, "2_pairs")}  # 8 need 16 keys
    found = cases("recall", Trained(128, (("Recall", {}),)), Asked())
    assert [(c.length, c.variant) for c in found] == [(64, "8_pairs"), (256, "8_pairs"), (256, "32_pairs")]
    found = figures(capfd, "pairs", "--tasks", "recall", "--rows", "4", "--pairs", "1,4", "--lengths", "12")
    assert {row["variant"] for row in found} == {"1_pairs", "4_pairs"}


def test_perplexity_is_over_documents_that_the_model_was_not_trained_on(capfd):
    model, trained = opened("bytes")
    case = cases("perplexity", trained, Asked(rows=12, seed=2))[0]
    assert isinstance(case.source, Passages)
    corpus = case.source.packed.corpus
    assert set(case.source.packed.documents) == set(corpus.documents("test"))
    batch = case.source.batch(range(12))
    with torch.inference_mode():
        log_p = model(batch["tokens"], None, batch["cu_seqlens"])[0].log_softmax(-1)
    losses = -log_p.gather(-1, batch["targets"][..., None])[..., 0].double().numpy()
    far = context_lengths(batch["tokens"].numpy()) >= 64
    documents = np.unique(batch["units"].numpy()[far])
    per_document = [(batch["units"].numpy() == document) & far for document in documents]
    expected = mean_of_positions([losses[m].sum() for m in per_document], [m.sum() for m in per_document])
    found = figures(capfd, "bytes", "--tasks", "perplexity", "--rows", "12", "--seed", "2")
    row = next(row for row in found if (row["part"], row["metric"]) == ("context_64", "loss"))
    assert (row["count"], row["unit"]) == (len(documents), "documents")
    assert [row["value"], row["low"], row["high"]] == pytest.approx(list(expected), rel=1e-5)


def test_other_text_is_read_as_a_whole(folder, capfd):
    (folder / "other.txt").write_text("".join(f"line {i}\n" for i in range(4000)))
    _, trained = opened("bytes")
    case = cases("perplexity", trained, Asked(data={"path": "other.txt"}))[0]
    assert case.variant == "all"
    assert len(case.source.packed.documents) == len(case.source.packed.corpus.lengths) > 1
    found = figures(capfd, "bytes", "--tasks", "perplexity", "--data.path", "other.txt", "--rows", "6")
    assert {row["variant"] for row in found} == {"all"}
    _, imported = opened("imported")
    assert cases("perplexity", imported, Asked(data={"path": "other.txt"}))[0].variant == "all"
    assert cases("perplexity", trained, Asked(data={"path": "./text.txt"}))[0].variant == "test"


def test_the_same_seed_gives_the_same_figures_whatever_the_batch(capfd):
    flags = ["words", "--tasks", "state_tracking", "--rows", "30"]
    one, other = figures(capfd, *flags, "--batch-size", "30"), figures(capfd, *flags, "--batch-size", "4")
    assert one == other == figures(capfd, *flags)
    assert one != figures(capfd, *flags, "--seed", "1")


def test_one_batch_of_rows_is_made_at_a_time(capfd, monkeypatch):
    made = []
    make = suites.Words.batch
    monkeypatch.setattr(suites.Words, "batch", lambda self, rows: made.append(rows) or make(self, rows))
    figures(capfd, "words", "--tasks", "state_tracking", "--rows", "10", "--lengths", "8", "--batch-size", "4")
    assert made == [range(4), range(4, 8), range(8, 10)]


def test_the_table_shows_values_with_their_intervals(capfd):
    assert evaluate("words", "--tasks", "state_tracking", "--rows", "20", "--lengths", "1") == 0
    out = capfd.readouterr().out
    right = next(k for k in range(21) if f" {k / 20:.3f} " in out)
    expected = wilson(right, 20)
    assert f"last_accuracy  {expected.value:.3f}  {expected.low:.3f} to {expected.high:.3f}  20 rows" in out
    assert out.startswith("MA, fp32 on CPU")
    assert "intervals are over rows or documents" in out


def test_figures_are_written_to_a_file_that_is_replaced_only_by_force(folder, capfd):
    flags = ["words", "--tasks", "state_tracking", "--rows", "4", "-o", "found.json"]
    assert evaluate(*flags, "--json") == 0
    written = (folder / "found.json").read_text()
    assert written == capfd.readouterr().out
    assert json.loads(written)["confidence"] == 0.95
    assert evaluate(*flags) == 1
    assert capfd.readouterr().err == "error: found.json: exists already; --force replaces it\n"
    assert evaluate(*flags, "--force", "--seed", "1") == 0
    assert json.loads((folder / "found.json").read_text())["seed"] == 1
    assert not list(folder.glob(".found*"))


def test_a_run_on_a_mixture_knows_all_its_parts(folder, capfd):
    """Trained by `archsearch fit`, so that the checkpoint is what a user has."""
    parts = {"w": {"class": "StateTracking", "group": "Z3", "length": 6}, "n": {"class": "Needle", "length": 48}}
    (folder / "fit.yaml").write_text(f"data: {{class_path: Mixture, init_args: {{parts: {json.dumps(parts)}}}}}")
    settings = copy.copy(jsonargparse._common.parsing_settings)
    fit = ["fit", "--config=fit.yaml", "--model.architecture=model.yaml", "--trainer.accelerator=cpu"]
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.limit_val_batches=0", "--trainer.max_steps=2"]
    with warnings.catch_warnings():
        assert main([*fit, *quiet]) == 0
    jsonargparse._common.parsing_settings = settings
    capfd.readouterr()
    run = "lightning_logs/version_0"
    found = figures(capfd, run, "--tasks", "state_tracking", "needle", "--rows", "3")
    assert {(row["task"], row["length"]) for row in found} == {
        *(("state_tracking", n) for n in (6, 24)),
        *(("needle", n) for n in (48, 192)),
    }
    assert evaluate(run, "--tasks", "recall") == 1
    message = "its 128 tokens are keys and values; the model was trained on the elements of Z3 (3) and bytes (257)"
    assert message in capfd.readouterr().err


def test_tokens_of_files_are_those_of_their_tokenizer(folder, capfd):
    train_tokenizer(folder / "tokenizer.json")
    (folder / "documents.txt").write_text("the cat sat on the mat\n" * 3000)
    for name, flags in (("tokens", ["--tokenizer", "tokenizer.json"]), ("byte_tokens", [])):
        assert main(["data", "prepare", "documents.txt", "-o", name, "--workers", "1", *flags]) == 0
    save("tokenised", Text(path="tokens.idx", cache_dir="cache", length=32))
    capfd.readouterr()
    found = figures(capfd, "tokenised", "--tasks", "perplexity", "--rows", "3")
    assert found[0]["variant"] == "test"
    assert evaluate("tokenised", "--tasks", "perplexity", "--data.path", "text.txt") == 1
    message = "perplexity: vocabulary mismatch: its 257 tokens are bytes; the model was trained on tokens of "
    assert capfd.readouterr().err.startswith(f"error: {message}")
    found = figures(capfd, "bytes", "--tasks", "perplexity", "--data.path", "byte_tokens.idx", "--rows", "3")
    assert found[0]["variant"] == "all"
    for file in folder.glob("tokens.*"):
        file.rename(folder / f"moved_{file.name}")  # what a model was trained on may be gone
    found = figures(capfd, "tokenised", "--tasks", "perplexity", "--data.path", "moved_tokens.idx", "--rows", "3")
    assert found[0]["count"] >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["words", "--tasks", "state_trackin"],
            "--tasks: unknown 'state_trackin' (did you mean 'state_tracking'?); known: ",
        ),
        (
            ["words", "--tasks", "perplexity"],
            "perplexity: vocabulary mismatch: its 257 tokens are bytes; the model was "
            "trained on the elements of Z2 (2)",
        ),
        (
            ["words", "--tasks", "state_tracking", "--data.group", "S3"],
            "state_tracking: vocabulary mismatch: its 6 tokens "
            "are the elements of S3; the model was trained on the elements of Z2 (2)",
        ),
        (["words", "--tasks", "state_tracking", "--data.group", "Q8"], "state_tracking: --data.group: must be S<n>, "),
        (
            ["imported", "--tasks", "recall"],
            "recall: vocabulary mismatch: its 128 tokens are keys and values; the model "
            "has 257, and its checkpoint does not say which",
        ),
        (["bytes", "--tasks", "needle_value", "--lengths", "20"], "needle_value: --lengths: must be at least "),
        (
            ["bytes", "--tasks", "perplexity", "--lengths", "9999999"],
            "perplexity: --data.path: a row of length 9999999 needs 10000000 tokens; the test split of text.txt has ",
        ),
        (
            ["bytes", "--tasks", "perplexity", "--data.path", "short.txt"],
            "perplexity: --data.path: a row of length 128 needs ",
        ),
        (
            ["bytes", "--tasks", "perplexity", "--data.path", "nowhere"],
            "perplexity: --data.path: no such file or folder: ",
        ),
        (["needles", "--tasks", "needle", "--lengths", "9999999"], "needle: --data.path: a row with 9999"),
        (["pairs", "--tasks", "recall", "--pairs", "9"], "recall: --pairs: must be at most vocab_size // 2 (6), "),
        (["pairs", "--tasks", "recall", "--pairs", "6", "--lengths", "12"], "recall: --lengths: must be at least 2 x "),
        (
            ["words", "--tasks", "state_tracking", "--pairs", "4"],
            "--pairs: is for recall tasks alone; got --tasks state_",
        ),
        (
            ["words", "--tasks", "state_tracking", "--data.path", "text.txt"],
            "--data.path: is for perplexity and needle tasks alone; got --tasks state_tracking",
        ),
        (
            ["words", "--tasks", "state_tracking", "--num-fewshot", "1"],
            "--num-fewshot: is for lm_eval: tasks alone; got ",
        ),
        (["words", "--tasks", "state_tracking", "--rows", "0"], "--rows: must be at least 1; got 0"),
        (["words", "--tasks", "state_tracking", "--lengths", "8,0"], "--lengths: must be at least 1; got 0"),
        (["words", "--tasks", "state_tracking", "--seed", "-1"], "--seed: must be at least 0; got -1"),
        (["words", "--tasks", "state_tracking", "--batch-size", "0"], "--batch-size: must be at least 1; got 0"),
        (
            ["needles", "--tasks", "needle", "--data.haystack", "x"],
            "needle: --data.haystack: must be noise or text; got ",
        ),
        (["nowhere", "--tasks", "recall"], "CHECKPOINT: no such file: nowhere"),
        (["half.ckpt", "--tasks", "recall"], "CHECKPOINT: half.ckpt is no checkpoint of plain tensors and values: "),
        (
            ["other.ckpt", "--tasks", "recall"],
            "CHECKPOINT: other.ckpt: holds other weights than its architecture has: ",
        ),
        (["words", "--tasks", "state_tracking", "-o", "text.txt/x.json"], "text.txt/x.json: text.txt: is no folder"),
        (
            ["words", "--tasks", "state_tracking", "-o", "cache"],
            "cache: is a folder, and not replaced by the other kind",
        ),
    ],
)
def test_a_users_errors_are_one_line(folder, capfd, arguments, message):
    (folder / "cache").mkdir(exist_ok=True)  # another test makes it, too, if it comes first
    content = (folder / "words" / "last.ckpt").read_bytes()
    (folder / "half.ckpt").write_bytes(content[: len(content) // 2])
    torch.save(
        {**load_checkpoint("words/last.ckpt"), "state_dict": {f"{PREFIX}x": torch.ones(1)}}, folder / "other.ckpt"
    )
    assert evaluate(*arguments) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_a_file_that_cannot_be_written_is_named(capfd, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert evaluate("words", "--tasks", "state_tracking", "--rows", "2", "-o", "new.json") == 1
    assert capfd.readouterr().err == "error: new.json: cannot be written: Read-only file system\n"


def test_out_of_memory_says_what_to_lower(capfd, monkeypatch):
    def refuse(*_):
        raise torch.OutOfMemoryError("too much")

    monkeypatch.setattr("archsearch.evaluate.measure.score", refuse)
    assert evaluate("words", "--tasks", "state_tracking", "--batch-size", "9", "--lengths", "8") == 1
    expected = "error: state_tracking: out of memory with 9 rows of 8 tokens; --batch-size takes fewer\n"
    assert capfd.readouterr().err == expected


def test_tasks_and_lengths_that_are_none_are_usage_errors():
    for flags in ([], ["--tasks", "recall", "--lengths", "a"]):
        with pytest.raises(SystemExit) as stopped:
            evaluate("words", *flags)
        assert stopped.value.code == 2


def test_without_the_harness_its_extra_is_named(capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.api.instance", None)
    monkeypatch.delitem(sys.modules, "archsearch.evaluate.harness", raising=False)
    assert evaluate("bytes", "--tasks", f"{HARNESS}hellaswag") == 1
    expected = "error: lm-evaluation-harness is not installed: pip install 'archsearch[lm-eval]'\n"
    assert capfd.readouterr().err == expected


def test_our_own_suites_need_no_harness(capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "archsearch.evaluate.harness", raising=False)
    assert figures(capfd, "words", "--tasks", "state_tracking", "--rows", "2")
