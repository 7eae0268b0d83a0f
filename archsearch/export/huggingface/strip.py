"""Take out of a definition's text what a copy of it has no use for: registration, choice of backends, figures, checks.

The text is cut, not printed anew from a syntax tree, so comments and layout stay.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from archsearch.export.huggingface.sources import Library, Place

WIDTH = 120

DECORATORS = {"register", "register_mlp", "opaque", "constant"}
CONTRACTS = {("archsearch.registry", "MixerOptions"), ("archsearch.mlp_registry", "MLPOptions")}
"""Bases of options: they declare figures and checks for the search, of which a trained model needs none."""
ATTRIBUTES = {"backends", "no_weight_decay"}
METHODS = {"backend_around", "has_auxiliary_loss"}
PARAMETERS = {"backend", "backends", "kernels"}
ARGUMENTS = {"BACKENDS", "backend", "self.backend", "self.backend_around"}
STATEMENTS = {"record_auxiliary_loss"}

Region = tuple[int, int]


def strip(place: Place, library: Library) -> str:
    """Return the text of a definition as it is copied."""
    source = library.source(place[0])
    node = source.definitions[place[1]]
    cutter = _Cutter(source.text, place[0], library)
    cutter.visit(node)
    start, stop = cutter.region_with_comments(node)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        stop = cutter.end_of_docstring(stop)
    return _tidy(cutter.cut(start, stop))


def is_dispatched(place: Place, library: Library) -> bool:
    """Return whether a function chooses among backends, itself or by what it hands its backends to."""
    source = library.source(place[0])
    node = source.definitions[place[1]]
    is_op = isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    return is_op and any(isinstance(part, ast.Name) and part.id == "BACKENDS" for part in ast.walk(node))


class _Cutter(ast.NodeVisitor):
    """Collects the regions (bytes of the module's text) that are left out."""

    def __init__(self, text: str, module: str, library: Library) -> None:
        self._bytes = text.encode()
        self._module, self._library = module, library
        lines = self._bytes.splitlines(keepends=True)
        self._lines = [0]
        for line in lines:
            self._lines.append(self._lines[-1] + len(line))
        self._comments = {i for i, line in enumerate(lines) if line.startswith(b"#")}
        self._out: list[Region] = []

    def cut(self, start: int, stop: int) -> str:
        """Return the text between two places without the regions."""
        text = bytearray()
        for first, last in sorted(self._out):
            if start <= first < stop:
                text += self._bytes[start:first]
                start = last
            elif first < start < last:
                start = last
        return (bytes(text) + self._bytes[start:stop]).decode()

    def region_with_comments(self, node: ast.stmt) -> Region:
        """Return the lines of a statement, with its decorators and the comments right above it."""
        first, last = self._first_line(node), node.end_lineno or node.lineno
        while first - 2 in self._comments:
            first -= 1
        return self._lines[first - 1], self._lines[last]

    def end_of_docstring(self, stop: int) -> int:
        """Return the end of the text in quotes that follows an assignment, if one does."""
        quoted = re.match(rb'"""(?:.|\n)*?"""\n', self._bytes[stop:])
        return stop + quoted.end() if quoted else stop

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._drop_decorators(node)
        contracts = [i for i, base in enumerate(node.bases) if self._find(base) in CONTRACTS]
        if len(contracts) == len(node.bases) and not node.keywords and contracts:
            colon = self._bytes.index(b":", self._region(node.bases[-1])[1])
            self._out.append((self._bytes.rindex(b"(", 0, self._region(node.bases[0])[0]), colon))
        else:
            self._drop_of([self._region(base) for base in node.bases], contracts)
        dropped = ATTRIBUTES | METHODS | (self._figures() if self._is_options(node) else set())
        if self._is_options(node):
            kept = [item for item in node.body if _name(item) not in dropped]
            used = {part.attr for item in kept for part in ast.walk(item) if isinstance(part, ast.Attribute)}
            dropped |= {name for item in kept if (name := _name(item)) and name.startswith("_") and name not in used}
        for item in node.body:
            if _name(item) in dropped:
                self._drop_statement(item)
            else:
                self.visit(item)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._drop_decorators(node)
        self._drop_parameters(node.args)
        dead = _dead_statements(node)
        live = [item for item in node.body if id(item) not in dead]
        if dead and len(live) == 1 and ast.unparse(live[0]) == "super().__init__()":
            self._drop_statement(node)
            return
        has_docstring = ast.get_docstring(node) is not None
        at_head = takewhile(lambda item: id(item) in dead, node.body[has_docstring:])
        for item in at_head:
            self._drop_statement(item, and_gap=True)
        for item in _outermost(node.body, dead):
            self._drop_statement(item)
        self._visit_live(node.body, dead)

    def visit_Call(self, node: ast.Call) -> None:
        arguments: list[ast.expr | ast.keyword] = sorted([*node.args, *node.keywords], key=lambda x: self._region(x))
        unwanted = [
            i
            for i, argument in enumerate(arguments)
            if (isinstance(argument, ast.keyword) and argument.arg in PARAMETERS)
            or (isinstance(argument, ast.expr) and ast.unparse(argument) in ARGUMENTS)
        ]
        self._drop_of([self._region(argument) for argument in arguments], unwanted)
        self.generic_visit(node)

    def _visit_live(self, body: Iterable[ast.AST], dead: set[int]) -> None:
        for node in body:
            if id(node) in dead:
                continue
            if isinstance(node, ast.Call | ast.FunctionDef | ast.ClassDef):
                self.visit(node)
            else:
                self._visit_live(ast.iter_child_nodes(node), dead)

    def _drop_decorators(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(called, ast.Name) and called.id in DECORATORS:
                self._out.append((self._lines[decorator.lineno - 1], self._lines[decorator.end_lineno or 0]))

    def _drop_parameters(self, arguments: ast.arguments) -> None:
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
        given = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        regions = [(self._region(x)[0], self._region(default or x)[1]) for x, default in given]
        unwanted = [i for i, (x, _) in enumerate(given) if x.arg in PARAMETERS]
        named = range(len(plain), len(given))
        if named and set(named) <= set(unwanted):  # the star in front of them goes too
            self._out.append((regions[len(plain) - 1][1], regions[-1][1]))
            unwanted = [i for i in unwanted if i < len(plain)]
        self._drop_of(regions, unwanted)

    def _drop_of(self, regions: Sequence[Region], unwanted: Sequence[int]) -> None:
        """Leave out some items of a list between commas."""
        for i in unwanted:
            rest = [j for j in range(i + 1, len(regions)) if j not in unwanted]
            before = [j for j in range(i) if j not in unwanted]
            if rest:
                self._out.append((regions[i][0], regions[i + 1][0]))
            elif before:
                self._out.append((regions[i - 1][1], regions[i][1]))
            else:
                comma = re.compile(rb",?\s*").match(self._bytes, regions[i][1])
                self._out.append((regions[i][0], comma.end() if comma else regions[i][1]))

    def _drop_statement(self, node: ast.stmt, and_gap: bool = False) -> None:
        first, last = self._first_line(node), node.end_lineno or node.lineno
        start, stop = self._lines[first - 1], self._lines[last]
        while and_gap and self._bytes[stop : stop + 1] == b"\n":
            stop += 1
        self._out.append((start, stop))

    def _first_line(self, node: ast.stmt) -> int:
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        return min([node.lineno, *(decorator.lineno for decorator in decorators)])

    def _region(self, node: ast.expr | ast.arg | ast.keyword) -> Region:
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def _find(self, base: ast.expr) -> Place | None:
        found = self._library.find(self._module, base.id) if isinstance(base, ast.Name) else None
        return found if isinstance(found, tuple) else None

    def _is_options(self, node: ast.ClassDef) -> bool:
        return _descends(self._module, node, self._library)

    def _figures(self) -> set[str]:
        nodes = [self._library.source(module).definitions[name] for module, name in sorted(CONTRACTS)]
        return {item.name for node in nodes for item in getattr(node, "body", []) if isinstance(item, ast.FunctionDef)}


def _descends(module: str, node: ast.ClassDef, library: Library) -> bool:
    """Return whether a class is made of one of the contracts of options."""
    for base in node.bases:
        found = library.find(module, base.id) if isinstance(base, ast.Name) else None
        if found in CONTRACTS:
            return True
        if isinstance(found, tuple):
            parent = library.source(found[0]).definitions[found[1]]
            if isinstance(parent, ast.ClassDef) and _descends(found[0], parent, library):
                return True
    return False


def _dead_statements(function: ast.FunctionDef) -> set[int]:
    """Return the ids of statements that choose a backend, and of those that nothing is left to use."""
    chosen = {
        ast.unparse(node.targets[0])
        for node in _statements(function.body)
        if isinstance(node, ast.Assign) and _is_choice(node.value)
    }
    statements = list(_statements(function.body))
    dead = {id(node) for node in statements if _is_dispatch(node, chosen)}
    more = dead
    while more:
        unused = _loads([node for node in statements if id(node) in dead], set()) - _loads(function.body, dead)
        more = {
            id(node)
            for node in statements
            if id(node) not in dead and (_gives_value_to(node, unused) or _is_empty(node, dead))
        }
        dead = dead | more
    return dead


def _is_dispatch(node: ast.stmt, chosen: set[str]) -> bool:
    """Return whether a statement chooses a backend, or depends on one of the names that hold what was `chosen`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        return _is_choice(node.value) or (isinstance(called, ast.Name) and called.id in STATEMENTS)
    if isinstance(node, ast.Assign):
        return _is_choice(node.value) or any(ast.unparse(target) in ARGUMENTS for target in node.targets)
    if not isinstance(node, ast.If):
        return False
    parts = list(ast.walk(node.test))
    return any(_is_choice(part) or (isinstance(part, ast.Name) and part.id in chosen) for part in parts)


def _is_choice(node: ast.AST) -> bool:
    """Return whether this is `BACKENDS.choose(...)`."""
    choices = ("BACKENDS.choose", "backends.choose", "self.backends.choose")
    return isinstance(node, ast.Call) and ast.unparse(node.func) in choices


def _gives_value_to(node: ast.stmt, names: set[str]) -> bool:
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1):
        return False
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id in names


def _is_empty(node: ast.stmt, dead: set[int]) -> bool:
    return isinstance(node, ast.If) and all(id(item) in dead for item in [*node.body, *node.orelse])


def _loads(body: Iterable[ast.AST], dead: set[int]) -> set[str]:
    """Return the names that are read outside the dead statements."""
    names = set()
    for node in body:
        if id(node) in dead:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        names |= _loads(ast.iter_child_nodes(node), dead)
    return names


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements and those inside of them."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers"):
            yield from _statements(getattr(node, name, ()))


def _outermost(body: Iterable[ast.stmt], dead: set[int]) -> Iterator[ast.stmt]:
    """Yield the dead statements that do not stand in another one."""
    for node in body:
        if id(node) in dead:
            yield node
        else:
            inner = [item for name in ("body", "orelse", "finalbody", "handlers") for item in getattr(node, name, ())]
            yield from _outermost(inner, dead)


def _name(node: ast.stmt) -> str | None:
    """Return what a statement of a class defines."""
    if isinstance(node, ast.FunctionDef):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return targets[0].id if targets and isinstance(targets[0], ast.Name) else None


def _tidy(text: str) -> str:
    """Lay out what was cut as a formatter would: no gaps, no broken lines that fit into one, no notes to tools."""
    text = re.sub(r"  # (?:type: ignore|noqa)[^\n]*", "", text)
    text = re.sub(r"\n\n +[^\n]*`kernels\b[^\n]*\n(?=\n)", "\n", text)  # a paragraph on a parameter that is gone
    text = re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"
    joined = re.compile(r"^(?P<head>[^\n]*[(\[{])\n +(?P<inner>[^\n]*[^\n,])\n *(?P<tail>[)\]}][^\n]*)$", re.M)
    return joined.sub(_join_if_it_fits, text)


def _join_if_it_fits(match: re.Match[str]) -> str:
    line = match["head"] + match["inner"] + match["tail"]
    return line if len(line) <= WIDTH else match[0]
