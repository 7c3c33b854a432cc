"""Requests that cross real processes: an HTTP front, a queue, and workers that also die."""

from __future__ import annotations

import concurrent.futures
import gzip
import json
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from perfetto import check
from recorded_process import command, command_here, recordings_in, serving

from running import ended
from stagespan import recording
from stagespan.recording.timelines import Timeline, timelines

pytest.importorskip("uvicorn")
CLOCK_ERROR_NS = 20_000
"""What the conversion of clocks may add to a boundary."""


class Served(NamedTuple):
    """What a service has recorded, and its own stamps by request and call."""

    folder: Path
    timelines: dict[str, Timeline]
    stamps: dict[tuple[str, str, str], tuple[int, int]]
    statuses: dict[str, int]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    stamps_folder = tmp_path_factory.mktemp("stamps")
    program = Path(__file__).parent / "served_processes.py"
    with serving(program, str(stamps_folder), "3", STAGESPAN_JOB="served") as served:
        process, port, folder = served
        paths = [f"/plain/r{i}" for i in range(60)]
        paths[20], paths[40] = "/kill/r20", "/exit/r40"  # these two end their worker
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            statuses = dict(pool.map(lambda path: _get(port, path), paths))
        ended(process, 0)
        found = timelines(recording.open(one.path) for one in recordings_in(folder))
        yield Served(folder, {one.id: one for one in found}, _stamps(stamps_folder), statuses)


def _get(port: int, path: str) -> tuple[str, int]:
    name = path.rpartition("/")[2]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return name, answer.status
    except urllib.error.HTTPError as error:
        return name, error.code


def _stamps(folder: Path) -> dict[tuple[str, str, str], tuple[int, int]]:
    found = {}
    for path in folder.iterdir():
        role = path.name.partition("-")[0]
        for line in path.read_text().splitlines():
            request_id, what, before, after = json.loads(line)
            found[role, request_id, what] = (before, after)
    return found


def test_every_request_is_joined_and_its_parts_sum_to_its_time(served: Served) -> None:
    assert set(served.timelines) == {f"r{i}" for i in range(60)}
    for one in served.timelines.values():
        assert sum(one.where.values()) == one.total_ns
        assert min(one.where.values()) >= 0
        assert one.clipped_ns <= CLOCK_ERROR_NS


def test_complete_requests_have_all_their_parts(served: Served) -> None:
    for name, one in served.timelines.items():
        if name in ("r20", "r40"):
            continue
        assert (one.status, one.causes) == ("ok", [])
        assert [hop.queue for hop in one.hops] == ["tasks", "replies"]
        assert [len(one.segments), one.chunks, one.tokens] == [2, 3, 6]
        assert {("execution", "parse"), ("execution", "work"), ("queue", "tasks")} <= set(one.where)
        assert one.where["execution", "work"] >= 2_000_000
        assert one.part_first_chunk_ns is not None
    assert len({one.trace_id for one in served.timelines.values()}) == 60


def test_every_boundary_lies_between_the_program_s_own_stamps(served: Served) -> None:
    checked: defaultdict[str, int] = defaultdict(int)
    for name, one in served.timelines.items():
        root = one.segments[0]
        boundaries = {("front", "begin"): root.begin_ns, ("front", "end"): root.end_ns}
        for stretch in one.segments[1:]:
            offset = stretch.recording.unix_offset_ns
            segment = stretch.segment
            assert segment["sent_ns"] is not None
            assert segment["received_ns"] is not None
            boundaries["front", "send"] = segment["sent_ns"] - offset
            boundaries["worker", "extract"] = segment["received_ns"] - offset
            boundaries["worker", "enter"] = stretch.begin_ns
            if segment["end_ns"] is not None:
                boundaries["worker", "leave"] = stretch.end_ns
        for (role, what), at in boundaries.items():
            before, after = served.stamps[role, name, what]
            assert before - CLOCK_ERROR_NS <= at <= after + CLOCK_ERROR_NS, (name, role, what)
            checked[what] += 1
    assert checked["begin"] == checked["end"] == 60
    assert checked["leave"] == 58


@pytest.mark.parametrize("name", ["r20", "r40"])
def test_a_request_whose_worker_died_shows_what_the_worker_did(served: Served, name: str) -> None:
    # GIVEN a worker that was killed by SIGKILL, and one that called os._exit
    one = served.timelines[name]
    assert served.statuses[name] == 504
    assert one.status == "error"
    (died,) = one.segments[1:]
    assert died.segment["status"] == "abandoned"
    assert [(span.stage, span.is_open) for span in died.spans if span.kind == "execution"] == [
        ("work", True)
    ]
    assert one.causes == ["process ended"]
    assert one.where["unattributed", ""] > 1_000_000_000


def test_the_command_shows_the_requests(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESPAN_RECORDING_DIR", str(served.folder))
    page = json.loads(command("requests", "--job", "served", "--json", "--slowest", "3").stdout)
    assert page["count"] == 60
    assert [one["request_id"] for one in page["requests"]][2] not in ("r20", "r40")
    stages = {row["stage"]: row for row in page["stages"]}
    assert stages["work"]["count"] == 60
    assert [row["queue"] for row in page["hops"]] == ["tasks", "replies"]
    for one in page["requests"]:
        parts = [one[f"{kind}_ns"] for kind in ("execution", "handoff", "queue", "unattributed")]
        assert sum(parts) == one["total_ns"]
    text = command("requests", "--job", "served", "--status", "error").stdout
    assert text.startswith("Requests: 2 requests in ")
    assert "process ended" in text
    listed = json.loads(command("requests", "--job", "served", "--id", "r1*", "--json").stdout)
    assert listed["count"] == 11
    text = command("requests", "--job", "served", "--id", "r*7", "--slowest", "4").stdout
    assert "The 4 slowest of 6 requests\n" in text
    assert command("requests", "--job", "served", "--id", "x*").stdout.startswith(
        "There are no requests with the id 'x*'"
    )
    text = command("requests", "--job", "served", "--id", "r7").stdout
    assert "\nRequest r7, ok, trace " in text
    assert "execution work" in text
    assert "queue tasks" in text


@pytest.mark.parametrize(
    "arguments", [("dump", "--job", "served", "-o"), ("requests", "--job", "served", "--perfetto")]
)
def test_one_trace_for_all_processes_with_arrows_along_the_hops(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("STAGESPAN_RECORDING_DIR", str(served.folder))
    file = tmp_path / "trace.json.gz"
    assert command_here(*arguments, str(file)).returncode == 0
    trace = json.loads(gzip.decompress(file.read_bytes()))
    slices = check(trace)
    events = trace["traceEvents"]
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    assert processes == {one.pid for one in recordings_in(served.folder)}
    tracks = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert {pid for pid, name in tracks if name == "queue tasks"} == processes - {
        served.timelines["r0"].segments[0].recording.pid
    }
    assert {name for _, name in tracks} >= {"queue replies", "hand-off replies", "requests"}
    for name in ("r3", "r20"):
        one = served.timelines[name]
        flows: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        mine = [e for e in slices if e["args"].get("request", e["name"]) == name]
        for event in events:
            if event["ph"] in "stf":
                place = event["pid"], event["tid"]
                at = [
                    (e["cat"], e["name"])
                    for e in mine
                    if (e["pid"], e["tid"]) == place
                    and e["ts"] <= event["ts"] <= e["ts"] + e["dur"]
                ]
                flows[event["id"]] += at[-1:]
        root = ("request", name)
        tasks = [root, ("handoff", "tasks"), ("queue", "tasks"), ("user_annotation", "work")]
        replies = [root, ("handoff", "replies"), ("queue", "replies")]
        assert tasks in flows.values()
        assert ([*replies, ("user_annotation", "render")] in flows.values()) == one.complete


def test_a_dump_is_of_one_recording_or_of_a_job() -> None:
    assert "or --job JOB" in command_here("dump").stderr
    assert "or --job JOB" in command_here("dump", "1", "--job", "served").stderr
    assert "leave out --format" in command_here("dump", "--job", "x", "--format", "csv").stderr


def test_the_statistics_of_a_job_by_kind(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESPAN_RECORDING_DIR", str(served.folder))
    job = recording.job("served")
    counts = {
        kind: {name: stage.count for name, stage in job.stats(kind=kind).items()}
        for kind in ("queue", "handoff", "remote", "part_first_chunk")
    }
    assert counts == {
        "queue": {"tasks": 60, "replies": 58},
        "handoff": {"tasks": 60, "replies": 58},
        "remote": {"tasks": 58},  # those whose worker died have no end
        "part_first_chunk": {"default": 58},
    }
    assert job.stats(3600, kind="queue")["tasks"].count == 60
    assert job.stats(3600, kind="part_first_chunk")["default"].count == 58
    with pytest.raises(ValueError, match="'wait' is not a kind of span"):
        job.stats(kind="wait")  # type: ignore[arg-type]
