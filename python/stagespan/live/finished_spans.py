"""The spans that have ended, with their kinds and the ids of their requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagespan import _core
from stagespan.live.span_kinds import KINDS
from stagespan.process import imports

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def spans(*, since: _core.SpanCursor | None = None) -> NDArray[np.void]:
    """Return the latest finished spans of every thread, ordered by ``begin_ns``.

    With a cursor, return only spans that have ended since the last call with that cursor.

    The columns are ``stage`` (index into `stage_names`), ``thread`` (the system's id),
    ``begin_ns``, ``end_ns`` (Unix time), ``id``, ``parent``, ``request`` (the number of the
    request, or 0), ``suspended_ns``, ``depth``, ``flags``; as float64 ``device_elapsed_ns``,
    ``device_queue_ns``, ``device_tail_ns``, ``cpu_ns``, which are NaN if unknown; as Python objects
    ``kind`` (execution, queue, handoff, batch, remote), ``request_id`` and ``trace_id``, which are
    None outside of requests. The ids of all open requests, of the latest 16,384 that have begun and
    of the latest 1,024 that have ended are known. The times of a span are the same in each call.
    """
    numpy = imports.load("numpy")
    recorded = _core.spans(since=since)
    names = list(recorded.dtype.names or ())
    fields = {name: recorded.dtype[name] for name in names}
    objects = dict.fromkeys(("kind", "request_id", "trace_id"), numpy.dtype(object))
    with_ids = numpy.empty(
        len(recorded), numpy.dtype([*fields.items(), *objects.items()], align=True)
    )
    with_ids[names] = recorded
    with_ids["kind"] = [KINDS[flags >> _core.KIND_SHIFT] for flags in recorded["flags"].tolist()]
    known = _core.requests_known()
    ids = [known.get(number, (None, None)) for number in recorded["request"].tolist()]
    with_ids["request_id"] = [id_ for id_, _ in ids]
    with_ids["trace_id"] = [trace_id for _, trace_id in ids]
    result: NDArray[np.void] = with_ids
    return result
