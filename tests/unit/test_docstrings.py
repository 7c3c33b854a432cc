"""`help()` of the extension's public names shows what the stub file says."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stagespan
from stagespan import _core

STUB = Path(stagespan.__file__).parent / "_core.pyi"
PUBLIC = [name for name in stagespan.__all__ if getattr(_core, name, None) is not None]


def documented() -> Iterator[tuple[str, str]]:
    """Return the dotted names and docstrings of the public names and their public members."""
    seen: set[str] = set()
    for node in ast.parse(STUB.read_text()).body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name not in PUBLIC:
            continue
        if getattr(stagespan, node.name) is not getattr(_core, node.name):
            continue  # a Python function of the same name wraps the extension's
        doc = ast.get_docstring(node)
        if doc is not None and node.name not in seen:
            seen.add(node.name)
            yield node.name, doc
        members = node.body if isinstance(node, ast.ClassDef) else []
        for member in members:
            if isinstance(member, ast.FunctionDef) and (doc := ast.get_docstring(member)):
                yield f"{node.name}.{member.name}", doc


def found(name: str) -> Any:
    value: Any = _core
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(("name", "doc"), list(documented()))
def test_help_shows_the_docstring_of_the_stub(name: str, doc: str) -> None:
    assert inspect.getdoc(found(name)) == doc


def test_every_public_name_of_the_extension_has_a_docstring() -> None:
    names = {name.split(".")[0] for name, _ in documented()}

    # THEN all but those that Python code wraps are documented in the stub
    wrapped = {n for n in PUBLIC if getattr(stagespan, n) is not getattr(_core, n)}
    assert set(PUBLIC) - names - wrapped == set()


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("begin", "(name, /, *, kind='execution')"),
        ("end", "(token, *, error=False)"),
        ("span", None),
        ("spans", "(*, since=None)"),
        ("Span.add", "(self, /, **work)"),
        ("lost", "()"),
    ],
)
def test_signatures_can_be_inspected(name: str, signature: str | None) -> None:
    read = inspect.signature(found(name))
    if signature is not None:
        assert str(read) == signature
