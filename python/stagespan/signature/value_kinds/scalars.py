"""Kinds of texts, numbers, paths, bytes, ranges and images."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any

from stagespan.signature.model import TYPE
from stagespan.signature.value_kinds.base import (
    LOST,
    SCALAR,
    Capture,
    Kind,
    Maker,
    Node,
    float_node,
    items_of,
    length_of,
    list_of,
    short,
    text_of,
    type_name,
    unreplayable,
)

MAX_TEXT = 2000
KEPT_TEXT = 200
MAX_BYTES = 256
_LARGEST_IMAGE = 1 << 14  # pixels on a side


class _Leaf(Kind):
    """A value whose content does not belong to its form."""

    def form(self, node: Any, sizes: bool) -> list[str]:
        return [str(self.name)]


class _Text(_Leaf):
    """A string that is long, or left out because of STAGESPAN_REDACT."""

    name = "str"
    user_text = "text"

    def matches(self, value: Any) -> bool:
        return isinstance(value, str)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        kept = str.__getitem__(value, slice(None))
        if to.redact:
            return {TYPE: self.name, "length": len(kept)}
        if len(kept) <= MAX_TEXT:
            return kept
        return {TYPE: self.name, "length": len(kept), "text": kept[:KEPT_TEXT]}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        length = to.literal(length_of(node))
        if "text" in node:
            return to.call("stretch", to.literal(text_of(node, "text")), length)
        return to.call("mock.text", to.literal(path), length)

    def describe(self, node: Any, depth: int) -> str:
        return f"string of {node.get('length')} characters"


class _Float(_Leaf):
    """Infinity, or not a number."""

    name = "float"

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.literal(float(node["value"]))


class _Complex(Kind):
    name = "complex"

    def matches(self, value: Any) -> bool:
        return isinstance(value, complex)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "real": float_node(value.real), "imag": float_node(value.imag)}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.call("complex", *(to.node(node[part], path) for part in ("real", "imag")))


class _Path(_Leaf):
    name = "path"
    user_text = "value"

    def matches(self, value: Any) -> bool:
        return isinstance(value, pathlib.PurePath)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        content = str(value)
        if to.redact:
            return {TYPE: self.name, "length": len(content)}
        return {TYPE: self.name, "value": content}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        if "value" in node:
            return to.call("Path", to.literal(text_of(node, "value")))
        return to.call("Path", to.call("mock.text", to.literal(path), to.literal(length_of(node))))

    def describe(self, node: Any, depth: int) -> str:
        if "length" in node:
            return f"path of {node['length']} characters"
        return super().describe(node, depth)


class _Bytes(_Leaf):
    name = "bytes"
    user_text = "hex"

    def matches(self, value: Any) -> bool:
        return isinstance(value, (bytes, bytearray))

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        if len(value) > MAX_BYTES:
            return unreplayable(value, f"{len(value)} bytes, more than {MAX_BYTES}")
        node: Node = {TYPE: self.name}
        if isinstance(value, bytearray):
            node["of"] = "bytearray"
        if type(value) not in (bytes, bytearray):
            node[LOST] = f"its class {type_name(value)}"
        if to.redact:
            return {**node, "length": len(value)}
        return {**node, "hex": bytes(value).hex()}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        if "hex" in node:
            made = to.literal(bytes.fromhex(node["hex"]))
        else:
            made = to.call("bytes", to.literal(length_of(node)))
        return to.call("bytearray", made) if node.get("of") == "bytearray" else made

    def describe(self, node: Any, depth: int) -> str:
        if "length" in node:
            return f"bytes of {node['length']} bytes"
        return super().describe(node, depth)


class _Moment(_Leaf):
    """A date, time or duration of the module datetime, or an exact number."""

    name = "moment"
    KINDS = (
        *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID),
    )

    def matches(self, value: Any) -> bool:
        return type(value) in self.KINDS

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        node: Node = {TYPE: self.name, "of": type(value).__name__}
        if isinstance(value, datetime.timezone):
            value = value.utcoffset(None)
        if isinstance(value, datetime.timedelta):
            return {**node, "value": [value.days, value.seconds, value.microseconds]}
        if not isinstance(value, (datetime.date, datetime.time)):
            return {**node, "value": str(value)}
        zone = getattr(value, "tzinfo", None)
        if zone is not None and type(zone) is not datetime.timezone:
            key = getattr(zone, "key", None)  # of zoneinfo.ZoneInfo
            if type(zone).__module__ != "zoneinfo" or not isinstance(key, str):
                return unreplayable(value, f"with a time zone of class {type_name(zone)}")
            assert isinstance(value, (datetime.datetime, datetime.time))  # a date has no zone
            node["zone"], value = key, value.replace(tzinfo=None)
        if getattr(value, "fold", 0):
            node["fold"] = 1
        return {**node, "value": value.isoformat()}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        more = [node["zone"]] if "zone" in node else []
        if "fold" in node:
            more = [node.get("zone"), node["fold"]]
        return to.call("moment", *map(to.literal, (node["of"], node["value"], *more)))

    def describe(self, node: Any, depth: int) -> str:
        return short(f"{node.get('of')} {node.get('value')}")


class _Range(Kind):
    name = "range"

    def matches(self, value: Any) -> bool:
        return isinstance(value, range)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "args": [value.start, value.stop, value.step]}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.call("range", *map(to.literal, list_of(node, "args")))


class _Slice(Kind):
    name = "slice"

    def matches(self, value: Any) -> bool:
        return isinstance(value, slice)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "args": to.items([value.start, value.stop, value.step], path)}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        items = enumerate(list_of(node, "args"))
        return to.call("slice", *(to.node(item, f"{path}[{at}]") for at, item in items))

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        return ((f"{path}[{at}]", item) for at, item in enumerate(items_of(node, "args")))


class _Image(Kind):
    """A PIL image; a replay gets one of noise."""

    name = "image"

    def matches(self, value: Any) -> bool:
        return type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "mode")

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "size": list(value.size), "mode": value.mode}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        width, height = (int(size) for size in list_of(node, "size"))
        if not (0 < width <= _LARGEST_IMAGE and 0 < height <= _LARGEST_IMAGE):
            raise ValueError(f"{width} x {height} is not the size of an image")
        return to.call("mock.image", *map(to.literal, (path, [width, height], str(node["mode"]))))


TEXT = _Text()
NUMBERS: tuple[type, ...] = (int, float, complex, range, *_Moment.KINDS)
"""The types of values that are all value, and no structure."""
KINDS: tuple[Kind, ...] = (
    *(TEXT, SCALAR, _Float(), _Complex(), _Path(), _Bytes(), _Moment(), _Range(), _Slice()),
    _Image(),
)
