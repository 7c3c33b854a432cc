"""The use of devices: busy, communicating and copying; exact to the nanosecond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import checked, unstated
from device_programs import US, device_only, devices_only, judged, use_of
from planted import CALL, Program

from stagespan.pages.amounts import in_words
from stagespan.trace import read_trace
from stagespan.trace.analyses import launches, verdict
from stagespan.trace.analyses.launches import Launches
from stagespan.trace.analyses.verdict import Verdict
from stagespan.trace.derived.device import COMMUNICATION, COPY
from stagespan.trace.derived.gaps import gaps


def test_communication_that_nothing_hides(tmp_path: Path) -> None:
    # GIVEN 400 µs of communication, of which 100 overlap computation
    trace = device_only(
        tmp_path,
        ("gemm", "kernel", 7, 0, 200),
        ("ncclDevKernel_AllReduce", "kernel", 20, 100, 500),
        ("gemm", "kernel", 7, 500, 600),
    )
    use = use_of(trace)
    written = use.to_dict()
    assert written["comm_union_us"] == 400
    assert written["exposed_comm_us"] == 300
    assert written["hidden_comm_us"] == written["overlap_us"] == 100
    assert written["hidden_comm_percent"] == 25
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
    found = checked(verdict.analyze(trace), Verdict)
    assert (found.verdict, found.time_ns) == ("communication-bound", 300 * US)


def test_hidden_communication_is_not_a_finding(tmp_path: Path) -> None:
    # GIVEN communication that overlaps computation all the time
    trace = device_only(
        tmp_path,
        ("gemm", "kernel", 7, 0, 600),
        ("ncclDevKernel_AllReduce", "kernel", 20, 100, 500),
    )
    use = use_of(trace)
    assert use.to_dict()["hidden_comm_percent"] == 100
    assert use.findings() == []


def test_time_in_which_several_streams_are_busy_counts_once(tmp_path: Path) -> None:
    trace = device_only(
        tmp_path,
        ("gemm", "kernel", 7, 0, 400),
        ("gemm", "kernel", 8, 100, 500),
        ("gemm", "kernel", 9, 200, 300),
    )
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
    written = use_of(trace).to_dict()
    launched = checked(launches.analyze(trace), Launches)
    assert launched.launched == 2
    assert written["gpu_events"] == {"kernel": 2}
    assert written["busy_us"] == written["kernel_dur_sum_us"] == 100
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
    written = use_of(program.trace(tmp_path)).to_dict()
    assert written["gpu_events"] == {"kernel": 1}
    assert written["busy_us"] == written["kernel_dur_sum_us"] == 50
    assert written["gpu_events_without_launch_in_trace"] == 0


def test_without_communication_its_hidden_share_is_unknown(tmp_path: Path) -> None:
    trace = device_only(tmp_path, ("gemm", "kernel", 7, 0, 600))
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
    trace = device_only(
        tmp_path,
        ("gemm", "kernel", 7, 0, 600),
        *(("ncclKernel", "kernel", *each) for each in communication),
    )
    assert use_of(trace).shares_stream == {(0, COMMUNICATION): expected}


@pytest.mark.parametrize(
    ("name", "stream", "sort", "advice"),
    [
        ("ncclKernel", 7, None, "a stream that also computes"),
        ("ncclKernel", 20, None, "It runs on its own stream"),
        ("Memcpy DtoD (Device -> Device)", 20, "within_device", "Reduce the number"),
        ("Memcpy HtoD (Pageable -> Device)", 20, "pageable", "non_blocking=True"),
        ("Memcpy HtoD (Pinned -> Device)", 7, "other", "On a separate stream"),
        ("Memcpy HtoD (Pinned -> Device)", 20, "other", "They run on their own stream"),
    ],
)
def test_advice_depends_on_the_sort_and_the_stream(
    name: str, stream: int, sort: str | None, advice: str, tmp_path: Path
) -> None:
    cat = "kernel" if sort is None else "gpu_memcpy"
    trace = device_only(tmp_path, ("gemm", "kernel", 7, 0, 600), (name, cat, stream, 600, 1_000))
    use = use_of(trace)
    assert use.copies == ({} if sort is None else {0: sort})
    (finding,) = use.findings()
    assert advice in finding.text
    assert "the worst of" not in finding.text
    assert ("behind computation or communication" in finding.text) == (sort is not None)


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "Copy less data, such as in a smaller type."),
        ("Memcpy HtoD (Pageable -> Device)", "With pinned memory, these copies are faster."),
    ],
)
def test_too_little_computation_hides_no_copies(name: str, action: str, tmp_path: Path) -> None:
    trace = device_only(tmp_path, ("gemm", "kernel", 7, 0, 50), (name, "gpu_memcpy", 20, 50, 1_000))
    (finding,) = use_of(trace).findings()
    assert unstated([finding]) == []
    assert finding.action == action
    assert "(50.0 µs against 950 µs)" in finding.text
    assert "can hide copies" not in finding.text


def test_advice_is_for_the_copies_that_take_the_most_time(tmp_path: Path) -> None:
    trace = device_only(
        tmp_path,
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", 20, 0, 100),
        ("Memcpy DtoD (Device -> Device)", "gpu_memcpy", 20, 100, 300),
        ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 20, 300, 450),
    )
    use = use_of(trace)
    assert use.copies == {0: "within_device"}
    assert use.longest[0, COPY].figure == 200 * US


def test_several_devices_are_distinguished(tmp_path: Path) -> None:
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
    written = use_of(read_trace(path)).to_dict()
    nothing = {"comm": 0, "exposed_comm": 0, "memcpy": 0, "exposed_memcpy": 0}
    assert written["per_device_us"] == {
        "0": {"busy": 100, "idle": 0, "span": 100, "compute": 100, **nothing},
        "1": {"busy": 50, "idle": 50, "span": 100, "compute": 50, **nothing},
    }
    assert written["idle_us"] == 0
    assert written["overlap_us"] == 50


def test_communication_is_not_hidden_by_what_another_device_computes(tmp_path: Path) -> None:
    trace = devices_only(tmp_path, ("ncclKernel", 0, 0, 1_000), ("gemm", 1, 0, 1_000))
    use = use_of(trace)
    written = use.to_dict()
    none = {"busy": 1_000, "idle": 0, "span": 1_000, "memcpy": 0, "exposed_memcpy": 0}
    assert written["per_device_us"] == {
        "0": none | {"compute": 0, "comm": 1_000, "exposed_comm": 1_000},
        "1": none | {"compute": 1_000, "comm": 0, "exposed_comm": 0},
    }
    assert list(written["per_stream_us"]) == list(written["per_stream_busy_us"]) == ["0/7", "1/7"]
    assert written["per_stream_us"]["0/7"] == written["per_device_us"]["0"]
    assert (written["hidden_comm_us"], written["hidden_comm_percent"]) == (0, 0)
    # THEN the keys for all devices together are unchanged
    assert (written["compute_union_us"], written["exposed_comm_us"]) == (1_000, 0)
    (finding,) = use.findings()
    assert (finding.severity, finding.numbers["device"]) == ("high", 0)
    assert "device 0, the worst of 2," in finding.text
    assert finding.evidence[1].event == "ncclKernel"
    found = judged(trace)
    assert (found.verdict, found.devices) == ("communication-bound", 2)
    assert (found.time_ns, found.whole_ns) == (1_000 * US, 2_000 * US)
    assert found.times_ns["device-busy"] == 1_000 * US
    (differing,) = found.differs
    assert differing.startswith("device 1: ")
    titles = [table.title for table in use.tables()]
    assert titles == ["Devices", "Streams"]
    assert use.tables()[0].rows[0] == ("device 0", 0, US * 1_000, 0, 0, US * 1_000, US * 1_000, 0)
    (parts,) = found.tables()
    assert [row[2] for row in parts.rows] == [1_000 * US, 1_000 * US]
    assert parts.note.endswith(" The times are sums over 2 devices.")


@pytest.mark.parametrize(
    "kernel",
    [
        "oneccl_allreduce_kernel",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)",
        "void deep_ep::internode_ll::combine<(bool)0, (int)6144, (int)11>(void *, void *)",
        "void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int, int)",
        "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8>(int4*, float*, bool const*)",
    ],
)
def test_kernels_that_communicate_without_nccl(kernel: str, tmp_path: Path) -> None:
    # GIVEN an all-reduce of oneCCL, or an exchange of DeepEP, then a little computation
    trace = device_only(
        tmp_path,
        (kernel, "kernel", 7, 0, 900),
        ("gemm", "kernel", 7, 900, 1_000),
    )
    use = use_of(trace)
    written = use.to_dict()
    found = judged(trace)
    assert (found.verdict, found.time_ns) == ("communication-bound", 900 * US)
    numbers = use.findings()[0].numbers
    assert (numbers["time_ns"], numbers["whole_ns"]) == (900 * US, 1_000 * US)
    assert numbers["percent"] == 90
    (parts,) = found.tables()
    assert ("communicating, nothing else", "communication-bound", 900 * US, 90) in parts.rows
    # THEN every figure of communication has the same definition; that of NCCL alone is separate
    assert (written["comm_union_us"], written["exposed_comm_us"]) == (900, 900)
    assert (written["nccl_union_us"], written["compute_union_us"]) == (0, 100)
    assert written["custom_comm_us"] == written["per_device_us"]["0"]["comm"] == 900
    assert in_words(900 * US, "ns") in use.tables()[-1].note


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
    use = use_of(device_only(tmp_path, (kernel, "kernel", 7, 0, 100)))
    assert use.compute_ns == 100 * US
    assert use.communication_ns == 0


def test_the_processes_of_one_npu_are_one_device(tmp_path: Path) -> None:
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
    written = use_of(read_trace(path)).to_dict()
    assert written["per_device_us"] == {
        "0": {
            "busy": 130, "idle": 0, "span": 130, "compute": 100, "comm": 90, "exposed_comm": 30,
            "memcpy": 0, "exposed_memcpy": 0,
        }
    }  # fmt: skip
    assert written["hidden_comm_us"] == 60
    assert judged(read_trace(path)).devices == 1


def test_two_npus_in_one_trace_are_two_devices(tmp_path: Path) -> None:
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
    assert {name: each.busy_ns for name, each in use_of(read_trace(path)).devices.items()} == {
        "0": 100 * US,
        "1": 100 * US,
    }


def test_a_gap_is_time_in_which_no_stream_runs(tmp_path: Path) -> None:
    trace = device_only(
        tmp_path,
        ("long", "kernel", 7, 0, 500),
        ("short", "kernel", 20, 100, 150),
        ("short", "kernel", 20, 300, 320),
        ("last", "kernel", 7, 600, 700),
    )
    found = gaps(trace)
    assert (found.begin_ns.tolist(), found.end_ns.tolist()) == ([500 * US], [600 * US])
    names = [trace.names[trace.events.name[found.rows[at[0]]]] for at in (found.last, found.first)]
    assert names == ["long", "last"]


def test_work_launched_before_the_window_is_counted_separately(tmp_path: Path) -> None:
    program = Program()
    program.launch("early", 30, known=False)
    program.launch("early", 30, known=False)
    program.launch("late", 30)
    use = use_of(program.trace(tmp_path))
    assert use.without_launch == 2
    assert use.to_dict()["gpu_events_without_launch_us"] == 60
    assert use.to_dict()["kernel_dur_sum_us"] == 90
    assert use.before_window_ns == 60 * US
    assert in_words(use.before_window_ns, "ns") in use.tables()[-1].note


def test_a_launch_by_the_first_event_is_in_the_trace(tmp_path: Path) -> None:
    program = Program()
    program.launch("gemm", 30)
    use = use_of(program.trace(tmp_path))
    # THEN all work has a launch, none counts as launched earlier, and no time is a sum over devices
    assert use.to_dict()["gpu_events_without_launch_in_trace"] == 0
    assert (use.without_launch, use.before_window_ns) == (0, 0)
    assert "sums over" not in use.tables()[-1].note
