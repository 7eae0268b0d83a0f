"""The blocks of a layer in lm-engine's words, both ways: `sequence_mixer_blocks` and `mlp_blocks`.

What a block cannot say is a ValueError with the reason; what a file says and our options cannot, a ConfigError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archsearch.export.lm_engine.reader import Reader
    from archsearch.mixers.attention import AttentionOptions
    from archsearch.mixers.common import DecayOptions, NonlinearOptions
    from archsearch.mixers.gated_deltanet import GatedDeltaNetOptions
    from archsearch.mixers.gru import GRUOptions
    from archsearch.mixers.m2rnn import M2RNNOptions
    from archsearch.mixers.mamba2 import Mamba2Options
    from archsearch.mixers.rnn import RNNOptions
    from archsearch.model.mlp.moe import MoEOptions
    from archsearch.model.mlp.swiglu import SwiGLUOptions

NORM_EPS = 1e-5  # of the norm inside m2rnn, rnn and gru, which no key sets
SCALE = "1 / sqrt(head_dim)"
CHUNK = 256  # of mamba2's kernel: how it computes, not what

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a block has to know of the model around it."""

    hidden_size: int
    norm_eps: float
    rope: bool = False
    rope_theta: float = 10000.0
    aux_loss_weight: float = 0.001


@dataclass(frozen=True, kw_only=True)
class Block:
    """One kind of block: its name there, what writes it and what reads it."""

    kind: str
    write: Callable[[Any, Model], Values]
    read: Callable[[Reader, Model], Values]


def plain(number: float) -> float | int:
    """Return a whole number as such, as the published files spell them."""
    return int(number) if number == int(number) else number


def write_attention(options: AttentionOptions, model: Model) -> Values:
    if model.hidden_size % options.num_heads:
        got = f"num_heads={options.num_heads} and {model.hidden_size}"
        raise ValueError(f"num_heads must divide the hidden size there, whatever head_dim is; got {got}")
    return {
        "num_attention_heads": options.num_heads,
        "num_key_value_heads": options.kv_heads,
        "add_bias": False,
        "head_dim": options.head_dim,
        "softmax_dropout": 0,
        "dropout": 0,
        "attention_gate": False,
        "exclusive_self_attention": False,
        # there it counts the tokens before the one that looks, ours that one too
        "sliding_window": None if options.window is None else options.window - 1,
        "attention_multiplier": None,
        "attention_multiplier_method": SCALE,
    }


def read_attention(block: Reader, model: Model) -> Values:
    heads, kv_heads = block.integer("num_attention_heads"), block.integer("num_key_value_heads")
    window = block.optional_integer("sliding_window", None, least=0)
    for key in ("add_bias", "attention_gate", "exclusive_self_attention"):
        block.only(key, False)
    for key in ("softmax_dropout", "dropout"):
        block.only(key, 0)
    block.only("attention_multiplier", None)
    block.only("attention_multiplier_method", SCALE)
    return {
        "num_heads": heads,
        "num_kv_heads": _unless(kv_heads, heads),
        "head_dim": block.optional_integer("head_dim", None),
        "rope": model.rope,
        "rope_theta": model.rope_theta,
        "window": None if window is None else window + 1,
    }


def write_gated_deltanet(options: GatedDeltaNetOptions, model: Model) -> Values:
    return {
        "k_head_dim": options.key_head_dim,
        "v_head_dim": options.value_head_dim,
        "num_k_heads": options.num_heads,
        "num_v_heads": options.value_heads,
        "use_gate": options.gate,
        "allow_neg_eigval": options.allow_negative_eigenvalues,
        "kernel_size": options.conv_width,
        **_write_decay(options),
        "attention_multiplier": None,  # 1 / sqrt(k_head_dim), as ours
    }


def read_gated_deltanet(block: Reader, model: Model) -> Values:
    heads = block.integer("num_k_heads")
    block.only("attention_multiplier", None)
    return {
        "num_heads": heads,
        "num_value_heads": _unless(block.integer("num_v_heads"), heads),
        "key_head_dim": block.integer("k_head_dim"),
        "value_head_dim": block.integer("v_head_dim"),
        "conv_width": block.integer("kernel_size"),
        "gate": block.boolean("use_gate"),
        "allow_negative_eigenvalues": block.boolean("allow_neg_eigval"),
        **_read_decay(block),
    }


def write_mamba2(options: Mamba2Options, model: Model) -> Values:
    return {
        "activation_function": "silu",
        "add_bias": False,
        "use_conv_bias": True,
        "num_heads": options.num_heads,
        "state_size": options.state_dim,
        "intermediate_size": options.inner,
        "conv_kernel_size": options.conv_width,
        "num_groups": options.num_groups,
        "chunk_size": CHUNK,
        "time_step_limit": [0, float("inf")],
        "normalization_function": "rmsnorm",
        **_write_decay(options),
    }


def read_mamba2(block: Reader, model: Model) -> Values:
    heads = block.integer("num_heads")
    inner = block.optional_integer("intermediate_size", None) or 2 * model.hidden_size
    if inner % heads:
        raise block.error("intermediate_size", f"num_heads must divide it; got {inner} and num_heads={heads}")
    block.only("activation_function", "silu")
    block.only("add_bias", False)
    block.only("use_conv_bias", True)
    block.only("normalization_function", "rmsnorm")
    block.only("time_step_limit", [0, float("inf")])
    block.integer("chunk_size", CHUNK)
    return {
        "num_heads": heads,
        "head_dim": inner // heads,
        "state_dim": block.integer("state_size"),
        "num_groups": block.integer("num_groups"),
        "conv_width": block.integer("conv_kernel_size"),
        **_read_decay(block),
    }


def write_m2rnn(options: M2RNNOptions, model: Model) -> Values:
    _check_nonlinear(options, model)
    counts, heads = options.counts(), options.num_heads
    for name, what in (("f", "num_forget_heads"), ("g", "num_gate_heads")):
        if counts[name] != heads:
            raise ValueError(f"{what} must equal num_heads there; got {counts[name]} of {heads}")
    if options.residual and counts["v"] not in (1, heads):
        raise ValueError(f"num_value_heads must be 1 or num_heads there with a residual; got {counts['v']} of {heads}")
    if options.conv_width is None and options.activation != "none":
        raise ValueError(f"without a convolution there is no activation there; got activation={options.activation}")
    return {
        "k_head_dim": options.key_head_dim,
        "v_head_dim": options.value_head_dim,
        "num_q_heads": counts["q"],
        "num_k_heads": counts["k"],
        "num_v_heads": counts["v"],
        "num_f_heads": counts["f"],
        "num_g_heads": counts["g"],
        "num_weight_heads": counts["w"],
        "use_residual": options.residual,
        **_write_nonlinear(options),
        **_write_decay(options),
    }


def read_m2rnn(block: Reader, model: Model) -> Values:
    keys = ("num_q_heads", "num_k_heads", "num_v_heads", "num_f_heads", "num_g_heads", "num_weight_heads")
    counts = {key: block.integer(key) for key in keys}
    heads = max(counts.values())
    for key in ("num_f_heads", "num_g_heads"):
        if counts[key] != heads:
            raise block.error(key, f"must be the largest of the head counts, {heads}; got {counts[key]}")
    return {
        "num_heads": heads,
        "key_head_dim": block.integer("k_head_dim"),
        "value_head_dim": block.integer("v_head_dim"),
        "num_query_heads": counts["num_q_heads"],
        "num_key_heads": counts["num_k_heads"],
        "num_value_heads": _unless(counts["num_v_heads"], heads),
        "num_weight_heads": _unless(counts["num_weight_heads"], heads),
        "residual": block.boolean("use_residual"),
        **_read_nonlinear(block),
        **_read_decay(block),
    }


def write_rnn(options: RNNOptions, model: Model) -> Values:
    _check_nonlinear(options, model)
    inputs = options.inputs()["x"]
    if options.conv_width is not None and inputs != options.num_heads:
        got = f"{inputs} of {options.num_heads}"
        raise ValueError(f"num_input_heads must equal num_heads there where there is a convolution; got {got}")
    return {
        "state_head_dim": options.head_dim,
        "num_input_heads": inputs,
        "num_weight_heads": options.weights()["weight"],
        **_write_nonlinear(options),
    }


def read_rnn(block: Reader, model: Model) -> Values:
    return _read_heads(block, ("num_input_heads", "num_weight_heads"))


def write_gru(options: GRUOptions, model: Model) -> Values:
    inputs, weights = options.inputs(), options.weights()
    return {
        **write_rnn(options, model),
        "num_forget_input_heads": inputs["forget"],
        "num_reset_input_heads": inputs["reset"],
        "num_forget_weight_heads": weights["forget_weight"],
        "num_reset_weight_heads": weights["reset_weight"],
    }


def read_gru(block: Reader, model: Model) -> Values:
    gates = (f"num_{gate}_{part}_heads" for gate in ("forget", "reset") for part in ("input", "weight"))
    return _read_heads(block, ("num_input_heads", "num_weight_heads", *gates))


def write_swiglu(options: SwiGLUOptions, model: Model) -> Values:
    return {
        "activation_function": "swiglu",
        "add_bias": False,
        "intermediate_size": options.intermediate_size,
        "dropout": 0,
    }


def read_swiglu(block: Reader, model: Model) -> Values:
    block.only("activation_function", "swiglu", default=None)
    block.only("add_bias", False)
    block.only("dropout", 0)
    return {"intermediate_size": block.integer("intermediate_size")}


def write_moe(options: MoEOptions, model: Model) -> Values:
    return {
        "shared_intermediate_size": options.shared_intermediate_size,
        "num_experts": options.num_experts,
        "num_experts_per_tok": options.experts_per_token,
        "intermediate_size": options.intermediate_size,
        "activation_function": "swiglu",
        "add_bias": False,
        "dropout": 0,
        "shared_expert_gating": False,
        "normalized_topk": options.normalize,
    }


def read_moe(block: Reader, model: Model) -> Values:
    block.only("shared_expert_gating", False)
    return {
        **read_swiglu(block, model),
        "num_experts": block.integer("num_experts"),
        "experts_per_token": block.integer("num_experts_per_tok"),
        "shared_intermediate_size": block.optional_integer("shared_intermediate_size", None),
        "normalize": block.boolean("normalized_topk", True),
        "aux_loss_weight": model.aux_loss_weight,
    }


MIXERS: Mapping[str, Block] = {
    "attention": Block(kind="softmax_attention", write=write_attention, read=read_attention),
    "gated_deltanet": Block(kind="gated_deltanet", write=write_gated_deltanet, read=read_gated_deltanet),
    "mamba2": Block(kind="mamba2", write=write_mamba2, read=read_mamba2),
    "m2rnn": Block(kind="m2rnn", write=write_m2rnn, read=read_m2rnn),
    "rnn": Block(kind="rnn", write=write_rnn, read=read_rnn),
    "gru": Block(kind="gru", write=write_gru, read=read_gru),
}
"""By the names of our mixers."""

MLPS: Mapping[str, Block] = {
    "swiglu": Block(kind="MLP", write=write_swiglu, read=read_swiglu),
    "moe": Block(kind="MoE", write=write_moe, read=read_moe),
}
"""By the names of our MLPs."""


def _write_decay(options: DecayOptions) -> Values:
    return {
        "A_init_min": plain(options.alpha_init_min),
        "A_init_max": plain(options.alpha_init_max),
        "dt_init_min": plain(options.dt_init_min),
        "dt_init_max": plain(options.dt_init_max),
        "dt_init_floor": plain(options.dt_init_floor),
    }


def _read_decay(block: Reader) -> Values:
    return {
        "alpha_init_min": block.number("A_init_min", 0),
        "alpha_init_max": block.number("A_init_max", 16),
        "dt_init_min": block.number("dt_init_min", 1e-3),
        "dt_init_max": block.number("dt_init_max", 1e-1),
        "dt_init_floor": block.number("dt_init_floor", 1e-4),
    }


def _check_nonlinear(options: NonlinearOptions, model: Model) -> None:
    if model.norm_eps != NORM_EPS:
        raise ValueError(f"its norm has eps {NORM_EPS} there, whatever the model's; got norm_eps={model.norm_eps}")


def _write_nonlinear(options: NonlinearOptions) -> Values:
    return {
        "activation_function": "silu" if options.activation == "silu" else None,
        "normalization_function": "rmsnorm",
        "kernel_size": options.conv_width,
        "add_bias": False,
        "gradient_clipping": None if options.gradient_clip is None else plain(options.gradient_clip),
    }


def _read_nonlinear(block: Reader) -> Values:
    block.only("normalization_function", "rmsnorm", default=None)
    block.only("add_bias", False)
    return {
        "conv_width": block.optional_integer("kernel_size"),
        "activation": block.one_of("activation_function", {"silu": "silu", None: "none"}),
        "gradient_clip": block.optional_number("gradient_clipping"),
    }


def _read_heads(block: Reader, keys: Sequence[str]) -> Values:
    """Read a recurrence with a vector state; the number of its heads is the largest of the counts under `keys`."""
    counts = {key: block.integer(key) for key in keys}
    heads = max(counts.values())
    return {
        "num_heads": heads,
        "head_dim": block.integer("state_head_dim"),
        **{key: _unless(count, heads) for key, count in counts.items()},
        **_read_nonlinear(block),
    }


def _unless(count: int, usual: int) -> int | None:
    """Return a count as our options hold it: None where it is what it is when left out."""
    return None if count == usual else count
