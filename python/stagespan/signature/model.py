"""The content of a signature file. Also reads TeleFuser's files. Does not import torch.

A value in a signature is a *node*: plain JSON. Numbers, strings, booleans, null and lists represent
themselves. An object with ``shape`` and ``dtype`` is a tensor. An object with ``$type`` encodes a
value that JSON cannot represent (a tuple, a dataclass, an enum, ...). An object with
``unreplayable`` names the type of a value that cannot be created again. Other objects are
dictionaries.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stagespan.errors import HarnessError, SignatureError
from stagespan.process.files import (
    SCHEMA_VERSION,
    compact_json,
    is_from_newer_version,
    what_it_is,
    write_whole,
)
from stagespan.signature import dtypes

TYPE = "$type"
UNREPLAYABLE = "unreplayable"
FILE_ENDING = "_io_signature.json"
"""How the names of signature files end."""

# TeleFuser writes only the name of the type if it could not describe a value.
_BARE_TYPES = frozenset(
    {"dict", "tuple", "set", "bytes", "ndarray", "Image", "Generator", "function", "partial"}
)


class Unreplayable(HarnessError):
    """An input that cannot be created from its signature, because the file describes too little.

    ``path`` is its name, or that of the value inside it; ``what`` says what it is.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"Input {path!r} is {what}, which cannot be created from its signature; pass it with "
            f"HarnessConfig(inputs={{{argument_of(path)!r}: ...}})."
        )
        self.path, self.what = path, what


def argument_of(path: str) -> str:
    """Return the name of the argument from the path of a value inside it."""
    return path.partition(".")[0].partition("[")[0]


def is_tensor(node: object) -> bool:
    """Whether a node describes a tensor."""
    return isinstance(node, dict) and TYPE not in node and "shape" in node and "dtype" in node


@dataclass(frozen=True)
class TensorSignature:
    """One tensor: its shape and type, and what a valid mock needs to know about its values."""

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    requires_grad: bool = False
    strides: tuple[int, ...] | None = None
    """Strides in elements; None for a contiguous tensor."""
    value_range: tuple[float, float] | None = None
    """Smallest and largest value, if they are integers or bounded floating-point numbers."""
    values: tuple[Any, ...] | None = None
    """All values in row order; only for small tensors."""
    true_fraction: float | None = None
    """Fraction of a bool tensor's elements that are true, from 0 to 1."""
    content: dict[str, Any] | None = None
    """Description of the values of integer and bool tensors, see `describe_content`."""
    storage: tuple[str, int, int] | None = None
    """Memory that is shared with other inputs: its name, its size and this tensor's offset in
    bytes."""
    subclass: str | None = None
    """The path of its class, ``package.module:Name``; None for `torch.Tensor`."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def storage_bytes(self) -> int:
        """Size of the tensor's memory in bytes; 0 if it is empty."""
        elements = self.numel
        if self.strides is not None and elements:
            elements = 1 + sum(
                (size - 1) * step for size, step in zip(self.shape, self.strides, strict=True)
            )
        return elements * dtypes.ELEMENT_BYTES.get(self.dtype, 8)

    def to_json(self) -> dict[str, Any]:
        """Return the node: ``shape``, ``dtype``, ``device``, and non-default fields."""
        node: dict[str, Any] = {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "device": self.device,
        }
        if self.requires_grad:
            node["requires_grad"] = True
        if self.strides is not None:
            node["strides"] = list(self.strides)
        if self.values is not None:
            node["values"] = list(self.values)
        elif self.value_range is not None:
            node["value_range"] = list(self.value_range)
        elif self.true_fraction is not None:
            node["true_fraction"] = self.true_fraction
        if self.values is None and self.content is not None:
            node["content"] = self.content
        if self.storage is not None:
            node["storage"] = list(self.storage)
        if self.subclass is not None:
            node["class"] = self.subclass
        return node

    @classmethod
    def from_json(cls, node: dict[str, Any], path: str) -> TensorSignature:
        """Read and check the node of an input.

        Raises SignatureError if it is not valid, and Unreplayable if mock inputs cannot have it.
        """
        where = f"Input {path!r}"
        shape = _sizes(node["shape"], where, "shape")
        dtype = node["dtype"]
        if isinstance(dtype, str) and dtypes.is_quantized(dtype):
            raise Unreplayable(path, f"a quantized tensor ({dtype})")
        if not isinstance(dtype, str) or dtypes.canonical(dtype) not in dtypes.ELEMENT_BYTES:
            raise SignatureError(
                f"{where}: mock inputs cannot have dtype {dtype!r}; "
                f"{dtypes.unknown_dtype(str(dtype))} (or pass the tensor itself: "
                f"HarnessConfig(inputs={{...}}))."
            )
        device = node.get("device", "cpu")
        if not isinstance(device, str):
            raise SignatureError(
                f"{where}: device {device!r} is not a string such as 'cuda:0' or 'cpu'."
            )
        strides = node.get("strides")
        if strides is not None:
            strides = _sizes(strides, where, "strides")
            if len(strides) != len(shape):
                raise SignatureError(
                    f"{where}: {len(strides)} strides do not fit a shape of {len(shape)} sizes."
                )
        if node.get("layout", "strided") != "strided":
            raise Unreplayable(path, f"a tensor of layout {node['layout']!r}")
        signature = cls(
            shape=shape,
            dtype=dtypes.canonical(dtype),
            device=device,
            requires_grad=bool(node.get("requires_grad", False)),
            strides=strides,
            value_range=_range(node.get("value_range"), dtypes.canonical(dtype), where),
            true_fraction=_fraction(node.get("true_fraction"), where),
            content=_content(node.get("content"), where),
            subclass=_subclass(node.get("class"), where),
        )
        signature = replace(signature, storage=_storage(node.get("storage"), signature, where))
        values = node.get("values")
        if values is None:
            return signature
        if not isinstance(values, list) or len(values) != signature.numel:
            raise SignatureError(
                f"{where}: 'values' must be a list of the {signature.numel} values of shape "
                f"{list(shape)}."
            )
        return replace(signature, values=tuple(values))


def _sizes(value: object, where: str, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int for size in value):
        raise SignatureError(f"{where}: {what} {value!r} is not a list of integers.")
    for size in value:
        if size < 0:
            raise SignatureError(
                f"{where}: {what} {value!r} has the negative size {size}; sizes are 0 or more."
            )
        if size >= 1 << 62:
            raise SignatureError(
                f"{where}: {what} contains the size {size:.0e}, which is more than any tensor can "
                f"have."
            )
    return tuple(value)


def _subclass(value: object, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise SignatureError(f"{where}: its class {value!r} is not a name such as 'package:Name'.")
    return value


def _range(value: object, dtype: str, where: str) -> tuple[float, float] | None:
    if value is None:
        return None
    kinds = (int, float) if dtype.startswith(("float", "bfloat")) else (int,)
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(type(bound) in kinds and abs(bound) < math.inf for bound in value)
        or value[0] > value[1]
    ):
        raise SignatureError(f"{where}: value_range {value!r} is not a pair [smallest, largest].")
    return value[0], value[1]


def _storage(value: object, tensor: TensorSignature, where: str) -> tuple[str, int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3:
        raise SignatureError(f"{where}: storage {value!r} is not [name, bytes, offset].")
    name, size, offset = value
    if not isinstance(name, str) or type(size) is not int or type(offset) is not int:
        raise SignatureError(f"{where}: storage {value!r} is not [name, bytes, offset].")
    element = dtypes.ELEMENT_BYTES[tensor.dtype]
    if offset < 0 or offset % element or offset + tensor.storage_bytes > size:
        raise SignatureError(
            f"{where}: its {tensor.storage_bytes:,} bytes at offset {offset} do not fit into the "
            f"{size} bytes of storage {name!r}."
        )
    return name, size, offset


_CONTENTS: dict[str, dict[str, type]] = {
    "range": {"start": int, "step": int},
    "runs": {"values": list, "lengths": list},
    "counts": {"values": list, "counts": list},
    "sorted": {"knots": list},
    "permutation": {},
    "frequent": {"values": list, "counts": list, "first": list, "distinct": int},
    "ordered": {"low": list, "high": list},
}
_LONGEST_CONTENT = 4096
_MOST_LEVELS = 64
_AMOUNTS = ("lengths", "counts", "first", "distinct")
"""The fields that are numbers of elements. All other fields are values of 64-bit integers."""
_LARGEST_AMOUNT = 1 << 62


def _content(value: object, where: str) -> dict[str, Any] | None:
    """Return the checked content; None if there is none, or if its kind is not known."""
    if value is None:
        return None
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str):
        raise SignatureError(f"{where}: its content is not an object with a 'kind'.")
    if kind == "levels":
        return _levels(value, where)
    fields = _CONTENTS.get(kind)
    if fields is None:
        return None
    for name, expected in fields.items():
        content = value.get(name)
        numbers = content if isinstance(content, list) else [content]
        low, most = (0, _LARGEST_AMOUNT) if name in _AMOUNTS else (-1 << 63, 1 << 63)
        if (
            type(content) is not expected
            or not (numbers or kind == "frequent")
            or len(numbers) > _LONGEST_CONTENT
            or not all(type(n) is int and low <= n < most for n in numbers)
        ):
            raise SignatureError(f"{where}: {name!r} of its content {kind!r} is not usable.")
    checked = {"kind": kind, **{name: value[name] for name in fields}}
    if kind == "ordered":
        of = value.get("of")
        if isinstance(of, dict) and of.get("kind") in ("ordered", "levels"):
            raise SignatureError(f"{where}: 'of' of its content {kind!r} is not usable.")
        checked["of"] = _content(of, where)
    return checked


def _levels(value: dict[str, Any], where: str) -> dict[str, Any] | None:
    """Return the checked content of a floating-point tensor with few values."""
    levels, of = value.get("levels"), value.get("of")
    if (
        not isinstance(levels, list)
        or not 0 < len(levels) <= _MOST_LEVELS
        or not all(type(n) in (int, float) or n in ("inf", "-inf") for n in levels)
        or not isinstance(of, dict)
        or of.get("kind") == "levels"
    ):
        raise SignatureError(f"{where}: its content 'levels' is not usable.")
    checked = _content(of, where)
    return None if checked is None else {"kind": "levels", "levels": levels, "of": checked}


def _fraction(value: object, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise SignatureError(f"{where}: true_fraction {value!r} is not a number from 0 to 1.")
    return float(value)


@dataclass
class StageSignature:
    """Inputs and output of one stage, as nodes."""

    stage_name: str
    inputs: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    """The scalar arguments by name, which `inputs` contains too."""
    context: dict[str, Any] = field(default_factory=dict)
    """The settings of torch when the stage ran: ``grad``, ``inference``, ``autocast``, ..."""
    key: str | None = None
    count: int | None = None
    """Number of runs with this signature."""
    target: dict[str, Any] = field(default_factory=dict)
    """The called function: ``module``, ``qualname``, and ``of``, the class of a method's object."""
    variants: list[StageSignature] = field(default_factory=list)
    """The other signatures of the stage, first those that ran most."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Every argument of the call: the inputs, and those that only ``metadata`` contains."""
        return {**{k: v for k, v in self.metadata.items() if k not in self.inputs}, **self.inputs}

    def variant(self, wanted: str) -> StageSignature:
        """Return one signature of the stage, chosen by number, key, prefix of a key, or size.

        ``0`` is the one that ran most, ``1`` the next. ``largest`` and ``smallest`` refer to the
        number of elements in all tensors. ``NAME=SIZE`` is the one whose tensor ``NAME`` has a
        dimension of that size. Raises SignatureError if there is none or more than one.
        """
        every = [self, *self.variants]
        matching = self._variants_like(every, wanted)
        if len(matching) == 1:
            others = [replace(other, variants=[]) for other in every if other is not matching[0]]
            return replace(matching[0], variants=others)
        keys = ", ".join(f"{at} ({other.key})" for at, other in enumerate(every[:8]))
        raise SignatureError(
            f"The variant {wanted!r} of stage {self.stage_name!r} is "
            f"{'not in the file' if not matching else 'ambiguous'}: pass a number or key of {keys}"
            f"{', ...' if len(every) > 8 else ''}, largest, smallest, or NAME=SIZE."
        )

    @staticmethod
    def _variants_like(every: list[StageSignature], wanted: str) -> list[StageSignature]:
        if wanted in ("largest", "smallest"):
            ordered = sorted(every, key=lambda variant: _elements(variant.inputs))
            return [ordered[-1 if wanted == "largest" else 0]]
        name, equals, size = wanted.partition("=")
        if equals and size.isdecimal():
            return [
                variant for variant in every if int(size) in _sizes_of(variant.inputs.get(name))
            ]
        if wanted.isdecimal() and int(wanted) < len(every):
            return [every[int(wanted)]]
        return [variant for variant in every if wanted and (variant.key or "").startswith(wanted)]

    def to_json(self) -> dict[str, Any]:
        """Return the stage's entry in the file."""
        entry: dict[str, Any] = {
            "stage_name": self.stage_name,
            "input_signatures": self.inputs,
            "output_signature": self.output,
            "metadata": self.metadata,
        }
        if self.context:
            entry["context"] = self.context
        if self.target:
            entry["callable"] = self.target
        if self.key is not None:
            entry["key"] = self.key
        if self.count is not None:
            entry["count"] = self.count
        if self.variants:
            entry["variants"] = [variant.to_json() for variant in self.variants]
        return entry

    @classmethod
    def from_json(cls, name: str, entry: object, *, foreign: bool = False) -> StageSignature:
        """Read an entry; ``foreign``: the file has no schema version, like TeleFuser's."""
        where = f"stage {name!r}"
        if not isinstance(entry, dict):
            raise SignatureError(f"{where}: its entry is {_kind(entry)}, not an object.")
        inputs = _object(entry, "input_signatures", where)
        if foreign:
            inputs = {k: _foreign(v) for k, v in inputs.items()}
        key, count = entry.get("key"), entry.get("count")
        variants = entry.get("variants") or []
        if not isinstance(variants, list):
            raise SignatureError(f"{where}: 'variants' is {_kind(variants)}, not a list.")
        return cls(
            stage_name=name,
            inputs=inputs,
            output=entry.get("output_signature"),
            metadata=_object(entry, "metadata", where),
            context=_object(entry, "context", where),
            target=_object(entry, "callable", where),
            key=key if isinstance(key, str) else None,
            count=count if type(count) is int else None,
            variants=[cls.from_json(name, {**_as_object(v), "variants": []}) for v in variants],
        )


def signature_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a signature file; for a folder, that of the only one in it.

    Raises SignatureError if a folder has none or several.
    """
    target = Path(path)
    if not target.is_dir():
        return target
    files = sorted(target.glob(f"*{FILE_ENDING}"))
    if len(files) == 1:
        return files[0]
    if not files:
        raise SignatureError(
            f"The folder {str(path)!r} contains no signature file (timing_io_signature.json); run "
            f"the pipeline in debug mode (STAGESPAN_DEBUG=true) to write one."
        )
    names = ", ".join(repr(file.name) for file in files)
    raise SignatureError(
        f"The folder {str(path)!r} contains several signature files: pass one of {names}."
    )


@dataclass
class SignatureFile:
    """The content of a ``timing_io_signature.json``."""

    stages: dict[str, StageSignature]
    request_id: str = ""
    timestamp: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    """The machine and the versions of the run, as in a timing report; empty if unknown."""
    schema_version: int | None = SCHEMA_VERSION
    """None for a file that TeleFuser wrote."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> SignatureFile:
        """Read a file, or that of a folder, see `signature_file`.

        Raises SignatureError if it cannot be read or is not valid.
        """
        path = signature_file(path)
        where = f"The signature file {str(path)!r}"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise SignatureError(
                f"There is no signature file {str(path)!r}; run the pipeline in debug mode "
                f"(STAGESPAN_DEBUG=true) to write one."
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SignatureError(f"{where} cannot be read: {reason}.") from None
        try:
            data = json.loads(content.decode())
        except RecursionError:
            raise SignatureError(f"{where} is nested too deeply to be a signature file.") from None
        except ValueError as error:
            if other := what_it_is(content):
                raise SignatureError(f"{where} is not JSON but {other}.") from None
            raise SignatureError(
                f"{where} is not valid JSON ({error}): pass the timing_io_signature.json of a run, "
                f"or write it again in debug mode (STAGESPAN_DEBUG=true)."
            ) from None
        try:
            return cls.from_json(data)
        except SignatureError as error:
            raise SignatureError(f"{where} cannot be used: {error}") from None

    @classmethod
    def from_json(cls, data: object) -> SignatureFile:
        """Read the parsed content of a file."""
        if not isinstance(data, dict):
            raise SignatureError(f"it contains {_kind(data)}, not an object with 'stages'.")
        if "stages" not in data:
            raise SignatureError(
                "it has no 'stages'; a signature file is the timing_io_signature.json of a run."
            )
        version = data.get("schema_version")
        if is_from_newer_version(version):
            raise SignatureError(
                f"its schema_version is {version!r}, but this stagespan reads only up to "
                f"{SCHEMA_VERSION}; update stagespan."
            )
        stages = _object(data, "stages", "its content")
        if any("duration_ms" in _as_object(entry) for entry in stages.values()):
            raise SignatureError(
                "it is a timing report; pass the timing_io_signature.json in the same folder."
            )
        return cls(
            stages={
                name: StageSignature.from_json(name, entry, foreign=version is None)
                for name, entry in stages.items()
            },
            request_id=str(data.get("request_id", "")),
            timestamp=str(data.get("timestamp", "")),
            environment=_as_object(data.get("environment")),
            schema_version=version,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {
            "schema_version": SCHEMA_VERSION,
            "request_id": self.request_id,
            "timestamp": self.timestamp,
            **({"environment": self.environment} if self.environment else {}),
            "stages": {name: stage.to_json() for name, stage in self.stages.items()},
        }

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the file completely or not at all, for its owner only: it can contain prompts.

        Raises OSError if it cannot be written.
        """
        return write_whole(path, compact_json(self.to_json()) + "\n", private=True)

    def stage(self, name: str, variant: str | int | None = None) -> StageSignature:
        """Return a stage, or one of its variants, see `StageSignature.variant`.

        Raises SignatureError if there is no such stage or variant.
        """
        found = self.stages.get(name)
        if found is not None:
            return found if variant is None else found.variant(str(variant))
        raise SignatureError(
            f"There is no stage {name!r} in the signature file; {_known(name, self.stages)}."
        )


def _known(name: str, names: Iterable[str]) -> str:
    stages = list(names)
    if not stages:
        return "the file has no stages, so run the pipeline in debug mode first"
    near = difflib.get_close_matches(name, stages, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(repr(k) for k in stages[:20]) + (", ..." if len(stages) > 20 else "")
    return f"{hint}The file has {listed}" if near else f"the file has {listed}"


def _object(entry: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = entry.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SignatureError(f"{where}: {key!r} is {_kind(value)}, not an object.")
    return value


def _elements(node: Any) -> int:
    """Return the number of elements in the tensors of a node."""
    if is_tensor(node):
        sizes = [size for size in _sizes_of(node) if size >= 0]
        return math.prod(sizes)
    if isinstance(node, dict):
        return sum(map(_elements, node.values()))
    return sum(map(_elements, node)) if isinstance(node, list) else 0


def _sizes_of(node: Any) -> list[int]:
    shape = node.get("shape") if isinstance(node, dict) else None
    return [size for size in shape if type(size) is int] if isinstance(shape, list) else []


def _as_object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")


def _foreign(node: Any) -> Any:
    """Convert TeleFuser's names of types, which it writes for values that it cannot describe."""
    if isinstance(node, str) and (node in _BARE_TYPES or node.startswith("list[")):
        return {UNREPLAYABLE: node}
    return node
