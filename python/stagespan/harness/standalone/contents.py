"""Creates integer and bool tensors from brief descriptions of their values."""

from __future__ import annotations

import math
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
    make = getattr(_Maker, f"make_{content['kind']}", None)
    if make is None:
        raise ValueError(f"the content {content['kind']!r} is not known")
    return make(_Maker(content, shape, value_range, generator)).reshape(tuple(shape))


class _Maker:
    """Creates the values of a content: for each kind, a method of which scripts need only some."""

    def __init__(
        self,
        content: Mapping[str, Any],
        shape: Sequence[int],
        value_range: Sequence[float],
        generator: Any,
    ) -> None:
        self.content = content
        self.shape = shape
        self.value_range = value_range
        self.source = generator
        self.width = shape[-1] if len(shape) else 1
        self.count = math.prod(shape)

    def make_levels(self) -> Any:
        levels = torch.tensor([float(x) for x in self.content["levels"]], dtype=torch.float64)
        last = len(levels) - 1
        number = make_content(self.content["of"], self.shape, (0, last), self.source)
        return levels[number.clamp(0, last)]

    def make_range(self) -> Any:
        row = torch.arange(self.width) * self.content["step"] + self.content["start"]
        return row.expand(tuple(self.shape)).contiguous() if len(self.shape) else row

    def make_runs(self) -> Any:
        return _repeated(self.content["values"], self.content["lengths"], self.count)

    def make_counts(self) -> Any:
        made = _repeated(self.content["values"], self.content["counts"], self.count)
        return made[torch.randperm(self.count, generator=self.source)]

    def make_sorted(self) -> Any:
        knots = torch.tensor(self.content["knots"], dtype=torch.float64)
        at = torch.linspace(0, len(knots) - 1, self.count, dtype=torch.float64)
        below = at.floor().long().clamp(max=max(len(knots) - 2, 0))
        above = (below + 1).clamp(max=len(knots) - 1)
        made = (knots[below] + (knots[above] - knots[below]) * (at - below)).floor()
        return made.clamp(max=2.0**63 - 1024).long()  # the largest float64 below 2^63

    def make_permutation(self) -> Any:
        rows = self.count // max(self.width, 1)
        return torch.rand((rows, self.width), generator=self.source).argsort(-1)

    def make_frequent(self) -> Any:
        """Return a flat tensor with the counts, the first places and the number of other values."""
        content, count = self.content, self.count
        made = torch.zeros(count, dtype=torch.int64)
        is_free = torch.ones(count, dtype=torch.bool)
        columns = zip(content["values"], content["counts"], content["first"], strict=True)
        frequent = [row for row in columns if row[1] > 0 and row[2] < count]
        for value, _, first in frequent:
            made[first] = value
            is_free[first] = False
        # From the last one, so that an earlier value leaves the places that a later one needs.
        for value, times, first in sorted(frequent, key=lambda row: -row[2]):
            places = is_free[first:].nonzero().flatten()[: min(times, count) - 1] + first
            made[places] = value
            is_free[places] = False
        places = is_free.nonzero().flatten()
        others = _other_values(content, self.value_range, len(places), self.source)
        # Each equally often, so that none of them becomes frequent.
        repeated = others.repeat(-(-len(places) // len(others)))[: len(places)]
        made[places] = repeated[torch.randperm(len(places), generator=self.source)]
        return made

    def make_ordered(self) -> Any:
        width = self.width
        pairs = list(zip(self.content["low"], self.content["high"], strict=True))
        if width > MOST_ORDERED_COLUMNS or not all(
            0 <= at < width for pair in pairs for at in pair
        ):
            raise ValueError(f"its content names columns that its {width} columns do not have")
        if self.content["of"] is None:
            low, high = _limits(self.value_range)
            made = torch.randint(low, high + 1, tuple(self.shape), generator=self.source)
        else:
            made = make_content(self.content["of"], self.shape, self.value_range, self.source)
        rows = made.reshape(-1, width).clone()
        for _ in range(width):  # an exchange can break the order of an earlier pair
            for one, other in pairs:
                values = rows[:, [one, other]]
                rows[:, one], rows[:, other] = values.amin(1), values.amax(1)
        return rows


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


def _repeated(values: Sequence[int], lengths: Sequence[int], count: int) -> Any:
    if len(values) != len(lengths) or sum(lengths) != count:
        raise ValueError(f"its content does not have the {count} values of its shape")
    return torch.repeat_interleave(
        torch.tensor(values, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64)
    )
