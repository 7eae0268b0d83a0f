import pytest

from archsearch.architecture import small
from archsearch.search.placement import PlacementError, Slots, find_slots, nth_subset, place

PUBLISHED = find_slots(small().with_pattern("R4AR7AR7AR3"), "R")


def test_slots_are_the_places_of_the_replaced_letter_and_know_their_neighbours():
    slots = find_slots(small().with_pattern("R2AMRA"), "R")
    assert slots == Slots(layers=(0, 1, 4), before_attention=(1, 2), after_attention=())
    assert PUBLISHED.total == 21
    assert (PUBLISHED.before_attention, PUBLISHED.after_attention) == ((3, 10, 17), (4, 11, 18))


@pytest.mark.parametrize(
    ("rule", "count", "slots"),
    [
        ("first", 2, (0, 1)),
        ("last", 2, (19, 20)),
        ("before_attention", 2, (3, 10)),
        ("after_attention", 3, (4, 11, 18)),
        ("spread", 1, (10,)),
        ("spread", 3, (3, 10, 17)),  # floor((i + 0.5) 21 / 3)
        ("spread", 2, (5, 15)),
    ],
)
def test_a_rule_fills_slots(rule, count, slots):
    assert place(rule, count, PUBLISHED) == slots


def test_more_than_stand_before_attention_is_refused_with_the_numbers():
    with pytest.raises(PlacementError, match="before attention has room for 3; got a count of 4"):
        place("before_attention", 4, PUBLISHED)


@pytest.mark.parametrize("count", range(1, 6))
def test_spread_fills_distinct_slots(count):
    slots = Slots(layers=tuple(range(5)), before_attention=(), after_attention=())
    assert len(set(place("spread", count, slots))) == count


def test_free_numbers_reach_every_subset_and_only_subsets():
    subsets = {nth_subset([a, b], 4) for a in range(4) for b in range(3)}
    assert subsets == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}
