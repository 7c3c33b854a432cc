"""How many times as large the batch is in the second of two traces, from shapes of inputs."""

from __future__ import annotations

import json
from collections import defaultdict

import msgspec

from stagespan.pages.amounts import in_words, signed_percent
from stagespan.pages.figures import Figures, Ns
from stagespan.trace.compare.cost_table import Cells

_Sizes = list[list[int]]
# Of the time of operators whose inputs have other shapes: that of those with the new batch, and of
# those in which it is the first dimension. A gradient of weights is a product along the batch.
_LEAST_SHARE, _LEAST_FIRST = 0.75, 0.5


class BatchChange(Figures, frozen=True):
    """The change of the batch, and of the time that a step takes for each sample."""

    times: float
    """The batch, as a multiple of that before."""
    as_many_ns: Ns = msgspec.field(name="time_for_as_many_samples_us")
    """The time of a step after the change, divided by `times`."""
    before_ns: Ns
    """The time of a step before."""

    @property
    def sentence(self) -> str:
        """What the change means for each sample."""
        return (
            f"The batch is {self.times:.3g} times as large: as many samples as before take"
            f" {in_words(self.as_many_ns, 'ns')}"
            f" ({signed_percent(self.as_many_ns / self.before_ns - 1)}), so throughput is"
            f" {self.before_ns / self.as_many_ns:.3g} times as high."
        )


def batch_change(before: Cells, after: Cells) -> BatchChange | None:
    """Return the change of the batch; None if it is the same, or if shapes do not show it.

    If only the batch changed, one dimension of tensors is multiplied by the same number everywhere,
    mostly the first one, and other dimensions and weights are as before.
    """
    old, new = _by_operator(before), _by_operator(after)
    times: dict[float, list[int]] = defaultdict(lambda: [0, 0])
    changed = 0
    for operator, shapes in new.items():
        gone = [each for each in old.get(operator, {}) if each not in shapes]
        for shape, time in shapes.items():
            if shape in old.get(operator, {}):
                continue
            changed += time
            ratios = {_ratio(_sizes(each), _sizes(shape)) for each in gone}
            for ratio, is_first in filter(None, ratios):
                times[ratio][0] += time
                times[ratio][1] += time * is_first
    whole = sum(sum(shapes.values()) for shapes in new.values())
    if not times or 2 * changed < whole or not before.total_ns:
        return None
    ratio = max(times, key=lambda each: times[each][0])
    scaled, of_first = times[ratio]
    if scaled < _LEAST_SHARE * changed or of_first < _LEAST_FIRST * changed:
        return None
    return BatchChange(ratio, round(after.total_ns / ratio), before.total_ns)


def _by_operator(cells: Cells) -> dict[str, dict[str, int]]:
    """Return the time of each shape of each operator, for those whose shapes are known."""
    times: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for cell, time in cells.time_ns.items():
        if cell.shape and cell.operator:
            times[cell.operator][cell.shape] += time
    return times


def _sizes(shape: str) -> _Sizes | None:
    """Return the sizes of an operator's inputs; None if they are written in another form."""
    try:
        sizes = json.loads(shape)
    except ValueError:
        return None
    if not isinstance(sizes, list) or not all(isinstance(each, list) for each in sizes):
        return None
    return sizes


def _ratio(before: _Sizes | None, after: _Sizes | None) -> tuple[float, bool] | None:
    """Return by which number one dimension of tensors is multiplied, and if it is the first one.

    None if the inputs changed in another way.
    """
    if before is None or after is None or list(map(len, before)) != list(map(len, after)):
        return None
    ratios, of_first = set(), True
    for old, new in zip(before, after, strict=True):
        different = [at for at in range(len(old)) if old[at] != new[at]]
        if not different:
            continue
        at = different[0]
        if len(different) > 1 or not isinstance(old[at], int) or min(old[at], new[at]) <= 0:
            return None
        ratios.add(new[at] / old[at])
        of_first &= at == 0
    return (ratios.pop(), of_first) if len(ratios) == 1 else None
