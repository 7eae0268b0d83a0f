"""An lm-engine config back into an architecture; what ours cannot say is an error with its key and value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from archsearch import mlp_registry, registry
from archsearch.architecture import Architecture, BoundMixer, BoundMLP
from archsearch.config import ConfigError, Where
from archsearch.export.letters import Kind, build, find_letters
from archsearch.export.lm_engine.blocks import MIXERS, MLPS, Model
from archsearch.export.lm_engine.reader import Reader

NOT_THE_MODEL = (
    "model_type",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "max_position_embeddings",
    "use_cache",
    "architectures",
    "auto_map",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "name_or_path",
    "_name_or_path",
    "is_encoder_decoder",
)


def read_lm_engine(path: Path) -> Architecture:
    """Return the architecture of a training config, of its `pretrained_config` alone, or of a checkpoint's config.json.

    Raises ConfigError that names the file, the key and the value.
    """
    values, where = load_config(path), Where(str(path))
    for key in ("model_args", "pretrained_config"):
        if isinstance(inner := values.get(key), Mapping):
            values, where = dict(inner), where / key
    return read_config(values, find_letters(path.read_text(encoding="utf-8")), where)


def load_config(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, or in a JSON file, where infinity has a name that YAML does not know.

    Unlike in our own files, nothing in it refers to anything else.
    """
    where = Where(str(path))
    try:
        text = path.read_text(encoding="utf-8")
        # the safe loader in C where there is one: a file of 40 layers takes the other half a second
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        values = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=loader)
    except FileNotFoundError:
        raise where.error("no such file") from None
    except OSError as error:
        raise where.error(f"cannot be read: {error.strerror}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise where.error(f"is not valid {kind}: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise where.error("must hold a mapping (key: value)")
    return values


def read_config(values: Mapping[str, Any], letters: str | None, where: Where) -> Architecture:
    """Return the architecture that a `pretrained_config` describes; `letters` are used where they fit."""
    config = Reader(values, where)
    rope = config.one_of("position_embedding_type", {"rope": True, "nope": False})
    model = Model(
        hidden_size=config.integer("hidden_size"),
        norm_eps=config.number("layer_norm_epsilon", 1e-5, positive=True),
        rope=rope,
        rope_theta=config.number("rope_theta", 10000),
        aux_loss_weight=config.number("router_aux_loss_coef", 0.001),
    )
    sizes = {
        "hidden_size": model.hidden_size,
        "vocab_size": config.integer("vocab_size"),
        "norm_eps": model.norm_eps,
        "tie_embeddings": config.boolean("tie_word_embeddings"),
        "init_std": config.number("initializer_range", positive=True),
    }
    depth = config.integer("num_layers")
    mixers = [_read_mixer(block, model) for block in config.list_of("sequence_mixer_blocks", depth)]
    mlps = [_read_mlp(block, model) for block in config.list_of("mlp_blocks", depth)]
    _check_rope_dim(config, mixers, model)
    config.only("normalization_function", "rmsnorm", default=None)
    for key in ("init_method", "embedding_init_method"):
        config.only(key, "normal")
    config.only("use_depth_scaled_init", True)
    config.only("embedding_dropout", 0)
    for key in ("rope_scaling", "m_emb", "m_width", "m_residual"):
        config.only(key, None)
    config.skip(*NOT_THE_MODEL)
    config.finish()
    layers: list[Kind] = list(zip(mixers, mlps, strict=True))
    return build(sizes, layers, letters, where)


def _read_mixer(block: Reader, model: Model) -> BoundMixer:
    kinds = {entry.kind: name for name, entry in MIXERS.items()}
    name = block.one_of("sequence_mixer_type", kinds)
    values = MIXERS[name].read(block, model)
    block.finish()
    options = registry.get(name).options(**values)
    try:
        options.check(model.hidden_size)
    except ValueError as error:
        raise block.where.error(str(error)) from None
    return BoundMixer(type=name, options=options)


def _read_mlp(block: Reader, model: Model) -> BoundMLP:
    name = block.one_of("mlp_type", {entry.kind: name for name, entry in MLPS.items()})
    values = MLPS[name].read(block, model)
    block.finish()
    options = mlp_registry.get(name).options(**values)
    try:
        options.check(model.hidden_size)
    except ConfigError as error:
        raise block.where.error(str(error)) from None
    return BoundMLP(type=name, options=options)


def _check_rope_dim(config: Reader, mixers: list[BoundMixer], model: Model) -> None:
    """Refuse rotary positions of a part of the head."""
    dim = config.optional_integer("rope_dim", None)
    widths = {mixer.options.width(model.hidden_size) for mixer in mixers if mixer.type == "attention"}  # type: ignore[attr-defined]
    if model.rope and dim is not None and widths - {dim}:
        raise config.error("rope_dim", f"must be the head's, {sorted(widths)}, as our rope turns all of it; got {dim}")
