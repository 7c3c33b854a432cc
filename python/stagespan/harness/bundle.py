"""Combines what a generated script needs of `standalone` into the one module that it imports."""

from __future__ import annotations

import ast
import functools
import graphlib
import hashlib
import inspect
import re
from collections.abc import Iterable, Iterator
from importlib import resources
from types import ModuleType
from typing import NamedTuple, TypeGuard

from stagespan.harness import standalone

PREFIX = "_stagespan_replay_"

_HEAD = '''"""Makes inputs, and runs and measures steps, for profile_*.py in this folder.

The parts of stagespan.harness.standalone that a script uses, without docstrings and types.
"""

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
def replay_module(script: str | None = None, more: tuple[ModuleType, ...] = ()) -> ReplayModule:
    """Return what a script needs of the modules of `standalone`, and of ``more`` modules.

    It is all of them if ``script`` is None. Imports of stagespan are left out, because what they
    import is in the same module.
    """
    sources = _sources(more)
    needed = None
    if script is not None:
        needed = _needed([source.tree for source in sources], ast.parse(script))
    sections: list[str] = []
    defined: set[str] = set()
    for source in sources:
        lines: list[str] = []
        was_definition = True
        for node in source.tree.body:
            names = _defined(node)
            if not names or (needed is not None and not names & needed.names):
                continue
            is_definition = isinstance(node, _DEFINITIONS)
            lines += ["", ""] if is_definition or was_definition else []
            lines += _shown(source, node, needed)
            was_definition = is_definition
            defined |= names
        if lines:
            sections.append("\n".join(lines).strip("\n"))
    body = "\n\n\n".join(sections) + "\n"
    used = names_used(body) if needed is None else needed.names
    imports = _import_block([source.tree for source in sources], used)
    text = f"{_HEAD}{imports}\n\n{body}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return ReplayModule(PREFIX + digest, text, frozenset(defined))


class _Source(NamedTuple):
    """The source of one module."""

    tree: ast.Module
    lines: list[str | None]
    """Its lines; None for those that are left out."""


class _Needed(NamedTuple):
    """What a script needs, directly or not."""

    names: set[str]
    """Functions, classes and constants of modules, and what these use besides."""
    attributes: set[str]
    """Attributes, among which are the names of methods."""


@functools.lru_cache(maxsize=16)
def _sources(more: tuple[ModuleType, ...]) -> list[_Source]:
    """Return the modules, each after those from which it imports: base classes come first."""
    sources = {
        f"{standalone.__name__}.{file.name.removesuffix('.py')}": _bare(file.read_text("utf-8"))
        for file in sorted(resources.files(standalone).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".py") and file.name != "__init__.py"
    }
    for module in more:
        text = inspect.getsource(module)
        sources[module.__name__] = _Source(ast.parse(text), [*text.splitlines()])
    imported = {name: sorted(_imported(sources[name].tree) & sources.keys()) for name in sources}
    return [sources[name] for name in graphlib.TopologicalSorter(imported).static_order()]


_PARTS = re.compile(
    r"""(?P<string>(?P<quote>"{3}|'{3}|"|')(?:\\.|(?!(?P=quote)).)*(?P=quote))"""
    r"""|^\ *\#[^\n]*\n|\ *\#[^\n]*|^(?:\ {4})+""",
    re.DOTALL | re.MULTILINE,
)
"""A string, a comment or an indentation, which are no comment or indentation within a string."""


def _bare(text: str) -> _Source:
    """Return source without comments, and without the types of parameters, results and variables.

    The other annotations of classes define the fields of named tuples. A tab stands for each four
    spaces of indentation, which are a sixth of the text.
    """
    text = _PARTS.sub(
        lambda part: part[0] if part["string"] else "\t" * (len(part[0]) // 4) * part[0].isspace(),
        text,
    )
    source = _Source(ast.parse(text), [*text.splitlines()])
    lines, nodes = source.lines, [*_statements(source.tree)]
    fields = {id(member) for node in nodes for member in _members(node)}
    for node in nodes:
        if isinstance(node, ast.AnnAssign):
            if id(node) not in fields or "ClassVar" in ast.dump(node):
                _drop_type(lines, node)
        elif isinstance(node, _FUNCTIONS) and node.lineno < node.body[0].lineno:
            lines[node.lineno - 1] = _head_of(node)
            body = _first_line(node.body[0])
            lines[node.lineno : body - 1] = [None] * (body - 1 - node.lineno)
    return source


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement or module, and the statements within it."""
    yield node
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for part in getattr(node, name, ()):
            yield from _statements(part)


def _members(node: ast.AST) -> list[ast.stmt]:
    return node.body if isinstance(node, ast.ClassDef) else []


def _drop_type(lines: list[str | None], node: ast.AnnAssign) -> None:
    """Remove the annotation of a variable with a value."""
    line = lines[node.lineno - 1]
    if node.value is None or line is None or node.annotation.end_lineno != node.lineno:
        return
    line_bytes = line.encode()
    kept = line_bytes[: node.target.end_col_offset] + line_bytes[node.annotation.end_col_offset :]
    lines[node.lineno - 1] = kept.decode()
    node.annotation = ast.Constant(None)  # so that it uses no names


def _head_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the line, or the lines, from ``def`` to the colon, without types."""
    node.returns = None
    for part in ast.walk(node.args):
        if isinstance(part, ast.arg):
            part.annotation = None
    indent = "\t" * node.col_offset
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    arguments = ast.unparse(node.args).replace("'", '"')
    line = f"{indent}{word} {node.name}({arguments}):"
    if len(line.expandtabs(4)) <= 100:
        return line
    return f"{indent}{word} {node.name}(\n{indent}\t{arguments}\n{indent}):"


def _needed(trees: list[ast.Module], script: ast.Module) -> _Needed:
    """Follow the names from those that a script uses."""
    defining = {name: node for tree in trees for node in tree.body for name in _defined(node)}
    # The methods for the arguments and contents of its inputs, see `MockInputs.tensor` and
    # `make_content`.
    needed = _Needed(set(), set())
    for node in ast.walk(script):
        if isinstance(node, ast.keyword):
            needed.attributes.add(f"with_{node.arg}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            needed.attributes.add(f"make_{node.value}")
    waiting: list[ast.AST] = [script]
    methods: dict[str, list[ast.AST]] = {}
    """The methods of needed classes that nothing has named yet."""
    while waiting:
        part = waiting.pop()
        names, attributes = _uses(part)
        for name in names & defining.keys() - needed.names:
            node = defining[name]
            needed.names.update(_defined(node))
            if not isinstance(node, ast.ClassDef):
                waiting.append(node)
                continue
            waiting += (*node.bases, *node.decorator_list)
            for member in node.body:
                if _is_optional(member) and member.name not in needed.attributes:
                    methods.setdefault(member.name, []).append(member)
                else:
                    waiting.append(member)
        if part is not script:
            needed.names.update(names)
        for name in attributes - needed.attributes:
            waiting += methods.pop(name, ())
        needed.attributes.update(attributes)
    return needed


def _is_optional(member: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    """Whether a member of a class is a method that is needed only if its name is used."""
    return isinstance(member, ast.FunctionDef) and not member.name.startswith("__")


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)


def _defined(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines; none for imports."""
    if isinstance(node, _DEFINITIONS):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    parts = (part for target in targets if target is not None for part in ast.walk(target))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _uses(node: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names of modules, and the attributes, that source may use."""
    names: set[str] = set()
    local: set[str] = set()
    attributes: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            (names if isinstance(part.ctx, ast.Load) else local).add(part.id)
        elif isinstance(part, ast.arg):
            local.add(part.arg)
        elif isinstance(part, ast.Attribute):
            attributes.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            attributes.add(part.value)  # of getattr
            attributes.add(f"draw_{part.value.rstrip('0123456789')}")  # see `MockInputs.draw_int`
    return names - local if isinstance(node, ast.FunctionDef) else names, attributes


def _shown(source: _Source, node: ast.stmt, needed: _Needed | None) -> list[str]:
    """Return the lines of a statement, without docstrings and methods that are not needed."""
    first, last = _lines_of(source, node)
    dropped: set[int] = set()
    passed: dict[int, str] = {}
    for definition in _statements(node):
        if not isinstance(definition, _DEFINITIONS):
            continue
        for member in definition.body:
            is_text = isinstance(member, ast.Expr) and isinstance(member.value, ast.Constant)
            if is_text and len(definition.body) == 1:
                dropped.update(range(member.lineno, (member.end_lineno or 0) + 1))
                line = source.lines[member.lineno - 1] or ""
                passed[member.lineno] = f"{line[: member.col_offset]}pass"
            elif is_text or (
                isinstance(definition, ast.ClassDef)
                and needed is not None
                and _is_optional(member)
                and member.name not in needed.attributes
            ):
                begin, end = _lines_of(source, member)
                is_field = is_text and member is not definition.body[0]
                while not is_field and end < last and not (source.lines[end] or "").strip():
                    end += 1  # blank lines after it
                dropped.update(range(begin, end + 1))
    kept = (
        passed.get(number, source.lines[number - 1])
        for number in range(first, last + 1)
        if number not in dropped or number in passed
    )
    return "\n".join(line for line in kept if line is not None).rstrip().split("\n")


def _first_line(node: ast.stmt) -> int:
    """Return the first line of a statement or of its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _lines_of(source: _Source, node: ast.stmt) -> tuple[int, int]:
    """Return the first and the last line of a statement with its decorators and comments above."""
    first = _first_line(node)
    while first > 1 and (source.lines[first - 2] or "").lstrip().startswith("#"):
        first -= 1
    return first, node.end_lineno or node.lineno


def replay_file_of(script: str) -> str | None:
    """Return the name of the file that the text of a script imports; None if it imports none."""
    found = re.search(rf"^ *from ({PREFIX}[0-9a-f]{{12}}) import", script, re.MULTILINE)
    return f"{found[1]}.py" if found else None


def names_used(text: str) -> set[str]:
    """Return the names that Python source uses."""
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def import_of(name: str, names: Iterable[str], indent: str = "") -> str:
    """Return ``from name import names`` as a formatter writes it: constants, classes, functions."""
    order = sorted(names, key=lambda name_: (not name_.isupper(), not name_[0].isupper(), name_))
    line = f"{indent}from {name} import {', '.join(order)}"
    if len(line.expandtabs(4)) <= 100:
        return line
    inside = "".join(f"{indent}    {name_},\n" for name_ in order)
    return f"{indent}from {name} import (\n{inside}{indent})"


def _imported(tree: ast.Module) -> set[str]:
    """Return the modules from which a module imports names at its top level."""
    return {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}


def _import_block(trees: Iterable[ast.Module], used: set[str]) -> str:
    """Return the imports of names that are used: first the standard library, sorted, then torch."""
    plain: set[str] = set()
    named: dict[str, set[str]] = {}
    for node in (node for tree in trees for node in tree.body):
        if isinstance(node, ast.Import):
            plain |= {ast.unparse(each) for each in node.names if each.name.split(".")[0] in used}
        elif isinstance(node, ast.ImportFrom):
            names = {each.name for each in node.names if (each.asname or each.name) in used}
            named.setdefault(str(node.module), set()).update(names)
    named = {name: found for name, found in named.items() if name.partition(".")[0] != "stagespan"}
    named.pop("__future__", None)
    lines = [f"import {name}" for name in sorted(plain - {"torch"})]
    lines += [import_of(name, names) for name, names in sorted(named.items()) if names]
    return "\n".join(lines) + "\n\nimport torch\n"
