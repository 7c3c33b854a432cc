"""The parts of requests that an exporter has taken, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from stagespan import _core
from stagespan.live.span_kinds import KINDS
from stagespan.process import imports
from stagespan.recording.segments import (
    Details,
    Trace,
    as_dicts,
    first_known_ns,
    trace_id,
    traces_of,
)
from stagespan.recording.spans import ReadSpans, Span

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.recording.segments import Segment
    from stagespan.recording.slowness import Slowness

AWAITED_CHOICE, AWAITED_OTLP, AWAITED_KEEP = 1, 2, 4
"""What can be awaited for a part: the choice by the rules, its delivery, and its file."""


class Resource(NamedTuple):
    """The process that a part of a request ran in."""

    service: str
    pipeline: str
    rank: str
    pid: int
    host: str
    program: str
    identity: str
    name: str = ""
    """What commands call the process; it is no attribute or label."""


@dataclass
class Batch:
    """A batch with the spans in it, and the requests that it served."""

    span: Span
    inner: list[Span]
    links: list[tuple[str, str]]
    """The trace and the segment of each request."""
    size: int
    is_exported: bool = False


class Awaited:
    """What has still to be done with the parts of one reading.

    What is left when the exporter is killed is done by the next one.
    """

    def __init__(self, numbers: NDArray[np.uint64]) -> None:
        self.numbers = numbers
        """Those of the segments."""
        self.flags = imports.load("numpy").full(len(numbers), AWAITED_CHOICE, "u1")
        """The sums of `AWAITED_CHOICE` and the other ones, by segment."""

    @property
    def unsent(self) -> list[int]:
        """The numbers of those for which anything is awaited."""
        unsent: list[int] = self.numbers[self.flags != 0].tolist()
        return unsent


class Parts:
    """Segments that have ended, with their spans: what one reading of a process has found.

    Each part has an index, in the order of the numbers of their segments.
    """

    def __init__(
        self,
        resource: Resource,
        segments: NDArray[np.void],
        read: ReadSpans,
        returns: NDArray[np.void],
        details: Details,
        *,
        batches: dict[int, list[Batch]] | None = None,
        complete_ns: int = 0,
        clock: int = 0,
        unix_offset_ns: int = 0,
    ) -> None:
        """Take rows of segments ordered by number, their spans, and the hops that came back.

        ``batches`` are those that served a segment, by index. Parts are whole that began at
        ``complete_ns`` or later.
        """
        numpy = imports.load("numpy")
        self.resource, self.segments, self.read = resource, segments, read
        self.returns = returns.take(returns["segment"].argsort(kind="stable"))
        self.details = details
        self.batches = batches or {}
        self.complete_ns = complete_ns
        self.clock, self.unix_offset_ns = clock, unix_offset_ns
        """The identity of the process's CLOCK_MONOTONIC, and what was added to get Unix times."""
        self.slowness: dict[int, Slowness] = {}
        """What is noted of the parts of requests that were too slow, by index."""
        requests = numpy.ascontiguousarray(read.rows["request"])
        numbers = numpy.ascontiguousarray(segments["number"])
        self.bounds = numpy.append(requests.searchsorted(numbers), len(requests)).astype("i8")
        """Where the spans of each part begin, and the end of the last ones."""
        self.awaited = Awaited(numbers)
        self.places: NDArray[np.intp] = numpy.arange(len(segments))
        """The index of each part in `awaited`."""

    def __len__(self) -> int:
        return len(self.segments)

    def __iter__(self) -> Iterator[Part]:
        return map(Part, repeat(self), range(len(self)))

    @cached_property
    def begins_ns(self) -> NDArray[np.int64]:
        """When each was received, or else begun."""
        return first_known_ns(self.segments, "received_ns", "begin_ns", "end_ns")

    @cached_property
    def ends_ns(self) -> NDArray[np.int64]:
        """When each ended; of an abandoned one the latest time that is known."""
        ends_ns = first_known_ns(self.segments, "end_ns")
        for at in (ends_ns == 0).nonzero()[0].tolist():
            rows = self.rows(at)
            latest_ns = int(rows["end_ns"].max()) if len(rows) else 0
            ends_ns[at] = max(latest_ns, int(self.begins_ns[at]))
        return ends_ns

    @cached_property
    def is_whole(self) -> NDArray[np.bool_]:
        """Whether no span was overwritten before it was read; work can be unknown nevertheless."""
        return self.begins_ns >= self.complete_ns

    @cached_property
    def traces(self) -> list[Trace]:
        """Their traces."""
        return traces_of(self.segments)

    @cached_property
    def are_roots(self) -> list[bool]:
        """Whether the request of each came from no other process that records."""
        are_roots: list[bool] = (self.segments["parent_segment"] == 0).tolist()
        return are_roots

    @cached_property
    def have_failed(self) -> list[bool]:
        """Whether each did not end as ok."""
        numpy = imports.load("numpy")
        good = [_core.STATUSES.index(status) for status in ("ok", "unused")]
        have_failed: list[bool] = (~numpy.isin(self.segments["status"], good)).tolist()
        return have_failed

    @cached_property
    def are_unsampled(self) -> list[bool]:
        """Whether each was received with the flag "not sampled"."""
        has_parent = self.segments["parent_hop"] != 0
        are_unsampled: list[bool] = (has_parent & (self.segments["trace_flags"] & 1 == 0)).tolist()
        return are_unsampled

    @cached_property
    def are_usual(self) -> list[bool]:
        """Whether each is the root of its request, and may be sent."""
        pairs = zip(self.are_roots, self.are_unsampled, strict=True)
        return [is_root and not is_unsampled for is_root, is_unsampled in pairs]

    @cached_property
    def spans_ns(self) -> tuple[list[int], list[int]]:
        """`begins_ns` and `ends_ns` as lists."""
        return self.begins_ns.tolist(), self.ends_ns.tolist()

    @cached_property
    def columns(self) -> _core.PartColumns:
        """Them for the encoders, which write many at once."""
        numpy = imports.load("numpy")
        of = numpy.ascontiguousarray(self.returns["segment"])
        ids = numpy.ascontiguousarray(self.segments["segment"])
        sides = of.searchsorted(ids, "left"), of.searchsorted(ids, "right")
        return _core.PartColumns(
            segments=self.segments,
            begins_ns=self.begins_ns,
            ends_ns=self.ends_ns,
            is_whole=self.is_whole,
            spans=self.read.rows,
            bounds=self.bounds,
            returns=self.returns,
            return_bounds=numpy.stack(sides, axis=1).astype("i8").ravel(),
            names=self.read.names,
            kinds=KINDS,
            fields=self.details.fields,
            request_failures=self.details.failures,
            work=self.read.work,
            failures=self.read.errors,
            amounts_since_ns=self.read.amounts_since_ns,
        )

    def rows(self, at: int) -> NDArray[np.void]:
        """Return the spans of a part."""
        rows: NDArray[np.void] = self.read.rows[self.bounds[at] : self.bounds[at + 1]]
        return rows

    def rows_of(self, indices: Sequence[int]) -> tuple[NDArray[np.void], NDArray[np.intp]]:
        """Return the spans of some parts, whose indices ascend, and the index of each one's."""
        numpy = imports.load("numpy")
        of_part = numpy.repeat(numpy.arange(len(self)), self.bounds[1:] - self.bounds[:-1])
        if len(indices) == len(self):
            return self.read.rows, of_part
        chosen = numpy.zeros(len(self), bool)
        chosen[indices] = True
        stay = chosen[of_part].nonzero()[0]
        return self.read.rows.take(stay), of_part[stay]

    def only(self, indices: Sequence[int]) -> Parts:
        """Return some of them, whose indices ascend; what is awaited for them stays shared."""
        rows, _ = self.rows_of(indices)
        some = Parts(
            *(self.resource, self.segments[indices], self.read._replace(rows=rows), self.returns),
            self.details,
            batches={n: self.batches[at] for n, at in enumerate(indices) if at in self.batches},
            complete_ns=self.complete_ns,
            clock=self.clock,
            unix_offset_ns=self.unix_offset_ns,
        )
        some.slowness = {
            n: self.slowness[at] for n, at in enumerate(indices) if at in self.slowness
        }
        some.awaited, some.places = self.awaited, self.places[indices]
        return some

    def await_only(self, indices: Sequence[int], flags: int) -> None:
        """Await that, and nothing else, for some of them."""
        self.awaited.flags[self.places[indices]] = flags

    def done(self, indices: Sequence[int], flag: int) -> None:
        """Await one thing no longer for some of them."""
        self.awaited.flags[self.places[indices]] &= ~flag & 0xFF


class Part:
    """One of `Parts`, by its index."""

    __slots__ = ("at", "of")

    def __init__(self, of: Parts, at: int) -> None:
        self.of = of
        self.at = at

    @property
    def resource(self) -> Resource:
        """The process that it ran in."""
        return self.of.resource

    @property
    def segment(self) -> Segment:
        """The segment."""
        of = self.of
        return as_dicts(of.segments[self.at : self.at + 1], of.read.names, of.details)[0]

    @property
    def returns(self) -> list[Segment]:
        """Hops that have come back to this segment."""
        of = self.of
        is_of = of.returns["segment"] == of.segments["segment"][self.at]
        return as_dicts(of.returns[is_of], of.read.names, of.details)

    @property
    def rows(self) -> NDArray[np.void]:
        """Its spans as rows."""
        return self.of.rows(self.at)

    @property
    def spans(self) -> list[Span]:
        """Its spans."""
        return self.of.read._replace(rows=self.rows).spans()

    @property
    def batches(self) -> list[Batch]:
        """The batches that served it."""
        return self.of.batches.get(self.at, [])

    @property
    def trace_id(self) -> str | None:
        """The id of its trace."""
        return trace_id(self.of.traces[self.at])

    @property
    def begin_ns(self) -> int:
        """When it was received, or else begun."""
        return self.of.spans_ns[0][self.at]

    @property
    def end_ns(self) -> int:
        """When it ended; of an abandoned one the latest time that is known."""
        return self.of.spans_ns[1][self.at]

    @property
    def is_root(self) -> bool:
        """Whether the request came from no other process that records."""
        return self.of.are_roots[self.at]

    @property
    def pipeline(self) -> str:
        """The pipeline of the request."""
        names, number = self.of.read.names, int(self.of.segments["pipeline"][self.at])
        return names[number] if number < len(names) else "(unknown)"

    @property
    def slowness(self) -> Slowness | None:
        """What is noted if the request was too slow."""
        return self.of.slowness.get(self.at)

    @slowness.setter
    def slowness(self, noted: Slowness) -> None:
        self.of.slowness[self.at] = noted

    @property
    def awaited(self) -> int:
        """What has still to be done with it: a sum of `AWAITED_CHOICE` and the other ones."""
        return int(self.of.awaited.flags[self.of.places[self.at]])


class SomeParts(NamedTuple):
    """Some parts of one reading."""

    of: Parts
    indices: list[int]


def by_reading(parts: Sequence[Part]) -> list[SomeParts]:
    """Return parts by the readings that have found them; indices ascend."""
    parts_of: dict[Parts, SomeParts] = {}
    of: Parts | None = None
    indices: list[int] = []
    for part in parts:
        if part.of is not of:  # most follow others of their reading
            of = part.of
            indices = parts_of.setdefault(of, SomeParts(of, [])).indices
        indices.append(part.at)
    for some in parts_of.values():
        some.indices.sort()
    return list(parts_of.values())
