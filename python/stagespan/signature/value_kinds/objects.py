"""Kinds of objects with named parts: dataclasses, named tuples, enums, plain objects."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Iterator
from typing import Any

from stagespan.harness.standalone.loaded import is_harmless, path_of
from stagespan.signature.model import TYPE, UNREPLAYABLE
from stagespan.signature.value_kinds.base import (
    PLAIN,
    Capture,
    Kind,
    Maker,
    Node,
    attributes_of,
    class_path,
    contains_key,
    pairs_text,
    text_of,
    torch_module,
    unreplayable,
)

MAX_ATTRIBUTES = 256
"""An object with more attributes is not captured as a plain object."""


class _Dataclass(Kind):
    name = "dataclass"
    maker = "instance"

    def matches(self, value: Any) -> bool:
        return dataclasses.is_dataclass(value) and not isinstance(value, type)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return self._node(value, {name: getattr(value, name) for name in names}, path, to)

    def _node(self, value: Any, fields: dict[str, Any], path: str, to: Capture) -> Node:
        nodes = {name: to.field(name, item, f"{path}.{name}") for name, item in fields.items()}
        return {TYPE: self.name, "class": class_path(type(value)), "fields": nodes}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        fields = to.fields(dict(node["fields"]), path)
        return to.call(self.maker, to.literal(text_of(node, "class")), fields)

    def describe(self, node: Any, depth: int) -> str:
        return pairs_text(f"{_class_name(node)}(", node.get("fields"), ")", depth)

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        fields = node.get("fields")
        return PLAIN.parts(fields if isinstance(fields, dict) else {}, path)


class _NamedTuple(_Dataclass):
    name = "namedtuple"

    def matches(self, value: Any) -> bool:
        names = getattr(type(value), "_fields", None)
        return isinstance(value, tuple) and isinstance(names, tuple) and len(names) == len(value)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return self._node(value, dict(zip(type(value)._fields, value, strict=True)), path, to)


class _Object(_Dataclass):
    """An object that only holds values, such as a cache or a configuration."""

    name = "object"
    maker = "plain_object"

    def matches(self, value: Any) -> bool:
        torch = torch_module()
        if torch is None or isinstance(value, (type, torch.nn.Module)):
            return False
        return _can_be_made(type(value)) and 0 < len(attributes_of(value)) <= MAX_ATTRIBUTES

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        with to.inside_object() as undo:
            node = self._node(value, attributes_of(value), path, to)
            if not contains_key(node["fields"], UNREPLAYABLE):
                return node
            undo()
        return unreplayable(value)


class _Class(Kind):
    """A class that a replay finds by its name."""

    name = "class"

    def matches(self, value: Any) -> bool:
        return isinstance(value, type)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        import_path = path_of(value)
        if import_path is None or not is_harmless(value):
            return unreplayable(value)
        return {TYPE: self.name, "class": import_path}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.call("named_class", to.literal(text_of(node, "class")))


class _Enum(Kind):
    name = "enum"

    def matches(self, value: Any) -> bool:
        return isinstance(value, enum.Enum)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        if value.name not in type(value).__members__:  # a combination of flags
            return unreplayable(value)
        return {TYPE: self.name, "class": class_path(type(value)), "name": value.name}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.call("member", *(to.literal(text_of(node, key)) for key in ("class", "name")))

    def describe(self, node: Any, depth: int) -> str:
        return f"{_class_name(node)}.{node.get('name')}"


KINDS: tuple[Kind, ...] = (_Enum(), _Dataclass(), _NamedTuple())
LAST: tuple[Kind, ...] = (_Class(), _Object())
"""These capture what no other kind does."""


def _can_be_made(kind: type) -> bool:
    """Whether an object of a class can be created from its attributes without running its code."""
    return (
        getattr(kind, "__new__", None) in (object.__new__, types.SimpleNamespace.__new__)
        and not hasattr(kind, "__del__")
        # A replay can find it by its path.
        and "<" not in kind.__qualname__
        and kind.__module__ is not None
    )


def _class_name(node: Node) -> str:
    return str(node.get("class", "")).rpartition(":")[2]
