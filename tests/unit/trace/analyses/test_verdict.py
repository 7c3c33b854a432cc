"""The verdict on a device: what decides it, and on which of several devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import checked
from device_programs import US, device_only, devices_only, judged
from planted import CALL, LATENCY, Program

from stagespan.pages.result import Table, Unavailable
from stagespan.trace.analyses import verdict
from stagespan.trace.analyses.idle import Idle
from stagespan.trace.analyses.verdict import Verdict
from stagespan.trace.analysis import analyze
from stagespan.trace.derived import idle_causes as causes


@pytest.mark.parametrize(
    ("name", "cat", "expected"),
    [
        ("gemm", "kernel", "device-busy"),
        ("rcclKernel", "kernel", "communication-bound"),
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", "copy-bound"),
    ],
)
def test_the_verdict_is_the_activity_with_the_most_time(
    name: str, cat: str, expected: str, tmp_path: Path
) -> None:
    # GIVEN a device that does one thing for 80 % of its time
    other = ("gemm", "kernel") if cat == "gpu_memcpy" else ("Memcpy DtoD", "gpu_memcpy")
    trace = device_only(tmp_path, (name, cat, 7, 0, 800), (*other, 7, 800, 1_000))
    found = checked(verdict.analyze(trace), Verdict)
    assert found.verdict == expected
    assert found.to_dict()["percent"] == 80
    assert (found.time_ns, found.whole_ns) == (800 * US, 1_000 * US)


@pytest.mark.parametrize(("lost", "expected"), [(240, "device-busy"), (250, "communication-bound")])
def test_a_quarter_of_lost_time_decides(lost: int, expected: str, tmp_path: Path) -> None:
    trace = device_only(
        tmp_path,
        ("gemm", "kernel", 7, 0, 1_000 - lost),
        ("ncclKernel", "kernel", 7, 1_000 - lost, 1_000),
    )
    found = judged(trace)
    assert found.verdict == expected
    assert found.times_ns == {
        "device-busy": (1_000 - lost) * US,
        "communication-bound": lost * US,
    }


def test_the_causes_on_the_host_decide_together(tmp_path: Path) -> None:
    # GIVEN a device that computes for 60 %, and a host that loses 13 % to each of three causes
    program = Program()
    for _ in range(10):
        program.operator(us=600)
        program.wait(tail=130)
        program.event(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            "user_annotation", program.now, program.now + 130,
        )  # fmt: skip
        program.work(130)
        program.call("cudaMalloc", 130)
    program.operator(us=600)
    trace = program.trace(tmp_path)
    found = judged(trace)
    # THEN it is the host, although each cause takes less than a quarter, and computing most
    assert max(t for part, t in found.parts_ns.items() if part != "computing") < found.whole_ns / 4
    assert found.parts_ns["computing"] > found.whole_ns / 2
    assert found.verdict == "host-bound"
    assert found.time_ns == found.whole_ns - found.parts_ns["computing"]
    idle = analyze(trace, ["idle"]).findings()
    assert [each.severity for each in idle] == ["medium"] * 3


def test_time_before_and_after_all_work_of_a_trace_without_steps(tmp_path: Path) -> None:
    program = Program()
    with program.within("import_all", "user_annotation"):
        program.work(400)
    program.operator(us=1_000, before=0)
    found = judged(program.trace(tmp_path))
    # THEN this time, which another begin of the recording would change, does not decide
    assert found.parts_ns["preparation"] > found.whole_ns / 4
    assert found.verdict == "device-busy"


def test_idle_time_between_work_that_was_launched_in_time(tmp_path: Path) -> None:
    # GIVEN a device that pauses 40 µs between kernels of 10 µs, all launched long before
    program = Program()
    for _ in range(20):
        program.launch("tiny", 10)
        program.free[7] += 40
    found = verdict.analyze(program.trace(tmp_path))
    # THEN launches that the pauses hide are not blamed
    assert isinstance(found, Verdict)
    assert (found.verdict, found.cause) == ("wait-bound", "queued")
    assert found.times_ns == {
        "wait-bound": 19 * 40 * US,
        "device-busy": 20 * 10 * US,
        "launch-bound": (CALL + LATENCY) * US,
    }


def test_devices_that_are_idle_together(tmp_path: Path) -> None:
    # GIVEN two devices that each get a kernel, 5 µs apart, from a host that then works for 3 ms
    program = Program()
    for _ in range(2):
        for device in (0, 1):
            program.launch("gemm", 20, stream=device)
            program.events[-1]["args"]["device"] = device
        program.work(3_000)
    trace = program.trace(tmp_path)
    idle = checked(analyze(trace, ["idle"]).results["idle"], Idle)
    both = 3_000 - 20 - LATENCY
    assert idle.by_cause == {
        causes.HOST_UNSEEN: both * US,
        causes.LAUNCH: (CALL + LATENCY) * US,
    }
    assert isinstance(table := idle.head()[0], Table)
    assert table.columns[0] == ("why all were idle", "")
    (finding,) = idle.findings()
    assert (finding.code, finding.evidence[0].figure) == ("idle.host_unseen", 2_977 * US)
    assert idle.devices == 2
    # THEN in the verdict they count for each device, as do the first launch and its latency, and 5
    # µs for each in which the other one worked: after both first kernels, and before and after all
    found = judged(trace)
    assert (found.verdict, found.cause, found.differs) == ("host-bound", causes.HOST_UNSEEN, ())
    assert found.times_ns == {
        "host-bound": 2 * (both + 2 * (CALL + LATENCY)) * US,
        "device-busy": 4 * 20 * US,
        "wait-bound": 4 * 5 * US,
    }


def test_a_device_that_was_idle_as_long_as_it_computed_is_not_named(tmp_path: Path) -> None:
    trace = devices_only(
        tmp_path, ("gemm", 0, 0, 1), ("gemm", 0, 19, 20), ("gemm", 1, 0, 5), ("gemm", 1, 15, 20)
    )
    found = judged(trace)
    assert (found.verdict, found.cause, found.differs) == ("cannot tell", "not_traced", ())


def test_a_device_that_differs_from_most_is_named(tmp_path: Path) -> None:
    # GIVEN three devices that compute, one that communicates, and one that copies briefly
    trace = devices_only(
        tmp_path,
        ("ncclKernel", 2, 0, 1_000),
        *(("gemm", device, 0, 1_000) for device in (0, 1, 3)),
        ("Memcpy HtoD", 4, 0, 10),
    )
    # THEN the one that communicates is named, and the brief copy is not
    found = judged(trace)
    assert (found.verdict, found.devices) == ("device-busy", 5)
    assert (found.time_ns, found.whole_ns) == (3_000 * US, 5_000 * US)
    (differing,) = found.differs
    assert differing.startswith("device 2: ")
    work = [("ncclKernel", device, 0, 1_000) for device in (5, 6)]
    work += [("gemm", device, 0, 1_000) for device in range(5)]
    sentence = judged(devices_only(tmp_path, *work, ("ncclKernel", 7, 0, 1_000))).sentence
    assert "This does not apply to device 5: " in sentence
    assert sentence.endswith(" It also does not apply to 2 other devices.")


def test_devices_that_take_turns(tmp_path: Path) -> None:
    # GIVEN two devices of which one works at a time, and a gap with both idle
    trace = devices_only(
        tmp_path,
        ("gemm", 0, 0, 100),
        ("gemm", 1, 100, 200),
        ("gemm", 0, 250, 300),
        ("gemm", 1, 300, 400),
    )
    found = judged(trace)
    # THEN a device that is idle while the other works is distinguished from both being idle
    assert (found.span_ns, found.whole_ns) == (600 * US, 800 * US)
    assert found.times_ns == {
        "wait-bound": 350 * US,
        "device-busy": 350 * US,
        "cannot tell": 100 * US,
    }
    assert found.parts_ns["other_device_busy"] == 350 * US
    late = judged(
        devices_only(
            tmp_path,
            ("gemm", 0, 0, 10),
            ("gemm", 1, 10, 100),
            ("gemm", 0, 100, 110),
            ("gemm", 2, 0, 10),
            ("gemm", 2, 105, 110),
        )
    )
    assert (late.verdict, late.cause) == ("wait-bound", None)
    assert late.sentence.startswith(
        "Wait-bound: for 205 µs of 330 µs (62.1 %; 3 devices times the trace's 110 µs)"
        " the devices were idle while another device worked. They computed for 125 µs (37.9 %)."
        " This does not apply to device 1:"
    )


def test_time_between_the_work_of_two_devices_counts_for_both(tmp_path: Path) -> None:
    # GIVEN a device that begins long after the other one has finished
    trace = devices_only(tmp_path, ("gemm", 0, 0, 10), ("gemm", 1, 990, 1_000))
    found = judged(trace)
    # THEN the time in between is counted, although it is in neither device's span
    assert (found.span_ns, found.whole_ns) == (1_000 * US, 2_000 * US)
    assert found.times_ns == {
        "cannot tell": 1_960 * US,
        "device-busy": 20 * US,
        "wait-bound": 20 * US,
    }
    assert found.parts_ns["other_device_busy"] == 20 * US
    assert found.cause == "not_traced"


def test_device_events_without_a_duration_have_no_verdict(tmp_path: Path) -> None:
    # GIVEN kernels that begin and end at one time
    trace = device_only(tmp_path, ("gemm", "kernel", 7, 5, 5), ("gemm", "kernel", 7, 9, 9))
    found = verdict.analyze(trace)
    assert isinstance(found, Unavailable)
    assert "device events have no duration" in found.reason
