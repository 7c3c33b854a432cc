"""Converts between TeleFuser's signature classes and stagespan's nodes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from stagespan.signature import StageSignature
from stagespan.signature.model import TYPE, UNREPLAYABLE, is_tensor


@dataclass
class TensorSignature:
    """Shape, dtype, device and ``requires_grad`` of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the signature as plain data for JSON."""
        return {**asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_tensor(cls, tensor: Any) -> TensorSignature:
        """Return the signature of a tensor."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(tuple(tensor.shape), dtype, str(tensor.device), bool(tensor.requires_grad))


@dataclass
class StageIOSignature:
    """The inputs of a stage by name, its output if that is a tensor, and its scalar arguments.

    An input is a `TensorSignature`, a list of them, a number, a string, None, or the name of the
    type of anything else.
    """

    stage_name: str
    input_signatures: dict[str, Any]
    output_signature: TensorSignature | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the stage's entry in a signature file."""
        output = self.output_signature
        return {
            "stage_name": self.stage_name,
            "input_signatures": {
                name: _plain(value) for name, value in self.input_signatures.items()
            },
            "output_signature": None if output is None else output.to_dict(),
            "metadata": self.metadata,
        }


def from_entry(name: str, entry: dict[str, Any]) -> StageIOSignature:
    """Return an entry of a signature file of stagespan or TeleFuser, in TeleFuser's classes."""
    inputs = entry.get("input_signatures") or {}
    output = _value(entry.get("output_signature"))
    return StageIOSignature(
        name,
        {key: _value(node) for key, node in inputs.items()},
        output if isinstance(output, TensorSignature) else None,
        dict(entry.get("metadata") or {}),
    )


def to_stage(signature: StageIOSignature) -> StageSignature:
    """Return the signature for stagespan's harness."""
    return StageSignature.from_json(signature.stage_name, signature.to_dict(), foreign=True)


def _plain(value: Any) -> Any:
    if isinstance(value, TensorSignature):
        return value.to_dict()
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _value(node: Any) -> Any:
    if is_tensor(node):
        return TensorSignature(
            tuple(node["shape"]),
            node["dtype"],
            node.get("device", "cpu"),
            bool(node.get("requires_grad", False)),
        )
    if isinstance(node, dict) and node.get(TYPE) in ("tuple", "list"):
        node = node.get("items") or []
    if isinstance(node, list):
        items = [_value(item) for item in node]
        if items and isinstance(items[0], TensorSignature):
            return items
        return f"list[{type(items[0]).__name__ if items else ''}]"
    if isinstance(node, dict):
        name = node.get(UNREPLAYABLE) or node.get("class") or node.get(TYPE) or "dict"
        return str(name).replace(":", ".").rpartition(".")[2]
    return node
