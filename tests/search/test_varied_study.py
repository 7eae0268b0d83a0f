"""A whole study over several letters, base patterns and backbones."""

from dataclasses import replace

import pytest

from archsearch.search.session import Options, run
from archsearch.search.space import load_space
from archsearch.search.status import read_status
from tests.search.varied import varied

FORBIDDEN = [{"N.count": [2, 3]}]


@pytest.mark.usefixtures("instant_trial")
def test_a_study_tries_every_part_of_the_space_and_goes_on_where_it_stopped(tmp_path):
    space = varied(forbid=FORBIDDEN)
    study = replace(space.study, sampler="pattern", startup=4, confirm=replace(space.study.confirm, top=0))
    space = replace(space, study=study, budget=replace(space.budget, parameters=()))
    options = Options(file="space.yaml", output=tmp_path, trials=7, seed=0)
    run(space, options)
    evidence = run(space, replace(options, trials=12)).evidence
    trials = [x for x in evidence["trials"] if x["outcome"] != "duplicate"]
    assert len(trials) == 12
    assert {x["outcome"] for x in trials} <= {"completed", "refused", "illegal"}
    given = [x["given"] for x in trials[:5]]
    assert given == ["base", "first", "before_attention", "first N", "before_attention N"]
    assert trials[4]["reason"] == "forbidden by space.forbid[0]: N.count 2 or 3"
    patterns = [x["pattern"] for x in trials if x["architecture"]]
    assert any("S" in x for x in patterns)
    assert {x["shape"][:3] for x in trials if x["count"] and x["architecture"]} == {"M: ", "N: "}
    illegal = [x for x in trials if x["outcome"] == "illegal"]
    assert [x["given"] for x in illegal] == ["before_attention N"]
    saved = load_space(tmp_path / "tiny" / "space.yaml")
    assert saved.decisions == space.decisions
    assert saved.forbidden == space.forbidden
    assert len(read_status(tmp_path / "tiny").rows) == len(evidence["trials"])
