"""A call of an operator as a trace describes it: tensors, and the values of other arguments."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

import msgspec

from stagespan.errors import StagespanError

_SIZES = {
    "double": 8,
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::complex<double>": 16,
    "c10::complex<float>": 8,
    "c10::complex<c10::Half>": 4,
    "long int": 8,
    "long": 8,
    "long long": 8,
    "int": 4,
    "short": 2,
    "short int": 2,
    "signed char": 1,
    "unsigned char": 1,
    "unsigned short": 2,
    "unsigned int": 4,
    "unsigned long": 8,
    "bool": 1,
    "c10::qint8": 1,
    "c10::quint8": 1,
    "c10::qint32": 4,
}
"""The bytes of an element by the name of its type in a trace, which is that of C++."""
_EIGHT_BITS = re.compile(r"Float8_")
_FOUR_BITS = re.compile(r"Float4_")
# Those with capitals are of torch before 1.13.
_NO_TENSORS = frozenset(
    ("Scalar", "ScalarList", "TensorList", "GenericList", "Int", "Bool", "Double", "Number")
)
# Torch's tensors have at most 2**63 bytes.
_LARGEST = 2**50
# Kernels of copies are instances for an element's size, others for its type.
_OPAQUE = re.compile(r"OpaqueType<(\d+)")
_TYPE_IN_NAME = re.compile(r"\b(?:c10::BFloat16|c10::Half|double|float|__nv_bfloat16|__half)\b")
# Tools that write traces of their own use torch's names instead of those of C++.
_NAMES_OF_TORCH = {
    "Float": "float",
    "Half": "c10::Half",
    "BFloat16": "c10::BFloat16",
    "c10::bfloat16": "c10::BFloat16",
    "torch.float32": "float",
    "torch.float16": "c10::Half",
    "torch.bfloat16": "c10::BFloat16",
}
_SHORT_NAMES = {"__nv_bfloat16": "c10::BFloat16", "__half": "c10::Half"}

SPARSE = "sparse"
"""The type of a tensor without strides: how many elements it stores is not in a trace."""

Value = bool | int | float | str | list["Value"]


class CostUnknownError(StagespanError):
    """The work of a call does not follow from what the trace contains. The message says why."""


def element_bytes(type_name: str) -> float | None:
    """Return the size of an element in bytes by the name of its type; None if it is unknown."""
    if _EIGHT_BITS.search(type_name):
        return 1
    if _FOUR_BITS.search(type_name):
        return 0.5
    return _SIZES.get(type_name)


class Cost(msgspec.Struct, frozen=True):
    """The work of one call of an operator."""

    flops: float | None
    """Floating-point (or integer) operations; None for operators that only move data."""
    bytes: float | None
    """What must be read and written at least; None if it is unknown."""
    type: str = ""
    """The type of the elements that are multiplied, as in a trace. By default it is the type of the
    call's first tensor."""
    product: tuple[int, int, int, int] | None = None
    """The batch, m, n and k of a matrix product: [b, m, k] x [b, k, n]."""
    over_bus: bool = False
    """Whether the bytes pass between host and device, so that the memory's peak says nothing."""
    bytes_at_least: bool = False
    """Whether it may move more than `bytes`, because the trace does not show everything."""


class Tensor(msgspec.Struct, frozen=True):
    """A tensor among the arguments of a call."""

    dims: tuple[int, ...]
    type: str
    """The type of its elements as in the trace, such as `c10::BFloat16`; "" if it is unknown."""
    strides: tuple[int, ...] | None = None
    """In elements; None if they are not recorded."""

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def stored(self) -> int:
        """The number of elements in memory: a dimension that is only repeated counts once."""
        if self.strides is None or len(self.strides) != len(self.dims):
            return self.numel
        pairs = zip(self.dims, self.strides, strict=True)
        return math.prod(size if stride else min(size, 1) for size, stride in pairs)

    @property
    def is_typed(self) -> bool:
        """Whether the type of the elements is known."""
        return element_bytes(self.type) is not None

    @property
    def element_bytes(self) -> float:
        """The bytes of an element. Raises CostUnknownError if the type is unknown."""
        size = element_bytes(self.type)
        if size is None:
            raise CostUnknownError("the type of a tensor's elements is not in the trace")
        return size

    @property
    def bytes(self) -> float:
        """The bytes in memory. Raises CostUnknownError if the type is unknown."""
        return self.stored * self.element_bytes


class Call(msgspec.Struct, frozen=True):
    """The name of an operator and the arguments of one call.

    `arguments` has one element per argument, in the order of the operator's schema: a `Tensor`, a
    tuple of tensors for a list of them, or None. `values` has the other arguments, as far as they
    are recorded.
    """

    name: str
    arguments: tuple[Tensor | tuple[Tensor, ...] | None, ...]
    values: tuple[Value | None, ...] = ()
    kernels: tuple[str, ...] = ()
    """The names of the kernels that it launched, the one with the most time first."""

    def tensor(self, at: int, rank: int | None = None) -> Tensor:
        """Return the tensor that is argument `at`.

        Raises CostUnknownError if there is none, or if it does not have `rank` dimensions.
        """
        argument = self.arguments[at] if 0 <= at < len(self.arguments) else None
        if not isinstance(argument, Tensor):
            raise CostUnknownError(f"argument {at} is not a tensor in the trace")
        if argument.type == SPARSE:
            raise CostUnknownError(f"the trace does not contain how full argument {at} is")
        if rank is not None and len(argument.dims) != rank:
            raise CostUnknownError(f"argument {at} has {len(argument.dims)} dimensions, not {rank}")
        return argument

    def dims(self, at: int, rank: int | None = None) -> tuple[int, ...]:
        """Return the dimensions of the tensor that is argument `at`, as `tensor` does."""
        return self.tensor(at, rank).dims

    def tensors(self, at: int) -> tuple[Tensor, ...]:
        """Return the tensors of the list that is argument `at`; an absent list is empty.

        Traces do not contain the types of the elements of lists. They are taken from the names of
        the kernels.
        """
        found = self.arguments[at] if 0 <= at < len(self.arguments) else None
        return found if isinstance(found, tuple) else ()

    def has(self, at: int) -> bool:
        """Whether argument `at` is a tensor."""
        return 0 <= at < len(self.arguments) and isinstance(self.arguments[at], Tensor)

    def all_tensors(self) -> list[Tensor]:
        """Return all tensors among the arguments, not those in lists."""
        return [each for each in self.arguments if isinstance(each, Tensor)]

    def value(self, at: int) -> Value | None:
        """Return the value of argument `at`; None if it is not recorded."""
        return self.values[at] if 0 <= at < len(self.values) else None

    def integer(self, at: int) -> int | None:
        """Return the value of argument `at` if it is an integer, otherwise None."""
        found = self.value(at)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def flag(self, at: int) -> bool:
        """Return the value of argument `at`. Raises CostUnknownError if it is not a boolean."""
        value = self.value(at)
        if not isinstance(value, bool):
            raise CostUnknownError(f"the value of argument {at} is not in the trace")
        return value

    def integers(self, at: int) -> list[int]:
        """Return the list of integers that is argument `at`. Raises CostUnknownError otherwise."""
        value = self.value(at)
        if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
            raise CostUnknownError(f"the value of argument {at} is not in the trace")
        return [int(each) for each in value if isinstance(each, int)]


def call_of(
    name: str, dims: str, types: str, strides: str, values: str, kernels: Sequence[str] = ()
) -> Call | None:
    """Return a call from the arguments of an event as they are written in JSON.

    These are `Input Dims`, `Input type`, `Input Strides` and `Concrete Inputs`. None if `dims` is
    not a list.
    """
    sizes = _list(dims)
    if sizes is None:
        return None
    names, steps, written = _list(types) or [], _list(strides) or [], _list(values) or []
    has_strides = any(isinstance(step, list) and step for step in steps)
    inside = _type_in(kernels)
    arguments: list[Tensor | tuple[Tensor, ...] | None] = []
    for at, size in enumerate(sizes):
        kind = str(names[at]) if at < len(names) else ""
        step = steps[at] if at < len(steps) else None
        if has_strides and step == [] and isinstance(size, list) and size:
            kind = SPARSE
        arguments.append(_argument(size, kind, step, inside, types == ""))
    return Call(name, tuple(arguments), tuple(map(_value, written)), tuple(kernels))


def _argument(
    size: object, kind: str, step: object, inside: str, untyped: bool
) -> Tensor | tuple[Tensor, ...] | None:
    if not isinstance(size, list):
        return None
    if size and isinstance(size[0], list):
        steps = step if isinstance(step, list) and len(step) == len(size) else [None] * len(size)
        shapes = [_integers(each) for each in size]
        return tuple(
            Tensor(shape, inside, _integers(each))
            for shape, each in zip(shapes, steps, strict=True)
            if shape is not None
        )
    shape = _integers(size)
    if shape is None or kind in _NO_TENSORS:
        return None
    if not shape and (kind == "" or untyped):
        return None
    # A number becomes a tensor without dimensions, whose type says nothing about the result.
    return Tensor(shape, _NAMES_OF_TORCH.get(kind, kind), _integers(step))


def _type_in(kernels: Sequence[str]) -> str:
    """Return the type of the elements that the kernels process, by their names; "" if unknown."""
    for kernel in kernels:
        if match := _OPAQUE.search(kernel):
            # Copies move bits, so any type of the size serves.
            return {1: "bool", 2: "c10::Half", 4: "float", 8: "double"}.get(int(match[1]), "")
        if match := _TYPE_IN_NAME.search(kernel):
            return _SHORT_NAMES.get(match[0], match[0])
    return ""


def _integers(written: object) -> tuple[int, ...] | None:
    if not isinstance(written, list):
        return None
    if all(type(each) is int and 0 <= each < _LARGEST for each in written):
        return tuple(written)
    return None


def _list(written: str) -> list[object] | None:
    try:
        value = json.loads(written) if written else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _value(written: object) -> Value | None:
    """Return the value that Kineto has written as a text: `True`, `559`, `[1, 1]`, `0.`."""
    if not isinstance(written, str) or not written:
        return None
    if written in ("True", "False"):
        return written == "True"
    if written.startswith("["):
        items = [each.strip() for each in written.strip("[]").split(",") if each.strip()]
        found = [_value(each) for each in items]
        return [each for each in found if each is not None]
    try:
        return int(written)
    except ValueError:
        pass
    try:
        return float(written)
    except ValueError:
        return written


def inputs_in_words(dims: str) -> str:
    """Return `8x4, 4x2` for `[[8, 4], [], [4, 2]]`; empty if no input has dimensions."""
    try:
        inputs = json.loads(dims)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(inputs, list):
        return ""
    words = []
    for written in inputs:
        if isinstance(written, list) and written:
            # A list of tensors is one input.
            nested = isinstance(written[0], list)
            parts = written if nested else [written]
            shown = ["x".join(map(str, part)) for part in parts if isinstance(part, list)]
            words.append(f"[{', '.join(shown)}]" if nested else shown[0])
    return ", ".join(words)
