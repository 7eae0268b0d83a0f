"""Spaces with several inserted letters, base patterns and backbones: one that is fixed, and any."""

import copy

from hypothesis import strategies as st

from archsearch.config import Where
from archsearch.search.placement import PLACEMENTS
from archsearch.search.space import parse_space
from tests.search.conftest import VALUES

VARIED = {
    "with": ["M", "N"],
    "backbone": ["R", "S"],
    "patterns": ["R2AR2A", "R3AR"],
    "count": {"M": {"low": 0, "high": 2}, "N": {"low": 0, "high": 3}},
    "placement": {"M": ["first", "free"], "N": ["before_attention", "last", "free"]},
    "mixers": {
        "M": {"key_head_dim": [4, 8], "num_heads": {"match": "parameters", "tolerance": 0.2}},
        "N": {"head_dim": [4, 8]},
    },
}
MIXERS = {
    "S": {"type": "mamba2", "num_heads": 8, "head_dim": 4, "state_dim": 8},
    "N": {"type": "rnn", "num_heads": 4, "head_dim": 4},
}


def varied(architecture=(), **changes):
    """Return the fixed space with other keys in its `architecture` and its `space` block; `...` deletes one."""
    values, other = copy.deepcopy(VALUES), dict(architecture)
    mixers = {**values["architecture"]["mixers"], **MIXERS, **other.pop("mixers", {})}
    values["architecture"] |= {**other, "mixers": _written(mixers)}
    values["space"] = _written({"replace": "R", **copy.deepcopy(VARIED), **changes})
    return parse_space(values, Where("space.yaml"))


def _written(values):
    return {key: value for key, value in values.items() if value is not ...}


@st.composite
def spaces(draw, letters=("M", "N", "U"), placements=PLACEMENTS, forbid=True):
    """Draw a small space."""
    inserted = draw(st.lists(st.sampled_from(letters), min_size=1, max_size=2, unique=True))
    others = draw(st.lists(st.sampled_from(["RA", "R3A", "AR2"]), max_size=2, unique=True))
    counts, placed, entries = {}, {}, []
    for letter in inserted:
        low = draw(st.integers(0, 1))
        counts[letter] = {"low": low, "high": draw(st.integers(low, 2))}
        placed[letter] = draw(st.lists(st.sampled_from(placements), min_size=1, max_size=3, unique=True))
        name = f"{letter}." if len(inserted) > 1 else ""
        if forbid and draw(st.booleans()):
            entries.append({f"{name}count": counts[letter]["high"] or 0, f"{name}placement": placed[letter][-1]})
    return varied(
        **{"with": inserted},
        patterns=["R2AR2A", *others],
        backbone=draw(st.sampled_from([["R"], ["R", "S"]])),
        count=counts if len(inserted) > 1 else counts[inserted[0]],
        placement=placed if len(inserted) > 1 else placed[inserted[0]],
        mixers={letter: VARIED["mixers"][letter] for letter in inserted if letter in VARIED["mixers"]},
        forbid=[entry for entry in entries if all(entry.values())],
    )
