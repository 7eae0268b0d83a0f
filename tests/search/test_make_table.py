"""The check of a cost table: patterns that it has not seen, and records of no other table."""

import dataclasses
import json
import math
import re

import pytest

from archsearch.config import ConfigError
from archsearch.search.check_file import load_records
from archsearch.search.cost_tables import random_patterns
from archsearch.search.make_table import NEW_SHAPES, check, fill
from archsearch.throughput.conditions import Conditions
from archsearch.throughput.cost_table import with_vocabulary
from archsearch.throughput.tabulate import Tabulator, new_table
from tests.throughput.fake_contestant import FakeMachine

CONDITIONS = Conditions(batch_size=1, length=8, device="cpu")


@pytest.fixture
def space(parse):
    return parse()


@pytest.fixture
def made(space, tmp_path, monkeypatch):
    """A table, filled, and the file of its check."""
    FakeMachine(noise=0.001).use(monkeypatch)
    tabulator = Tabulator(new_table(space.base, CONDITIONS), tmp_path / "table.json", "cpu", lambda _: None)
    fill(tabulator, space, 1)
    return tabulator, tmp_path / "check.json"


def drawn(space, number, seed, known=()):
    return [with_vocabulary(x).id for x in random_patterns(space, number, seed, new_shapes=NEW_SHAPES, known=known)]


def test_what_the_table_has_measured_whole_is_passed_over_and_another_drawn(space, made):
    tabulator, file = made
    (base,) = tabulator.table.wholes
    seed = next(seed for seed in range(50) if base in drawn(space, 6, seed))
    found = check(tabulator, space, 6, seed, file)
    others = [x for x in drawn(space, 6, seed) if x != base]
    records = list(load_records(file, tabulator.table))
    assert records[:5] == others
    assert len(records) == found["number"] == 6
    assert base not in records
    assert found["complete"]


def test_records_of_another_table_are_not_this_ones(space, made):
    tabulator, file = made
    check(tabulator, space, 2, 1, file)
    tabulator.until = -math.inf
    assert check(tabulator, space, 2, 1, file)["number"] == 2
    anchor = tabulator.table.anchor
    tabulator.table.anchor = dataclasses.replace(anchor, seconds=2 * anchor.seconds)
    assert check(tabulator, space, 2, 1, file) == {"number": 0, "complete": False}
    tabulator.table.anchor = anchor
    tabulator.table.key = dataclasses.replace(tabulator.table.key, kernels="of another version")
    assert check(tabulator, space, 2, 1, file) == {"number": 0, "complete": False}


def test_only_what_is_asked_for_is_summed_up_and_the_rest_is_kept(space, made):
    tabulator, file = made
    check(tabulator, space, 3, 1, file)
    assert check(tabulator, space, 4, 2, file)["number"] == 4
    written = json.loads(file.read_text())
    assert [x["id"] for x in written["patterns"]] == drawn(space, 4, 2, tabulator.table.wholes)
    assert written["number"] == 4
    assert written["complete"]
    tabulator.until = -math.inf
    assert check(tabulator, space, 3, 1, file)["complete"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "is no check of a cost table"),
        pytest.param("[" * 100_000, "is no check of a cost table: nested too deeply", id="nested"),
        ("[]", "must be the check of a cost table, a mapping"),
        ("{}", "patterns: is required"),
        ({"patterns": 3}, "patterns: "),
        ({"patterns": [{}]}, "patterns[0].id: is required"),
        ({"patterns": [3]}, "patterns[0]: must be a mapping"),
        ({"error": math.nan}, "patterns[0].error: must be a number"),
        ({"sum_of_parts_ms": 0}, "patterns[0].sum_of_parts_ms: must be a number"),
        ({"covered": "perhaps"}, "patterns[0].covered: "),
    ],
)
def test_a_damaged_check_is_named(space, made, written, said):
    tabulator, file = made
    if isinstance(written, dict):
        check(tabulator, space, 1, 1, file)
        plain = json.loads(file.read_text())
        if "patterns" in written:
            plain |= written
        else:
            plain["patterns"][0] |= written
        written = json.dumps(plain)
    file.write_text(written)
    with pytest.raises(ConfigError, match=re.escape(f"{file}: {said}")):
        check(tabulator, space, 1, 1, file)
