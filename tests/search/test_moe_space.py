"""Spaces over architectures with experts, and with an MLP per letter."""

import pytest

from archsearch.config import ConfigError
from archsearch.search.candidates import build_given, given

MOE = {"type": "moe", "num_experts": 4, "experts_per_token": 2, "intermediate_size": 8}
SWIGLU = {"type": "swiglu", "intermediate_size": 24}


def test_candidates_keep_the_mlps_of_their_letters(parse):
    space = parse({"architecture.mlp": MOE, "architecture.mlps": {"M": SWIGLU, "A": SWIGLU}})
    for found in given(space):
        architecture = build_given(space, found).architecture
        kinds = {layer.letter: layer.mlp.type for layer in architecture.layers}
        assert kinds == {letter: "moe" if letter == "R" else "swiglu" for letter in architecture.pattern}
    assert space.base.active_parameters() < space.base.num_parameters()


def test_an_mlp_of_an_unknown_letter_is_refused(parse):
    with pytest.raises(ConfigError, match=r"space\.yaml: architecture\.mlps\.X: unknown letter 'X'; .*: A, M, R"):
        parse({"architecture.mlps": {"X": SWIGLU}})
