"""One row of needle retrieval: needles at random places of the filler, questions with their answers at the end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from archsearch.config import ConfigError
from archsearch.data.corpus import Corpus
from archsearch.data.packing import START, PackedRows
from archsearch.data.stream import IGNORED

KEY, VALUE, END, ASK = 1, 2, 3, 5  # SOH, STX, ETX and ENQ of ASCII
MARKERS = (KEY, VALUE, END, ASK)
SPACE = ord(" ")

Tokens = NDArray[np.int64]


class Row(NamedTuple):
    """`tokens`, `targets` and `depths` `[T]`: in percent, of the needle that a scored position needs, -1 elsewhere."""

    tokens: Tokens
    targets: Tokens
    depths: Tokens


@dataclass(frozen=True)
class RowFormat:
    """How many needles and questions there are in a row, and how long keys and values are."""

    num_queries: int
    num_values: int
    num_distractors: int
    key_length: int
    value_length: int

    @property
    def num_keys(self) -> int:
        """The different keys of a row."""
        return self.num_queries + self.num_distractors

    @property
    def num_answers(self) -> int:
        """The values that are asked for."""
        return self.num_queries * self.num_values

    @property
    def num_needles(self) -> int:
        """The needles of a row, one per value."""
        return self.num_answers + self.num_distractors

    @property
    def needles_length(self) -> int:
        """The tokens of all needles."""
        return self.num_needles * (3 + self.key_length + self.value_length)

    @property
    def questions_length(self) -> int:
        """The tokens of all questions and answers; the last is a target only."""
        return len(self.scored)

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Which targets are scored, from the one of the last token before the questions on: the bytes of answers."""
        answer = [False] + self.value_length * [True]
        return np.array(self.num_queries * [False, *self.key_length * [False], *self.num_values * answer])

    @property
    def shortest(self) -> int:
        """The length of a row without any filler, the start included and the last target not."""
        return self.needles_length + self.questions_length


class Haystack(Protocol):
    """Where filler comes from."""

    def draw(self, rng: np.random.Generator, length: int) -> Tokens:
        """Return `length` bytes without markers."""
        ...


@dataclass(frozen=True)
class Noise:
    """Random printable bytes of ASCII."""

    def draw(self, rng: np.random.Generator, length: int) -> Tokens:
        return rng.integers(32, 127, size=length)


@dataclass(frozen=True)
class Passages:
    """Text from a random place of a split's documents; markers become spaces, starts of documents line ends."""

    corpus: Corpus
    split: str

    def draw(self, rng: np.random.Generator, length: int) -> Tokens:
        last = self._packed.tokens - 1 - length
        if last < 0:
            rule = f"a row with {length} bytes of filler needs a longer text"
            raise ConfigError(f"data.path: {rule}; the {self.split} split has {self._packed.tokens} tokens")
        tokens = self._packed.tokens_from(int(rng.integers(last + 1)), length)
        tokens[tokens == START] = ord("\n")
        tokens[np.isin(tokens, MARKERS)] = SPACE
        return tokens

    @cached_property
    def _packed(self) -> PackedRows:
        return PackedRows(self.corpus, self.corpus.documents(self.split), length=1)


def write_row(rng: np.random.Generator, row_format: RowFormat, haystack: Haystack, length: int) -> Row:
    """Return a row of `length` tokens.

    The places of the needles are uniform over the filler; a depth of 0 is at its start, 99 at its end.
    """
    keys, values = _keys(rng, row_format), _values(rng, row_format)
    filler = haystack.draw(rng, length - row_format.shortest)
    owners = rng.permutation(_owners(row_format))  # the key's number of each needle, from front to back
    places = np.sort(rng.integers(len(filler) + 1, size=len(owners)))
    asked = np.argsort(owners, kind="stable")[: row_format.num_answers]  # needles by key, then from front to back
    questions = _questions(keys[: row_format.num_queries], values[asked])
    tokens = np.concatenate([[START], _insert(_needles(keys[owners], values), places, filler), questions])
    assert len(tokens) == length + 1
    targets, depths = np.full(length, IGNORED), np.full(length, -1)
    scored = length - row_format.questions_length + np.flatnonzero(row_format.scored)
    targets[scored] = tokens[scored + 1]
    depths[scored] = (100 * places[asked] // (len(filler) + 1)).repeat(row_format.value_length)
    return Row(tokens[:-1], targets, depths)


def _owners(row_format: RowFormat) -> Tokens:
    """Return the key's number of each needle: those that are asked for have several values, distractors one."""
    asked = np.repeat(np.arange(row_format.num_queries), row_format.num_values)
    return np.concatenate([asked, np.arange(row_format.num_queries, row_format.num_keys)])


def _keys(rng: np.random.Generator, row_format: RowFormat) -> Tokens:
    """Return different keys of lower-case letters `[keys, key_length]`."""
    numbers = rng.choice(26**row_format.key_length, size=row_format.num_keys, replace=False)
    powers = 26 ** np.arange(row_format.key_length)
    letters: Tokens = ord("a") + numbers[:, None] // powers % 26
    return letters


def _values(rng: np.random.Generator, row_format: RowFormat) -> Tokens:
    return rng.integers(ord("0"), ord("9") + 1, size=(row_format.num_needles, row_format.value_length))


def _needles(keys: Tokens, values: Tokens) -> Tokens:
    """Return the needle of each key and value, `[needles, length of one]`."""
    key, value, end = (np.full((len(keys), 1), marker) for marker in (KEY, VALUE, END))
    return np.concatenate([key, keys, value, values, end], axis=1)


def _questions(keys: Tokens, values: Tokens) -> Tokens:
    """Return the questions of all keys one after the other, each with its share of the values."""
    answers = np.concatenate([np.full((len(values), 1), VALUE), values], axis=1).reshape(len(keys), -1)
    return np.concatenate([np.full((len(keys), 1), ASK), keys, answers], axis=1).flatten()


def _insert(needles: Tokens, places: Tokens, filler: Tokens) -> Tokens:
    """Return the filler with a needle in front of each of its `places`."""
    count, width = needles.shape
    inside = (places + width * np.arange(count))[:, None] + np.arange(width)
    row = np.empty(len(filler) + needles.size, np.int64)
    between = np.ones(len(row), bool)
    between[inside] = False
    row[inside], row[between] = needles, filler
    return row
