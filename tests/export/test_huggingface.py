import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file

import archsearch
from archsearch.architecture import Architecture
from archsearch.config import ConfigError, Where
from archsearch.export.huggingface import folder as folder_module
from archsearch.export.huggingface import write_huggingface
from archsearch.export.huggingface.modelling import NAME, modelling_file
from archsearch.kernels.m2rnn.op import m2rnn
from archsearch.model.generation import generate
from archsearch.model.language_model import HybridLM
from archsearch.registry import import_plugin
from archsearch.training.checkpoint import PREFIX

pytestmark = pytest.mark.timeout(300)  # importing transformers in a process of its own takes long on a busy machine

VOCABULARY = 24
LENGTH = 70  # more than a chunk, so that the chunked forms run
EOS = 3
MIXERS = {
    "A": {"type": "attention", "num_heads": 4},
    "a": {"type": "attention", "num_heads": 4, "num_kv_heads": 2, "rope": True, "window": 5},
    "B": {"type": "attention", "num_heads": 4, "num_kv_heads": 1, "rope": True, "head_dim": 6},
    "G": {"type": "gated_deltanet", "num_heads": 2, "key_head_dim": 6, "value_head_dim": 10},
    "g": {
        "type": "gated_deltanet",
        "num_heads": 2,
        "num_value_heads": 4,
        "key_head_dim": 6,
        "value_head_dim": 5,
        "gate": False,
        "allow_negative_eigenvalues": True,
    },
    "D": {"type": "gated_deltaproduct", "num_heads": 2, "key_head_dim": 6, "value_head_dim": 10, "num_householder": 3},
    "S": {"type": "mamba2", "num_heads": 4, "head_dim": 6, "state_dim": 5, "num_groups": 2},
    "M": {"type": "m2rnn", "num_heads": 3, "key_head_dim": 6, "value_head_dim": 5},
    "m": {
        "type": "m2rnn",
        "num_heads": 4,
        "num_query_heads": 2,
        "key_head_dim": 3,
        "value_head_dim": 5,
        "conv_width": None,
        "activation": "none",
        "weight_init": "orthogonal",
        "residual": False,
    },
    "N": {"type": "rnn", "num_heads": 3, "head_dim": 5},
    "U": {"type": "gru", "num_heads": 3, "head_dim": 5},
}
MOE = {"type": "moe", "num_experts": 4, "experts_per_token": 2, "intermediate_size": 12, "shared_intermediate_size": 8}
PATTERNS = {
    "attention": "A",
    "attention_window": "aa",
    "attention_rope": "BB",
    "gated_deltanet": "Gg",
    "gated_deltaproduct": "D",
    "mamba2": "S",
    "m2rnn": "Mm",
    "rnn": "N",
    "gru": "U",
    "hybrid": "GGMaG",
    "hybrid_all": "AGDSMNU",
    "hybrid_moe": "SBNU",
}
HYBRIDS = ["hybrid", "hybrid_all", "hybrid_moe"]
OTHERS = {
    "hybrid_all": {"tie_embeddings": True, "norm_eps": 1e-3},
    "hybrid_moe": {"mlps": {"B": MOE, "N": {**MOE, "normalize": False, "shared_intermediate_size": None}}},
}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [
        {"id": EOS, "content": "</s>", "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2, "</s>": EOS, "<unk>": 4}, "unk_token": "<unk>"},
} | dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))


def architecture(pattern, **values):
    sizes = {"hidden_size": 16, "vocab_size": VOCABULARY, "mlp": {"intermediate_size": 20}, "init_std": 0.1}
    mixers = {letter: MIXERS[letter] for letter in pattern if letter in MIXERS}
    return Architecture.from_dict({**sizes, "pattern": pattern, "mixers": mixers, **values}, Where("test"))


def checkpoint_of(model, path, **changes):
    weights = {PREFIX + name: weight for name, weight in model.state_dict().items()}
    options = {"architecture": model.architecture.to_dict()}
    content = {"state_dict": weights, "hyper_parameters": options, "global_step": 7, "tokens_seen": 1234}
    torch.save({**content, **changes}, path)
    return path


def new_model(pattern, seed=1, **values):
    torch.manual_seed(seed)
    return HybridLM(architecture(pattern, **values))


def relative_error(found, expected):
    return float(((found - expected).abs().max() / expected.abs().max()).detach())


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Export a model of each kind, and let a process without archsearch run them all."""
    root = tmp_path_factory.mktemp("huggingface")
    tokenizer = root / "tokenizer.json"
    tokenizer.write_text(json.dumps(TOKENIZER))
    for name, pattern in PATTERNS.items():
        model = new_model(pattern, **OTHERS.get(name, {}))
        path = checkpoint_of(model, root / f"{name}.ckpt")
        write_huggingface(model.architecture, root / name, checkpoint=path, tokenizer=tokenizer)
    write_huggingface(architecture("M"), root / "damaged")
    weights = load_file(root / "damaged" / "model.safetensors")
    del weights["model.blocks.0.mixer.weight"]
    save_file(weights, root / "damaged" / "model.safetensors", {"format": "pt"})
    tokens = torch.randint(VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    torch.save({"models": list(PATTERNS), "in_bfloat16": HYBRIDS, "tokens": tokens}, root / "inputs.pt")
    script = Path(__file__).with_name("load_huggingface.py")
    environment = {**os.environ, "HF_MODULES_CACHE": str(root / "modules"), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [sys.executable, str(script), str(root)],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return root


@pytest.fixture(scope="module")
def results(root):
    return torch.load(root / "results.pt", weights_only=True)


@pytest.fixture(scope="module")
def tokens(root):
    return torch.load(root / "inputs.pt", weights_only=True)["tokens"]


@pytest.mark.parametrize("name", PATTERNS)
class TestWithoutArchsearch:
    def test_logits_equal_ours(self, name, results, tokens):
        expected, _ = new_model(PATTERNS[name], **OTHERS.get(name, {})).eval()(tokens)
        assert results["models"][name]["type"] == "ArchsearchConfig"
        assert relative_error(results["models"][name]["logits"], expected) <= 1e-5

    def test_loss_and_gradients_equal_ours(self, name, results, tokens):
        model = new_model(PATTERNS[name], **OTHERS.get(name, {})).eval()
        targets = torch.cat([tokens[:, 1:], torch.full((2, 1), -100)], dim=1)
        loss, _ = model(tokens, targets=targets)
        loss.backward()
        found = results["models"][name]
        assert relative_error(found["loss"], loss) <= 1e-5
        for ours, parameter in model.named_parameters():
            theirs = found["gradients"]["lm_head.weight" if ours == "head.weight" else f"model.{ours}"]
            assert theirs.isfinite().all()
            assert relative_error(theirs, parameter.grad) <= 1e-3, ours

    def test_greedy_continuations_equal_ours(self, name, results, tokens):
        model = new_model(PATTERNS[name], **OTHERS.get(name, {}))
        expected = generate(model, tokens[:, :9].tolist(), 10, stop=EOS)
        for row, ours in zip(results["models"][name]["continued"], expected, strict=True):
            assert row[: len(ours)] == ours
            assert set(row[len(ours) :]) <= {EOS}  # what fills a row that ended before the other

    def test_parameter_counts_are_the_architectures(self, name, root, results):
        expected = architecture(PATTERNS[name], **OTHERS.get(name, {})).num_parameters(head=True)
        assert results["models"][name]["parameters"] == expected
        stored = load_file(root / name / "model.safetensors")
        assert sum(tensor.numel() for tensor in stored.values()) == expected


@pytest.mark.parametrize("name", HYBRIDS)
def test_loads_and_goes_on_in_bfloat16(name, results):
    found = results["bfloat16"][name]
    assert (found["dtype"], found["length"]) == ("torch.bfloat16", 11)
    assert relative_error(found["logits"], results["models"][name]["logits"]) < 0.1


@pytest.mark.parametrize(
    "what",
    [
        "continued",
        "left padding",
        "right padding",
        "packed",
        "last only",
        "saved",
        "beams",
        "continued left padding",
        "checkpointed",
    ],
)
def test_a_model_in_transformers(what, results):
    found, expected = results["details"][what]
    assert found.shape == expected.shape
    assert relative_error(found.float(), expected.float()) <= 1e-5


def test_a_model_of_the_config_alone_starts_as_ours(results):
    back = 0.1 / (2 * len(PATTERNS["hybrid_all"])) ** 0.5
    expected = {"embedding": 0.1, "in_proj": 0.1, "gate_up_proj": 0.1, "out_proj": back, "down_proj": back}
    assert results["fresh"] == pytest.approx(expected, rel=0.1)


def test_padding_is_refused_where_a_cache_is_wanted(results):
    refused = results["details"]["refused"]
    assert refused.startswith("ValueError: padded rows and packed documents leave no state to go on from: pass rows")


def test_a_cache_of_another_model_is_refused(results):
    assert results["details"]["foreign cache"].startswith("TypeError: the cache must be a StateCache")


def test_files_that_lack_a_weight_do_not_load(results):
    assert results["damaged"] == "ValueError: the files lack weights of the model: model.blocks.0.mixer.weight"


def test_the_tokenizer_comes_along(results, root):
    assert results["tokenizer"] == {"tokens": [1, 0, 2], "text": "b a c", "eos": EOS}
    assert json.loads((root / "hybrid" / "generation_config.json").read_text())["eos_token_id"] == EOS


def test_the_config_holds_the_architecture(root):
    config = json.loads((root / "hybrid_moe" / "config.json").read_text())
    names = ("hidden_size", "vocab_size", "pattern", "mixers", "mlp", "mlps", "norm_eps", "tie_embeddings", "init_std")
    again = Architecture.from_dict({name: config[name] for name in names}, Where("config.json"))
    assert again == architecture("SBNU", **OTHERS["hybrid_moe"])


class TestModellingFile:
    def test_holds_the_mixers_of_the_architecture_alone(self):
        text = modelling_file(architecture("GA"))
        classes = re.findall(r"^class (\w+)", text, re.M)
        assert {"Attention", "GatedDeltaNet", "SwiGLU", "Mixer", "Block", "ArchsearchForCausalLM"} <= set(classes)
        assert not {"M2RNN", "Mamba2", "RNN", "GRU", "GatedDeltaProduct", "MoE"} & set(classes)

    def test_has_no_choice_of_backends_and_no_figures(self):
        text = modelling_file(architecture("AGDSMNU", mlps={"S": MOE}))
        for word in ("BACKENDS", "REFERENCE", "@register", "flops_per_token", "num_parameters", "noqa", "type: ignore"):
            assert word not in text, word

    @pytest.mark.parametrize("pattern", ["A", "AGDSMNU", "S"])
    def test_is_formatted_and_free_of_what_a_linter_finds(self, pattern, tmp_path):
        path = tmp_path / f"{NAME}.py"
        path.write_text(modelling_file(architecture(pattern, mlps={"S": MOE} if "S" in pattern else {})))
        ruff = [sys.executable, "-m", "ruff"]
        options = ["--isolated", "--no-cache", "--line-length=120", str(path)]
        subprocess.run([*ruff, "format", "--check", *options], check=True)
        subprocess.run([*ruff, "check", "--select=E,F,W,I,UP,B", *options], check=True)

    def test_takes_its_kernels_from_the_same_release_only(self, monkeypatch):
        text = modelling_file(architecture("M"))
        for name, wanted in _stand_ins().items():
            monkeypatch.setitem(sys.modules, name, wanted)
        assert _run(text, monkeypatch)["m2rnn"] is m2rnn
        monkeypatch.setattr(archsearch, "__version__", "0.0.1")
        assert _run(text, monkeypatch)["m2rnn"].__module__ == "exported"

    @pytest.mark.usefixtures("third_party")
    def test_copies_the_mixer_of_a_third_party(self):
        values = {"mixers": {"L": {"type": "leaky_average", "keep": 0.5}}}
        text = modelling_file(architecture("L", **values))
        assert "class LeakyAverage(Mixer):" in text
        assert "from leaky_average" not in text

    @pytest.mark.usefixtures("empty_plugin_slot")
    def test_refuses_code_that_cannot_do_without_archsearch(self, monkeypatch, tmp_path):
        source = (Path(__file__).parents[1] / "plugins" / "leaky_average.py").read_text()
        source = source.replace("leaky_average", "stubborn_average").replace('letters="L"', 'letters="s"')
        source = source.replace("self.keep * average", "(self.backend == 'auto') * self.keep * average")
        (tmp_path / "stubborn_average.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        import_plugin("stubborn_average")
        with pytest.raises(ConfigError, match=r"stubborn_average, swiglu cannot be copied: .* self\.backend"):
            modelling_file(architecture("s", mixers={"s": {"type": "stubborn_average"}}))


def _stand_ins():
    """Return modules as transformers has them, without what importing it takes."""
    names = {
        "transformers": ("GenerationMixin", "PretrainedConfig", "PreTrainedModel"),
        "transformers.cache_utils": ("Cache",),
        "transformers.modeling_outputs": ("BaseModelOutputWithPast", "CausalLMOutputWithPast"),
        "transformers.utils": ("logging",),
    }
    modules = {name: ModuleType(name) for name in names}
    for name, classes in names.items():
        for class_name in classes:
            setattr(modules[name], class_name, type(class_name, (), {"__dataclass_fields__": {}}))
    modules["transformers.utils"].can_return_tuple = lambda function: function
    modules["transformers.utils"].logging.get_logger = lambda name: name
    return modules


def _run(text, monkeypatch):
    module = ModuleType("exported")
    monkeypatch.setitem(sys.modules, "exported", module)  # where dataclasses look for it
    exec(compile(text, "exported.py", "exec"), module.__dict__)
    return module.__dict__


class TestWeights:
    def test_fresh_ones_depend_on_the_seed(self, tmp_path):
        for name, seed in (("a", 4), ("b", 4), ("c", 5)):
            write_huggingface(architecture("G"), tmp_path / name, seed=seed)
        a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
        expected = new_model("G", seed=4).state_dict()
        assert torch.equal(a["model.blocks.0.mixer.in_proj.weight"], expected["blocks.0.mixer.in_proj.weight"])
        assert all(torch.equal(a[name], b[name]) for name in a)
        assert not torch.equal(a["lm_head.weight"], c["lm_head.weight"])

    def test_making_them_leaves_the_random_numbers_of_the_caller_alone(self, tmp_path):
        torch.manual_seed(0)
        write_huggingface(architecture("A"), tmp_path / "model", seed=4)
        after = torch.rand(())
        torch.manual_seed(0)
        assert after == torch.rand(())

    def test_an_open_vocabulary_is_the_checkpoints_else_the_tokenizers(self, tmp_path):
        (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        asked = architecture("A", vocab_size=None)
        path = checkpoint_of(new_model("A"), tmp_path / "last.ckpt")
        write_huggingface(asked, tmp_path / "trained", checkpoint=path)
        write_huggingface(asked, tmp_path / "fresh", tokenizer=tmp_path / "tokenizer.json")
        sizes = [json.loads((tmp_path / x / "config.json").read_text())["vocab_size"] for x in ("trained", "fresh")]
        assert sizes == [VOCABULARY, 5]
        with pytest.raises(ConfigError, match="vocab_size: is required where neither a checkpoint nor a tokenizer"):
            write_huggingface(asked, tmp_path / "none")

    @pytest.mark.parametrize(
        ("damage", "rule"),
        [
            (lambda path: path.write_bytes(path.read_bytes()[:2000]), "is no checkpoint of plain tensors and values"),
            (lambda path: path.unlink(), "no such file"),
            (lambda path: _flip(path), r"is damaged: the checksum of \S+ in it is wrong"),
            (
                lambda path: _change(path, "norm.weight", torch.full((16,), torch.nan)),
                "norm.weight: must be finite; holds NaN or infinity",
            ),
            (
                lambda path: _change(path, "norm.weight", torch.ones(16, dtype=torch.int64)),
                "norm.weight: must be floating-point numbers; holds torch.int64",
            ),
            (lambda path: _change(path, "norm.weight", "text"), "state_dict: must be a mapping of tensors"),
            (lambda path: _change(path, "blocks.0.mixer.decay.beta", None), "lacks the weight blocks.0.mixer.decay"),
            (
                lambda path: _change(path, "norm.weight", torch.ones(3)),
                r"the weight norm.weight must have the shape of its architecture; got \[3\], not \[16\]",
            ),
            (lambda path: _change(path, "extra", torch.ones(3)), "holds a weight that its architecture does not have"),
        ],
    )
    def test_a_checkpoint_that_is_not_whole_is_refused(self, damage, rule, tmp_path):
        path = checkpoint_of(new_model("M"), tmp_path / "last.ckpt")
        damage(path)
        with pytest.raises(ConfigError, match=rf"checkpoint: .*{rule}"):
            write_huggingface(architecture("M"), tmp_path / "model", checkpoint=path)
        assert not (tmp_path / "model").exists()

    @pytest.mark.parametrize(
        ("pattern", "values", "key"),
        [
            ("MM", {}, "pattern is M, not M2"),
            ("M", {"hidden_size": 20}, "hidden_size is 16, not 20"),
            ("M", {"vocab_size": 30}, "vocab_size is 24, not 30"),
            ("M", {"tie_embeddings": True}, "tie_embeddings is False, not True"),
        ],
    )
    def test_a_checkpoint_of_another_architecture_is_refused(self, pattern, values, key, tmp_path):
        path = checkpoint_of(new_model("M"), tmp_path / "last.ckpt")
        with pytest.raises(ConfigError, match=f"must hold the architecture that is exported; its {key}"):
            write_huggingface(architecture(pattern, **values), tmp_path / "model", checkpoint=path)


def _change(path, name, weight):
    content = torch.load(path, weights_only=True)
    content["state_dict"].pop(PREFIX + name, None)
    if weight is not None:
        content["state_dict"][PREFIX + name] = weight
    torch.save(content, path)


def _flip(path):
    """Change one bit of a weight."""
    content = bytearray(path.read_bytes())
    weight = torch.load(path, weights_only=True)["state_dict"][f"{PREFIX}embedding.weight"]
    content[content.index(weight.numpy().tobytes())] ^= 1
    path.write_bytes(content)


class TestFolder:
    def test_one_that_exists_is_left_alone(self, tmp_path):
        (tmp_path / "model").mkdir()
        with pytest.raises(ConfigError, match="model: exists already"):
            write_huggingface(architecture("A"), tmp_path / "model")
        assert list((tmp_path / "model").iterdir()) == []

    def test_one_that_cannot_be_made_is_an_error(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match=r"file/model: cannot be written: "):
            write_huggingface(architecture("A"), tmp_path / "file" / "model")

    def test_nothing_half_written_stays(self, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(folder_module, "save_weights", full)
        with pytest.raises(ConfigError, match="model: cannot be written: No space left on device"):
            write_huggingface(architecture("A"), tmp_path / "model")
        assert list(tmp_path.iterdir()) == []

    def test_everybody_may_read_it(self, tmp_path):
        write_huggingface(architecture("A"), tmp_path / "model")
        assert {path.stat().st_mode & 0o444 for path in (tmp_path / "model").iterdir()} == {0o444}


class TestTokenizer:
    def test_settings_beside_it_are_taken_over(self, tmp_path):
        (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        settings = {"eos_token": {"content": "c"}, "chat_template": "{{ x }}", "tokenizer_class": "LlamaTokenizer"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        write_huggingface(architecture("A"), tmp_path / "model", tokenizer=tmp_path)
        written = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
        assert (written["eos_token"], written["chat_template"]) == ("c", "{{ x }}")
        assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
        assert json.loads((tmp_path / "model" / "config.json").read_text())["eos_token_id"] == 2

    @pytest.mark.parametrize("text", ["{", "[]", '{"model": {}}'])
    def test_a_file_that_is_none_is_refused(self, text, tmp_path):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(ConfigError, match=r"tokenizer: .*tokenizer.json: is no tokenizer file of Hugging Face"):
            write_huggingface(architecture("A"), tmp_path / "model", tokenizer=tmp_path / "tokenizer.json")

    def test_one_with_more_tokens_than_the_model_is_refused(self, tmp_path):
        (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        with pytest.raises(ConfigError, match="no more tokens than the model's vocabulary, 4; got 5"):
            write_huggingface(architecture("A", vocab_size=4), tmp_path / "model", tokenizer=tmp_path)


class TestCard:
    def test_tells_the_model_and_where_its_weights_are_from(self, tmp_path):
        model = new_model("GGMaG")
        path = checkpoint_of(model, tmp_path / "last.ckpt")
        write_huggingface(model.architecture, tmp_path / "model", checkpoint=path)
        card = (tmp_path / "model" / "README.md").read_text()
        assert card.startswith("---\nlibrary_name: transformers\n")
        assert "Its weights are of the checkpoint last.ckpt (step 7, 1,234 tokens)." in card
        count = model.architecture.num_parameters(head=True)
        assert f"| parameters with embedding and head | {count:,} |" in card
        assert "| `G` | 3 | gated_deltanet | 2 heads, key 6, value 10 | swiglu, 20 |" in card
        assert "Evidence" not in card

    def test_reports_what_the_study_has_found(self, tmp_path):
        study = Path(__file__).parents[2] / "studies" / "state_tracking_cpu"
        evidence = json.loads((study / "evidence.json").read_text())
        winner = next(trial for trial in evidence["trials"] if trial["number"] == evidence["winner"])
        check = {
            "name": "parameters",
            "value": 87248,
            "limit": "at most 100k",
            "violation": -0.1,
            "verdict": "feasible",
        }
        unknown = {"name": "peak_memory", "value": None, "verdict": "undecided", "probability": 0.5}
        formula = {**check, "probability": 1.0, "source": "formula", "words": ""}
        winner["checks"] = [formula, {**formula, **unknown, "source": "predicted"}]
        write_huggingface(architecture("M"), tmp_path / "model", evidence=evidence)
        card = (tmp_path / "model" / "README.md").read_text()
        assert f"| command | `{evidence['command']}` |" in card
        assert f"torch {evidence['versions']['torch']}" in card
        assert f"| device | {evidence['device']} |" in card
        assert (
            "s3 accuracy @128 | 0.9999 [0.9997, 1] | +0.7967 [+0.7926, +0.8008] | 1000: 1, 1001: 1, 1002: 0.99" in card
        )
        assert "| parameters | 87,248 | at most 100k | feasible (P 1) | formula |" in card
        assert "| peak_memory | unknown | at most 100k | undecided (P 0.5) | predicted |" in card
