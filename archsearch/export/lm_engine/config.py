"""A complete training config of lm-engine, with the recipe of arXiv:2603.14360v2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from archsearch.architecture import Architecture, Layer
from archsearch.config import ConfigError
from archsearch.export.letters import letters_comment
from archsearch.export.lm_engine.blocks import MIXERS, MLPS, Block, Model, Values, plain
from archsearch.export.task import TrainingTask

LENGTH = 4096
AUX_LOSS = 0.001
TOKENIZER = "open-lm-engine/hybrid-m2rnn-410m"
PUBLISHED_VOCABULARY = 100352
SPECIAL_TOKENS = {"bos_token_id": 100257, "eos_token_id": 100257, "pad_token_id": 100256}  # of that vocabulary


def to_lm_engine(architecture: Architecture, task: TrainingTask) -> str:
    """Return the YAML that trains the architecture from scratch on text; the task has no place in it.

    Raises ConfigError that names the layer where lm-engine cannot say what one is.
    """
    return config_text(architecture, trained=False)


def config_text(architecture: Architecture, *, trained: bool) -> str:
    """Return the same; where the weights are `trained` already, how they start is no matter."""
    model = pretrained_config(architecture)
    comments = [letters_comment(architecture), *(f"# note: {note}" for note in notes(architecture, trained=trained))]
    return "\n".join(comments) + "\n" + _dump(_training(architecture, model))


def _dump(values: Values) -> str:
    """Return YAML, by the safe dumper in C where there is one: it takes a fifth of the time."""
    text: str = yaml.dump(values, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    return text


def pretrained_config(architecture: Architecture) -> Values:
    """Return what lm-engine calls so: sizes, and per layer a sequence mixer's and an MLP's block."""
    if architecture.vocab_size is None:
        raise ConfigError("vocab_size: is required for lm-engine; the architecture leaves it to the data")
    rope = _rope(architecture)
    model = Model(hidden_size=architecture.hidden_size, norm_eps=architecture.norm_eps)
    published = architecture.vocab_size == PUBLISHED_VOCABULARY
    return {
        "initializer_range": plain(architecture.init_std),
        "layer_norm_epsilon": plain(architecture.norm_eps),
        "model_type": "gpt_base",
        "normalization_function": "rmsnorm",
        "hidden_size": architecture.hidden_size,
        "num_layers": len(architecture.pattern),
        "init_method": "normal",
        **(SPECIAL_TOKENS if published else dict.fromkeys(SPECIAL_TOKENS, 0)),
        "vocab_size": architecture.vocab_size,
        "max_position_embeddings": LENGTH,
        **rope,
        "rope_scaling": None,
        "embedding_dropout": 0,
        "embedding_init_method": "normal",
        "use_depth_scaled_init": True,
        "router_aux_loss_coef": plain(_aux_loss(architecture)),
        "tie_word_embeddings": architecture.tie_embeddings,
        "m_emb": None,
        "m_width": None,
        "m_residual": None,
        "sequence_mixer_blocks": [
            _write(layer, layer.type, layer.options, MIXERS, "sequence_mixer_type", model)
            for layer in architecture.layers
        ],
        "mlp_blocks": [
            _write(layer, layer.mlp.type, layer.mlp.options, MLPS, "mlp_type", model) for layer in architecture.layers
        ],
    }


def notes(architecture: Architecture, *, trained: bool) -> Iterator[str]:
    """Yield what lm-engine does otherwise and no key can change, and what has to be filled in."""
    from archsearch.mixers.common import NonlinearOptions

    yield f"the data path and the tokenizer are the paper's; {_token_note(architecture)}"
    started = {
        layer.letter: (layer.type, options.weight_init, plain(options.weight_init_gain))
        for layer in architecture.layers
        if isinstance(options := layer.options, NonlinearOptions)
    }
    for letter, (name, start, gain) in ({} if trained else started).items():
        there = "at the identity" if name == "m2rnn" else "normal(0, initializer_range)"
        if name != "m2rnn" or (start, gain) != ("identity", 1):
            yield f"lm-engine starts the recurrent weights of {letter} ({name}) {there}, not {start} x {gain}"
    if any(layer.mlp.type == "moe" for layer in architecture.layers):
        yield "lm-engine adds a tenth of the router's z-loss to the load-balancing loss"
    if any(layer.type == "mamba2" and layer.options.num_groups > 1 for layer in architecture.layers):  # type: ignore[attr-defined]
        yield "with several groups lm-engine's training kernel of mamba2 normalises each group by itself"


def _token_note(architecture: Architecture) -> str:
    if architecture.vocab_size == PUBLISHED_VOCABULARY:
        return "set your own"
    return "set your own, and the special tokens, which are 0 here"


def _write(
    layer: Layer, name: str, options: Any, blocks: Mapping[str, Block], key: str, model: Model
) -> dict[str, Any]:
    try:
        if name not in blocks:
            raise ValueError("lm-engine has no such block")
        return {key: blocks[name].kind, **blocks[name].write(options, model)}
    except ValueError as error:
        raise layer_error("lm-engine", layer, name, str(error)) from None


def layer_error(target: str, layer: Layer, name: str, reason: str) -> ConfigError:
    """Return the error of a layer that a target cannot have."""
    return ConfigError(f"{target}: layer {layer.index} (counted from 0), letter {layer.letter}, {name}: {reason}")


def _rope(architecture: Architecture) -> Values:
    """Return the positions' keys, which are of the whole model there."""
    attention = [layer for layer in architecture.layers if layer.type == "attention"]
    options: list[Any] = [layer.options for layer in attention]
    turning = [x for x in options if x.rope]
    theta = (turning or options)[0].rope_theta if options else 10000
    keys = {"position_embedding_type": "nope", "rope_theta": plain(theta), "rope_dim": None}
    if not turning:
        return keys
    width = turning[0].width(architecture.hidden_size)
    for layer, x in zip(attention, options, strict=True):
        if (x.rope, x.rope_theta, x.width(architecture.hidden_size)) != (True, theta, width):
            reason = "rope, rope_theta and head_dim must be those of every attention layer there"
            raise layer_error("lm-engine", layer, layer.type, f"{reason}; got {x.rope}, {x.rope_theta}, {x.head_dim}")
    if theta != int(theta):
        raise layer_error("lm-engine", attention[0], "attention", f"rope_theta must be whole there; got {theta}")
    # left out it is found from the attention layers, which works where there is no other
    dim = None if len(attention) == len(architecture.pattern) and _alike(options) else width
    return {**keys, "position_embedding_type": "rope", "rope_dim": dim}


def _alike(options: list[Any]) -> bool:
    return len({(x.num_heads, x.head_dim) for x in options}) == 1


def _aux_loss(architecture: Architecture) -> float:
    """Return the weight of the load-balancing loss, which is of the whole model there."""
    experts: list[Layer] = [layer for layer in architecture.layers if layer.mlp.type == "moe"]
    weights: list[float] = [layer.mlp.options.aux_loss_weight for layer in experts]  # type: ignore[attr-defined]
    for layer, weight in zip(experts, weights, strict=True):
        if weight != weights[0]:
            rule = f"aux_loss_weight must be that of every layer there; got {weight} and {weights[0]}"
            raise layer_error("lm-engine", layer, "moe", rule)
    return weights[0] if weights else AUX_LOSS


def _training(architecture: Architecture, model: Values) -> Values:
    """Return the whole file: the published recipe of the dense models, or of those with experts."""
    experts = any(layer.mlp.type == "moe" for layer in architecture.layers)
    shards = {"data_parallel_replication_world_size": 8, "data_parallel_sharding_world_size": 8}
    return {
        "datasets": [
            {
                "class_name": "MegatronDataset",
                "data_name": "Megatron",
                "data_sampling_ratio": 1,
                "class_args": {
                    "eval_steps": 2,
                    "data_cache_path": "data-cache",
                    "data_path": ["datasets/nemotron-cc-hq"],
                    "split": "99.5,0.5,0",
                    "sequence_length": LENGTH,
                },
            }
        ],
        "tokenizer_args": {"tokenizer_name": TOKENIZER},
        "kernel_args": {
            "kernels": ["rnn", "gru", "m2rnn", "causal_conv1d", "mamba2_ssm", "flash_attention_3", "sonicmoe"]
        },
        "model_args": {"pretrained_config": model, "efficient_initialization": False},
        "tuning_args": {"tuning_method": "pretraining"},
        "save_args": {"save_path": f"checkpoints/archsearch-{architecture.id}", "save_interval": 5000},
        "logging_args": {"log_interval": 10},
        "training_parameters": {
            "num_training_steps": 25000,
            "eval_interval": 2500,
            "micro_batch_size": 4 if experts else 8,
            "gradient_accumulation_steps": 4,
            "eval_during_training": True,
        },
        "optimizer_args": {
            "class_name": "TorchAdamW",
            "class_args": {"lr": 3e-4, "weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-10},
        },
        "lr_scheduler_args": {
            "lr_decay_style": "cosine",
            "num_warmup_steps": 2500,
            "num_constant_steps": 0,
            "num_decay_steps": 22500,
        },
        "mixed_precision_args": {"dtype": "bf16"},
        "distributed_args": {
            "stage": 3 if experts else 0,
            "torch_compile": True,
            **({"zero_topology": shards} if experts else {}),
        },
    }
