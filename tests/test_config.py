from dataclasses import dataclass, field
from typing import Literal

import pytest

from archsearch.config import ConfigError, Where, fill, load_yaml, parse_quantity, quantity, save_yaml

WHERE = Where("space.yaml")


@dataclass(frozen=True, kw_only=True)
class Task:
    length: int
    tokens: int = quantity("count", default=1)
    kind: Literal["text", "code"] = "text"
    evaluate: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Space:
    name: str
    tasks: dict[str, Task] = field(default_factory=dict)
    time_limit: float = quantity("seconds", default=1.0)


def test_values_fill_the_dataclass():
    values = {"name": "x", "tasks": {"s3": {"length": 4, "tokens": "4M", "evaluate": [8]}}, "time_limit": "20min"}
    space = fill(Space, values, WHERE)
    assert space == Space(name="x", tasks={"s3": Task(length=4, tokens=4_000_000, evaluate=[8])}, time_limit=1200)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "space.yaml: name: is required"),
        (
            {"name": "x", "nam": 1},
            "space.yaml: nam: unknown key (did you mean 'name'?); known: name, tasks, time_limit",
        ),
        (
            {"name": "x", "tasks": {"a": {"lenght": 4}}},
            "space.yaml: tasks.a.lenght: unknown key (did you mean 'length'?)",
        ),
        ({"name": "x", "tasks": {"a": {"length": 4.5}}}, "space.yaml: tasks.a.length: value '4.5' of type 'float'"),
        (
            {"name": "x", "tasks": {"a": {"length": 4, "evaluate": [8, "q"]}}},
            "space.yaml: tasks.a.evaluate[1]: value 'q'",
        ),
        ({"name": "x", "tasks": {"a": {"length": 4, "kind": "poem"}}}, "expected one of ['text', 'code']"),
        ({"name": "x", "tasks": {"a": {"length": 4, "tokens": "4X"}}}, "space.yaml: tasks.a.tokens: must be a number"),
        ({"name": "x", "tasks": {"a": 3}}, "space.yaml: tasks.a: "),
        ({"name": "x", "tasks": [1]}, "space.yaml: tasks: must be a mapping; got [1]"),
        (
            {"name": "x", "time_limit": "2 days"},
            "space.yaml: time_limit: must be a number, or a number with one of the",
        ),
        ([1], "space.yaml: must be a mapping of name, tasks, time_limit; got [1]"),
    ],
)
def test_errors_name_file_field_rule_and_value(values, message):
    with pytest.raises(ConfigError) as error:
        fill(Space, values, WHERE)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ("250k", "count", 250_000),
        ("1.5B", "count", 1_500_000_000),
        (7, "count", 7),
        ("90s", "seconds", 90),
        ("0.5h", "seconds", 1800),
        ("72GiB", "bytes", 72 * 2**30),
        ("1e3", "count", 1000),
    ],
)
def test_quantities_carry_units(value, unit, expected):
    assert parse_quantity(value, unit, WHERE) == expected


@pytest.mark.parametrize(
    ("value", "unit"), [("4m", "count"), ("4gib", "bytes"), ("", "count"), ("M", "count"), (True, "count")]
)
def test_units_are_case_sensitive_and_numbers_are_required(value, unit):
    with pytest.raises(ConfigError, match=r"space\.yaml: must "):
        parse_quantity(value, unit, WHERE)


def test_yaml_numbers_may_have_an_exponent(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: 1e3\nb: 1e-4\nc: ${a}\n")
    assert load_yaml(path) == {"a": 1000.0, "b": 1e-4, "c": 1000.0}


def test_yaml_is_written_and_read_back(tmp_path):
    save_yaml(tmp_path / "deep" / "a.yaml", {"a": [1, 2], "b": {"c": None, "d": "x"}})
    assert load_yaml(tmp_path / "deep" / "a.yaml") == {"a": [1, 2], "b": {"c": None, "d": "x"}}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.yaml"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: ${oc.env:HOME}", "resolvers are not allowed"),
        ("a: [1, 2", "is not valid YAML"),
        ("a: ${missing}", "is not valid YAML"),
        ("- 1\n- 2", "must hold a mapping"),
        ("a: 1\na: 2", "is not valid YAML: line 2, column 1: found duplicate key a"),
        ("a: !!python/object/apply:os.getcwd []", "is not valid YAML"),
    ],
)
def test_unusable_files_are_refused(tmp_path, text, message):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        load_yaml(path)
    assert str(error.value).startswith(str(path))


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file"):
        load_yaml("nowhere.yaml")
