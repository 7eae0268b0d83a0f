"""Reading several letters, base patterns, backbones and forbidden combinations."""

import pytest

from archsearch.config import ConfigError
from archsearch.search.choices import Choices, Match, Range
from archsearch.search.placement import Slots
from archsearch.search.replacement import Count
from tests.search.varied import varied


def test_letters_have_their_own_counts_placements_and_shapes():
    first, second = varied().replacements
    assert (first.letter, first.prefix, first.count) == ("M", "M.", Count(low=0, high=2))
    assert (second.letter, second.prefix, second.count) == ("N", "N.", Count(low=0, high=3))
    assert first.placements == ("first", "free")
    assert second.placements == ("before_attention", "last", "free")
    assert first.choices == {"key_head_dim": Choices(values=(4, 8)), "num_heads": Match(tolerance=0.2)}
    assert second.published.head_dim == 4


def test_letters_may_share_count_and_placement():
    first, second = varied(count={"high": 2}, placement=["spread"]).replacements
    assert first.count == second.count == Count(low=0, high=2)
    assert first.placements == second.placements == ("spread",)


def test_every_base_pattern_has_its_slots_and_the_architectures_own_comes_first():
    space = varied(patterns=["R3AR", "(R2A)2"])
    assert space.patterns == {
        "R2AR2A": Slots(layers=(0, 1, 3, 4), before_attention=(1, 3), after_attention=(2,)),
        "R3AR": Slots(layers=(0, 1, 2, 4), before_attention=(2,), after_attention=(3,)),
    }
    assert space.pattern == "R2AR2A"
    assert space.slots == space.patterns["R2AR2A"]
    assert space.base.pattern == "RRARRA"


def test_base_patterns_are_repeated_as_the_architectures_own():
    values = {"patterns": ["R2A", "RA"], "forbid": [{"pattern": "RA", "M.count": 1}]}
    space = varied({"pattern": "R2A", "num_layers": 6}, **values)
    assert list(space.patterns) == ["R2AR2A", "(RA)3"]
    assert space.forbidden[0].values["pattern"] == ("(RA)3",)


def test_decisions_stand_in_the_order_in_which_they_are_asked():
    assert varied().decisions == {
        "pattern": Choices(values=("R2AR2A", "R3AR")),
        "M.count": Range(low=0, high=2),
        "N.count": Range(low=0, high=3),
        "backbone": Choices(values=("R", "S")),
        "M.placement": Choices(values=("first", "free")),
        "N.placement": Choices(values=("before_attention", "last", "free")),
        "M.key_head_dim": Choices(values=(4, 8)),
        "N.head_dim": Choices(values=(4, 8)),
    }


def test_a_forbidden_combination_lists_values_by_decision():
    entry = {"pattern": "R(RRA)R", "M.count": [1, 2], "M.num_heads": 3}
    space = varied(forbid=[entry])
    assert space.forbidden[0].values == {"pattern": ("R3AR",), "M.count": (1, 2), "M.num_heads": (3,)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"with": []}, "space.with: must be a letter or a list of letters; got []"),
        ({"with": ["M", "M"]}, "space.with[1]: must name each letter once; got 'M' twice"),
        ({"with": ["M", "Q"]}, "space.with[1]: must be one letter of this architecture (A, "),
        ({"with": ["M", "A"]}, "space.with: must not occur in the base pattern R2AR2A; got 'A'"),
        ({"with": ["M", "S"]}, "space.with: must be another letter than those of space.backbone; got 'S' for both"),
        ({"count": {"M": {"high": 1}}}, "space.count.N: is required"),
        ({"count": {"M": {"high": 1}, "K": {"high": 1}}}, "space.count.K: unknown key; known: M, N"),
        ({"count": {"M": {"high": 1}, "N": {"hihg": 1}}}, "space.count.N.hihg: unknown key (did you mean 'high'?)"),
        ({"count": {"M": {"high": 1}, "N": 1}}, "space.count.N: must be a mapping of low, high; got 1"),
        (
            {"count": {"M": {"high": 5}, "N": {"high": 1}}},
            "space.count.M.high: must be at most the number of slots (the 4 places of R in R2AR2A); got 5",
        ),
        (
            {"count": {"low": 3, "high": 3}},
            "space.count: the letters' low together must be at most the number of slots (4 in R2AR2A); got 6",
        ),
        ({"placement": {"M": ["first"]}}, "space.placement.N: is required"),
        (
            {"placement": {"M": ["first"], "N": ["frst"]}},
            "space.placement.N[0]: unknown placement 'frst' (did you mean 'first'?)",
        ),
        ({"mixers": {"K": {}}}, "space.mixers.K: only the shape of space.with (M, N) is searched; got 'K'"),
        ({"mixers": {"N": {"hed_dim": 4}}}, "space.mixers.N.hed_dim: unknown key (did you mean 'head_dim'?)"),
        ({"patterns": "R3A"}, "space.patterns: must be a list of patterns; got 'R3A'"),
        ({"patterns": [3]}, "space.patterns[0]: must be a pattern; got 3"),
        ({"patterns": ["R2AX"]}, "space.patterns[0]: unknown letter 'X' at position 4"),
        ({"patterns": ["R2AR2A", "(R2A)2"]}, "space.patterns[1]: must name each pattern once; got R2AR2A twice"),
        ({"patterns": ["R2AR2A", "A2"]}, "space.patterns[1]: must hold the letter of space.replace (R); got 'A2'"),
        ({"patterns": ["R2AR2A", "RM"]}, "space.with: must not occur in the base pattern RM; got 'M'"),
        (
            {"patterns": ["R3A"]},
            "space.patterns: must hold the architecture's own pattern, the base of the study (R2AR2A); got ['R3A']",
        ),
        ({"backbone": ["S", "R"]}, "space.backbone: must begin with the letter of space.replace (R); got ['S', 'R']"),
        ({"backbone": ["R", "A"]}, "space.backbone[1]: must not occur in the base pattern R2AR2A; got 'A'"),
        ({"backbone": ["R", "Q"]}, "space.backbone[1]: must be one letter of this architecture ("),
        ({"forbid": {"M.count": 1}}, "space.forbid: must be a list of mappings from decisions to a value or a list"),
        ({"forbid": [{}]}, "space.forbid[0]: must be a mapping from decisions to a value or a list of values; got {}"),
        (
            {"forbid": [{"M.count": 1}, {"M.key_hed_dim": 4}]},
            "space.forbid[1].M.key_hed_dim: unknown key (did you mean 'M.key_head_dim'?); known: pattern, M.count,",
        ),
        ({"forbid": [{"count": 1}]}, "space.forbid[0].count: unknown key"),
        ({"forbid": [{"M.count": []}]}, "space.forbid[0].M.count: must list at least one value; got []"),
        ({"forbid": [{"M.count": [1, 3]}]}, "space.forbid[0].M.count: must be an integer from 0 to 2; got 3"),
        ({"forbid": [{"M.count": True}]}, "space.forbid[0].M.count: must be an integer from 0 to 2; got True"),
        ({"forbid": [{"M.num_heads": 0}]}, "space.forbid[0].M.num_heads: must be an integer of at least 1; got 0"),
        ({"forbid": [{"M.key_head_dim": 5}]}, "space.forbid[0].M.key_head_dim: must be among 4, 8; got 5"),
        ({"forbid": [{"M.placement": "last"}]}, "space.forbid[0].M.placement: must be among first, free; got 'last'"),
        ({"forbid": [{"pattern": "R4"}]}, "space.forbid[0].pattern: must be among R2AR2A, R3AR; got 'R4'"),
        ({"forbid": [{"pattern": 3}]}, "space.forbid[0].pattern: must be among R2AR2A, R3AR; got 3"),
        ({"forbid": [{"backbone": "A"}]}, "space.forbid[0].backbone: must be among R, S; got 'A'"),
        (
            {"forbid": [{"M.count": 0, "M.placement": "free"}]},
            "space.forbid[0].M.placement: can never match: it is decided only where M.count is above 0",
        ),
    ],
)
def test_what_a_user_writes_wrong_is_named(changes, message):
    with pytest.raises(ConfigError) as error:
        varied(**changes)
    assert message in str(error.value)
    assert str(error.value).startswith("space.yaml: ")


def test_a_letter_whose_defaults_do_not_fit_is_named():
    narrow = {"hidden_size": 6, "pattern": "R3", "mixers": {"A": ...}}
    with pytest.raises(ConfigError, match=r"space\.patterns\[1\]: A, attention: num_heads must divide the hidden size"):
        varied(narrow, patterns=["R3", "R2A"])
    with pytest.raises(ConfigError, match=r"space\.backbone\[1\]: A, attention: num_heads must divide the hidden size"):
        varied(narrow, patterns=..., backbone=["R", "A"])
