"""Load exported folders as a stranger does, who has no archsearch, and write down what their models compute."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch


class NoArchsearch:
    """Stands first in sys.meta_path, so that nothing finds archsearch, installed or not."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        if name.split(".")[0] == "archsearch":
            raise ImportError(f"No module named {name!r}")


def main(root: Path) -> None:
    """Run every model of `root` on the inputs of root/inputs.pt; the findings are in root/results.pt."""
    sys.meta_path.insert(0, NoArchsearch())
    try:
        importlib.import_module("archsearch")
    except ImportError:
        pass
    else:
        raise AssertionError("archsearch can be imported, so this would prove nothing")
    inputs = torch.load(root / "inputs.pt", weights_only=True)
    results: dict[str, Any] = {"models": {name: run(root / name, inputs) for name in inputs["models"]}}
    results["bfloat16"] = {name: in_bfloat16(root / name, inputs["tokens"]) for name in inputs["in_bfloat16"]}
    results["fresh"] = fresh(root / "hybrid_all")
    results["damaged"] = refusal(lambda: load(root / "damaged"))
    results["tokenizer"] = tokenize(root / inputs["models"][0])
    results["details"] = details(load(root / "hybrid").eval(), inputs["tokens"])
    torch.save(results, root / "results.pt")


def load(folder: Path, **kwargs: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **kwargs)


def run(folder: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return logits, loss, the loss's gradients, greedy continuations and a count of parameters."""
    model = load(folder).eval()
    tokens = inputs["tokens"]
    outputs = model(tokens, labels=tokens)
    outputs.loss.backward()
    continued = model.generate(tokens[:, :9], max_new_tokens=10, do_sample=False)
    return {
        "type": type(model.config).__name__,
        "logits": outputs.logits.detach(),
        "loss": outputs.loss.detach(),
        "gradients": {name: parameter.grad for name, parameter in model.named_parameters()},
        "continued": continued[:, 9:].tolist(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def fresh(folder: Path) -> dict[str, float]:
    """Return how widely the weights of a new model of the folder's config are spread."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    weights = {name: [] for name in ("embedding", "in_proj", "gate_up_proj", "out_proj", "down_proj")}
    for name, parameter in model.named_parameters():
        if (part := name.removesuffix(".weight").rsplit(".", 1)[-1]) in weights:
            weights[part].append(parameter.detach().flatten())
    return {name: float(torch.cat(found).std()) for name, found in weights.items()}


def in_bfloat16(folder: Path, tokens: torch.Tensor) -> dict[str, Any]:
    model = load(folder, dtype=torch.bfloat16).eval()
    continued = model.generate(tokens[:, :9], max_new_tokens=2)
    return {"dtype": str(model.dtype), "logits": model(tokens).logits.detach().float(), "length": continued.shape[1]}


@torch.no_grad()
def details(model: Any, tokens: torch.Tensor) -> dict[str, Any]:
    """Return what padding, packing, caches, beams and saving do, each beside what it must equal."""
    whole = model(tokens)
    name = "cache" if "cache" in whole else "past_key_values"
    start = model(tokens[:, :7])
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    mask[1, -3:] = 0
    padded = model(tokens, attention_mask=mask).logits
    positions = torch.cat([torch.arange(9), torch.arange(tokens.shape[1] - 9)])[None]
    beams = {"num_beams": 3, "max_new_tokens": 6, "do_sample": False}
    model.save_pretrained("saved")
    saved = load(Path("saved")).eval()
    model.train()
    model.gradient_checkpointing_enable()
    with torch.enable_grad():
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        embedding = model.get_input_embeddings().weight
    model.eval()
    return {
        "continued": [model(tokens[:, 7:], **{name: start[name]}).logits, whole.logits[:, 7:]],
        "left padding": [padded[0, 5:], model(tokens[:1, 5:]).logits[0]],
        "right padding": [padded[1, :-3], model(tokens[1:, :-3]).logits[0]],
        "packed": [model(tokens[:1], position_ids=positions).logits[0, 9:], model(tokens[:1, 9:]).logits[0]],
        "last only": [model(tokens, logits_to_keep=1).logits, whole.logits[:, -1:]],
        "saved": [saved(tokens).logits, whole.logits],
        "beams": [model.generate(tokens, **beams), model.generate(tokens, use_cache=False, **beams)],
        "continued left padding": [
            model.generate(tokens[:, :20], attention_mask=mask[:1, :20].expand(2, -1), max_new_tokens=4)[:, -4:],
            model.generate(tokens[:, 5:20], max_new_tokens=4)[:, -4:],
        ],
        "checkpointed": [embedding.grad, inputs_gradient(saved, tokens)],
        "refused": refusal(lambda: model(tokens, attention_mask=mask, use_cache=True)),
        "foreign cache": refusal(lambda: model(tokens, **{name: foreign_cache()})),
    }


def inputs_gradient(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        model(tokens, labels=tokens).loss.backward()
    gradient: torch.Tensor = model.get_input_embeddings().weight.grad
    return gradient


def foreign_cache() -> Any:
    from transformers import DynamicCache

    cache = DynamicCache()
    cache.update(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4), 0)
    return cache


def tokenize(folder: Path) -> dict[str, Any]:
    """Return what the folder's own tokenizer makes of a text, and which token ends one."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    tokens = tokenizer("b a c").input_ids
    return {"tokens": tokens, "text": tokenizer.decode(tokens), "eos": tokenizer.eos_token_id}


def refusal(run: Any) -> str:
    try:
        run()
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
