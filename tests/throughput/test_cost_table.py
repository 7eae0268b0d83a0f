"""The file: what is in it, whose it is, and when it is refused."""

import dataclasses
import functools
import json
import math
import re

import pytest

from archsearch.architecture import Architecture, resolve
from archsearch.config import ConfigError, Where
from archsearch.throughput.cost_table import (
    Anchor,
    Cost,
    CostTable,
    Key,
    Whole,
    check_usable,
    load_table,
    part_of,
    parts_of,
    with_vocabulary,
)
from archsearch.throughput.machine import _meaning, sources_version

KEY = Key(
    card="NVIDIA H200",
    driver="580",
    torch="2.13.0",
    triton="3.7.1",
    fla="0.6.0",
    kernels="abc",
    mode="train",
    blocks="eager",
    precision="bf16",
    batch_size=8,
    length=4096,
)


def model(pattern):
    return with_vocabulary(resolve(pattern))


def test_parts_are_counted_by_what_a_block_is_not_by_its_letter_or_place():
    assert parts_of(model("RMAR")) == parts_of(model("ARRM"))
    assert sorted(parts_of(model("R6MA")).values()) == [1, 1, 1, 6]
    two = Architecture.from_dict(
        {"hidden_size": 128, "pattern": "MXG", "mixers": {"X": {"type": "m2rnn"}, "G": {"type": "gated_deltanet"}}},
        Where("test"),
    )
    assert part_of(two, "X") == part_of(model("M"), "M")
    assert sorted(parts_of(with_vocabulary(two)).values()) == [1, 1, 2]


def test_another_shape_mlp_width_or_vocabulary_is_another_part():
    base = model("M")
    mixer = base.mixers["M"]
    other = dataclasses.replace(mixer, options=dataclasses.replace(mixer.options, num_heads=8))
    assert part_of(dataclasses.replace(base, mixers={"M": other}), "M") != part_of(base, "M")
    mlp = dataclasses.replace(base.mlp, options=type(base.mlp.options)(intermediate_size=8))
    assert part_of(dataclasses.replace(base, mlp=mlp), "M") != part_of(base, "M")
    assert set(parts_of(dataclasses.replace(base, vocab_size=512))) != set(parts_of(base))


def test_a_table_is_read_as_it_was_written(tmp_path):
    table = CostTable(
        key=KEY,
        layers=4,
        anchor=Anchor(architecture=model("R4").to_dict(), seconds=0.1),
        costs={part: Cost(label=part, seconds=0.01, error=1e-5, bytes=5.0, rounds=8) for part in parts_of(model("RM"))},
        wholes={"x": Whole(label="RM", parts=parts_of(model("RM")), seconds=0.031, error=1e-4, bytes=15.5, rounds=9)},
        command="archsearch measure",
    )
    table.save(tmp_path / "table.json")
    assert load_table(tmp_path / "table.json") == table
    assert table.missing(model("RMA")) == [part_of(model("A"), "A")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no cost table"),
        pytest.param("[" * 100_000, "is no cost table: nested too deeply", id="nested"),
        ("[]", "must be a cost table of format 1"),
        ('{"format": 2}', "must be a cost table of format 1"),
        ('{"format": 1, "layers": 1}', "key"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, message):
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        load_table(path)
    assert str(error.value).startswith(str(path))
    with pytest.raises(ConfigError, match="no such file"):
        load_table(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("key.batch_size", 0, "key.batch_size: must be a number at least 1; got 0"),
        ("key.length", -1, "key.length: must be"),
        ("key.mode", "trian", "key.mode: must be one of train, prefill, decode; got 'trian'"),
        ("key.precision", "int8", "key.precision: must be one of fp32, bf16, fp16; got 'int8'"),
        ("key.blocks", "x", "key.blocks: must be one of"),
        ("layers", 0, "layers: must be a number at least 1"),
        ("anchor", [], "anchor: must be a mapping of architecture, seconds"),
        ("anchor", {"seconds": 1.0}, "anchor.architecture: is required"),
        ("anchor", {"architecture": {}}, "anchor.seconds: is required"),
        ("anchor.more", 1, "anchor.more: unknown key"),
        ("anchor.seconds", 0, "anchor.seconds: must be"),
        ("costs.part", 3, "costs.part: must be a mapping"),
        ("costs.part.seconds", -1e-3, "costs.part.seconds: must be a number from 0 to 1e+06; got -0.001"),
        ("costs.part.seconds", math.nan, "costs.part.seconds: must be"),
        ("costs.part.seconds", 1e300, "costs.part.seconds: must be"),
        ("costs.part.seconds", 0, "wholes.x.parts: must take 1e-09 s or more together; got 0"),
        ("costs.part.error", math.nan, "costs.part.error: must be"),
        ("costs.part.error", -1, "costs.part.error: must be"),
        ("costs.part.bytes", math.inf, "costs.part.bytes: must be"),
        ("wholes.x.seconds", 0, "wholes.x.seconds: must be"),
        pytest.param("wholes.x.seconds", 10**400, "wholes.x: holds a number that is too large", id="huge"),
        ("wholes.x.error", -1, "wholes.x.error: must be"),
        ("wholes.x.bytes", -1, "wholes.x.bytes: must be"),
        ("wholes.x.parts", {}, "wholes.x.parts: must take"),
        ("wholes.x.parts", [], "wholes.x.parts: must be a mapping"),
        ("wholes.x.parts.part", -1, "wholes.x.parts.part: must be a number from 1 to 1e+06; got -1"),
        pytest.param("wholes.x.parts.part", 10**400, "wholes.x.parts.part: must be", id="many"),
    ],
)
def test_a_damaged_entry_is_named(tmp_path, place, value, said):
    path = tmp_path / "table.json"
    table = CostTable(key=KEY, layers=4, anchor=Anchor(architecture=model("R4").to_dict(), seconds=0.1))
    table.costs["part"] = Cost(label="R", seconds=0.01, error=1e-5, bytes=5.0)
    table.wholes["x"] = Whole(label="R2", parts={"part": 2}, seconds=0.02, error=1e-4, bytes=15.5)
    table.save(path)
    plain = json.loads(path.read_text())
    *above, last = place.split(".")
    functools.reduce(dict.__getitem__, above, plain)[last] = value
    path.write_text(json.dumps(plain))
    with pytest.raises(ConfigError, match=re.escape(f"{path}: {said}")):
        load_table(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("card", "NVIDIA H100"), ("driver", "9"), ("torch", "2.11"), ("triton", "3.6"), ("fla", "1"), ("kernels", "x")],
)
def test_a_table_of_another_machine_is_refused_unless_it_is_named(name, value):
    here = dataclasses.replace(KEY, **{name: value})
    with pytest.raises(ConfigError) as error:
        check_usable(CostTable(key=KEY, layers=1), here, "t.json", named=False)
    difference = f"{name} {getattr(KEY, name)}, not {value}"
    assert str(error.value).startswith(f"t.json: is a table of another machine ({difference})")
    warning = check_usable(CostTable(key=KEY, layers=1), here, "t.json", named=True)
    assert warning.startswith("predicted for another machine, NVIDIA H200")
    assert difference in warning
    assert check_usable(CostTable(key=KEY, layers=1), KEY, "t.json", named=False) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("mode", "decode"), ("precision", "fp32"), ("blocks", "compile"), ("batch_size", 2), ("length", 9)],
)
def test_a_table_of_other_conditions_is_refused_even_if_it_is_named(name, value):
    here = dataclasses.replace(KEY, **{name: value})
    with pytest.raises(ConfigError, match="other conditions"):
        check_usable(CostTable(key=KEY, layers=1), here, "t.json", named=True)


def test_the_version_of_the_sources_is_of_what_they_do():
    source = '"""Doc."""\n\n\ndef f(x):\n    """More."""\n    # why\n    return x + 1\n'
    assert _meaning(source) == "def f(x):\n    return x + 1"
    assert _meaning(source.replace("x + 1", "x + 2")) != _meaning(source)
    assert len(sources_version()) == 12
