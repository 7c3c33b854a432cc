"""The names and sizes of the element types that mock inputs can have. Does not import torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Size of one element in bytes. This is also the list of types that mock inputs can have.
ELEMENT_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "bool": 1,
}

_ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "chalf": "complex32",
}

# The types of numpy among these.
NUMPY_NAMES = frozenset(
    name
    for name in ELEMENT_BYTES
    if not name.startswith(("bfloat", "float8", "float4")) and name != "complex32"
)


def canonical(name: str) -> str:
    """Return the canonical name of an element type, such as ``float16`` for ``torch.half``."""
    short = name.removeprefix("torch.")
    return _ALIASES.get(short, short)


def is_floating(name: str) -> bool:
    """Whether the type is a real floating-point type."""
    return name.startswith(("float", "bfloat"))


def is_integer(name: str) -> bool:
    """Whether the type is an integer type, which ``bool`` is not."""
    return name.startswith(("int", "uint"))


def is_quantized(name: str) -> bool:
    """Whether the type is a quantized one of torch, such as ``qint8`` and ``quint4x2``."""
    return canonical(name).startswith(("qint", "quint"))


def unknown_dtype(name: str, supported: Iterable[str] = ELEMENT_BYTES) -> str:
    """Return the end of a sentence about an unsupported type: the known ones and the closest."""
    names = list(supported)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; the closest is {near[0]}" if near else ""
    return f"the known types are {', '.join(names)}{hint}"
