"""Kept requests as Parquet, in which DuckDB finds the slowest of many."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stagespan.errors import StagespanError
from stagespan.export.requests import Part
from stagespan.process.imports import load

if TYPE_CHECKING:
    from stagespan.recording.reading import Work

SUFFIX = ".parquet"


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
    rows = [
        {
            "trace_id": part.segment["trace_id"],
            "segment": part.segment["segment"],
            "parent_segment": part.segment["parent_segment"],
            "request_id": part.segment["id"],
            "status": part.segment["status"],
            "service": part.resource.service,
            "pipeline": part.resource.pipeline,
            "rank": part.resource.rank,
            "host": part.resource.host,
            "begin_ns": part.begin_ns,
            "duration_ns": part.end_ns - part.begin_ns,
            "stages": [
                {
                    "stage": span.stage,
                    "kind": span.kind,
                    "duration_ns": span.end_ns - span.begin_ns,
                    "failed": span.failed,
                    "work": None if span.work is None else _floats(span.work),
                }
                for span in part.spans
            ],
            "part": whole,
        }
        for part, whole in parts
    ]
    text, number = arrow.string(), arrow.int64()
    stage = {"stage": text, "kind": text, "duration_ns": number, "failed": arrow.bool_()}
    stage["work"] = arrow.map_(text, arrow.float64())
    types: dict[str, Any] = {
        **dict.fromkeys(("trace_id", "segment", "parent_segment", "request_id"), text),
        **dict.fromkeys(("status", "service", "pipeline", "rank", "host"), text),
        **dict.fromkeys(("begin_ns", "duration_ns"), number),
        "stages": arrow.list_(arrow.struct(list(stage.items()))),
        "part": arrow.binary(),
    }
    target = io.BytesIO()
    table = arrow.Table.from_pylist(rows, schema=arrow.schema(list(types.items())))
    parquet.write_table(table, target, compression="zstd")
    return target.getvalue()


def _floats(work: Work) -> list[tuple[str, float]]:
    """Return amounts for a column of floats, for which Arrow takes no integer beyond 2**53."""
    return [(unit, float(amount)) for unit, amount in work.items()]


class Selection(NamedTuple):
    """The requests that a query has chosen."""

    total: int
    """How many there are that have the id and the status."""
    parts: list[bytes]
    """The parts of the slowest of them."""


_ROOTS = """
select trace_id, count(*) over () from (
    select distinct on (segment) * exclude (part, stages) from read_parquet($files)
) as one
where not exists (select 1 from read_parquet($files) as other
                  where other.segment = one.parent_segment)
    and ($id is null or regexp_full_match(request_id, $id, 's'))
    and ($status is null or status = $status)
order by duration_ns desc
limit $slowest
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
    names = [str(path) for path in files]
    try:
        chosen = base.execute(
            _ROOTS, {"files": names, "id": id_, "status": status, "slowest": slowest}
        ).fetchall()
        parts = base.execute(
            "select part from read_parquet($files) where list_contains($traces, trace_id)",
            {"files": names, "traces": [trace for trace, _ in chosen]},
        ).fetchall()
    except duckdb.Error as error:
        reason = str(error).partition("\n")[0]
        raise StagespanError(
            f"The kept requests in {place} cannot be read ({reason}): remove the file "
            "that is damaged."
        ) from None
    finally:
        base.close()
    return Selection(chosen[0][1] if chosen else 0, [part for (part,) in parts])
