"""Mock inputs of a stage from its signature. Imports torch."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from stagespan.errors import HarnessError, SignatureError
from stagespan.signature import dtypes, values
from stagespan.signature.model import (
    TYPE,
    UNREPLAYABLE,
    StageSignature,
    TensorSignature,
    is_tensor,
)
from stagespan.signature.resources import check_device, check_memory
from stagespan.signature.walk import tensors_of

_LONGEST = 1 << 24  # of a list or text that a file asks for
_LARGEST_IMAGE = 1 << 14  # pixels on a side


def make_inputs(
    signature: StageSignature,
    device: str | None = None,
    seed: int = 0,
    *,
    dtype: str | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Values for every argument of a stage, by name (``*args`` as a list under its starred name).

    ``device`` replaces the captured one, ``dtype`` that of floating-point tensors; ``inputs`` are
    given as they are, in place of what was captured. The same seed gives the same values.

    Raises SignatureError for an entry that is wrong, HarnessError for an argument that cannot be
    replayed, a device that is not there, and more memory than there is.
    """
    given = dict(inputs or {})
    if dtype is not None:
        dtype = dtypes.canonical(dtype)
        if not dtypes.is_floating(dtype) or dtype not in dtypes.ELEMENT_BYTES:
            known = filter(dtypes.is_floating, dtypes.ELEMENT_BYTES)
            raise HarnessError(
                f"dtype {dtype!r} is not a floating-point type; "
                f"{dtypes.unknown_dtype(dtype, known)}."
            )
    nodes = {name: node for name, node in signature.arguments.items() if name not in given}
    _check_memory(signature.stage_name, nodes, device, dtype)
    mock = values.MockInputs(seed, device, captured_device(signature), dtype)
    try:
        made = {name: build(node, name, mock) for name, node in nodes.items()}
    except RecursionError:
        raise SignatureError(
            f"The inputs of stage {signature.stage_name!r} are nested too deeply to be replayed."
        ) from None
    return {**made, **given}


def captured_device(signature: StageSignature) -> str:
    """The stage's device: the first accelerator among its inputs, else ``cpu``."""
    for _, node in tensors_of(signature.arguments):
        device = node.get("device", "cpu")
        if isinstance(device, str) and not device.startswith("cpu") and TYPE not in node:
            return device
    return "cpu"


def _check_memory(stage: str, nodes: dict[str, Any], device: str | None, dtype: str | None) -> None:
    place = values.MockInputs(
        device=device, captured_device=captured_device(StageSignature(stage, nodes))
    )
    needed: dict[str, int] = {}
    largest, most = "", -1
    for path, node in tensors_of(nodes):
        tensor = TensorSignature.from_json(node, f"input {path!r} of stage {stage!r}")
        target = place.place(tensor.device)
        if target not in needed:
            check_device(target, f"Input {path!r} of stage {stage!r}")
        size = tensor.storage_bytes
        needed[target] = needed.get(target, 0) + size
        if size > most:
            largest, most = f"{path!r} with shape {list(tensor.shape)}", size
    check_memory(needed, largest)


def build(node: Any, path: str, mock: values.MockInputs) -> Any:
    """The value of one node; ``path`` names it in messages and seeds its content."""
    if isinstance(node, list):
        return [build(item, f"{path}[{index}]", mock) for index, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    if UNREPLAYABLE in node:
        raise unreplayable_error(node, path)
    if is_tensor(node):
        return _tensor(node, path, mock)
    if TYPE not in node:
        return {key: build(item, f"{path}.{key}", mock) for key, item in node.items()}
    try:
        return _build_special(node, path, mock)
    except LookupError as error:
        raise HarnessError(
            f"Input {path!r} cannot be made: {str(error).strip(chr(34))}, or pass it in with "
            f"HarnessConfig(inputs={{{top(path)!r}: ...}})."
        ) from None
    except SignatureError:
        raise
    except (TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        if isinstance(error, (HarnessError, RecursionError)):
            raise
        raise SignatureError(
            f"Input {path!r}: its entry of type {node[TYPE]!r} is wrong ({error})."
        ) from None


def _tensor(node: dict[str, Any], path: str, mock: values.MockInputs) -> Any:
    signature = TensorSignature.from_json(node, f"input {path!r}")
    content = content_of(signature)
    make = mock.array if TYPE in node else partial(mock.tensor, device=signature.device)
    try:
        return make(path, signature.shape, signature.dtype, **content)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise SignatureError(
            f"Input {path!r} with shape {list(signature.shape)} and dtype {signature.dtype} cannot "
            f"be made: {str(error).partition(chr(10))[0]}"
        ) from None


def content_of(tensor: TensorSignature) -> dict[str, Any]:
    """The arguments of `MockInputs.tensor` beyond name, shape, dtype and device."""
    content: dict[str, Any] = {}
    if tensor.values is not None:
        content["values"] = list(tensor.values)
    elif tensor.value_range is not None:
        content["value_range"] = list(tensor.value_range)
    elif tensor.true_fraction is not None:
        content["true_fraction"] = tensor.true_fraction
    if tensor.values is None and tensor.content is not None:
        content["content"] = tensor.content
    if tensor.strides is not None:
        content["strides"] = list(tensor.strides)
    if tensor.requires_grad and tensor.dtype.startswith(("float", "bfloat", "complex")):
        content["requires_grad"] = True
    return content


def unreplayable_error(node: dict[str, Any], path: str) -> HarnessError:
    """The sentence for an argument that has to be passed in."""
    reason = f" ({node['reason']})" if "reason" in node else ""
    return HarnessError(
        f"Input {path!r} is a {node[UNREPLAYABLE]}{reason}, which cannot be made from its "
        f"signature; pass it in with HarnessConfig(inputs={{{top(path)!r}: ...}})."
    )


def top(path: str) -> str:
    """The argument's name in the path of a value within it."""
    return path.partition(".")[0].partition("[")[0]


def _build_special(node: dict[str, Any], path: str, mock: values.MockInputs) -> Any:
    kind = node[TYPE]
    if kind == "tuple":
        return tuple(build(_list(node, "items"), path, mock))
    if kind == "set":
        return set(build(_list(node, "items"), path, mock))
    if kind == "list":
        items = build(_list(node, "items"), path, mock)
        made = values.repeat(items, length_of(node)) if items else []
        return tuple(made) if node.get("of") == "tuple" else made
    if kind in ("dataclass", "namedtuple"):
        return values.instance(node["class"], build(dict(node["fields"]), path, mock))
    if kind == "dict":
        pairs = {
            build(key, f"{path}.key", mock): build(item, f"{path}.{key}", mock)
            for key, item in _list(node, "items")
        }
        return values.mapping(node["class"], pairs) if "class" in node else pairs
    if kind == "userdict":
        return values.mapping(node["class"], build(node["data"], path, mock))
    if kind == "object":
        return values.plain_object(node["class"], build(dict(node["fields"]), path, mock))
    if kind == "class":
        return values.find_class(node["class"])
    if kind == "shared":
        return mock.shared(str(node["of"]))
    if kind == "enum":
        return values.member(node["class"], node["name"])
    if kind == "str":
        length = length_of(node)
        return (
            values.stretch(str(node["text"]), length) if "text" in node else mock.text(path, length)
        )
    if kind == "float":
        return float(node["value"])
    if kind == "complex":
        return complex(build(node["real"], path, mock), build(node["imag"], path, mock))
    if kind == "path":
        return pathlib.Path(node["value"] if "value" in node else mock.text(path, length_of(node)))
    if kind == "bytes":
        return bytes.fromhex(node["hex"]) if "hex" in node else bytes(length_of(node))
    if kind == "range":
        return range(*_list(node, "args"))
    if kind == "slice":
        return slice(*build(_list(node, "args"), path, mock))
    if kind == "image":
        width, height = (int(size) for size in _list(node, "size"))
        if not (0 < width <= _LARGEST_IMAGE and 0 < height <= _LARGEST_IMAGE):
            raise ValueError(f"{width} x {height} is not the size of an image")
        return mock.image(path, (width, height), str(node["mode"]))
    if kind == "ndarray":
        return _tensor(node, path, mock)
    if kind == "torch.Generator":
        check_device(mock.place(node["device"]), f"Input {path!r}")
        return mock.generator(path, node["device"])
    if kind == "torch.device":
        return torch.device(mock.place(node["value"]))
    if kind in ("torch.dtype", "torch.memory_format", "torch.layout"):
        found = getattr(torch, torch_name(node), None)
        if type(found).__name__ == kind.partition(".")[2]:
            return found
    raise SignatureError(
        f"Input {path!r}: this stagespan does not know the {kind} {str(node.get('value', kind))!r}."
    )


def torch_name(node: dict[str, Any]) -> str:
    """Return the name in torch of a node's ``value``. Raises ValueError if it is not a name."""
    name = node["value"]
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{name!r} is not a name")
    return name


def length_of(node: dict[str, Any]) -> int:
    """Return the length of a long list or text. Raises ValueError if it is invalid."""
    length = node["length"]
    if type(length) is not int or not 0 <= length <= _LONGEST:
        raise ValueError(f"length {length!r} is not a number from 0 to {_LONGEST}")
    return length


def _list(node: dict[str, Any], key: str) -> list[Any]:
    found = node[key]
    if not isinstance(found, list):
        raise ValueError(f"{key!r} is not a list")
    return found
