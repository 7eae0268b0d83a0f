"""lm-engine's training configs: the published values, the way back, and what either side cannot say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.export.letters import find_letters
from archsearch.export.lm_engine.config import pretrained_config, to_lm_engine
from archsearch.export.lm_engine.reading import read_config, read_lm_engine
from archsearch.export.task import TextTask

from .random_architectures import draw

FOLDER = Path(__file__).parents[2] / "search_spaces" / "published"
FILES = sorted(FOLDER.rglob("*.yaml"))

Values = dict[str, Any]

DECAY = {"A_init_min": 0, "A_init_max": 16, "dt_init_min": 0.001, "dt_init_max": 0.1, "dt_init_floor": 0.0001}
INSIDE = {
    "activation_function": "silu",
    "normalization_function": "rmsnorm",
    "kernel_size": 4,
    "add_bias": False,
    "gradient_clipping": 1,
}
ATTENTION = {
    "sequence_mixer_type": "softmax_attention",
    "add_bias": False,
    "head_dim": None,
    "softmax_dropout": 0,
    "dropout": 0,
    "attention_gate": False,
    "exclusive_self_attention": False,
    "sliding_window": None,
    "attention_multiplier": None,
    "attention_multiplier_method": "1 / sqrt(head_dim)",
}
MAMBA2 = {
    "sequence_mixer_type": "mamba2",
    "activation_function": "silu",
    "add_bias": False,
    "use_conv_bias": True,
    "conv_kernel_size": 4,
    "num_groups": 1,
    "chunk_size": 256,
    "time_step_limit": [0, float("inf")],
    "normalization_function": "rmsnorm",
    **DECAY,
}


def published_blocks(heads: int, deltanet: int, m2rnn: int, vector: int, mamba2: Values) -> dict[str, Values]:
    """Return the blocks of configs/research/m2rnn of lm-engine, as they stand there, by our names of the mixers."""
    rnn = {"state_head_dim": 16, "num_input_heads": vector, "num_weight_heads": vector, **INSIDE}
    gates = [f"num_{gate}_{part}_heads" for gate in ("forget", "reset") for part in ("input", "weight")]
    return {
        "attention": {**ATTENTION, "num_attention_heads": heads, "num_key_value_heads": heads},
        "gated_deltanet": {
            "sequence_mixer_type": "gated_deltanet",
            "k_head_dim": 256,
            "v_head_dim": 512,
            "num_k_heads": deltanet,
            "num_v_heads": deltanet,
            "use_gate": True,
            "allow_neg_eigval": False,
            "kernel_size": 4,
            "attention_multiplier": None,
            **DECAY,
        },
        "m2rnn": {
            "sequence_mixer_type": "m2rnn",
            "k_head_dim": 64,
            "v_head_dim": 16,
            "num_q_heads": 1,
            "num_k_heads": 1,
            **{f"num_{name}_heads": m2rnn for name in ("v", "f", "g", "weight")},
            "use_residual": True,
            **INSIDE,
            **DECAY,
        },
        "mamba2": {**MAMBA2, **mamba2},
        "rnn": {"sequence_mixer_type": "rnn", **rnn},
        "gru": {"sequence_mixer_type": "gru", **rnn, **dict.fromkeys(gates, vector)},
    }


BLOCKS = {
    "410m": published_blocks(16, 2, 84, 85, {"num_heads": 64, "state_size": 216, "intermediate_size": 1216}),
    "7b_moe": published_blocks(24, 3, 132, 128, {"num_heads": 32, "state_size": 192, "intermediate_size": 2048}),
}
SWIGLU = {"activation_function": "swiglu", "add_bias": False, "dropout": 0}
MLPS = {
    "410m": {"mlp_type": "MLP", "intermediate_size": 2752, **SWIGLU},
    "7b_moe": {
        "mlp_type": "MoE",
        "intermediate_size": 256,
        "shared_intermediate_size": 1024,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "shared_expert_gating": False,
        "normalized_topk": True,
        **SWIGLU,
    },
}
MODEL = {
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt_base",
    "normalization_function": "rmsnorm",
    "init_method": "normal",
    "bos_token_id": 100257,
    "eos_token_id": 100257,
    "pad_token_id": 100256,
    "vocab_size": 100352,
    "max_position_embeddings": 4096,
    "rope_theta": 10000,
    "rope_scaling": None,
    "rope_dim": None,
    "embedding_dropout": 0,
    "embedding_init_method": "normal",
    "use_depth_scaled_init": True,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
    "m_emb": None,
    "m_width": None,
    "m_residual": None,
}
SIZES = {"410m": {"hidden_size": 1024, "num_layers": 24}, "7b_moe": {"hidden_size": 1536, "num_layers": 40}}


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_published_models_come_out_with_the_published_values_and_come_back(path: Path, tmp_path: Path) -> None:
    architecture, size = Architecture.load(path), path.parent.name
    file = tmp_path / "config.yml"
    file.write_text(to_lm_engine(architecture, TextTask()))
    assert read_lm_engine(file) == architecture
    config = yaml.safe_load(file.read_text())
    model = dict(config["model_args"]["pretrained_config"])
    mixers, mlps = model.pop("sequence_mixer_blocks"), model.pop("mlp_blocks")
    assert mixers == [BLOCKS[size][layer.type] for layer in architecture.layers]
    assert mlps == [MLPS[size]] * len(architecture.pattern)
    position = "rope" if path.stem == "attention" else "nope"
    assert model == {**MODEL, **SIZES[size], "position_embedding_type": position}
    assert parameters(mixers, mlps, model) == architecture.num_parameters(head=True)


def test_the_recipe_is_the_published_one() -> None:
    dense, experts = (to_values(Architecture.load(FOLDER / size / "m2rnn.yaml")) for size in SIZES)
    for config, micro_batch_size, stage in ((dense, 8, 0), (experts, 4, 3)):
        assert config["training_parameters"] == {
            "num_training_steps": 25000,
            "eval_interval": 2500,
            "micro_batch_size": micro_batch_size,
            "gradient_accumulation_steps": 4,
            "eval_during_training": True,
        }
        assert config["optimizer_args"]["class_args"] == {
            "lr": 3e-4,
            "weight_decay": 0.1,
            "betas": [0.9, 0.95],
            "eps": 1e-10,
        }
        assert config["lr_scheduler_args"] == {
            "lr_decay_style": "cosine",
            "num_warmup_steps": 2500,
            "num_constant_steps": 0,
            "num_decay_steps": 22500,
        }
        assert config["distributed_args"]["stage"] == stage
        assert config["mixed_precision_args"] == {"dtype": "bf16"}
        assert config["datasets"][0]["class_args"]["sequence_length"] == 4096


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_architectures_come_back(first: int) -> None:
    for seed in range(first, first + 50):
        architecture = draw(seed)
        text = to_lm_engine(architecture, TextTask())
        config = yaml.safe_load(text)["model_args"]["pretrained_config"]
        back = read_config(config, find_letters(text), Where("file"))
        assert (back.pattern, back.layers, back.id) == (architecture.pattern, architecture.layers, architecture.id), (
            seed
        )
        assert back == architecture or architecture.mlps, seed  # which MLP is the usual one is a matter of spelling
        count = parameters(config["sequence_mixer_blocks"], config["mlp_blocks"], config)
        assert count == architecture.num_parameters(head=True), seed


def test_without_our_comment_letters_are_the_usual_ones_and_then_free_ones() -> None:
    deltanets = {x: {"type": "gated_deltanet", "num_heads": heads} for x, heads in zip("xyz", (1, 2, 3), strict=True)}
    architecture = build("xAyzx", {**deltanets, "A": {"type": "attention", "num_heads": 4}})
    config = pretrained_config(architecture)
    back = read_config(config, None, Where("file"))
    assert back.pattern == "GARgG"
    assert back.id == architecture.id
    assert read_config(config, "GGGGG", Where("file")) == back  # letters that do not fit the layers are no letters


def test_one_kind_of_layer_with_two_mlps_becomes_two_letters() -> None:
    small = {"type": "swiglu", "intermediate_size": 8}
    architecture = build("MMN", {x: {"type": "mamba2"} for x in "MN"}, mlps={"N": small})
    back = read_config(pretrained_config(architecture), None, Where("file"))
    assert back.pattern == "SSs"
    assert back.mlps["s"].to_dict() == small
    assert back.id == architecture.id


WRITTEN = """
datasets: [{class_name: MegatronDataset}]
model_args:
  pretrained_config:
    initializer_range: 0.02
    layer_norm_epsilon: 1e-05
    model_type: gpt_base
    normalization_function: rmsnorm
    position_embedding_type: nope
    hidden_size: 64
    num_layers: 2
    init_method: normal
    vocab_size: 100
    max_position_embeddings: 4096
    tie_word_embeddings: false
    sequence_mixer_blocks:
      - &mixer
        sequence_mixer_type: mamba2
        activation_function: silu
        num_heads: 4
        state_size: 8
        intermediate_size: null
        conv_kernel_size: 4
        num_groups: 1
        time_step_limit: [0, .inf]
        normalization_function: rmsnorm
      - *mixer
    mlp_blocks:
      - {mlp_type: MLP, activation_function: swiglu, intermediate_size: 24}
      - {mlp_type: MLP, activation_function: swiglu, intermediate_size: 24}
optimizer_args: {class_args: {lr: 3e-4}}
"""


def test_a_file_by_hand_may_leave_out_what_has_a_default_there(tmp_path: Path) -> None:
    file = tmp_path / "config.yml"
    file.write_text(WRITTEN)
    mamba2 = {"type": "mamba2", "num_heads": 4, "head_dim": 32, "state_dim": 8}  # twice the hidden size inside
    expected = build("SS", {"S": mamba2}, mlp={"type": "swiglu", "intermediate_size": 24})
    assert read_lm_engine(file) == expected
    for content, said in (("a: [", "is not valid YAML"), ("- a", "must hold a mapping"), ("\0", "is not valid YAML")):
        file.write_text(content)
        with pytest.raises(ConfigError, match=said):
            read_lm_engine(file)


@pytest.mark.parametrize(
    ("mixers", "sizes", "said"),
    [
        ({"type": "gated_deltaproduct"}, {}, "gated_deltaproduct: lm-engine has no such block"),
        (
            {"type": "m2rnn", "num_forget_heads": 1},
            {},
            "m2rnn: num_forget_heads must equal num_heads there; got 1 of 4",
        ),
        ({"type": "m2rnn", "num_gate_heads": 2}, {}, "num_gate_heads must equal num_heads there; got 2 of 4"),
        ({"type": "m2rnn", "num_value_heads": 2}, {}, "num_value_heads must be 1 or num_heads there with a residual"),
        ({"type": "m2rnn", "conv_width": None}, {}, "without a convolution there is no activation there; got"),
        ({"type": "rnn"}, {"norm_eps": 1e-6}, "its norm has eps 1e-05 there, whatever the model's; got norm_eps=1e-06"),
        ({"type": "rnn", "num_input_heads": 2}, {}, "num_input_heads must equal num_heads there where there is a conv"),
        ({"type": "attention", "num_heads": 3, "head_dim": 16}, {}, "num_heads must divide the hidden size there"),
        ({"type": "attention", "rope": True, "rope_theta": 0.5}, {}, "rope_theta must be whole there; got 0.5"),
    ],
)
def test_what_lm_engine_cannot_say_names_layer_and_reason(mixers: Values, sizes: Values, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        to_lm_engine(build("GX", {"X": mixers}, **sizes), TextTask())
    assert str(error.value).startswith("lm-engine: layer 1 (counted from 0), letter X, ")
    assert said in str(error.value)


def test_what_starts_otherwise_there_is_noted() -> None:
    start = {"weight_init": "orthogonal", "weight_init_gain": 1.5}
    text = to_lm_engine(build("MXN", {"X": {"type": "m2rnn", **start}}), TextTask())
    notes = [line for line in text.splitlines() if "starts the recurrent" in line]
    assert notes == [
        "# note: lm-engine starts the recurrent weights of X (m2rnn) at the identity, not orthogonal x 1.5",
        "# note: lm-engine starts the recurrent weights of N (rnn) normal(0, initializer_range), not identity x 1",
    ]


def test_what_is_one_for_all_layers_there_names_the_layer_that_differs() -> None:
    turning = {"type": "attention", "num_heads": 4, "rope": True}
    with pytest.raises(ConfigError, match=r"layer 2 .*, letter B, attention: rope, rope_theta and head_dim must be"):
        pretrained_config(build("AGB", {"A": turning, "B": {**turning, "rope": False}}))
    experts = {"type": "moe", "num_experts": 2, "experts_per_token": 1, "intermediate_size": 8}
    mlps = {x: {**experts, "aux_loss_weight": weight} for x, weight in (("A", 0.1), ("G", 0.2))}
    with pytest.raises(ConfigError, match=r"layer 1 .*, letter G, moe: aux_loss_weight must be .*; got 0.2 and 0.1"):
        pretrained_config(build("AG", {"A": turning}, mlps=mlps))
    with pytest.raises(ConfigError, match="vocab_size: is required for lm-engine"):
        pretrained_config(build("G", {}, vocab_size=None))


def test_rotary_positions_beside_recurrent_layers_say_their_width() -> None:
    turning = {"type": "attention", "num_heads": 4, "rope": True}
    assert pretrained_config(build("AG", {"A": turning}))["rope_dim"] == 16
    assert pretrained_config(build("AA", {"A": turning}))["rope_dim"] is None


def test_a_window_counts_the_token_itself_with_us_and_not_there() -> None:
    architecture = build("A", {"A": {"type": "attention", "num_heads": 4, "window": 64}})
    config = pretrained_config(architecture)
    assert config["sequence_mixer_blocks"][0]["sliding_window"] == 63
    assert read_config(config, None, Where("file")) == architecture


def test_notes_say_what_no_key_can() -> None:
    experts = {"type": "moe", "num_experts": 2, "experts_per_token": 1, "intermediate_size": 8}
    text = to_lm_engine(build("NS", {"S": {"type": "mamba2", "num_groups": 2}}, mlps={"N": experts}), TextTask())
    assert [part in text for part in ("not identity x 1", "z-loss", "by itself", "special tokens")] == [True] * 4
    assert "identity" not in to_lm_engine(build("G", {}), TextTask())


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("mystery", 1, "file: mystery: unknown key; got 1"),
        ("num_layer", 2, "file: num_layer: unknown key (did you mean 'num_layers'?); got 2"),
        ("m_width", 4, "file: m_width: must be null, as our models have nothing else; got 4"),
        ("init_method", "mup", "file: init_method: must be 'normal', as our models have nothing else; got 'mup'"),
        ("position_embedding_type", "learned_absolute", "must be one of 'rope', 'nope'; got 'learned_absolute'"),
        ("num_layers", 3, "file: sequence_mixer_blocks: must be a list with one block per layer, 3; got 2 of them"),
        ("hidden_size", "many", "file: hidden_size: must be a whole number of at least 1; got 'many'"),
        ("hidden_size", float("inf"), "file: hidden_size: must be a whole number of at least 1; got inf"),
        ("tie_word_embeddings", 0, "file: tie_word_embeddings: must be true or false; got 0"),
        ("mlp_blocks", [{}, {}], "file: mlp_blocks[0].mlp_type: is required"),
        ("sequence_mixer_blocks[1].add_bias", True, "must be False, as our models have nothing else; got True"),
        ("sequence_mixer_blocks[1].num_f_heads", 2, "must be the largest of the head counts, 4; got 2"),
        ("sequence_mixer_blocks[1].sequence_mixer_type", "mgru", "got 'mgru'"),
        ("sequence_mixer_blocks[1].num_q_heads", 3, "each head count must divide num_heads"),
        ("sequence_mixer_blocks[1].heads", 3, "sequence_mixer_blocks[1].heads: unknown key"),
        ("sequence_mixer_blocks[1].activation_function", "gelu", "must be one of 'silu', null; got 'gelu'"),
        ("mlp_blocks[0].activation_function", "gelu", "must be 'swiglu', as our models have nothing else; got 'gelu'"),
    ],
)
def test_what_our_models_cannot_be_names_file_key_and_value(key: str, value: Any, said: str) -> None:
    config = pretrained_config(build("GM", {}))
    place, name = config, key
    if "." in key:
        block, name = key.split(".")
        place = config[block[:-3]][int(block[-2])]
    place[name] = value
    with pytest.raises(ConfigError) as error:
        read_config(config, None, Where("file"))
    assert said in str(error.value)
    assert str(error.value).startswith(f"file: {key.split('[')[0].replace('num_layers', 'sequence_mixer_blocks')}")


def build(pattern: str, mixers: Values, **sizes: Any) -> Architecture:
    return Architecture.from_dict(
        {"hidden_size": 64, "vocab_size": 100, "pattern": pattern, "mixers": mixers, **sizes}, Where("test")
    )


def to_values(architecture: Architecture) -> Values:
    values: Values = yaml.safe_load(to_lm_engine(architecture, TextTask()))
    return values


def parameters(mixers: list[Values], mlps: list[Values], model: Values) -> int:
    """Count the weights that lm-engine makes of a config, head included, by what its modules are made of."""
    d = model["hidden_size"]
    count = d + d * model["vocab_size"] * (1 if model["tie_word_embeddings"] else 2)
    for mixer, mlp in zip(mixers, mlps, strict=True):
        count += 2 * d + COUNTS[mixer["sequence_mixer_type"]](mixer, d)
        count += 3 * d * mlp["intermediate_size"] * mlp.get("num_experts", 1) + d * mlp.get("num_experts", 0)
        count += 3 * d * (mlp.get("shared_intermediate_size") or 0)
    return count


def attention_parameters(x: Values, d: int) -> int:
    width = x["head_dim"] or d // x["num_attention_heads"]
    inner, shared = x["num_attention_heads"] * width, x["num_key_value_heads"] * width
    return d * (inner + 2 * shared) + inner * d


def deltanet_parameters(x: Values, d: int) -> int:
    keys, values, heads = x["num_k_heads"] * x["k_head_dim"], x["num_v_heads"] * x["v_head_dim"], x["num_v_heads"]
    projections = d * (2 * keys + values) + d * (2 * heads + values * x["use_gate"]) + values * d
    return projections + (2 * keys + values) * x["kernel_size"] + 2 * heads + x["v_head_dim"]


def mamba2_parameters(x: Values, d: int) -> int:
    inner, heads = x["intermediate_size"], x["num_heads"]
    conv = inner + 2 * x["num_groups"] * x["state_size"]
    return d * (inner + conv + heads) + conv * (x["conv_kernel_size"] + 1) + 3 * heads + inner + inner * d


def m2rnn_parameters(x: Values, d: int) -> int:
    heads = max(x[f"num_{name}_heads"] for name in ("q", "k", "v", "f", "weight"))
    conv = (x["num_q_heads"] + x["num_k_heads"]) * x["k_head_dim"] + x["num_v_heads"] * x["v_head_dim"]
    inner, gate = heads * x["v_head_dim"], x["num_g_heads"] * x["v_head_dim"]
    recurrence = x["num_weight_heads"] * x["v_head_dim"] ** 2 + 2 * heads + inner * x["use_residual"]
    return d * (conv + x["num_f_heads"] + gate) + conv * (x["kernel_size"] or 0) + recurrence + inner + gate * d


def vector_parameters(x: Values, d: int) -> int:
    inputs = [x[key] for key in x if key.endswith("input_heads")]
    weights = [x[key] for key in x if key.endswith("weight_heads")]
    size = x["state_head_dim"]
    inner = max(inputs + weights) * size
    conv = x["num_input_heads"] * size * (x["kernel_size"] or 0)
    return d * (sum(inputs) * size + inner) + conv + sum(weights) * size**2 + inner + inner * d


COUNTS = {
    "softmax_attention": attention_parameters,
    "gated_deltanet": deltanet_parameters,
    "mamba2": mamba2_parameters,
    "m2rnn": m2rnn_parameters,
    "rnn": vector_parameters,
    "gru": vector_parameters,
}
