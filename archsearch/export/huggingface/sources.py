"""Modules as text: what each defines and imports, and everything that a definition needs, over all modules."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
Place = tuple[str, str]
"""A module and a name that it defines."""


@dataclass(frozen=True)
class Import:
    """A name from elsewhere: an attribute of a module, or with None the module itself."""

    module: str
    attribute: str | None

    def statement(self, name: str) -> str:
        """Return the line that imports it as `name`."""
        if self.attribute is None:
            return f"import {self.module}" + ("" if name == self.module.split(".")[0] else f" as {name}")
        return f"from {self.module} import {self.attribute}" + ("" if name == self.attribute else f" as {name}")


@dataclass(frozen=True)
class Source:
    """One module: its text, what it defines at its top level, and what it imports there."""

    name: str
    text: str
    docstring: str
    definitions: Mapping[str, Definition]
    imports: Mapping[str, Import]

    @classmethod
    def parse(cls, name: str, text: str) -> Source:
        """Read a module's text."""
        tree = ast.parse(text)
        definitions: dict[str, Definition] = {}
        imports: dict[str, Import] = {}
        for node in _top_level(tree):
            if isinstance(node, ast.Import):
                imports |= {_first(alias): Import(alias.name, None) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                imports |= {alias.asname or alias.name: Import(str(node.module), alias.name) for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                definitions[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                definitions |= {target.id: node for target in _targets(node) if isinstance(target, ast.Name)}
        return cls(name, text, ast.get_docstring(tree) or "", definitions, imports)

    @classmethod
    def find(cls, name: str) -> Source:
        """Read an importable module without running it, or as it was run where that has happened."""
        spec = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None, f"{name} has no source"
        return cls.parse(name, Path(spec.origin).read_text(encoding="utf-8"))


class Library:
    """The modules whose definitions are copied; those of any other package are imported."""

    def __init__(self, packages: set[str], made: Mapping[str, str]) -> None:
        """Take the names of top-level packages, and the texts of modules that stand in for files of their names."""
        self._packages = packages
        self._sources = {name: Source.parse(name, text) for name, text in made.items()}

    def source(self, name: str) -> Source:
        """Return a module."""
        if name not in self._sources:
            self._sources[name] = Source.find(name)
        return self._sources[name]

    def find(self, module: str, name: str) -> Place | Import | None:
        """Return where `name`, as `module` uses it, is defined, or how it is imported; None for a built-in."""
        source = self.source(module)
        if name in source.definitions:
            return module, name
        found = source.imports.get(name)
        if found is None or found.module.split(".")[0] not in self._packages:
            return found
        assert found.attribute is not None, f"{module}: import {found.module} cannot be copied"
        return self.find(found.module, found.attribute)


def closure(roots: list[Place], library: Library, text_of: Callable[[Place], str]) -> list[Place]:
    """Return everything that the `roots` need, `text_of` each being what it is copied as.

    What a module imports stands before it, and a module's own definitions in the order of their text.
    """
    needed: dict[str, set[str]] = {}
    order: list[str] = []

    def visit(place: Place) -> None:
        module, name = place
        if name in needed.setdefault(module, set()):
            return
        needed[module].add(name)
        for used in names_in(text_of(place)):
            found = library.find(module, used)
            if isinstance(found, tuple):
                visit(found)
        if module not in order:
            order.append(module)

    for root in roots:
        visit(root)
    return [(module, name) for module in _sorted(order, library) for name in _kept(library.source(module), needed)]


@lru_cache(maxsize=1024)
def names_in(text: str) -> list[str]:
    """Return the names that a definition mentions, annotations included, each once and in alphabetical order."""
    return sorted({node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)})


def _kept(source: Source, needed: Mapping[str, set[str]]) -> list[str]:
    return [name for name in source.definitions if name in needed[source.name]]


def _sorted(modules: list[str], library: Library) -> list[str]:
    """Return the modules so that each follows those that it imports from."""
    done: list[str] = []

    def visit(module: str) -> None:
        imported = {found.module for found in library.source(module).imports.values()}
        for other in modules:
            if other in imported and other not in done:
                visit(other)
        if module not in done:
            done.append(module)

    for module in modules:
        visit(module)
    return done


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module and those under `if TYPE_CHECKING`."""
    for node in tree.body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from node.body
        else:
            yield node


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _first(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]
