"""The arguments with which pretrain_hybrid.py of Megatron-LM trains an architecture, as a shell array to be sourced."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from archsearch.architecture import Architecture, Layer
from archsearch.config import ConfigError
from archsearch.export.letters import letters_comment
from archsearch.export.task import TrainingTask

ARRAY = "MODEL_ARGS"
PATTERN = "--hybrid-layer-pattern"
LENGTH = 4096
CONV_WIDTH = 4  # of its mamba2, fixed

Value = str | int | float | None
Arguments = dict[str, Value]
"""By their names; None for those that take no value."""

TRAINING: Mapping[str, Value] = {  # arXiv:2603.14360v2
    "--seq-length": LENGTH,
    "--max-position-embeddings": LENGTH,
    "--micro-batch-size": 8,
    "--global-batch-size": 1024,
    "--train-iters": 25000,
    "--lr": 3e-4,
    "--lr-decay-style": "cosine",
    "--lr-warmup-iters": 2500,
    "--weight-decay": 0.1,
    "--adam-beta1": 0.9,
    "--adam-beta2": 0.95,
    "--adam-eps": 1e-10,
    "--bf16": None,
}


def to_megatron(architecture: Architecture, task: TrainingTask) -> str:
    """Return the file's text: the pattern with its shapes, and the recipe of the paper; the task has no place in it.

    Raises ConfigError that names the layer for what Megatron-LM lacks, and where two layers of one kind differ: it has
    one shape of each for all layers.
    """
    arguments = model_arguments(architecture)
    sublayers = len(architecture.pattern) * 2
    lines = [
        letters_comment(architecture),
        f"# {sublayers} sub-layers, from which Megatron-LM derives --num-layers. To use:",
        f'#   source THIS_FILE; torchrun ... pretrain_hybrid.py "${{{ARRAY}[@]}}" and your own',
        *(f"# note: {note}" for note in notes(architecture)),
        f"{ARRAY}=(",
        *(f"  {_spell(name, value)}" for name, value in {**arguments, **TRAINING}.items()),
        ")",
    ]
    return "\n".join(lines) + "\n"


def model_arguments(architecture: Architecture) -> Arguments:
    """Return the arguments that describe the model."""
    if architecture.vocab_size is None:
        raise ConfigError("vocab_size: is required for megatron; the architecture leaves it to the data")
    symbols, shapes = "", _Shapes()
    for layer in architecture.layers:
        symbols += shapes.add(layer, layer.type, layer.options, MIXERS, architecture)
        symbols += shapes.add(layer, layer.mlp.type, layer.mlp.options, MLPS, architecture)
    found = shapes.arguments()
    return {
        PATTERN: symbols,
        "--spec": "megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec",
        "--hidden-size": architecture.hidden_size,
        **({} if "*" in symbols else {"--num-attention-heads": 1}),  # asked for where there is none, too
        **found,
        **({} if "*" in symbols else {"--position-embedding-type": "none"}),
        "--swiglu": None,
        "--normalization": "RMSNorm",
        "--norm-epsilon": architecture.norm_eps,
        "--disable-bias-linear": None,
        "--attention-dropout": 0.0,
        "--hidden-dropout": 0.0,
        "--init-method-std": architecture.init_std,
        **({} if architecture.tie_embeddings else {"--untie-embeddings-and-output-weights": None}),
        "--vocab-size": architecture.vocab_size,
        "--make-vocab-size-divisible-by": _power_of_two(architecture.vocab_size),
    }


def notes(architecture: Architecture) -> Iterator[str]:
    """Yield what Megatron-LM does otherwise and no argument can change."""
    types = {layer.type for layer in architecture.layers}
    if "gated_deltanet" in types:
        yield "gated_deltanet: Megatron-LM normalises a head's output before it is gated, archsearch after"
    if types & {"gated_deltanet", "mamba2"}:
        yield "gated_deltanet and mamba2: Megatron-LM has initial ranges of the decay of its own, alpha in [1, 16]"


def attention(options: Any, architecture: Architecture) -> tuple[str, Arguments]:
    if options.window is not None:
        raise ValueError(f"sliding windows are not exported; got window={options.window}")
    if options.rope and options.rope_theta != int(options.rope_theta):
        raise ValueError(f"rope_theta must be whole there; got {options.rope_theta}")
    grouped: Arguments = {"--group-query-attention": None, "--num-query-groups": options.kv_heads}
    rope: Arguments = {"--rotary-base": int(options.rope_theta), "--rotary-percent": 1.0} if options.rope else {}
    return "*", {
        "--num-attention-heads": options.num_heads,
        "--kv-channels": options.width(architecture.hidden_size),
        **(grouped if options.kv_heads != options.num_heads else {}),
        "--position-embedding-type": "rope" if options.rope else "none",
        **rope,
    }


def gated_deltanet(options: Any, architecture: Architecture) -> tuple[str, Arguments]:
    _check_decay(options)
    if not options.gate:
        raise ValueError("the output is always gated there; got gate=False")
    if options.allow_negative_eigenvalues:
        raise ValueError("the writing strength is below 1 there; got allow_negative_eigenvalues=True")
    return "G", {
        "--linear-num-key-heads": options.num_heads,
        "--linear-num-value-heads": options.value_heads,
        "--linear-key-head-dim": options.key_head_dim,
        "--linear-value-head-dim": options.value_head_dim,
        "--linear-conv-kernel-dim": options.conv_width,
    }


def mamba2(options: Any, architecture: Architecture) -> tuple[str, Arguments]:
    _check_decay(options)
    if options.conv_width != CONV_WIDTH:
        raise ValueError(f"conv_width is {CONV_WIDTH} there; got {options.conv_width}")
    if options.num_groups > 1:
        raise ValueError(
            f"each group is normalised by itself there, here all channels; got {options.num_groups} groups"
        )
    return "M", {
        "--mamba-num-heads": options.num_heads,
        "--mamba-head-dim": options.head_dim,
        "--mamba-state-dim": options.state_dim,
        "--mamba-num-groups": options.num_groups,
    }


def swiglu(options: Any, architecture: Architecture) -> tuple[str, Arguments]:
    return "-", {"--ffn-hidden-size": options.intermediate_size}


def moe(options: Any, architecture: Architecture) -> tuple[str, Arguments]:
    shared = options.shared_intermediate_size
    return "E", {
        "--num-experts": options.num_experts,
        "--moe-router-topk": options.experts_per_token,
        "--moe-ffn-hidden-size": options.intermediate_size,
        **({} if shared is None else {"--moe-shared-expert-intermediate-size": shared}),
        **({} if options.normalize else {"--moe-router-pre-softmax": None}),
        "--moe-router-load-balancing-type": "aux_loss",
        "--moe-aux-loss-coeff": options.aux_loss_weight,
        "--moe-router-dtype": "fp32",
        "--moe-grouped-gemm": None,
    }


Write = Callable[[Any, Architecture], tuple[str, Arguments]]

MIXERS: Mapping[str, Write] = {"attention": attention, "gated_deltanet": gated_deltanet, "mamba2": mamba2}
MLPS: Mapping[str, Write] = {"swiglu": swiglu, "moe": moe}


class _Shapes:
    """The arguments of each symbol, which all its layers share."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Arguments, Layer]] = {}

    def add(self, layer: Layer, name: str, options: Any, known: Mapping[str, Write], whole: Architecture) -> str:
        """Return the symbol of one half of a layer. Raises ConfigError."""
        if name not in known:
            raise _error(layer, name, f"Megatron-LM has no such layer; it has {', '.join([*MIXERS, *MLPS])}")
        try:
            symbol, arguments = known[name](options, whole)
        except ValueError as error:
            raise _error(layer, name, str(error)) from None
        first, where = self._found.setdefault(symbol, (arguments, layer))
        if first != arguments:
            differ = [key for key in {**first, **arguments} if first.get(key, "") != arguments.get(key, "")]
            reason = f"Megatron-LM has one shape of it for all layers; layer {where.index} has another: "
            raise _error(layer, name, reason + ", ".join(differ))
        return symbol

    def arguments(self) -> Arguments:
        """Return those of all symbols."""
        return {name: value for arguments, _ in self._found.values() for name, value in arguments.items()}


def _check_decay(options: Any) -> None:
    """Raise ValueError unless the gates start as they do by default, which the notes tell of."""
    fields = [field for field in dataclasses.fields(options) if "_init_" in field.name]
    if changed := [field.name for field in fields if getattr(options, field.name) != field.default]:
        raise ValueError(f"how the decay starts is fixed there; got another {', '.join(changed)} than the default")


def _error(layer: Layer, name: str, reason: str) -> ConfigError:
    return ConfigError(f"megatron: layer {layer.index} (counted from 0), letter {layer.letter}, {name}: {reason}")


def _spell(name: str, value: Value) -> str:
    if value is None:
        return name
    if name == "--spec":  # the only one with two values
        return f"{name} {value}"
    return f"{name} {shlex.quote(str(value))}"


def _power_of_two(vocab_size: int, most: int = 128) -> int:
    """Return the largest power of two up to `most` that leaves the vocabulary as it is."""
    return min(most, vocab_size & -vocab_size)
