"""Combines the modules of `standalone` into the one module that generated scripts import."""

from __future__ import annotations

import ast
import functools
import graphlib
import hashlib
import inspect
import re
import symtable
from collections.abc import Iterable
from importlib import resources
from types import ModuleType
from typing import NamedTuple

from stagespan.harness import standalone

PREFIX = "_stagespan_replay_"

_HEAD = '''"""Makes inputs, and runs and measures steps, for scripts profile_*.py in this folder.

Written by stagespan, which it does not need. It needs torch. Its name contains a hash of this text,
so scripts of different versions of stagespan can be in one folder, and run in one process.
"""

from __future__ import annotations

'''


class ReplayModule(NamedTuple):
    """The module beside a script."""

    name: str
    """``_stagespan_replay_`` and the first 12 hexadecimal digits of the SHA-256 of the text."""
    text: str
    defined: frozenset[str]
    """The names of its functions, classes and constants."""

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"{self.name}.py"


@functools.lru_cache(maxsize=16)
def replay_module(more: tuple[ModuleType, ...] = ()) -> ReplayModule:
    """Return the modules of `standalone`, and ``more`` modules, as one module.

    Imports of stagespan are left out, because what they import is in the same module.
    """
    texts = {
        f"{standalone.__name__}.{file.name.removesuffix('.py')}": file.read_text("utf-8")
        for file in sorted(resources.files(standalone).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".py") and file.name != "__init__.py"
    }
    texts.update((module.__name__, inspect.getsource(module)) for module in more)
    trees = {name: ast.parse(text) for name, text in texts.items()}
    # A module comes after those from which it imports, as base classes must be defined first.
    imported = {name: sorted(_imported(tree) & trees.keys()) for name, tree in trees.items()}
    parts = [
        _without_imports(texts[name], trees[name])
        for name in graphlib.TopologicalSorter(imported).static_order()
    ]
    text = _HEAD + _import_block(trees.values()) + "".join(parts).rstrip("\n") + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    symbols = symtable.symtable(text, PREFIX, "exec").get_symbols()
    defined = (each.get_name() for each in symbols if each.is_assigned() and not each.is_imported())
    return ReplayModule(PREFIX + digest, text, frozenset(defined))


def replay_file_of(script: str) -> str | None:
    """Return the name of the file that the text of a script imports; None if it imports none."""
    found = re.search(rf"^ *from ({PREFIX}[0-9a-f]{{12}}) import", script, re.MULTILINE)
    return f"{found[1]}.py" if found else None


def names_used(text: str) -> set[str]:
    """Return the names that Python source uses."""
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def import_of(name: str, names: Iterable[str], indent: str = "") -> str:
    """Return ``from name import names`` as a formatter writes it: constants, classes, functions."""
    order = sorted(names, key=lambda each: (not each.isupper(), not each[0].isupper(), each))
    line = f"{indent}from {name} import {', '.join(order)}"
    if len(line) <= 100:
        return line
    inside = "".join(f"{indent}    {each},\n" for each in order)
    return f"{indent}from {name} import (\n{inside}{indent})"


def _imported(tree: ast.Module) -> set[str]:
    """Return the modules from which a module imports names at its top level."""
    return {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}


def _without_imports(text: str, tree: ast.Module) -> str:
    """Return the source of a module below its name, without its imports and its docstring."""
    lines: list[str | None] = [*text.splitlines()]
    title, *_ = (ast.get_docstring(tree) or "").splitlines() or [""]
    for at, node in enumerate(tree.body):
        is_docstring = at == 0 and ast.get_docstring(tree) is not None
        if is_docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
            lines[node.lineno - 1 : node.end_lineno] = [None] * (
                (node.end_lineno or node.lineno) - node.lineno + 1
            )
    body = "\n".join(line for line in lines if line is not None).strip("\n")
    return f"\n# {f'--- {title} '.ljust(98, '-')}\n\n\n{body}\n\n"


def _import_block(trees: Iterable[ast.Module]) -> str:
    """Return the imports: first those of the standard library, sorted, then torch."""
    plain: set[str] = set()
    named: dict[str, set[str]] = {}
    for node in (node for tree in trees for node in tree.body):
        if isinstance(node, ast.Import):
            plain |= set(map(ast.unparse, node.names))
        elif isinstance(node, ast.ImportFrom) and node.module:
            named.setdefault(node.module, set()).update(map(ast.unparse, node.names))
    named = {name: found for name, found in named.items() if name.partition(".")[0] != "stagespan"}
    named.pop("__future__", None)
    lines = [f"import {name}" for name in sorted(plain - {"torch"})]
    lines += [import_of(name, named[name]) for name in sorted(named)]
    return "\n".join(lines) + "\n\nimport torch\n"
