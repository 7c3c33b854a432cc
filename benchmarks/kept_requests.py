"""Measures how long a query of many kept requests takes: in Python, with DuckDB, and with Polars.

    python -m benchmarks.kept_requests [--requests 1000000] [--rounds 3] [--json FILE]

The requests of two machines are written as `stagespan export --keep` does; each has a part on both.
The query returns the 10 slowest requests with all their parts, and the count and three quantiles of
each stage. It reads the compressed JSON lines that are written, or Parquet files with a row for
each part, which have the times as columns and the rest as bytes. Each query runs in a process of
its own with two threads; all must return the same. Engines that are not installed are skipped.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import importlib.util
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stagespan import _core
from stagespan.export import kept
from stagespan.export.parts import Part, Parts, Resource
from stagespan.pages.tables import Column, plain_table
from stagespan.recording.segments import as_rows
from stagespan.recording.spans import ReadSpans

_SLOWEST = 10
_STAGES = (("parse", "render"), ("encode", "denoise", "decode", "save"))
_ROWS_A_FILE = 1 << 17


def part(of: Resource, number: int, trace: str, drawn: random.Random, parent: str | None) -> Part:
    """Return a part of a request, with the stages of a root or of a child of ``parent``."""
    begin_ns = 1_700_000_000_000_000_000 + number * 2_000_000
    stages = _STAGES[parent is not None]
    times_ns = [begin_ns]
    for _ in stages:
        times_ns.append(times_ns[-1] + int(drawn.lognormvariate(16, 1)))
    segment: dict[str, Any] = {
        "number": number,
        "id": f"request-{number}",
        "trace_id": trace,
        "begin_ns": begin_ns,
        "end_ns": times_ns[-1],
        "status": "ok" if number % 100 else "error",
        "segment": f"{drawn.getrandbits(64):016x}",
        "origin": "remote" if parent else "root",
        "attempt": 1,
        "hops_sent": 0 if parent else 1,
        "trace_flags": 1,
        "pipeline": of.pipeline,
    }
    if parent:
        segment |= {"parent_hop": parent, "parent_segment": parent, "queue": "tasks"}
        segment |= {"sent_ns": begin_ns - 100_000, "sent_monotonic_ns": begin_ns - 100_000}
        segment |= {"sent_clock": 1, "received_ns": begin_ns - 50_000}
    rows = np.zeros(len(stages), _core.spans().dtype)
    for name in ("device_elapsed_ns", "device_queue_ns", "device_tail_ns", "cpu_ns"):
        rows[name] = math.nan
    rows["id"] = number * 8 + np.arange(len(stages))
    rows["stage"], rows["begin_ns"] = range(len(stages)), times_ns[:-1]
    rows["end_ns"], rows["request"], rows["thread"] = times_ns[1:], number, 1
    names = list(stages)
    segments, details = as_rows([segment], names)
    read = ReadSpans(rows, names, {}, {}, 0)
    return Part(Parts(of, segments, read, segments[:0], details, clock=1), 0)


def write(folder: Path, requests: int) -> None:
    """Write the requests of two machines, in a folder for each."""
    drawn = random.Random(1)
    roles = [
        Resource("svc", "wan", "", 100 + i, f"machine{i}", "serve.py", f"identity{i}")
        for i in range(2)
    ]
    keepers = [kept.Keeper(folder / role.host, 1 << 40) for role in roles]
    for number in range(requests):
        trace = f"{drawn.getrandbits(128):032x}"
        root = part(roles[number % 2], number, trace, drawn, None)
        child = part(roles[1 - number % 2], number, trace, drawn, root.segment["segment"])
        keepers[number % 2].put([[root]])
        keepers[1 - number % 2].put([[child]])
    for keeper in keepers:
        keeper.write()


def _lines(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.glob("*/*.jsonl.gz")):
        with gzip.open(path) as file:
            yield from file


def _decoded(folder: Path) -> Iterator[Any]:
    decoder = msgspec.json.Decoder(kept._KeptRequest)
    for line in _lines(folder):
        yield decoder.decode(line)


def convert(folder: Path) -> None:
    """Write the same rows as Parquet."""
    import pyarrow as pa
    from pyarrow import parquet

    rows: list[dict[str, Any]] = []
    files = 0

    def flush() -> None:
        nonlocal files
        files += 1
        table = pa.Table.from_pylist(rows)
        parquet.write_table(table, folder / f"{files}.parquet", compression="zstd")
        rows.clear()

    for request in _decoded(folder):
        for part in request.parts:
            segment = part.segment
            rows.append(
                {
                    "trace_id": request.trace_id,
                    "is_root": segment["parent_segment"] is None,
                    "ns": segment["end_ns"] - segment["begin_ns"],
                    "stages": [
                        {"stage": span.stage, "ns": span.end_ns - span.begin_ns}
                        for span in part.spans
                    ],
                    "part": msgspec.json.encode(part),
                }
            )
            if len(rows) == _ROWS_A_FILE:
                flush()
    if rows:
        flush()


# --- the query, in each way -----------------------------------------------------------------------

Answer = tuple[list[str], int, dict[str, int]]
"""The traces of the slowest requests, the number of their parts, and the runs of each stage."""


def in_python(folder: Path) -> Answer:
    """Read the lines twice: for the slowest requests, and for their parts."""
    import numpy

    slowest: list[tuple[int, str]] = []
    durations: defaultdict[str, list[int]] = defaultdict(list)
    for request in _decoded(folder):
        for part in request.parts:
            for span in part.spans:
                durations[span.stage].append(span.end_ns - span.begin_ns)
            if part.segment["parent_segment"] is None:
                row = part.segment["end_ns"] - part.segment["begin_ns"], request.trace_id
                (heapq.heappush if len(slowest) < _SLOWEST else heapq.heappushpop)(slowest, row)
    for values in durations.values():
        numpy.quantile(numpy.array(values), (0.5, 0.95, 0.99))
    traces = [trace for _, trace in sorted(slowest, reverse=True)]
    wanted = [trace.encode() for trace in traces]
    mine = [line for line in _lines(folder) if any(one in line for one in wanted)]
    return traces, len(mine), {stage: len(values) for stage, values in durations.items()}


def _by_duckdb(slowest: str, parts: str, stages: str) -> Answer:
    import duckdb

    base = duckdb.connect()
    base.execute("set threads = 2")
    traces = [row[0] for row in base.execute(slowest).fetchall()]
    mine = base.execute(parts, [traces]).fetchall()
    return traces, len(mine), {row[0]: row[1] for row in base.execute(stages).fetchall()}


def by_duckdb_json(folder: Path) -> Answer:
    """Let DuckDB read the lines."""
    rows = (
        "(select trace_id, unnest(parts) as p from read_json("
        f"'{folder}/*/*.jsonl.gz', format = 'newline_delimited', columns = {{"
        "trace_id: 'varchar', parts: 'struct(segment struct(parent_segment varchar, begin_ns "
        "bigint, end_ns bigint), spans json[])[]'}))"
    )
    ns = "p.segment.end_ns - p.segment.begin_ns"
    return _by_duckdb(
        f"select trace_id from {rows} where p.segment.parent_segment is null "
        f"order by {ns} desc limit {_SLOWEST}",
        f"select p from {rows} where list_contains($1, trace_id)",
        "select s->>2, count(*), quantile_cont((s->>5)::bigint - (s->>4)::bigint, "
        f"[0.5, 0.95, 0.99]) from (select unnest(p.spans) as s from {rows}) group by 1",
    )


def by_duckdb_parquet(folder: Path) -> Answer:
    """Let DuckDB read the Parquet files."""
    rows = f"'{folder}/*.parquet'"
    return _by_duckdb(
        f"select trace_id from {rows} where is_root order by ns desc limit {_SLOWEST}",
        f"select part from {rows} where list_contains($1, trace_id)",
        "select s.stage, count(*), quantile_cont(s.ns, [0.5, 0.95, 0.99]) from "
        f"(select unnest(stages) as s from {rows}) group by 1",
    )


def _by_polars(rows: Any, stages: Any) -> Answer:
    import polars as pl

    roots = rows.filter("is_root").select("trace_id", "ns")
    traces = roots.top_k(_SLOWEST, by="ns").sort("ns", descending=True).collect()["trace_id"]
    of_traces = rows.filter(pl.col("trace_id").is_in(traces.to_list())).collect(engine="streaming")
    quantiles = [pl.col("ns").quantile(q).alias(str(q)) for q in (0.5, 0.95, 0.99)]
    found = stages.group_by("stage").agg(pl.len(), *quantiles).collect(engine="streaming")
    return traces.to_list(), len(of_traces), dict(zip(found["stage"], found["len"], strict=True))


def by_polars_json(folder: Path) -> Answer:
    """Let Polars read the lines, which have lists of mixed types, as far as it can."""
    import polars as pl

    segment = pl.Struct({"parent_segment": pl.String, "begin_ns": pl.Int64, "end_ns": pl.Int64})
    part = pl.Struct({"segment": segment, "spans": pl.List(pl.List(pl.String))})
    schema = {"trace_id": pl.String, "parts": pl.List(part)}
    rows = pl.scan_ndjson(f"{folder}/*/*.jsonl.gz", schema=schema).explode("parts")
    of = pl.col("parts").struct.field("segment").struct
    rows = rows.with_columns(
        is_root=of.field("parent_segment").is_null(), ns=of.field("end_ns") - of.field("begin_ns")
    )
    spans = rows.select(s=pl.col("parts").struct.field("spans")).explode("s")
    get = pl.col("s").list.get
    stages = spans.select(stage=get(2), ns=get(5).cast(pl.Int64) - get(4).cast(pl.Int64))
    return _by_polars(rows, stages)


def by_polars_parquet(folder: Path) -> Answer:
    """Let Polars read the Parquet files."""
    import polars as pl

    rows = pl.scan_parquet(f"{folder}/*.parquet")
    return _by_polars(rows, rows.select("stages").explode("stages").unnest("stages"))


QUERIES: dict[str, tuple[str, Callable[[Path], Answer]]] = {
    "Python, JSON lines": ("msgspec", in_python),
    "DuckDB, JSON lines": ("duckdb", by_duckdb_json),
    "Polars, JSON lines": ("polars", by_polars_json),
    "DuckDB, Parquet": ("duckdb", by_duckdb_parquet),
    "Polars, Parquet": ("polars", by_polars_parquet),
}


def _peak_mb() -> float:
    """Return the most memory of this process; getrusage would count that of its parent, too."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def _query(name: str, folder: Path) -> None:
    begin_s = time.perf_counter()
    answer = QUERIES[name][1](folder)
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "wall_s": time.perf_counter() - begin_s,
        "cpu_s": used.ru_utime + used.ru_stime,
        "mb": _peak_mb(),
    }
    print(json.dumps([figures, answer[0], answer[1], sorted(answer[2].items())]))


def main() -> None:
    """Write the requests, run the queries in turns, and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kept_requests", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures there")
    parser.add_argument("--query", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.query is not None:
        _query(given.query, given.folder)
        return
    names = [name for name, (of, _) in QUERIES.items() if importlib.util.find_spec(of) is not None]
    if importlib.util.find_spec("pyarrow") is None:
        names = [name for name in names if "Parquet" not in name]
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder, given.requests)
        if any("Parquet" in name for name in names):
            convert(folder)
        sizes = {
            kind: sum(one.stat().st_size for one in folder.rglob(pattern)) / 1e6
            for kind, pattern in (("JSON lines", "*.jsonl.gz"), ("Parquet", "*.parquet"))
        }
        for _ in range(given.rounds):
            for name in names:
                command = [sys.executable, "-m", "benchmarks.kept_requests", "--query", name]
                done = subprocess.run(
                    [*command, "--folder", folder], check=True, stdout=subprocess.PIPE
                )
                found, *answers[name] = json.loads(done.stdout)
                figures[name].append(found)
    if any(answer != answers[names[0]] for answer in answers.values()):
        sys.exit(f"The answers differ: {answers}")
    if given.json is not None:
        given.json.write_text(json.dumps({"figures": figures, "sizes_mb": sizes}, indent=1))
    columns = [
        Column(title, [_median(figures[name], key) for name in names], is_number=True)
        for title, key in (("wall s", "wall_s"), ("CPU s", "cpu_s"), ("memory MB", "mb"))
    ]
    read = [f"{sizes[name.partition(', ')[2]]:,.0f}" for name in names]
    print(plain_table([Column("", names), *columns, Column("read MB", read, is_number=True)]))


def _median(of: list[dict[str, float]], key: str) -> str:
    return f"{statistics.median(one[key] for one in of):,.1f}"


if __name__ == "__main__":
    main()
