"""The modelling file of an exported folder: our own definitions, copied as far as the architecture needs them."""

from __future__ import annotations

import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping

from archsearch import __version__, mlp_registry, registry
from archsearch.architecture import Architecture
from archsearch.config import ConfigError
from archsearch.export.huggingface.sources import Import, Library, Place, closure, names_in
from archsearch.export.huggingface.strip import WIDTH, is_dispatched, strip
from archsearch.pattern import compact

Plugin = registry.Plugin | mlp_registry.MLPPlugin

NAME = "modeling_archsearch"
GLUE = "archsearch.export.huggingface.glue"
PARTS = "archsearch.export.huggingface.parts"
CLASSES = {
    "AutoConfig": "ArchsearchConfig",
    "AutoModel": "ArchsearchModel",
    "AutoModelForCausalLM": "ArchsearchForCausalLM",
}


def modelling_file(architecture: Architecture) -> str:
    """Return the text of a module that needs PyTorch and transformers alone.

    Raises ConfigError where a mixer chooses its backend in a way that cannot be taken out of a copy.
    """
    mixers: dict[str, Plugin] = {layer.type: registry.get(layer.type) for layer in architecture.layers}
    mlps: dict[str, Plugin] = {layer.mlp.type: mlp_registry.get(layer.mlp.type) for layer in architecture.layers}
    plugins: list[Plugin] = [*mixers.values(), *mlps.values()]
    used = [part for plugin in plugins for part in (plugin.options, plugin.module)]
    packages = {"archsearch", *(part.__module__.split(".")[0] for part in used)}
    library = Library(packages, {PARTS: _parts(mixers, mlps)})

    stripped: dict[Place, str] = {}

    def text_of(place: Place) -> str:
        return stripped.setdefault(place, strip(place, library)) if place not in stripped else stripped[place]

    places = closure([(GLUE, name) for name in CLASSES.values()], library, text_of)
    renamed = _renamed(places)
    imports: dict[str, Import] = {}
    sections: dict[str, list[str]] = {}
    for place in places:
        text = text_of(place)
        new_names: dict[str, str] = {}
        for name in names_in(text):
            found = library.find(place[0], name)
            if isinstance(found, Import):
                assert imports.setdefault(name, found) == found, f"two meanings of {name}: {found}, {imports[name]}"
            elif found in renamed:
                new_names[name] = renamed[found]
            elif found is not None:
                new_names[name] = found[1]
        sections.setdefault(place[0], []).append(_rename(text, {**new_names, **_own(place, renamed)}))
    assert not set(imports) & {renamed.get(place, place[1]) for place in places}
    ops = [place for place in places if is_dispatched(place, library)]
    header = [_docstring(architecture), "from __future__ import annotations\n", _import_lines(imports)]
    body = [_section(module, library.source(module).docstring, texts) for module, texts in sections.items()]
    code = "\n".join(body)
    if left := re.search(r"\bBACKENDS\b|\bself\.backends?\b|\bfrom archsearch\b", code):
        types = ", ".join([*mixers, *mlps])
        raise ConfigError(f"huggingface: the code of {types} cannot be copied: it still mentions {left[0]}")
    return "\n".join([*header, code, _kernels(ops)])


def _parts(mixers: Mapping[str, Plugin], mlps: Mapping[str, Plugin]) -> str:
    """Return the module `parts` of this architecture."""
    lines = ['"""The mixers and MLPs of this model by the names of their types."""\n']
    tables = []
    for table, plugins in (("MIXERS", mixers), ("MLPS", mlps)):
        entries = []
        for name, plugin in sorted(plugins.items()):
            for part in (plugin.options, plugin.module):
                lines.append(f"from {part.__module__} import {part.__name__}")
            entries.append(f'"{name}": ({plugin.options.__name__}, {plugin.module.__name__})')
        line = f"{table} = {{{', '.join(entries)}}}"
        tables.append(line if len(line) <= WIDTH else f"{table} = {{\n    " + ",\n    ".join(entries) + ",\n}")
    return "\n".join([*lines, "", *tables]) + "\n"


def _renamed(places: Iterable[Place]) -> dict[Place, str]:
    """Give names that several modules define a prefix that tells the module."""
    owners = defaultdict(list)
    for place in places:
        owners[place[1]].append(place)
    renamed = {}
    for name, owned in owners.items():
        for place in owned if len(owned) > 1 else []:
            renamed[place] = _prefixed(name, _tag(place[0]))
    assert len(set(renamed.values())) == len(renamed)
    return renamed


def _prefixed(name: str, tag: str) -> str:
    if name.isupper():
        return f"{tag.upper()}_{name}"
    return f"_{tag}{name}" if name.startswith("_") else f"{tag}_{name}"


def _tag(module: str) -> str:
    """Return the folder of a kernel's file, else the file."""
    *_, folder, file = module.split(".")
    return folder if file in ("op", "reference", "chunk", "product") else file


def _own(place: Place, renamed: Mapping[Place, str]) -> dict[str, str]:
    return {place[1]: renamed[place]} if place in renamed else {}


def _rename(text: str, names: Mapping[str, str]) -> str:
    """Rename what a definition defines and mentions, docstrings and comments included."""
    for old, new in names.items():
        if old != new:
            text = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)(?!=[^=])", new, text)
    return "\n".join(map(_wrap, text.split("\n")))


def _wrap(line: str) -> str:
    """Break an assignment that a longer name has made too long, as a formatter would."""
    parts = re.fullmatch(r"( *)([^=()]+ = )([^(].*)", line)
    if len(line) <= WIDTH or parts is None:
        return line
    indent, target, value = parts.groups()
    return f"{indent}{target}(\n{indent}    {value}\n{indent})"


def _docstring(architecture: Architecture) -> str:
    pattern = compact(architecture.pattern)
    shown = pattern if len(pattern) <= 60 else pattern[:57] + "..."
    return f'''"""A hybrid language model of {len(architecture.layers)} layers, {shown}, for transformers.

archsearch {__version__} has put this file together from its own modules, as far as the model needs them; each section
names the one it is from. PyTorch and transformers are all that it needs. Where the same release of archsearch is
installed, its kernels take the place of the functions of the same names here.
"""
'''


def _import_lines(imports: Mapping[str, Import]) -> str:
    """Return the import statements, sorted as isort does: standard library first."""
    modules: dict[tuple[bool, bool, str], set[str]] = defaultdict(set)
    for name, found in imports.items():
        third_party = found.module.split(".")[0] not in sys.stdlib_module_names
        statement = found.statement(name)
        is_from = statement.startswith("from")
        key = statement.split(" import ")[0] if is_from else statement
        modules[third_party, is_from, key].add(statement.split(" import ")[1] if is_from else "")
    groups: dict[bool, list[str]] = {False: [], True: []}
    for (third_party, is_from, key), names in sorted(modules.items()):
        line = f"{key} import {', '.join(sorted(names, key=_import_order))}" if is_from else key
        groups[third_party].append(line)
    return "\n\n".join("\n".join(lines) for lines in groups.values() if lines) + "\n"


def _import_order(name: str) -> tuple[int, str]:
    """Sort constants, then classes, then functions."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2), name.lower()


def _section(module: str, docstring: str, texts: list[str]) -> str:
    """Return the definitions of one module under a heading."""
    path = module.replace(".", "/") + ".py"
    lines = [line for paragraph in docstring.split("\n\n") for line in ["", *_fill(paragraph)]][1:]
    text = "\n".join([f"# {path} ".ljust(WIDTH, "-"), *(f"# {line}".rstrip() for line in lines)]) + "\n"
    was_constant = True
    for definition in texts:
        is_constant = not re.match(r"(?:@|class |def )", definition)
        text += ("\n" if is_constant and was_constant else "\n\n") + definition
        was_constant = is_constant
    return text + "\n"


def _fill(paragraph: str) -> list[str]:
    """Break a paragraph's lines anew where one is too long for a comment."""
    lines = paragraph.splitlines()
    return lines if all(len(line) <= WIDTH - 2 for line in lines) else textwrap.wrap(paragraph, WIDTH - 2)


def _kernels(ops: Iterable[Place]) -> str:
    """Return the end of the file: what takes the place of its functions where archsearch is installed."""
    imports = "\n".join(f"        from {module} import {name}" for module, name in sorted(ops))
    return f'''{"# the same functions with kernels ".ljust(WIDTH, "-")}

try:
    import archsearch

    if archsearch.__version__ == "{__version__}":  # another release's may differ
{imports}
except ImportError:
    pass
'''
