"""Kinds of lists, tuples, sets, deques and dictionaries, and of their subclasses."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator
from typing import Any

from stagespan.harness.standalone.loaded import path_of
from stagespan.signature.model import TYPE, UNREPLAYABLE
from stagespan.signature.value_kinds.base import (
    LOST,
    MAX_ITEMS,
    PLAIN,
    PLAIN_LIST,
    Capture,
    Kind,
    Maker,
    Node,
    attributes_of,
    class_path,
    contains_key,
    items_of,
    items_text,
    length_of,
    list_of,
    short,
    text_of,
    type_name,
    unreplayable,
)

KEPT_ITEMS = 16
"""First items of a list of more than `MAX_ITEMS`."""
MAX_ENTRIES = 1024


class _Tuple(Kind):
    name = "tuple"

    def matches(self, value: Any) -> bool:
        return type(value) is tuple and len(value) <= MAX_ITEMS

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "items": to.items(value, path)}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.tuple(to.items(list_of(node, "items"), path))

    def describe(self, node: Any, depth: int) -> str:
        return items_text("(", node.get("items"), ")", depth)

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        return ((f"{path}[{at}]", item) for at, item in enumerate(items_of(node, "items")))


class _LongList(_Tuple):
    """A list or tuple of which only the first items are kept."""

    name = "list"

    def matches(self, value: Any) -> bool:
        return type(value) in (list, tuple) and len(value) > MAX_ITEMS

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        kept = to.items([value[index] for index in range(KEPT_ITEMS)], path)
        form = "tuple" if isinstance(value, tuple) else "list"
        return {TYPE: self.name, "of": form, "length": len(value), "items": kept}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        made = _repeated(node, path, to)
        return to.tuple(made) if node.get("of") == "tuple" else made

    def describe(self, node: Any, depth: int) -> str:
        return f"list of {node.get('length')}"


class _Set(_Tuple):
    name = "set"

    def matches(self, value: Any) -> bool:
        return type(value) is set

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        if len(value) > MAX_ITEMS:
            return unreplayable(value, f"{len(value)} items, more than {MAX_ITEMS}")
        return {TYPE: self.name, "items": [to.node(item, "") for item in value]}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.call("set", to.items(list_of(node, "items"), path))

    def describe(self, node: Any, depth: int) -> str:
        return self.name


class _Container(_Tuple):
    """A list, tuple or set of a subclass, a frozenset or a deque, with its attributes."""

    name = "container"
    BASES = (list, tuple, set, frozenset, collections.deque)

    def matches(self, value: Any) -> bool:
        return isinstance(value, self.BASES)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        base: Any = next(base for base in self.BASES if isinstance(value, base))
        items = list(base.__iter__(value))  # not the iterator of the user's class
        is_set = base in (set, frozenset)
        if is_set and len(items) > MAX_ITEMS:
            return unreplayable(value, f"{len(items)} items, more than {MAX_ITEMS}")
        kept = items if len(items) <= MAX_ITEMS else items[:KEPT_ITEMS]
        node: Node = {TYPE: self.name, **_class_of(value, base)}
        node["items"] = [to.node(item, "") for item in kept] if is_set else to.items(kept, path)
        if len(items) > MAX_ITEMS:
            node["length"] = len(items)
        if isinstance(value, collections.deque) and value.maxlen is not None:
            node["maxlen"] = value.maxlen
        return _with_attributes(node, value, path, to)

    def make(self, node: Any, path: str, to: Maker) -> Any:
        more = {}
        if node.get("fields"):
            more["fields"] = to.fields(dict(node["fields"]), path)
        if node.get("maxlen") is not None:
            more["maxlen"] = to.literal(node["maxlen"])
        items = to.items(list_of(node, "items"), path)
        if "length" in node:
            items = _repeated(node, path, to)
        return to.call("container_of", to.literal(text_of(node, "class")), items, **more)

    def describe(self, node: Any, depth: int) -> str:
        name = str(node.get("class")).rpartition(":")[2]
        return short(name) + items_text("(", node.get("items"), ")", depth)

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield from super().parts(node, path)
        yield from _attributes_in(node, path)


def _repeated(node: Node, path: str, to: Maker) -> Any:
    """Return a list of the node's length that repeats its items."""
    items, length = list_of(node, "items"), length_of(node)
    made = to.items(items, path)
    return to.call("repeat", made, to.literal(length)) if items else made


def _class_of(value: Any, base: type) -> Node:
    """Return the path of a value's class, or that of its base and what is lost."""
    kind = type(value)
    found = path_of(kind)
    if found is not None:
        return {"class": found}
    return {"class": class_path(base), LOST: f"its class {type_name(value)}"}


def _with_attributes(node: Node, value: Any, path: str, to: Capture) -> Node:
    """Add the attributes of a container to its node, or say which cannot be made again."""
    attributes = {} if LOST in node else attributes_of(value)
    fields = {name: to.field(name, item, f"{path}.{name}") for name, item in attributes.items()}
    lost = [name for name, item in fields.items() if contains_key(item, UNREPLAYABLE)]
    fields = {name: item for name, item in fields.items() if name not in lost}
    if fields:
        node["fields"] = fields
    if lost:
        node[LOST] = f"its attributes {', '.join(lost)}"
    return node


def _attributes_in(node: Node, path: str) -> Iterator[tuple[str, Any]]:
    fields = node.get("fields")
    return PLAIN.parts(fields if isinstance(fields, dict) else {}, path)


class _Dict(Kind):
    """A dictionary with any keys; one that only has strings becomes plain JSON."""

    name = "dict"

    def matches(self, value: Any) -> bool:
        return isinstance(value, dict)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        if len(value) > MAX_ENTRIES:
            return unreplayable(value, f"{len(value)} entries, more than {MAX_ENTRIES}")
        pairs = list(dict.items(value))
        if (
            type(value) is dict
            and all(type(key) is str for key, _ in pairs)
            and TYPE not in value
            and UNREPLAYABLE not in value
            and not ("shape" in value and "dtype" in value)
        ):
            return {key: to.field(key, item, f"{path}.{key}") for key, item in pairs}
        node: Node = {TYPE: self.name}
        if type(value) is not dict:
            node |= _class_of(value, dict)
        items = node["items"] = []
        for key, item in pairs:
            name = to.key(key)
            items.append([name, to.field(key, item, f"{path}.{name}")])
        if isinstance(value, collections.defaultdict):
            node["default"] = to.node(value.default_factory, f"{path}.default_factory")
        has_init = not isinstance(
            getattr(type(value), "__init__", None), types.WrapperDescriptorType
        )
        node = _with_attributes(node, value, path, to)
        if has_init and LOST not in node:
            node.setdefault("fields", {})
        return node

    def make(self, node: Any, path: str, to: Maker) -> Any:
        pairs = [
            to.tuple(to.list([to.node(key, f"{path}.key"), to.node(item, f"{path}.{key}")]))
            for key, item in list_of(node, "items")
        ]
        made = to.call("dict", to.list(pairs))
        if "class" not in node:
            return made
        more = {}
        if node.get("fields") is not None:
            more["fields"] = to.fields(dict(node["fields"]), path)
        if node.get("default") is not None:
            more["default"] = to.node(node["default"], f"{path}.default_factory")
        return to.call("mapping", to.literal(text_of(node, "class")), made, **more)

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        for pair in items_of(node, "items"):
            if isinstance(pair, list) and len(pair) == 2:
                yield f"{path}.{pair[0]}", pair[1]
        yield from _attributes_in(node, path)
        if "default" in node:
            yield f"{path}.default_factory", node["default"]


class _UserDict(Kind):
    """A `collections.UserDict`, such as the output of a tokenizer."""

    name = "userdict"

    def matches(self, value: Any) -> bool:
        return isinstance(value, collections.UserDict)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        inner = _DICT.capture(value.data, path, to)
        return {TYPE: self.name, **_class_of(value, collections.UserDict), "data": inner}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        made = to.node(node["data"], path)
        return to.call("mapping", to.literal(text_of(node, "class")), made)

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        if "data" in node:
            yield path, node["data"]


_DICT = _Dict()
KINDS: tuple[Kind, ...] = (
    *(PLAIN_LIST, _Tuple(), _LongList(), _DICT, _UserDict(), _Set(), _Container()),
)
