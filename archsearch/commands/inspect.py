"""`archsearch inspect`: what an architecture consists of and costs, without building it."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from typing import Any

from archsearch.commands.options import add_architecture_arguments, add_json_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("architecture", metavar="PATTERN|FILE", help="layer pattern such as RRRRRRMA, or a YAML file")
    add_architecture_arguments(parser)
    parser.add_argument("--length", type=int, default=4096, help="tokens per sequence, for cache and FLOPs (4096)")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the layer table and the derived figures."""
    from archsearch.architecture import resolve
    from archsearch.config import ConfigError

    if args.length < 1:
        raise ConfigError(f"--length: must be at least 1; got {args.length}")
    architecture = resolve(args.architecture, args.like)
    figures = describe(architecture, args.length)
    if args.json:
        print(json.dumps(figures, indent=2))
    else:
        _print(architecture, figures)
    return 0


def describe(architecture: Any, length: int) -> dict[str, Any]:
    """Return the figures of an architecture as plain values."""
    from archsearch.pattern import compact

    hidden_size = architecture.hidden_size
    return {
        "id": architecture.id,
        "pattern": {"compact": compact(architecture.pattern), "expanded": architecture.pattern},
        "num_layers": len(architecture.pattern),
        "hidden_size": hidden_size,
        "vocab_size": architecture.vocab_size,
        "parameters": architecture.num_parameters(),
        "parameters_with_head": architecture.num_parameters(head=True),
        "parameters_without_embedding": architecture.num_parameters(embedding=False),
        "active_parameters": architecture.active_parameters(),
        "state_size": architecture.state_size,
        "length": length,
        "cache_bytes": architecture.cache_bytes(length),
        "flops_per_token": architecture.flops_per_token(length),
        "layers": [
            {
                "index": layer.index,
                "letter": layer.letter,
                "type": layer.type,
                "options": dataclasses.asdict(layer.options),
                "mlp": layer.mlp.to_dict(),
                "mixer_parameters": layer.options.num_parameters(hidden_size),
                "parameters": architecture.layer_parameters(layer),
                "state_size": layer.options.state_size(hidden_size),
                "flops_per_token": layer.options.flops_per_token(hidden_size, length),
            }
            for layer in architecture.layers
        ],
    }


def _print(architecture: Any, figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("layers", "letter", "mixer", "shape", box=None, pad_edge=False, header_style="bold")
    for column in ("mixer parameters", "block parameters", "state", "mixer FLOPs/token"):
        table.add_column(column, justify="right")
    for letter, group in itertools.groupby(figures["layers"], key=lambda layer: layer["letter"]):
        run = list(group)
        first, last = run[0], run[-1]
        table.add_row(
            str(first["index"]) if len(run) == 1 else f"{first['index']}-{last['index']}",
            letter,
            first["type"],
            architecture.mixers[letter].options.shape(),
            f"{first['mixer_parameters']:,}",
            f"{first['parameters']:,}",
            f"{first['state_size']:,}",
            f"{first['flops_per_token']:,.0f}",
        )
    console = Console(width=None if Console().is_terminal else 140, highlight=False)
    console.print(f"[bold]{figures['pattern']['compact']}[/bold]  {figures['num_layers']} layers, id {figures['id']}\n")
    console.print(table)
    console.print("figures in a row are per layer\n")
    vocabulary = figures["vocab_size"]
    for name, value in {
        "hidden size": f"{figures['hidden_size']:,}",
        "vocabulary": f"{vocabulary:,}" if vocabulary else "given by the data (counted as 0 here)",
        "parameters": f"{figures['parameters']:,} with the input embedding, without the head",
        "": f"{figures['parameters_with_head']:,} with the head",
        **_active(figures),
        **_mlps(architecture),
        "recurrent state": f"{figures['state_size']:,} elements per sequence",
        f"cache at {figures['length']:,} tokens": f"{figures['cache_bytes']:,} bytes per sequence in bf16",
        "forward FLOPs per token": f"{figures['flops_per_token']:,.0f} (training: x 3)",
        "legal": "yes",
    }.items():
        console.print(f"{name:<26}{value}")


def _active(figures: dict[str, Any]) -> dict[str, str]:
    active = figures["active_parameters"]
    if active == figures["parameters"]:
        return {}
    return {"active parameters": f"{active:,} per token, with the input embedding, without the head"}


def _mlps(architecture: Any) -> dict[str, str]:
    """Return the MLP, or that of each letter where they differ."""
    texts = {layer.letter: f"{layer.mlp.type} {layer.mlp.options.shape()}" for layer in architecture.layers}
    if len(set(texts.values())) == 1:
        return {"MLP": next(iter(texts.values()))}
    return {f"MLP of {letter}": text for letter, text in texts.items()}
