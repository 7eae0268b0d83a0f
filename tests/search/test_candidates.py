import itertools

from archsearch.search.candidates import (
    RandomSuggest,
    build_given,
    given,
    given_decisions,
    sample,
)
from archsearch.search.choices import Match, solve
from archsearch.search.enumeration import enumerate_candidates
from archsearch.search.space import load_space


class Decide:
    """Answer by name."""

    def __init__(self, **decisions):
        self.decisions = decisions
        self.asked = []

    def integer(self, name, low, high, step=1):
        self.asked.append(name)
        assert self.decisions[name] in range(low, high + 1, step)
        return self.decisions[name]

    def choice(self, name, values):
        self.asked.append(name)
        assert self.decisions[name] in values
        return self.decisions[name]


SHAPE = {"M.key_head_dim": 8, "M.value_head_dim": 4}


def test_count_placement_and_shape_make_an_architecture(parse):
    candidate = sample(parse(), Decide(count=2, placement="before_attention", **SHAPE))
    assert candidate.architecture.pattern == "RMARMA"
    assert (candidate.slots, candidate.illegal) == ((1, 3), None)
    options = candidate.options["M"]
    assert (options.num_heads, options.key_head_dim, options.conv_width) == (4, 8, None)


def test_nothing_more_is_asked_without_a_filled_slot(parse):
    suggest = Decide(count=0)
    candidate = sample(parse(), suggest)
    assert suggest.asked == ["count"]
    assert candidate.key == parse().base.id


def test_placement_is_not_asked_where_all_slots_are_filled(parse):
    suggest = Decide(count=4, **SHAPE)
    candidate = sample(parse({"space.count.high": 4}), suggest)
    assert suggest.asked == ["count", *SHAPE]
    assert candidate.architecture.pattern == "MMAMMA"


def test_two_ways_to_the_same_subset_are_one_candidate(parse):
    first = sample(parse(), Decide(count=1, placement="first", **SHAPE))
    free = sample(parse(), Decide(count=1, placement="free", slot_0=0, **SHAPE))
    assert first.key == free.key


def test_a_shape_outside_the_tolerance_is_illegal_with_the_figures(parse):
    candidate = sample(parse(), Decide(count=1, placement="first", **{**SHAPE, "M.value_head_dim": 24}))
    assert candidate.illegal == (
        "num_heads for key_head_dim 8, value_head_dim 24: the nearest is 1 with 2,050 parameters against 1,202 of the "
        "replaced mixer (+70.5%; tolerance 20.0%)"
    )


def test_what_a_looser_tolerance_allows_is_another_candidate_than_what_was_illegal(parse):
    decisions = Decide(count=1, placement="first", **{**SHAPE, "M.value_head_dim": 24})
    strict, loose = (
        sample(parse({"space.mixers.M.num_heads.tolerance": tolerance}), decisions) for tolerance in (0.2, 0.9)
    )
    assert strict.architecture == loose.architecture
    assert strict.key == f"illegal {loose.key}"


def test_heads_that_share_the_hidden_size_match_no_size(parse):
    heads = {"num_heads": {"match": "parameters", "tolerance": 0.1}}
    space = parse({"architecture.mixers.B": {"type": "attention"}, "space.with": "B", "space.mixers": {"B": heads}})
    illegal = "num_heads for this shape: 2 have no more parameters than 1 (1,024), against 1,202 of the replaced mixer"
    assert sample(space, Decide(count=1, placement="first")).illegal == illegal


def test_a_shape_that_the_mixer_refuses_is_illegal_in_its_words(parse):
    space = parse({"space.mixers.M": {"key_head_dim": 8, "num_key_heads": [1, 3]}})
    candidate = sample(space, Decide(count=1, placement="first", **{"M.num_key_heads": 3}))
    assert "each head count must divide num_heads" in candidate.illegal


def test_a_count_without_room_is_illegal(parse):
    candidate = sample(parse(), Decide(count=3, placement="before_attention"))
    assert candidate.illegal == "before attention has room for 2; got a count of 3"
    assert candidate.architecture is None


def test_the_nearest_head_count_is_found_exactly():
    match = Match(tolerance=0.5)
    for target, step, offset in itertools.product((1, 7, 100, 1001), (3, 10), (0, 5)):
        best, _ = solve(match, lambda n, step=step, offset=offset: step * n + offset, target)
        assert best == min(range(1, 400), key=lambda n: (abs(step * n + offset - target), n))


def test_given_are_the_base_one_first_and_all_before_attention_as_written(parse):
    space = parse({"architecture.mixers.M.num_heads": 2})
    built = {found.name: build_given(space, found) for found in given(space)}
    patterns = {name: candidate.architecture.pattern for name, candidate in built.items()}
    assert patterns == {"base": "RRARRA", "first": "MRARRA", "before_attention": "RMARMA"}
    assert built["first"].options["M"].num_heads == 2
    assert all(candidate.illegal is None for candidate in built.values())


def test_a_sampler_learns_from_the_decisions_of_given_ones_that_lie_in_the_space(parse):
    space = parse({"architecture.mixers.M.key_head_dim": 5})
    _, first, _ = given(space)
    assert given_decisions(space, first) == {"count": 1, "placement": "first", "M.value_head_dim": 4}


def test_a_small_space_is_enumerated_and_random_candidates_are_all_among_it(parse):
    space = parse()
    everything = {candidate.key for candidate in enumerate_candidates(space, 10_000)}
    # base; 4 shapes in each subset of 1 to 3 of 4 slots; one count that has no room before attention
    assert len(everything) == 1 + 4 * (4 + 6 + 4) + 1
    suggest = RandomSuggest(0)
    assert {sample(space, suggest).key for _ in range(300)} <= everything
    assert enumerate_candidates(space, 20) is None


def test_the_published_shape_has_81_heads_at_equal_parameters():
    space = load_space("search_spaces/hybrid_410m.yaml")
    candidate = sample(
        space, Decide(count=3, placement="before_attention", **{"M.key_head_dim": 64, "M.value_head_dim": 16})
    )
    assert candidate.options["M"].num_heads == 81
    assert candidate.architecture.pattern == "RRRMARRR" * 3
