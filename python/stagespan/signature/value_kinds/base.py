"""The base class of all kinds of values, and the kinds that are plain JSON in a signature."""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from stagespan.errors import SignatureError
from stagespan.harness.standalone.loaded import main_name
from stagespan.pages.escaping import one_line
from stagespan.process import imports
from stagespan.signature.model import TYPE, UNREPLAYABLE, is_tensor
from stagespan.signature.source import Brackets, Source, call, is_long, literal, numbers, quoted

Node = dict[str, Any]

LOST = "lost"
"""The key of a node with a type, or of a tensor, that says what a replay does not make again."""
MAX_ITEMS = 256
"""The most items of a list that are captured; a longer list keeps its length and first items."""
_MAX_INT_BITS = 1024
_LONGEST = 1 << 24  # the greatest length of a list or text that a file may request


class Capture(Protocol):
    """One pass over values, as the kinds of values use it for the values inside them."""

    read_values: bool
    """Whether the content of tensors may be read."""
    redact: bool
    """Whether strings, bytes and paths become their lengths."""
    shapes_only: bool
    """Whether values are left out, and no operator may run."""

    def node(self, value: Any, path: str) -> Any:
        """Return the node of a value of any kind."""

    def field(self, name: Any, value: Any, path: str) -> Any:
        """Return the node of a value that has a name, which decides whether it is a secret."""

    def items(self, values: Sequence[Any], path: str) -> list[Any]:
        """Return the nodes of several values."""

    def key(self, key: Any) -> Any:
        """Return the node of a key. Keys are part of the structure and are never redacted."""

    def path_in_stage(self, value: Any) -> list[Any] | None:
        """Return the names that lead from the stage's object to a value, or None."""

    def first_with(self, tensor: Any, path: str) -> str | None:
        """Return the path at which the same tensor was found before, or None."""

    def keep_storage(self, tensor: Any, node: Node) -> None:
        """Store the memory of a tensor, to find tensors that share it."""

    def inside_object(self) -> AbstractContextManager[Callable[[], None]]:
        """Capture attributes of an object. Yields a function that forgets their tensors."""


class Maker(Protocol):
    """Makes values from nodes, or Python source that makes them. A kind uses both in one way."""

    def node(self, node: Any, path: str) -> Any:
        """Return the value of one node. Messages contain ``path``, and it seeds the content."""

    def items(self, nodes: list[Any], path: str) -> Any:
        """Return a list of the values of nodes."""

    def fields(self, nodes: dict[str, Any], path: str) -> Any:
        """Return a dictionary of the values of nodes by name."""

    def missing(self, node: Node, path: str) -> Any:
        """Return what stands for a value that cannot be created, or raise Unreplayable."""

    def literal(self, value: Any) -> Any:
        """Return a number, a text, None, or a list or dictionary of these."""

    def named(self, path: str, value: Any) -> Any:
        """Return what has a name, such as ``torch.float16``."""

    def tuple(self, made: Any) -> Any:
        """Return a tuple of the values of a list that was made here."""

    def list(self, made: Iterable[Any]) -> Any:
        """Return a list of values that were made here."""

    def call(self, function: str, *arguments: Any, **named: Any) -> Any:
        """Call a function of `stagespan.harness.standalone`, of Python or torch, or of ``mock``.

        ``mock`` is the `MockInputs` that creates tensors and texts.
        """

    def method(self, made: Any, name: str) -> Any:
        """Call a method of a value that was made here, without arguments."""

    def check_device(self, device: str, path: str) -> None:
        """Raise HarnessError if a device on which a value is made does not exist."""


class Kind(ABC):
    """A kind of value: how it is captured, created again, written into a script, and described."""

    name: str | None = None
    """The ``$type`` of its nodes; None for values that are plain JSON."""
    exact: tuple[str, ...] = ("class", "name", "value", "length")
    """Keys of the node whose values go into the key of a signature unchanged."""
    user_text: str | None = None
    """The key of the node whose value can be text of the user."""

    def matches(self, value: Any) -> bool:
        """Whether this kind captures the value. No earlier kind in ``KINDS`` matched it."""
        return False

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        """Return the node of a value. ``to.node`` returns the nodes of the values inside it."""
        return unreplayable(value)

    @abstractmethod
    def make(self, node: Any, path: str, to: Maker) -> Any:
        """Return the value of a node, made with ``to``: the value itself, or source for it.

        ``to.node`` makes the values inside it. Raises an exception if the node is not valid.
        """

    def describe(self, node: Any, depth: int) -> str:
        """Return a short text about the node. ``depth`` is the number of values around it."""
        found = (node[k] for k in ("value", "device", "size", "class") if k in node)
        return short(f"{node[TYPE]} {next(found, '')}".strip())

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Yield (path, node) of each value inside the value."""
        return iter(())

    def form(self, node: Any, sizes: bool) -> list[str]:
        """Return what distinguishes the value in the key of its signature.

        Without ``sizes``, the result omits sizes, as the key of a family of signatures does.
        """
        parts = [f"{{{node.get(TYPE) or ''}"]
        for name, item in node.items():
            if name != TYPE:
                parts.append(name)
                parts += [str(item)] if name in self.exact else form_of(item, sizes)
        return parts


class _Scalar(Kind):
    """Numbers, strings, booleans, None, and instances of their subclasses, which are plain JSON."""

    def matches(self, value: Any) -> bool:
        return isinstance(value, (int, float))

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        # Subclasses lose their class and keep their value; none of their own methods is called.
        if isinstance(value, int):
            return integer_node(int.__pos__(value))
        return float_node(float.__pos__(value))

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.literal(node)

    def describe(self, node: Any, depth: int) -> str:
        return short(repr(node))

    def form(self, node: Any, sizes: bool) -> list[str]:
        return [repr(node) if node is None or isinstance(node, bool) else type(node).__name__]


class _List(Kind):
    """A list of up to `MAX_ITEMS` items."""

    def matches(self, value: Any) -> bool:
        return type(value) is list and len(value) <= MAX_ITEMS

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return to.items(value, path)

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.items(node, path)

    def describe(self, node: Any, depth: int) -> str:
        return items_text("[", node, "]", depth)

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        return ((f"{path}[{index}]", item) for index, item in enumerate(node))

    def form(self, node: Any, sizes: bool) -> list[str]:
        return [f"[{len(node)}", *(part for item in node for part in form_of(item, sizes))]


class _Plain(Kind):
    """A dictionary whose keys are strings without a special meaning in a signature."""

    exact = ()

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.fields(node, path)

    def describe(self, node: Any, depth: int) -> str:
        return pairs_text("{", node, "}", depth)

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        return ((f"{path}.{key}", item) for key, item in node.items())


class _Unreplayable(Kind):
    """A value that cannot be created again, because its signature contains only its type."""

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.missing(node, path)

    def describe(self, node: Any, depth: int) -> str:
        return f"{node[UNREPLAYABLE]} (cannot be replayed)"

    def form(self, node: Any, sizes: bool) -> list[str]:
        return [str(node[UNREPLAYABLE])]


class _Unknown(Kind):
    """A kind that this version does not know, written by a later version of stagespan."""

    def make(self, node: Any, path: str, to: Maker) -> Any:
        shown = node.get("value", node[TYPE])
        raise SignatureError(
            f"Input {path!r}: this stagespan does not know the {node[TYPE]} {str(shown)!r}."
        )


SCALAR, PLAIN_LIST, PLAIN, UNKNOWN = _Scalar(), _List(), _Plain(), _Unknown()
_OF_SCALARS = {kind: SCALAR.form(kind(), True) for kind in (int, float, str)}
_UNREPLAYABLE = _Unreplayable()

_by_name: dict[str, Kind] = {}
_of_tensors: list[Kind] = []


def register(kinds: Iterable[Kind], tensor: Kind) -> None:
    """Register kinds by their names; ``tensor`` is the kind of nodes with a shape and a dtype."""
    _by_name.update({kind.name: kind for kind in kinds if kind.name is not None})
    _of_tensors[:] = [tensor]


def kind_of(node: Any) -> Kind:
    """Return the kind of a node, which can be any JSON value."""
    if isinstance(node, list):
        return PLAIN_LIST
    if not isinstance(node, dict):
        return SCALAR
    if UNREPLAYABLE in node:
        return _UNREPLAYABLE
    if is_tensor(node):
        return _of_tensors[0]
    if TYPE not in node:
        return PLAIN
    name = node[TYPE]
    return _by_name.get(name, UNKNOWN) if isinstance(name, str) else UNKNOWN


class _Source:
    """Makes Python source; in it, ``mock`` is a `MockInputs`."""

    literal = staticmethod(literal)
    call = staticmethod(call)

    def node(self, node: Any, path: str) -> Source:
        made: Source = kind_of(node).make(node, path, self)
        return made

    def items(self, nodes: Any, path: str) -> Source:
        if is_long(nodes):
            return numbers(nodes)
        return self.list(self.node(node, f"{path}[{at}]") for at, node in enumerate(nodes))

    def fields(self, nodes: dict[str, Any], path: str) -> Source:
        pairs = [(f"{quoted(k)}: ", self.node(v, f"{path}.{k}")) for k, v in nodes.items()]
        return Brackets("{", pairs, "}")

    def missing(self, node: Node, path: str) -> Source:
        return call("Missing", quoted(str(node[UNREPLAYABLE])))

    def named(self, path: str, value: Any) -> Source:
        return path

    def list(self, made: Iterable[Source]) -> Source:
        return Brackets("[", [("", each) for each in made], "]")

    def tuple(self, made: Any) -> Source:
        if made.opening != "[":
            return call("tuple", made)
        return Brackets("(", made.items, ")", one_tuple=len(made.items) == 1)

    def method(self, made: Any, name: str) -> Source:
        return Brackets(made.opening, made.items, f"{made.closing}.{name}()")

    def check_device(self, device: str, path: str) -> None:
        pass


def source_of(node: Any, path: str) -> Source:
    """Return Python source that creates the value of a node; in it, ``mock`` is a `MockInputs`."""
    return _Source().node(node, path)


def form_of(node: Any, sizes: bool) -> list[str]:
    """Return what distinguishes the value of a node in the key of a signature (`Kind.form`)."""
    return _OF_SCALARS.get(type(node)) or kind_of(node).form(node, sizes)


def key_of(inputs: dict[str, Any], *, sizes: bool = True) -> str:
    """Return the key of a stage's inputs: 12 hexadecimal digits, the same in every process.

    It depends on shapes, element types, kinds of devices and structure. Values of numbers and
    strings are left out, so that a new prompt or seed does not make a new signature. Indexes of
    devices are left out, so that the ranks of a run share their keys. If ``sizes`` is False, only
    the number of a tensor's dimensions counts. The result is the key of a family of signatures.
    """
    parts = [part for name in sorted(inputs) for part in (name, *form_of(inputs[name], sizes))]
    return hashlib.blake2b("\x1f".join(parts).encode("utf-8", "replace"), digest_size=6).hexdigest()


def describe(node: Any) -> str:
    """Return a text such as ``bfloat16[1, 16, 21, 60, 104] cuda:0``, ``5.0`` or ``tuple(2)``.

    Accepts any content of a file.
    """
    return one_line(describe_node(node, 0))


def describe_node(node: Any, depth: int) -> str:
    """Return a short text about a node."""
    return kind_of(node).describe(node, depth)


def unreplayable(value: object, reason: str | None = None) -> Node:
    """Return the node of a value that cannot be created again from its signature."""
    node = {UNREPLAYABLE: type_name(value)}
    if reason is not None:
        node["reason"] = reason
    return node


def type_name(value: object) -> str:
    """Return ``package.module.Type`` of a value, or ``Type`` if the type is built-in."""
    kind = type(value)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def class_path(kind: type) -> str:
    """Return ``package.module:Outer.Inner``, by which a replay finds the class."""
    is_main = kind.__module__ in ("__main__", "__mp_main__")
    return f"{(is_main and main_name()) or kind.__module__}:{kind.__qualname__}"


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots included. Runs no code of its class."""
    attributes = getattr(value, "__dict__", None)
    members = dict(attributes) if type(attributes) is dict else {}
    for kind in type(value).__mro__:
        if not vars(kind).get("__slots__"):  # members of C types are not attributes
            continue
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # not set
                    members.setdefault(name, slot.__get__(value))
    return members


def contains_key(node: Any, key: str) -> bool:
    """Whether an object below a node has a key."""
    if isinstance(node, dict):
        return key in node or any(contains_key(item, key) for item in node.values())
    return isinstance(node, list) and any(contains_key(item, key) for item in node)


def float_node(value: float) -> Any:
    """Return the node of a floating-point number."""
    return value if math.isfinite(value) else {TYPE: "float", "value": str(value)}


def integer_node(value: int) -> Any:
    """Return the node of an integer."""
    if value.bit_length() > _MAX_INT_BITS:
        return unreplayable(value, f"{value.bit_length()} bits, more than {_MAX_INT_BITS}")
    return value


def items_text(opening: str, nodes: Any, closing: str, depth: int) -> str:
    """Return a short text about several nodes."""
    if not isinstance(nodes, list) or depth >= 2 or len(nodes) > 4:
        count = len(nodes) if isinstance(nodes, list) else "?"
        return f"{opening}{count} values{closing}"
    return opening + ", ".join(describe_node(node, depth + 1) for node in nodes) + closing


def pairs_text(opening: str, nodes: Any, closing: str, depth: int) -> str:
    """Return a short text about nodes with names."""
    if not isinstance(nodes, dict) or depth >= 2 or len(nodes) > 6:
        count = len(nodes) if isinstance(nodes, dict) else "?"
        return f"{opening}{count} values{closing}"
    inner = (f"{short(str(k))}: {describe_node(v, depth + 1)}" for k, v in nodes.items())
    return opening + ", ".join(inner) + closing


def short(text: str) -> str:
    """Return the text, or its beginning and "..." if it is longer than 60 characters."""
    return text if len(text) <= 60 else text[:57] + "..."


def text_of(node: Node, key: str) -> str:
    """Return an entry of a node that must be a text. Raises TypeError if it is not."""
    text = node[key]
    if not isinstance(text, str):
        raise TypeError(f"{key!r} is not a text")
    return text


def list_of(node: Node, key: str) -> list[Any]:
    """Return an entry of a node that must be a list. Raises ValueError if it is not."""
    items = node[key]
    if not isinstance(items, list):
        raise ValueError(f"{key!r} is not a list")
    return items


def items_of(node: Node, key: str) -> list[Any]:
    """Return an entry of a node if it is a list, otherwise an empty list."""
    found = node.get(key)
    return found if isinstance(found, list) else []


def length_of(node: Node) -> int:
    """Return the length of a long list or text. Raises ValueError if it is not valid."""
    length = node["length"]
    if type(length) is not int or not 0 <= length <= _LONGEST:
        raise ValueError(f"length {length!r} is not a number from 0 to {_LONGEST}")
    return length


_complete: Any = None
"""The module torch, once its import was complete."""


def torch_module() -> Any:
    """Return the module torch, or None if it has not been imported."""
    global _complete
    torch = sys.modules.get("torch")
    if torch is not _complete or torch is None:  # asked for several times a value
        torch = imports.loaded("torch")
        torch = _complete = torch if hasattr(torch, "Tensor") else None
    return torch
