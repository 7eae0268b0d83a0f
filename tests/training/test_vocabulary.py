"""Architectures that name a vocabulary, on data with another: refused, or resized where asked for."""

import copy

import jsonargparse._common
import pytest
import torch

from archsearch.cli import main
from archsearch.training.module import LanguageModel, describe

NAMED = """
hidden_size: 16
vocab_size: 99
pattern: A
mixers: {A: {type: attention, num_heads: 2}}
mlp: {intermediate_size: 16}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "named.yaml").write_text(NAMED)
    monkeypatch.setattr(jsonargparse._common, "parsing_settings", copy.copy(jsonargparse._common.parsing_settings))


def run(command, *flags):
    data = ["--data=StateTracking", "--data.length=6", "--data.batch_size=4", "--data.eval_size=8"]
    quiet = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    return main([command, *data, *quiet, *flags])


def test_another_vocabulary_is_refused_with_the_way_out(capsys):
    assert run("fit", "--model.architecture=named.yaml") == 1
    message = capsys.readouterr().err
    assert message.startswith("error: named.yaml: vocab_size: must be 6, the data's vocabulary; got 99 (--model.")
    assert "--model.vocabulary=data takes the data's" in message


def test_the_datas_vocabulary_resizes_the_model_and_stays_with_the_checkpoint(capsys):
    flags = ["--model.architecture=named.yaml", "--model.vocabulary=data", "--trainer.max_steps=1"]
    assert run("fit", *flags) == 0
    path = "lightning_logs/version_0/checkpoints/last.ckpt"
    saved = torch.load(path, weights_only=True)
    assert saved["hyper_parameters"]["architecture"]["vocab_size"] == 6
    assert saved["state_dict"]["model.embedding.weight"].shape == (6, 16)
    assert LanguageModel.load_from_checkpoint(path, weights_only=True).architecture.vocab_size == 6
    assert run("validate", f"--ckpt_path={path}") == 0
    assert "val/loss" in capsys.readouterr().out


def test_only_the_vocabulary_is_the_datas():
    architecture = describe("named.yaml", None, 6, resize=True)
    assert (architecture.vocab_size, architecture.hidden_size, architecture.pattern) == (6, 16, "A")
    assert describe("named.yaml", None, 99, resize=True) == describe("named.yaml", None, 99)
    with pytest.raises(ValueError, match="must be 6, the data's vocabulary; got 99"):
        describe("named.yaml", None, 6)
