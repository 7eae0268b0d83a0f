import dataclasses
import json

import pytest

from archsearch.config import ConfigError, Where
from archsearch.search.budget import check_exact, from_plain, parse_budget, state_bytes, to_plain


def budget(parse, **written):
    return parse_budget(written, parse().base, Where("space.yaml", "budget"))


def test_exact_limits_are_held_against_the_formulas(parse):
    base = parse().base
    limits = budget(parse, parameters={"at_most": base.num_parameters()}, state_bytes={"at_least": 1, "at_most": 100})
    checks = {check.name: check for check in check_exact(limits, base)}
    assert state_bytes(base) == 4 * 8 * 16 * 4
    assert checks["parameters"].violation == 0
    assert checks["parameters"].verdict == "feasible"
    assert checks["state_bytes.at_least"].violation < 0
    assert checks["state_bytes.at_most"].violation == pytest.approx(2048 / 100 - 1)
    assert checks["state_bytes.at_most"].reason == "state_bytes.at_most 2,048, must be at most 100"


def test_a_fraction_is_taken_of_another_architecture(parse):
    base = parse().base
    (limit,) = budget(parse, parameters={"at_most": 0.5, "of": "R4"}).parameters
    assert limit.at_most == 0.5 * base.with_pattern("R4").num_parameters()


def test_state_at_a_length_is_all_that_decoding_keeps(parse):
    base = parse().base
    limits = budget(parse, state_bytes={"at_most": "1MiB", "length": "4k"}, precision="bf16")
    (check,) = check_exact(limits, base)
    assert check.value == base.cache_bytes(4000, "bfloat16")
    (limit,) = budget(parse, state_bytes={"at_most": 0.5, "of": "R4", "length": 100}).state_bytes
    assert limit.at_most == 0.5 * base.with_pattern("R4").cache_bytes(100, "float32")


def test_decoding_has_a_batch_and_a_context_of_its_own(parse):
    limits = budget(
        parse,
        decode_tokens_per_second={"at_least": 0.9, "of": "base", "batch_size": 2, "context": "16k"},
        sequence_length=64,
        time_limit="5s",
    )
    assert limits.modes == ("decode",)
    conditions = limits.conditions("decode")
    assert (conditions["mode"], conditions["batch_size"], conditions["length"]) == ("decode", 2, 16000)
    conditions = limits.conditions("prefill")
    assert (conditions["batch_size"], conditions["length"]) == (8, 64)
    plain = budget(parse, decode_tokens_per_second={"at_least": 100}, sequence_length=64)
    assert (plain.decode_tokens_per_second.length, plain.decode_tokens_per_second.batch_size) == (64, 8)


def test_tables_are_named_relative_to_the_space(parse):
    base = parse().base
    limits = parse_budget({"table": "tables/a.json"}, base, Where("spaces/x.yaml", "budget"))
    assert limits.tables == ("spaces/tables/a.json",)
    assert parse_budget({"table": ["a", "b"]}, base, Where("x.yaml", "budget")).tables == ("a", "b")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"blocks": "compiled"}, "budget.blocks: unknown way to run blocks 'compiled' (did you mean 'compile'?)"),
        ({"table": 3}, "budget.table: must be the path of a cost table, or a list of them; got 3"),
        ({"state_bytes": {"at_most": 1, "length": 0}}, "budget.state_bytes.length: must be at least 1; got 0"),
        (
            {"decode_tokens_per_second": {"at_least": 100, "context": 0}},
            "budget.decode_tokens_per_second.context: must be at least 1; got 0",
        ),
        (
            {"decode_tokens_per_second": {"at_least": 0.9}},
            "budget.decode_tokens_per_second.at_least: is a number of tokens/s without `of`",
        ),
        ({"train_tokens_per_second": {"at_least": 0.9, "context": 4}}, "train_tokens_per_second.context: unknown key"),
    ],
)
def test_what_is_written_wrong_is_named(parse, written, message):
    with pytest.raises(ConfigError) as error:
        budget(parse, **written)
    assert message in str(error.value)


def test_a_budget_survives_the_way_to_a_trial(parse):
    limits = budget(
        parse,
        parameters={"at_most": 1.1, "of": "base"},
        peak_memory={"at_most": "72GiB"},
        train_tokens_per_second={"at_least": 0.3, "of": "base"},
        decode_tokens_per_second={"at_least": 5000},
        state_bytes={"at_most": "1GiB", "length": 100},
        table="table.json",
    )
    again = from_plain(json.loads(json.dumps(to_plain(limits))), Where("config.yaml"))
    assert again.train_tokens_per_second.anchor.id == parse().base.id
    without = {"train_tokens_per_second": None, "decode_tokens_per_second": None}
    assert dataclasses.replace(again, **without) == dataclasses.replace(limits, **without)
