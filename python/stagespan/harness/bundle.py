"""Combines the needed parts of several modules, with their imports, into one source text."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterable
from types import ModuleType

_Part = tuple[set[str], set[str], str]  # the names it defines, the names it uses, its source
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def bundle(modules: Iterable[ModuleType], user: str) -> tuple[str, str]:
    """Return the imports, and the source of everything in the modules that ``user`` needs.

    ``user`` is Python source. A function, class or constant is included if ``user`` or another
    included part uses it. Imports of stagespan are left out, so the modules must define the names
    that they import.
    """
    imports: list[ast.Import | ast.ImportFrom] = []
    parts: list[_Part] = []
    for module in modules:
        of_module = _parts_of(module)
        imports.extend(of_module[0])
        parts.extend(of_module[1])
    needed = _used(ast.parse(user))
    kept: set[int] = set()
    while True:
        more = {
            at for at, (defined, _, _) in enumerate(parts) if at not in kept and defined & needed
        }
        if not more:
            break
        kept |= more
        for at in more:
            needed |= parts[at][1]
    texts = [parts[at][2] for at in sorted(kept)]
    return _import_block(imports, needed), "\n\n\n".join(texts)


@functools.lru_cache(maxsize=64)
def _parts_of(module: ModuleType) -> tuple[list[ast.Import | ast.ImportFrom], list[_Part]]:
    """Return the imports of a module, and its definitions with the comments above them."""
    imports: list[ast.Import | ast.ImportFrom] = []
    parts: list[_Part] = []
    text = inspect.getsource(module)
    lines = text.splitlines()
    end = 0  # the last line of the previous statement
    for statement in ast.parse(text).body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            imports.append(statement)
        elif defined := _defined(statement):
            part = "\n".join(_without_marks(line) for line in lines[end : statement.end_lineno])
            parts.append((defined, _used(statement), part.strip("\n")))
        end = statement.end_lineno or end
    return imports, parts


def _defined(statement: ast.stmt) -> set[str]:
    if isinstance(statement, _Definition):
        return {statement.name}
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        assigned = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        targets = [node for target in assigned for node in ast.walk(target)]
        return {node.id for node in targets if isinstance(node, ast.Name)}
    return set()


def _used(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _without_marks(line: str) -> str:
    return line.partition("  # noqa")[0]


def _import_block(imports: list[ast.Import | ast.ImportFrom], needed: set[str]) -> str:
    """Return the imports: first those of the standard library, sorted, then torch."""
    plain: set[str] = set()
    named: dict[str, set[str]] = {}
    for statement in imports:
        for alias in statement.names:
            if alias.name not in needed:
                continue
            if isinstance(statement, ast.Import):
                plain.add(alias.name)
            elif statement.module is not None and not statement.module.startswith("stagespan"):
                named.setdefault(statement.module, set()).add(alias.name)
    named.pop("__future__", None)
    lines = [f"import {name}" for name in sorted(plain - {"torch"})]
    lines += [f"from {name} import {', '.join(sorted(named[name]))}" for name in sorted(named)]
    return "\n".join(lines) + "\n\nimport torch"
