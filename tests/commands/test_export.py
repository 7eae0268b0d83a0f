import shutil
import subprocess
import sys

import pytest

from archsearch.architecture import Architecture, small
from archsearch.cli import main
from archsearch.config import load_yaml


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.yaml"
    small().with_pattern("R2MA").save(path)
    return str(path)


@pytest.fixture
def study(tmp_path, file):
    folder = tmp_path / "study"
    (folder / "best").mkdir(parents=True)
    shutil.copy("search_spaces/demo.yaml", folder / "space.yaml")
    shutil.copy(file, folder / "best" / "architecture.yaml")
    return folder


def test_yaml_reads_back_as_the_same_model(file, tmp_path, capsys):
    out = tmp_path / "out.yaml"
    assert main(["export", file, "--to", "yaml", "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    assert Architecture.load(out).id == Architecture.load(file).id


def test_an_existing_file_is_replaced_only_by_force(file, capsys):
    assert main(["export", file, "--to", "yaml", "-o", file]) == 1
    assert capsys.readouterr().err == f"error: {file}: exists already; --force replaces it\n"
    assert main(["export", file, "--to", "yaml", "-o", file, "--force"]) == 0


def test_a_study_exports_its_winner_with_the_training_of_its_first_objective(study, tmp_path):
    out = tmp_path / "fit.yaml"
    assert main(["export", str(study), "--to", "lightning", "-o", str(out)]) == 0
    config = load_yaml(out)
    assert config["data"]["class_path"] == "archsearch.data.StateTracking"
    assert config["data"]["init_args"]["eval_lengths"] == [16, 32]
    assert config["trainer"]["max_steps"] == 391  # 200k tokens in batches of 64 x 8
    assert config["model"]["optimizer"]["learning_rate"] == 5e-3
    assert config["model"]["architecture"]["vocab_size"] == 6
    assert config["model"]["architecture"]["pattern"] == "R2MA"


def test_an_exported_training_config_trains(study, tmp_path):
    out = tmp_path / "fit.yaml"
    assert main(["export", str(study), "--to", "lightning", "-o", str(out)]) == 0
    flags = ["--trainer.max_steps=2", "--trainer.accelerator=cpu", f"--trainer.default_root_dir={tmp_path}"]
    flags += ["--data.eval_size=4", "--trainer.enable_progress_bar=false"]
    subprocess.run([sys.executable, "-m", "archsearch", "fit", "-c", str(out), *flags], check=True)
    assert list(tmp_path.rglob("metrics.csv"))


def test_a_file_without_a_task_trains_on_text(file, capsys):
    assert main(["export", file, "--to", "lightning"]) == 0
    assert "class_path: archsearch.data.Text" in capsys.readouterr().out


def test_a_vocabulary_that_becomes_another_is_said(tmp_path, capsys):
    path = tmp_path / "a.yaml"
    path.write_text("{hidden_size: 64, vocab_size: 1000, pattern: RA}")
    assert main(["export", str(path), "--to", "lightning", "-o", str(tmp_path / "fit.yaml")]) == 0
    note = "note: vocab_size is that of the data, 257, and not 1000: set your own data\n"
    assert capsys.readouterr().err == note
    assert (tmp_path / "fit.yaml").read_text().startswith(f"# {note}")


def test_a_study_without_a_winner_says_so(study, tmp_path, capsys):
    (study / "best" / "architecture.yaml").unlink()
    assert main(["export", str(study), "--to", "yaml"]) == 1
    assert "holds no winner yet; run archsearch search to its end" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--to", "yaml"]) == 1
    assert "is no study" in capsys.readouterr().err
