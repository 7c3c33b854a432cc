"""Creates mock values of a stage's inputs."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import types
import uuid
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stagespan.harness.standalone.contents import make_content
from stagespan.harness.standalone.loaded import find_loaded, is_harmless, part_at

# Content is repeated beyond this many elements, because creating it would take too long.
RANDOM_BLOCK = 1 << 24
TENSOR_OPTIONS = {"values", "value_range", "true_fraction", "content", "storage", "subclass"}
WORDS = "the small grey cat looks out of the window while rain falls on the quiet street below "


class MockInputs:
    """Creates values. The same seed and name give the same values on any device.

    ``device`` replaces the device of the stage, ``dtype`` the type of floating-point tensors.
    ``stage`` is the object whose method is replayed, of whose parts methods can be inputs.
    """

    def __init__(
        self,
        seed: int = 0,
        device: str | None = None,
        captured_device: str = "cpu",
        dtype: str | None = None,
        stage: Any = None,
    ) -> None:
        self.seed = seed
        self.device = device
        self.captured_device = captured_device
        self.dtype = dtype
        self.stage = stage
        self.made: dict[str, Any] = {}
        self.storages: dict[tuple[str, str], Any] = {}

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        device: str = "cpu",
        *,
        strides: Sequence[int] | None = None,
        requires_grad: bool = False,
        **more: Any,
    ) -> Any:
        """Return a tensor with random values, or with those that ``more`` describes.

        Random values are in ``value_range``; those of bool tensors are true with the probability
        ``true_fraction``. The others of ``more`` are arguments of a method: ``values`` of
        `with_values`, and so on. A script has only the methods whose arguments it passes.
        """
        if unknown := more.keys() - TENSOR_OPTIONS:
            raise TypeError(f"tensor() has no argument {', '.join(sorted(unknown))}")
        captured = dtype
        if self.dtype is not None and dtype.startswith(("float", "bfloat")):
            dtype = self.dtype
        kind = next((kind for kind in ("values", "content") if more.get(kind) is not None), None)
        if kind is not None:
            made = getattr(self, f"with_{kind}")(name, shape, dtype, more)
            if strides is not None:
                made = lay_out(made, strides)
        else:
            drawn = more.get("value_range"), more.get("true_fraction", 0.5)
            flat = self._random(name, storage_size(shape, strides), dtype, *drawn)
            made = flat.as_strided(tuple(shape), tuple(strides or dense_strides(shape)))
        if more.get("storage") is None or dtype != captured:
            made = made.to(self.place(device))
            more.pop("storage", None)
        for kind in ("storage", "subclass"):
            if more.get(kind) is not None:
                made = getattr(self, f"with_{kind}")(made, more[kind], strides, self.place(device))
        self.made[name] = made.requires_grad_() if requires_grad else made
        return self.made[name]

    def with_values(self, name: str, shape: Sequence[int], dtype: str, more: dict[str, Any]) -> Any:
        """Return a tensor on the host with the given values."""
        kind = getattr(torch, dtype)
        exact = torch.float64 if "float" in dtype else kind
        return torch.tensor(list(more["values"]), dtype=exact).to(kind).reshape(tuple(shape))

    def with_content(
        self, name: str, shape: Sequence[int], dtype: str, more: dict[str, Any]
    ) -> Any:
        """Return a tensor on the host with values as a content describes them."""
        source = torch.Generator().manual_seed(self._seed(name))
        exact = make_content(more["content"], shape, more.get("value_range") or (0, 1), source)
        return exact.to(getattr(torch, dtype))

    def with_storage(
        self, tensor: Any, storage: Sequence[Any], strides: Sequence[int] | None, device: str
    ) -> Any:
        """Copy a tensor to memory that other tensors share, and return it.

        ``storage`` is the name of the memory, its size, and the offset of the tensor.
        """
        name, size, begin = storage
        key = (device, name)
        if key not in self.storages or self.storages[key].numel() < size:
            self.storages[key] = torch.empty(size, dtype=torch.uint8, device=device)
        steps = strides or dense_strides(tensor.shape)
        end = begin + storage_size(tensor.shape, steps) * tensor.element_size()
        flat = self.storages[key][begin:end].view(tensor.dtype)
        return write_into(flat.as_strided(tuple(tensor.shape), tuple(steps)), tensor)

    def with_subclass(
        self, tensor: Any, subclass: str, strides: Sequence[int] | None, device: str
    ) -> Any:
        """Return a tensor as one of a class. Raises LookupError if the class is not loaded."""
        return of_subclass(tensor, subclass)

    def shared(self, name: str) -> Any:
        """Return the tensor that was created before under this name."""
        if name not in self.made:
            raise LookupError(
                f"it is the same tensor as {name!r}, which is not created before it; run the "
                f"pipeline again for a new signature file"
            )
        return self.made[name]

    def part(self, path: Sequence[Any]) -> Any:
        """Return the stage's object, or the part of it to which a path leads."""
        if self.stage is None:
            raise LookupError("it belongs to the stage's object; pass the object or its method")
        return part_at(self.stage, path)

    def array(self, name: str, shape: Sequence[int], dtype: str, **content: Any) -> Any:
        """Return a numpy array with the values of such a tensor."""
        return MockInputs(self.seed).tensor(name, shape, dtype, **content).numpy()

    def generator(self, name: str, device: str = "cpu") -> Any:
        """Return a seeded torch.Generator."""
        return torch.Generator(self.place(device)).manual_seed(self._seed(name))

    def text(self, name: str, length: int) -> str:
        """Return a text of ``length`` characters, in place of a redacted text."""
        start = self._seed(name) % len(WORDS)
        return (WORDS[start:] + WORDS * (length // len(WORDS) + 1))[:length]

    def image(self, name: str, size: Sequence[int], mode: str = "RGB") -> Any:
        """Return a PIL image of noise."""
        from PIL import Image

        channels = len(Image.new(mode, (1, 1)).getbands())
        noise = self._random(name, size[0] * size[1] * channels, "uint8", (0, 255), 0.5)
        if mode not in ("L", "RGB", "RGBA", "CMYK"):
            return Image.new(mode, (size[0], size[1]))
        return Image.frombytes(mode, (size[0], size[1]), noise.numpy().tobytes())

    def place(self, device: str) -> str:
        """Return the device for a value captured on ``device``. Host tensors stay on the host."""
        stays = device.startswith("cpu") and not self.captured_device.startswith("cpu")
        return device if self.device is None or stays else self.device

    def _seed(self, name: str) -> int:
        return zlib.crc32(f"{self.seed}:{name}".encode("utf-8", "surrogatepass"))

    def _random(
        self,
        name: str,
        size: int,
        dtype: str,
        value_range: Sequence[float] | None,
        true_fraction: float,
    ) -> Any:
        source = torch.Generator().manual_seed(self._seed(name))
        block = min(size, RANDOM_BLOCK)
        kind = getattr(torch, dtype)
        draw = getattr(self, f"draw_{dtype.rstrip('0123456789')}", None)
        if draw is not None:
            made = draw(block, source, value_range, true_fraction)
            made = made if made.dtype == kind else made.to(kind)
        elif value_range is not None:
            low, high = value_range
            some = torch.rand(block, generator=source, dtype=torch.float64)
            made = (low + (high - low) * some).to(kind)
        else:
            made = torch.randn(block, generator=source).to(kind)
        if size == block:
            return made
        whole = torch.empty(size, dtype=kind)
        for start in range(0, size, block):
            part = whole[start : start + block]
            part.copy_(made[: part.numel()])
        return whole

    def draw_bool(self, count: int, source: Any, value_range: Any, true_fraction: float) -> Any:
        """Return values that are true with a probability."""
        return torch.rand(count, generator=source) < true_fraction

    def draw_int(self, count: int, source: Any, value_range: Any, *_: Any) -> Any:
        """Return integers in a range, by default 0 and 1."""
        low, high = value_range or (0, 1)
        low, high = max(low, -(1 << 63)), min(high, (1 << 63) - 2)
        return torch.randint(low, high + 1, (count,), generator=source)

    def draw_uint(self, count: int, source: Any, value_range: Any, *_: Any) -> Any:
        """Return integers in a range, by default 0 and 1."""
        return self.draw_int(count, source, value_range)

    def draw_complex(self, count: int, source: Any, *_: Any) -> Any:
        """Return complex numbers with a normal distribution."""
        return torch.randn(count, generator=source, dtype=torch.complex64)

    def draw_float4_e2m1fn_x(self, count: int, source: Any, *_: Any) -> Any:
        """Return pairs of numbers of 4 bits."""
        made = torch.randint(0, 256, (count,), generator=source).to(torch.uint8)
        return made.view(torch.float4_e2m1fn_x2)

    def draw_float8_e8m0fnu(self, count: int, source: Any, *_: Any) -> Any:
        """Return powers of two."""
        return torch.randn(count, generator=source).abs()


def dense_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return strides


def storage_size(shape: Sequence[int], strides: Sequence[int] | None) -> int:
    """Return the size of a tensor's memory in elements, which is smaller if a stride is 0."""
    if 0 in shape:
        return 0
    steps = dense_strides(shape) if strides is None else strides
    return 1 + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))


def lay_out(tensor: Any, strides: Sequence[int]) -> Any:
    """Return a tensor with the same values and other strides."""
    if 0 in tensor.shape:
        return tensor
    storage = torch.empty(storage_size(tensor.shape, strides), dtype=tensor.dtype)
    return write_into(storage.as_strided(tuple(tensor.shape), tuple(strides)), tensor)


def write_into(laid: Any, tensor: Any) -> Any:
    """Copy values into a tensor of the same shape, whose elements can share memory."""
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in laid.stride())
    laid[once].copy_(tensor[once])
    return laid


def sparse_tensor(layout: str, shape: Sequence[int], offsets: Any, values: Any) -> Any:
    """Return a sparse tensor. The offsets give the number of elements in each row.

    Rows are those of the first dimension, or blocks or columns, depending on the layout.
    """
    offsets = made_monotonic(offsets, len(values))
    by_block = values.shape[1:3] if layout in ("sparse_bsr", "sparse_bsc") else (1, 1)
    rows = len(offsets) - 1
    if layout == "sparse_coo":
        sizes = [int(size) for size in shape[: len(shape) - values.dim() + 1]]
        others = sizes[1:] if len(sizes) > 1 else sizes
        width = 1
        for size in others:
            width *= size
    else:
        along = 0 if layout in ("sparse_csc", "sparse_bsc") else 1
        width = int(shape[along]) // int(by_block[along])
    # Offsets are approximate, so a row of a nearly full tensor can get too many elements.
    if rows and int(offsets.diff().max()) > width:
        even = torch.arange(rows + 1, device=offsets.device) * len(values) // rows
        offsets = even.to(offsets.dtype)
    counts = offsets.diff()
    row = torch.repeat_interleave(torch.arange(rows, device=offsets.device), counts)
    place = torch.arange(len(values), device=offsets.device) - offsets[row]
    begin = (row * 0.618) % 1  # rows with the same number of elements get different columns
    column = ((place + begin) * (width / counts[row].clamp(min=1))).long().clamp(max=width - 1)
    if layout != "sparse_coo":
        made = column.to(offsets.dtype)
        return torch.sparse_compressed_tensor(
            offsets,
            made,
            values,
            tuple(shape),
            layout=getattr(torch, layout),
            check_invariants=True,
        )
    indices = list(torch.unravel_index(column, tuple(others)))
    indices = [row, *indices] if len(sizes) > 1 else indices
    return torch.sparse_coo_tensor(
        torch.stack(indices), values, tuple(shape), is_coalesced=True, check_invariants=True
    )


def jagged_tensor(
    values: Any,
    offsets: Any,
    lengths: Any,
    dim: int,
    min_seqlen: int | None = None,
    max_seqlen: int | None = None,
) -> Any:
    """Return a nested tensor with the layout jagged.

    ``min_seqlen`` and ``max_seqlen`` are bounds of the lengths that the captured tensor knew, so
    that operators did not compute them. The result knows bounds that also hold for its lengths.
    """
    size = values.shape[dim - 1]
    offsets = made_monotonic(offsets, size)
    if lengths is not None:
        lengths = torch.minimum(lengths.clamp(min=0), offsets.diff().to(lengths.dtype))
    bounds: dict[str, int] = {}
    sizes = offsets.diff() if lengths is None else lengths
    if min_seqlen is not None:
        bounds["min_seqlen"] = min(min_seqlen, int(sizes.min())) if len(sizes) else min_seqlen
    if max_seqlen is not None:
        bounds["max_seqlen"] = max(max_seqlen, int(sizes.max())) if len(sizes) else max_seqlen
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, lengths, jagged_dim=dim, **bounds
    )


def nested_tensor(tensors: Sequence[Any]) -> Any:
    """Return a nested tensor of several tensors."""
    return torch.nested.as_nested_tensor(list(tensors))


def made_monotonic(offsets: Any, end: int) -> Any:
    """Return the offsets in ascending order, from 0 to ``end``."""
    made = offsets.clamp(0, end).sort().values
    made[0], made[-1] = 0, end
    return made


def find_class(path: str) -> Any:
    """Return a loaded class by ``package.module:Name``. Imports nothing. Raises LookupError."""
    class_ = find_loaded(path)
    if not isinstance(class_, type):
        module = path.partition(":")[0]
        raise LookupError(f"the class {path!r} is not loaded; import {module!r} first")
    return class_


def named_class(path: str) -> Any:
    """Return a loaded class that is itself an input. Raises LookupError if it must not be used."""
    kind = find_class(path)
    if not is_harmless(kind):
        raise LookupError(f"the class {path!r} is not one that a signature file may name")
    return kind


def instance(path: str, fields: dict[str, Any]) -> Any:
    """Return a dataclass or namedtuple with these fields. Runs no code of its class."""
    kind: Any = find_class(path)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return tuple.__new__(kind, [fields[name] for name in kind._fields])
    if not hasattr(kind, "__dataclass_fields__"):
        raise LookupError(f"the class {path!r} is neither a dataclass nor a namedtuple")
    if issubclass(kind, dict):  # such as the output classes of diffusers and transformers
        return kind(**fields)
    made = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def plain_object(path: str, fields: dict[str, Any]) -> Any:
    """Return an object with these attributes. Runs no code of its class."""
    kind: Any = find_class(path)
    if issubclass(kind, (type, torch.nn.Module)) or hasattr(kind, "__del__"):
        raise LookupError(f"an object of the class {path!r} cannot be created from its attributes")
    # object.__new__ refuses namespaces.
    is_namespace = issubclass(kind, types.SimpleNamespace)
    made = (types.SimpleNamespace if is_namespace else object).__new__(kind)
    return with_attributes(made, fields)


def member(path: str, name: str) -> Any:
    """Return a member of a loaded enum."""
    kind = find_class(path)
    if not issubclass(kind, enum.Enum):
        raise LookupError(f"the class {path!r} is not an enum")
    if name not in kind.__members__:
        raise LookupError(f"the enum {path!r} has no member {name!r}")
    return kind[name]


def mapping(path: str, data: Any, fields: Any = None, default: Any = None) -> Any:
    """Return a dictionary of a loaded class, such as the output of a tokenizer.

    With ``fields``, its attributes, no code of its class runs. ``default`` is the default factory
    of a `collections.defaultdict`.
    """
    kind = find_class(path)
    bases = (collections.defaultdict, collections.OrderedDict, dict, collections.UserDict)
    base: Any = next((base for base in bases if issubclass(kind, base)), None)
    if base is None:
        raise LookupError(f"the class {path!r} is not a dictionary")
    if fields is None and base is not collections.defaultdict:
        return kind(data)
    made = base.__new__(kind)
    base.__init__(made, *((default, data) if base is collections.defaultdict else (data,)))
    return with_attributes(made, fields or {})


def container_of(
    path: str, items: Sequence[Any], fields: Any = None, maxlen: int | None = None
) -> Any:
    """Return a list, tuple, set or deque of a loaded class. Runs no code of its class."""
    kind = find_class(path)
    bases = (list, tuple, set, frozenset, collections.deque)
    base: Any = next((base for base in bases if issubclass(kind, base)), None)
    if base is None:
        raise LookupError(f"the class {path!r} is not a list, tuple, set or deque")
    # Some classes of C, such as torch.Size, are created only by their own function.
    new = next(
        vars(each)["__new__"]
        for each in kind.__mro__
        if isinstance(vars(each).get("__new__"), types.BuiltinMethodType)
    )
    if base in (tuple, frozenset):
        made = new(kind, items)
    else:
        made = new(kind)
        base.__init__(made, *((items, maxlen) if base is collections.deque else (items,)))
    return with_attributes(made, fields or {})


def with_attributes(made: Any, fields: dict[str, Any]) -> Any:
    """Set attributes of an object without running code of its class, and return it."""
    for name, value in fields.items():
        held = (vars(base).get(name) for base in type(made).__mro__)
        slot = next((each for each in held if isinstance(each, types.MemberDescriptorType)), None)
        if slot is not None:
            slot.__set__(made, value)
        else:
            made.__dict__[name] = value
    return made


def of_subclass(tensor: Any, path: str) -> Any:
    """Return a tensor of a loaded class with the same memory."""
    kind = find_class(path)
    if not issubclass(kind, torch.Tensor):
        raise LookupError(f"the class {path!r} is not a tensor")
    return tensor.as_subclass(kind)


def partial_of(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return a partial function."""
    return functools.partial(function, *args, **kwargs)


def moment(kind: str, value: Any, zone: str | None = None, fold: int = 0) -> Any:
    """Return a value of the module datetime, or an exact number, from its text or its parts."""
    if kind == "timedelta":
        return datetime.timedelta(*value)
    if kind == "timezone":
        return datetime.timezone(datetime.timedelta(*value))
    if kind in ("datetime", "time"):
        made = getattr(datetime, kind).fromisoformat(value).replace(fold=fold)
        if zone is None:
            return made
        from zoneinfo import ZoneInfo

        return made.replace(tzinfo=ZoneInfo(zone))
    makers: dict[str, Callable[[Any], Any]] = {
        "date": datetime.date.fromisoformat,
        "Decimal": decimal.Decimal,
        "Fraction": fractions.Fraction,
        "UUID": uuid.UUID,
    }
    return makers[kind](value)


def numbers(*rows: str) -> list[Any]:
    """Return the numbers in texts that separate them by blanks."""
    texts = [text for row in rows for text in row.split()]
    return [int(text) if text.lstrip("-").isdecimal() else float(text) for text in texts]


def repeat(items: Sequence[Any], length: int) -> list[Any]:
    """Return a list of ``length`` items that repeats ``items``."""
    return [items[index % len(items)] for index in range(length)]


def stretch(text: str, length: int) -> str:
    """Return a text of ``length`` characters that repeats ``text``."""
    return (text * (length // max(len(text), 1) + 1))[:length]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory of the host or a device was exhausted."""
    if isinstance(error, (MemoryError, getattr(torch, "OutOfMemoryError", MemoryError))):
        return True
    message = str(error).lower()
    wordings = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, RuntimeError) and any(wording in message for wording in wordings)
