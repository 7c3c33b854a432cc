"""Requests whose recordings are damaged, copied from other hosts, incomplete or still open."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from perfetto import check
from recorded_process import (
    command_here,
    copy_of,
    copy_sparse,
    extents,
    left_by,
    recordings_in,
    skip_unless_works,
    started,
)

from properties import examples
from request_columns import check_columns
from running import PROGRAMS, end, ran
from stagespan import recording
from stagespan.errors import StagespanError
from stagespan.recording import dump, request_figures, summary
from stagespan.recording.request_figures import RequestFigures
from stagespan.recording.request_sums import RequestSums
from stagespan.recording.timelines import Timelines, timelines

REQUESTING = PROGRAMS / "requesting.py"


def check_sums(found: Timelines) -> None:
    """Assert that the parts of each request sum to its time, as JSON too."""
    for one in found:
        assert sum(one.where.values()) == one.total_ns
        assert min(one.where.values(), default=0) >= 0
        page = RequestFigures.of(one).to_dict()
        parts = ("execution_ns", "handoff_ns", "queue_ns", "unattributed_ns")
        assert sum(page[part] for part in parts) == page["total_ns"]
    check_columns(found)


# --- damaged --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file_of_requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    variables = {"STAGESPAN_RING_SPANS": "64", "STAGESPAN_REQUESTS": "64"}
    copy = tmp_path_factory.mktemp("requests") / "real.stagespan"
    return copy_of(copy, REQUESTING, "many", **variables)


_WORDS = st.one_of(
    st.integers(0, 40).map(lambda n: struct.pack("<Q", n)),
    st.sampled_from([1, -1, 2**62, 2**63 - 1, -(2**63), 10**18]).map(
        lambda n: struct.pack("<q", n)
    ),
    st.binary(min_size=8, max_size=8),
)


@settings(max_examples=examples(200))
@given(changes=st.lists(st.tuples(st.integers(0, 8), st.integers(-33, 8), _WORDS), max_size=10))
@example(changes=[(0, -20, struct.pack("<Q", 1))])
@example(changes=[(1, -21, struct.pack("<Q", 1))])
def test_damaged_requests_are_read_with_totals_that_close(
    file_of_requests: Path, changes: list[tuple[int, int, bytes]]
) -> None:
    with tempfile.NamedTemporaryFile(suffix=".stagespan", dir="/dev/shm") as file:
        path = Path(file.name)
        copy_sparse(file_of_requests, path)
        with path.open("r+b") as open_file:
            places = [
                begin + at
                for begin, length in extents(open_file.fileno())
                for content in [os.pread(open_file.fileno(), length, begin)]
                for at in range(0, length, 8)
                if content[at : at + 3] == b"id-"
            ]
            # The id is the end of an entry of 256 bytes.
            for number, word, value in changes:
                at = places[number % len(places)] + 8 * word
                os.pwrite(open_file.fileno(), value, at)
        with contextlib.suppress(StagespanError):
            found = recording.open(path)
            requests = timelines([found])
            check_sums(requests)
            sums = RequestSums(requests)
            request_figures.stages(sums), request_figures.hand_offs(sums.hops, sums.recordings)
            summary.load([found])
            check(json.loads(b"".join(dump.as_perfetto(found))))


# --- copies ---------------------------------------------------------------------------------------

ROUND_TRIPS = PROGRAMS / "round_trips.py"


def test_copies_of_the_recordings_of_two_hosts(folder: Path, tmp_path: Path) -> None:
    skip_unless_works("unshare", "--uts", "--time", "hostname", "there")
    there = ["unshare", "--uts", "--time", "--monotonic=7200", "sh", "-c"]
    there += ['hostname there && exec "$@"', "sh", sys.executable, str(ROUND_TRIPS), "worker"]
    here = [sys.executable, str(ROUND_TRIPS), "front", "1", "1"]
    ran([*here, *there], status=0, STAGESPAN_RECORDING="keep")
    copies = []
    for one in recordings_in(folder):
        copies.append(str(tmp_path / Path(one.path).name))
        copy_sparse(Path(one.path), Path(copies[-1]))
        Path(one.path).unlink()
    assert len(copies) == 2
    page = json.loads(command_here("requests", *copies, "--json").stdout)
    (one,) = page["requests"]
    assert (one["complete"], one["status"]) == (True, "ok")
    hosts = {segment["host"] for segment in one["segments"]}
    assert len(hosts) == 2
    assert "there" in hosts
    assert all(hop["error_ns"] > 0 for hop in one["hops"])
    assert sum(hop["hand_off_ns"] for hop in one["hops"]) == one["out_and_back_ns"][0]
    check_sums(timelines(map(recording.open, copies)))
    trace = tmp_path / "trace.json"
    assert command_here("requests", *copies, "--perfetto", str(trace)).returncode == 0
    text = json.loads(trace.read_text())
    check(text)
    names = [e["args"]["name"] for e in text["traceEvents"] if e["name"] == "process_name"]
    assert {name.rpartition("host ")[2] for name in names} == hosts
    # THEN an arrow for each hop, from process to process
    pids: defaultdict[int, list[int]] = defaultdict(list)
    for event in text["traceEvents"]:
        if event["ph"] in "stf":
            pids[event["id"]].append(event["pid"])
    here, there = (segment["pid"] for segment in one["segments"])
    assert {tuple(dict.fromkeys(found)) for found in pids.values()} >= {
        (here, there),
        (there, here),
    }
    for copy in copies:
        (one,) = json.loads(command_here("requests", copy, "--json").stdout)["requests"]
        assert one["causes"] == ["sender not among these recordings"]


def test_one_process_read_twice_counts_once(folder: Path, tmp_path: Path) -> None:
    path = str(left_by(REQUESTING, "many", STAGESPAN_RECORDING="keep"))
    copy_sparse(Path(path), tmp_path / "copy.stagespan")
    once = json.loads(command_here("requests", path, "--json").stdout)
    twice = command_here("requests", path, str(tmp_path / "copy.stagespan"), "--json")
    assert json.loads(twice.stdout)["count"] == once["count"] == 9


# --- open -----------------------------------------------------------------------------------------


def test_a_request_that_never_ends(folder: Path) -> None:
    process = started(REQUESTING, "left_open")
    (path,) = (one.path for one in recordings_in(folder))
    reading, later_reading = (timelines([recording.open(path)]) for _ in range(2))
    found = {one.id: one for one in reading}
    later = {one.id: one for one in later_reading}
    text = command_here("requests", path, "--status", "open").stdout
    recovered = command_here("show", path).stdout
    end(process)
    # THEN it grows, and its time is that of its open span
    one = found["never ends"]
    assert one.status == "open"
    assert set(one.causes) == {"message waiting to be received", "not ended yet"}
    assert 0 < one.total_ns < later["never ends"].total_ns
    check_sums(reading)
    check_sums(later_reading)
    assert later["never ends"].where["execution", "waits"] > one.where["execution", "waits"]
    # AND what was received and not entered waits
    (waiting,) = (one for name, one in found.items() if name != "never ends")
    assert waiting.status == "open"
    assert waiting.where == {("queue", "default"): waiting.total_ns}
    assert "not ended yet" in text
    assert "  never ends (since 20" in recovered
    assert f"  {waiting.id} (waiting, trace {waiting.trace_id})" in recovered
    last_reading = timelines([recording.open(path)])
    ended = {one.id: one for one in last_reading}
    assert {one.status for one in ended.values()} == {"abandoned"}
    assert set(ended["never ends"].causes) == {"message not received", "process ended"}
    check_sums(last_reading)


# --- many -----------------------------------------------------------------------------------------


def test_sums_of_more_requests_than_are_summed_at_once(folder: Path) -> None:
    process = started(
        REQUESTING, "many_alike", STAGESPAN_REQUESTS="8192", STAGESPAN_RING_SPANS="16384"
    )
    (path,) = (one.path for one in recordings_in(folder))
    found = timelines([recording.open(path)])
    end(process)
    assert len(found) == 3000
    check_columns(found)


# --- more requests than entries -------------------------------------------------------------------


def test_a_segment_that_was_overwritten_is_named_as_such(folder: Path) -> None:
    worker = ["env", "STAGESPAN_REQUESTS=64", sys.executable, str(ROUND_TRIPS), "worker"]
    front = [sys.executable, str(ROUND_TRIPS), "front", "100", "2"]
    ran([*front, *worker], status=0, STAGESPAN_RECORDING="keep")
    found = timelines(recording.open(one.path) for one in recordings_in(folder))
    check_sums(found)
    causes = {int(one.id[1:]): one.causes for one in found if one.id.startswith("r")}
    # THEN the latest requests are complete but for replies that nobody took
    assert causes[99] == []
    assert causes[98] == ["message not received"]
    # AND the earliest ones are not said to be lost
    for i in range(30):
        assert causes[i] == ["request overwritten"], i


# --- what the command says ------------------------------------------------------------------------


def test_the_command_says_what_was_lost(folder: Path) -> None:
    path = str(left_by(REQUESTING, "crowd", STAGESPAN_RECORDING="keep", STAGESPAN_REQUESTS="64"))
    page = json.loads(command_here("requests", path, "--json").stdout)
    assert page["lost"]["requests"] == 200 - 64
    assert page["lost"]["links"] == 600 - 256
    text = command_here("requests", path).stdout
    assert "have lost 136 requests, so" in text
    assert "have lost 344 links of batches, so" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--job", "nobody"), "There is no recording of the job 'nobody'"),
        (("/nowhere",), "There is no file /nowhere"),
        (("--id", "none", "--job", "x", "1"), "Name recordings, or a job with --job, but not both"),
        (("--slowest", "0"), "0 is not in the range"),
        (("--status", "done"), "'done' is not one of"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_sentence(
    arguments: tuple[str, ...], words: str, folder: Path
) -> None:
    done = command_here("requests", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
