"""The evidence that travels with an architecture, in its file and in what is exported."""

import json

import pytest

from archsearch.architecture import Architecture
from archsearch.cli import main
from archsearch.config import Where, load_yaml, save_yaml
from archsearch.search.provenance import header

EVIDENCE = {
    "name": "tiny",
    "winner": 3,
    "seed": 7,
    "confidence": 0.95,
    "versions": {"archsearch": "1", "torch": "2"},
    "device": "H200",
    "finished": "2026-01-01T00:00:00Z",
    "command": "archsearch search 'a\n!!python/object: x'",
    "objectives": [{"label": "s3 accuracy"}, {"label": "parameters", "measure": "parameters"}],
    "confirmed": [],
    "trials": [
        {
            "number": 3,
            "pattern": "MRA",
            "shape": "4 heads",
            "values": [0.5, 1234.0],
            "checks": [{"name": "parameters", "value": 1234.0, "limit": "at most 2,000", "verdict": "feasible"}],
        }
    ],
}


def test_a_header_is_comments_whatever_is_in_it():
    lines = header(EVIDENCE, 3).splitlines()
    assert all(line.startswith("# ") for line in lines)
    assert lines == [
        "# winner of the study tiny: trial 3, MRA with 4 heads",
        "# s3 accuracy: 0.5 (one run, the search's seed 7)",
        "# parameters: 1,234 (measured once)",
        "# budget: parameters 1,234, must be at most 2,000: feasible",
        "# device H200; archsearch 1, torch 2; 2026-01-01T00:00:00Z",
        "# command: archsearch search 'a !!python/object: x'",
    ]


@pytest.fixture
def study(values, instant_trial, tmp_path):
    instant_trial()
    values["study"]["confirm"]["top"] = 2
    values["architecture"]["vocab_size"] = 6
    save_yaml(tmp_path / "space.yaml", values)
    assert main(["search", str(tmp_path / "space.yaml"), "--output", str(tmp_path), "--trials", "3"]) == 0
    return tmp_path / "tiny"


def test_the_winner_carries_its_evidence_and_so_does_what_is_exported(study, tmp_path, capsys):
    evidence = json.loads((study / "evidence.json").read_text())
    head = header(evidence, evidence["winner"])
    first = evidence["confirmed"][0]["objectives"][0]
    assert evidence["comparisons"] == 2
    assert f"# s3 accuracy @16: {first['estimate']['mean']:.4g} [" in head
    assert "95% t-interval over the fresh seeds 1000, 1001, 1002; against the base +" in head
    assert "# budget: parameters 11,7" in head
    assert "# command: archsearch" in head
    for name in ("architecture.yaml", "fit.yaml"):
        assert (study / "best" / name).read_text().startswith(head)
    winner = Architecture.from_dict(evidence["trials"][evidence["winner"]]["architecture"], Where("x"))
    assert Architecture.load(study / "best" / "architecture.yaml").id == winner.id
    for target in ("yaml", "lightning"):
        out = tmp_path / f"{target}.yaml"
        assert main(["export", str(study), "--to", target, "-o", str(out)]) == 0
        assert out.read_text().startswith(head)
        assert load_yaml(out)
    assert main(["search", str(tmp_path / "space.yaml"), "--output", str(tmp_path), "--trials", "3"]) == 0  # once more
    out = capsys.readouterr().out
    assert "the 2 differences to the base hold together" in out


def test_what_ties_with_the_winner_is_named(study, capsys):
    evidence = json.loads((study / "evidence.json").read_text())
    assert evidence["ties"] == []
    evidence["ties"] = [1, 2]
    (study / "evidence.json").write_text(json.dumps(evidence))
    main(["status", str(study)])
    assert "trials 1, 2: not told apart from it in s3 accuracy @16 by these seeds" in capsys.readouterr().out


def test_an_exported_folder_holds_the_study_s_record(study, tmp_path, monkeypatch):
    def write(architecture, folder, *, evidence, **_):
        folder.mkdir()
        (folder / "weights").write_text(f"{architecture.pattern} {evidence['winner']}")

    monkeypatch.setattr("archsearch.export.load", lambda _: write)
    out = tmp_path / "out"
    assert main(["export", str(study), "--to", "huggingface", "-o", str(out)]) == 0
    assert (out / "evidence.json").read_text() == (study / "evidence.json").read_text()
