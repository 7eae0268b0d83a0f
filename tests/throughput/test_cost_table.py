"""The file: what is in it, whose it is, and when it is refused."""

import dataclasses

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
