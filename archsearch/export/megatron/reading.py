"""Arguments of Megatron-LM's hybrid models back into an architecture."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from archsearch import mlp_registry, registry
from archsearch.architecture import Architecture, BoundMixer, BoundMLP
from archsearch.config import ConfigError, Where
from archsearch.export.letters import Kind, build, find_letters
from archsearch.export.megatron.arguments import PATTERN, TRAINING

FLAGS = (
    "--swiglu",
    "--disable-bias-linear",
    "--untie-embeddings-and-output-weights",
    "--group-query-attention",
    "--moe-router-pre-softmax",
    "--moe-grouped-gemm",
    "--bf16",
)
VALUES = {"--spec": 2}
"""How many values follow an argument, where it is not one."""
FIXED = {
    "--normalization": "RMSNorm",
    "--attention-dropout": "0.0",
    "--hidden-dropout": "0.0",
    "--rotary-percent": "1.0",
    "--moe-router-load-balancing-type": "aux_loss",
}
"""What our models do anyway; another value is refused."""
NOT_THE_MODEL = ("--spec", "--make-vocab-size-divisible-by", "--moe-router-dtype", "--moe-grouped-gemm", *TRAINING)


def read_megatron(path: Path) -> Architecture:
    """Return the architecture of such a file. Raises ConfigError that names the file, the argument and its value."""
    where = Where(str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise where.error(f"cannot be read: {error}") from None
    arguments = _Given(_parse(text, where), where)
    pattern = arguments.text(PATTERN)
    if len(pattern) % 2:
        raise (where / PATTERN).error(f"must be a mixer and an MLP by turns; got {len(pattern)} sub-layers")
    layers = [_layer(pattern[i : i + 2], i, arguments) for i in range(0, len(pattern), 2)]
    sizes = {
        "hidden_size": arguments.integer("--hidden-size"),
        "vocab_size": arguments.integer("--vocab-size"),
        "norm_eps": arguments.number("--norm-epsilon"),
        "init_std": arguments.number("--init-method-std"),
        "tie_embeddings": not arguments.flag("--untie-embeddings-and-output-weights"),
    }
    arguments.check_rest(pattern)
    return build(sizes, layers, find_letters(text), where)


class _Given:
    """Arguments by name, each taken by type."""

    def __init__(self, values: dict[str, str], where: Where) -> None:
        self._values, self._where = values, where
        self._taken: set[str] = set()

    def text(self, name: str, default: str | None = None) -> str:
        self._taken.add(name)
        value = self._values.get(name, default)
        if value is None:
            raise (self._where / name).error("is required")
        return value

    def number(self, name: str, default: str | None = None) -> float:
        value = self.text(name, default)
        try:
            return float(value)
        except ValueError:
            raise (self._where / name).error(f"must be a number; got {value!r}") from None

    def integer(self, name: str, default: str | None = None) -> int:
        number = self.number(name, default)
        if not number.is_integer():
            raise (self._where / name).error(f"must be a whole number; got {number}")
        return int(number)

    def optional(self, name: str) -> int | None:
        return self.integer(name) if name in self._values else None

    def flag(self, name: str) -> bool:
        self._taken.add(name)
        return name in self._values

    def one_of(self, name: str, *choices: str) -> str:
        value = self.text(name)
        if value not in choices:
            raise (self._where / name).error(f"must be {' or '.join(choices)}; got {value!r}")
        return value

    def sublayer(self, position: int, rule: str) -> ConfigError:
        """Return the error of a symbol of the pattern."""
        return (self._where / PATTERN).error(f"{rule} at sub-layer {position}")

    def check_rest(self, pattern: str) -> None:
        """Refuse what is left: what our models do not do, or nobody knows here."""
        for name in ("--swiglu", "--disable-bias-linear"):
            if not self.flag(name):
                raise (self._where / name).error("is required: our models have nothing else")
        if "*" not in pattern:
            self._taken |= {"--num-attention-heads", "--position-embedding-type"}
        for name, value in self._values.items():
            if name in FIXED and value != FIXED[name]:
                rule = f"must be {FIXED[name]}, as our models have nothing else; got {value!r}"
                raise (self._where / name).error(rule)
            if name not in self._taken and name not in FIXED and name not in NOT_THE_MODEL:
                raise (self._where / name).error(
                    f"unknown argument, or one without a layer that it is of; got {value!r}"
                )


def _layer(pair: str, position: int, given: _Given) -> Kind:
    mixers = {"M": _mamba2, "G": _gated_deltanet, "*": _attention}
    mlps = {"-": _swiglu, "E": _moe}
    if pair[0] not in mixers:
        raise given.sublayer(position, f"must be one of {', '.join(mixers)}; got {pair[0]!r}")
    if pair[1] not in mlps:
        raise given.sublayer(position + 1, f"must be one of {', '.join(mlps)}; got {pair[1]!r}")
    name, values = mixers[pair[0]](given)
    mlp, mlp_values = mlps[pair[1]](given)
    return (
        BoundMixer(type=name, options=registry.get(name).options(**values)),
        BoundMLP(type=mlp, options=mlp_registry.get(mlp).options(**mlp_values)),
    )


def _attention(given: _Given) -> tuple[str, dict[str, Any]]:
    heads, hidden_size = given.integer("--num-attention-heads"), given.integer("--hidden-size")
    width = given.optional("--kv-channels")
    rope = given.one_of("--position-embedding-type", "none", "rope") == "rope"
    theta = given.integer("--rotary-base", "10000") if rope else 10000
    groups = given.integer("--num-query-groups") if given.flag("--group-query-attention") else heads
    return "attention", {
        "num_heads": heads,
        "num_kv_heads": None if groups == heads else groups,
        "head_dim": None if width is None or width * heads == hidden_size else width,
        "rope": rope,
        "rope_theta": float(theta),
    }


def _gated_deltanet(given: _Given) -> tuple[str, dict[str, Any]]:
    heads, values = given.integer("--linear-num-key-heads"), given.integer("--linear-num-value-heads")
    return "gated_deltanet", {
        "num_heads": heads,
        "num_value_heads": None if values == heads else values,
        "key_head_dim": given.integer("--linear-key-head-dim"),
        "value_head_dim": given.integer("--linear-value-head-dim"),
        "conv_width": given.integer("--linear-conv-kernel-dim", "4"),
    }


def _mamba2(given: _Given) -> tuple[str, dict[str, Any]]:
    return "mamba2", {
        "num_heads": given.integer("--mamba-num-heads"),
        "head_dim": given.integer("--mamba-head-dim"),
        "state_dim": given.integer("--mamba-state-dim"),
        "num_groups": given.integer("--mamba-num-groups"),
    }


def _swiglu(given: _Given) -> tuple[str, dict[str, Any]]:
    return "swiglu", {"intermediate_size": given.integer("--ffn-hidden-size")}


def _moe(given: _Given) -> tuple[str, dict[str, Any]]:
    return "moe", {
        "num_experts": given.integer("--num-experts"),
        "experts_per_token": given.integer("--moe-router-topk"),
        "intermediate_size": given.integer("--moe-ffn-hidden-size"),
        "shared_intermediate_size": given.optional("--moe-shared-expert-intermediate-size"),
        "normalize": not given.flag("--moe-router-pre-softmax"),
        "aux_loss_weight": given.number("--moe-aux-loss-coeff"),
    }


def _parse(text: str, where: Where) -> dict[str, str]:
    """Return the arguments of a shell array or of a plain list, comments left out; nothing is expanded."""
    try:
        words = shlex.split(re.sub(r"\\\n", " ", text), comments=True)
    except ValueError as error:
        raise where.error(f"is no list of arguments: {error}") from None
    words = [word for word in words if word != ")" and not re.fullmatch(r"\w+=\(", word)]
    found: dict[str, str] = {}
    i = 0
    while i < len(words):
        name, _, value = words[i].partition("=")
        if not name.startswith("--"):
            raise where.error(f"must be arguments that start with --; got {words[i]!r}")
        count = 0 if name in FLAGS or value else VALUES.get(name, 1)
        given = words[i + 1 : i + 1 + count]
        if len(given) < count or any(word.startswith("--") or "$" in word for word in given):
            raise (where / name).error("must be followed by its value, spelt out")
        found[name] = value or " ".join(given)
        i += 1 + count
    return found
