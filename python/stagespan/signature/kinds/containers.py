"""Kinds of lists, tuples, sets and dictionaries."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

from stagespan.signature.kinds.base import (
    MAX_ITEMS,
    PLAIN_LIST,
    Builder,
    Capture,
    Kind,
    Node,
    class_path,
    items_of,
    items_text,
    length_of,
    list_of,
    sequence_source,
    source_of,
    unreplayable,
)
from stagespan.signature.model import TYPE, UNREPLAYABLE
from stagespan.signature.source import Group, Source, call, literal, quoted

KEPT_ITEMS = 16
"""First items of a list of more than `MAX_ITEMS`."""
MAX_ENTRIES = 1024


class _Tuple(Kind):
    name = "tuple"

    def matches(self, value: Any) -> bool:
        return isinstance(value, tuple) and len(value) <= MAX_ITEMS

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "items": to.items(value, path)}

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        return tuple(mock.build(list_of(node, "items"), path))

    def source(self, node: Any, path: str) -> Source:
        return sequence_source(node["items"], path, "(", ")")

    def describe(self, node: Any, depth: int) -> str:
        return items_text("(", node.get("items"), ")", depth)

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        return ((f"{path}[{at}]", item) for at, item in enumerate(items_of(node, "items")))


class _LongList(_Tuple):
    """A list or tuple of which only the first items are kept."""

    name = "list"

    def matches(self, value: Any) -> bool:
        return isinstance(value, (list, tuple)) and len(value) > MAX_ITEMS

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        kept = to.items([value[index] for index in range(KEPT_ITEMS)], path)
        form = "tuple" if isinstance(value, tuple) else "list"
        return {TYPE: self.name, "of": form, "length": len(value), "items": kept}

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        items = mock.build(list_of(node, "items"), path)
        made = mock.module.repeat(items, length_of(node)) if items else []
        return tuple(made) if node.get("of") == "tuple" else made

    def source(self, node: Any, path: str) -> Source:
        items = sequence_source(node["items"], path, "[", "]")
        repeated = call("repeat", items, literal(node["length"]))
        return call("tuple", repeated) if node.get("of") == "tuple" else repeated

    def describe(self, node: Any, depth: int) -> str:
        return f"list of {node.get('length')}"


class _Set(_Tuple):
    name = "set"

    def matches(self, value: Any) -> bool:
        return isinstance(value, (set, frozenset))

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        if len(value) > MAX_ITEMS:
            return unreplayable(value, f"{len(value)} items, more than {MAX_ITEMS}")
        return {TYPE: self.name, "items": [to.node(item, "") for item in value]}

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        return set(mock.build(list_of(node, "items"), path))

    def source(self, node: Any, path: str) -> Source:
        return call("set", sequence_source(node["items"], path, "[", "]"))

    def describe(self, node: Any, depth: int) -> str:
        return self.name


class _Dict(Kind):
    """A dictionary with any keys; one that only has strings becomes plain JSON."""

    name = "dict"

    def matches(self, value: Any) -> bool:
        return isinstance(value, dict)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        if len(value) > MAX_ENTRIES:
            return unreplayable(value, f"{len(value)} entries, more than {MAX_ENTRIES}")
        pairs = list(dict.items(value))
        plain = type(value) in (dict, collections.OrderedDict, collections.defaultdict)
        if (
            plain
            and all(type(key) is str for key, _ in pairs)
            and TYPE not in value
            and UNREPLAYABLE not in value
            and not ("shape" in value and "dtype" in value)
        ):
            return {key: to.field(key, item, f"{path}.{key}") for key, item in pairs}
        node: Node = {TYPE: self.name}
        if not plain:
            node["class"] = class_path(type(value))
        items = node["items"] = []
        for key, item in pairs:
            name = to.key(key)
            items.append([name, to.field(key, item, f"{path}.{name}")])
        return node

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        pairs = {
            mock.build(key, f"{path}.key"): mock.build(item, f"{path}.{key}")
            for key, item in list_of(node, "items")
        }
        return mock.module.mapping(node["class"], pairs) if "class" in node else pairs

    def source(self, node: Any, path: str) -> Source:
        pairs = [
            Group(
                "(",
                [("", source_of(key, f"{path}.key")), ("", source_of(item, f"{path}.{key}"))],
                ")",
            )
            for key, item in node["items"]
        ]
        made = call("dict", Group("[", [("", pair) for pair in pairs], "]"))
        return call("mapping", quoted(node["class"]), made) if "class" in node else made

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        for pair in items_of(node, "items"):
            if isinstance(pair, list) and len(pair) == 2:
                yield f"{path}.{pair[0]}", pair[1]


class _UserDict(Kind):
    """A `collections.UserDict`, such as the output of a tokenizer."""

    name = "userdict"

    def matches(self, value: Any) -> bool:
        return isinstance(value, collections.UserDict)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        inner = _DICT.capture(value.data, path, to)
        return {TYPE: self.name, "class": class_path(type(value)), "data": inner}

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        return mock.module.mapping(node["class"], mock.build(node["data"], path))

    def source(self, node: Any, path: str) -> Source:
        return call("mapping", quoted(node["class"]), source_of(node["data"], path))

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        if "data" in node:
            yield path, node["data"]


_DICT = _Dict()
KINDS: tuple[Kind, ...] = (PLAIN_LIST, _Tuple(), _LongList(), _DICT, _UserDict(), _Set())
