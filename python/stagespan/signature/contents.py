"""Describes the values of integer and bool tensors briefly, see `make_content`."""

from __future__ import annotations

from typing import Any

import torch

from stagespan.harness.standalone.contents import MOST_ORDERED_COLUMNS

MOST_RUNS = 128
MOST_DISTINCT = 64
KNOTS = 64
MOST_LEVELS = 8
LARGEST_SORTED = 1 << 20
FREQUENT = 0.05
"""Values with at least this fraction of the elements keep their count and first position."""
FEWEST_ORDERED_ROWS = 16
"""The rows from which the order of columns is not chance."""


def describe_content(tensor: Any) -> dict[str, Any] | None:
    """Return a description of a tensor's values; None if they are like random numbers.

    For ``ordered``, columns ``low`` are never above columns ``high``, as in boxes of two corners,
    and ``of`` describes the values otherwise.
    """
    count = tensor.numel()
    if not count or count > LARGEST_SORTED:
        return None
    flat = tensor.detach().flatten().to(torch.int64)
    rows = flat.reshape(-1, tensor.shape[-1])
    width = rows.shape[1]
    first = rows[0]
    if width > 2 and bool((rows == first).all()):
        step = int(first[1] - first[0])
        if step and bool((first[1:] - first[:-1] == step).all()):
            return {"kind": "range", "start": int(first[0]), "step": step}
    change = torch.nonzero(flat[1:] != flat[:-1]).flatten() + 1
    if len(change) < MOST_RUNS:
        ends = torch.cat([change, torch.tensor([count], device=change.device)])
        starts = torch.cat([torch.zeros(1, dtype=ends.dtype, device=ends.device), ends[:-1]])
        return {
            "kind": "runs",
            "values": flat[starts].tolist(),
            "lengths": (ends - starts).tolist(),
        }
    if bool((flat[1:] >= flat[:-1]).all()):
        at = torch.linspace(0, count - 1, KNOTS + 1, dtype=torch.float64).round().long()
        return {"kind": "sorted", "knots": flat[at.to(flat.device)].tolist()}
    if width > 2:
        identity = torch.arange(width, device=rows.device)
        if bool((rows.sort(-1).values == identity).all()):
            return {"kind": "permutation"}
    description = _describe_values(flat)
    pairs = _ordered_columns(rows)
    if not pairs:
        return description
    low, high = (list(column) for column in zip(*pairs, strict=True))
    return {"kind": "ordered", "low": low, "high": high, "of": description}


def _ordered_columns(rows: Any) -> list[list[int]]:
    """Return the pairs of columns of which the first is never above the second."""
    if len(rows) < FEWEST_ORDERED_ROWS or not 1 < rows.shape[1] <= MOST_ORDERED_COLUMNS:
        return []
    is_below = (rows[:, :, None] <= rows[:, None, :]).all(0)
    is_equal = is_below & is_below.T
    pairs: list[list[int]] = ((is_below & ~is_equal) | is_equal.triu(1)).nonzero().tolist()
    return pairs


def _describe_values(flat: Any) -> dict[str, Any] | None:
    count = len(flat)
    values, counts = flat.unique(return_counts=True)
    if len(values) <= MOST_DISTINCT:
        return {"kind": "counts", "values": values.tolist(), "counts": counts.tolist()}
    often = counts >= max(2, int(FREQUENT * count))
    if not bool(often.any()) and len(values) * 2 > min(count, int(values[-1] - values[0])):
        return None
    frequent = values[often].tolist()
    return {
        "kind": "frequent",
        "values": frequent,
        "counts": counts[often].tolist(),
        "first": [int((flat == value).nonzero()[0]) for value in frequent],
        "distinct": int((~often).sum()),
    }


def describe_levels(tensor: Any) -> dict[str, Any] | None:
    """Return a description of a floating-point tensor with few values, such as a mask, or None.

    The values are ascending numbers, or "inf" and "-inf"; ``of`` describes which of them is where.
    """
    if tensor.numel() > LARGEST_SORTED:
        return None
    flat = tensor.detach().flatten()
    if len(flat[: 1 << 12].unique()) > MOST_LEVELS:
        return None
    levels = flat.unique()
    if len(levels) > MOST_LEVELS or bool(levels.isnan().any()):
        return None
    number = torch.searchsorted(levels, flat).reshape(tensor.shape)
    of = describe_content(number)
    if of is None:
        return None
    shown = [value if abs(value) < float("inf") else str(value) for value in levels.tolist()]
    return {"kind": "levels", "levels": shown, "of": of}
