"""The spans of a recording by the request that they belong to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from stagespan import _core
from stagespan.live.span_kinds import KINDS, Kind
from stagespan.process import imports

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.recording.segments import Failures

Work = dict[str, int | float]
"""What a span has done, by unit."""
Amounts = dict[int, Work]
"""The work of spans by their ids."""
OPEN_NS = (1 << 63) - 1
"""The end of a span that had not ended."""
BATCH = KINDS.index("batch")
SYSTEM_COUNTS = {
    "page_faults": "page faults",
    "voluntary_switches": "voluntary switches",
    "involuntary_switches": "involuntary switches",
    "system_us": "µs in the kernel",
    "run_delay_us": "µs ready without a processor",
}
"""What STAGESPAN_SYSTEM=true counts as the work of a span, in words. That of a span includes that
of the spans in it."""
_NOTHING: Work = {}


class Span(NamedTuple):
    """A span; times in Unix ns, or on the clock that the reader has asked for."""

    id: int
    parent: int
    """0 at the top level."""
    stage: str
    kind: Kind
    begin_ns: int
    end_ns: int
    thread: int
    failed: bool
    suspended_ns: int
    depth: int
    device_elapsed_ns: float | None
    """None if unknown."""
    work: Work | None = None
    """What `span.add` counted in it, and `SYSTEM_COUNTS`, by unit; None if unknown."""
    exception: str | None = None
    """The type of the exception that it has ended with."""
    exception_message: str | None = None
    cpu_ns: int | None = None
    """The CPU time of its thread during the span; None if it was not measured, or if other code of
    the thread could run meanwhile."""
    is_open: bool = False
    """Whether it had not ended; ``end_ns`` is then the latest time that is known."""
    size: int = 1
    """The number of requests that a batch served."""
    place: int = 0
    """The first of the request's places in the batch."""

    @property
    def share_ns(self) -> int:
        """The request's share of the duration. Those of all requests of a batch sum to it."""
        share_ns, rest_ns = divmod(self.end_ns - self.begin_ns, max(self.size, 1))
        return share_ns + (self.place < rest_ns)


class ReadSpans(NamedTuple):
    """Rows of spans with what they refer to, without the recording that they are from."""

    rows: NDArray[np.void]
    names: list[str]
    """The names of all stages."""
    work: Amounts
    """That of the rows that have any, by span id."""
    errors: Failures
    """The exceptions of the rows that have any, by span id."""
    amounts_since_ns: int
    """The work of rows that began after this Unix time is known."""

    def spans(self, *, offset_ns: int = 0, until_ns: int = 0) -> list[Span]:
        """Return the spans as objects.

        Their times are Unix times less ``offset_ns``. Open ones end at ``until_ns``, or where they
        begin if that is later.
        """
        numpy, rows = imports.load("numpy"), self.rows
        columns = {name: rows[name].tolist() for name in ("id", "parent", "thread", "suspended_ns")}
        is_open = rows["end_ns"] == OPEN_NS
        begin_ns = rows["begin_ns"] - offset_ns
        end_ns = numpy.where(is_open, numpy.maximum(begin_ns, until_ns), rows["end_ns"] - offset_ns)
        device_ns = rows["device_elapsed_ns"].astype(object)
        device_ns[numpy.isnan(rows["device_elapsed_ns"])] = None
        is_known = (rows["begin_ns"] > self.amounts_since_ns).tolist()
        failed = ((rows["flags"] & _core.FLAG_ERROR) != 0).tolist()
        none = None, None
        exceptions = [self.errors.get(id_, none) for id_ in columns["id"]]
        return list(
            map(
                Span,
                columns["id"],
                columns["parent"],
                [self.names[code] for code in rows["stage"].tolist()],
                [KINDS[code] for code in kinds_of(rows).tolist()],
                begin_ns.tolist(),
                end_ns.tolist(),
                columns["thread"],
                failed,
                columns["suspended_ns"],
                rows["depth"].tolist(),
                device_ns.tolist(),
                [
                    self.work.get(id_, _NOTHING) if known else None
                    for id_, known in zip(columns["id"], is_known, strict=True)
                ],
                [kind for kind, _ in exceptions],
                [message for _, message in exceptions],
                [None if math.isnan(cpu_ns) else int(cpu_ns) for cpu_ns in rows["cpu_ns"].tolist()],
                is_open.tolist(),
            )
        )


def kinds_of(spans: NDArray[np.void]) -> NDArray[Any]:
    """Return the kind of each span, as an index into `KINDS`."""
    kinds: NDArray[Any] = spans["flags"] >> _core.KIND_SHIFT
    return kinds


def are_in(numbers: NDArray[Any], among: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which integers of 64 bits are among others."""
    numpy = imports.load("numpy")
    found = _core.are_in(numpy.ascontiguousarray(numbers), numpy.ascontiguousarray(among))
    are: NDArray[np.bool_] = numpy.frombuffer(found, bool)
    return are


def of_requests(
    spans: Iterable[NDArray[np.void]], numbers: NDArray[np.integer[Any]] | None = None
) -> NDArray[np.void]:
    """Return the spans of requests in some arrays, ordered by number.

    With ``numbers``, only those of these requests.
    """
    contiguous = imports.load("numpy").ascontiguousarray
    chosen = None if numbers is None else contiguous(numbers)
    return _core.spans_of_requests([contiguous(one) for one in spans], chosen)


def joined(parts: Iterable[NDArray[np.void]]) -> NDArray[np.void]:
    """Return the rows of several arrays; there must be at least one.

    `numpy.concatenate` looks at each field of each array, and leaves out what is between them.
    """
    arrays = list(parts)
    filled = [one for one in arrays if len(one)]
    if len(filled) < 2:
        return (filled or arrays)[0]
    whole = b"".join(one.tobytes() for one in filled)
    return imports.load("numpy").frombuffer(whole, arrays[0].dtype)  # type: ignore[no-any-return]


def by_number(rows: NDArray[np.void]) -> dict[int, slice]:
    """Return where the rows of each request are, of rows in the order of `of_requests`."""
    numbers, firsts = imports.load("numpy").unique(rows["request"], return_index=True)
    bounds = [*firsts.tolist(), len(rows)]
    return {
        number: slice(first, end)
        for number, first, end in zip(numbers.tolist(), bounds[:-1], bounds[1:], strict=True)
    }
