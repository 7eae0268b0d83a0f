"""Legal architectures drawn at random, of what lm-engine can say, or Megatron-LM."""

from __future__ import annotations

import random
from typing import Any

from archsearch import registry
from archsearch.architecture import Architecture, BoundMixer, BoundMLP
from archsearch.config import Where
from archsearch.model.mlp.moe import MoEOptions
from archsearch.model.mlp.swiglu import SwiGLUOptions

LETTERS = "abcdefgGSMANURxyz"
LM_ENGINE = ("attention", "gated_deltanet", "mamba2", "m2rnn", "rnn", "gru")
MEGATRON = ("attention", "gated_deltanet", "mamba2")


def draw(seed: int, types: tuple[str, ...] = LM_ENGINE, *, vary: bool = True) -> Architecture:
    """Return an architecture of 1 to 6 layers; without `vary` all layers of a type, and all MLPs, have one shape."""
    rng = random.Random(seed)
    hidden = rng.choice([32, 48, 64])
    rope, theta = rng.random() < 0.4, float(rng.choice([500, 10000, 500000]))
    heads = rng.choice([2, 4, 8])  # one width of all heads that turn
    common = {"rope": rope, "rope_theta": theta if rope else 10000.0, "num_heads": heads}
    chosen = rng.sample(types, rng.randint(1, len(types)))
    if vary:
        chosen += rng.choices(types, k=rng.randint(0, 2))
    letters = rng.sample(LETTERS, len(chosen))
    aux = rng.choice([0.0, 0.001, 0.01])
    mixers = {
        x: BoundMixer(
            type=t, options=registry.get(t).options(**(OPTIONS[t](rng) if t in OPTIONS else _attention(rng, common)))
        )
        for x, t in zip(letters, chosen, strict=True)
    }
    pattern = "".join(rng.choices(letters, k=rng.randint(1, 6)))
    mlp, mlps = _mlp(rng, aux), {x: _mlp(rng, aux) for x in letters if vary and rng.random() < 0.3}
    architecture = Architecture(
        hidden_size=hidden,
        vocab_size=rng.choice([257, 1000, 50304, 100352]),
        pattern=pattern,
        mixers={x: mixers[x] for x in dict.fromkeys(pattern)},
        mlp=mlp,
        mlps={x: own for x, own in mlps.items() if x in pattern and own != mlp},
        norm_eps=1e-5 if {"m2rnn", "rnn", "gru"} & set(chosen) else rng.choice([1e-5, 1e-6]),
        tie_embeddings=rng.random() < 0.3,
        init_std=rng.choice([0.02, 0.006]),
    )
    architecture.check(Where(f"seed {seed}"))
    return architecture


def _attention(rng: random.Random, common: dict[str, Any]) -> dict[str, Any]:
    heads = common["num_heads"]
    own = {} if common["rope"] else {"head_dim": rng.choice([None, 5, 11])}
    kv_heads = rng.choice([None, 1, heads // 2])
    window = rng.choice([None, 1, 64])
    return {**common, "num_kv_heads": kv_heads, "window": window, **own}


def _gated_deltanet(rng: random.Random) -> dict[str, Any]:
    return {
        "num_heads": rng.choice([1, 2]),
        "num_value_heads": rng.choice([None, 4]),
        "key_head_dim": rng.choice([8, 19]),
        "value_head_dim": rng.choice([8, 12]),
        "conv_width": rng.choice([2, 4]),
        "gate": rng.random() < 0.5,
        "allow_negative_eigenvalues": rng.random() < 0.5,
        **_decay(rng),
    }


def _mamba2(rng: random.Random) -> dict[str, Any]:
    return {
        "num_heads": rng.choice([2, 4]),
        "head_dim": rng.choice([8, 19]),
        "state_dim": rng.choice([8, 16]),
        "num_groups": rng.choice([1, 2]),
        "conv_width": rng.choice([2, 4]),
        **_decay(rng),
    }


def _m2rnn(rng: random.Random) -> dict[str, Any]:
    counts = {f"num_{name}_heads": rng.choice([1, 2, 4]) for name in ("query", "key")}
    some = {f"num_{name}_heads": rng.choice([None, 1]) for name in ("value", "weight")}
    shape = {"num_heads": 4, "key_head_dim": rng.choice([4, 8]), "value_head_dim": rng.choice([4, 6])}
    return {**shape, **counts, **some, "residual": rng.random() < 0.5, **_nonlinear(rng), **_decay(rng)}


def _rnn(rng: random.Random) -> dict[str, Any]:
    nonlinear = _nonlinear(rng)
    shared = {"num_weight_heads": rng.choice([None, 1, 2])}
    if nonlinear["conv_width"] is None and rng.random() < 0.5:
        shared = {"num_input_heads": 2}  # one count must be the number of heads
    return {"num_heads": 4, "head_dim": 8, **shared, **nonlinear}


def _gru(rng: random.Random) -> dict[str, Any]:
    gates = [f"num_{gate}_{part}_heads" for gate in ("forget", "reset") for part in ("input", "weight")]
    return {**_rnn(rng), **{gate: rng.choice([None, 1, 2]) for gate in gates}}


OPTIONS = {
    "gated_deltanet": _gated_deltanet,
    "mamba2": _mamba2,
    "m2rnn": _m2rnn,
    "rnn": _rnn,
    "gru": _gru,
}


def _nonlinear(rng: random.Random) -> dict[str, Any]:
    conv_width, activation = rng.choice([(4, "silu"), (3, "none"), (None, "none")])
    return {"conv_width": conv_width, "activation": activation, "gradient_clip": rng.choice([None, 1.0, 0.5])}


def _decay(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {}
    return {"alpha_init_min": 1.0, "alpha_init_max": rng.choice([1.0, 8.5]), "dt_init_min": 2e-3, "dt_init_max": 0.5}


def _mlp(rng: random.Random, aux: float) -> BoundMLP:
    if rng.random() < 0.5:
        return BoundMLP(type="swiglu", options=SwiGLUOptions(intermediate_size=rng.choice([24, 40])))
    options = MoEOptions(
        num_experts=4,
        experts_per_token=rng.choice([1, 2]),
        intermediate_size=rng.choice([8, 16]),
        shared_intermediate_size=rng.choice([None, 24]),
        normalize=rng.random() < 0.5,
        aux_loss_weight=aux,
    )
    return BoundMLP(type="moe", options=options)
