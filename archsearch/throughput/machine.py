"""The key of a cost table: this machine, its software, and the code that a step runs."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
from functools import cache
from pathlib import Path

import torch

import archsearch
from archsearch.throughput.conditions import Conditions, describe_device
from archsearch.throughput.cost_table import Key
from archsearch.throughput.device_state import Watch

SOURCES = ("kernels", "mixers", "model", "training/step.py")


def key_of_this_machine(conditions: Conditions) -> Key:
    """Return the key under which a table made here and now would be filed."""
    device = conditions.resolve_device()
    return Key(
        card=describe_device(device),
        driver=Watch(device).driver,
        torch=torch.__version__,
        triton=_version("triton"),
        fla=_version("fla-core"),
        kernels=sources_version(),
        mode=conditions.mode,
        blocks=conditions.blocks,
        precision=conditions.precision,
        batch_size=conditions.batch_size,
        length=conditions.length,
    )


@cache
def sources_version() -> str:
    """Return a hash of the code and tuned configurations of a step; comments, docstrings and layout do not enter."""
    root = Path(archsearch.__file__).parent
    digest = hashlib.sha256()
    for source in SOURCES:
        path = root / source
        files = [path] if path.is_file() else sorted(x for x in path.rglob("*") if x.suffix in (".py", ".json"))
        for file in files:
            text = file.read_text(encoding="utf-8")
            digest.update(f"{file.relative_to(root)}\n".encode())
            digest.update((_meaning(text) if file.suffix == ".py" else text).encode())
    return digest.hexdigest()[:12]


def _meaning(source: str) -> str:
    """Return the lines of a Python file that say what it does, without docstrings, comment lines and blank ones.

    By lines, since what a parser returns differs from one Python to the next.
    """
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            lines[body[0].lineno - 1 : body[0].end_lineno] = [""] * (body[0].end_lineno - body[0].lineno + 1)
    return "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def _is_text(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
