"""The rules of the house: what may import what, and that the links are followed into the package."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = {  # what each room may import besides itself and the core
    "kernels": set(),
    "tokens": set(),
    "mixers": {"kernels"},
    "model": {"mixers", "kernels"},
    "data": {"mixers", "kernels", "tokens"},
    "training": {"model", "data", "mixers", "kernels", "tokens"},
    "throughput": {"model", "mixers", "kernels"},
    "search": {"training", "throughput", "export", "model", "data", "mixers", "kernels", "tokens"},
    "export": {"training", "throughput", "model", "data", "mixers", "kernels", "tokens"},
    "evaluate": {"training", "model", "data", "mixers", "kernels", "tokens"},
    "commands": {
        "search",
        "training",
        "throughput",
        "export",
        "evaluate",
        "model",
        "data",
        "mixers",
        "kernels",
        "tokens",
    },
}
CORE = {"architecture", "pattern", "registry", "mlp_registry", "config", "files", "lifetime"}
OWNERS = {  # who may import a library
    "lightning": {"training", "data"},
    "optuna": {"search"},
    "lm_eval": {"evaluate"},
    "triton": {"kernels"},
}


def modules():
    for folder in ("archsearch", "mixers", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.is_symlink() and not any(parent.is_symlink() for parent in path.parents):
                yield path


def room_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "archsearch" else parts[0]


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", list(modules()), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path):
    room = room_of(path)
    for name in imports_of(path):
        top, *rest = name.split(".")
        if top in OWNERS:
            assert room in OWNERS[top], f"{path} imports {name}"
        if top == "archsearch" and rest and room in LAYERS and rest[0] != room:
            if rest == ["training", "step"] and room == "throughput":
                continue  # a step in plain PyTorch, which knows no Lightning
            assert rest[0] in LAYERS[room] | CORE, f"{path} imports {name}"
        if top == "archsearch" and rest and room in CORE:
            assert rest[0] in CORE, f"{path} imports {name}"


def test_mixers_and_kernels_are_packages_of_archsearch_only():
    assert not (ROOT / "mixers" / "__init__.py").exists()
    assert not (ROOT / "kernels" / "__init__.py").exists()
    for name in ("mixers", "kernels", "search_spaces"):
        assert (ROOT / "archsearch" / name).is_symlink()


def test_the_core_names_no_mixer():
    names = ("attention", "gated_deltanet", "mamba2", "m2rnn")
    for path in [*(ROOT / "archsearch").glob("*.py"), *(ROOT / "archsearch/model").glob("*.py")]:
        strings = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        assert not set(names) & set(map(str, strings)), path


@pytest.mark.parametrize("module", ["archsearch.cli", "archsearch.commands.inspect", "archsearch.pattern"])
def test_the_command_line_starts_without_heavy_imports(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'lightning', 'optuna', 'rich') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).strip() == "[]"
