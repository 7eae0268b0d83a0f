"""The two commands around the targets: which options go with which, what may be written, how formats are found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from archsearch.architecture import Architecture
from archsearch.cli import main
from archsearch.config import ConfigError, Where
from archsearch.export import TARGETS, Target, load

Output = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    Architecture.from_dict({"hidden_size": 64, "vocab_size": 100, "pattern": "G2MA"}, Where("test")).save(path)
    return path


@pytest.fixture
def folder_target(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Register a target that writes a folder, and return the list that its calls are noted in."""
    calls: list[dict[str, Any]] = []

    def write(architecture: Architecture, folder: Path, **given: Any) -> None:
        calls.append({"pattern": architecture.pattern, **given})
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(len(calls)))
        if given["tokenizer"] == Path("bad"):
            raise ConfigError("a bad tokenizer")

    monkeypatch.setitem(TARGETS, "folder", Target(folder="tests:write"))
    monkeypatch.setattr(
        "archsearch.export.load", lambda reference: write if reference == "tests:write" else load(reference)
    )
    return calls


def test_a_folder_target_gets_its_options_and_a_study_its_evidence(
    file: Path, tmp_path: Path, folder_target: list[dict[str, Any]]
) -> None:
    study = tmp_path / "study"
    (study / "best").mkdir(parents=True)
    shutil.copy("search_spaces/demo.yaml", study / "space.yaml")
    shutil.copy(file, study / "best" / "architecture.yaml")
    out = str(tmp_path / "out")
    assert main(["export", str(study), "--to", "folder", "-o", out]) == 0
    (study / "evidence.json").write_text('{"winner": 3}')
    flags = ["--checkpoint", "c", "--tokenizer", "t", "--force"]
    assert main(["export", str(study), "--to", "folder", "-o", out, *flags]) == 0
    assert folder_target == [
        {"pattern": "GGMA", "checkpoint": None, "tokenizer": None, "evidence": None},
        {"pattern": "GGMA", "checkpoint": Path("c"), "tokenizer": Path("t"), "evidence": {"winner": 3}},
    ]
    assert (tmp_path / "out/config.json").read_text() == "2"
    assert not list(tmp_path.glob(".out*"))


def test_a_winner_that_leaves_the_vocabulary_to_the_data_has_that_of_its_task(tmp_path: Path, capsys: Output) -> None:
    study = tmp_path / "study"
    (study / "best").mkdir(parents=True)
    shutil.copy("search_spaces/demo.yaml", study / "space.yaml")
    open_one = Architecture.from_dict({"hidden_size": 64, "pattern": "GA"}, Where("test"))
    open_one.save(study / "best" / "architecture.yaml")
    for name in ("lm-engine", "megatron"):
        assert main(["export", str(study), "--to", name, "-o", str(tmp_path / name)]) == 0
        assert main(["import", str(tmp_path / name), "-o", str(tmp_path / "back.yaml"), "--force"]) == 0
        assert Architecture.load(tmp_path / "back.yaml").vocab_size == 6  # of S3
    assert main(["export", str(study / "best" / "architecture.yaml"), "--to", "lm-engine"]) == 1
    assert "vocab_size: is required for lm-engine; the architecture leaves it to the data" in capsys.readouterr().err


def test_a_folder_is_replaced_only_by_force_only_whole_and_only_where_it_is_an_export(
    file: Path, tmp_path: Path, folder_target: list[dict[str, Any]], capsys: Output
) -> None:
    out, arguments = tmp_path / "out", ["export", str(file), "--to", "folder"]
    assert main([*arguments, "-o", str(out)]) == 0
    assert capsys.readouterr().err == "note: the weights are freshly initialised; --checkpoint exports trained ones\n"
    assert main([*arguments, "-o", str(out)]) == 1
    assert capsys.readouterr().err == f"error: {out}: exists already; --force replaces it\n"
    assert main([*arguments, "-o", str(out), "--force", "--tokenizer", "bad"]) == 1
    assert capsys.readouterr().err == "error: a bad tokenizer\n"
    assert (out / "config.json").read_text() == "1"  # what was there stands where the new one fails
    assert not list(tmp_path.glob(".out*"))
    assert main([*arguments, "-o", str(tmp_path), "--force"]) == 1
    assert "is no earlier export (none of config.json, architecture.yaml in it)" in capsys.readouterr().err
    assert main([*arguments, "-o", str(file), "--force"]) == 1
    assert "is a file, and not replaced by the other kind" in capsys.readouterr().err
    assert main([*arguments]) == 1
    assert "-o: is required: folder is written as a folder" in capsys.readouterr().err
    assert len(folder_target) == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--to", "yaml", "--checkpoint", "c"], "--checkpoint: yaml is written as a file without weights; targets"),
        (["--to", "megatron", "--tokenizer", "t"], "--tokenizer: megatron is written as a file without weights"),
        (["--to", "lm-engine", "--tokenizer", "t"], "--tokenizer: needs --checkpoint; targets with weights: lm-eng"),
        (["--to", "lm-engine", "--checkpoint", "c"], "-o: is required: lm-engine is written as a folder"),
        (["--to", "lm-engine", "--checkpoint", "c", "-o", "{}/out"], "--checkpoint: no such file: c"),
        (["--to", "yaml", "-o", "{}/no/out.yaml"], "{}/no/out.yaml: {}/no: no such folder"),
        (["--to", "yaml", "-o", "{}/a.yaml/out.yaml"], "{}/a.yaml/out.yaml: {}/a.yaml: is no folder"),
        (["--to", "yaml", "-o", "{}", "--force"], "{}: is a folder, and not replaced by the other kind"),
    ],
)
def test_options_and_places_that_do_not_fit_are_refused(
    flags: list[str], said: str, file: Path, tmp_path: Path, capsys: Output
) -> None:
    assert main(["export", str(file), *(flag.replace("{}", str(tmp_path)) for flag in flags)]) == 1
    assert said.replace("{}", str(tmp_path)) in capsys.readouterr().err
    assert [x.name for x in tmp_path.iterdir()] == ["a.yaml"]


def test_a_place_that_cannot_be_written_is_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system", "somewhere")

    exported = tmp_path / "c.yml"
    assert main(["export", str(file), "--to", "lm-engine", "-o", str(exported)]) == 0
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    out = str(tmp_path / "out")
    capsys.readouterr()
    assert main(["export", str(file), "--to", "yaml", "-o", out]) == 1
    assert main(["import", str(exported), "-o", out]) == 1
    assert main(["export", str(file), "--to", "huggingface", "-o", out]) == 1
    assert capsys.readouterr().err == f"error: {out}: cannot be written: Read-only file system\n" * 3


def test_what_another_program_does_otherwise_is_said(file: Path, tmp_path: Path, capsys: Output) -> None:
    assert main(["export", str(file), "--to", "lm-engine", "-o", str(tmp_path / "c.yml")]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"wrote {tmp_path / 'c.yml'}\n"
    assert shown.err.startswith("note: the data path and the tokenizer are the paper's; set your own")


@pytest.mark.parametrize(("name", "pattern"), [("lm-engine", "G2MA"), ("megatron", "G2A")])
def test_a_file_is_imported_by_what_it_holds(name: str, pattern: str, tmp_path: Path, capsys: Output) -> None:
    source, exported, back = (tmp_path / x for x in ("a.yaml", "exported", "back.yaml"))
    architecture = Architecture.from_dict({"hidden_size": 64, "vocab_size": 100, "pattern": pattern}, Where("test"))
    architecture.save(source)
    assert main(["export", str(source), "--to", name, "-o", str(exported)]) == 0
    capsys.readouterr()
    assert main(["import", str(exported), "-o", str(back)]) == 0
    count = f"{architecture.num_parameters():,}"
    assert capsys.readouterr().out == f"wrote {back}: {pattern}, {count} parameters\n"
    assert Architecture.load(back) == architecture
    assert main(["import", str(exported), "-o", str(back)]) == 1
    assert capsys.readouterr().err == f"error: {back}: exists already; --force replaces it\n"
    assert main(["import", str(exported), "-o", str(back), "--force", "--from", name]) == 0


def test_what_is_no_known_format_is_refused(file: Path, tmp_path: Path, capsys: Output) -> None:
    out = str(tmp_path / "out")
    assert main(["import", str(file), "-o", out]) == 1
    assert (
        "must hold exactly one of sequence_mixer_blocks (lm-engine), --hybrid-layer-pattern" in capsys.readouterr().err
    )
    assert main(["import", str(file), "-o", out, "--from", "lm-engine"]) == 1
    assert f"{file}: position_embedding_type: is required" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "no"), "-o", out]) == 1
    assert "no: no such file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["import", str(tmp_path / "empty"), "-o", out, "--from", "megatron"]) == 1
    assert "megatron has no folders; those that have: lm-engine" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "empty"), "-o", out]) == 1
    assert "config.json: no such file" in capsys.readouterr().err


def test_every_entry_stands_for_a_function() -> None:
    for target in TARGETS.values():
        for reference in (target.text, target.folder, target.read, target.read_folder):
            if reference is not None:
                assert callable(load(reference)), reference


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from archsearch.cli import main\ntry: main(['export', '--help'])\nexcept SystemExit: pass\n"
    heavy = "assert not {'torch', 'omegaconf', 'lightning', 'yaml'} & set(sys.modules), sys.modules.keys()"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code + heavy], capture_output=True, text=True, check=True)
    assert "{yaml,lightning,lm-engine,megatron,huggingface}" in done.stdout
    assert time.perf_counter() - start < 5  # a machine with much else to do; the imports are what counts
