"""Kinds of texts, numbers, paths, bytes, ranges and images."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any

from stagespan.signature.kinds.base import (
    LOST,
    SCALAR,
    Builder,
    Capture,
    Kind,
    Node,
    float_node,
    items_of,
    length_of,
    list_of,
    short,
    source_of,
    type_name,
    unreplayable,
)
from stagespan.signature.model import TYPE
from stagespan.signature.source import Source, call, literal, quoted

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

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        length = length_of(node)
        if "text" in node:
            return mock.module.stretch(str(node["text"]), length)
        return mock.values.text(path, length)

    def source(self, node: Any, path: str) -> Source:
        if "text" in node:
            return call("stretch", quoted(node["text"]), literal(node["length"]))
        return call("mock.text", quoted(path), literal(node["length"]))

    def describe(self, node: Any, depth: int) -> str:
        return f"string of {node.get('length')} characters"


class _Float(_Leaf):
    """Infinity, or not a number."""

    name = "float"

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        return float(node["value"])

    def source(self, node: Any, path: str) -> Source:
        return literal(float(node["value"]))


class _Complex(Kind):
    name = "complex"

    def matches(self, value: Any) -> bool:
        return isinstance(value, complex)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "real": float_node(value.real), "imag": float_node(value.imag)}

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        return complex(mock.build(node["real"], path), mock.build(node["imag"], path))

    def source(self, node: Any, path: str) -> Source:
        return call("complex", source_of(node["real"], path), source_of(node["imag"], path))


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

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        if "value" in node:
            return pathlib.Path(node["value"])
        return pathlib.Path(mock.values.text(path, length_of(node)))

    def source(self, node: Any, path: str) -> Source:
        if "value" in node:
            return call("Path", quoted(node["value"]))
        return call("Path", call("mock.text", quoted(path), literal(node["length"])))

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

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        made = bytes.fromhex(node["hex"]) if "hex" in node else bytes(length_of(node))
        return bytearray(made) if node.get("of") == "bytearray" else made

    def source(self, node: Any, path: str) -> Source:
        made = repr(bytes.fromhex(node["hex"])) if "hex" in node else f"bytes({length_of(node)})"
        return call("bytearray", made) if node.get("of") == "bytearray" else made

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

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        more = (node.get("zone"), node.get("fold", 0))
        return mock.module.moment(node["of"], node["value"], *more)

    def source(self, node: Any, path: str) -> Source:
        more = [literal(node[name]) for name in ("zone", "fold") if name in node]
        if "fold" in node and "zone" not in node:
            more.insert(0, "None")
        return call("moment", quoted(str(node["of"])), literal(node["value"]), *more)

    def describe(self, node: Any, depth: int) -> str:
        return short(f"{node.get('of')} {node.get('value')}")


class _Range(Kind):
    name = "range"

    def matches(self, value: Any) -> bool:
        return isinstance(value, range)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "args": [value.start, value.stop, value.step]}

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        return range(*list_of(node, "args"))

    def source(self, node: Any, path: str) -> Source:
        return call("range", *(source_of(item, path) for item in node["args"]))


class _Slice(Kind):
    name = "slice"

    def matches(self, value: Any) -> bool:
        return isinstance(value, slice)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "args": to.items([value.start, value.stop, value.step], path)}

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        return slice(*mock.build(list_of(node, "args"), path))

    def source(self, node: Any, path: str) -> Source:
        items = [source_of(item, f"{path}[{at}]") for at, item in enumerate(node["args"])]
        return call("slice", *items)

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        return ((f"{path}[{at}]", item) for at, item in enumerate(items_of(node, "args")))


class _Image(Kind):
    """A PIL image; a replay gets one of noise."""

    name = "image"

    def matches(self, value: Any) -> bool:
        return type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "mode")

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "size": list(value.size), "mode": value.mode}

    def build(self, node: Any, path: str, mock: Builder) -> Any:
        width, height = (int(size) for size in list_of(node, "size"))
        if not (0 < width <= _LARGEST_IMAGE and 0 < height <= _LARGEST_IMAGE):
            raise ValueError(f"{width} x {height} is not the size of an image")
        return mock.values.image(path, (width, height), str(node["mode"]))

    def source(self, node: Any, path: str) -> Source:
        return call("mock.image", quoted(path), literal(node["size"]), quoted(node["mode"]))


TEXT = _Text()
KINDS: tuple[Kind, ...] = (
    *(TEXT, SCALAR, _Float(), _Complex(), _Path(), _Bytes(), _Moment(), _Range(), _Slice()),
    _Image(),
)
