"""Values to nodes: what a signature keeps of a stage's arguments and results.

Nothing of the values stays referenced, no generator or iterator is advanced, and no code of the
user runs, except for attributes of dataclasses. Depth and number of nodes are bounded. torch may be
absent.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import pathlib
from typing import Any

from stagespan import imports, settings
from stagespan.signature.model import TYPE, UNREPLAYABLE
from stagespan.signature.tensors import array_node, tensor_node

MAX_DEPTH = 16
MAX_NODES = 4096
MAX_ITEMS = 256
"""A longer list keeps its length and its first items."""
KEPT_ITEMS = 16
MAX_ENTRIES = 1024
MAX_TEXT = 2000
KEPT_TEXT = 200
MAX_BYTES = 256
_MAX_INT_BITS = 1024
MAX_ATTRIBUTES = 256
"""An object with more is not a plain holder of values."""


def capture(value: Any, *, read_values: bool = True) -> Any:
    """The node of a value, see `stagespan.signature.model`.

    ``read_values`` also reads ranges of integer tensors and the content of small ones, which copies
    them to the host. With ``STAGESPAN_REDACT=strings``, strings, bytes and paths become their
    lengths. Never raises: what cannot be described is named by its type.
    """
    return _Walk(read_values, settings.get("STAGESPAN_REDACT") == "strings").node(value, "")


def capture_arguments(arguments: dict[str, Any], *, read_values: bool = True) -> dict[str, Any]:
    """The nodes of a call's arguments; a tensor that is among them twice is one in the replay."""
    walk = _Walk(read_values, settings.get("STAGESPAN_REDACT") == "strings", {})
    nodes = {}
    for name, value in arguments.items():
        walk.nodes = 0
        nodes[name] = walk.node(value, name)
    return nodes


def type_name(value: object) -> str:
    """``package.module.Type`` of a value; built-in types have no package."""
    kind = type(value)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def class_path(kind: type) -> str:
    """``package.module:Outer.Inner``, from which a replay finds a class again."""
    return f"{kind.__module__}:{kind.__qualname__}"


def unreplayable(value: object, reason: str | None = None) -> dict[str, Any]:
    """The node of a value that cannot be made again from its signature."""
    node = {UNREPLAYABLE: type_name(value)}
    if reason is not None:
        node["reason"] = reason
    return node


class _Walk:
    def __init__(
        self, read_values: bool, redact: bool, tensors: dict[int, str] | None = None
    ) -> None:
        self.read_values = read_values
        self.redact = redact
        self.nodes = 0
        self.above: set[int] = set()  # ids of the containers around the current value
        self.tensors = tensors  # paths of the tensors so far, by id; None: not looked for
        self.in_object = False

    def node(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is float:
            return _float(value)
        if kind is int:
            return _int(value)
        if kind is str:
            return self.text(value)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            return unreplayable(value, f"beyond {MAX_NODES} values")
        if len(self.above) >= MAX_DEPTH:
            return unreplayable(value, f"nested deeper than {MAX_DEPTH} levels")
        identity = id(value)
        if identity in self.above:
            return unreplayable(value, "refers to itself")
        self.above.add(identity)
        try:
            return self.other(value, path)
        except Exception as error:  # a value of any kind may do anything when looked at
            return unreplayable(value, f"looking at it raised {type(error).__name__}")
        finally:
            self.above.discard(identity)

    def other(self, value: Any, path: str) -> Any:
        torch = imports.loaded("torch")
        if torch is not None and hasattr(torch, "Tensor"):
            found = self.of_torch(value, torch, path)
            if found is not None:
                return found
        numpy = imports.loaded("numpy")
        if numpy is not None:
            if isinstance(value, numpy.ndarray):
                return array_node(value, self.read_values) or unreplayable(value)
            if isinstance(value, numpy.generic):
                return self.node(value.item(), path)
        if isinstance(value, enum.Enum):
            if value.name not in type(value).__members__:  # a combination of flags
                return unreplayable(value)
            return {TYPE: "enum", "class": class_path(type(value)), "name": value.name}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
            return self.fields("dataclass", value, [(n, getattr(value, n)) for n in names], path)
        if isinstance(value, (list, tuple)):
            return self.sequence(value, path)
        if isinstance(value, (dict, collections.UserDict)):
            return self.mapping(value, path)
        found = self.leaf(value)
        is_open = isinstance(found, dict) and UNREPLAYABLE in found and "reason" not in found
        if is_open and torch is not None and hasattr(torch, "Tensor"):
            return self.plain_object(value, torch, path) or found
        return found

    def plain_object(self, value: Any, torch: Any, path: str) -> Any:
        """An object that only holds values, such as a cache or a configuration; else None."""
        kind = type(value)
        if self.in_object and isinstance(value, type):
            return {TYPE: "class", "class": class_path(value)} if _has_name(value) else None
        attributes = getattr(value, "__dict__", None)
        if (
            type(attributes) is not dict
            or len(attributes) > MAX_ATTRIBUTES
            or not can_be_made(kind)
            or isinstance(value, (type, torch.nn.Module))
        ):
            return None
        outside, self.in_object = self.in_object, True
        tensors = None if self.tensors is None else dict(self.tensors)
        try:
            nodes = {name: self.node(item, f"{path}.{name}") for name, item in attributes.items()}
        finally:
            self.in_object = outside
        if not nodes or _some(nodes, UNREPLAYABLE):
            self.tensors = tensors
            return None
        return {TYPE: "object", "class": class_path(kind), "fields": nodes}

    def of_torch(self, value: Any, torch: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            if self.tensors is not None:
                first = self.tensors.setdefault(id(value), path)
                if first != path:
                    return {TYPE: "shared", "of": first}
            return tensor_node(value, torch, self.read_values)
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            name = str(value).removeprefix("torch.")
            return {TYPE: f"torch.{type(value).__name__}", "value": name}
        if isinstance(value, torch.device):
            return {TYPE: "torch.device", "value": str(value)}
        if isinstance(value, torch.Generator):
            return {TYPE: "torch.Generator", "device": str(value.device)}
        return None

    def sequence(self, value: Any, path: str) -> Any:
        names = getattr(type(value), "_fields", None)
        if isinstance(value, tuple) and isinstance(names, tuple) and len(names) == len(value):
            return self.fields("namedtuple", value, list(zip(names, value, strict=True)), path)
        form = "tuple" if isinstance(value, tuple) else "list"
        length = len(value)
        kept = length if length <= MAX_ITEMS else KEPT_ITEMS
        items = [self.node(value[i], f"{path}[{i}]") for i in range(kept)]
        if kept < length:
            return {TYPE: "list", "of": form, "length": length, "items": items}
        return items if form == "list" else {TYPE: "tuple", "items": items}

    def fields(
        self, form: str, value: Any, pairs: list[tuple[str, Any]], path: str
    ) -> dict[str, Any]:
        nodes = {name: self.node(item, f"{path}.{name}") for name, item in pairs}
        return {TYPE: form, "class": class_path(type(value)), "fields": nodes}

    def mapping(self, value: Any, path: str) -> Any:
        if isinstance(value, collections.UserDict):
            inner = self.mapping(value.data, path)
            return {TYPE: "userdict", "class": class_path(type(value)), "data": inner}
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
            return {key: self.node(item, f"{path}.{key}") for key, item in pairs}
        node: dict[str, Any] = {TYPE: "dict"}
        if not plain:
            node["class"] = class_path(type(value))
        items = node["items"] = []
        for key, item in pairs:
            name = self.key(key)
            items.append([name, self.node(item, f"{path}.{name}")])
        return node

    def key(self, key: Any) -> Any:
        # Keys belong to the structure: they are kept.
        redact, self.redact = self.redact, False
        try:
            return self.node(key, "")
        finally:
            self.redact = redact

    def text(self, value: str) -> Any:
        if self.redact:
            return {TYPE: "str", "length": len(value)}
        return _text(value)

    def leaf(self, value: Any) -> Any:
        # Subclasses lose their class and keep their value; none of their own methods is called.
        if isinstance(value, str):
            return self.text(str.__getitem__(value, slice(None)))
        if isinstance(value, int):
            return _int(int.__pos__(value))
        if isinstance(value, float):
            return _float(float.__pos__(value))
        if isinstance(value, complex):
            return {TYPE: "complex", "real": _float(value.real), "imag": _float(value.imag)}
        if isinstance(value, pathlib.PurePath):
            text = str(value)
            return {TYPE: "path", **({"length": len(text)} if self.redact else {"value": text})}
        if isinstance(value, (bytes, bytearray)):
            if len(value) > MAX_BYTES:
                return unreplayable(value, f"{len(value)} bytes, more than {MAX_BYTES}")
            if self.redact:
                return {TYPE: "bytes", "length": len(value)}
            return {TYPE: "bytes", "hex": bytes(value).hex()}
        if isinstance(value, range):
            return {TYPE: "range", "args": [value.start, value.stop, value.step]}
        if isinstance(value, slice):
            parts = [self.node(part, "") for part in (value.start, value.stop, value.step)]
            return {TYPE: "slice", "args": parts}
        if isinstance(value, (set, frozenset)):
            if len(value) > MAX_ITEMS:
                return unreplayable(value, f"{len(value)} items, more than {MAX_ITEMS}")
            return {TYPE: "set", "items": [self.node(item, "") for item in value]}
        if type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "mode"):
            return {TYPE: "image", "size": list(value.size), "mode": value.mode}
        return unreplayable(value)


def can_be_made(kind: type) -> bool:
    """Whether an object of a class can be created from its attributes without running its code."""
    return (
        getattr(kind, "__new__", None) is object.__new__
        and not hasattr(kind, "__del__")
        and not any(vars(base).get("__slots__") for base in kind.__mro__[:-1])
        and _has_name(kind)
    )


def _has_name(kind: type) -> bool:
    """Whether a replay can find a class by its path."""
    return "<" not in kind.__qualname__ and kind.__module__ is not None


def _some(node: Any, key: str) -> bool:
    """Whether an object below a node has a key."""
    if isinstance(node, dict):
        return key in node or any(_some(item, key) for item in node.values())
    return isinstance(node, list) and any(_some(item, key) for item in node)


def _float(value: float) -> Any:
    return value if math.isfinite(value) else {TYPE: "float", "value": str(value)}


def _int(value: int) -> Any:
    if value.bit_length() > _MAX_INT_BITS:
        return unreplayable(value, f"{value.bit_length()} bits, more than {_MAX_INT_BITS}")
    return value


def _text(value: str) -> Any:
    if len(value) <= MAX_TEXT:
        return value
    return {TYPE: "str", "length": len(value), "text": value[:KEPT_TEXT]}
