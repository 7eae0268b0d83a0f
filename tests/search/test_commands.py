"""The commands as a user runs them; one study trains for real."""

import json

import pytest

from archsearch.cli import main
from archsearch.config import load_yaml, save_yaml
from archsearch.search.candidates import RandomSuggest, sample
from archsearch.search.space import load_space


@pytest.fixture
def space_file(values, tmp_path):
    save_yaml(tmp_path / "space.yaml", values)
    return str(tmp_path / "space.yaml")


@pytest.mark.slow
def test_a_real_study_exports_a_winner_that_trains(values, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    values["budget"] = {
        "train_tokens_per_second": {"at_least": 0.001, "of": "base"},
        "sequence_length": 8,
        "batch_size": 1,
        "time_limit": "2s",
    }
    values["study"] |= {"trials": 2, "confirm": {"top": 0}}
    save_yaml(tmp_path / "space.yaml", values)
    assert main(["search", "space.yaml"]) == 0
    assert "winner: trial" in capsys.readouterr().out
    evidence = json.loads((tmp_path / "studies/tiny/evidence.json").read_text())
    first = evidence["trials"][1]
    assert first["outcome"] == "completed", first["reason"]
    assert 0 <= first["values"][0] <= 1
    assert first["checks"][0]["verdict"] == "feasible"
    assert not list((tmp_path / "studies/tiny/trials").glob("*/s3/last.ckpt"))
    fit = load_yaml(tmp_path / "studies/tiny/best/fit.yaml")
    assert fit["model"]["architecture"]["pattern"] == evidence["trials"][evidence["winner"]]["pattern"]


@pytest.mark.usefixtures("instant_trial")
def test_a_search_prints_its_table_and_its_winner(space_file, tmp_path, capsys):
    assert main(["search", space_file, "--output", str(tmp_path), "--trials", "6"]) == 0
    out = capsys.readouterr().out
    assert "at most 6 candidates and 6 confirmation runs of 640 tokens (s3 640): 7.68k tokens" in out
    assert "trained so far" in out
    assert "winner: trial" in out
    assert main(["search", space_file, "--output", str(tmp_path), "--trials", "6"]) == 0
    assert "finished before" in capsys.readouterr().out
    assert main(["status", str(tmp_path / "tiny")]) == 0
    out = capsys.readouterr().out
    assert "winner: trial" in out
    assert "illegal: " in out
    assert main(["status", str(tmp_path / "tiny"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finished"] is True


@pytest.mark.usefixtures("instant_trial")
def test_workers_share_a_study(space_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("archsearch.search.session.sys.executable", "/bin/false")  # the helper dies, the study goes on
    assert main(["search", space_file, "--output", str(tmp_path), "--workers", "2"]) == 0
    assert "winner" in capsys.readouterr().out


@pytest.mark.usefixtures("instant_trial")
def test_a_budget_that_nothing_meets_ends_with_an_error(values, tmp_path, capsys):
    values["budget"] = {"parameters": {"at_most": 10}}
    save_yaml(tmp_path / "space.yaml", values)
    assert main(["search", str(tmp_path / "space.yaml"), "--output", str(tmp_path), "--trials", "3"]) == 1
    assert "no candidate meets the budget; the nearest is trial" in capsys.readouterr().out


def test_a_dry_run_says_which_share_is_legal_and_trains_nothing(space_file, tmp_path, capsys):
    assert main(["search", space_file, "--output", str(tmp_path), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "of 1000 sampled candidates are legal" in out
    assert "before attention has room for 2" in out
    assert not (tmp_path / "tiny").exists()
    assert main(["search", space_file, "--dry-run", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["legal"] + sum(figures["reasons"].values()) == 1000
    assert figures["distinct_in_space"] == 58
    assert figures["ways"] == 1 + 4 * (3 + 4) + 4 * (3 + 12) + 4 * (3 + 24)
    assert figures["models_at_most"] == 1 + 2 * (4 + 6 + 4)
    assert figures["legal_in_space"] == 29  # two of four shapes; the places without room are no models


def test_a_dry_run_says_what_the_budget_refuses_and_what_waits_for_a_measurement(values, tmp_path, capsys):
    values["budget"] = {
        "parameters": {"at_most": 1.0, "of": "base"},
        "train_tokens_per_second": {"at_least": 0.9, "of": "base"},
        "sequence_length": 8,
        "batch_size": 1,
    }
    save_yaml(tmp_path / "space.yaml", values)
    assert main(["search", str(tmp_path / "space.yaml"), "--dry-run", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    budget, limit = figures["budget"], figures["budget"]["limits"]["parameters"]
    assert budget["legal"] == figures["legal"]
    assert budget["refused"] == limit["refused"] > 0
    assert limit["example"].startswith("parameters 1")
    waiting = budget["open"]["train_tokens_per_second"]
    assert waiting["reason"] == "no cost table for these conditions on this machine"
    space, suggest = load_space(tmp_path / "space.yaml"), RandomSuggest(0)
    bases = sum(sample(space, suggest).key == space.base.id for _ in range(1000))  # each its own anchor
    assert budget["refused"] + waiting["left"] + bases == budget["legal"]
    assert main(["search", str(tmp_path / "space.yaml"), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert f"the budget refuses {budget['refused']} of these {budget['legal']} without a measurement" in out
    assert f"{limit['refused']} parameters; one of them: parameters 1" in out
    assert f"{waiting['left']} wait for a measurement of train_tokens_per_second: no cost table" in out


def test_ctrl_c_keeps_everything_and_says_how_to_go_on(space_file, tmp_path, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("archsearch.search.study.run_trial", interrupt)
    assert main(["search", space_file, "--output", str(tmp_path)]) == 130
    assert f"archsearch search {space_file} goes on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "nowhere.yaml"], "error: nowhere.yaml: no such file"),
        (["status", "nowhere"], "error: nowhere: holds no study (study.db and space.yaml)"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys):
    assert main(arguments) == 1
    assert capsys.readouterr().err.strip() == message


def test_options_are_checked(space_file, capsys):
    assert main(["search", space_file, "--trials", "0"]) == 1
    assert "--trials: must be at least 1; got 0" in capsys.readouterr().err
    assert main(["search", space_file, "--stop-after", "8 days"]) == 1
    assert "--stop-after: must be a number" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["demo", "state_tracking", "recall", "needle", "hybrid_410m", "hybrid_7b_moe", "backbones_410m"]
)
def test_the_search_spaces_that_come_along_can_be_sampled(name):
    from archsearch.search.dry_run import survey

    space = load_space(f"search_spaces/{name}.yaml")
    figures = survey(space, seed=0, samples=50)
    assert figures["legal"] >= 25
    published = ["base", "first"] + ["before_attention"] * bool(space.slots.before_attention)
    published += [f"{placement} {x.letter}" for x in space.replacements[1:] for placement in published[1:]]
    assert [found["given"] for found in figures["given"]] == published
