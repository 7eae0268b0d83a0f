"""Layer patterns as text: `R6MA` is `RRRRRRMA`, `(R6MA)3` is 24 layers.

pattern := item+        item := (LETTER | "(" pattern ")") COUNT?        COUNT := positive integer
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

MAX_LAYERS = 4096


class PatternError(ValueError):
    """A pattern that cannot be read; the message points at the place in the text as typed, counted from 1."""

    def __init__(self, rule: str, text: str, position: int) -> None:
        super().__init__(f"pattern: {rule}\n  {text}\n  {' ' * (position - 1)}^")


def parse(text: str, letters: Collection[str] | None = None) -> str:
    """Return the expanded pattern, one letter per layer; spaces and `_` are ignored.

    `letters` are those that the architecture binds; None allows every ASCII letter. Raises PatternError.
    """
    reader = _Reader(text, letters)
    expanded = reader.items()
    if reader.position < len(text):
        raise PatternError(f"')' without '(' at position {reader.position + 1}", text, reader.position + 1)
    if not expanded:
        raise PatternError("must hold at least one layer; got an empty pattern", text, 1)
    return expanded


def repeat_to(expanded: str, num_layers: int | None) -> str:
    """Return the pattern repeated to `num_layers`; None keeps its own length. Raises PatternError."""
    if num_layers is None:
        return expanded
    if num_layers < 1 or num_layers % len(expanded) != 0:
        rule = f"its {len(expanded)} layers must divide num_layers; got num_layers={num_layers}"
        raise PatternError(rule, expanded, 1)
    if num_layers > MAX_LAYERS:
        raise PatternError(f"at most {MAX_LAYERS} layers; got num_layers={num_layers}", expanded, 1)
    return expanded * (num_layers // len(expanded))


def compact(expanded: str) -> str:
    """Return the shortest spelling; ties: fewest parentheses, then first in ASCII order."""
    return _compact(expanded)


class _Reader:
    def __init__(self, text: str, letters: Collection[str] | None) -> None:
        self.text, self.letters, self.position = text, letters, 0

    def items(self) -> str:
        expanded = ""
        while (char := self.peek()) and char != ")":
            expanded += self.item(char, len(expanded))
        return expanded

    def item(self, char: str, before: int) -> str:
        start = self.position
        if char == "(":
            body = self.group(start)
        elif char.isascii() and char.isalpha():
            body = self.letter(char)
        else:
            hint = "a count must follow a letter or a group" if char.isdigit() else "only letters, counts and ()"
            raise self.error(f"unexpected {char!r} at position {start + 1}; {hint}", start)
        count = self.count()
        if before + len(body) * count > MAX_LAYERS:
            raise self.error(f"at most {MAX_LAYERS} layers; exceeded at position {start + 1}", start)
        return body * count

    def group(self, start: int) -> str:
        self.position += 1
        body = self.items()
        if self.peek() != ")":
            raise self.error(f"'(' at position {start + 1} is never closed", start)
        if not body:
            raise self.error(f"empty group at position {start + 1}", start)
        self.position += 1
        return body

    def letter(self, char: str) -> str:
        if self.letters is not None and char not in self.letters:
            known = ", ".join(sorted(self.letters))
            rule = f"unknown letter {char!r} at position {self.position + 1}; letters of this architecture: {known}"
            raise self.error(rule, self.position)
        self.position += 1
        return char

    def count(self) -> int:
        start, digits = self.position, ""
        while (char := self.peek()) and char.isascii() and char.isdigit():
            start = start if digits else self.position
            digits += char
            self.position += 1
        if not digits:
            return 1
        if len(digits) > 9 or int(digits) == 0:
            raise self.error(f"a count must be a positive integer of at most 9 digits; got {digits}", start)
        return int(digits)

    def peek(self) -> str:
        while self.position < len(self.text) and self.text[self.position] in " _":
            self.position += 1
        return self.text[self.position] if self.position < len(self.text) else ""

    def error(self, rule: str, position: int) -> PatternError:
        return PatternError(rule, self.text, position + 1)


@cache
def _compact(pattern: str) -> str:
    """Build the best spelling of every suffix, from the last: a first item, then the best of the rest."""
    length = len(pattern)
    runs = _run_lengths(pattern)
    groups = [_groups(pattern, start, runs[start]) for start in range(length)]
    best = [""] * (length + 1)
    for start in range(length - 1, -1, -1):
        run = runs[start]
        # Runs that stop short only pay off where a group begins; a following run of the same letter would merge.
        stops = [stop for stop in range(start + 1, start + run + 1) if stop == start + run or groups[stop]]
        spellings = [_times(pattern[start], stop - start) + best[stop] for stop in stops]
        for period, repeats in groups[start]:
            body = f"({_compact(pattern[start : start + period])})"
            spellings += [f"{body}{count}{best[start + period * count]}" for count in range(2, repeats + 1)]
        best[start] = min(spellings, key=lambda spelling: (len(spelling), spelling.count("("), spelling))
    return best[0]


def _groups(pattern: str, start: int, run: int) -> list[tuple[int, int]]:
    """Return (period, repeats) of everything longer than a run that is repeated from `start` on."""
    found = []
    for period in range(run + 1, (len(pattern) - start) // 2 + 1):
        body = pattern[start : start + period]
        if pattern.startswith(body, start + period) and (body + body).find(body, 1) == period:
            repeats = 2
            while pattern.startswith(body, start + period * repeats):
                repeats += 1
            found.append((period, repeats))
    return found


def _run_lengths(pattern: str) -> list[int]:
    """Return for every place how often its letter follows without a break, itself included."""
    runs = [1] * len(pattern)
    for start in range(len(pattern) - 2, -1, -1):
        if pattern[start] == pattern[start + 1]:
            runs[start] = runs[start + 1] + 1
    return runs


def _times(letter: str, count: int) -> str:
    return letter if count == 1 else f"{letter}{count}"
