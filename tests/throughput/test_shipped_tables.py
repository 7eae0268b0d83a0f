"""The cost tables that come with the search spaces hold all that a search asks, and their checks kept the promise."""

import json
from pathlib import Path

import pytest

from archsearch.architecture import Architecture
from archsearch.search.check_file import load_records
from archsearch.search.cost_tables import architectures, random_patterns
from archsearch.search.make_table import summary
from archsearch.search.space import load_space
from archsearch.throughput.cost_table import load_table, with_vocabulary
from archsearch.throughput.predict import Predictor

SPACES = Path("search_spaces")
TABLES = sorted((SPACES / "cost_tables").glob("*.json"))


@pytest.fixture(params=TABLES, ids=lambda table: table.stem)
def table(request):
    return request.param


def test_there_are_tables_for_both_lengths():
    assert {load_table(table).key.length for table in TABLES} == {4096, 16384}


def test_every_candidate_can_be_predicted(table):
    space, predictor = load_space(SPACES / f"{table.name.split('.')[0]}.yaml"), Predictor(load_table(table))
    for architecture in (*architectures(space), *random_patterns(space, 50, seed=3)):
        low, high = predictor.predict(with_vocabulary(architecture)).interval(0.95)
        assert 0 < low < high < 1  # seconds a step


def test_predictions_of_published_models_agree_with_their_measurement(table):
    """Recorded on another card of the same kind, the hybrid with three M²RNN layers against the one without."""
    loaded = load_table(table)
    recorded = json.loads(Path(f"studies/training_h200/T{loaded.key.length}.json").read_text())
    three = next(x for x in recorded["results"] if x["pattern"] == "(G3MAG3)3")
    base, predictor = Architecture.load("search_spaces/hybrid_410m.yaml"), Predictor(loaded)
    anchor = predictor.predict(with_vocabulary(base)).median
    low, high = predictor.predict(with_vocabulary(base.with_pattern("(R3MAR3)3"))).interval(0.95)
    assert anchor / high < three["ratio"] < anchor / low


def test_random_patterns_were_predicted(table):
    (file,) = (table.parent / "checks").glob(f"{table.stem}.*.json")
    check, loaded = json.loads(file.read_text()), load_table(table)
    records = load_records(file, loaded)
    assert len(records) >= 11
    assert not records.keys() & loaded.wholes.keys()
    assert {name: check[name] for name in summary(records.values())} == summary(records.values())
    assert check["median_error"] < 0.015
    assert check["95th_percentile_error"] < 0.04
    assert check["covered"] > 0.9
