"""Describes the values of integer and bool tensors briefly, and creates similar tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

MOST_RUNS = 128
MOST_DISTINCT = 64
KNOTS = 64
MOST_LEVELS = 8
LARGEST_SORTED = 1 << 20
FREQUENT = 0.05
"""Values with at least this fraction of the elements keep their count and first position."""


FEWEST_ORDERED_ROWS, MOST_ORDERED_COLUMNS = 16, 8
"""The rows from which the order of columns is not chance, and the most columns compared."""


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
    found = _describe_values(flat)
    pairs = _ordered_columns(rows)
    if not pairs:
        return found
    low, high = (list(column) for column in zip(*pairs, strict=True))
    return {"kind": "ordered", "low": low, "high": high, "of": found}


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


def make_content(
    content: Mapping[str, Any],
    shape: Sequence[int],
    value_range: Sequence[float],
    generator: Any,
) -> Any:
    """Return a tensor with such values: float64 for levels, int64 for all other kinds.

    Raises ValueError if ``content`` is not valid.
    """
    if content["kind"] == "levels":
        levels = torch.tensor([float(level) for level in content["levels"]], dtype=torch.float64)
        number = make_content(content["of"], shape, (0, len(levels) - 1), generator)
        return levels[number.clamp(0, len(levels) - 1)]
    count = 1
    for size in shape:
        count *= size
    width = shape[-1] if len(shape) else 1
    kind = content["kind"]
    if kind == "ordered":
        return _make_ordered(content, shape, value_range, generator)
    if kind == "range":
        row = torch.arange(width) * content["step"] + content["start"]
        return row.expand(tuple(shape)).contiguous() if len(shape) else row.reshape(())
    if kind == "runs":
        made = _repeated(content["values"], content["lengths"], count)
    elif kind == "counts":
        made = _repeated(content["values"], content["counts"], count)
        made = made[torch.randperm(count, generator=generator)]
    elif kind == "sorted":
        knots = torch.tensor(content["knots"], dtype=torch.float64)
        at = torch.linspace(0, len(knots) - 1, count, dtype=torch.float64)
        below = at.floor().long().clamp(max=max(len(knots) - 2, 0))
        above = (below + 1).clamp(max=len(knots) - 1)
        made = (knots[below] + (knots[above] - knots[below]) * (at - below)).floor()
        made = made.clamp(max=2.0**63 - 1024).long()  # the largest float64 below 2^63
    elif kind == "permutation":
        made = torch.rand((count // max(width, 1), width), generator=generator).argsort(-1)
    elif kind == "frequent":
        made = _make_frequent(content, count, value_range, generator)
    else:
        raise ValueError(f"the content {kind!r} is not known")
    return made.reshape(tuple(shape))


def _make_frequent(
    content: Mapping[str, Any], count: int, value_range: Sequence[float], generator: Any
) -> Any:
    """Return a flat tensor with the counts, the first places and the number of other values."""
    made = torch.zeros(count, dtype=torch.int64)
    is_free = torch.ones(count, dtype=torch.bool)
    columns = zip(content["values"], content["counts"], content["first"], strict=True)
    frequent = [row for row in columns if row[1] > 0 and row[2] < count]
    for value, _, first in frequent:
        made[first] = value
        is_free[first] = False
    # From the last one, so that an earlier value does not take the places that a later one needs.
    for value, times, first in sorted(frequent, key=lambda row: -row[2]):
        places = is_free[first:].nonzero().flatten()[: min(times, count) - 1] + first
        made[places] = value
        is_free[places] = False
    places = is_free.nonzero().flatten()
    others = _other_values(content, value_range, len(places), generator)
    # Each equally often, so that none of them becomes frequent.
    repeated = others.repeat(-(-len(places) // len(others)))[: len(places)]
    made[places] = repeated[torch.randperm(len(places), generator=generator)]
    return made


def _limits(value_range: Sequence[float]) -> tuple[int, int]:
    """Return a range in which torch can draw: its width, and its end + 1, fit into 64 bits."""
    low, high = int(value_range[0]), int(value_range[1])
    if high - low >= 1 << 63:
        low, high = max(low, -1 << 62), min(high, 1 << 62)
    largest = (1 << 63) - 2
    return min(low, largest), min(high, largest)


def _other_values(
    content: Mapping[str, Any], value_range: Sequence[float], most: int, generator: Any
) -> Any:
    """Return the different values that are not frequent, at least one and at most ``most``."""
    low, high = _limits(value_range)
    number = max(min(content["distinct"], most), 1)
    frequent = torch.tensor(content["values"], dtype=torch.int64)
    if high - low < 4 * (number + len(frequent)):
        drawn = torch.randperm(high + 1 - low, generator=generator) + low
    else:
        # The range has at least four times as many values as are needed. Twice as many draws
        # therefore contain enough different values that are not frequent.
        drawn = torch.randint(
            low, high + 1, (2 * number + 2 * len(frequent) + 64,), generator=generator
        ).unique()
        drawn = drawn[torch.randperm(len(drawn), generator=generator)]
    ends = torch.tensor(sorted({low, high}), dtype=torch.int64)  # the live values contain both
    drawn = torch.cat([ends, drawn[~torch.isin(drawn, ends)]])
    others = drawn[~torch.isin(drawn, frequent)][:number]
    return others if len(others) else drawn[:1]


def _make_ordered(
    content: Mapping[str, Any], shape: Sequence[int], value_range: Sequence[float], generator: Any
) -> Any:
    width = shape[-1] if len(shape) else 1
    pairs = list(zip(content["low"], content["high"], strict=True))
    if width > MOST_ORDERED_COLUMNS or not all(0 <= at < width for pair in pairs for at in pair):
        raise ValueError(f"its content names columns that its {width} columns do not have")
    if content["of"] is None:
        low, high = _limits(value_range)
        made = torch.randint(low, high + 1, tuple(shape), generator=generator)
    else:
        made = make_content(content["of"], shape, value_range, generator)
    rows = made.reshape(-1, width).clone()
    for _ in range(width):  # an exchange can break the order of an earlier pair
        for one, other in pairs:
            values = rows[:, [one, other]]
            rows[:, one], rows[:, other] = values.amin(1), values.amax(1)
    return rows.reshape(tuple(shape))


def _repeated(values: Sequence[int], lengths: Sequence[int], count: int) -> Any:
    if len(values) != len(lengths) or sum(lengths) != count:
        raise ValueError(f"its content does not have the {count} values of its shape")
    return torch.repeat_interleave(
        torch.tensor(values, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64)
    )
