"""Finds the loop of a stage in its source, so that a script can show what one iteration runs."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import stagespan
from stagespan.harness.standalone.steps import function_of
from stagespan.pages.escaping import one_line

MOST_LINES = 60
"""The most lines of a loop that are shown."""
_WIDTH = 100
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_OWN = os.path.dirname(stagespan.__file__) + os.sep
# Where the loop of a stage's scheduler and model is, if there is no source to read.
_USUAL = """\
  scheduler.set_timesteps(2)
> timestep = scheduler.timesteps[0]
> latents = scheduler.step(dit(latents, timestep, prompt), timestep, latents)
"""


class Place(NamedTuple):
    """A line that runs."""

    file: str
    line: int
    function: str


def callers() -> list[Place]:
    """Return where the stage is in its loop, innermost first; nothing outside of a loop."""
    from stagespan.harness.standalone import own_loop

    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    places = []
    while frame is not None and not frame.f_code.co_filename.startswith(_OWN):
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)  # since Python 3.11
        places.append(Place(code.co_filename, frame.f_lineno, name))
        frame = frame.f_back
    is_in_loop = frame is not None and frame.f_code.co_filename == own_loop.__file__
    return places if is_in_loop else []


def step_calls(stage: Any) -> list[Place]:
    """Return the lines of a stage's function that call a method ``step``, without running it."""
    function = inspect.unwrap(function_of(stage) or stage)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    tree = None if code is None else _tree(code.co_filename)
    if code is None or tree is None:
        return []
    name = str(getattr(function, "__qualname__", code.co_name))
    return [
        Place(code.co_filename, node.lineno, name)
        for node in ast.walk(_function_at(tree, code.co_firstlineno) or ast.Module([], []))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
    ]


def shown_loop(places: Sequence[Place]) -> str | None:
    """Return the innermost loop around the first of several lines that has one, as a comment.

    The lines of its body are marked. None if no source with a loop can be read.
    """
    torch_folder = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "/torch/")
    for place in places:
        if place.file.startswith(torch_folder + os.sep):  # the loop over the hooks of a module
            continue
        tree = _tree(place.file)
        loop = None if tree is None else _loop_around(tree, place.line)
        if loop is not None:
            return _comment(place, loop)
    return None


def usual_loop() -> str:
    """Return the loop of a model and a scheduler whose stage has none, as a comment."""
    title = "One iteration is marked (>). The stage has no loop to read; this is the usual one:"
    return "".join(f"# {line}".rstrip() + "\n" for line in (title, "", *_USUAL.splitlines()))


def _tree(file: str) -> ast.Module | None:
    text = "".join(linecache.getlines(file))
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError, RecursionError):  # another version of the file, or another one
        return None


def _function_at(tree: ast.AST, line: int) -> ast.AST | None:
    """Return the function that begins in a line, whose decorators may begin there."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == line:
                return node
    return None


def _loop_around(tree: ast.AST, line: int) -> Any:
    """Return the innermost loop around a line within the innermost function around it."""
    loop = None
    for node in _around(tree, line):
        if isinstance(node, _FUNCTIONS):
            loop = None
        elif isinstance(node, _LOOPS) and line >= node.body[0].lineno:
            loop = node
    return loop


def _around(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield the statements around a line, from the outermost on."""
    for node in ast.iter_child_nodes(tree):
        first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
        if first is not None and last is not None and not first <= line <= last:
            continue
        if first is not None:
            yield node
        yield from _around(node, line)


def _comment(place: Place, loop: Any) -> str:
    first, body, last = loop.lineno, loop.body[0].lineno, loop.body[-1].end_lineno
    lines = [one_line(line.expandtabs(4).rstrip()) for line in linecache.getlines(place.file)]
    texts = textwrap.dedent("\n".join(lines[first - 1 : last])).splitlines()
    digits = len(str(last))
    rows = []
    for number, text in enumerate(texts, first):
        mark = "# >" if number >= body else "#  "
        indent = " " * (len(text) - len(text.lstrip()) + 8)
        width = _WIDTH - len(mark) - digits - 3
        parts = textwrap.wrap(
            text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        numbers = [f"{number:>{digits}}", *[" " * digits] * len(parts)]
        rows += [f"{mark} {at}  {part}" for at, part in zip(numbers, parts or [""], strict=False)]
    if len(rows) > MOST_LINES:
        left_out = len(rows) - MOST_LINES
        rows[MOST_LINES // 2 : -MOST_LINES // 2] = [f"# > ... {left_out:,} more lines"]
    file = Path(place.file).name
    where = f"{one_line(place.function)} in {one_line(file)}, lines {first} to {last}:"
    head = [f"# One iteration is marked (>). {where}", "#"]
    cut = (row if len(row) <= _WIDTH else f"{row[: _WIDTH - 4]} ..." for row in (*head, *rows))
    return "".join(f"{row.rstrip()}\n" for row in cut)
