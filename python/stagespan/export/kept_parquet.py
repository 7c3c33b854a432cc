"""Kept requests as Parquet, in which DuckDB finds the slowest of many."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.export.parts import Part
from stagespan.live.span_kinds import KINDS
from stagespan.process.imports import load
from stagespan.recording.segments import began_here
from stagespan.recording.source import Surroundings
from stagespan.recording.spans import ReadSpans, joined, kinds_of

if TYPE_CHECKING:
    from stagespan.recording.spans import Work


def check_writer() -> None:
    """Raise StagespanError if Parquet cannot be written."""
    _arrow()


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise StagespanError(
            "Parquet needs pyarrow (the extra 'kept'): install it with `pip install pyarrow`, or "
            "keep the requests as JSON lines."
        ) from None
    return pyarrow, parquet


def packed(parts: Iterable[tuple[Part, bytes]]) -> bytes:
    """Return a file with a row for each part of a request; the bytes are all that is known of it.

    The columns are what queries choose by and sum: ids, labels, status, begin (Unix ns), duration
    (ns), and the stages with their durations.
    """
    arrow, parquet = _arrow()
    rows, read = [], []
    for part, whole in parts:
        read.append(part.of.read._replace(rows=part.rows))
        segment = part.segment
        row = {
            "trace_id": segment["trace_id"],
            "segment": segment["segment"],
            "parent_segment": segment["parent_segment"],
            "request_id": segment["id"],
            "status": segment["status"],
            "service": part.resource.service,
            "pipeline": part.resource.pipeline,
            "rank": part.resource.rank,
            "host": part.resource.host,
            "process": part.resource.identity,
            "began_here": began_here(segment),
            "has_end": segment["end_ns"] is not None,
            "begin_ns": part.begin_ns,
            "duration_ns": part.end_ns - part.begin_ns,
            "batches": [
                {
                    "id": batch.span.id,
                    "stage": batch.span.stage,
                    "duration_ns": batch.span.end_ns - batch.span.begin_ns,
                    "cpu_ns": batch.span.cpu_ns,
                }
                for batch in part.batches
            ],
            "part": whole,
        }
        rows.append(row)
    text, number = arrow.string(), arrow.int64()
    batch_ = {"id": arrow.uint64(), "stage": text, "duration_ns": number, "cpu_ns": number}
    types: dict[str, Any] = {
        **dict.fromkeys(("trace_id", "segment", "parent_segment", "request_id"), text),
        **dict.fromkeys(("status", "service", "pipeline", "rank", "host", "process"), text),
        **dict.fromkeys(("began_here", "has_end"), arrow.bool_()),
        **dict.fromkeys(("begin_ns", "duration_ns"), number),
        "batches": arrow.list_(arrow.struct(list(batch_.items()))),
        "part": arrow.binary(),
    }
    target = io.BytesIO()
    table = arrow.Table.from_pylist(rows, schema=arrow.schema(list(types.items())))
    table = table.append_column("stages", _stages(arrow, read))
    parquet.write_table(table, target, compression="zstd")
    return target.getvalue()


def _stages(arrow: Any, read: Sequence[ReadSpans]) -> Any:
    """Return a column with a list of the spans of each part."""
    numpy = load("numpy")
    counts = [len(one.rows) for one in read]
    some = [one for one in read if len(one.rows)]
    rows = joined(one.rows for one in some) if some else _core.spans()[:0]
    lists = {id(one.names): one.names for one in some}
    firsts = itertools.accumulate(map(len, lists.values()), initial=0)
    places = dict(zip(lists, firsts, strict=False))
    names = numpy.array([name for of in lists.values() for name in of], object)
    of_parts = numpy.repeat(
        numpy.array([places[id(one.names)] for one in some], numpy.int64),
        [len(one.rows) for one in some],
    )
    work = [
        _floats(spans.work.get(id_, {})) if begin_ns > spans.amounts_since_ns else None
        for spans in some
        for id_, begin_ns in zip(
            spans.rows["id"].tolist(), spans.rows["begin_ns"].tolist(), strict=True
        )
    ]
    text, number = arrow.string(), arrow.int64()
    columns = {
        "stage": arrow.array(names[of_parts + rows["stage"]], text),
        "kind": arrow.array(numpy.array(KINDS, object)[kinds_of(rows)], text),
        "duration_ns": arrow.array(rows["end_ns"] - rows["begin_ns"], number),
        "failed": arrow.array((rows["flags"] & _core.FLAG_ERROR) != 0),
        "cpu_ns": arrow.array(numpy.trunc(rows["cpu_ns"]), number, from_pandas=True),  # NaN is null
        "work": arrow.array(work, arrow.map_(text, arrow.float64())),
    }
    structs = arrow.StructArray.from_arrays(list(columns.values()), list(columns))
    return arrow.ListArray.from_arrays([0, *itertools.accumulate(counts)], structs)


def _floats(work: Work) -> list[tuple[str, float]]:
    """Return amounts for a column of floats, for which Arrow takes no integer beyond 2**53."""
    return [(unit, float(amount)) for unit, amount in work.items()]


class Selection(NamedTuple):
    """The requests that a query has chosen."""

    total: int
    """How many there are that have the id and the status."""
    parts: list[bytes]
    """The parts of the slowest of them."""
    surroundings: dict[str, Surroundings] | None
    """What is known of all requests, by process; None if all were chosen."""


_ROOTS = """
select trace_id, count(*) over () from (
    select distinct on (segment) segment, trace_id, request_id, status, duration_ns, parent_segment
    from kept
) as one
where not exists (select 1 from kept as other where other.segment = one.parent_segment)
    and ($id is null or regexp_full_match(request_id, $id, 's'))
    and ($status is null or status = $status)
order by duration_ns desc
limit $slowest
"""
_PARTS = "select part from kept where list_contains($traces, trace_id)"
_SURROUNDING_COLUMNS = {"process", "began_here", "has_end", "batches"}
"""Those of which Surroundings are made, which earlier versions have not written."""
_PROCESSES = """
select distinct process from kept where list_contains($traces, trace_id) and process is not null
"""
_OPEN = f"""
select list_position($processes, process) - 1 as place, begin_ns,
    case when has_end then begin_ns + duration_ns else {(1 << 63) - 1} end as end_ns
from (
    select distinct on (process, segment) process, segment, has_end, begin_ns, duration_ns
    from kept where list_contains($processes, process) and began_here
)
"""
_MEDIANS = """
with rows as (
    select distinct on (process, segment) process, stages, batches
    from kept where list_contains($processes, process)
), runs as (
    select process, run.kind, run.stage, run.duration_ns
    from (select process, unnest(stages) as run from rows)
    union all
    select process, 'batch', run.stage, run.duration_ns
    from (select distinct process, unnest(batches) as run from rows)
)
select process, kind, stage, quantile_disc(duration_ns, 0.5) from runs
group by all having count(*) > 1
"""


def select(
    place: str,
    files: Sequence[Path],
    slowest: int,
    id_: str | None = None,
    status: str | None = None,
) -> Selection:
    """Find the slowest requests in files.

    Args:
        place: Where they are, for messages.
        files: What `packed` has made, on any machines. Parts are joined by the ids of traces.
        slowest: How many requests are chosen.
        id_: A regular expression that their id must match.
        status: The status that they must have.

    Raises:
        StagespanError: If DuckDB is not installed, or if a file is not one of kept requests.
    """
    try:
        duckdb = load("duckdb")
    except ImportError:
        raise StagespanError(
            "Kept requests in Parquet are read with DuckDB (the extra 'kept'): install it with "
            "`pip install duckdb`."
        ) from None
    # Nothing is to be fetched from the network.
    base = duckdb.connect(
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    )
    try:
        rows = base.read_parquet([str(path) for path in files], union_by_name=True)
        rows.create_view("kept")
        chosen = base.execute(_ROOTS, {"id": id_, "status": status, "slowest": slowest}).fetchall()
        total = chosen[0][1] if chosen else 0
        traces = {"traces": [trace for trace, _ in chosen]}
        parts = base.execute(_PARTS, traces).fetchall()
        surroundings: dict[str, Surroundings] | None = None
        if id_ is not None or status is not None or total > len(chosen):
            is_known = set(rows.columns) >= _SURROUNDING_COLUMNS
            surroundings = _surroundings(base, traces) if is_known else {}
    except duckdb.Error as error:
        reason = str(error).partition("\n")[0]
        raise StagespanError(
            f"The kept requests in {place} cannot be read ({reason}): remove the file "
            "that is damaged."
        ) from None
    finally:
        base.close()
    return Selection(total, [part for (part,) in parts], surroundings)


def _surroundings(base: Any, traces: dict[str, list[str]]) -> dict[str, Surroundings]:
    """Return what is known of all requests of the processes of some traces."""
    processes = [process for (process,) in base.execute(_PROCESSES, traces).fetchall()]
    opened = base.execute(_OPEN, {"processes": processes}).fetchnumpy()
    medians_ns: dict[str, dict[tuple[str, str], float]] = {one: {} for one in processes}
    for process, kind, stage, median_ns in base.execute(
        _MEDIANS, {"processes": processes}
    ).fetchall():
        medians_ns[process][kind, stage] = float(median_ns)
    surroundings = {}
    for place, process in enumerate(processes):
        is_here = opened["place"] == place
        times_ns = opened["begin_ns"][is_here], opened["end_ns"][is_here]
        surroundings[process] = Surroundings(medians_ns[process], times_ns)
    return surroundings
