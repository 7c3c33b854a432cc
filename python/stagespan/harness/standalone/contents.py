"""Creates integer and bool tensors from brief descriptions of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

MOST_ORDERED_COLUMNS = 8
"""The most columns of a tensor whose order is kept."""


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
