"""Megatron-LM's arguments: the pattern of sub-layers, one shape of each, and the way back."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest

from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.export.megatron.arguments import model_arguments, to_megatron
from archsearch.export.megatron.reading import read_megatron
from archsearch.export.task import TextTask

from .random_architectures import MEGATRON, draw

FOLDER = Path(__file__).parents[2] / "search_spaces" / "published"
SAID = {  # what is published and can be said: all without m2rnn, rnn and gru
    "attention": "*" * 24,
    "gated_deltanet": "G" * 24,
    "mamba2": "M" * 24,
    "hybrid_gated_deltanet": "GGGG*GGGGGGG*GGGGGGG*GGG",
    "hybrid_mamba2": "MMMM*MMMMMMM*MMMMMMM*MMM",
}


@pytest.mark.parametrize("size", ["410m", "7b_moe"])
@pytest.mark.parametrize("name", SAID)
def test_published_models_come_back(size: str, name: str, tmp_path: Path) -> None:
    architecture, file = Architecture.load(FOLDER / size / f"{name}.yaml"), tmp_path / "arguments.sh"
    file.write_text(to_megatron(architecture, TextTask()))
    assert read_megatron(file) == architecture
    pattern = str(model_arguments(architecture)["--hybrid-layer-pattern"])
    assert set(pattern[1::2]) == {"-" if size == "410m" else "E"}
    assert pattern[::2] == SAID[name] or size == "7b_moe"


def test_the_arguments_of_a_published_hybrid() -> None:
    text = to_megatron(Architecture.load(FOLDER / "410m/hybrid_gated_deltanet.yaml"), TextTask())
    words = shlex.split(text, comments=True)
    assert words[:1] + words[-1:] == ["MODEL_ARGS=(", ")"]
    assert "".join(f"{x}-" for x in SAID["hybrid_gated_deltanet"]) in words
    assert "# 48 sub-layers" in text
    for name, value in {
        "--hidden-size": "1024",
        "--ffn-hidden-size": "2752",
        "--num-attention-heads": "16",
        "--kv-channels": "64",
        "--position-embedding-type": "none",
        "--linear-num-key-heads": "2",
        "--linear-num-value-heads": "2",
        "--linear-key-head-dim": "256",
        "--linear-value-head-dim": "512",
        "--linear-conv-kernel-dim": "4",
        "--vocab-size": "100352",
        "--make-vocab-size-divisible-by": "128",
        "--spec": "megatron.core.models.hybrid.hybrid_layer_specs",
        "--global-batch-size": "1024",
    }.items():
        assert words[words.index(name) + 1] == value
    assert "--untie-embeddings-and-output-weights" in words
    assert "--num-layers" not in words  # Megatron-LM refuses it beside a pattern
    assert "# note: gated_deltanet: Megatron-LM normalises a head's output before it is gated, archsearch after" in text


def test_random_architectures_come_back(tmp_path: Path) -> None:
    file = tmp_path / "arguments.sh"
    for seed in range(100):
        architecture = without_what_is_fixed_there(draw(seed, MEGATRON, vary=False))
        file.write_text(to_megatron(architecture, TextTask()))
        assert read_megatron(file) == architecture, seed


@pytest.mark.parametrize(
    ("mixer", "said"),
    [
        ({"type": "m2rnn"}, "m2rnn: Megatron-LM has no such layer; it has attention, gated_deltanet, mamba2"),
        ({"type": "rnn"}, "rnn: Megatron-LM has no such layer"),
        ({"type": "gru"}, "gru: Megatron-LM has no such layer"),
        ({"type": "gated_deltaproduct"}, "gated_deltaproduct: Megatron-LM has no such layer"),
        (
            {"type": "gated_deltanet", "num_heads": 1},
            "one shape of it for all layers; layer 0 has another: --linear-num",
        ),
        ({"type": "gated_deltanet", "gate": False}, "the output is always gated there; got gate=False"),
        ({"type": "gated_deltanet", "allow_negative_eigenvalues": True}, "got allow_negative_eigenvalues=True"),
        (
            {"type": "gated_deltanet", "dt_init_max": 1.0},
            "how the decay starts is fixed there; got another dt_init_max",
        ),
        ({"type": "mamba2", "conv_width": 3}, "conv_width is 4 there; got 3"),
        ({"type": "mamba2", "num_groups": 2}, "each group is normalised by itself there, here all channels; got 2"),
        ({"type": "attention", "window": 8}, "sliding windows are not exported; got window=8"),
        ({"type": "attention", "rope": True, "rope_theta": 0.5}, "rope_theta must be whole there; got 0.5"),
    ],
)
def test_what_megatron_lacks_names_layer_and_reason(mixer: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        to_megatron(build("GX", {"X": mixer}), TextTask())
    assert str(error.value).startswith("megatron: layer 1 (counted from 0), letter X, ")
    assert said in str(error.value)


def test_two_mlps_of_one_kind_are_refused_and_two_kinds_are_not() -> None:
    experts = {"type": "moe", "num_experts": 2, "experts_per_token": 1, "intermediate_size": 8}
    assert model_arguments(build("GA", {}, mlps={"A": experts}))["--hybrid-layer-pattern"] == "G-*E"
    other = {"type": "swiglu", "intermediate_size": 8}
    with pytest.raises(ConfigError, match=r"layer 1 .*, letter A, swiglu: .* layer 0 has another: --ffn-hidden-size"):
        model_arguments(build("GA", {}, mlps={"A": other}))
    with pytest.raises(ConfigError, match="vocab_size: is required for megatron"):
        model_arguments(build("G", {}, vocab_size=None))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("--hidden-size 64", "", "--hidden-size: is required"),
        ("--hidden-size 64", "--hidden-size inf", "--hidden-size: must be a whole number; got inf"),
        ("--hidden-size 64", "--hidden-size many", "--hidden-size: must be a number; got 'many'"),
        ("--hidden-size 64", "--hidden-size $SIZE", "--hidden-size: must be followed by its value, spelt out"),
        ("G-", "G", "must be a mixer and an MLP by turns; got 1 sub-layers"),
        ("G-", "G-D-", "must be one of M, G, *; got 'D' at sub-layer 2"),
        ("G-", "GG", "must be one of -, E; got 'G' at sub-layer 1"),
        ("--swiglu", "--squared-relu 1", "--swiglu: is required"),
        ("--swiglu", "--swiglu --qk-layernorm 1", "--qk-layernorm: unknown argument"),
        ("--swiglu", "--swiglu --mamba-state-dim 8", "--mamba-state-dim: unknown argument, or one without a layer"),
        ("--normalization RMSNorm", "--normalization LayerNorm", "must be RMSNorm, as our models have nothing else"),
        ("--swiglu", "words", "must be arguments that start with --; got 'words'"),
        ("--swiglu", "'", "is no list of arguments"),
    ],
)
def test_what_our_models_cannot_be_names_file_argument_and_value(old: str, new: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "arguments.sh"
    text = to_megatron(build("G", {}), TextTask())
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError) as error:
        read_megatron(file)
    assert str(error.value).startswith(f"{file}: ")
    assert said in str(error.value)


def build(pattern: str, mixers: dict[str, Any], **sizes: Any) -> Architecture:
    return Architecture.from_dict(
        {"hidden_size": 64, "vocab_size": 100, "pattern": pattern, "mixers": mixers, **sizes}, Where("test")
    )


def without_what_is_fixed_there(architecture: Architecture) -> Architecture:
    """Return the architecture with the options at their defaults that no argument sets."""
    fixed = {"window", "gate", "allow_negative_eigenvalues", "num_groups"}
    mixers = {}
    for letter, mixer in architecture.mixers.items():
        names = {field.name for field in dataclasses.fields(mixer.options)}
        names = {x for x in names if x in fixed or "_init_" in x or (mixer.type == "mamba2" and x == "conv_width")}
        defaults = {field.name: field.default for field in dataclasses.fields(mixer.options) if field.name in names}
        mixers[letter] = dataclasses.replace(mixer, options=dataclasses.replace(mixer.options, **defaults))
    return dataclasses.replace(architecture, mixers=mixers)
