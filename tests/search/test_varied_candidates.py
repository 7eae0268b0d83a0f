"""Candidates of spaces with several letters, base patterns and backbones."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archsearch.pattern import compact, parse
from archsearch.search import candidates
from archsearch.search.candidates import RandomSuggest, build_given, given_decisions, replay_decisions, sample
from archsearch.search.enumeration import count_models, count_ways, enumerate_candidates, shapes
from archsearch.search.pattern_sampler import Follow
from archsearch.search.rows import describe
from tests.search.test_candidates import Decide
from tests.search.varied import spaces, varied

quick = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
BASE = {"pattern": "R2AR2A", "backbone": "R"}


def decide(space, **decisions):
    """Return the candidate of some decisions; `__` stands for the dot in their names."""
    return sample(space, Decide(**BASE | {name.replace("__", "."): value for name, value in decisions.items()}))


def test_letters_fill_in_the_order_written_what_the_earlier_ones_leave():
    free = {"M__placement": "free", "M__slot_0": 1, "M__key_head_dim": 8, "N__head_dim": 4}
    last = decide(varied(), M__count=1, N__count=2, N__placement="last", **free)
    assert last.architecture.pattern == "RMANNA"
    assert [(x.letter, x.slots) for x in last.fillings] == [("M", (1,)), ("N", (2, 3))]
    assert (last.count, last.slots) == (3, (1, 2, 3))
    anywhere = decide(varied(), M__count=1, N__count=2, N__placement="free", N__slot_0=0, N__slot_1=0, **free)
    assert anywhere.architecture.pattern == "NMANRA"
    before = decide(varied(), M__count=1, N__count=2, N__placement="before_attention", **free)
    assert before.illegal == "N: before attention has room for 1; got a count of 2 on R2AR2A"


def test_what_no_letter_leaves_is_not_asked():
    suggest = Decide(**BASE, **{"M.count": 0, "N.count": 1, "N.placement": "last", "N.head_dim": 8})
    sample(varied(), suggest)
    assert suggest.asked == ["pattern", "M.count", "N.count", "backbone", "N.placement", "N.head_dim"]
    shape = {"M.key_head_dim": 8, "N.head_dim": 8}
    full = Decide(pattern="R3AR", **{"M.count": 1, "N.count": 3, "M.placement": "first"}, **shape)
    assert sample(varied(), full).architecture.pattern == "MNNAN"
    assert full.asked == ["pattern", "M.count", "N.count", "M.placement", *shape]  # no slot is left to the backbone


def test_more_than_the_slots_of_the_chosen_base_is_illegal():
    space = varied(patterns=["R2AR2A", "R2A"])
    found = decide(space, pattern="R2A", M__count=2, N__count=1)
    assert found.architecture is None
    assert found.illegal == "2 M and 1 N need 3 slots; R2A has 2"
    assert describe(space, found).pattern == "2 x M, 1 x N on R2A"


def test_a_placement_that_the_chosen_base_has_no_room_for_is_illegal():
    space = varied(
        **{"with": "M"},
        patterns=["R2AR2A", "R3"],
        count={"high": 2},
        mixers={},
        placement=["first", "before_attention"],
    )
    found = decide(space, pattern="R3", count=1, placement="before_attention")
    assert found.illegal == "before attention has room for 0; got a count of 1 on R3"
    assert decide(space, count=1, placement="before_attention").architecture.pattern == "RMARRA"


def test_heads_are_matched_to_the_chosen_backbone():
    space, own = varied(), {"M__count": 1, "M__placement": "first", "M__key_head_dim": 8, "N__count": 0}
    found = {letter: decide(space, backbone=letter, **own) for letter in "RS"}
    assert [x.architecture.pattern for x in found.values()] == ["MRARRA", "MSASSA"]
    sizes = {letter: space.base.mixers[letter].options.num_parameters(16) for letter in "RS"}
    for letter, candidate in found.items():
        options = candidate.options["M"]
        wider = type(options)(**{**vars(options), "num_heads": options.num_heads + 1})
        near, far = (abs(x.num_parameters(16) - sizes[letter]) for x in (options, wider))
        assert near < far
    assert found["R"].options["M"].num_heads < found["S"].options["M"].num_heads


def test_inserted_attention_is_attention_for_the_letters_after_it():
    placements = {"B": ["last"], "M": ["after_attention", "before_attention"]}
    space = varied(
        {"pattern": "R4", "mixers": {"B": {"type": "attention", "num_heads": 2}}},
        **{"with": ["B", "M"]},
        patterns=...,
        count={"B": {"high": 2}, "M": {"high": 1}},
        placement=placements,
        mixers={},
    )
    one = {"B__count": 1, "B__placement": "last", "M__count": 1}
    assert decide(space, **one, M__placement="before_attention").architecture.pattern == "RRMB"
    none = decide(space, **one, M__placement="after_attention")
    assert none.illegal == "M: after attention has room for 0; got a count of 1"


def test_the_table_names_letters_where_there_are_several():
    space = varied()
    found = decide(
        space, M__count=1, M__placement="first", M__key_head_dim=8, N__count=1, N__placement="last", N__head_dim=4
    )
    described = describe(space, found)
    assert described.shape == "M: 4 heads, key 8, value 4; N: 4 heads, head dim 4"
    assert (described.placement, described.count) == ("M first, N last", 2)


def test_a_forbidden_combination_is_illegal_whichever_placement_leads_there():
    space = varied(forbid=[{"N.count": [2, 3], "N.placement": "last"}, {"M.count": 1, "backbone": "S"}])
    last = {"M__count": 0, "N__count": 2, "N__head_dim": 4}
    reason = "forbidden by space.forbid[0]: N.count 2 or 3, N.placement last"
    assert decide(space, N__placement="last", **last).illegal == reason
    assert decide(space, N__placement="free", N__slot_0=2, N__slot_1=2, **last).illegal == reason
    assert decide(space, N__placement="free", N__slot_0=1, N__slot_1=2, **last).illegal is None
    assert decide(space, N__placement="last", **{**last, "N__count": 1}).illegal is None
    one = {"M__count": 1, "M__placement": "first", "M__key_head_dim": 8, "N__count": 0}
    assert decide(space, backbone="S", **one).illegal == "forbidden by space.forbid[1]: M.count 1, backbone S"
    assert decide(space, backbone="R", **one).illegal is None


def test_free_is_forbidden_only_where_no_other_placement_leads():
    space = varied(forbid=[{"M.placement": "free"}])
    own = {"M__count": 1, "M__key_head_dim": 8, "N__count": 0, "M__placement": "free"}
    assert decide(space, M__slot_0=0, **own).illegal is None  # as `first` has it
    assert decide(space, M__slot_0=1, **own).illegal == "forbidden by space.forbid[0]: M.placement free"


def test_matched_heads_can_be_forbidden_and_the_base_cannot():
    space = varied(forbid=[{"M.num_heads": 4}, {"M.count": 0, "N.count": 0}])
    own = {"M__count": 1, "M__placement": "first", "M__key_head_dim": 8, "N__count": 0}
    assert decide(space, **own).illegal == "forbidden by space.forbid[0]: M.num_heads 4"
    assert decide(space, M__count=0, N__count=0).illegal is None
    assert decide(space, M__count=0, N__count=0, backbone="S").illegal is not None


def test_every_letter_is_given_as_written():
    space = varied()
    built = {found.name: build_given(space, found).architecture.pattern for found in candidates.given(space)}
    assert built == {
        "base": "RRARRA",
        "first": "MRARRA",
        "before_attention": "RMARMA",
        "first N": "NRARRA",
        "before_attention N": "RNARNA",
    }
    first = candidates.given(space)[3]
    assert given_decisions(space, first) == {
        "pattern": "R2AR2A",
        "M.count": 0,
        "N.count": 1,
        "backbone": "R",
        "N.head_dim": 4,  # `first` is no placement of N in this space
    }


def test_decisions_of_given_ones_are_asked_under_the_distributions_of_the_space():
    space = varied()
    for found in candidates.given(space):
        decisions = given_decisions(space, found)
        suggest = Decide(**decisions)
        replay_decisions(space, decisions, suggest)
        assert sorted(suggest.asked) == sorted(decisions)


def test_a_letter_of_one_is_spelt_as_a_letter():
    listed, alone = (
        varied(**{"with": ["M"]}, mixers={}, count={"high": 2}, placement=["free"]),
        varied(**{"with": "M"}, mixers={}, count={"high": 2}, placement=["free"]),
    )
    assert listed.replacements == alone.replacements
    assert list(listed.decisions) == ["pattern", "count", "backbone", "placement"]


@quick
@given(spaces(), st.integers(0, 999))
def test_places_never_overlap_and_the_same_decisions_lead_to_the_same_candidate(space, seed):
    for number in range(seed, seed + 20):
        asked = Follow({}, random.Random(number))
        found = sample(space, asked)
        again = Follow(asked.taken, random.Random(number + 1))
        assert sample(space, again) == found
        assert again.taken == asked.taken
        assert {name for name in asked.taken if "slot_" not in name} <= set(space.decisions)
        if found.architecture is None:
            assert found.illegal
            continue
        pattern, slots = found.architecture.pattern, space.patterns[found.pattern]
        taken = [slot for x in found.fillings for slot in x.slots]
        assert len(set(taken)) == len(taken)
        assert all(pattern.count(x.letter) == x.count == len(x.slots) for x in found.fillings)
        assert pattern.count(found.backbone) == slots.total - len(taken)
        emptied = "".join(letter if letter == "A" else "R" for letter in pattern)
        assert emptied == parse(found.pattern)
        assert {letter for letter in pattern if letter != "A"} <= {found.backbone, *found.options}


@quick
@given(spaces())
def test_an_enumeration_holds_what_is_drawn_at_random_and_each_legal_model_once(space):
    everything = enumerate_candidates(space, 3000)
    if everything is None:
        return
    models = [x.architecture.id for x in everything if x.illegal is None]
    assert len(set(models)) == len(models)
    assert all(x.key == x.architecture.id for x in everything if x.illegal is None)
    legal = {x.key: x.illegal is None for x in everything}
    suggest = RandomSuggest(0)
    for _ in range(60):
        found = sample(space, suggest)
        assert legal[found.key] == (found.illegal is None)
    assert len(models) <= count_models(space)
    assert len(everything) <= count_ways(space)


@quick
@given(spaces(letters=("M", "N"), placements=("free",), forbid=False))
def test_models_are_counted_exactly_where_places_are_free(space):
    everything = enumerate_candidates(space, 3000)
    if everything is not None:
        assert sum(x.illegal is None for x in everything) == count_models(space)


def test_legal_shapes_depend_on_the_backbone():
    space = varied()
    of = {letter: {x.num_heads for x in shapes(space, space.replacements[0], letter)} for letter in "RS"}
    assert of["R"] != of["S"]


@pytest.mark.parametrize("letters", [["M", "Y"], ["Y", "M"]])
def test_two_letters_of_one_mixer_lead_to_one_model(letters):
    """A way that is illegal for one letter does not stand for the legal one of the other."""
    mixer = {"type": "m2rnn", "num_heads": 4, "key_head_dim": 8, "value_head_dim": 4, "conv_width": None}
    space = varied(
        {"mixers": {"Y": mixer}},
        **{"with": letters},
        patterns=...,
        count={"high": 1},
        placement=["first"],
        mixers={},
        forbid=[{"Y.count": 1}],
    )
    legal = {compact(x.architecture.pattern) for x in enumerate_candidates(space, 3000) if x.illegal is None}
    assert legal == {"R2AR2A", "S2AS2A", "MRAR2A", "MSAS2A"}
