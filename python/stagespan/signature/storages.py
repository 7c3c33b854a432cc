"""Finds memory that several tensors among a call's arguments share. Does not import torch."""

from __future__ import annotations

from typing import Any

from stagespan.signature.model import TensorSignature

_ALIGNMENT = 16  # the size of the largest element, in bytes


class SharedStorages:
    """Collects tensors by their memory."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[str, int], list[tuple[int, dict[str, Any]]]] = {}

    def copy(self) -> SharedStorages:
        """Return a copy with the same tensors."""
        copied = SharedStorages()
        copied._tensors = {key: list(found) for key, found in self._tensors.items()}
        return copied

    def add(self, tensor: Any, node: dict[str, Any]) -> None:
        """Add the memory of a tensor. Tensors without memory, such as fake tensors, are ignored."""
        try:
            begin = tensor.untyped_storage().data_ptr()
            offset = tensor.storage_offset() * tensor.element_size()
        except (RuntimeError, NotImplementedError, TypeError):
            return
        if begin and tensor.numel() and node.get("layout") is None:
            self._tensors.setdefault((str(tensor.device), begin), []).append((offset, node))

    def write(self) -> None:
        """Write shared memory into the nodes of its tensors."""
        for number, (_, tensors) in enumerate(self._tensors.items()):
            if len(tensors) < 2:
                continue
            begin = min(offset for offset, _ in tensors) // _ALIGNMENT * _ALIGNMENT
            ends = [
                offset + TensorSignature.from_json(node, "a tensor").storage_bytes
                for offset, node in tensors
            ]
            for offset, node in tensors:
                node["storage"] = [str(number), max(ends) - begin, offset - begin]
