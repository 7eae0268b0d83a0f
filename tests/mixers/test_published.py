"""The mixers of the published 410M models (arXiv:2603.14360v2): sizes that the paper and its configurations give."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from archsearch import registry

SHAPES: dict[str, tuple[dict[str, Any], int, int]] = {
    "attention": ({"num_heads": 16}, 4_194_304, 0),
    "gated_deltanet": ({"num_heads": 2, "key_head_dim": 256, "value_head_dim": 512}, 4_207_108, 262_144),
    "mamba2": ({"num_heads": 64, "head_dim": 19, "state_dim": 216}, 4_253_104, 262_656),
    "m2rnn": ({"num_heads": 84, "key_head_dim": 64, "value_head_dim": 16}, 4_376_104, 86_016),
    "rnn": ({"num_heads": 85, "head_dim": 16}, 4_206_480, 1_360),
    "gru": ({"num_heads": 85, "head_dim": 16}, 7_035_280, 1_360),
}


@pytest.mark.parametrize("name", SHAPES)
def test_published_parameter_counts_and_states(name: str) -> None:
    values, num_parameters, state_size = SHAPES[name]
    plugin = registry.get(name)
    options = plugin.options(**values)
    options.check(1024)
    module: nn.Module = plugin.module(options, 1024)
    assert options.num_parameters(1024) == num_parameters
    assert sum(parameter.numel() for parameter in module.parameters()) == num_parameters
    assert options.state_size(1024) == state_size


def test_the_m2rnn_that_matches_gated_deltanet_has_81_heads() -> None:
    options = registry.get("m2rnn").options
    counts = {n: options(num_heads=n, key_head_dim=64, value_head_dim=16).num_parameters(1024) for n in range(78, 85)}  # type: ignore[call-arg]
    assert min(counts, key=lambda n: abs(counts[n] - 4_207_108)) == 81


@pytest.mark.parametrize(
    ("name", "multiply_adds"),
    [  # per token at hidden 1024 and length 4096: projections + short convolution + recurrence
        ("attention", 4 * 1024 * 1024 + 2 * 1024 * 4097 / 2),
        ("gated_deltanet", 1024 * (3076 + 1024) + 2048 * 4 + 2 * 3 * 256 * 512),
        ("mamba2", 1024 * (2928 + 1216) + 1648 * 4 + 64 * 2 * 19 * 216),
        ("m2rnn", 1024 * (2 * 64 + 1344 + 84 + 1344 + 1344) + 1472 * 4 + 84 * 64 * 16 * (16 + 2)),
        ("rnn", 1024 * 3 * 1360 + 1360 * 4 + 85 * 16 * 16),
        ("gru", 1024 * 5 * 1360 + 1360 * 4 + 3 * 85 * 16 * 16),
    ],
)
def test_flops_per_token_by_hand(name: str, multiply_adds: float) -> None:
    options = registry.get(name).options(**SHAPES[name][0])
    assert options.flops_per_token(1024, 4096) == 2 * multiply_adds
