"""lm-engine's checkpoints: names, shapes and layouts, proved by what its layers compute from the converted weights.

Each `..._there` below computes a layer as lm-engine's code does, from weights by lm-engine's names.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from archsearch.architecture import Architecture
from archsearch.cli import main
from archsearch.config import ConfigError, Where
from archsearch.export.lm_engine.weights import from_lm_engine_weights, to_lm_engine_weights
from archsearch.export.tensors import load_tensors, save_tensors
from archsearch.model.language_model import HybridLM
from archsearch.training.checkpoint import fresh_checkpoint

D, T = 24, 7
EPS = 1e-5
WHERE = Where("checkpoint")

Weights = dict[str, Tensor]
There = Callable[[Tensor, Weights], Tensor]


def attention_there(x: Tensor, w: Weights) -> Tensor:
    heads, groups, width = 4, 2, 6
    parts = (x @ w["c_attn.weight"].T).view(*x.shape[:2], groups, -1)
    q, k, v = parts.split([heads // groups * width, width, width], dim=-1)
    q = q.reshape(*x.shape[:2], heads, width)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return y.transpose(1, 2).flatten(-2) @ w["c_proj.weight"].T


def deltanet_there(x: Tensor, w: Weights) -> Tensor:
    key_heads, heads, key, value = 1, 2, 5, 4
    qkv = conv_there(x @ w["qkv_proj.weight"].T, w["qkv_conv1d.weight"])
    a, b, g = (x @ w["ab_proj.weight"].T).split([heads, heads, heads * value], dim=-1)
    q, k, v = qkv.split([key_heads * key, key_heads * key, heads * value], dim=-1)
    q, k = (functional.normalize(p.unflatten(-1, (key_heads, -1)), dim=-1, eps=1e-12) for p in (q, k))
    q, k = (part.repeat_interleave(heads // key_heads, dim=-2) for part in (q, k))
    v, beta = v.unflatten(-1, (heads, -1)), b.sigmoid()
    decay = torch.exp(-w["A_log"].exp() * functional.softplus(a + w["dt_bias"]))
    state, outputs = x.new_zeros(len(x), heads, key, value), []
    for t in range(T):
        state = state * decay[:, t, :, None, None]
        recalled = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * (v[:, t] - recalled))
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * key**-0.5)
    y = torch.stack(outputs, dim=1) * functional.silu(g.unflatten(-1, (heads, -1)))
    return functional.rms_norm(y, (value,), w["o_norm.weight"], EPS).flatten(-2) @ w["o_proj.weight"].T


def mamba2_there(x: Tensor, w: Weights) -> Tensor:
    heads, width, state_dim, groups = 4, 3, 5, 2
    inner, shared = heads * width, groups * state_dim
    z, xbc, dt = (x @ w["in_proj.weight"].T).split([inner, inner + 2 * shared, heads], dim=-1)
    values, b, c = conv_there(xbc, w["conv1d.weight"], w["conv1d.bias"]).split([inner, shared, shared], dim=-1)
    values = values.unflatten(-1, (heads, -1))
    b, c = (p.unflatten(-1, (groups, -1)).repeat_interleave(heads // groups, dim=-2) for p in (b, c))
    dt = functional.softplus(dt + w["decay_gate.dt_bias"])
    decay = torch.exp(-w["decay_gate.A_log"].exp() * dt)
    state, outputs = x.new_zeros(len(x), heads, width, state_dim), []
    for t in range(T):
        new = torch.einsum("bhp,bhn->bhpn", dt[:, t, :, None] * values[:, t], b[:, t])
        state = state * decay[:, t, :, None, None] + new
        outputs.append(torch.einsum("bhpn,bhn->bhp", state, c[:, t]) + w["D"][:, None] * values[:, t])
    y = torch.stack(outputs, dim=1).flatten(-2) * functional.silu(z)
    return functional.rms_norm(y, (inner,), w["norm.weight"], EPS) @ w["out_proj.weight"].T


def m2rnn_there(x: Tensor, w: Weights) -> Tensor:
    queries, keys, heads, key, value = 1, 2, 4, 5, 3
    widths = [queries * key, keys * key, heads * value]
    qkv, f, g = (x @ w["input_projection.weight"].T).split([sum(widths), heads, heads * value], dim=-1)
    f = torch.exp(-w["decay_gate.A_log"].exp() * functional.softplus(f + w["decay_gate.dt_bias"]))
    q, k, v = conv_there(qkv, w["conv1d.weight"]).split(widths, dim=-1)
    q = q.unflatten(-1, (queries, -1)).repeat_interleave(heads // queries, dim=-2)
    k = k.unflatten(-1, (keys, -1)).repeat_interleave(heads // keys, dim=-2)
    v = v.unflatten(-1, (heads, -1))
    h, outputs = x.new_zeros(len(x), heads, key, value), []
    for t in range(T):
        z = torch.tanh(h @ w["state_weight"] + k[:, t, :, :, None] * v[:, t, :, None, :])
        h = f[:, t, :, None, None] * h + (1 - f[:, t, :, None, None]) * z
        outputs.append((q[:, t, :, None, :] @ h).squeeze(-2))
    y = torch.stack(outputs, dim=1) + v * w["D"]
    y = y.flatten(-2) * functional.silu(g)
    return functional.rms_norm(y, (heads * value,), w["g_norm.weight"], EPS) @ w["output_projection.weight"].T


def rnn_there(x: Tensor, w: Weights) -> Tensor:
    x, g = (x @ w["input_projection.weight"].T).chunk(2, dim=-1)
    x = conv_there(x, w["conv1d.weight"]).unflatten(-1, (4, -1))
    h, outputs = x.new_zeros(len(x), 4, x.shape[-1]), []
    for t in range(T):
        h = torch.tanh(row_times(h, w["state_weight"]) + x[:, t])
        outputs.append(h)
    return vector_out(outputs, g, w)


def gru_there(x: Tensor, w: Weights) -> Tensor:
    size = 3
    parts = (x @ w["input_projection.weight"].T).split([4 * size, 2 * size, 4 * size, 4 * size], dim=-1)
    x, xf, xr = (part.unflatten(-1, (-1, size)) for part in (conv_there(parts[0], w["conv1d.weight"]), *parts[1:3]))
    xf = xf.repeat_interleave(2, dim=-2)
    weight, forget, reset = w["state_weight"].split([4, 4, 1])
    h, outputs = x.new_zeros(len(x), 4, size), []
    for t in range(T):
        f = torch.sigmoid(row_times(h, forget) + xf[:, t])
        r = torch.sigmoid(row_times(h, reset.expand(4, -1, -1)) + xr[:, t])
        h = f * h + (1 - f) * torch.tanh(row_times(h * r, weight) + x[:, t])
        outputs.append(h)
    return vector_out(outputs, parts[3], w)


def swiglu_there(x: Tensor, w: Weights) -> Tensor:
    return glu(x @ w["c_fc.weight"].T) @ w["c_proj.weight"].T


def moe_there(x: Tensor, w: Weights) -> Tensor:
    tokens = x.flatten(0, 1)
    logits, chosen = (tokens @ w["gate.weight"].T).topk(2, dim=-1)
    outputs = []
    for token, scores, experts in zip(tokens, logits.softmax(-1), chosen, strict=True):
        each = [glu(w["c_fc.weight"][e] @ token) @ w["c_proj.weight"][e].T for e in experts.tolist()]
        outputs.append(sum(score * y for score, y in zip(scores, each, strict=True)))
    shared = glu(tokens @ w["c_fc_shared.weight"].T) @ w["c_proj_shared.weight"].T
    return (torch.stack(outputs) + shared).view(x.shape)


def conv_there(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    channels, one, width = weight.shape
    assert one == 1
    y = functional.conv1d(x.transpose(1, 2), weight, bias, padding=width - 1, groups=channels)
    return functional.silu(y[..., : x.shape[1]].transpose(1, 2))


def glu(x: Tensor) -> Tensor:
    return x[..., 1::2] * functional.silu(x[..., ::2])


def row_times(h: Tensor, weight: Tensor) -> Tensor:
    return (h[..., None, :] @ weight).squeeze(-2)


def vector_out(outputs: list[Tensor], g: Tensor, w: Weights) -> Tensor:
    y = torch.stack(outputs, dim=1).flatten(-2) * functional.silu(g)
    return functional.rms_norm(y, (y.shape[-1],), w["norm.weight"], EPS) @ w["output_projection.weight"].T


MIXERS: dict[str, tuple[dict[str, Any], There]] = {
    "attention": ({"num_heads": 4, "num_kv_heads": 2}, attention_there),
    "gated_deltanet": (
        {"num_heads": 1, "num_value_heads": 2, "key_head_dim": 5, "value_head_dim": 4},
        deltanet_there,
    ),
    "mamba2": ({"num_heads": 4, "head_dim": 3, "state_dim": 5, "num_groups": 2}, mamba2_there),
    "m2rnn": ({"num_heads": 4, "key_head_dim": 5, "value_head_dim": 3, "num_key_heads": 2}, m2rnn_there),
    "rnn": ({"num_heads": 4, "head_dim": 3}, rnn_there),
    "gru": ({"num_heads": 4, "head_dim": 3, "num_forget_input_heads": 2, "num_reset_weight_heads": 1}, gru_there),
}
SWIGLU = {"type": "swiglu", "intermediate_size": 10}
MOE = {
    "type": "moe",
    "num_experts": 3,
    "experts_per_token": 2,
    "intermediate_size": 6,
    "shared_intermediate_size": 8,
}
LETTERS = dict(zip("AGSMNU", MIXERS, strict=True))


@pytest.fixture(scope="module")
def model() -> HybridLM:
    """Return a model with a layer of every mixer, two of them with experts, and no weight at a special value."""
    torch.manual_seed(0)
    model = HybridLM(architecture())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_computes_the_same_from_the_converted_weights(name: str, model: HybridLM) -> None:
    index = list(MIXERS).index(name)
    there = converted(model, f"transformer.h.{index}.sequence_mixer.")
    x = torch.randn(2, T, D, dtype=torch.float64)
    mixer: nn.Module = model.double().blocks[index].mixer  # type: ignore[assignment]
    expected = mixer(x)[0]
    torch.testing.assert_close(
        MIXERS[name][1](x, there), expected, rtol=1e-6, atol=1e-8
    )  # eps inside normalize differs


@pytest.mark.parametrize(("index", "there"), [(0, swiglu_there), (3, moe_there)], ids=["swiglu", "moe"])
def test_an_mlp_computes_the_same_from_the_converted_weights(index: int, there: There, model: HybridLM) -> None:
    x = torch.randn(2, T, D, dtype=torch.float64)
    mlp: nn.Module = model.double().blocks[index].mlp  # type: ignore[assignment]
    torch.testing.assert_close(there(x, converted(model, f"transformer.h.{index}.mlp_block.")), mlp(x))


def test_a_checkpoint_has_the_published_names_and_shapes() -> None:
    """The m2rnn layers of the published 410M models, by hand from lm-engine's modules."""
    published = Architecture.load("search_spaces/published/410m/m2rnn.yaml").with_pattern("M")
    with torch.device("meta"):
        weights = HybridLM(published).state_dict()
    shapes = {name: tuple(x.shape) for name, x in to_lm_engine_weights(published, weights, WHERE).items()}
    assert shapes == {
        "transformer.wte.weight": (100352, 1024),
        "transformer.h.0.ln_1.weight": (1024,),
        "transformer.h.0.sequence_mixer.input_projection.weight": (64 + 64 + 84 * 16 + 84 + 84 * 16, 1024),
        "transformer.h.0.sequence_mixer.conv1d.weight": (64 + 64 + 84 * 16, 1, 4),
        "transformer.h.0.sequence_mixer.decay_gate.A_log": (84,),
        "transformer.h.0.sequence_mixer.decay_gate.dt_bias": (84,),
        "transformer.h.0.sequence_mixer.state_weight": (84, 16, 16),
        "transformer.h.0.sequence_mixer.D": (84, 16),
        "transformer.h.0.sequence_mixer.g_norm.weight": (84 * 16,),
        "transformer.h.0.sequence_mixer.output_projection.weight": (1024, 84 * 16),
        "transformer.h.0.ln_2.weight": (1024,),
        "transformer.h.0.mlp_block.c_fc.weight": (2 * 2752, 1024),
        "transformer.h.0.mlp_block.c_proj.weight": (1024, 2752),
        "transformer.ln_f.weight": (1024,),
        "lm_head.weight": (100352, 1024),
    }


@pytest.mark.parametrize("tied", [False, True])
def test_there_and_back_changes_no_bit(tied: bool) -> None:
    model = HybridLM(architecture(tie_embeddings=tied))
    there = to_lm_engine_weights(model.architecture, model.state_dict(), WHERE)
    assert ("lm_head.weight" in there) is not tied
    back = from_lm_engine_weights(model.architecture, there, WHERE)
    assert same(back, model.state_dict())


def test_a_deltanet_whose_gate_is_a_module_of_its_own_is_read_as_well(model: HybridLM) -> None:
    there = to_lm_engine_weights(model.architecture, model.state_dict(), WHERE)
    place = "transformer.h.1.sequence_mixer."
    for name in ("A_log", "dt_bias"):
        there[f"{place}decay_gate.{name}"] = there.pop(f"{place}{name}")
    assert same(from_lm_engine_weights(model.architecture, there, WHERE), model.state_dict())


def test_missing_unexpected_and_misshapen_weights_are_named(model: HybridLM) -> None:
    there = to_lm_engine_weights(model.architecture, model.state_dict(), WHERE)
    del there["transformer.h.3.sequence_mixer.D"]
    there["transformer.wpe.weight"] = torch.zeros(1)
    there["lm_head.weight"] = there["lm_head.weight"][:50]
    with pytest.raises(ConfigError) as error:
        from_lm_engine_weights(model.architecture, there, WHERE)
    assert str(error.value) == (
        "checkpoint: holds other weights than its architecture has; missing: transformer.h.3.sequence_mixer.D; "
        "unexpected: transformer.wpe.weight; of another shape: lm_head.weight [50, 24] instead of [60, 24]"
    )
    with pytest.raises(
        ConfigError, match=r"missing: embedding\.weight, blocks\.0\.mixer_norm\.weight, .* and \d+ more"
    ):
        to_lm_engine_weights(model.architecture, {}, WHERE)


@pytest.fixture
def run(model: HybridLM, tmp_path: Path) -> Path:
    """Return a folder with a checkpoint as `fit` leaves it, and its architecture's file."""
    model.float()
    torch.save(fresh_checkpoint(model.architecture, model.state_dict()), tmp_path / "last.ckpt")
    model.architecture.save(tmp_path / "a.yaml")
    return tmp_path


def export(run: Path, *flags: str, source: str = "a.yaml") -> int:
    files = ["--checkpoint", str(run / "last.ckpt"), "-o", str(run / "there")]
    return main(["export", str(run / source), "--to", "lm-engine", *files, *flags])


def test_a_trained_model_goes_there_and_comes_back(
    run: Path, model: HybridLM, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(run) == 0
    assert sorted(x.name for x in (run / "there").iterdir()) == ["config.json", "config.yml", "model.safetensors"]
    config = json.loads((run / "there/config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("gpt_base", ["GPTBaseForCausalLM"])
    assert main(["import", str(run / "there"), "-o", str(run / "back")]) == 0
    assert f"wrote {run / 'back'}: AGSMNU, " in capsys.readouterr().out
    assert Architecture.load(run / "back/architecture.yaml") == model.architecture
    saved = torch.load(run / "back/last.ckpt", weights_only=True)["state_dict"]
    assert same({name.removeprefix("model."): x for name, x in saved.items()}, model.state_dict())
    assert main(["generate", str(run / "back"), "--tokens", "1,2", "--max-new-tokens", "2", "--temperature", "0"]) == 0
    assert main(["import", str(run / "there/config.yml"), "-o", str(run / "b.yaml")]) == 0
    assert Architecture.load(run / "b.yaml") == model.architecture


def test_training_goes_on_from_an_imported_checkpoint(run: Path) -> None:
    small = HybridLM(architecture(vocab_size=257, pattern="GA"))
    torch.save(fresh_checkpoint(small.architecture, small.state_dict()), run / "last.ckpt")
    flags = ["--data=Text", "--data.length=16", "--data.batch_size=2", "--data.eval_tokens=32", "--trainer.max_steps=2"]
    flags += [f"--trainer.default_root_dir={run}", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    assert main(["fit", f"--ckpt_path={run / 'last.ckpt'}", *flags]) == 0
    saved = torch.load(next(run.rglob("checkpoints/last.ckpt")), weights_only=True)
    assert saved["global_step"] == 2
    change = saved["state_dict"]["model.embedding.weight"] - small.embedding.weight
    assert 0 < change.abs().max() < 0.01  # two steps away from what was imported


def test_another_model_than_the_checkpoints_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    architecture(pattern="AG").save(run / "other.yaml")
    assert export(run, source="other.yaml") == 1
    assert "last.ckpt holds another model (id " in capsys.readouterr().err
    architecture(vocab_size=None).save(run / "open.yaml")
    assert export(run, source="open.yaml") == 0  # the checkpoint knows the vocabulary
    assert not list(run.glob(".there*"))


def test_a_trained_model_may_have_started_in_any_way(run: Path) -> None:
    started = {"M": {"type": "m2rnn", "weight_init": "orthogonal"}}
    whole = HybridLM(Architecture.from_dict({**values(), "pattern": "M", "mixers": started, "mlps": {}}, WHERE))
    torch.save(fresh_checkpoint(whole.architecture, whole.state_dict()), run / "last.ckpt")
    whole.architecture.save(run / "a.yaml")
    assert export(run) == 0
    assert main(["export", str(run / "a.yaml"), "--to", "lm-engine", "-o", str(run / "b.yml")]) == 0
    noted = ["starts the recurrent weights" in path.read_text() for path in (run / "there/config.yml", run / "b.yml")]
    assert noted == [False, True]


def test_corrupt_and_missing_files_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(run) == 0
    file = run / "there/model.safetensors"
    whole = file.read_bytes()
    for content, said in ((whole[: len(whole) // 2], "is no safetensors file"), (b"", "is no safetensors file")):
        file.write_bytes(content)
        assert main(["import", str(run / "there"), "-o", str(run / "back")]) == 1
        assert f"{file}: {said}" in capsys.readouterr().err
    file.unlink()
    assert main(["import", str(run / "there"), "-o", str(run / "back")]) == 1
    assert f"{file}: no such file" in capsys.readouterr().err
    (run / "there/config.json").write_text("{")
    assert main(["import", str(run / "there"), "-o", str(run / "back")]) == 1
    assert "config.json: is not valid JSON" in capsys.readouterr().err
    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    next(iter(checkpoint["state_dict"].values())).fill_(torch.inf)
    torch.save(checkpoint, run / "last.ckpt")
    assert export(run, "--force") == 1
    assert "must be finite; holds NaN or infinity" in capsys.readouterr().err
    (run / "last.ckpt").write_bytes(b"PK")
    assert export(run, "--force") == 1
    assert "last.ckpt is no checkpoint of plain tensors and values" in capsys.readouterr().err
    assert (run / "there/config.yml").is_file()  # what was there stays
    assert not (run / "back").exists()


def test_weights_in_several_files_are_read_by_their_index(tmp_path: Path) -> None:
    first, second = {"a": torch.ones(2)}, {"b": torch.zeros(3)}
    save_tensors(tmp_path / "one.safetensors", first)
    save_tensors(tmp_path / "two.safetensors", second)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert same(load_tensors(tmp_path), {**first, **second})
    index.write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    with pytest.raises(ConfigError, match=r"a file must lie beside it; got '../one.safetensors'"):
        load_tensors(tmp_path)
    index.write_text("[]")
    with pytest.raises(ConfigError, match="is no index of safetensors files"):
        load_tensors(tmp_path)


def architecture(**changes: Any) -> Architecture:
    return Architecture.from_dict({**values(), **changes}, WHERE)


def values() -> dict[str, Any]:
    mixers = {x: {"type": name, **MIXERS[name][0]} for x, name in LETTERS.items()}
    sizes = {"hidden_size": D, "vocab_size": 60, "pattern": "AGSMNU", "norm_eps": EPS}
    return {**sizes, "mixers": mixers, "mlp": SWIGLU, "mlps": {"M": MOE, "U": MOE}}


def converted(model: HybridLM, prefix: str) -> Weights:
    there = to_lm_engine_weights(model.architecture, model.double().state_dict(), WHERE)
    return {name.removeprefix(prefix): x for name, x in there.items() if name.startswith(prefix)}


def same(first: Weights, second: Weights) -> bool:
    return first.keys() == second.keys() and all(torch.equal(x, second[name]) for name, x in first.items())
