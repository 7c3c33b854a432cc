"""What streams and the host waited for, according to the driver's own events (`cuda_sync`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import checked
from planted import LATENCY, Program

from stagespan.trace import read_trace
from stagespan.trace.analyses import idle
from stagespan.trace.analyses.idle import Idle
from stagespan.trace.analyses.idle_culprits import IdleGap
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.call_site import SyncEvents


def waits_for_event(program: Program, stream: int, on: int, record: int | None) -> None:
    """The host makes a stream wait for another one's work up to a recorded event."""
    args: dict[str, Any] = {"wait_on_stream": on, "wait_on_cuda_event_id": 1, "stream": stream}
    if record is not None:
        args["wait_on_cuda_event_record_corr_id"] = record
    name = "Stream Wait Event"
    program.event(
        name, "cuda_sync", program.now, program.now + 1, cuda_sync_kind=name, device=0, **args
    )
    program.now += 1


def records(program: Program, correlation: int) -> None:
    now = program.now
    program.event("cudaEventRecord", "cuda_runtime", now, now + 1, correlation=correlation)
    program.now += 1


def consumer(known: bool = True) -> Program:
    """A stream that waits for another one's work, while a third one has finished long before."""
    program = Program()
    program.launch("unrelated", 300, stream=9)
    program.launch("produce", 500, stream=7)
    records(program, 5_000)
    program.launch("behind the record", 20, stream=7)
    program.free[7] -= 20
    program.events[-1]["ts"] = 10_000_000  # it ran much later
    waits_for_event(program, 20, 7, 5_000 if known else None)
    program.launch("consume", 100, stream=20, after=7)
    return program


def first_gap(program: Program, folder: Path) -> IdleGap:
    found = checked(idle.analyze(program.trace(folder)), Idle)
    return min(found.largest, key=lambda gap: gap.time_ns)


def test_a_dependency_names_the_work_for_which_the_stream_waited(tmp_path: Path) -> None:
    gap = first_gap(consumer(), tmp_path)
    assert (gap.cause, gap.dur_ns) == (causes.DEPENDENCY, LATENCY * 1_000)
    assert (gap.next, gap.culprit) == ("consume", "produce")
    assert gap.waited_for == "produce on stream 7"


def test_an_event_whose_record_is_not_in_the_trace_names_its_stream_only(tmp_path: Path) -> None:
    # GIVEN a wait that does not say which event it waits for
    gap = first_gap(consumer(known=False), tmp_path)
    # THEN the stream is known, but not the work
    assert gap.waited_for == "stream 7"


def test_a_wait_before_earlier_work_is_not_attributed_to_later_work(tmp_path: Path) -> None:
    program = Program()
    program.launch("produce", 500, stream=7)
    records(program, 5_000)
    waits_for_event(program, 20, 7, 5_000)
    program.launch("earlier", 100, stream=20, after=7)
    program.launch("produce again", 400, stream=7)
    program.launch("consume", 100, stream=20, after=7)
    found = checked(idle.analyze(program.trace(tmp_path)), Idle)
    waited = {gap.next: gap.waited_for for gap in found.largest if gap.cause == causes.DEPENDENCY}
    assert waited["consume"] is None


@pytest.mark.parametrize(
    ("kind", "args", "expected"),
    [
        ("Stream Sync", {"stream": 7}, "stream 7"),
        ("Event Sync", {"stream": -1, "wait_on_stream": 20}, "stream 20"),
        ("Event Sync", {"stream": -1, "wait_on_stream": -1}, None),
        ("Context Sync", {"stream": 4294967295}, "all streams"),
    ],
)
def test_a_call_of_the_host_names_its_target(
    tmp_path: Path, kind: str, args: dict[str, Any], expected: str | None
) -> None:
    program = Program()
    program.launch("kernel", 50)
    program.event("cudaXSynchronize", "cuda_runtime", 2_000, 2_010, correlation=99)
    program.event(kind, "cuda_sync", 2_000, 2_009, correlation=99, device=0, **args)
    trace = program.trace(tmp_path)
    call = [trace.names[code] for code in trace.events.name].index("cudaXSynchronize")
    assert SyncEvents(trace).of_host(call) == expected


def test_real_waits_are_reported(traces: Path) -> None:
    trace = read_trace(traces / "cuda_a100_sync_multi_stream.json.gz")
    waits = SyncEvents(trace)
    calls = [row for row, is_call in enumerate(trace.rows_of(["cuda_runtime"])) if is_call]
    told = {trace.names[int(trace.events.name[row])]: waits.of_host(row) for row in calls}
    # THEN each names the target that the file has for its correlation
    assert told["cudaDeviceSynchronize"] == "all streams"
    assert {waits.of_host(row) for row in calls} == {None, "stream 20", "stream 28", "all streams"}
