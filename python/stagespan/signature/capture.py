"""Converts a stage's arguments and results to the nodes of a signature.

Keeps no reference to the values, does not advance generators or iterators, and runs no code of the
user except for attributes of dataclasses. Depth and number of nodes are limited. torch need not be
installed. `stagespan.signature.value_kinds` contains the kinds of values.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stagespan import settings
from stagespan.harness.standalone.loaded import attribute_path
from stagespan.pages.redaction import is_secret, names_secret
from stagespan.signature.storages import SharedStorages
from stagespan.signature.value_kinds import kind_for
from stagespan.signature.value_kinds.base import Capture, float_node, integer_node, unreplayable
from stagespan.signature.value_kinds.scalars import NUMBERS, TEXT

MAX_DEPTH = 16
MAX_NODES = 4096
_SHAPES_US, _OBJECT_US = 64, 8
"""What the shapes of a call take at most, and a tensor, container or object, in µs of CPU time.
They are counted by values, because the same call takes several times as long on a busy machine."""


def capture(value: Any, *, read_values: bool = True, name: str = "") -> Any:
    """Return the node of a value, see `stagespan.signature.model`.

    ``read_values`` also reads ranges of integer tensors and the content of small ones, which copies
    them to the host. ``name`` is the name of the argument. Strings, bytes and paths become their
    lengths if the names of their arguments, keys or attributes are those of secrets, and with
    ``STAGESPAN_REDACT=strings`` always. Never raises an exception: values that cannot be described
    are represented by their type.
    """
    return _Pass(read_values).field(name, value, name)


def capture_arguments(
    arguments: dict[str, Any], *, read_values: bool = True, stage: Any = None
) -> dict[str, Any]:
    """Return the nodes of a call's arguments. ``stage`` is the object whose method was called.

    In a replay, a tensor that was passed twice is one tensor, and tensors that shared memory share
    it.
    """
    walk = _Pass(read_values, {}, stage)
    nodes = {}
    for name, value in arguments.items():
        walk.nodes = 0
        nodes[name] = walk.field(name, value, name)
    walk.storages.write()
    return nodes


def capture_shapes(arguments: dict[str, Any], *, stage: Any = None) -> dict[str, Any] | None:
    """Return the nodes of a call's arguments without values: strings become their lengths.

    Of other values only None, True and False are kept, and the names of members of enumerations;
    numbers become their types. Returns None if there are so many values that it takes more than
    some 80 µs of CPU time.
    """
    walk = _Pass(False, {}, stage, shapes_only=True)
    try:
        return {name: walk.node(value, name) for name, value in arguments.items()}
    except _TakesTooLongError:
        return None


class _TakesTooLongError(BaseException):
    """No Exception, so that it also ends the pass inside of kinds of values."""


class _Pass(Capture):
    def __init__(
        self,
        read_values: bool,
        tensors: dict[int, tuple[str, Any]] | None = None,
        stage: Any = None,
        *,
        shapes_only: bool = False,
    ) -> None:
        self.read_values = read_values
        redaction = "strings" if shapes_only else settings.get("STAGESPAN_REDACT")
        self.redact = redaction == "strings"
        self._hides_secrets = redaction == "secrets"
        self.shapes_only = shapes_only
        self.nodes = 0
        self._left_us = _SHAPES_US
        self._stage = stage
        self.storages = SharedStorages()
        self._above: set[int] = set()  # ids of the containers around the current value
        # The tensors so far by id, with their paths; None if they are not needed. Temporary
        # tensors, such as the offsets of a nested tensor, are kept too, because otherwise another
        # tensor could get their id and their memory.
        self._tensors = tensors

    def node(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if self.shapes_only:
            self._spend(1)
            if isinstance(value, NUMBERS) and not isinstance(value, enum.Enum):
                return unreplayable(value, "whose value is not kept")
        if kind is float:
            return float_node(value)
        if kind is int:
            return integer_node(value)
        if kind is str:
            return TEXT.capture(value, path, self)
        if self.shapes_only:
            self._spend(_OBJECT_US - 1)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            return unreplayable(value, f"beyond {MAX_NODES} values")
        if len(self._above) >= MAX_DEPTH:
            return unreplayable(value, f"nested deeper than {MAX_DEPTH} levels")
        identity = id(value)
        if identity in self._above:
            return unreplayable(value, "refers to itself")
        self._above.add(identity)
        try:
            found = kind_for(value)
            return unreplayable(value) if found is None else found.capture(value, path, self)
        except Exception as error:  # reading a value can run any code
            return unreplayable(value, f"reading it raised {type(error).__name__}")
        finally:
            self._above.discard(identity)

    def field(self, name: Any, value: Any, path: str) -> Any:
        if self._hides_secrets and isinstance(name, (str, bytes)):
            text = name if isinstance(name, str) else name.decode("latin-1")
            if is_secret(text):
                return self._redacted(value, path)
        return self.node(value, path)

    def _redacted(self, value: Any, path: str) -> Any:
        redact, self.redact = self.redact, True
        try:
            return self.node(value, path)
        finally:
            self.redact = redact

    def items(self, values: Sequence[Any], path: str) -> list[Any]:
        if self._hides_secrets and len(values) == 2 and names_secret(values):
            return [self.node(values[0], f"{path}[0]"), self._redacted(values[1], f"{path}[1]")]
        # By index, because an iterator could be an object of the user.
        return [self.node(values[index], f"{path}[{index}]") for index in range(len(values))]

    def key(self, key: Any) -> Any:
        redact, self.redact = self.redact, False
        try:
            return self.node(key, "")
        finally:
            self.redact = redact

    def path_in_stage(self, value: Any) -> list[Any] | None:
        return attribute_path(self._stage, value)

    def first_with(self, tensor: Any, path: str) -> str | None:
        if self._tensors is None:
            return None
        first, _ = self._tensors.setdefault(id(tensor), (path, tensor))
        return None if first == path else first

    def keep_storage(self, tensor: Any, node: dict[str, Any]) -> None:
        if self._tensors is not None and not self.shapes_only:
            self.storages.add(tensor, node)

    def _spend(self, microseconds: int) -> None:
        self._left_us -= microseconds
        if self._left_us < 0:
            raise _TakesTooLongError

    @contextlib.contextmanager
    def inside_object(self) -> Iterator[Callable[[], None]]:
        tensors = None if self._tensors is None else dict(self._tensors)
        storages = self.storages.copy()

        def undo() -> None:
            self._tensors, self.storages = tensors, storages

        yield undo
