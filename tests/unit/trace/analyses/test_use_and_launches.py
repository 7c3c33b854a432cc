"""Device use, launches and verdicts of synthetic programs, exact to the nanosecond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import unstated
from planted import CALL, LATENCY, Program

from stagespan.text.amounts import in_words
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import device_use, launches, verdict
from stagespan.trace.analyses.device_use import Use
from stagespan.trace.analyses.idle import Idle
from stagespan.trace.analyses.launches import Launches, Percentiles, QueueDepth
from stagespan.trace.analyses.verdict import Verdict
from stagespan.trace.analysis import analyze
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.device import COMMUNICATION, COPY, launch_of
from stagespan.trace.derived.gaps import gaps
from stagespan.trace.result import Unavailable

US = 1_000


def use_of(trace: Trace) -> Use:
    found = device_use.analyze(trace)
    assert isinstance(found, Use)
    assert unstated(found.findings()) == []
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
    # GIVEN 400 µs of communication, of which 100 overlap computation
    trace = device_only(
        tmp_path,
        ("gemm", "kernel", 7, 0, 200),
        ("ncclDevKernel_AllReduce", "kernel", 20, 100, 500),
        ("gemm", "kernel", 7, 500, 600),
    )
    # WHEN its device's use is summed up
    use = use_of(trace)
    # THEN overlap and hidden communication are exact
    written = use.to_dict()
    assert written["comm_union_us"] == 400
    assert written["exposed_comm_us"] == 300
    assert written["hidden_comm_us"] == written["overlap_us"] == 100
    assert written["hidden_comm_percent"] == 25
    # AND it is a finding, with the communication as its evidence
    (finding,) = use.findings()
    assert (finding.severity, finding.code) == ("medium", "device_use.exposed_communication")
    assert finding.numbers == {
        "time_ns": 300 * US,
        "percent": 50,
        "whole_ns": 600 * US,
        "hidden_percent": 25,
        "device": 0,
        "computing_ns": 300 * US,
        "communication_ns": 400 * US,
    }
    assert [each.figure for each in finding.evidence] == [300 * US, 400 * US]
    # AND the verdict is the same without launches
    found = verdict.analyze(trace)
    assert isinstance(found, Verdict)
    assert (found.verdict, found.time_ns) == ("communication-bound", 300 * US)


def test_hidden_communication_is_not_a_finding(tmp_path: Path) -> None:
    # GIVEN communication that overlaps computation all the time
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


def test_time_in_which_several_streams_are_busy_counts_once(tmp_path: Path) -> None:
    # GIVEN two streams that are busy together for 300 µs, and a third one during 100 of these
    trace = device_only(
        tmp_path,
        ("gemm", "kernel", 7, 0, 400),
        ("gemm", "kernel", 8, 100, 500),
        ("gemm", "kernel", 9, 200, 300),
    )
    # WHEN its device's use is summed up
    # THEN the overlap is the time of at least two streams
    assert use_of(trace).to_dict()["overlap_us"] == 300


def test_a_recorded_event_is_not_work_of_its_stream(tmp_path: Path) -> None:
    # GIVEN two kernels, and between them an event that the host recorded on their stream, as
    # current versions of Kineto write it: with a place on the stream, and 1 ns long
    program = Program()
    program.launch("gemm", 50)
    number = 1_000
    program.event(
        "cudaEventRecord", "cuda_runtime", program.now, program.now + CALL, correlation=number
    )
    reached = program.free[7] + 1
    program.event(
        "cudaEvent", "cuda_event", reached, reached + 0.001,
        event_id=1, stream=7, correlation=number, device=0, context=1,
    )  # fmt: skip
    program.work(200)
    program.launch("gemm", 50)
    trace = program.trace(tmp_path)
    # WHEN the device's use and its launches are summed up
    written = use_of(trace).to_dict()
    launched = launches.analyze(trace)
    # THEN only the kernels count
    assert isinstance(launched, Launches)
    assert launched.launched == 2
    assert written["gpu_events"] == {"kernel": 2}
    assert written["busy_us"] == written["kernel_dur_sum_us"] == 100
    # AND there is one gap between them
    assert len(gaps(trace).rows) == 2
    assert gaps(trace).dur_ns.tolist() == [(200 + CALL - 50) * US]


def test_the_counters_of_a_kernel_are_not_a_second_kernel(tmp_path: Path) -> None:
    # GIVEN a kernel of an XPU, and around it the event with the counters measured for it, as
    # Kineto writes it: 1 ns longer at both ends, without the kernel's arguments
    program = Program()
    program.launch("gemm_kernel", 50)
    end = program.free[7]
    counters = {
        "ph": "X", "name": "metrics: gemm_kernel", "cat": "kernel", "pid": 0, "tid": 7,
        "ts": end - 50.001, "dur": 50.002, "args": {"XVE_STALL": 12.5},
    }  # fmt: skip
    track = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}}
    program.events += [counters, track]
    # WHEN the device's use is summed up
    written = use_of(program.trace(tmp_path)).to_dict()
    # THEN the kernel counts once
    assert written["gpu_events"] == {"kernel": 1}
    assert written["busy_us"] == written["kernel_dur_sum_us"] == 50
    assert written["gpu_events_without_launch_in_trace"] == 0


def test_without_communication_its_hidden_share_is_unknown(tmp_path: Path) -> None:
    # GIVEN computation only
    trace = device_only(tmp_path, ("gemm", "kernel", 7, 0, 600))
    # WHEN its device's use is summed up
    # THEN there is no share
    assert use_of(trace).to_dict()["hidden_comm_percent"] is None


@pytest.mark.parametrize(
    ("communication", "expected"),
    [
        ([(7, 600, 1_000)], True),
        ([(7, 600, 1_200)], False),
        ([(20, 600, 1_000)], False),
        ([(7, 600, 800), (20, 800, 1_000)], False),
        ([(7, 600, 801), (20, 801, 1_000)], True),
    ],
)
def test_communication_on_a_stream_that_mostly_computes(
    communication: list[tuple[int, int, int]], expected: bool, tmp_path: Path
) -> None:
    # GIVEN 600 µs of computing on stream 7, then communication on this or on another stream
    trace = device_only(
        tmp_path,
        ("gemm", "kernel", 7, 0, 600),
        *(("ncclKernel", "kernel", *each) for each in communication),
    )
    # WHEN the use is summed up THEN it is known whether most communication is on such a stream
    assert use_of(trace).shares_stream == {(0, COMMUNICATION): expected}


@pytest.mark.parametrize(
    ("name", "stream", "sort", "advice"),
    [
        ("ncclKernel", 7, None, "a stream that also computes"),
        ("ncclKernel", 20, None, "It runs on its own stream"),
        ("Memcpy DtoD (Device -> Device)", 20, "within_device", "Reduce their number"),
        ("Memcpy HtoD (Pageable -> Device)", 20, "pageable", "non_blocking=True"),
        ("Memcpy HtoD (Pinned -> Device)", 7, "other", "On a separate stream"),
        ("Memcpy HtoD (Pinned -> Device)", 20, "other", "They run on their own stream"),
    ],
)
def test_advice_depends_on_the_sort_and_the_stream(
    name: str, stream: int, sort: str | None, advice: str, tmp_path: Path
) -> None:
    # GIVEN computing, and then communication or copies of one sort
    cat = "kernel" if sort is None else "gpu_memcpy"
    trace = device_only(tmp_path, ("gemm", "kernel", 7, 0, 600), (name, cat, stream, 600, 1_000))
    # WHEN the use is summed up
    use = use_of(trace)
    # THEN the sort is known, and the advice of the finding is for it
    assert use.copies == ({} if sort is None else {0: sort})
    (finding,) = use.findings()
    assert advice in finding.sentence
    assert "the worst of" not in finding.sentence
    assert ("behind computation or communication" in finding.sentence) == (sort is not None)


def test_advice_is_for_the_copies_that_take_the_most_time(tmp_path: Path) -> None:
    # GIVEN copies of three kinds
    trace = device_only(
        tmp_path,
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 20, 0, 100),
        ("Memcpy DtoD (Device -> Device)", "gpu_memcpy", 20, 100, 300),
        ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 20, 300, 450),
    )
    # WHEN the use is summed up
    use = use_of(trace)
    # THEN the kind with the longest time is used, not the sum of two
    assert use.copies == {0: "within_device"}
    assert use.longest[0, COPY].figure == 200 * US


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
    # WHEN the verdict is determined
    found = verdict.analyze(trace)
    # THEN it is this activity, with that figure
    assert isinstance(found, Verdict)
    assert found.verdict == expected
    assert found.to_dict()["percent"] == 80
    assert (found.time_ns, found.whole_ns) == (800 * US, 1_000 * US)


@pytest.mark.parametrize(("lost", "expected"), [(240, "device-busy"), (250, "communication-bound")])
def test_a_quarter_of_lost_time_decides(lost: int, expected: str, tmp_path: Path) -> None:
    # GIVEN a device that computes for most of its time, and communicates for the rest
    trace = device_only(
        tmp_path,
        ("gemm", "kernel", 7, 0, 1_000 - lost),
        ("ncclKernel", "kernel", 7, 1_000 - lost, 1_000),
    )
    # WHEN the verdict is determined
    found = judged(trace)
    # THEN communication decides if it takes a quarter
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
    # WHEN the verdict is determined
    trace = program.trace(tmp_path)
    found = judged(trace)
    # THEN it is the host, although each cause takes less than a quarter, and computing most
    assert max(t for part, t in found.parts_ns.items() if part != "computing") < found.whole_ns / 4
    assert found.parts_ns["computing"] > found.whole_ns / 2
    assert found.verdict == "host-bound"
    assert found.time_ns == found.whole_ns - found.parts_ns["computing"]
    # AND the largest finding is as severe as all of it
    idle = analyze(trace, ["idle"]).findings()
    assert [each.severity for each in idle] == ["high", *(["medium"] * (len(idle) - 1))]
    assert len(idle) == 3


def test_time_before_and_after_all_work_of_a_trace_without_steps(tmp_path: Path) -> None:
    # GIVEN a trace without steps that begins long before the device's work
    program = Program()
    with program.within("import_all", "user_annotation"):
        program.work(400)
    program.operator(us=1_000, before=0)
    # WHEN the verdict is determined
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
    # WHEN the verdict is determined
    found = verdict.analyze(program.trace(tmp_path))
    # THEN launches that the pauses hide are not blamed
    assert isinstance(found, Verdict)
    assert (found.verdict, found.cause) == ("wait-bound", "queued")
    assert found.times_ns == {
        "wait-bound": 19 * 40 * US,
        "device-busy": 20 * 10 * US,
        "launch-bound": (CALL + LATENCY) * US,
    }


def test_several_devices_are_distinguished(tmp_path: Path) -> None:
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
    # THEN each device has its own figures, and there is no time in which both are idle
    nothing = {"comm": 0, "exposed_comm": 0, "memcpy": 0, "exposed_memcpy": 0}
    assert written["per_device_us"] == {
        "0": {"busy": 100, "idle": 0, "span": 100, "compute": 100, **nothing},
        "1": {"busy": 50, "idle": 50, "span": 100, "compute": 50, **nothing},
    }
    assert written["idle_us"] == 0
    assert written["overlap_us"] == 50


def devices_only(tmp_path: Path, *work: tuple[str, int, int, int]) -> Trace:
    """A trace of kernels and copies: name, device, begin and end in us."""
    path = tmp_path / "devices.json"
    entries = [
        {"ph": "X", "name": name, "cat": "gpu_memcpy" if "Memcpy" in name else "kernel",
         "ts": begin, "dur": end - begin, "pid": device, "tid": 7,
         "args": {"device": device, "stream": 7}}
        for name, device, begin, end in work
    ]  # fmt: skip
    path.write_text(json.dumps(entries))
    return read_trace(path)


def judged(trace: Trace) -> Verdict:
    found = verdict.analyze(trace)
    assert isinstance(found, Verdict)
    return found


def test_communication_is_not_hidden_by_what_another_device_computes(tmp_path: Path) -> None:
    # GIVEN a device that only communicates while another one computes
    trace = devices_only(tmp_path, ("ncclKernel", 0, 0, 1_000), ("gemm", 1, 0, 1_000))
    # WHEN the use is summed up
    use = use_of(trace)
    written = use.to_dict()
    # THEN each device has its own times, and nothing is hidden
    none = {"busy": 1_000, "idle": 0, "span": 1_000, "memcpy": 0, "exposed_memcpy": 0}
    assert written["per_device_us"] == {
        "0": none | {"compute": 0, "comm": 1_000, "exposed_comm": 1_000},
        "1": none | {"compute": 1_000, "comm": 0, "exposed_comm": 0},
    }
    assert list(written["per_stream_us"]) == list(written["per_stream_busy_us"]) == ["0/7", "1/7"]
    assert written["per_stream_us"]["0/7"] == written["per_device_us"]["0"]
    assert (written["hidden_comm_us"], written["hidden_comm_percent"]) == (0, 0)
    # AND the keys for all devices together are unchanged
    assert (written["compute_union_us"], written["exposed_comm_us"]) == (1_000, 0)
    # AND the finding names the device
    (finding,) = use.findings()
    assert (finding.severity, finding.numbers["device"]) == ("high", 0)
    assert "device 0, the worst of 2," in finding.sentence
    assert finding.evidence[1].event == "ncclKernel"
    # AND so does the verdict, which is for the sums over the devices
    found = judged(trace)
    assert (found.verdict, found.devices) == ("communication-bound", 2)
    assert (found.time_ns, found.whole_ns) == (1_000 * US, 2_000 * US)
    assert found.times_ns["device-busy"] == 1_000 * US
    (differing,) = found.differs
    assert differing.startswith("device 1: ")
    # AND a table shows them in columns
    titles = [table.title for table in use.tables()]
    assert titles == ["Device", "Devices", "Streams"]
    assert use.tables()[1].rows[0] == ("device 0", 0, US * 1_000, 0, 0, US * 1_000, US * 1_000, 0)
    times = [row[1] for row in use.tables()[0].rows]
    assert times == [1_000 * US, 1_000 * US, 0, 0]


def test_devices_that_are_idle_together(tmp_path: Path) -> None:
    # GIVEN two devices that each get a kernel, 5 µs apart, from a host that then works for 3 ms
    program = Program()
    for _ in range(2):
        for device in (0, 1):
            program.launch("gemm", 20, stream=device)
            program.events[-1]["args"]["device"] = device
        program.work(3_000)
    trace = program.trace(tmp_path)
    # WHEN the causes are determined
    idle = analyze(trace, ["idle"]).results["idle"]
    assert isinstance(idle, Idle)
    # THEN the causes are for the time in which both are idle, and say so
    both = 3_000 - 20 - LATENCY
    assert idle.by_cause == {
        causes.HOST_UNSEEN: both * US,
        causes.LAUNCH: (CALL + LATENCY) * US,
    }
    assert idle.tables()[0].title == "Why all devices were idle"
    (finding,) = idle.findings()
    assert (finding.code, finding.evidence[0].figure) == ("idle.host_unseen", 2_977 * US)
    assert idle.devices == 2
    # AND in the verdict they count for each device, as do the first launch and its latency, and 5
    # µs for each in which the other one worked: after both first kernels, and before and after all
    found = judged(trace)
    assert (found.verdict, found.cause, found.differs) == ("host-bound", causes.HOST_UNSEEN, ())
    assert found.times_ns == {
        "host-bound": 2 * (both + 2 * (CALL + LATENCY)) * US,
        "device-busy": 4 * 20 * US,
        "wait-bound": 4 * 5 * US,
    }


def test_a_device_that_was_idle_as_long_as_it_computed_is_not_named(tmp_path: Path) -> None:
    # GIVEN a device that is mostly idle, and one that is idle half of its time
    trace = devices_only(
        tmp_path, ("gemm", 0, 0, 1), ("gemm", 0, 19, 20), ("gemm", 1, 0, 5), ("gemm", 1, 15, 20)
    )
    # WHEN the verdict is determined by their idle time
    found = judged(trace)
    # THEN the second is not an exception
    assert (found.verdict, found.cause, found.differs) == ("cannot tell", "not_traced", ())


def test_a_device_that_differs_from_most_is_named(tmp_path: Path) -> None:
    # GIVEN three devices that compute, one that communicates, and one that copies briefly
    trace = devices_only(
        tmp_path,
        ("ncclKernel", 2, 0, 1_000),
        *(("gemm", device, 0, 1_000) for device in (0, 1, 3)),
        ("Memcpy HtoD", 4, 0, 10),
    )
    # WHEN the verdict is determined
    # THEN the one that communicates is named, and the brief copy is not
    found = judged(trace)
    assert (found.verdict, found.devices) == ("device-busy", 5)
    assert (found.time_ns, found.whole_ns) == (3_000 * US, 5_000 * US)
    (differing,) = found.differs
    assert differing.startswith("device 2: ")
    # AND if several differ, the first is named and the others are counted
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
    # WHEN the verdict is determined
    found = judged(trace)
    # THEN a device that is idle while the other works is distinguished from both being idle
    assert (found.span_ns, found.whole_ns) == (600 * US, 800 * US)
    assert found.times_ns == {
        "wait-bound": 350 * US,
        "device-busy": 350 * US,
        "cannot tell": 100 * US,
    }
    assert found.parts_ns["other_device_busy"] == 350 * US
    # AND it is reported if it takes most of the time
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
        "Wait-bound: for 205.000 µs of 330.000 µs (62.1 %; 3 devices times the trace's 110.000 µs)"
        " the devices were idle while another device worked. They computed for 125.000 µs (37.9 %)."
        " This does not apply to device 1:"
    )


def test_time_between_the_work_of_two_devices_counts_for_both(tmp_path: Path) -> None:
    # GIVEN a device that begins long after the other one has finished
    trace = devices_only(tmp_path, ("gemm", 0, 0, 10), ("gemm", 1, 990, 1_000))
    # WHEN the verdict is determined
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
    # WHEN the verdict is determined
    found = verdict.analyze(trace)
    # THEN there is none
    assert isinstance(found, Unavailable)
    assert "device events have no duration" in found.reason


@pytest.mark.parametrize(
    "kernel",
    [
        "oneccl_allreduce_kernel",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)",
        "void deep_ep::internode_ll::combine<(bool)0, (int)6144, (int)11>(void *, void *)",
        "void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int, int)",
    ],
)
def test_kernels_that_communicate_without_nccl(kernel: str, tmp_path: Path) -> None:
    # GIVEN an all-reduce of oneCCL, or an exchange of DeepEP, then a little computation
    trace = device_only(
        tmp_path,
        (kernel, "kernel", 7, 0, 900),
        ("gemm", "kernel", 7, 900, 1_000),
    )
    # WHEN it is analysed
    use = use_of(trace)
    written = use.to_dict()
    # THEN it is communication in the verdict and in the findings
    found = judged(trace)
    assert (found.verdict, found.time_ns) == ("communication-bound", 900 * US)
    numbers = use.findings()[0].numbers
    assert (numbers["time_ns"], numbers["whole_ns"]) == (900 * US, 1_000 * US)
    assert numbers["percent"] == 90
    assert use.tables()[0].rows[1] == ("communicating, nothing else", 900 * US, 90)
    # AND every figure of communication has the same definition; that of NCCL alone is separate
    assert (written["comm_union_us"], written["exposed_comm_us"]) == (900, 900)
    assert (written["nccl_union_us"], written["compute_union_us"]) == (0, 100)
    assert written["custom_comm_us"] == written["per_device_us"]["0"]["comm"] == 900
    assert in_words(900 * US, "ns") in use.tables()[0].note


@pytest.mark.parametrize(
    "kernel",
    [
        "void cross_device_reduce_1stage<__half, 2>(RankData*, RankSignals)",
        "void deep_ep::internode_ll::dispatch<true, 4096>(void*, float*)",
    ],
)
def test_communication_has_one_definition(tmp_path: Path, kernel: str) -> None:
    # GIVEN steps with a computing kernel of 500 µs, 300 µs of one library's communication during
    # it, and 100 µs of NCCL's during the latter
    work = [
        entry
        for begin in range(0, 3_000, 1_000)
        for entry in (
            ("gemm", "kernel", 7, begin, begin + 500),
            (kernel, "kernel", 20, begin + 100, begin + 400),
            ("ncclDevKernel_AllGather", "kernel", 21, begin + 200, begin + 300),
        )
    ]
    # WHEN the use is summed up
    written = use_of(device_only(tmp_path, *work)).to_dict()
    # THEN communication is that of both: exposed and hidden communication are its parts
    assert written["comm_union_us"] == written["per_device_us"]["0"]["comm"] == 900
    assert written["exposed_comm_us"] + written["hidden_comm_us"] == 900
    assert (written["exposed_comm_us"], written["hidden_comm_percent"]) == (0, 100)
    assert written["compute_union_us"] == written["per_device_us"]["0"]["compute"] == 1_500
    # AND there is one key for each of the two kinds
    assert (written["nccl_union_us"], written["custom_comm_us"]) == (300, 900)


def test_the_layout_of_an_exchange_is_not_communication(tmp_path: Path) -> None:
    # GIVEN the kernel with which DeepEP counts how many tokens go where
    kernel = "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)"
    # WHEN the device's use is summed up
    use = use_of(device_only(tmp_path, (kernel, "kernel", 7, 0, 100)))
    # THEN it computes
    assert use.compute_ns == 100 * US
    assert use.communication_ns == 0


def test_the_processes_of_one_npu_are_one_device(tmp_path: Path) -> None:
    # GIVEN a trace of an NPU whose communication is a separate process
    path = tmp_path / "npu.json"
    entries: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "Ascend Hardware"}},
        {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "Communication"}},
        {"ph": "M", "name": "thread_name", "pid": 2, "tid": 9, "args": {"name": "Group 0"}},
        {"ph": "X", "name": "MatMul", "pid": 1, "tid": 3, "ts": 0, "dur": 100,
         "args": {"Task Type": "AI_CORE"}},
        {"ph": "X", "name": "hcom_allReduce_", "pid": 2, "tid": 9, "ts": 40, "dur": 90},
    ]  # fmt: skip
    path.write_text(json.dumps(entries))
    # WHEN the use is summed up
    written = use_of(read_trace(path)).to_dict()
    # THEN they are one device, which computed during 60 of 90 µs of communication
    assert written["per_device_us"] == {
        "0": {
            "busy": 130, "idle": 0, "span": 130, "compute": 100, "comm": 90, "exposed_comm": 30,
            "memcpy": 0, "exposed_memcpy": 0,
        }
    }  # fmt: skip
    assert written["hidden_comm_us"] == 60
    assert judged(read_trace(path)).devices == 1


def test_two_npus_in_one_trace_are_two_devices(tmp_path: Path) -> None:
    # GIVEN a trace of NPUs, whose kernels name their devices
    path = tmp_path / "npus.json"
    entries: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "Ascend Hardware"}},
        *(
            {"ph": "X", "name": "MatMul", "pid": 1, "tid": 3 + device, "ts": 0, "dur": 100,
             "args": {"Task Type": "AI_CORE", "device": device}}
            for device in (0, 1)
        ),
    ]  # fmt: skip
    path.write_text(json.dumps(entries))
    # WHEN the use is summed up THEN each has its own times
    assert {name: each.busy_ns for name, each in use_of(read_trace(path)).devices.items()} == {
        "0": 100 * US,
        "1": 100 * US,
    }


def test_a_gap_is_time_in_which_no_stream_runs(tmp_path: Path) -> None:
    # GIVEN short kernels on one stream during a long one on another, and then one more
    trace = device_only(
        tmp_path,
        ("long", "kernel", 7, 0, 500),
        ("short", "kernel", 20, 100, 150),
        ("short", "kernel", 20, 300, 320),
        ("last", "kernel", 7, 600, 700),
    )
    # WHEN the gaps are determined
    found = gaps(trace)
    # THEN there is one, between the long kernel and the last
    assert (found.begin_ns.tolist(), found.end_ns.tolist()) == ([500 * US], [600 * US])
    names = [trace.names[trace.events.name[found.rows[at[0]]]] for at in (found.last, found.first)]
    assert names == ["long", "last"]


def test_work_launched_before_the_window_is_counted_separately(tmp_path: Path) -> None:
    # GIVEN two kernels whose launches are not in the trace, and one whose launch is
    program = Program()
    program.launch("early", 30, known=False)
    program.launch("early", 30, known=False)
    program.launch("late", 30)
    # WHEN the use is summed up
    use = use_of(program.trace(tmp_path))
    # THEN they are distinguished, and are part of the sums
    assert use.without_launch == 2
    assert use.to_dict()["gpu_events_without_launch_us"] == 60
    assert use.to_dict()["kernel_dur_sum_us"] == 90
    assert use.before_window_ns == 60 * US
    assert in_words(use.before_window_ns, "ns") in use.tables()[0].note


def test_a_launch_by_the_first_event_is_in_the_trace(tmp_path: Path) -> None:
    # GIVEN a trace that begins with a launch
    program = Program()
    program.launch("gemm", 30)
    # WHEN the use is summed up
    use = use_of(program.trace(tmp_path))
    # THEN all work has a launch, none counts as launched earlier, and no time is a sum over devices
    assert use.to_dict()["gpu_events_without_launch_in_trace"] == 0
    assert (use.without_launch, use.before_window_ns) == (0, 0)
    assert "sums over" not in use.tables()[0].note


def test_processes_with_the_same_correlations_do_not_get_each_others_launches(
    tmp_path: Path,
) -> None:
    # GIVEN two processes in one file that both count their launches from 1; one counts further
    path = tmp_path / "processes.json"
    entries: list[dict[str, Any]] = []
    for pid, device, count in ((100, 0, 1), (200, 1, 2)):
        for number in range(1, count + 1):
            begin = 1_000 * number + pid
            args = {"correlation": number}
            call = {"ph": "X", "name": "cudaLaunchKernel", "cat": "cuda_runtime", "pid": pid}
            entries.append(call | {"tid": pid, "ts": begin, "dur": device + 5, "args": args})
            kernel = {"ph": "X", "name": "gemm", "cat": "kernel", "pid": device, "tid": 7}
            args = args | {"device": device, "stream": 7}
            entries.append(kernel | {"ts": begin + 20, "dur": 50, "args": args})
    path.write_text(json.dumps(entries))
    trace = read_trace(path)
    # WHEN the kernels are matched with their launches
    kernels = [row for row, entry in enumerate(entries) if entry["cat"] == "kernel"]
    found = launch_of(trace, np.array(kernels))
    # THEN only the one with a correlation that a single process has is matched, the others are
    # unknown
    assert found.tolist() == [-1, -1, 4]
    assert use_of(trace).without_launch == 2
    # AND if none is left, all are unknown
    path.write_text(json.dumps(entries[:4]))
    assert launch_of(read_trace(path), np.array(kernels[:2])).tolist() == [-1, -1]


def test_a_queue_that_grows(tmp_path: Path) -> None:
    # GIVEN ten kernels of 100 µs, launched 5 µs apart
    program = Program()
    for _ in range(10):
        program.launch("gemm", 100)
    # WHEN the launches are analysed
    found = launches.analyze(program.trace(tmp_path))
    # THEN delay and depth are those of the queue: the n-th kernel waits for n others
    assert isinstance(found, Launches)
    delays = [LATENCY + n * (100 - CALL) for n in range(10)]
    assert found.delay_ns is not None
    assert found.delay_ns.max == delays[-1] * US
    assert found.delay_ns.median == (delays[4] + delays[5]) * US // 2
    # When the second is launched, the first has not begun; when the third is launched, it has.
    assert found.depth == QueueDepth((0 + 1 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8) / 10, 8)
    assert found.found_empty == 1


@pytest.mark.parametrize(
    "call", ["hipMemcpyAsync", "cudaLaunchKernelExC", "cuLaunchKernel", "urEnqueueKernelLaunch"]
)
def test_a_copy_in_two_parts_is_not_a_graph(call: str, tmp_path: Path) -> None:
    # GIVEN a call that the device runs in two parts of 30 µs, 4 µs apart, without other work
    program = Program()
    program.launch("Memcpy HtoD", 30, cat="gpu_memcpy", call=call)
    first = program.events[-1]
    program.events.append(first | {"ts": first["ts"] + 34})
    trace = program.trace(tmp_path)
    # WHEN its launches are analysed, and the causes of idle time
    found = analyze(trace, ["launches", "idle"]).results
    # THEN there is no graph, and the gap does not belong to one
    assert isinstance(found["launches"], Launches)
    assert (found["launches"].graphs, found["launches"].launched) == ([], 2)
    assert isinstance(found["idle"], Idle)
    assert found["idle"].by_cause == {causes.QUEUED: 4 * US}


def test_an_unknown_call_of_one_kernel_is_not_a_graph(tmp_path: Path) -> None:
    # GIVEN launches by a call with an unknown name, the last of which launches two kernels
    program = Program()
    for _ in range(3):
        program.launch("gemm", 30, call="vendorSubmit")
    program.events.append(program.events[-1] | {"ts": program.free[7] + 4})
    # WHEN its launches are analysed
    found = launches.analyze(program.trace(tmp_path))
    # THEN only the last call launches a graph
    assert isinstance(found, Launches)
    assert [(each.launches, each.device_events) for each in found.graphs] == [(1, 2)]


def test_an_operator_of_several_kernels_is_not_a_graph_on_ascend(traces: Path) -> None:
    # GIVEN a real rank, whose operators are compiled as they run: 5 calls, 10 kernels
    folder = traces / "ascend_level1" / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    trace = read_trace(folder / "trace_view.json.gz")
    # WHEN its launches are analysed
    # THEN none is a graph's
    found = launches.analyze(trace)
    assert isinstance(found, Launches)
    assert found.graphs == []


def test_a_starved_device_is_found_empty(tmp_path: Path) -> None:
    # GIVEN kernels that are finished before the next one is launched
    program = Program()
    for _ in range(10):
        program.launch("gemm", 2)
        program.work(100)
    # WHEN the launches are analysed
    found = launches.analyze(program.trace(tmp_path))
    # THEN every launch found the device empty
    assert isinstance(found, Launches)
    assert (found.found_empty, found.depth) == (10, QueueDepth(0.0, 0))
    assert found.delay_ns == Percentiles(*(LATENCY * US,) * 3)
    assert found.call_ns == Percentiles(*(CALL * US,) * 3)


def test_an_unknown_analysis_is_refused(tmp_path: Path) -> None:
    # GIVEN a trace
    trace = device_only(tmp_path, ("gemm", "kernel", 7, 0, 600))
    # WHEN an unknown analysis is requested
    # THEN it is refused; a single known one runs alone
    with pytest.raises(KeyError, match="no analysis 'idel'"):
        analyze(trace, ["idel"])
    assert list(analyze(trace, ["idle"]).results) == ["idle"]
    assert not isinstance(analyze(trace, ["idle"]).results["idle"], Unavailable)
