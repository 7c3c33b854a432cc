"""Programs with one known fault each: the causes of idle time have exactly the known times."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import checked
from device_programs import judged
from planted import CALL, LATENCY, MAIN, Program

from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, device_use
from stagespan.trace.analyses import idle
from stagespan.trace.analyses.idle import Idle
from stagespan.trace.analysis import analyze
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.gaps import gaps, waiting_calls
from stagespan.trace.derived.step_ranges import step_ranges

US = 1_000


def idle_of(trace: Trace) -> Idle:
    found = checked(idle.analyze(trace), Idle)
    assert sum(found.by_cause.values()) == found.idle_ns == device_use(trace).idle_ns
    assert sum(found.gaps_by_cause.values()) == found.gaps
    assert all(sum(gap.parts.values()) == gap.dur_ns for gap in found.largest)
    return found


def busy_start(program: Program, us: int = 1_000) -> None:
    """So much work that everything after it is launched in time."""
    program.launch("first", us)


def test_a_program_that_runs_ahead_has_findings_about_its_kernels_alone(tmp_path: Path) -> None:
    # GIVEN a host that launches faster than the device works
    program = Program()
    busy_start(program)
    for _ in range(40):
        program.operator(us=100)
    trace = program.trace(tmp_path)
    assert idle_of(trace).by_cause == {}
    assert judged(trace).verdict == "device-busy"
    assert [each.code for each in analyze(trace).findings()] == ["kernels.dominant"]


def test_the_first_gap_is_split_like_the_others(tmp_path: Path) -> None:
    program = Program()
    for _ in range(3):
        program.launch("gemm", 300)
        program.work(350)
    found = idle_of(program.trace(tmp_path))
    # THEN both gaps have the same parts: the host was already quiet when the device became idle
    unseen = 350 - LATENCY - 300
    assert [gap.parts for gap in found.largest] == [
        {causes.HOST_UNSEEN: unseen * US, causes.LAUNCH: (CALL + LATENCY) * US}
    ] * 2


def test_the_last_gap_is_split_like_the_others(tmp_path: Path) -> None:
    # GIVEN two threads that launch work of 100 µs in turn, every 165 µs, and do nothing else
    program = Program()
    for number in range(6):
        program.thread = MAIN + number % 2
        program.launch("gemm", 100)
        program.work(160)
    program.work(160)
    program.call("cudaGetDevice", 1)
    found = idle_of(program.trace(tmp_path))
    # THEN all gaps have the same parts: after its launch, each thread is quiet for 325 µs
    unseen = 160 - LATENCY - 100
    assert [gap.parts for gap in found.largest] == [
        {causes.HOST_UNSEEN: unseen * US, causes.LAUNCH: (CALL + LATENCY) * US}
    ] * 5


def test_hundreds_of_tiny_operators_are_launch_bound(tmp_path: Path) -> None:
    # GIVEN operators that each take the host 15 µs and the device 2
    program = Program()
    for _ in range(300):
        program.operator("aten::add", us=2)
    trace = program.trace(tmp_path)
    found = idle_of(trace)
    assert found.by_cause == {causes.LAUNCH: 299 * 13 * US}
    assert {gap.issued for gap in found.largest} == {"after"}
    assert {gap.culprit for gap in found.largest} == {"aten::add"}
    assert judged(trace).verdict == "launch-bound"
    (finding,) = found.findings()
    assert (finding.code, finding.severity) == ("idle.launch", "high")
    assert (finding.numbers["gaps"], finding.numbers["median_kernel_ns"]) == (299, 2 * US)
    # The first one also waits for its launch.
    assert finding.numbers["time_ns"] == (299 * 13 + CALL + LATENCY) * US
    assert finding.evidence[0].figure == 13 * US


def test_item_in_a_loop_is_a_wait_named_by_operator_and_line(tmp_path: Path) -> None:
    # GIVEN a loop that reads a result after every kernel
    program = Program()
    with program.within("train.py(12): step", "python_function"):
        for _ in range(50):
            program.operator(us=100)
            with (
                program.within("torch/_tensor.py(33): wrapped", "python_function"),
                program.within("aten::item"),
                program.within("aten::_local_scalar_dense"),
            ):
                program.wait(tail=2)
    trace = program.trace(tmp_path)
    found = idle_of(trace)
    gap = 2 + 10 + CALL + LATENCY
    assert found.by_cause == {causes.SYNCHRONISATION: 49 * gap * US}
    (group,) = found.groups
    assert (group.operator, group.call) == ("aten::item", "cudaStreamSynchronize")
    assert (group.line, group.calls) == ("train.py(12): step", 49)
    assert group.idle_ns == 49 * gap * US
    (finding,) = found.findings()
    assert group.label == "aten::item (cudaStreamSynchronize), train.py(12): step"
    assert group.label in finding.text
    assert finding.numbers["worst_call_ns"] == group.idle_ns
    assert finding.evidence[0].event == "aten::item, train.py(12): step"


def test_a_copy_that_blocks_the_host_is_a_wait(tmp_path: Path) -> None:
    # GIVEN copies to pageable memory, which return when they are finished
    program = Program()
    for _ in range(10):
        program.operator(us=100)
        with program.within("aten::to"):
            program.launch("Memcpy DtoH", 30, cat="gpu_memcpy", call="cudaMemcpyAsync", call_us=140)
            end = program.free[7]
            program.events[-2]["dur"] = end + 2 - program.events[-2]["ts"]
            program.now = end + 2
    found = idle_of(program.trace(tmp_path))
    waits = {gap.culprit for gap in found.largest if gap.cause == causes.SYNCHRONISATION}
    assert waits == {"aten::to"}
    assert found.by_cause[causes.SYNCHRONISATION] >= 9 * (2 + 10 + CALL + LATENCY) * US


@pytest.mark.parametrize(("call_us", "waits"), [(10, 0), (11, 1)])
def test_a_call_that_copies_is_a_wait_if_it_takes_longer_than_a_launch(
    call_us: int, waits: int, tmp_path: Path
) -> None:
    # GIVEN a call that returns when its copy is finished, 1 ms after the previous kernel
    program = Program()
    program.launch("first", 100)
    program.now = program.free[7] + 1_000
    program.launch("Memcpy HtoD", 2, cat="gpu_memcpy", call="cudaMemcpyAsync", call_us=call_us)
    program.events[-1]["ts"] = program.now - 2
    trace = program.trace(tmp_path)
    found = gaps(trace)
    # THEN it is one only if it took longer than 10 µs
    assert waiting_calls(trace, found.rows, found.calls).sum() == waits


def test_item_is_a_wait_if_the_trace_has_no_waiting_calls(tmp_path: Path) -> None:
    # GIVEN a loop with item, in a trace of a backend that does not record synchronising calls
    program = Program()
    for _ in range(10):
        program.operator(us=100)
        with program.within("aten::item"):
            program.now = program.free[7] + 2
    found = idle_of(program.trace(tmp_path))
    assert found.by_cause == {causes.SYNCHRONISATION: 9 * (2 + 10 + CALL + LATENCY) * US}
    assert (found.groups[0].call, found.groups[0].calls) == ("aten::item", 9)


def test_a_sleep_between_steps(tmp_path: Path) -> None:
    program = Program()
    for step in range(10):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            program.operator(us=200)
            program.work(5_000)
    trace = program.trace(tmp_path)
    found = idle_of(trace)
    # THEN the sleep is work between steps, except for the time hidden by the kernel
    sleep = 5_000 - 200 - LATENCY
    launch = 10 + CALL + LATENCY
    assert found.by_cause == {
        causes.BETWEEN_STEPS: 9 * sleep * US,
        causes.LAUNCH: 9 * launch * US,
    }
    assert all(gap.crosses_step for gap in found.largest)
    assert judged(trace).verdict == "host-bound"
    assert judged(trace).cause == causes.BETWEEN_STEPS


def test_two_annotations_of_one_name_are_not_steps(tmp_path: Path) -> None:
    program = Program()
    for _ in range(2):
        with program.within("forward", "user_annotation"):
            program.operator(us=20)
        program.work(3_000)
    trace = program.trace(tmp_path)
    found = idle_of(trace)
    assert step_ranges(trace) is None
    assert found.by_cause == {
        causes.HOST_UNSEEN: (3_000 - 20 - LATENCY) * US,
        causes.LAUNCH: (10 + CALL + LATENCY) * US,
    }
    assert not found.largest[0].crosses_step


def test_a_sleep_within_a_step_is_other_work_of_the_host(tmp_path: Path) -> None:
    program = Program()
    with program.within("ProfilerStep#1", "user_annotation"):
        program.operator(us=20)
        with program.within("<built-in function sleep>", "python_function"):
            program.work(3_000)
        program.operator(us=20)
    found = idle_of(program.trace(tmp_path))
    assert found.by_cause == {
        causes.HOST_WORK: (3_000 - 20 - LATENCY) * US,
        causes.LAUNCH: (10 + CALL + LATENCY) * US,
    }
    assert found.largest[0].culprit == "<built-in function sleep>"
    assert not found.largest[0].crosses_step


def test_many_small_operators_on_the_host_are_not_launching(tmp_path: Path) -> None:
    # GIVEN 3 ms of operators that launch nothing between two kernels
    program = Program()
    program.operator(us=20)
    for _ in range(100):
        with program.within("aten::add"):
            program.work(30)
    program.operator(us=20)
    found = idle_of(program.trace(tmp_path))
    assert set(found.by_cause) == {causes.HOST_WORK, causes.LAUNCH}
    assert found.by_cause[causes.LAUNCH] == (CALL + LATENCY) * US


@pytest.mark.parametrize(
    ("cat", "loader"),
    [
        ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
        ("cpu_op", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        ("user_annotation", "[pl][profile][_TrainingEpochLoop].train_dataloader_next"),
        ("user_annotation", "## data_load ##"),
        ("user_annotation", "get_batch"),
        ("user_annotation", "Data loading"),
        ("python_function", "torch/utils/data/dataloader.py(701): __next__"),
    ],
)
def test_the_data_loader(cat: str, loader: str, tmp_path: Path) -> None:
    # GIVEN a loader that takes 2 ms per batch; in old traces its event is an operator
    program = Program()
    for _ in range(5):
        with program.within(loader, cat):
            program.work(2_000)
        program.operator(us=100)
    trace = program.trace(tmp_path)
    found = idle_of(trace)
    # THEN the loader is the cause, except for the time hidden by the kernel
    assert found.by_cause == {
        causes.DATA_LOADING: 4 * (2_000 - 100 - LATENCY) * US,
        causes.LAUNCH: 4 * (10 + CALL + LATENCY) * US,
    }
    finding = found.findings()[0]
    assert finding.code == "idle.data_loader"
    assert {each.event for each in finding.evidence} == {loader}
    assert judged(trace).verdict == "host-bound"


@pytest.mark.parametrize(
    "call", ["cudaMalloc", "cudaFree", "hipMalloc", "hipFree", "cuMemAlloc_v2"]
)
def test_memory_allocation(call: str, tmp_path: Path) -> None:
    program = Program()
    for _ in range(5):
        with program.within("aten::empty"):
            program.call(call, 300)
        program.operator(us=50)
    found = idle_of(program.trace(tmp_path))
    # THEN the call is the cause, and so is the launch after it, because the queue emptied within it
    gap = 300 - 50 - LATENCY + 10 + CALL + LATENCY
    assert found.by_cause == {causes.MEMORY_ALLOCATION: 4 * gap * US}
    assert (found.groups[0].operator, found.groups[0].call) == ("aten::empty", call)
    assert found.groups[0].calls == 4


def test_a_dependency_on_another_stream(tmp_path: Path) -> None:
    program = Program()
    for _ in range(10):
        program.launch("produce", 500, stream=7)
        program.launch("consume", 100, stream=20, after=7)
        program.free[7] = program.free[20]
    found = idle_of(program.trace(tmp_path))
    assert found.by_cause == {causes.DEPENDENCY: 10 * LATENCY * US}
    assert {gap.issued for gap in found.largest} == {"before"}
    assert {gap.culprit for gap in found.largest} == {"produce"}


def test_parts_of_a_graph_have_no_separate_launches(tmp_path: Path) -> None:
    program = Program()
    busy_start(program)
    for _ in range(10):
        program.graph([50, 50, 50, 50], gap=2)
    trace = program.trace(tmp_path)
    found = idle_of(trace)
    assert found.by_cause == {causes.GRAPH: 10 * 3 * 2 * US}
    assert found.findings() == []
    # THEN the launch delay only counts single launches
    launches = analyze(trace, ["launches"]).results["launches"].to_dict()
    assert launches["launched"] == 1
    assert launches["graphs"] == [
        {"call": "cudaGraphLaunch", "launches": 10, "device_events": 40, "device_us": 2000.0}
    ]


def test_a_graph_that_is_launched_late_is_launched_late(tmp_path: Path) -> None:
    # GIVEN graphs, each launched 100 µs after the previous one was finished
    program = Program()
    for _ in range(5):
        program.graph([20, 20], gap=2)
        program.work(142)
    found = idle_of(program.trace(tmp_path))
    between = 142 - 42 - LATENCY + CALL + LATENCY
    assert found.by_cause == {causes.LAUNCH: 4 * between * US, causes.GRAPH: 5 * 2 * US}


def test_several_causes_in_one_gap_are_distinguished(tmp_path: Path) -> None:
    # GIVEN a gap in which the host prepares, allocates, makes a needless wait, and loads data
    program = Program()
    program.operator(us=10)
    program.now += LATENCY + 10
    program.work(30)
    program.call("cudaMalloc", 100)
    program.work(20)
    program.call("cudaStreamSynchronize", 7)
    with program.within("enumerate(DataLoader)#x", "user_annotation"):
        program.work(60)
        program.call("cudaMalloc", 40)
    program.operator(us=10)
    found = idle_of(program.trace(tmp_path))
    assert found.by_cause == {
        causes.MEMORY_ALLOCATION: 140 * US,
        causes.LAUNCH: (30 + 20 + 10 + CALL + LATENCY) * US,
        causes.DATA_LOADING: 60 * US,
        causes.SYNCHRONISATION: 7 * US,
    }
    assert [(g.call, g.idle_ns, g.calls) for g in found.groups] == [
        ("cudaMalloc", 140 * US, 2),
        ("cudaStreamSynchronize", 7 * US, 1),
    ]


def test_only_the_thread_that_is_busy_when_the_gap_begins_is_blamed(tmp_path: Path) -> None:
    program = Program()
    program.operator("aten::mm", us=20)
    begin = program.now
    with program.within("enumerate(DataLoader)#x", "user_annotation"):
        program.work(1_000)
    program.thread, program.now = 200, begin
    program.operator("aten::sort", us=20, before=1_100)
    found = idle_of(program.trace(tmp_path))
    # THEN the operator is the cause, because nothing begins or ends in it for a long time
    assert found.by_cause == {
        causes.HOST_WORK: (1_100 - 20 - LATENCY) * US,
        causes.LAUNCH: (CALL + LATENCY) * US,
    }
    assert found.largest[0].culprit == "aten::sort"


def test_compiling_and_a_long_call_of_the_runtime(tmp_path: Path) -> None:
    program = Program()
    program.operator(us=10)
    with program.within("backend_compile (dynamo_timed)", "user_annotation"):
        program.work(4_000)
    program.operator(us=10)
    program.launch("kernel", 10, call_us=2_000)
    found = idle_of(program.trace(tmp_path))
    assert found.by_cause == {
        causes.FIRST_COMPILATION: (4_000 - 10 - LATENCY) * US,
        causes.RUNTIME_CALL: (2_000 - 10 - LATENCY) * US,
        causes.LAUNCH: (10 + CALL + LATENCY + LATENCY) * US,
    }


def test_overhead_of_the_profiler_and_of_loading_kernels(tmp_path: Path) -> None:
    program = Program()
    program.operator(us=10)
    for name in ("Activity Buffer Request", "Lazy Function Loading"):
        begin = program.now
        program.work(400)
        program.thread = 0
        program.event(name, "overhead", begin, program.now)
        program.thread = MAIN
        program.operator(us=10)
    found = idle_of(program.trace(tmp_path))
    assert found.by_cause == {
        causes.PROFILER: (400 - 10 - LATENCY) * US,
        causes.KERNEL_LOADING: (400 - 10 - LATENCY) * US,
        causes.LAUNCH: 2 * (10 + CALL + LATENCY) * US,
    }


def test_only_the_thread_that_launched_is_blamed(tmp_path: Path) -> None:
    # GIVEN tiny operators, and another thread that waits and allocates all the time
    program = Program()
    for _ in range(50):
        program.operator(us=2)
    begin, end = 1_000, program.now
    program.thread = 200
    program.event("cudaStreamSynchronize", "cuda_runtime", begin, end)
    program.event("aten::item", "cpu_op", begin, end)
    found = idle_of(program.trace(tmp_path))
    assert set(found.by_cause) == {causes.LAUNCH}
    assert found.groups == []


def test_a_thread_that_takes_over_is_not_blamed_for_the_one_before(tmp_path: Path) -> None:
    program = Program()
    program.call("cudaGetDevice", 1)  # the launch is not the first event of the trace
    program.operator(us=20)
    with program.within("enumerate(DataLoader)#Iter.__next__", "user_annotation"):
        program.work(1_000)
    program.thread = 200
    program.operator("aten::mul", us=20)
    found = idle_of(program.trace(tmp_path))
    assert found.by_cause == {
        causes.DATA_LOADING: (1_000 - 20 - LATENCY) * US,
        causes.LAUNCH: (10 + CALL + LATENCY) * US,
    }


def test_work_whose_launch_is_not_in_the_trace(tmp_path: Path) -> None:
    # GIVEN kernels that were launched before the window
    program = Program()
    for _ in range(5):
        program.launch("early", 10, known=False)
        program.now += 100
    trace = program.trace(tmp_path)
    found = idle_of(trace)
    assert set(found.by_cause) == {causes.NOT_TRACED}
    (finding,) = found.findings()
    assert (finding.code, finding.severity) == ("idle.unexplained", "high")
    assert found.patterns[0].launch_unknown == 4
    assert judged(trace).verdict == "cannot tell"
    assert isinstance(analyze(trace).results["launches"], Unavailable)


def test_launched_in_time_and_begun_much_later_waited_for_something_unseen(tmp_path: Path) -> None:
    program = Program()
    program.launch("first", 100)
    program.free[7] += 5_000
    program.launch("late", 100)
    found = idle_of(program.trace(tmp_path))
    assert found.by_cause == {causes.UNSEEN_WAIT: 5_000 * US}
    assert found.largest[0].issued == "before"


@pytest.mark.parametrize(
    ("pause", "cause"),
    [
        (10, causes.LAUNCH),
        (11, causes.QUEUED),
        (50, causes.QUEUED),
        (51, causes.UNSEEN_WAIT),
    ],
)
def test_how_long_after_its_launch_work_begins(pause: int, cause: str, tmp_path: Path) -> None:
    # GIVEN a kernel that was launched when the previous one ended, and began some µs later
    program = Program()
    program.launch("first", CALL)
    program.now = program.free[7] - CALL
    program.launch("late", 100)
    program.events[-1]["ts"] = program.now + pause
    found = idle_of(program.trace(tmp_path))
    assert found.by_cause == {cause: pause * US}


def test_times_too_far_apart_for_64_bits_are_not_split(tmp_path: Path) -> None:
    # GIVEN two kernels that are a century apart because of invalid times
    program = Program()
    program.launch("first", 100)
    idle_us = 3_000_000_000_000_000
    program.work(idle_us)
    program.launch("late", 100)
    trace = program.trace(tmp_path)
    found = checked(idle.analyze(trace), Idle)
    assert found.by_cause == {causes.NOT_TRACED: (idle_us - 100 + CALL) * US}
    assert found.idle_ns == (idle_us - 100 + CALL) * US
    # AND a page leaves out the later one, so it has no idle time
    assert (device_use(trace).span_ns, device_use(trace).idle_ns) == (100 * US, 0)


def test_without_device_events_there_are_no_results(tmp_path: Path) -> None:
    program = Program()
    with program.within("aten::mm"):
        program.work(100)
    analysis = analyze(program.trace(tmp_path))
    for name in ("device_use", "idle", "launches"):
        assert isinstance(analysis.results[name], Unavailable), name
        written = analysis.results[name].to_dict()
        assert written["unknown"]
        assert written["code"] == "no_device"
    # THEN the device's times are null, not 0
    use = analysis.results["device_use"].to_dict()
    assert use["events"] == 1
    assert use["busy_us"] is None
    assert use["idle_us"] is None


def transfers(tmp_path: Path, before_first_launch: bool) -> Trace:
    """Kernels 300 µs apart, each after a transfer of which the trace has no launch."""
    program = Program()
    if not before_first_launch:
        program.launch("gemm", 10)
    for _ in range(20):
        program.wait()
        program.work(300)
        # The transfer, which the host requests without a call of the runtime.
        program.free[7] = program.now + 2
        program.launch("transfer", 5, known=False, call_us=0)
        if not before_first_launch:
            with program.within("aten::mm"):
                program.launch("gemm", 10)
    if before_first_launch:
        program.launch("gemm", 10)
    return program.trace(tmp_path)


def test_the_next_known_launch_shows_that_the_host_was_late(tmp_path: Path) -> None:
    # GIVEN gaps that end with transfers, which never have a launch, before launched kernels
    trace = transfers(tmp_path, before_first_launch=False)
    found = idle_of(trace)
    assert causes.NOT_TRACED not in found.by_cause
    starved = sum(found.by_cause.get(cause, 0) for cause in causes.causes_of("host"))
    assert starved > 0.95 * found.idle_ns
    assert judged(trace).verdict == "host-bound"


def test_work_from_before_the_trace_does_not_ask_the_next_launch(tmp_path: Path) -> None:
    found = idle_of(transfers(tmp_path, before_first_launch=True))
    # THEN they are unknown: all this work was launched before the trace began
    assert found.by_cause[causes.NOT_TRACED] > 0.9 * found.idle_ns
