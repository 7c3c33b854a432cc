"""Kinds of torch and numpy: tensors of every layout, their names, devices and generators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stagespan.harness.standalone.loaded import path_of
from stagespan.process import imports
from stagespan.signature.model import TYPE, TensorSignature
from stagespan.signature.tensors import array_node, tensor_node
from stagespan.signature.value_kinds.base import (
    LOST,
    MAX_ITEMS,
    UNKNOWN,
    Capture,
    Kind,
    Maker,
    Node,
    describe_node,
    form_of,
    items_of,
    items_text,
    list_of,
    short,
    text_of,
    torch_module,
    type_name,
    unreplayable,
)


class _Tensor(Kind):
    """A tensor of torch in one piece of memory."""

    def matches(self, value: Any) -> bool:
        torch = torch_module()
        return torch is not None and isinstance(value, torch.Tensor)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        if _has_own_operators(type(value)):
            return unreplayable(value, "a tensor class that replaces operators")
        first = to.first_with(value, path)
        if first is not None:
            return {TYPE: SHARED.name, "of": first}
        torch, kind = torch_module(), type(value)
        if kind is torch.Tensor or kind.__module__.startswith("torch._subclass"):
            node = tensor_node(value, torch, to.read_values)
            to.keep_storage(value, node)
            return node
        # No operator runs under a mode that sees them.
        reads = to.read_values and not torch._C._len_torch_dispatch_stack()
        node = tensor_node(value.as_subclass(torch.Tensor) if reads else value, torch, reads)
        to.keep_storage(value, node)
        class_path = path_of(kind)
        names = [] if kind is torch.nn.Parameter else sorted(vars(value))
        if class_path is None:
            node[LOST] = f"its class {type_name(value)}"
        else:
            node["class"] = class_path
            if names:
                node[LOST] = f"its attributes {', '.join(names)}"
        return node

    def make(self, node: Any, path: str, to: Maker) -> Any:
        tensor = TensorSignature.from_json(node, path)
        return _made("mock.tensor", path, tensor, to, tensor.device)

    def describe(self, node: Any, depth: int) -> str:
        return f"{node['dtype']}{short(str(node['shape']))} {node.get('device', 'cpu')}"

    def form(self, node: Any, sizes: bool) -> list[str]:
        device = str(node.get("device", "host")).partition(":")[0]
        found = [f"{node['dtype']}{node['shape'] if sizes else len(node['shape'])}{device}"]
        return [*found, str(node["class"])] if "class" in node else found


class _Shared(Kind):
    """A tensor that is also an earlier input, or a part of one."""

    name = "shared"

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return to.call("mock.shared", to.literal(text_of(node, "of")))

    def describe(self, node: Any, depth: int) -> str:
        return f"the same tensor as {short(str(node.get('of')))}"


class _Sparse(Kind):
    """A sparse tensor. The number of elements in each row is kept, their columns are not."""

    name = "torch.sparse"
    exact = ("layout",)
    LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")

    def matches(self, value: Any) -> bool:
        torch = torch_module()
        if torch is None or not isinstance(value, torch.Tensor):
            return False
        return _layout(value) in self.LAYOUTS

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        torch, layout = torch_module(), _layout(value)
        if to.shapes_only:
            return unreplayable(value, "whose form is in its values")
        with torch.no_grad():
            if layout == "sparse_coo":
                indices, values = value._indices(), value._values()
                rows = value.shape[0] if len(indices) > 1 else 1
                counts = torch.zeros(rows, dtype=torch.int64, device=values.device)
                if to.read_values and len(indices) > 1:
                    counts = torch.bincount(indices[0], minlength=rows)
                offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
            else:
                by_row = layout in ("sparse_csr", "sparse_bsr")
                offsets = value.crow_indices() if by_row else value.ccol_indices()
                values = value.values()
            if offsets.dim() > 1:
                return unreplayable(value, f"a batch of {layout} tensors")
            node = {
                TYPE: self.name,
                "layout": layout,
                "shape": [int(size) for size in value.shape],
                "offsets": to.node(offsets, f"{path}.offsets"),
                "values": to.node(values.detach(), f"{path}.values"),
            }
        return {**node, "requires_grad": True} if value.requires_grad else node

    def make(self, node: Any, path: str, to: Maker) -> Any:
        layout, shape = node["layout"], _sizes(node, "shape")
        if layout not in self.LAYOUTS:
            raise ValueError(f"{layout!r} is not the layout of a sparse tensor")
        parts = (to.node(node[key], f"{path}.{key}") for key in ("offsets", "values"))
        made = to.call("sparse_tensor", to.literal(layout), to.literal(shape), *parts)
        return to.method(made, "requires_grad_") if node.get("requires_grad") else made

    def describe(self, node: Any, depth: int) -> str:
        values = node.get("values")
        dtype = values.get("dtype") if isinstance(values, dict) else "?"
        return f"{node.get('layout')} {dtype}{short(str(node.get('shape')))}"

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        return ((f"{path}.{k}", node[k]) for k in ("offsets", "values") if k in node)

    def form(self, node: Any, sizes: bool) -> list[str]:
        whole = [str(node["shape"])] if sizes else [str(len(node["shape"]))]
        parts = [part for _, item in self.parts(node, "") for part in form_of(item, sizes)]
        return [f"{{{self.name}", str(node["layout"]), *whole, *parts]


class _Nested(Kind):
    """A nested tensor: its tensors, or all rows in one tensor with offsets (layout jagged)."""

    name = "torch.nested"
    exact = ("layout", "dim")
    BOUNDS = ("min_seqlen", "max_seqlen")

    def _bounds(self, node: Node) -> dict[str, int]:
        bounds = {name: node[name] for name in self.BOUNDS if node.get(name) is not None}
        if not all(type(bound) is int and 0 <= bound < 1 << 62 for bound in bounds.values()):
            raise ValueError("a bound of its lengths is not a number from 0")
        return bounds

    def matches(self, value: Any) -> bool:
        torch = torch_module()
        if torch is None or not isinstance(value, torch.Tensor):
            return False
        return bool(getattr(value, "is_nested", False))

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        if to.shapes_only:
            return unreplayable(value, "whose form is in its values")
        node: Node = {TYPE: self.name, "layout": _layout(value)}
        if node["layout"] == "jagged":
            for part in ("values", "offsets", "lengths"):
                inner = getattr(value, part)()
                node[part] = to.node(None if inner is None else inner.detach(), f"{path}.{part}")
            node["dim"] = int(value._ragged_idx)
            # The bounds that operators know without a wait for the device.
            for bound in self.BOUNDS:
                known = getattr(value, f"_maybe_{bound}", None)
                if type(known) is int:
                    node[bound] = known
        else:
            tensors = value.unbind()
            if len(tensors) > MAX_ITEMS:
                return unreplayable(value, f"{len(tensors)} nested tensors, more than {MAX_ITEMS}")
            node["items"] = to.items([tensor.detach() for tensor in tensors], path)
        return {**node, "requires_grad": True} if value.requires_grad else node

    def make(self, node: Any, path: str, to: Maker) -> Any:
        if node["layout"] == "jagged":
            parts = (to.node(node[k], f"{path}.{k}") for k in ("values", "offsets", "lengths"))
            bounds = {name: to.literal(bound) for name, bound in self._bounds(node).items()}
            made = to.call("jagged_tensor", *parts, to.literal(int(node["dim"])), **bounds)
        else:
            made = to.call("nested_tensor", to.items(list_of(node, "items"), path))
        return to.method(made, "requires_grad_") if node.get("requires_grad") else made

    def describe(self, node: Any, depth: int) -> str:
        if "values" in node:
            return f"jagged ({describe_node(node['values'], depth + 1)})"
        return items_text("nested (", node.get("items"), ")", depth)

    def parts(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        if "values" in node:
            return ((f"{path}.{k}", node.get(k)) for k in ("values", "offsets", "lengths"))
        return ((f"{path}[{at}]", item) for at, item in enumerate(items_of(node, "items")))


class _TorchName(Kind):
    """A data type, memory format or layout of torch."""

    def __init__(self, name: str) -> None:
        self.name = f"torch.{name}"
        self._type = name

    def matches(self, value: Any) -> bool:
        torch = torch_module()
        return torch is not None and isinstance(value, getattr(torch, self._type))

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "value": str(value).removeprefix("torch.")}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        constant = getattr(torch_module(), _identifier(node), None)
        if type(constant).__name__ != self._type:
            UNKNOWN.make(node, path, to)
        return to.named(f"torch.{_identifier(node)}", constant)


class _TorchDevice(Kind):
    name = "torch.device"

    def matches(self, value: Any) -> bool:
        torch = torch_module()
        return torch is not None and isinstance(value, torch.device)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "value": str(value)}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        place = to.call("mock.place", to.literal(text_of(node, "value")))
        return to.call("torch.device", place)


class _TorchGenerator(Kind):
    """A random number generator. A replay gets one with another seed."""

    name = "torch.Generator"

    def matches(self, value: Any) -> bool:
        torch = torch_module()
        return torch is not None and isinstance(value, torch.Generator)

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        return {TYPE: self.name, "device": str(value.device)}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        device = text_of(node, "device")
        to.check_device(device, path)
        return to.call("mock.generator", to.literal(path), to.literal(device))


class _Array(Kind):
    """A numpy array. A numpy scalar becomes a Python number."""

    name = "ndarray"

    def matches(self, value: Any) -> bool:
        numpy = imports.loaded("numpy")
        return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))

    def capture(self, value: Any, path: str, to: Capture) -> Any:
        numpy = imports.load("numpy")
        if isinstance(value, numpy.generic):
            return to.node(value.item(), path)
        node = array_node(numpy.asarray(value), to.read_values)
        if node is None:
            return unreplayable(value)
        is_plain = type(value) in (numpy.ndarray, numpy.memmap)
        return node if is_plain else {**node, LOST: f"its class {type_name(value)}"}

    def make(self, node: Any, path: str, to: Maker) -> Any:
        return _made("mock.array", path, TensorSignature.from_json(node, path), to)

    def describe(self, node: Any, depth: int) -> str:
        return f"numpy {node.get('dtype')}{short(str(node.get('shape')))}"

    def form(self, node: Any, sizes: bool) -> list[str]:
        return TENSOR.form(node, sizes)


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor of torch's own class in one piece of memory."""
    torch = torch_module()
    if torch is None or type(value) is not torch.Tensor:
        return False
    return value.layout is torch.strided and not getattr(value, "is_nested", False)


TENSOR, SHARED = _Tensor(), _Shared()
KINDS: tuple[Kind, ...] = (
    *(_Sparse(), _Nested(), TENSOR, SHARED),
    *map(_TorchName, ("dtype", "memory_format", "layout")),
    *(_TorchDevice(), _TorchGenerator(), _Array()),
)


def _content_of(tensor: TensorSignature) -> dict[str, Any]:
    """Return the arguments of `MockInputs.tensor` after name, shape, dtype and device."""
    node = tensor.to_json()
    names = ("values", "value_range", "true_fraction", "content", "strides", "storage", "class")
    content = {name.replace("class", "subclass"): node[name] for name in names if name in node}
    if tensor.requires_grad and tensor.dtype.startswith(("float", "bfloat", "complex")):
        content["requires_grad"] = True
    return content


def _made(function: str, path: str, tensor: TensorSignature, to: Maker, *device: str) -> Any:
    content = {name: to.literal(value) for name, value in _content_of(tensor).items()}
    return to.call(
        function, *map(to.literal, (path, list(tensor.shape), tensor.dtype, *device)), **content
    )


def _has_own_operators(kind: Any) -> bool:
    """Whether a subclass of Tensor replaces operators, such as DTensor or a quantized weight.

    Torch's own fake and functional tensors, which stand for plain ones, do not count.
    """
    torch = torch_module()
    if kind in (torch.Tensor, torch.nn.Parameter) or kind.__module__.startswith("torch._subclass"):
        return False
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    usual = torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl
    dispatch = kind.__torch_dispatch__
    return function not in usual or dispatch is not torch._C._disabled_torch_dispatch_impl


def _layout(tensor: Any) -> str:
    return str(tensor.layout).removeprefix("torch.")


def _identifier(node: Node) -> str:
    """Return the name in a node's ``value``. Raises ValueError if it is not an identifier."""
    name = node["value"]
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{name!r} is not a name")
    return name


def _sizes(node: Node, key: str) -> list[int]:
    sizes = list_of(node, key)
    if not all(type(size) is int and 0 <= size < 1 << 62 for size in sizes):
        raise ValueError(f"{key!r} is not a list of sizes")
    return sizes
