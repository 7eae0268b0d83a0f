"""The weights of HybridLM and of an lm-engine checkpoint: one table of names and layouts, read both ways.

| ours | theirs | layout |
|---|---|---|
| embedding, norm, head | transformer.wte, transformer.ln_f, lm_head (none where tied) | the same |
| blocks.N.mixer_norm, .mlp_norm | transformer.h.N.ln_1, .ln_2 | the same |
| attention in_proj (q, k, v) | c_attn | per group of heads: its q, its k, its v |
| gated_deltanet in_proj (q k v, a, b, g) | qkv_proj and ab_proj | cut after q k v |
| gru weight, forget_weight, reset_weight | state_weight | one behind the other |
| conv `[C, W]` | conv1d (gated_deltanet: qkv_conv1d) `[C, 1, W]` | one axis more |
| gate_up_proj (gate, up) of SwiGLU and experts | c_fc, c_fc_shared | rows by turns: gate, up, gate, up |
| everything else | see `_MIXERS`, `_mlp_rows` | the same |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archsearch.architecture import Architecture, Layer
from archsearch.config import ConfigError, Where
from archsearch.model.language_model import HybridLM

Weights = Mapping[str, Tensor]
Convert = Callable[[Sequence[Tensor]], Sequence[Tensor]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: the names of weights on both sides, and how the ones become the others."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    there: Convert = tuple
    back: Convert = tuple

    def under(self, ours: str, theirs: str) -> Row:
        """Return the line with prefixes to its names."""
        return Row(
            ours=tuple(ours + name for name in self.ours),
            theirs=tuple(theirs + name for name in self.theirs),
            there=self.there,
            back=self.back,
        )


def to_lm_engine_weights(architecture: Architecture, weights: Weights, where: Where) -> dict[str, Tensor]:
    """Return the weights of HybridLM under lm-engine's names and in its layouts.

    Raises ConfigError that names the missing, the unexpected and those of another shape.
    """
    _check(weights, _shapes(architecture), where)
    return {
        name: weight.contiguous()
        for row in rows(architecture)
        for name, weight in zip(row.theirs, row.there([weights[name] for name in row.ours]), strict=True)
    }


def from_lm_engine_weights(architecture: Architecture, weights: Weights, where: Where) -> dict[str, Tensor]:
    """Return the weights of an lm-engine checkpoint under the names of HybridLM. Raises ConfigError alike."""
    weights = _usual_names(architecture, weights)
    _check(weights, _shapes_there(architecture), where)
    converted = {
        name: weight.contiguous()
        for row in rows(architecture)
        for name, weight in zip(row.ours, row.back([weights[name] for name in row.theirs]), strict=True)
    }
    if architecture.tie_embeddings:
        converted["head.weight"] = converted["embedding.weight"]
    return converted


def rows(architecture: Architecture) -> list[Row]:
    """Return the table for an architecture."""
    around = [_same("embedding.weight", "transformer.wte.weight"), _same("norm.weight", "transformer.ln_f.weight")]
    if not architecture.tie_embeddings:
        around.append(_same("head.weight", "lm_head.weight"))
    return around + [row for layer in architecture.layers for row in _block_rows(layer, architecture.hidden_size)]


def _block_rows(layer: Layer, hidden_size: int) -> list[Row]:
    if layer.type not in _MIXERS:
        known = ", ".join(_MIXERS)
        raise ConfigError(f"lm-engine: layer {layer.index}, {layer.type}: has no counterpart; known: {known}")
    mixer = (row.under("mixer.", "sequence_mixer.") for row in _MIXERS[layer.type](layer.options, hidden_size))
    mlp = (row.under("mlp.", "mlp_block.") for row in _mlp_rows(layer))
    norms = (_same("mixer_norm.weight", "ln_1.weight"), _same("mlp_norm.weight", "ln_2.weight"))
    return [row.under(f"blocks.{layer.index}.", f"transformer.h.{layer.index}.") for row in (*norms, *mixer, *mlp)]


def _attention(options: Any, hidden_size: int) -> list[Row]:
    groups, width = options.kv_heads, options.width(hidden_size)
    queries = options.num_heads // groups * width  # rows of a group

    def there(weights: Sequence[Tensor]) -> Sequence[Tensor]:
        parts = torch.split(weights[0], [groups * queries, groups * width, groups * width])
        return [torch.cat([_grouped(part, 0, groups) for part in parts], dim=1).flatten(0, 1)]

    def back(weights: Sequence[Tensor]) -> Sequence[Tensor]:
        parts = torch.split(_grouped(weights[0], 0, groups), [queries, width, width], dim=1)
        return [torch.cat([part.flatten(0, 1) for part in parts])]

    joined = Row(ours=("in_proj.weight",), theirs=("c_attn.weight",), there=there, back=back)
    return [joined, _same("out_proj.weight", "c_proj.weight")]


def _gated_deltanet(options: Any, hidden_size: int) -> list[Row]:
    return [
        _cut("in_proj.weight", ("qkv_proj.weight", "ab_proj.weight"), options.conv_channels),
        _conv("qkv_conv1d.weight"),
        _same("decay.alpha_log", "A_log"),
        _same("decay.beta", "dt_bias"),
        _same("norm.weight", "o_norm.weight"),
        _same("out_proj.weight", "o_proj.weight"),
    ]


def _mamba2(options: Any, hidden_size: int) -> list[Row]:
    names = {"in_proj.weight": "in_proj.weight", "conv.bias": "conv1d.bias", "skip": "D", "norm.weight": "norm.weight"}
    return [*_all_same({**names, **_DECAY, "out_proj.weight": "out_proj.weight"}), _conv("conv1d.weight")]


def _m2rnn(options: Any, hidden_size: int) -> list[Row]:
    names = {**_RECURRENT, "norm.weight": "g_norm.weight", "weight": "state_weight", **_DECAY}
    if options.residual:
        names["residual_weight"] = "D"
    return [*_all_same(names), *_convs(options)]


def _rnn(options: Any, hidden_size: int) -> list[Row]:
    weights = tuple(options.weights())
    stacked = _stack(weights, "state_weight", list(options.weights().values()))
    return [*_all_same({**_RECURRENT, "norm.weight": "norm.weight"}), stacked, *_convs(options)]


def _mlp_rows(layer: Layer) -> list[Row]:
    if layer.mlp.type == "swiglu":
        return [_turns("gate_up_proj.weight", "c_fc.weight", 0), _same("down_proj.weight", "c_proj.weight")]
    if layer.mlp.type != "moe":
        raise ConfigError(f"lm-engine: layer {layer.index}, {layer.mlp.type}: has no counterpart")
    routed = [
        _same("router.weight", "gate.weight"),
        _turns("gate_up_proj", "c_fc.weight", 1),
        _same("down_proj", "c_proj.weight"),
    ]
    shared = [
        _turns("shared_expert.gate_up_proj.weight", "c_fc_shared.weight", 0),
        _same("shared_expert.down_proj.weight", "c_proj_shared.weight"),
    ]
    return routed + (shared if layer.mlp.options.shared_intermediate_size else [])  # type: ignore[attr-defined]


_DECAY = {"decay.alpha_log": "decay_gate.A_log", "decay.beta": "decay_gate.dt_bias"}
_RECURRENT = {"in_proj.weight": "input_projection.weight", "out_proj.weight": "output_projection.weight"}
_MIXERS: Mapping[str, Callable[[Any, int], list[Row]]] = {
    "attention": _attention,
    "gated_deltanet": _gated_deltanet,
    "mamba2": _mamba2,
    "m2rnn": _m2rnn,
    "rnn": _rnn,
    "gru": _rnn,
}


def _same(ours: str, theirs: str) -> Row:
    return Row(ours=(ours,), theirs=(theirs,))


def _all_same(names: Mapping[str, str]) -> list[Row]:
    return [_same(ours, theirs) for ours, theirs in names.items()]


def _conv(theirs: str) -> Row:
    return Row(
        ours=("conv.weight",), theirs=(theirs,), there=lambda x: [x[0].unsqueeze(1)], back=lambda x: [x[0].squeeze(1)]
    )


def _convs(options: Any) -> list[Row]:
    return [] if options.conv_width is None else [_conv("conv1d.weight")]


def _cut(ours: str, theirs: tuple[str, str], at: int) -> Row:
    return Row(ours=(ours,), theirs=theirs, there=lambda x: [x[0][:at], x[0][at:]], back=lambda x: [torch.cat(list(x))])


def _stack(ours: tuple[str, ...], theirs: str, heads: list[int]) -> Row:
    return Row(
        ours=ours, theirs=(theirs,), there=lambda x: [torch.cat(list(x))], back=lambda x: torch.split(x[0], heads)
    )


def _turns(ours: str, theirs: str, dim: int) -> Row:
    """Both halves along `dim` behind each other with us, by turns there."""
    return Row(
        ours=(ours,),
        theirs=(theirs,),
        there=lambda x: [_by_turns(x[0], dim, 2)],
        back=lambda x: [_by_turns(x[0], dim, x[0].shape[dim] // 2)],
    )


def _by_turns(weight: Tensor, dim: int, parts: int) -> Tensor:
    """Return the rows of `parts` equal parts by turns: the first of each, the second of each and so on."""
    return _grouped(weight, dim, parts).transpose(dim, dim + 1).flatten(dim, dim + 1)


def _grouped(weight: Tensor, dim: int, groups: int) -> Tensor:
    return weight.reshape(*weight.shape[:dim], groups, -1, *weight.shape[dim + 1 :])


def _shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = HybridLM(architecture)
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def _shapes_there(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes by lm-engine's names: what the table makes of ours."""
    ours = {name: torch.empty(shape, device="meta") for name, shape in _shapes(architecture).items()}
    return {
        name: tuple(weight.shape)
        for row in rows(architecture)
        for name, weight in zip(row.theirs, row.there([ours[name] for name in row.ours]), strict=True)
    }


def _check(weights: Weights, shapes: Mapping[str, tuple[int, ...]], where: Where) -> None:
    wrong = [
        f"{name} {list(weights[name].shape)} instead of {list(shape)}"
        for name, shape in shapes.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    found = {
        "missing": [name for name in shapes if name not in weights],
        "unexpected": [name for name in weights if name not in shapes],
        "of another shape": wrong,
    }
    reasons = [f"{what}: {_first(names)}" for what, names in found.items() if names]
    if reasons:
        raise where.error(f"holds other weights than its architecture has; {'; '.join(reasons)}")


def _usual_names(architecture: Architecture, weights: Weights) -> Weights:
    """Return the weights with the gate of gated_deltanet where the table has it: it may be a module of its own."""
    names = {f"transformer.h.{x.index}.sequence_mixer." for x in architecture.layers if x.type == "gated_deltanet"}
    old = {f"{name}decay_gate.{part}": f"{name}{part}" for name in names for part in ("A_log", "dt_bias")}
    return {old.get(name, name): weight for name, weight in weights.items()}


def _first(names: list[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
