"""Training on several data modules in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from archsearch.config import ConfigError, Where, nearest
from archsearch.data.arguments import argument_names, typed_arguments
from archsearch.data.base import TokenData
from archsearch.data.evaluation import EvalBatches, Evaluation
from archsearch.data.interleave import Interleaving
from archsearch.data.stream import Batch


class Mixture(TokenData):
    """Batches of several data modules, each batch of one; every part is evaluated on its own.

    A part's batches come in its own order, none left out: batch i of the mixture is the part's batch number (how many
    of its batches there were before i). Tokens are shared: the vocabulary is that of the part with the largest.
    Metrics are called val/loss/PART at the part's training length and val/loss/PART/LENGTH at each.
    """

    def __init__(
        self,
        parts: dict[str, dict[str, Any]],
        length: int | None = None,
        batch_size: int | None = None,
        eval_lengths: list[int] | None = None,
        seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        """Describe the mixture; a part reads or generates nothing before it is asked for.

        Args:
            parts: By name, a mapping with `class` (Text, Needle, ...), `weight` (the part's share of the batches, in
                relation to the other weights; default 1) and the arguments of that class.
            length: Of the parts that do not say their own. Default: that of their class.
            batch_size: Of the parts that do not say their own. Default: that of their class.
            eval_lengths: Of the parts that do not say their own. Default: those of their class.
            seed: Of the parts that do not say their own. Default: that of `seed_everything` on the command line, or 0.
            num_workers: Processes that make batches; 0 makes them in a thread of the training process, two ahead.
        """
        shared = {"length": length, "batch_size": batch_size, "eval_lengths": eval_lengths, "seed": seed}
        if not isinstance(parts, Mapping) or not parts:
            raise ConfigError(f"data.parts: must name at least one part; got {parts!r}")
        self.weights = tuple(_weight(name, part) for name, part in parts.items())
        self.parts = {name: _build(name, part, shared) for name, part in parts.items()}
        super().__init__(
            length=max(part.length for part in self.parts.values()),
            batch_size=max(part.batch_size for part in self.parts.values()),
            eval_lengths=[],
            seed=seed,
            num_workers=num_workers,
        )
        self.save_hyperparameters(logger=False)

    @property
    def vocab_size(self) -> int:
        return max(part.vocab_size for part in self.parts.values())

    @property
    def tokens_per_batch(self) -> int:
        """The mean over the parts, by weight."""
        tokens = [part.tokens_per_batch for part in self.parts.values()]
        return round(sum(w * n for w, n in zip(self.weights, tokens, strict=True)) / sum(self.weights))

    def prepare_data(self) -> None:
        for name, part in self.parts.items():
            with _named(name):
                part.prepare_data()

    def evaluations(self) -> list[Evaluation]:
        return [replace(e, part=name) for name, part in self.parts.items() for e in part.evaluations()]

    def train_batches(self) -> Callable[[int], Batch]:
        batches = []
        for name, part in self.parts.items():
            with _named(name):
                batches.append(part.train_batches())
        return MixedBatches(Interleaving(self.weights), tuple(batches))

    def eval_set(self, split: str, evaluation: Evaluation) -> EvalBatches:
        with _named(evaluation.part):
            return self.parts[evaluation.part].eval_set(split, replace(evaluation, part=""))


@dataclass(frozen=True)
class MixedBatches:
    """Training batch i: the next one of the part whose turn it is."""

    interleaving: Interleaving
    parts: tuple[Callable[[int], Batch], ...]

    def __call__(self, index: int) -> Batch:
        part, number = self.interleaving.place(index)
        return self.parts[part](number)


def _build(name: str, values: Any, shared: Mapping[str, Any]) -> TokenData:
    import archsearch.data  # here, because it imports this module

    where, names = Where(f"data.parts.{name}"), [x for x in archsearch.data.__all__ if x != "Mixture"]
    if not name or "/" in name:
        raise ConfigError(f"data.parts: a name must not be empty or hold '/': metrics are named by it; got {name!r}")
    if "class" not in values:
        raise (where / "class").error(f"is required; known: {', '.join(names)}")
    if values["class"] not in names:
        unknown = values["class"]
        raise (where / "class").error(f"unknown {unknown!r}{nearest(str(unknown), names)}; known: {', '.join(names)}")
    data: type[TokenData] = getattr(archsearch.data, values["class"])
    own = {key: value for key, value in values.items() if key not in ("class", "weight")}
    taken = {key: x for key, x in shared.items() if x is not None and key in argument_names(data)}
    with _named(name):
        module: TokenData = data(**{**taken, **typed_arguments(data, own, where)})
    return module


def _weight(name: str, values: Any) -> float:
    if not isinstance(values, Mapping):
        raise ConfigError(f"data.parts.{name}: must be a mapping with class, weight and arguments; got {values!r}")
    weight = values.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
        raise ConfigError(f"data.parts.{name}: weight: must be a positive number; got {weight!r}")
    return float(weight)


@contextmanager
def _named(part: str) -> Iterator[None]:
    """Say in an error about `data.FIELD` whose field it is."""
    try:
        yield
    except ConfigError as error:
        message = str(error)
        if message.startswith("data.") and not message.startswith("data.parts."):
            raise ConfigError(f"data.parts.{part}: {message.removeprefix('data.')}") from None
        raise
