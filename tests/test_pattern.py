import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archsearch.pattern import PatternError, compact, parse, repeat_to


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("RRRRRRMA", "RRRRRRMA"),
        ("R6MA", "RRRRRRMA"),
        ("(R2A)3", "RRARRARRA"),
        ("((RM)2A)2", "RMRMARMRMA"),
        (" R_2  (M a)2 ", "RRMaMa"),
        ("R3MA(R6MA)2R3", "RRRMARRRRRRMARRRRRRMARRR"),
    ],
)
def test_patterns_expand(text, expanded):
    assert parse(text) == expanded


@pytest.mark.parametrize(
    ("text", "rule", "position"),
    [
        ("RRRXRRMA", "unknown letter 'X' at position 4; letters of this architecture: A, M, R", 4),
        ("R 2 x", "unknown letter 'x' at position 5", 5),
        ("", "got an empty pattern", 1),
        (" _ ", "got an empty pattern", 1),
        ("3R", "unexpected '3' at position 1", 1),
        ("R-M", "unexpected '-' at position 2", 2),
        ("Ré", "unexpected 'é' at position 2", 2),
        ("R0", "a count must be a positive integer", 2),
        ("R²", "unexpected '²' at position 2", 2),
        ("(RM", "'(' at position 1 is never closed", 1),
        ("RM)", "')' without '(' at position 3", 3),
        ("R()", "empty group at position 2", 2),
        ("R4097", "at most 4096 layers", 1),
        ("((R64)64)2", "at most 4096 layers", 1),
        ("R99999999999999", "at most 9 digits", 2),
    ],
)
def test_errors_point_at_the_place_as_typed(text, rule, position):
    with pytest.raises(PatternError) as error:
        parse(text, "RMA")
    message, typed, caret = str(error.value).split("\n")
    assert rule in message
    assert typed == f"  {text}"
    assert caret == f"  {' ' * (position - 1)}^"


@pytest.mark.parametrize(
    ("expanded", "shortest"),
    [("R", "R"), ("RR", "R2"), ("RRRRRRMA", "R6MA"), ("ABAB", "ABAB"), ("RRARRARRA", "(R2A)3"), ("A" * 4096, "A4096")],
)
def test_compact_is_the_shortest_spelling(expanded, shortest):
    assert compact(expanded) == shortest


@given(st.text("RMA", min_size=1, max_size=40))
def test_compact_reads_back(expanded):
    assert parse(compact(expanded)) == expanded
    assert len(compact(expanded)) <= len(expanded)


@settings(deadline=None)
@given(st.integers(1, 3), st.text("RM", min_size=1, max_size=5), st.integers(1, 4))
def test_compact_depends_on_the_layers_only(outer, body, inner):
    assert compact(parse(f"({body}{inner}){outer}")) == compact(parse(f"({body}{inner})" * outer))


def test_compact_agrees_with_an_exhaustive_search():
    for length in range(1, 8):
        for letters in itertools.product("AB", repeat=length):
            expanded = "".join(letters)
            assert compact(expanded) == _every_spelling(expanded)[0]


def test_a_pattern_is_repeated_to_fill_the_depth():
    assert repeat_to("RMA", 6) == "RMARMA"
    assert repeat_to("RMA", None) == "RMA"
    with pytest.raises(PatternError, match="its 3 layers must divide num_layers; got num_layers=7"):
        repeat_to("RMA", 7)


def _every_spelling(expanded):
    spellings = {expanded} if len(expanded) == 1 else set()
    for count in range(2, len(expanded) + 1):
        body = expanded[: len(expanded) // count]
        if body * count == expanded:
            spellings |= {f"{body}{count}"} if len(body) == 1 else {f"({x}){count}" for x in _every_spelling(body)}
    for cut in range(1, len(expanded)):
        spellings |= {
            left + right
            for left in _every_spelling(expanded[:cut])[:3]
            for right in _every_spelling(expanded[cut:])[:3]
        }
    return sorted(spellings, key=lambda text: (len(text), text.count("("), text))
