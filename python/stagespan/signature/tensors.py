"""Creates the nodes of tensors and arrays, with as much about the values as a mock needs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from stagespan.device.table import is_capturing
from stagespan.process import imports
from stagespan.signature import dtypes
from stagespan.signature.model import TYPE, TensorSignature

# Tensors up to this size keep all values, because these may be lengths, offsets or timesteps.
KEPT_INTEGERS = 64
KEPT_FLOATS = 16
# Finding the range of a larger one would take milliseconds on a CPU.
_LARGEST_SCANNED = 1 << 24


def tensor_node(tensor: Any, torch: Any, read_values: bool) -> dict[str, Any]:
    """Return the node of a torch tensor of any layout and device; its class is left out."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(map(int, tensor.shape))
    signature = TensorSignature(
        shape=shape,
        dtype=dtype,
        device=str(tensor.device),
        requires_grad=bool(tensor.requires_grad),
    )
    if tensor.layout is not torch.strided:
        return {**signature.to_json(), "layout": str(tensor.layout).removeprefix("torch.")}
    extra: dict[str, Any] = {}
    if not tensor.is_contiguous() and signature.numel:
        extra["strides"] = tuple(int(step) for step in tensor.stride())
    if read_values and tensor.numel() and _may_read(tensor, torch):
        try:
            with torch.no_grad():
                extra.update(_content(tensor, dtype, torch))
        except Exception:  # no kernel for the type, a functorch wrapper, a graph capture, ...
            pass
    return (replace(signature, **extra) if extra else signature).to_json()


def _may_read(tensor: Any, torch: Any) -> bool:
    """Whether values can be read: not during graph capture or tracing, and not of fake tensors."""
    if tensor.device.type == "meta" or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    if torch._C._len_torch_dispatch_stack() or torch.jit.is_tracing():
        return False
    if tensor.device.type == "cpu":
        return True
    return not is_capturing(getattr(torch, tensor.device.type, None))


def _content(tensor: Any, dtype: str, torch: Any) -> dict[str, Any]:
    count = tensor.numel()
    if dtype == "bool":
        if count <= KEPT_INTEGERS:
            return {"values": tuple(tensor.flatten().tolist())}
        kind = _kind(tensor)
        found = {"content": kind} if kind and kind["kind"] == "runs" else {}
        return {"true_fraction": tensor.sum().item() / count, **found}
    if dtypes.is_integer(dtype):
        if count <= KEPT_INTEGERS:
            return {"values": tuple(tensor.flatten().tolist())}
        # aminmax has no kernel for these types, and a copy of a large tensor needs memory.
        is_copied = dtype in ("uint16", "uint32", "uint64")
        if count > _LARGEST_SCANNED and (is_copied or tensor.device.type == "cpu"):
            return {}
        if is_copied:
            tensor = tensor.to(torch.int64)
        low, high = torch.aminmax(tensor)
        kind = _kind(tensor) if low != high else None
        return {"value_range": (int(low), int(high)), **({"content": kind} if kind else {})}
    if dtype not in ("float16", "bfloat16", "float32", "float64"):
        return {}
    if count <= KEPT_FLOATS:
        values = tuple(tensor.flatten().tolist())
        if all(abs(value) <= 1e308 for value in values):  # neither infinite nor not a number
            return {"values": values}
    if count > _LARGEST_SCANNED and tensor.device.type == "cpu":
        return {}
    levels = imports.load("stagespan.signature.contents").describe_levels(tensor)
    if levels is not None:
        return {"content": levels}
    lowest, highest = (float(bound) for bound in torch.aminmax(tensor))
    return _bounds(lowest, highest)


def _bounds(low: float, high: float) -> dict[str, Any]:
    """Return the range of values that are not like those of a normal distribution around 0."""
    if not math.isfinite(low) or not math.isfinite(high):
        return {}
    is_bounded = low >= 0 or high <= 0 or (low >= -1 and high <= 1)
    return {"value_range": (low, high)} if is_bounded else {}


def _kind(tensor: Any) -> dict[str, Any] | None:
    return imports.load("stagespan.signature.contents").describe_content(tensor) or None


def array_node(array: Any, read_values: bool) -> dict[str, Any] | None:
    """Return the node of a numpy array; None for types that mock inputs cannot have."""
    name = array.dtype.name
    if name not in dtypes.NUMPY_NAMES:
        return None
    extra: dict[str, Any] = {}
    if read_values and array.size and (name == "bool" or dtypes.is_integer(name)):
        if array.size <= KEPT_INTEGERS:
            extra["values"] = tuple(array.flatten().tolist())
        elif name == "bool":
            extra["true_fraction"] = float(array.mean())
        elif array.size <= _LARGEST_SCANNED:
            extra["value_range"] = (int(array.min()), int(array.max()))
    elif read_values and 0 < array.size <= _LARGEST_SCANNED and name.startswith("float"):
        extra.update(_bounds(float(array.min()), float(array.max())))
    node = TensorSignature(shape=tuple(array.shape), dtype=name, **extra).to_json()
    del node["device"]
    return {TYPE: "ndarray", **node}
