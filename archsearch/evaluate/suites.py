"""Our own suites: presets of the data modules, at the lengths asked for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import archsearch.data
from archsearch.config import ConfigError, nearest
from archsearch.data import Needle, Recall, StateTracking, Text
from archsearch.data.corpus import open_corpus
from archsearch.data.groups import multiplication_table
from archsearch.data.needle_row import Haystack, Noise
from archsearch.data.needle_row import Passages as Haystacks
from archsearch.data.packing import PackedRows
from archsearch.data.recall import Shape
from archsearch.data.token_files import ENDINGS
from archsearch.evaluate.rows import Needles, Pairs, Passages, RowSource, Words
from archsearch.evaluate.trained import Trained, tokens_of

TRAINING_ONLY = ("batch_size", "eval_lengths", "eval_size", "eval_tokens", "eval_pairs", "seed", "num_workers")
FLAGS = {
    "length": "--lengths",
    "num_pairs": "--pairs",
    "path": "--data.path",
    "group": "--data.group",
    "haystack": "--data.haystack",
}


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A task: a data module, the arguments that make it this task, the metrics, and its longest default length.

    By default the length is that of training, and `longer` times that.
    """

    data: str
    metrics: tuple[str, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    longer: int = 4


def _needle(num_queries: int = 1, num_values: int = 1, num_distractors: int = 0) -> Preset:
    fixed = {"num_queries": num_queries, "num_values": num_values, "num_distractors": num_distractors}
    return Preset(data="Needle", metrics=("exact", "accuracy"), fixed=fixed)


PRESETS = {
    "state_tracking": Preset(data="StateTracking", metrics=("last_accuracy", "accuracy")),
    "recall": Preset(data="Recall", metrics=("exact", "accuracy")),
    "needle": _needle(),
    "needle_multi": _needle(num_distractors=3),
    "needle_query": _needle(num_queries=4),
    "needle_value": _needle(num_values=4),
    "perplexity": Preset(data="Text", metrics=("loss", "perplexity"), longer=1),
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a user asks for; what is None or empty is that of the checkpoint."""

    lengths: tuple[int, ...] = ()
    pairs: tuple[int, ...] = ()
    rows: int = 256
    seed: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked = [("--lengths", self.lengths, 1), ("--pairs", self.pairs, 1), ("--rows", (self.rows,), 1)]
        for name, values, low in [*checked, ("--seed", (self.seed,), 0)]:
            if min(values, default=low) < low:
                raise ConfigError(f"{name}: must be at least {low}; got {min(values)}")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One set of rows of a task: `variant` is what differs besides the length, `rows` how many there are of it."""

    task: str
    length: int
    rows: int
    source: RowSource
    metrics: tuple[str, ...]
    variant: str = ""


def check_names(names: list[str], *, others: tuple[str, ...] = ()) -> None:
    """Raise ConfigError where a name is no task."""
    for name in names:
        if name not in PRESETS:
            known = [*PRESETS, *others]
            raise ConfigError(f"--tasks: unknown {name!r}{nearest(name, known)}; known: {', '.join(known)}")


def cases(task: str, trained: Trained, asked: Asked) -> list[Case]:
    """Return what a task consists of; rows are made when they are asked for. Raises ConfigError."""
    preset = PRESETS[task]
    with _named(task):
        arguments = _arguments(preset, trained, asked)
        trained.check(tokens_of(preset.data, arguments))
        return [
            Case(task=task, length=length, rows=rows, source=source, metrics=preset.metrics, variant=variant)
            for length in _lengths(preset, arguments, asked)
            for variant, rows, source in _sources(preset, {**arguments, "length": length}, trained, asked)
        ]


def _arguments(preset: Preset, trained: Trained, asked: Asked) -> dict[str, Any]:
    """Return the arguments of the data module: its defaults, the checkpoint's, the preset's, the user's."""
    parameters = inspect.signature(getattr(archsearch.data, preset.data)).parameters
    defaults = {
        name: parameter.default
        for name, parameter in parameters.items()
        if name not in TRAINING_ONLY and not name.startswith("curriculum_")
    }
    own = trained.arguments(preset.data)
    if own is None:
        own = _haystack_of_text(trained)
    layers = (defaults, own, preset.fixed, asked.data)
    return {key: value for layer in layers for key, value in layer.items() if key in defaults}


def _haystack_of_text(trained: Trained) -> dict[str, Any]:
    """Return where the text of a model of bytes is, in which needles can lie, too; token files are none."""
    text = trained.arguments("Text") or {}
    if str(text.get("path")).endswith(ENDINGS):
        return {}
    return {key: value for key, value in text.items() if key in ("path", "glob", "cache_dir")}


def _lengths(preset: Preset, arguments: Mapping[str, Any], asked: Asked) -> tuple[int, ...]:
    length = arguments["length"]
    return tuple(dict.fromkeys(asked.lengths or (length, preset.longer * length)))


def _sources(
    preset: Preset, arguments: Mapping[str, Any], trained: Trained, asked: Asked
) -> Iterator[tuple[str, int, RowSource]]:
    """Yield variant, number of rows and source. Raises ConfigError by the rules of the data module."""
    if preset.data == "StateTracking":
        words = StateTracking(**arguments, eval_lengths=[])
        yield "", asked.rows, Words(multiplication_table(words.group), words.length, asked.seed)
    elif preset.data == "Recall":
        for shape, recall in _recalls(arguments, asked):
            yield f"{shape.num_pairs}_pairs", asked.rows, Pairs(recall.sampler, shape, asked.seed)
    elif preset.data == "Needle":
        needle = Needle(**arguments, eval_lengths=[])
        yield "", asked.rows, Needles(needle.row_format, _haystack(needle), needle.length, asked.seed)
    else:
        yield _passages(arguments, trained, asked)


def _recalls(arguments: Mapping[str, Any], asked: Asked) -> Iterator[tuple[Shape, Recall]]:
    """Yield the numbers of pairs asked for, else that of training and four times that where it fits."""
    own = arguments["num_pairs"]
    for num_pairs in dict.fromkeys(asked.pairs or (own, 4 * own)):
        queries = min(arguments["num_queries"] or num_pairs, num_pairs)
        shape = Shape(arguments["length"], num_pairs, queries)
        is_optional = not asked.pairs and num_pairs > own
        if is_optional and (shape.shortest > shape.length or num_pairs > arguments["vocab_size"] // 2):
            continue
        given = {**arguments, "num_pairs": num_pairs, "num_queries": queries}
        yield shape, Recall(**given, eval_lengths=[], eval_pairs=[])


def _haystack(needle: Needle) -> Haystack:
    if needle.haystack == "noise":
        return Noise()
    haystack = Haystacks(open_corpus(needle.path, needle.glob, needle.cache_dir), "test")
    haystack.draw(np.random.default_rng(0), needle.length - needle.row_format.shortest)  # raises where it is too short
    return haystack


def _passages(arguments: Mapping[str, Any], trained: Trained, asked: Asked) -> tuple[str, int, RowSource]:
    """Return the test documents of what the model was trained on, or all documents of other text."""
    text, own = Text(**arguments, eval_lengths=[]), trained.arguments("Text")
    is_own = "path" not in asked.data or (own is not None and _resolve(own) == _resolve(asked.data))
    documents = text.corpus.documents("test") if is_own else np.arange(len(text.corpus.lengths))
    packed = PackedRows(text.corpus, documents, text.length, asked.seed)
    if not packed.rows:
        rule = f"a row of length {text.length} needs {text.length + 1} tokens"
        source = f"the test split of {text.path or 'the standard library'}" if is_own else text.path
        raise ConfigError(f"data.path: {rule}; {source} has {packed.tokens}")
    rows = Passages(packed, text.document_mask, text.eval_groups(text.length))
    return "test" if is_own else "all", min(asked.rows, packed.rows), rows


def _resolve(arguments: Mapping[str, Any]) -> Path | None:
    path = arguments.get("path")
    return None if path is None else Path(path).expanduser().resolve()


@contextmanager
def _named(task: str) -> Iterator[None]:
    """Say in an error whose it is, and which option a field of the data module is set by."""
    try:
        yield
    except ConfigError as error:
        name, _, rule = str(error).removeprefix("data.").partition(": ")
        message = f"{FLAGS[name]}: {rule}" if str(error).startswith("data.") and name in FLAGS else str(error)
        raise ConfigError(f"{task}: {message}") from None
