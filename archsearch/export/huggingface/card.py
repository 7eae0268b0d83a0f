"""The README.md of an exported model: how to load it, what it is, and what the study behind it has found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from archsearch import __version__
from archsearch.architecture import Architecture
from archsearch.export.huggingface.weights import Weights
from archsearch.pattern import compact

FRONT_MATTER = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- archsearch
- hybrid
---
"""


def model_card(weights: Weights, evidence: Mapping[str, Any] | None, *, has_tokenizer: bool) -> str:
    """Return the text; `evidence` is a study's evidence.json."""
    architecture = weights.architecture
    parts = [
        FRONT_MATTER,
        f"# {compact(architecture.pattern)}, {_millions(architecture.num_parameters(head=True))} parameters\n",
        f"A hybrid language model, exported by archsearch {__version__}. Its weights are {weights.origin}.\n",
        _usage(has_tokenizer),
        _architecture(architecture),
        _evidence(evidence) if evidence else "",
    ]
    return "\n".join(part for part in parts if part)


def _usage(has_tokenizer: bool) -> str:
    tokenizer = (
        "tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)\n"
        'tokens = tokenizer("Once", return_tensors="pt").input_ids'
        if has_tokenizer
        else "tokens = torch.tensor([[1, 2, 3]])  # of the tokenizer that the model was trained with"
    )
    imports = "AutoModelForCausalLM, AutoTokenizer" if has_tokenizer else "AutoModelForCausalLM"
    first = "" if has_tokenizer else "import torch\n"
    return f"""## Use

```python
{first}from transformers import {imports}

folder = "."
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
{tokenizer}
model.generate(tokens, max_new_tokens=20)
```

PyTorch and transformers are enough; where archsearch {__version__} is installed, its kernels are used. What layers
remember (keys and values, recurrent states, taps of filters) is the cache of `generate`. Rows padded on either side can
be trained on, scored and continued; but a recurrent state cannot skip padding, so `generate` reads them anew for every
token: rows of one length, or one at a time, are faster.
"""


def _architecture(architecture: Architecture) -> str:
    counts = [
        ("layers", f"{len(architecture.layers):,}"),
        ("pattern", f"`{compact(architecture.pattern)}`"),
        ("hidden size", f"{architecture.hidden_size:,}"),
        ("vocabulary", f"{architecture.vocab_size:,}"),
        ("embeddings", "tied to the head" if architecture.tie_embeddings else "not tied to the head"),
        ("parameters with embedding and head", f"{architecture.num_parameters(head=True):,}"),
        ("parameters with embedding, without head", f"{architecture.num_parameters():,}"),
        ("parameters without embedding and head", f"{architecture.num_parameters(embedding=False):,}"),
        ("of these active per token", f"{architecture.active_parameters(embedding=False):,}"),
        ("recurrent state of a sequence, numbers", f"{architecture.state_size:,}"),
        ("id", f"`{architecture.id}`"),
    ]
    used = Counter(architecture.pattern)
    rows = []
    for letter, count in sorted(used.items()):
        layer = next(layer for layer in architecture.layers if layer.letter == letter)
        mlp = f"{layer.mlp.type}, {layer.mlp.options.shape()}"
        rows.append((f"`{letter}`", f"{count}", layer.type, layer.options.shape(), mlp))
    letters = _table(("letter", "layers", "mixer", "shape", "MLP"), rows)
    return f"## Architecture\n\n{_table(('', ''), counts)}\n{letters}"


def _evidence(evidence: Mapping[str, Any]) -> str:
    """Return what the study has found about its candidates, under which conditions, and by which command."""
    versions = ", ".join(f"{name} {version}" for name, version in evidence["versions"].items())
    facts = [
        ("study", evidence["name"]),
        ("finished", f"{evidence['finished']}: {evidence['ending']}"),
        ("command", f"`{evidence['command']}`"),
        ("device", evidence["device"]),
        ("versions", versions),
        ("seed of the search", str(evidence["seed"])),
    ]
    text = f"## Evidence\n\n{_table(('', ''), facts)}"
    trials = {trial["number"]: trial for trial in evidence["trials"]}
    if evidence["confirmed"]:
        text += "\n" + _confirmed(evidence, trials)
    winner = trials.get(evidence["winner"])
    if winner is not None:
        text += "\n" + _budget(winner)
    return text


def _confirmed(evidence: Mapping[str, Any], trials: Mapping[int, Mapping[str, Any]]) -> str:
    """Return a row per candidate that was trained again with fresh seeds, and objective."""
    rows = []
    for found in evidence["confirmed"]:
        trial = trials[found["trial"]]
        role = "winner" if found["trial"] == evidence["winner"] else "base" if found["is_base"] else ""
        for objective in found["objectives"]:
            values = ", ".join(f"{seed}: {value:.4g}" for seed, value in objective["values"].items())
            mean, difference = _estimate(objective["estimate"]), _estimate(objective["difference_to_base"], "+")
            name = f"{trial['number']} `{trial['pattern']}` {role}".strip()
            parameters = "" if trial["parameters"] is None else f"{trial['parameters']:,}"
            rows.append((name, trial["shape"], parameters, objective["label"], mean, difference, values))
    head = ("trial", "shape", "parameters", "objective", "mean", "difference to base", "by seed")
    confidence, number = f"{evidence['confidence']:.0%}", evidence.get("comparisons", 1)
    together = f"; the {number} differences to the base hold together" if number > 1 else ""
    return f"Trained anew with fresh seeds; {confidence} t-intervals in brackets{together}.\n\n{_table(head, rows)}"


def _budget(winner: Mapping[str, Any]) -> str:
    """Return the verdict on each limit of the study's budget."""
    if not winner["checks"]:
        return "The study had no budget that its candidates had to keep within.\n"
    rows = [
        (x["name"], _value(x["value"]), x["limit"], f"{x['verdict']} (P {x['probability']:.2g})", x["source"])
        for x in winner["checks"]
    ]
    head = ("limit", "value", "must be", "verdict", "source")
    return f"The winner against the study's budget:\n\n{_table(head, rows)}"


def _value(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.6g}"


def _estimate(estimate: Mapping[str, Any] | None, sign: str = "") -> str:
    if estimate is None:
        return ""
    if estimate["low"] is None:
        return f"{estimate['mean']:{sign}.4g}{' (one seed)' if estimate['seeds'] else ''}"
    tie = ", a tie" if sign and estimate["is_tie"] else ""
    return f"{estimate['mean']:{sign}.4g} [{estimate['low']:{sign}.4g}, {estimate['high']:{sign}.4g}]{tie}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.1f}M" if count >= 1e5 else f"{count:,}"
