"""Writes the docstrings of the extension's public names from its stub file, as a C++ header.

    python3 cmake/docstrings.py _core.pyi docstrings.h

The header has one constant for each docstring of a public name: `docs::kBegin` for the function
`begin`, `docs::kSpanType` for the class `Span`, `docs::kSpanAdd` for its method `add`. Docstrings
of functions and classes begin with their signature, in the form that `inspect.signature` reads. The
public names are those that `stagespan/__init__.py` exports, and the classes that they return.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


def exported(package: Path) -> set[str]:
    """Return the names that `stagespan/__init__.py` imports from the extension."""
    return {
        alias.name
        for node in ast.walk(ast.parse((package / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "stagespan._core"
        for alias in node.names
    }


def public_names(stub: ast.Module, package: Path) -> set[str]:
    """Return the exported names, and the classes of what exported functions return."""
    names = exported(package)
    returned = {
        part.id
        for node in stub.body
        if isinstance(node, Function) and node.name in names and node.returns is not None
        for part in ast.walk(node.returns)
        if isinstance(part, ast.Name)
    }
    return names | returned


def camel(name: str) -> str:
    """Return `reset_peak_memory` as `ResetPeakMemory`, and `ProfilingContext4Debug` as it is."""
    return "".join(part[0].upper() + part[1:] for part in name.split("_") if part)


def is_property(function: Function) -> bool:
    """Whether a method is a property."""
    return any(ast.unparse(decorator) == "property" for decorator in function.decorator_list)


def signature(overloads: list[Function], is_method: bool) -> str:
    """Return the parameters of a function without annotations.

    A parameter that another overload does not have is optional, so its default is ``...``.
    """
    arguments = overloads[0].args
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    shared = [{arg.arg for arg in ast.walk(o.args) if isinstance(arg, ast.arg)} for o in overloads]

    def text(arg: ast.arg, default: ast.expr | None) -> str:
        if default is not None:
            return f"{arg.arg}={ast.unparse(default)}"
        return arg.arg if all(arg.arg in names for names in shared) else f"{arg.arg}=..."

    parts = []
    for number, arg in enumerate(positional):
        default = arguments.defaults[number - first_default] if number >= first_default else None
        name = text(arg, default)
        parts.append(f"${name}" if is_method and number == 0 else name)
        # What C code calls `self` is always passed by position.
        if number == max(len(arguments.posonlyargs), is_method) - 1:
            parts.append("/")
    if arguments.vararg is not None:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [
        text(arg, default)
        for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg is not None:
        parts.append(f"**{arguments.kwarg.arg}")
    return f"({', '.join(parts)})"


def docstrings(stub: ast.Module, public: set[str]) -> Iterator[tuple[str, str]]:
    """Return the constants' names and texts."""
    functions: dict[str, list[Function]] = {}
    for node in stub.body:
        if isinstance(node, Function) and node.name in public:
            functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef) and node.name in public:
            yield from of_class(node)
    for name, overloads in functions.items():
        doc = ast.get_docstring(overloads[0])
        if doc is not None:
            yield camel(name), f"{name}{signature(overloads, False)}\n--\n\n{doc}"


def of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Return the constants of a class and its members."""
    constructor = ""
    for member in node.body:
        if not isinstance(member, Function):
            continue
        if member.name == "__new__":
            parts = signature([member], True).split(", ", 1)
            constructor = f"{node.name}({parts[1] if len(parts) == 2 else ')'}\n--\n\n"
        doc = ast.get_docstring(member)
        if doc is not None:
            if not is_property(member):
                doc = f"{member.name}{signature([member], True)}\n--\n\n{doc}"
            yield camel(f"{node.name}_{member.name}"), doc
    doc = ast.get_docstring(node)
    if doc is not None:
        yield f"{camel(node.name)}Type", constructor + doc


def main() -> None:
    """Write the header."""
    stub, header = Path(sys.argv[1]), Path(sys.argv[2])
    lines = [
        f"// {header.name}: made from {stub.name} by {Path(__file__).name}.",
        "#pragma once",
        "",
        "namespace stagespan::python::docs {",
        "",
    ]
    tree = ast.parse(stub.read_text())
    for name, text in docstrings(tree, public_names(tree, stub.parent)):
        lines.append(f'inline constexpr const char* k{name} = R"doc({inspect.cleandoc(text)})doc";')
    lines += ["", "}  // namespace stagespan::python::docs", ""]
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
