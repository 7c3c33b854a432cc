"""Tests of kept requests, which `stagespan requests` reads in place of recordings."""

from __future__ import annotations

import gc
import gzip
import json
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from exporting import exporter, of, scraped
from recorded_process import command_here, started

from recorded import large_request, part_of, read_spans, segment_of, span_rows
from running import PROGRAMS, end, until
from stagespan import recording
from stagespan.export import kept

EXPORTED = PROGRAMS / "exported.py"

pytestmark = pytest.mark.slow

# Keeps the first of its requests in a folder for each of the numbers in its arguments.


def keep(folder: Path, form: str, *numbers: int, url: str | None = None) -> Any:
    """Start a process that has kept so many of its requests, each number in a folder of its own.

    These are in ``folder``, or in what a URL names.
    """
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        pytest.importorskip("duckdb", reason="DuckDB is not installed")
    arguments = (form, url or str(folder), *map(str, numbers))
    return started(EXPORTED, "keeping_itself", *arguments, STAGESPAN_RING_SPANS="16384")


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("is_url", [False, True])
def test_only_their_owner_can_read_kept_requests(
    folder: Path, tmp_path: Path, form: str, is_url: bool
) -> None:
    if is_url:
        pytest.importorskip("fsspec", reason="fsspec is not installed")
    # GIVEN a process that may write files that all users can read
    place = tmp_path / "new"
    before = os.umask(0o022)
    try:
        keep(place, form, 1, url=place.as_uri() if is_url else None)
    finally:
        os.umask(before)
    (kept_file,) = (place / "1").iterdir()
    (recorded,) = folder.glob("*.stagespan")
    for one, other in ((kept_file, recorded), (kept_file.parent, folder)):
        assert stat.S_IMODE(one.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


AMOUNTS = (2**53 + 1, 2**63 - 1, -(2**60) - 1, 1.5e308)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_any_amount_of_work_is_kept(folder: Path, tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        pytest.importorskip("duckdb", reason="DuckDB is not installed")
    # GIVEN an exporter, and a process whose spans count more than a float counts exactly
    process = started(
        """
        import stagespan
        with stagespan.request("r"):
            for amount in AMOUNTS:
                with stagespan.span("copy") as span:
                    span.add(bytes=amount)
        print("ready", flush=True)
        input()
        """.replace("AMOUNTS", repr(AMOUNTS))
    )
    with exporter("--keep", str(tmp_path / "kept"), "--keep-format", form) as (_, port):
        until(lambda: list((tmp_path / "kept").glob("requests-*")), 60)
        assert of(scraped(port), "stagespan_lost_total", cause="keep") == 0
    end(process)
    found = json.loads(command_here("requests", str(tmp_path / "kept"), "--json").stdout)
    spans = found["requests"][0]["segments"][0]["spans"]
    assert [span["work"]["bytes"] for span in spans] == [*AMOUNTS]


IMPOSSIBLE = {
    "a name that is not valid": ("jsonl", {}, "\ud800"),
    "a name that is not valid, in Parquet": ("parquet", {}, "\ud800"),
    "a duration beyond its column": (
        "parquet",
        {"begin_ns": -(1 << 62), "end_ns": 1 << 62},
        "work",
    ),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_request_that_cannot_be_written_is_lost_alone(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    form, change_of, name = IMPOSSIBLE[what]
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        pytest.importorskip("duckdb", reason="DuckDB is not installed")
    requests = [large_request(n) for n in range(9)]
    read = read_spans(name, rows=span_rows(1))
    for n in (2, 7):
        requests[n] = [part_of(segment_of(n, **change_of), read)]
    keeper = kept.Keeper(tmp_path, 1 << 30, parquet=form == "parquet")
    keeper.put(requests)
    keeper.close()
    assert keeper.lost() == {"keep": 2}
    found = json.loads(command_here("requests", str(tmp_path), "--json").stdout)
    assert found["count"] == 7
    assert not any(part.awaited for parts in requests for part in parts)
    assert len(caplog.messages) == 1


OPTIONS = ([], ["--json"], ["--perfetto", "trace.json"], ["--html", "page.html"])


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_the_work_grows_as_the_number_of_kept_requests(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # GIVEN a number of kept requests, twice and four times as many
    numbers = (40, 80, 160)
    keep(tmp_path, "jsonl", *numbers)
    command_here("requests", str(tmp_path / "40"), *options)  # loads modules
    # WHEN they are shown THEN each further request costs the same number of instructions
    steps = [steps_of("requests", str(tmp_path / str(number)), *options) for number in numbers]
    first, second = steps[1] - steps[0], steps[2] - steps[1]
    assert first > 0
    assert second < 1.1 * 2 * first


def steps_of(*arguments: str) -> int:
    """Return how many instructions of Python a command executes."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return count

    # Finalizers of what earlier tests have left would be counted, also within the command.
    gc.collect()
    gc.disable()
    before = sys.gettrace()
    sys.settrace(count)
    try:
        done = command_here(*arguments)
    finally:
        sys.settrace(before)
        gc.enable()
    assert done.returncode == 0, done.stderr
    return steps


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_kept_requests_have_all_that_requests_are_joined_from(
    folder: Path, tmp_path: Path, form: str
) -> None:
    keep(tmp_path, form, 20)
    (path,) = folder.glob("*.stagespan")
    place = tmp_path / "20"
    (source,) = kept.read({"20": place}, 20).recordings
    original = recording.open(path)
    for name in ("pid", "host", "program", "pipeline", "rank", "identity", "clock"):
        assert getattr(source, name) == getattr(original, name)
    assert source.links().tolist() == original.links().tolist()
    segments, theirs = source.segment_rows(), original.segment_rows()
    theirs = theirs[np.isin(theirs["number"], segments["number"])]
    for name in segments.dtype.names or ():
        # Names are in another order, and the clock is fitted anew with each reading.
        if name not in ("queue", "pipeline") and not name.endswith("_ns"):
            assert segments[name].tolist() == theirs[name].tolist(), name
    assert source.amounts() == original.amounts()
    assert source.threads()[0]["thread"] == original.threads()[0]["thread"]
    assert source.stats(kind="queue")["replica"].count == 20


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_trace_of_kept_requests_is_that_of_the_recording(
    folder: Path, tmp_path: Path, form: str
) -> None:
    keep(tmp_path, form, 20)
    (path,) = folder.glob("*.stagespan")
    place = tmp_path / "20"
    if form == "jsonl":
        change(place, lambda page: page["parts"][0].update(unix_offset_ns=read_later(page)))
    found = trace_of(tmp_path, place, "--slowest", "20")
    expected = trace_of(tmp_path, path)
    assert found == expected
    assert found[("X", "encode")] == found[("X", "forward")] == 20


def read_later(page: Any) -> int:
    offset_ns: int = page["parts"][0]["unix_offset_ns"]
    return offset_ns + page["parts"][0]["segment"]["number"] % 2


def trace_of(folder: Path, place: Path, *options: str) -> Counter[tuple[str, str]]:
    """Return how often each slice is in the trace of requests, and the names of processes.

    Hand-offs are left out: of them, only their times are kept.
    """
    target = folder / "trace.json"
    done = command_here("requests", str(place), "--perfetto", str(target), *options)
    assert (done.returncode, done.stderr) == (0, "")
    events = json.loads(target.read_text())["traceEvents"]
    return Counter(
        (one["ph"], one["name"])
        for one in events
        if (one["ph"] == "X" and one["cat"] != "handoff") or one["name"] == "process_name"
    )


def change(place: Path, how: Callable[[Any], object]) -> None:
    """Change each request in a folder of JSON lines."""
    (path,) = place.glob("*.jsonl.gz")
    pages = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for page in pages:
        how(page)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, pages)).encode()))


CHANGES: dict[str, Callable[[Any], object]] = {
    "a kind that no span has": lambda part: part["spans"][0].__setitem__(3, "fetch"),
    "a depth beyond its column": lambda part: part["spans"][0].__setitem__(9, 1 << 20),
    "an end beyond its column": lambda part: part["spans"][0].__setitem__(5, 1 << 70),
    "a thread below its column": lambda part: part["spans"][0].__setitem__(6, -(1 << 40)),
    "a number of a segment": lambda part: part["segment"].update(number=1 << 66),
    "a rank that is not a number": lambda part: part["resource"].__setitem__(2, "first"),
    "a clock that is a text": lambda part: part.update(clock="monotonic"),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("option", ["--json", "--perfetto"])
def test_changed_values_are_refused_in_one_sentence(
    folder: Path, tmp_path: Path, what: str, option: str
) -> None:
    keep(tmp_path, "jsonl", 3)
    place = tmp_path / "3"
    change(place, lambda page: [CHANGES[what](part) for part in page["parts"]])
    target = () if option == "--json" else (str(tmp_path / "trace.json"),)
    done = command_here("requests", str(place), option, *target)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert "damaged" in done.stderr


@pytest.mark.parametrize("part", [None, 7, "{", b"\xff"])
def test_changed_parts_in_parquet_are_refused_in_one_sentence(
    folder: Path, tmp_path: Path, part: Any
) -> None:
    keep(tmp_path, "parquet", 3)
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    (path,) = (tmp_path / "3").glob("*.parquet")
    table = parquet.read_table(path)
    column = pyarrow.array([part] * len(table))
    parquet.write_table(
        table.set_column(table.schema.get_field_index("part"), "part", column), path
    )
    done = command_here("requests", str(path.parent))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
