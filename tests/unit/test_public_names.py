"""The results of `dir`, `help` and `repr` for the package."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import stagespan
from stagespan import _core

# The names in `_core` that users call themselves.
DOCUMENTED = [
    "ProfilingContext",
    "ProfilingContext4Debug",
    "Span",
    "Span.add",
    "Span.inputs",
    "Span.output",
    "Token",
    "UnnamedSpan",
    "begin",
    "end",
    "is_debug",
    "is_enabled",
    "lost",
    "record",
    "span",
    "stage_names",
]


def stub_docstrings() -> dict[str, str]:
    """Return the first docstring of each name in the stub; overloads are documented once."""
    found: dict[str, str] = {}
    stub = Path(_core.__file__).parent / "_core.pyi"
    if not stub.exists():  # an editable installation
        stub = Path(stagespan.__file__).parent / "_core.pyi"

    def add(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.setdefault(prefix + node.name, ast.get_docstring(node) or "")
            if isinstance(node, ast.ClassDef):
                add(node.body, f"{node.name}.")

    add(ast.parse(stub.read_text(encoding="utf-8")).body, "")
    return found


def test_dir_shows_the_public_names_only() -> None:
    shown = {name for name in dir(stagespan) if not name.startswith("__")}
    assert shown == set(stagespan.__all__)


@pytest.mark.parametrize("name", stagespan.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(stagespan, name))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_help_shows_what_editors_show(name: str) -> None:
    thing: Any = _core
    for part in name.split("."):
        thing = getattr(thing, part)
    shown = inspect.getdoc(thing) or ""
    # pybind11 puts the signature above.
    _, arrow, below = shown.partition("\n\n")
    if " -> " in shown.partition("\n")[0] and arrow:
        shown = below

    assert shown.strip() == stub_docstrings()[name].strip()


@pytest.mark.parametrize("name", ["span", "ProfilingContext", "ProfilingContext4Debug", "record"])
def test_help_has_parameters_errors_and_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(stagespan, name)) or ""
    assert all(f"\n{section}:\n" in text for section in ("Args", "Raises", "Example"))
    assert next(iter(inspect.signature(getattr(stagespan, name)).parameters)) == "name"


def test_the_figures_of_a_stage_show_no_losses() -> None:
    with stagespan.span("shown"):
        pass
    found = stagespan.stats()

    assert repr(found["shown"]).startswith("StageStats(name='shown', count=")
    assert "lost" not in repr(found["shown"])


def test_a_stage_that_has_not_run_has_no_figures() -> None:
    with stagespan.span("before"):
        pass
    earlier = _core.snapshot()
    with stagespan.span("after"):
        pass

    assert list(_core.snapshot().since(earlier).stages()) == ["after"]
