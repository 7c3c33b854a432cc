"""Kinds of functions, partial functions and methods, which a replay finds by their names."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from stagespan.harness.standalone import loaded
from stagespan.signature.model import TYPE, UNREPLAYABLE
from stagespan.signature.value_kinds.base import (
    PLAIN,
    Capture,
    Kind,
    Maker,
    describe_node,
    items_of,
    list_of,
    short,
    type_name,
    unreplayable,
)

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type(functools.lru_cache(len)))


class _Function(Kind):
    """A function of a module. Functions without a name of their own cannot be found again."""

    name = "function"
    exact = ("name",)

    def matches(self, value: Any) -> bool:
        if isinstance(value, _FUNCTIONS):
            return True
        if type(value).__module__.partition(".")[0] not in _EXTENSIONS or not callable(value):
            return False
        return loaded.path_of(value) is not None  # such as numpy.exp

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        import_path = loaded.path_of(value)
        if import_path is not None and loaded.is_harmless(value):
            return {TYPE: self.name, "name": import_path}
        name = str(getattr(value, "__qualname__", ""))
        reason = "it is not found under its name"
        if "<lambda>" in name:
            reason = "a lambda"
        elif "<locals>" in name:
            reason = "defined inside another function"
        elif import_path is not None:
            reason = "of a module whose functions are not replayed"
        return unreplayable(value, reason)

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.call("find_function", to.literal(str(node["name"])))

    def describe(self, node: Any, depth: int) -> str:
        return short(f"function {node.get('name')}")


class _Partial(Kind):
    """A `functools.partial` of a function or class."""

    name = "partial"

    def matches(self, value: Any) -> bool:
        return type(value) is functools.partial

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        named = {key: to.field(key, item, f"{path}.{key}") for key, item in value.keywords.items()}
        return {
            TYPE: self.name,
            "function": to.node(value.func, f"{path}.func"),
            "args": to.items(value.args, f"{path}.args"),
            "kwargs": named,
        }

    def make(self, node: Any, path: str, to: Maker) -> Any:
        function = to.node(node["function"], f"{path}.func")
        if isinstance(function, type) and not loaded.is_harmless(function):
            raise LookupError(f"the class {function!r} is not one that a signature file may name")
        args = to.items(list_of(node, "args"), f"{path}.args")
        return to.call("partial_of", function, args, to.fields(dict(node["kwargs"]), path))

    def describe(self, node: Any, depth: int) -> str:
        return f"partial of {describe_node(node.get('function'), depth + 1)}"

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield f"{path}.func", node.get("function")
        yield from ((f"{path}.args[{at}]", item) for at, item in enumerate(items_of(node, "args")))
        named = node.get("kwargs")
        yield from PLAIN.parts(named if isinstance(named, dict) else {}, path)


class _Method(Kind):
    """A bound method: of the stage or of a part of it, of a class, or of an object of values."""

    name = "method"
    exact = ("name",)

    def matches(self, value: Any) -> bool:
        return isinstance(value, types.MethodType)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        owner, name = value.__self__, getattr(value.__func__, "__name__", "")
        try:
            is_found = loaded.bound_method(owner, name) == value
        except LookupError:
            is_found = False
        if not is_found:
            return unreplayable(value, f"{type_name(owner)} does not have it under its name")
        part = to.path_in_stage(owner)
        if part is not None:
            return {TYPE: self.name, "part": part, "name": name}
        node = to.node(owner, f"{path}.self")
        if isinstance(node, dict) and UNREPLAYABLE in node:
            of = f"of a {node[UNREPLAYABLE]}, which is not a part of the stage"
            return unreplayable(value, of)
        return {TYPE: self.name, "self": node, "name": name}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        if "part" in node:
            names = list_of(node, "part")
            if not all(type(name) in (str, int) for name in names):
                raise ValueError("the path of a part is not a list of names and numbers")
            owner = to.call("mock.part", to.literal(names))
        else:
            owner = to.node(node["self"], f"{path}.self")
        return to.call("bound_method", owner, to.literal(str(node["name"])))

    def describe(self, node: Any, depth: int) -> str:
        owner = "the stage"
        if "part" in node:
            owner = ".".join(map(str, ["the stage", *items_of(node, "part")]))
        elif "self" in node:
            owner = describe_node(node["self"], depth + 1)
        return short(f"method {node.get('name')} of {owner}")

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        if "self" in node:
            yield f"{path}.self", node["self"]


_EXTENSIONS = ("numpy", "stagespan")
KINDS: tuple[Kind, ...] = (_Function(), _Partial(), _Method())
