"""The Pareto front: what is on it, where it is shown, written and confirmed; and the search for all of it."""

import json
import random

import numpy as np
import optuna
import pytest

from archsearch.architecture import Architecture
from archsearch.cli import main
from archsearch.config import ConfigError, load_yaml, save_yaml
from archsearch.search.front import front, non_dominated
from archsearch.search.scalarise import scalarised
from archsearch.search.selection import Confirmed, confirmed_front, finalists
from tests.search.test_samplers import ROOMY, no, run
from tests.search.test_selection import confirmed, row


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_the_front_is_optunas(objectives):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    drawn = random.Random(objectives)
    values = [tuple(float(drawn.randrange(6)) for _ in range(objectives)) for _ in range(60)]  # with many ties
    study = optuna.create_study(directions=["maximize"] * objectives)
    study.add_trials([optuna.trial.create_trial(values=list(x)) for x in values])
    theirs = study.best_trials if objectives > 1 else [t for t in study.trials if t.values == [max(values)[0]]]
    assert sorted(non_dominated(values)) == [trial.number for trial in theirs]


def test_directions_and_the_budget_count(parse):
    rows = [row(0, 0.5, 1.0), row(1, 0.9, 2.0), row(2, 0.4, 1.5), row(3, 0.7, 0.1, outcome="refused"), row(4, 0.5, 0.9)]
    assert [x.number for x in front(parse(), rows)] == [1, 4]  # more accuracy, less loss
    alone = [{"task": "s3", "metric": "accuracy", "length": 16}]
    assert front(parse({"objectives": alone}), rows) == []


def test_the_best_of_the_front_can_be_confirmed_instead_of_the_best_of_all(parse):
    rows = [row(1, 0.9, 1.0), row(2, 0.8, 1.5), row(3, 0.7, 0.5), row(4, 0.6, 0.7), row(5, 0.1, 0.2)]
    top = {"study.confirm.top": 3}
    assert [x.number for x in finalists(parse(top), rows)] == [1, 2, 3]
    assert [x.number for x in finalists(parse({**top, "study.confirm.among": "front"}), rows)] == [1, 3, 5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"study.confirm.among": "fornt"}, r"study\.confirm\.among: unknown choice 'fornt' \(did you mean 'front'"),
        (
            {"study.confirm.among": "front", "objectives": [{"task": "s3", "metric": "loss"}]},
            r"study\.confirm\.among: there is a front of several objectives only",
        ),
    ],
)
def test_a_front_that_there_is_not_is_refused(parse, changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(changes)


def test_the_confirmed_have_a_front_of_their_own(parse):
    lucky, good, cheap = (
        confirmed(1, [0.5, 0.5], loss=1.0),
        confirmed(2, [0.6, 0.6]),
        confirmed(3, [0.1, 0.1], loss=0.2),
    )
    failed = Confirmed(row=row(4, 0.9), metrics={}, failures={0: "it broke"})
    assert confirmed_front(parse(), [lucky, good, cheap, failed]) == [good, cheap]


def parting(config, _):
    """Return a report in which more M are more accurate and cost loss, more so in front."""
    pattern = config["architecture"]["pattern"]
    count = pattern.count("M") / 10
    metrics = {"s3": {"accuracy/16": count, "loss": 1 + count + pattern.startswith("M")}}
    return {"outcome": "completed", "metrics": metrics, "seconds": {"s3": 0.1}}


@pytest.mark.usefixtures("instant_trial")
def test_the_front_is_shown_written_and_exported(values, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tests.search.conftest.answer", parting)
    save_yaml(tmp_path / "space.yaml", values)
    search = ["search", str(tmp_path / "space.yaml"), "--output", str(tmp_path)]
    folder = tmp_path / "tiny"
    (folder / "best" / "front").mkdir(parents=True)
    (folder / "best" / "front" / "0099.yaml").touch()  # of a shorter run of the same study
    assert main([*search, "--trials", "6"]) == 0
    out = capsys.readouterr().out
    evidence = json.loads((folder / "evidence.json").read_text())
    values = {trial["number"]: trial["values"] for trial in evidence["trials"] if trial["outcome"] == "completed"}
    assert set(evidence["front"]) < set(values)
    assert len(evidence["front"]) > 1
    for number, (accuracy, loss) in values.items():
        beaten = any(a >= accuracy and b <= loss and (a, b) != (accuracy, loss) for a, b in values.values())
        assert beaten != (number in evidence["front"])
    written = sorted(path.name for path in (folder / "best" / "front").iterdir())
    assert written == [f"{number:04d}.yaml" for number in sorted(evidence["front"])]
    member = folder / "best" / "front" / f"{evidence['front'][-1]:04d}.yaml"
    assert Architecture.load(member).to_dict() == evidence["trials"][evidence["front"][-1]]["architecture"]
    assert member.read_text().startswith("# on the Pareto front of the study tiny: trial ")
    shown = out[out.index("^ the Pareto front") :]
    assert "0*^" in out[: out.index("^ the Pareto front")]
    assert "1*  " in out
    assert shown.count("completed") == len(evidence["front"]) + 1  # and once among the counts
    assert main(["status", str(folder)]) == 0
    assert "^ the Pareto front" in capsys.readouterr().out
    assert main(["status", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["front"] == evidence["front"]
    assert load_yaml(folder / "best" / "fit.yaml")["model"]["architecture"]["pattern"]


def test_every_member_of_a_hollow_front_is_the_best_for_some_weights():
    front = np.array([[x, (1 - x) ** 2] for x in np.linspace(0, 1, 6)])  # no weighted sum finds its middle
    inner = front * 0.9 - 0.02
    values, drawing = np.concatenate([front, inner]), random.Random(0)
    found = {int(scalarised(values, drawing).argmax()) for _ in range(600)}
    assert found == set(range(6))


def test_a_loss_beyond_all_others_does_not_make_them_alike():
    values, drawing = np.array([[1.0, -0.1], [0.5, -0.05], [0.0, -0.03], [0.4, -1e6]]), random.Random(0)
    assert {int(scalarised(values, drawing).argmax()) for _ in range(100)} == {0, 1, 2}


def test_one_objective_is_taken_as_it_is():
    values = np.array([[3.0], [1.0], [2.0]])
    assert list(np.argsort(scalarised(values, random.Random(0)))) == [1, 2, 0]
    assert len(scalarised(np.zeros((0, 2)), random.Random(0))) == 0


@pytest.mark.parametrize("wanted", [0, 1])
def test_the_pattern_sampler_goes_by_weights_drawn_for_each_proposal(parse, monkeypatch, wanted):
    weighed = []

    def weigh(values, drawing):
        weighed.append((values.tolist(), drawing.random()))
        return values[:, wanted]

    monkeypatch.setattr("archsearch.search.pattern_sampler.scalarised", weigh)
    monkeypatch.setattr("archsearch.search.pattern_sampler.DRAWN", 60)
    space = parse({**ROOMY, "space.mixers": {}, "space.count.low": 1})
    _, candidates = run(space, "pattern", 10, lambda candidate: [candidate.count, candidate.count], refuses=no)
    counts = [candidate.count for candidate in candidates]
    assert weighed[-1][0] == [[count, -count] for count in counts[:-1]]  # more accuracy, less loss
    assert len({drawn for _, drawn in weighed}) == len(weighed)
    assert set(counts[-4:]) == ({3} if wanted == 0 else {1})
