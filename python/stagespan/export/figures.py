"""The sums of a process that a monitoring system reads, in buckets that are equal everywhere."""

from __future__ import annotations

import bisect
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from stagespan import _core
from stagespan.export.families import AMOUNT_STEPS, FAMILIES, HISTOGRAMS, Family
from stagespan.live.span_kinds import REQUESTS, RUNS, Kind, number_of
from stagespan.recording.segments import began_here
from stagespan.recording.source import latest_ns

if TYPE_CHECKING:
    from stagespan.recording import Recording

# Every sixth bound of a histogram of nanoseconds: four an octave, from 1 us to 1,100 s.
BOUNDS_NS: tuple[int, ...] = (
    *((mantissa << exponent) >> 5 for exponent in range(10, 40) for mantissa in (32, 38, 44, 52)),
    1 << 40,
)
"""The upper bounds of the buckets. Durations beyond the last one are in one more bucket."""

_MOST_OTHERS = 1 << 16
OTHER = "(other)"
"""The name of what is beyond a limit."""

_LARGEST = sys.float_info.max
MOST_COUNTED = (1 << 63) - 1
"""Sums and counts stay at this value."""


def within_range(amount: float) -> float:
    """Return an amount, or the largest or smallest double if it is beyond; 0 for NaN."""
    if -_LARGEST <= amount <= _LARGEST:
        return amount
    return 0.0 if amount != amount else _LARGEST if amount > 0 else -_LARGEST


class Histogram(msgspec.Struct, array_like=True):
    """Durations that were counted. ``below[i]`` is the number of those below ``BOUNDS_NS[i]``.

    Of amounts in steps (`AMOUNT_STEPS`), it is the number of those up to the bound.
    """

    below: list[int]
    """One more than `BOUNDS_NS`; the last one is the count."""
    sum: float
    """Of durations, a whole number of ns; of amounts, any number in their unit."""

    def plus(self, other: Histogram) -> Histogram:
        """Return both together."""
        below = list(map(operator.add, self.below, other.below))
        if below[-1] > MOST_COUNTED:
            below = [min(number, MOST_COUNTED) for number in below]
        return Histogram(below, min(self.sum + other.sum, MOST_COUNTED))

    def minus(self, earlier: Histogram) -> Histogram:
        """Return what was added since an earlier state of the same histogram."""
        below = list(map(operator.sub, self.below, earlier.below))
        return Histogram(below, self.sum - earlier.sum)

    def raised(self, later: Histogram) -> Histogram:
        """Return the higher one of each pair of numbers."""
        below = later.below
        if not all(map(operator.le, self.below, below)):
            below = list(map(max, self.below, below))
        return Histogram(below, max(self.sum, later.sum))


NOTHING = Histogram([0] * (len(BOUNDS_NS) + 1), 0)


class Buckets:
    """The buckets that histograms are exported with: their bounds are some of `BOUNDS_NS`.

    They do not depend on the family or the process, since sums over different bounds are wrong.
    """

    def __init__(self, chosen: slice) -> None:
        self.bounds_ns = BOUNDS_NS[chosen]
        """The upper bounds."""
        self._chosen = slice(*chosen.indices(len(BOUNDS_NS)))

    def below(self, histogram: Histogram) -> list[int]:
        """Return how many durations are below each bound, and how many there are."""
        return [*histogram.below[self._chosen], histogram.below[-1]]

    def containing(self, bucket: int) -> int:
        """Return the bucket that contains one of those between `BOUNDS_NS`."""
        return bisect.bisect_right(self.bounds_ns, BOUNDS_NS[bucket - 1]) if bucket else 0


AnyBuckets = Literal["coarse", "fine"]
BUCKETS: dict[AnyBuckets, Buckets] = {
    "coarse": Buckets(slice(BOUNDS_NS.index(1 << 14), BOUNDS_NS.index(1 << 39) + 1, 4)),
    "fine": Buckets(slice(None)),
}
"""By name: one bound an octave from 16 us to 550 s, or all that are counted."""


def buckets_named(name: AnyBuckets) -> Buckets:
    """Return the buckets with a name. Raises ValueError if there are none."""
    if name not in BUCKETS:
        raise ValueError(f"buckets is {name!r}: pass 'coarse' or 'fine'.")
    return BUCKETS[name]


class Counts(msgspec.Struct):
    """Sums of a process, or of several. All of them only rise."""

    durations: dict[str, dict[str, Histogram]] = {}
    """By family, and by stage."""
    amounts: dict[str, dict[str, dict[str, float]]] = {}
    """By family, by stage or cause, and by unit."""

    def add(self, other: Counts) -> None:
        """Add the figures of another process."""
        self._combine(other, Histogram.plus, lambda a, b: within_range(a + b))

    def raise_to(self, later: Counts) -> None:
        """Take the higher one of each pair of numbers.

        A reading of a process that runs may lack its latest spans, which an earlier one had.
        """
        self._combine(later, Histogram.raised, max)

    def _combine(
        self,
        other: Counts,
        of_histograms: Callable[[Histogram, Histogram], Histogram],
        of_amounts: Callable[[float, float], float],
    ) -> None:
        for family, histograms in other.durations.items():
            sums = self.durations.setdefault(family, {})
            for stage, histogram in histograms.items():
                before = sums.get(stage)
                sums[stage] = of_histograms(before, histogram) if before else histogram
        for family, stages in other.amounts.items():
            of_family = self.amounts.setdefault(family, {})
            for stage, amounts in stages.items():
                units = of_family.setdefault(stage, {})
                for unit, amount in amounts.items():
                    units[unit] = of_amounts(units.get(unit, 0), amount)

    def observe(self, family: str, label: str, duration_ns: int) -> None:
        """Count one duration. Negative ones, which clocks can give, count as 0."""
        of_family = self.durations.setdefault(family, {})
        before = of_family.get(label) or NOTHING
        first = bisect.bisect_right(BOUNDS_NS, duration_ns)
        below = before.below[:first] + [number + 1 for number in before.below[first:]]
        of_family[label] = Histogram(below, min(before.sum + max(duration_ns, 0), MOST_COUNTED))

    def without(self, earlier: Counts) -> Counts:
        """Return what was added since an earlier state of the same figures."""
        added = Counts({}, {})
        for family, stage, histogram in self.histograms():
            before = earlier.durations.get(family, {}).get(stage)
            now = histogram.minus(before) if before else histogram
            added.durations.setdefault(family, {})[stage] = now
        for family, stage, unit, amount in self.numbers():
            before_amount = earlier.amounts.get(family, {}).get(stage, {}).get(unit, 0)
            units = added.amounts.setdefault(family, {}).setdefault(stage, {})
            units[unit] = within_range(amount - before_amount)
        return added

    def histograms(self) -> Iterator[tuple[str, str, Histogram]]:
        """Yield (family, stage, histogram)."""
        for family, stages in self.durations.items():
            for stage, histogram in stages.items():
                yield family, stage, histogram

    def numbers(self) -> Iterator[tuple[str, str, str, float]]:
        """Yield (family, stage or cause, unit, amount)."""
        for family, stages in self.amounts.items():
            for stage, units in stages.items():
                for unit, amount in units.items():
                    yield family, stage, unit, amount


class Names:
    """The names that are exported. What comes after the limit is summed as ``(other)``."""

    def __init__(self, most: int, names: Iterable[str] = ()) -> None:
        self._most = most
        self.ordered = dict.fromkeys(names)
        """The names, in the order of their first appearance."""
        self._others: set[int] = set()

    @property
    def others(self) -> int:
        """How many different names are summed, as far as they were counted."""
        return len(self._others)

    def label(self, name: str) -> str:
        """Return the name, or ``(other)``. A name that was shown once is always shown."""
        if name in self.ordered or name == OTHER:
            return name
        if len(self.ordered) >= self._most:
            if len(self._others) < _MOST_OTHERS:
                self._others.add(hash(name))
            return OTHER
        self.ordered[name] = None
        return name


@lru_cache(maxsize=16)
def groups_of(ns_per_tick: float) -> bytes:
    """Return the bucket in `BOUNDS_NS` of each bucket of a recording.

    It is that of the middle. In a recording in ticks of 1 ns, the bounds coincide.
    """
    bounds = _core.histogram_bounds()
    middles = ((low + high - 1) / 2 * ns_per_tick for low, high in itertools.pairwise(bounds))
    return bytes(bisect.bisect_right(BOUNDS_NS, middle) for middle in middles)


@lru_cache(maxsize=1)
def groups_of_amounts() -> bytes:
    """Return the bucket in `BOUNDS_NS` of each bucket of amounts in a recording."""
    most = BOUNDS_NS[-1] + 1
    highs = (min(high * AMOUNT_STEPS, most) for high in _core.amount_bounds())
    return bytes(bisect.bisect_left(BOUNDS_NS, high) for high in highs)


class ShownNames(NamedTuple):
    """The names that are exported, of each sort."""

    stages: Names
    units: Names
    pipelines: Names


class Durations(NamedTuple):
    """Durations in a recording."""

    family: str
    label: str
    """As in `Counts`."""
    summary: _core.Summary | _core.StageSummary
    stage: _core.StageSummary | None
    """The stage whose host time it is, with its errors and work; None for other durations."""


def durations_in(snapshot: _core.Snapshot, names: ShownNames) -> Iterator[Durations]:
    """Yield what has durations. Several can have the same label, if there are too many names."""
    for family in HISTOGRAMS:
        if family.kind is None or family.kind == "request":
            continue
        shown_names = names.pipelines if "pipeline" in family.labels else names.stages
        for name, stage in snapshot.stages(number_of(family.kind)).items():
            label = shown_names.label(name)
            if family.kind not in RUNS:
                yield Durations(family.key, label, stage, None)
                continue
            yield Durations(family.key, label, stage, stage)
            if stage.device_elapsed_ns is not None:
                yield Durations("device", label, stage.device_elapsed_ns, None)
    for status, kind in REQUESTS.items():
        for name, stage in snapshot.stages(number_of(kind)).items():
            label = Family.text(names.pipelines.label(name), status)
            yield Durations("request", label, stage, None)


class Amounts(NamedTuple):
    """Amounts of single runs, or of requests, in a recording."""

    family: str
    label: str
    """As in `Counts`."""
    summary: _core.AmountSummary


def amounts_in(snapshot: _core.Snapshot, names: ShownNames) -> Iterator[Amounts]:
    """Yield what has amounts. Several can have the same label, if there are too many names."""
    for kind in RUNS:
        for name, units in snapshot.amounts(number_of(kind)).items():
            stage = names.stages.label(name)
            for unit, summary in units.items():
                if unit is None:
                    yield Amounts("batch_size", stage, summary)
                else:
                    label = Family.text(stage, names.units.label(unit))
                    yield Amounts("run_work", label, summary)
    for name, units in snapshot.amounts(number_of(REQUESTS["ok"])).items():
        for unit, summary in units.items():
            if unit is not None:
                label = Family.text(names.pipelines.label(name), names.units.label(unit))
                yield Amounts("request_work", label, summary)


def figures_of(recording: Recording, ns_per_tick: float, names: ShownNames) -> Counts:
    """Return the figures of a recording.

    ``ns_per_tick`` must be the same for all readings of a process, because a bucket near a bound
    would otherwise move to the other side. Requests that a process has left open when it ended are
    counted as abandoned, until the latest time that is known of it.
    """
    counts = Counts({}, {})
    snapshot = recording.snapshot()

    def add(
        family: str,
        name: str,
        of: _core.Summary | _core.StageSummary | _core.AmountSummary,
        total: float,
        groups: bytes,
    ) -> None:
        below = of.cumulative(groups, len(BOUNDS_NS) + 1)
        # A span that ends now may be counted before it is in a bucket.
        below[-1] = max(below[-1], of.count)
        if below[-1] > MOST_COUNTED:  # in a recording that is damaged
            below = [min(number, MOST_COUNTED) for number in below]
        histogram = Histogram(below, min(total, MOST_COUNTED))
        of_family = counts.durations.setdefault(family, {})
        of_family[name] = of_family[name].plus(histogram) if name in of_family else histogram

    def count(family: str, name: str, unit: str, amount: float) -> None:
        units = counts.amounts.setdefault(family, {}).setdefault(name, {})
        units[unit] = within_range(units.get(unit, 0) + amount)

    def begin(kind: Kind, name: str) -> None:
        """Add a stage of which no run has ended, so that the first end is an increase."""
        for family in HISTOGRAMS:
            if family.kind == kind:
                counts.durations.setdefault(family.key, {})[names.stages.label(name)] = NOTHING
                if kind in RUNS:
                    count("errors", names.stages.label(name), "", 0)

    def begin_request(pipeline: str) -> None:
        of_requests = counts.durations.setdefault("request", {})
        for status in ("ok", "error"):
            of_requests.setdefault(Family.text(names.pipelines.label(pipeline), status), NOTHING)

    for span in recording.open_spans():
        begin(span["kind"], span["stage"])
    for segment in recording.open_segments:
        if segment["begin_ns"] is None:
            begin("queue", segment["queue"] or "")
        elif began_here(segment):
            begin_request(segment["pipeline"])
    for of in durations_in(snapshot, names):
        if of.family == "request":
            begin_request(FAMILIES["request"].values(of.label)[0])
        # Device times are already in nanoseconds.
        groups = groups_of(1.0 if of.family == "device" else ns_per_tick)
        add(of.family, of.label, of.summary, of.summary.total_ns, groups)
        if of.stage is not None:
            count("errors", of.label, "", of.stage.errors)
            for unit, amount in of.stage.work.items():
                count("work", of.label, names.units.label(unit), amount)
    for amounts in amounts_in(snapshot, names):
        summary = amounts.summary
        add(amounts.family, amounts.label, summary, summary.total, groups_of_amounts())
    sent = {message.queue: message.nth for message in recording.sent_messages()}
    for queue, number in sent.items():
        count("sent", names.stages.label(queue), "", number)
    left_open = recording.left_open
    until_ns = latest_ns(recording) if left_open else 0
    for request in left_open:
        begin_ns = request["received_ns"] or request["begin_ns"] or 0
        label = Family.text(names.pipelines.label(request["pipeline"]), "abandoned")
        counts.observe("request", label, max(until_ns - begin_ns, 0))
    # No figure needs the spans in the rings.
    lost = recording.lost().items()
    counts.amounts["lost"] = {cause: {"": float(n)} for cause, n in lost if cause != "overwritten"}
    return counts
