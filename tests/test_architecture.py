import dataclasses
import hashlib
import json

import pytest
import torch

from archsearch.architecture import Architecture, resolve, small
from archsearch.config import ConfigError, Where
from archsearch.model.language_model import HybridLM

PUBLISHED = {
    "hidden_size": 1024,
    "vocab_size": 100352,
    "mixers": {
        "G": {"type": "gated_deltanet", "num_heads": 2, "key_head_dim": 256, "value_head_dim": 512},
        "S": {"type": "mamba2", "num_heads": 64, "head_dim": 19, "state_dim": 216},
        "M": {"type": "m2rnn", "num_heads": 84, "key_head_dim": 64, "value_head_dim": 16},
        "A": {"type": "attention", "num_heads": 16},
        "N": {"type": "rnn", "num_heads": 85},
        "U": {"type": "gru", "num_heads": 85},
    },
}


def published(pattern, **changes):
    return Architecture.from_dict({**PUBLISHED, "pattern": pattern, "num_layers": 24, **changes}, Where("published"))


@pytest.mark.parametrize(
    ("letter", "mixer", "model", "state"),
    [
        ("M", 4_376_104, 410_736_576, 86_016),
        ("G", 4_207_108, 406_680_672, 262_144),
        ("S", 4_253_104, 407_784_576, 262_656),
        ("A", 4_194_304, 406_373_376, 0),
        ("N", 4_206_480, 406_665_600, 1_360),
        ("U", 7_035_280, 474_556_800, 1_360),
    ],
)
def test_figures_are_the_published_ones(letter, mixer, model, state):
    """arXiv:2603.14360v2, Table 7, and sizes counted from its shapes."""
    architecture = published(letter)
    assert architecture.layers[0].options.num_parameters(1024) == mixer
    assert architecture.num_parameters() == model
    assert architecture.state_size == 24 * state
    with torch.device("meta"):
        built = HybridLM(architecture)
    assert sum(p.numel() for p in built.parameters()) == architecture.num_parameters(head=True)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("pattern", ["RRMA", "GSMA", "NUDA"])
def test_parameters_and_cache_equal_the_built_model(pattern, tied):
    architecture = dataclasses.replace(small().with_pattern(pattern), vocab_size=50, tie_embeddings=tied)
    model = HybridLM(architecture)
    assert sum(p.numel() for p in model.parameters()) == architecture.num_parameters(head=True)
    _, states = model(torch.randint(50, (1, 9)))
    kept = [tensor for state in states for tensor in state.values()]
    assert sum(x.numel() * x.element_size() for x in kept) == architecture.cache_bytes(9, "float32")
    recurrent = [state["recurrent"] for state in states if "recurrent" in state]
    assert sum(x.numel() for x in recurrent) == architecture.state_size


def test_flops_count_matrix_products_of_the_whole_model():
    one, two = (dataclasses.replace(small().with_pattern(p), vocab_size=v) for p, v in (("M", 100), ("M2", 200)))
    layer, head = one.flops_per_token(64) - 2 * 100 * 128, 2 * 128 * 200
    assert two.flops_per_token(64) == 2 * layer + head
    longer = [small().with_pattern("A").flops_per_token(length) for length in (1, 3, 5)]
    assert (
        longer[2] - longer[1] == longer[1] - longer[0] == 2 * 2 * 128
    )  # q k^T and p v against one more key on average


def test_an_architecture_is_written_and_read_back(tmp_path):
    architecture = published("R3MAR3").with_pattern("R3MAR3")
    architecture.save(tmp_path / "a.yaml")
    again = Architecture.load(tmp_path / "a.yaml")
    assert again == dataclasses.replace(architecture, mixers=again.mixers)
    assert again.id == architecture.id
    assert set(again.mixers) == {"R", "M", "A"}


def test_the_id_is_the_models_and_not_its_spelling():
    base = published("R3MA", num_layers=None)
    renamed = {"g": PUBLISHED["mixers"]["G"], "m": PUBLISHED["mixers"]["M"], "A": PUBLISHED["mixers"]["A"]}
    spelt = published("gggmA", num_layers=None, mixers=renamed)
    bound = published("GGGMA", num_layers=None)
    assert spelt.id == bound.id
    assert base.id != bound.id  # R stands for a smaller gated_deltanet here
    assert dataclasses.replace(bound, norm_eps=1e-6).id != bound.id
    assert bound.with_pattern("GGMGA").id != bound.id


def test_two_shapes_of_one_mixer_are_two_letters():
    mixers = {"M": {"type": "m2rnn", "num_heads": 4}, "m": {"type": "m2rnn", "num_heads": 2}}
    architecture = Architecture.from_dict({"hidden_size": 64, "pattern": "Mm", "mixers": mixers}, Where("x"))
    assert [layer.options.num_heads for layer in architecture.layers] == [4, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "GX"}, "x.yaml: architecture.pattern: unknown letter 'X' at position 2"),
        ({"pattern": ""}, "x.yaml: architecture.pattern: must hold at least one layer; got an empty pattern"),
        ({"num_layers": 7, "pattern": "GA"}, "its 2 layers must divide num_layers; got num_layers=7"),
        ({"hidden_sise": 3}, "x.yaml: architecture.hidden_sise: unknown key (did you mean 'hidden_size'?)"),
        ({"hidden_size": 0}, "x.yaml: architecture.hidden_size: must be positive; got 0"),
        ({"norm_eps": float("nan")}, "x.yaml: architecture.norm_eps: must be positive; got nan"),
        ({"init_std": float("inf")}, "x.yaml: architecture.init_std: must be positive and finite; got inf"),
        ({"mixers": [1]}, "x.yaml: architecture.mixers: must be a mapping; got [1]"),
        ({"format": 2}, "x.yaml: architecture.format: must be 1; got 2"),
        (
            {"mixers": {"M": {"type": "m2rn"}}},
            "architecture.mixers.M.type: unknown mixer 'm2rn' (did you mean 'm2rnn'?)",
        ),
        (
            {"mixers": {"M": {"type": "m2rnn", "num_hads": 3}}},
            "architecture.mixers.M.num_hads: unknown key (did you mean",
        ),
        (
            {"mixers": {"M": {"type": "m2rnn", "num_heads": "x"}}},
            "architecture.mixers.M.num_heads: value 'x' of type 'str'",
        ),
        ({"mixers": {"M": {"num_heads": 3}}}, "architecture.mixers.M: must be a mapping with a type and its options"),
        (
            {"mixers": {"MM": {"type": "m2rnn"}}},
            "architecture.mixers.MM: a mixer is bound to one ASCII letter; got 'MM'",
        ),
        ({"mixers": {"A": {"type": "attention", "num_heads": 5}}}, "x.yaml: architecture.mixers.A: attention: "),
        ({"mlp": {"type": "swiglu", "intermediate_size": -1}}, "architecture.mlp.intermediate_size: must be positive"),
        ({"mlp": {"type": "relu"}}, "architecture.mlp.type: unknown MLP 'relu'; known: moe, swiglu"),
        (
            {"mlps": {"A": {"type": "swiglu"}}},
            "architecture.mlps.A: unknown letter 'A'; letters of this architecture: G",
        ),
        ({"mlps": {"G": {"type": "relu"}}}, "architecture.mlps.G.type: unknown MLP 'relu'"),
        ({"mlps": {"G": {"intermediate_size": 0}}}, "architecture.mlps.G.intermediate_size: must be positive; got 0"),
        ({"mlps": {"G": 3}}, "architecture.mlps.G: must be a mapping with a type and its options; got 3"),
    ],
)
def test_what_cannot_work_is_refused_with_file_field_rule_and_value(changes, message):
    values = {"hidden_size": 64, "pattern": "G", **changes}
    with pytest.raises(ConfigError) as error:
        Architecture.from_dict(values, Where("x.yaml", "architecture"))
    assert message in str(error.value)


def test_a_command_line_names_a_file_or_a_pattern(tmp_path):
    published("M").save(tmp_path / "a.yaml")
    assert resolve(str(tmp_path / "a.yaml")).pattern == "M" * 24
    assert resolve("M2", like=str(tmp_path / "a.yaml")).hidden_size == 1024
    assert resolve("R2M").hidden_size == 128
    with pytest.raises(ConfigError, match=r"b\.yaml: no such file"):
        resolve("b.yaml")


def test_the_default_mlp_is_the_published_width():
    assert published("M").mlp.options.intermediate_size == 2752


def test_a_model_needs_a_vocabulary():
    with pytest.raises(ConfigError, match="vocab_size is required"):
        HybridLM(small())


MOE = {"type": "moe", "num_experts": 8, "experts_per_token": 2, "intermediate_size": 16, "shared_intermediate_size": 24}
SWIGLU = {"type": "swiglu", "intermediate_size": 40}


def mixed(**changes):
    mixers = {"G": {"type": "gated_deltanet"}, "A": {"type": "attention"}}
    values = {"hidden_size": 64, "vocab_size": 10, "pattern": "GAG", "mixers": mixers, "mlp": MOE}
    return Architecture.from_dict({**values, "mlps": {"A": SWIGLU}, **changes}, Where("x"))


def test_a_letter_may_have_an_mlp_of_its_own(tmp_path):
    architecture = mixed()
    assert [layer.mlp.type for layer in architecture.layers] == ["moe", "swiglu", "moe"]
    architecture.save(tmp_path / "a.yaml")
    again = Architecture.load(tmp_path / "a.yaml")
    assert again == architecture
    assert again.with_pattern("A").layers[0].mlp.type == "swiglu"
    assert "mlps" not in architecture.with_pattern("G").to_dict()
    with torch.device("meta"):
        built = HybridLM(architecture)
    assert sum(p.numel() for p in built.parameters()) == architecture.num_parameters(head=True)
    sizes = [sum(p.numel() for p in block.parameters()) for block in built.blocks]
    assert [architecture.layer_parameters(layer) for layer in architecture.layers] == sizes


def test_a_letter_without_type_gets_the_default_mlp():
    mlp = mixed(mlps={"A": {}}).layers[1].mlp
    assert mlp.to_dict() == {"type": "swiglu", "intermediate_size": 192}


def test_equal_models_have_one_id_however_their_mlps_are_spelt():
    assert mixed().id == mixed(mlp=SWIGLU, mlps={"G": MOE}).id == mixed(mlps={"A": SWIGLU, "G": MOE}).id
    alone = [mixed(pattern="G", **changes).id for changes in ({}, {"mlps": {}}, {"mlp": SWIGLU, "mlps": {"G": MOE}})]
    assert len(set(alone)) == 1
    others = [{}, {"mlps": {}}, {"mlp": SWIGLU, "mlps": {}}, {"mlp": SWIGLU, "mlps": {"A": MOE}}]
    assert len({mixed(**changes).id for changes in others}) == 4
    assert mixed(mlp={**MOE, "normalize": False}).id != mixed().id


def test_the_id_of_a_model_with_one_kind_of_mlp_does_not_depend_on_how_many_there_could_be():
    architecture = mixed(mlp=SWIGLU, mlps={"A": SWIGLU})
    layers = [[layer.type, dataclasses.asdict(layer.options)] for layer in architecture.layers]
    model = {**architecture.to_dict(), "format": None, "pattern": None, "mixers": layers, "mlp": SWIGLU}
    assert architecture.id == hashlib.sha256(json.dumps(model, sort_keys=True).encode()).hexdigest()[:12]


def test_active_parameters_leave_out_the_experts_that_a_token_does_not_pass():
    architecture, expert = mixed(), 3 * 64 * 16
    assert architecture.active_parameters() == architecture.num_parameters() - 2 * 6 * expert
    bare = architecture.active_parameters(embedding=False, head=True)
    assert bare == architecture.num_parameters(embedding=False, head=True) - 2 * 6 * expert
    assert published("M").active_parameters() == published("M").num_parameters()


def test_flops_count_active_experts_only():
    more = mixed(mlp={**MOE, "num_experts": 80})
    assert more.flops_per_token(64) - mixed().flops_per_token(64) == 2 * 2 * 72 * 64  # their rows of the two routers
    wider = mixed(mlp={**MOE, "experts_per_token": 3})
    assert wider.flops_per_token(64) - mixed().flops_per_token(64) == 2 * 2 * 3 * 64 * 16
