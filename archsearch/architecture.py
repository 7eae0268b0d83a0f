"""The one description of a model that is searched, built, measured, trained and exported."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from archsearch import mlp_registry, registry
from archsearch.config import ConfigError, Where, fill, load_yaml, save_yaml
from archsearch.mlp_registry import MLPOptions
from archsearch.pattern import PatternError, compact, parse, repeat_to
from archsearch.registry import MixerOptions

FORMAT = 1
DEFAULT_MLP = "swiglu"
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class BoundMixer:
    """What a letter stands for: a registered mixer's name and its options."""

    type: str
    options: MixerOptions


@dataclass(frozen=True, kw_only=True)
class BoundMLP:
    """The feed-forward half of a block: a registered MLP's name and its options."""

    type: str
    options: MLPOptions

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a YAML file holds them."""
        return {"type": self.type, **dataclasses.asdict(self.options)}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One block of the model, counted from 0."""

    index: int
    letter: str
    type: str
    options: MixerOptions
    mlp: BoundMLP


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Sizes, the expanded pattern (one letter per layer) and what its letters stand for.

    Every block has the `mlp`, but those of the letters in `mlps` their own. `vocab_size` None leaves the vocabulary to
    the data; the embedding and the head then count as nothing.
    """

    hidden_size: int
    vocab_size: int | None
    pattern: str
    mixers: Mapping[str, BoundMixer]
    mlp: BoundMLP
    mlps: Mapping[str, BoundMLP] = field(default_factory=dict)
    norm_eps: float = 1e-5
    tie_embeddings: bool = False
    init_std: float = 0.02

    @classmethod
    def from_dict(cls, values: object, where: Where) -> Architecture:
        """Read plain values, as a YAML file holds them. Raises ConfigError."""
        written = fill(_Written, values, where)
        if written.format != FORMAT:
            raise (where / "format").error(f"must be {FORMAT}; got {written.format}")
        for name in ("hidden_size", "vocab_size", "norm_eps", "init_std"):
            if (value := getattr(written, name)) is not None and not 0 < value < math.inf:
                raise (where / name).error(f"must be positive{' and finite' * (value > 0)}; got {value}")
        bound = {letter: _bind(values, where / f"mixers.{letter}") for letter, values in written.mixers.items()}
        architecture = cls(
            hidden_size=written.hidden_size,
            vocab_size=written.vocab_size,
            pattern="",
            mixers=bound,
            mlp=_bind_mlp(written.mlp, written.hidden_size, where / "mlp"),
            mlps={
                letter: _bind_mlp(values, written.hidden_size, where / f"mlps.{letter}")
                for letter, values in written.mlps.items()
            },
            norm_eps=written.norm_eps,
            tie_embeddings=written.tie_embeddings,
            init_std=written.init_std,
        ).with_pattern(written.pattern, written.num_layers, where / "pattern")
        architecture.check(where)
        return architecture

    @classmethod
    def load(cls, path: str | Path) -> Architecture:
        """Read an architecture's file, or the architecture inside a search space or a training config."""
        values, where = load_yaml(path), Where(str(path))
        for key in ("model", "architecture"):
            if isinstance(inner := values.get(key), Mapping):
                values, where = dict(inner), where / key
        return cls.from_dict(values, where)

    def with_pattern(self, text: str, num_layers: int | None = None, where: Where | None = None) -> Architecture:
        """Return this architecture with another pattern; letters that it does not bind get their defaults.

        Raises PatternError, or ConfigError in front of it where a place is given.
        """
        defaults = registry.default_letters()
        try:
            pattern = repeat_to(parse(text, {*self.mixers, *defaults}), num_layers)
        except PatternError as error:
            if where is None:
                raise
            raise where.error(str(error).removeprefix("pattern: ")) from None
        unbound = sorted(set(pattern) - set(self.mixers))
        added = {x: BoundMixer(type=defaults[x].name, options=defaults[x].options()) for x in unbound}
        return dataclasses.replace(self, pattern=pattern, mixers={**self.mixers, **added})

    def check(self, where: Where) -> None:
        """Raise ConfigError, naming the letter, where a mixer's options cannot work at this hidden size.

        The same where a letter of `mlps` stands for no mixer.
        """
        for letter, mixer in self.mixers.items():
            try:
                mixer.options.check(self.hidden_size)
            except ValueError as error:
                raise (where / f"mixers.{letter}").error(f"{mixer.type}: {error}") from None
        for letter in self.mlps:
            if letter not in self.mixers:
                known = ", ".join(sorted(self.mixers))
                raise (where / f"mlps.{letter}").error(
                    f"unknown letter {letter!r}; letters of this architecture: {known}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that `from_dict` reads back; what does not occur is left out."""
        own_mlps = {x: mlp.to_dict() for x, mlp in sorted(self.mlps.items()) if x in self.pattern and mlp != self.mlp}
        return {
            "format": FORMAT,
            **self._sizes(),
            "pattern": compact(self.pattern),
            "mixers": {
                letter: {"type": mixer.type, **dataclasses.asdict(mixer.options)}
                for letter, mixer in sorted(self.mixers.items())
                if letter in self.pattern
            },
            "mlp": self.mlp.to_dict(),
            **({"mlps": own_mlps} if own_mlps else {}),
        }

    def _sizes(self) -> dict[str, Any]:
        names = ("hidden_size", "vocab_size", "norm_eps", "tie_embeddings", "init_std")
        return {name: getattr(self, name) for name in names}

    def save(self, path: str | Path) -> None:
        """Write the YAML file that `load` reads."""
        save_yaml(path, self.to_dict())

    @property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(
            Layer(
                index=i,
                letter=letter,
                type=self.mixers[letter].type,
                options=self.mixers[letter].options,
                mlp=self.mlps.get(letter, self.mlp),
            )
            for i, letter in enumerate(self.pattern)
        )

    @property
    def id(self) -> str:
        """A hash of the model: equal models have one id, however they are spelt."""
        letters = {x: self.mixers[x] for x in set(self.pattern)}
        mixers = {x: [mixer.type, _plain(mixer.options)] for x, mixer in letters.items()}
        blocks = {x: self.mlps.get(x, self.mlp) for x in letters}
        own = {x: {"type": mlp.type, **_plain(mlp.options)} for x, mlp in blocks.items()}
        mlps = [own[x] for x in self.pattern]
        mlp = mlps[0] if all(other == mlps[0] for other in own.values()) else mlps
        layers = [mixers[x] for x in self.pattern]
        model = {**self._sizes(), "format": None, "pattern": None, "mixers": layers, "mlp": mlp}
        return hashlib.sha256(json.dumps(model, sort_keys=True).encode()).hexdigest()[:12]

    def num_parameters(self, embedding: bool = True, head: bool = False) -> int:
        """Return the trainable parameters; published sizes count the input embedding and not the output head."""
        vocabulary = (self.vocab_size or 0) * self.hidden_size
        count = sum(self.layer_parameters(layer) for layer in self.layers) + self.hidden_size
        return count + embedding * vocabulary + (head and not self.tie_embeddings) * vocabulary

    def active_parameters(self, embedding: bool = True, head: bool = False) -> int:
        """Return the parameters that take part in one token's output, counted as in `num_parameters`."""
        size = self.hidden_size
        idle = [x.mlp.options.num_parameters(size) - x.mlp.options.active_parameters(size) for x in self.layers]
        return self.num_parameters(embedding, head) - sum(idle)

    def layer_parameters(self, layer: Layer) -> int:
        """Return the parameters of one block: mixer, MLP and the norm in front of each."""
        mixer = layer.options.num_parameters(self.hidden_size)
        return mixer + layer.mlp.options.num_parameters(self.hidden_size) + 2 * self.hidden_size

    @property
    def state_size(self) -> int:
        """Elements of the recurrent state of one sequence over all layers (convolution taps not counted)."""
        return sum(layer.options.state_size(self.hidden_size) for layer in self.layers)

    def cache_bytes(self, length: int, dtype: str = "bfloat16") -> int:
        """Return what decoding keeps of one sequence after `length` tokens: recurrent state, conv taps, keys, values.

        Recurrent states are kept in at least float32, everything else in `dtype`.
        """
        cached = sum(layer.options.cache_size(self.hidden_size, length) for layer in self.layers)
        return self.state_size * max(BYTES[dtype], 4) + cached * BYTES[dtype]

    def flops_per_token(self, length: int) -> float:
        """Return 2 x the multiply-adds of a forward pass's matrix products, per token, in sequences of `length`.

        Causal attention counts at its mean length, the embedding 0; the head is counted, and of experts those that a
        token passes. Training is 3 x.
        """
        mixers = sum(layer.options.flops_per_token(self.hidden_size, length) for layer in self.layers)
        mlps = sum(layer.mlp.options.flops_per_token(self.hidden_size) for layer in self.layers)
        return mixers + mlps + 2 * (self.vocab_size or 0) * self.hidden_size


def _plain(options: MixerOptions | MLPOptions) -> dict[str, Any]:
    """Return options as a mapping that must not be changed: a search asks for the ids of thousands of candidates."""
    try:
        return _plain_once(options)
    except TypeError:  # an option that cannot be hashed, such as a list
        return dataclasses.asdict(options)


@lru_cache(maxsize=4096)
def _plain_once(options: MixerOptions | MLPOptions) -> dict[str, Any]:
    return dataclasses.asdict(options)


@cache
def small() -> Architecture:
    """Return the architecture behind a bare pattern: hidden size 128, every letter at its defaults."""
    values = {"hidden_size": 128, "pattern": "R"}
    return Architecture.from_dict(values, Where("small"))


def resolve(text: str, like: str | None = None) -> Architecture:
    """Return what a command line names: an existing FILE, or a PATTERN at the sizes of `like` (default: `small`)."""
    if Path(text).is_file():
        return Architecture.load(text)
    if text.endswith((".yaml", ".yml")) or "/" in text:
        raise ConfigError(f"{text}: no such file")
    return (Architecture.load(like) if like else small()).with_pattern(text)


@dataclass(frozen=True, kw_only=True)
class _Written:
    """An architecture as its YAML spells it."""

    format: int = FORMAT
    hidden_size: int
    vocab_size: int | None = None
    pattern: str
    num_layers: int | None = None
    mixers: dict[str, Any] = field(default_factory=dict)
    mlp: dict[str, Any] = field(default_factory=dict)
    mlps: dict[str, Any] = field(default_factory=dict)
    norm_eps: float = 1e-5
    tie_embeddings: bool = False
    init_std: float = 0.02


def _bind(values: Any, where: Where) -> BoundMixer:
    letter = where.key.rsplit(".", 1)[-1]
    if len(letter) != 1 or not (letter.isascii() and letter.isalpha()):
        raise where.error(f"a mixer is bound to one ASCII letter; got {letter!r}")
    if not isinstance(values, Mapping) or "type" not in values:
        raise where.error(f"must be a mapping with a type and its options; got {values!r}")
    try:
        plugin = registry.get(str(values["type"]))
    except ConfigError as error:
        raise (where / "type").error(str(error)) from None
    options = fill(plugin.options, {key: value for key, value in values.items() if key != "type"}, where)
    return BoundMixer(type=plugin.name, options=options)


def _bind_mlp(values: Any, hidden_size: int, where: Where) -> BoundMLP:
    """Fill an MLP; its type is swiglu where none is given."""
    if not isinstance(values, Mapping):
        raise where.error(f"must be a mapping with a type and its options; got {values!r}")
    try:
        plugin = mlp_registry.get(str(values.get("type", DEFAULT_MLP)))
    except ConfigError as error:
        raise (where / "type").error(str(error)) from None
    given = {key: value for key, value in values.items() if key != "type"}
    options = fill(plugin.options, {**plugin.options.defaults(hidden_size), **given}, where)
    try:
        options.check(hidden_size)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None
    return BoundMLP(type=plugin.name, options=options)
