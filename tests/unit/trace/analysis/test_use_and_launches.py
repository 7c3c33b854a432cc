"""Device use, launches and verdicts of planted programs, to the nanosecond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from planted import CALL, LATENCY, Program

from stagespan.trace import Trace, read_trace
from stagespan.trace.analysis import analyze, causes, device_use, launches, verdict
from stagespan.trace.analysis.device_use import Use
from stagespan.trace.analysis.gaps import gaps
from stagespan.trace.analysis.idle import Idle
from stagespan.trace.analysis.launches import Launches
from stagespan.trace.analysis.result import Nothing
from stagespan.trace.analysis.verdict import Verdict

US = 1_000


def use_of(trace: Trace) -> Use:
    found = device_use.analyze(trace)
    assert isinstance(found, Use)
    return found


def device_only(tmp_path: Path, *work: tuple[str, str, int, int, int]) -> Trace:
    """A trace of device events: name, category, stream, begin and end in us."""
    path = tmp_path / "device.json"
    entries = [
        {"ph": "X", "name": name, "cat": cat, "ts": begin, "dur": end - begin, "pid": 0,
         "tid": stream, "args": {"device": 0, "stream": stream}}
        for name, cat, stream, begin, end in work
    ]  # fmt: skip
    path.write_text(json.dumps(entries))
    return read_trace(path)


def test_communication_that_nothing_hides(tmp_path: Path) -> None:
    # GIVEN 400 us of communication, of which 100 run beside computation
    trace = device_only(
        tmp_path,
        ("gemm", "kernel", 7, 0, 200),
        ("ncclDevKernel_AllReduce", "kernel", 20, 100, 500),
        ("gemm", "kernel", 7, 500, 600),
    )
    # WHEN its device's use is summed up
    use = use_of(trace)
    # THEN overlap, and what is hidden of communication, are exact
    written = use.to_dict()
    assert written["comm_union_us"] == 400
    assert written["exposed_comm_us"] == 300
    assert written["hidden_comm_us"] == written["overlap_us"] == 100
    assert written["hidden_comm_percent"] == 25
    # AND it is a finding, with the communication as its evidence
    (finding,) = use.findings()
    assert finding.severity == "high"
    assert "For 300.000 us (50.0 % of its time)" in finding.sentence
    assert "25.0 % of all communication was hidden" in finding.sentence
    assert [each.figure for each in finding.evidence] == [300 * US, 400 * US]
    # AND without launches the verdict still holds
    found = verdict.analyze(trace)
    assert isinstance(found, Verdict)
    assert (found.verdict, found.time_ns) == ("compute-bound", 300 * US)


def test_hidden_communication_is_no_finding(tmp_path: Path) -> None:
    # GIVEN communication that runs beside computation all the time
    trace = device_only(
        tmp_path,
        ("gemm", "kernel", 7, 0, 600),
        ("ncclDevKernel_AllReduce", "kernel", 20, 100, 500),
    )
    # WHEN its device's use is summed up
    use = use_of(trace)
    # THEN all of it is hidden
    assert use.to_dict()["hidden_comm_percent"] == 100
    assert use.findings() == []


def test_without_communication_its_hidden_share_is_unknown(tmp_path: Path) -> None:
    # GIVEN computation alone
    trace = device_only(tmp_path, ("gemm", "kernel", 7, 0, 600))
    # WHEN its device's use is summed up
    # THEN there is no share to tell
    assert use_of(trace).to_dict()["hidden_comm_percent"] is None


@pytest.mark.parametrize(
    ("name", "cat", "expected"),
    [
        ("gemm", "kernel", "compute-bound"),
        ("rcclKernel", "kernel", "communication-bound"),
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", "copy-bound"),
    ],
)
def test_what_takes_the_most_time_is_the_verdict(
    name: str, cat: str, expected: str, tmp_path: Path
) -> None:
    # GIVEN a device that does one thing for 60 % of its time
    other = ("gemm", "kernel") if cat == "gpu_memcpy" else ("Memcpy DtoD", "gpu_memcpy")
    trace = device_only(tmp_path, (name, cat, 7, 0, 600), (*other, 7, 600, 1_000))
    # WHEN it is judged
    found = verdict.analyze(trace)
    # THEN the verdict says so with that figure
    assert isinstance(found, Verdict)
    assert found.verdict == expected
    assert found.to_dict()["percent"] == 60
    assert "600.000 us of the device's 1.000 ms (60.0 %)" in found.sentence


def test_idle_time_between_work_that_was_launched_in_time(tmp_path: Path) -> None:
    # GIVEN a device that pauses 40 us between kernels of 10 us, all launched long before
    program = Program()
    for _ in range(20):
        program.launch("tiny", 10)
        program.free[7] += 40
    # WHEN it is judged
    found = verdict.analyze(program.trace(tmp_path))
    # THEN the host is not blamed for the first launches that the pauses do not hide
    assert isinstance(found, Verdict)
    assert (found.verdict, found.cause) == ("cannot tell", "queued")
    assert found.times_ns == {"cannot tell": 19 * 40 * US, "compute-bound": 20 * 10 * US}
    assert "mostly, the device passed from one launched kernel to the next" in found.sentence


def test_several_devices_are_told_apart(tmp_path: Path) -> None:
    # GIVEN two devices, of which one is idle half of its time
    path = tmp_path / "two.json"
    base: dict[str, Any] = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
    path.write_text(
        json.dumps(
            [
                base | {"ts": 10, "dur": 100, "args": {"device": 0, "stream": 7}},
                base | {"ts": 10, "dur": 25, "args": {"device": 1, "stream": 7}},
                base | {"ts": 85, "dur": 25, "args": {"device": 1, "stream": 7}},
            ]
        )
    )
    # WHEN the use is summed up
    written = use_of(read_trace(path)).to_dict()
    # THEN each device has its own figures, and all together are never idle
    assert written["per_device_us"] == {
        "0": {"busy": 100, "idle": 0, "span": 100},
        "1": {"busy": 50, "idle": 50, "span": 100},
    }
    assert written["idle_us"] == 0
    assert written["overlap_us"] == 50


def test_a_gap_is_where_no_stream_runs(tmp_path: Path) -> None:
    # GIVEN short kernels on one stream within a long one on another, and then one more
    trace = device_only(
        tmp_path,
        ("long", "kernel", 7, 0, 500),
        ("short", "kernel", 20, 100, 150),
        ("short", "kernel", 20, 300, 320),
        ("last", "kernel", 7, 600, 700),
    )
    # WHEN the gaps are found
    found = gaps(trace)
    # THEN there is one, between the long kernel and the last
    assert (found.begin_ns.tolist(), found.end_ns.tolist()) == ([500 * US], [600 * US])
    names = [trace.names[trace.events.name[found.rows[at[0]]]] for at in (found.last, found.first)]
    assert names == ["long", "last"]


def test_work_launched_before_the_window_is_counted_apart(tmp_path: Path) -> None:
    # GIVEN two kernels whose launches are not in the trace, and one whose launch is
    program = Program()
    program.launch("early", 30, known=False)
    program.launch("early", 30, known=False)
    program.launch("late", 30)
    # WHEN the use is summed up
    use = use_of(program.trace(tmp_path))
    # THEN they are told apart, and are part of the sums
    assert use.before_window == 2
    assert use.to_dict()["gpu_events_without_launch_us"] == 60
    assert use.to_dict()["kernel_dur_sum_us"] == 90
    assert "2 of its events (60.000 us) were launched outside the trace" in use.tables()[0].note


def test_a_queue_that_grows(tmp_path: Path) -> None:
    # GIVEN ten kernels of 100 us, launched 5 us apart
    program = Program()
    for _ in range(10):
        program.launch("gemm", 100)
    # WHEN the launches are looked at
    found = launches.analyze(program.trace(tmp_path))
    # THEN delay and depth are those of the queue: the n-th waits for n kernels
    assert isinstance(found, Launches)
    delays = [LATENCY + n * (100 - CALL) for n in range(10)]
    assert found.delay_ns is not None
    assert found.delay_ns[2] == delays[-1] * US
    assert found.delay_ns[0] == (delays[4] + delays[5]) * US // 2
    # As the second is launched the first has not begun; it has as the third is.
    assert found.depth == ((0 + 1 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8) / 10, 8)
    assert found.found_empty == 1


@pytest.mark.parametrize(
    "call", ["hipMemcpyAsync", "cudaLaunchKernelExC", "cuLaunchKernel", "urEnqueueKernelLaunch"]
)
def test_a_copy_in_two_parts_is_no_graph(call: str, tmp_path: Path) -> None:
    # GIVEN a call that the device does in two parts of 30 us, 4 us apart, with nothing else there
    program = Program()
    program.launch("Memcpy HtoD", 30, cat="gpu_memcpy", call=call)
    first = program.events[-1]
    program.events.append(first | {"ts": first["ts"] + 34})
    trace = program.trace(tmp_path)
    # WHEN its launches are looked at, and why the device was idle
    found = analyze(trace, ["launches", "idle"]).results
    # THEN there is no graph, and the gap is not one's
    assert isinstance(found["launches"], Launches)
    assert (found["launches"].graphs, found["launches"].launched) == ([], 2)
    assert isinstance(found["idle"], Idle)
    assert found["idle"].by_cause == {causes.QUEUED: 4 * US}


def test_an_operator_of_several_kernels_is_no_graph_on_ascend(traces: Path) -> None:
    # GIVEN a real rank, whose operators are compiled as they run: 5 calls, 10 kernels
    folder = traces / "ascend_level1" / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    trace = read_trace(folder / "trace_view.json.gz")
    # WHEN its launches are looked at THEN none is a graph's
    found = launches.analyze(trace)
    assert isinstance(found, Launches)
    assert found.graphs == []


def test_a_starved_device_is_found_empty(tmp_path: Path) -> None:
    # GIVEN kernels that are done before the next is launched
    program = Program()
    for _ in range(10):
        program.launch("gemm", 2)
        program.work(100)
    # WHEN the launches are looked at
    found = launches.analyze(program.trace(tmp_path))
    # THEN every one found nothing to do
    assert isinstance(found, Launches)
    assert (found.found_empty, found.depth) == (10, (0.0, 0))
    assert found.delay_ns == (LATENCY * US,) * 3
    assert found.call_ns == (CALL * US,) * 3


def test_a_name_that_is_no_analysis(tmp_path: Path) -> None:
    # GIVEN a trace
    trace = device_only(tmp_path, ("gemm", "kernel", 7, 0, 600))
    # WHEN an analysis is asked for that there is none of
    # THEN it is refused; and one alone runs alone
    with pytest.raises(KeyError, match="no analysis 'idel'"):
        analyze(trace, ["idel"])
    assert list(analyze(trace, ["idle"]).results) == ["idle"]
    assert not isinstance(analyze(trace, ["idle"]).results["idle"], Nothing)
