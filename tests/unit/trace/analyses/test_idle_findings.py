"""Findings about idle time: synthetic programs of one known kind each, and public traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import checked, unstated
from msgspec import structs
from planted import CALL, LATENCY, Program

from stagespan.pages.amounts import in_words
from stagespan.pages.result import Evidence, Finding, without_repeats
from stagespan.trace import Trace, device_use, read_trace
from stagespan.trace.analyses import idle
from stagespan.trace.analyses.idle import Idle
from stagespan.trace.analyses.launches import Launches
from stagespan.trace.analyses.verdict import Verdict
from stagespan.trace.analysis import analyze
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.device import COMPUTE, COPY, NOT_DEVICE, device_work

US, MS = 1_000, 1_000_000


def idle_of(trace: Trace) -> Idle:
    found = checked(idle.analyze(trace), Idle)
    assert sum(found.by_cause.values()) == found.idle_ns == device_use(trace).idle_ns
    for finding in found.findings():
        assert finding.evidence
        assert finding.code.startswith("idle.")
    return found


def codes(found: Idle) -> list[str]:
    return [finding.code for finding in found.findings()]


# Which gaps belong to which cause


def test_kernels_launched_before_the_trace_were_queued(tmp_path: Path) -> None:
    program = Program()
    for _ in range(20):
        program.launch("early", 100, known=False)
        program.free[7] += 12
    program.launch("late", 100)
    found = idle_of(program.trace(tmp_path))
    assert found.by_cause == {causes.QUEUED: 20 * 12 * US}
    assert codes(found) == ["idle.queued"]


def test_without_launches_in_the_trace_queued_work_is_unknown(tmp_path: Path) -> None:
    program = Program()
    for _ in range(20):
        program.launch("early", 100, known=False)
        program.free[7] += 8
    # THEN they are unknown: the host may have launched late
    assert set(idle_of(program.trace(tmp_path)).by_cause) == {causes.NOT_TRACED}


def test_gaps_of_one_length_are_not_described_as_a_range(tmp_path: Path) -> None:
    program = Program()
    for _ in range(20):
        program.launch("early", 100, known=False)
        program.free[7] += 8
    (finding,) = idle_of(program.trace(tmp_path)).findings()
    assert f"{in_words(19 * 8 * US, 'ns')} of this are 19 gaps of 8.00 µs before early" in (
        finding.text
    )


def test_a_host_without_any_event_is_not_reported_to_do_other_work(tmp_path: Path) -> None:
    # GIVEN 20 ms in which the trace has no event of the host, and 20 ms with a frame of Python
    program = Program()
    program.operator(us=20)
    program.work(20_000)
    program.operator(us=20)
    with program.within("train.py(3): prepare", "python_function"):
        program.work(20_000)
    program.operator(us=20)
    found = idle_of(program.trace(tmp_path))
    one = (20_000 - 20 - LATENCY) * US
    assert found.by_cause[causes.HOST_UNSEEN] == one
    assert found.by_cause[causes.HOST_WORK] == one
    assert set(codes(found)) == {"idle.host_unseen", "idle.host_work"}
    unseen = next(f for f in found.findings() if f.code == "idle.host_unseen")
    assert unseen.evidence[0].event == "no event of the host"


def test_a_call_that_contains_operators_is_not_a_long_runtime_call(tmp_path: Path) -> None:
    program = Program()
    program.operator(us=20)
    with program.within("service::run", "cuda_runtime"):
        program.work(3_000)
        with program.within("aten::cat"):
            program.work(5)
        with program.within("aten::cat"):
            program.work(5)
        program.operator(us=20)
    found = idle_of(program.trace(tmp_path))
    assert causes.RUNTIME_CALL not in found.by_cause
    assert found.by_cause[causes.HOST_WORK] > 2_900 * US


# Findings


@pytest.mark.parametrize("graph", [True, False])
def test_a_graph_that_begins_late_may_have_unrecorded_parts(graph: bool, tmp_path: Path) -> None:
    # GIVEN six times a graph, or a kernel, that was launched in time and begins 5 ms late
    program = Program()
    for _ in range(6):
        program.launch("first", 400)
        program.free[7] += 5_000
        if graph:
            program.graph([100, 100], gap=0)
        else:
            program.launch("late", 200)
        program.wait()
    found = idle_of(program.trace(tmp_path))
    (pattern,) = [each for each in found.patterns if each.cause == causes.UNSEEN_WAIT]
    assert (pattern.gaps, pattern.idle_ns) == (6, 6 * 5_000 * US)
    assert pattern.graph_call == ("cudaGraphLaunch" if graph else None)
    sentence = found.findings()[0].text
    assert ("the first that was recorded of a device graph (cudaGraphLaunch)" in sentence) == graph
    assert ("a part of that graph that the profiler does not record" in sentence) == graph


def test_idle_time_without_a_cause_is_reported_with_known_facts(tmp_path: Path) -> None:
    # GIVEN six steps, in each of which a kernel that was launched in time begins 5 ms late, while
    # the host is blocked in a copy
    program = Program()
    for step in range(6):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            program.launch("first", 400)
            program.free[7] += 5_000
            program.launch("late", 400)
            with program.within("## exchange ##", "user_annotation"), program.within("aten::copy_"):
                program.wait("cudaMemcpyAsync")
        program.work(50)
    found = idle_of(program.trace(tmp_path))
    assert codes(found)[0] == "idle.unseen_wait"
    (pattern,) = [each for each in found.patterns if each.cause == causes.UNSEEN_WAIT]
    assert (pattern.gaps, pattern.idle_ns, pattern.next) == (6, 6 * 5 * MS, "late")
    assert (pattern.launched_before, pattern.launched_later, pattern.launch_unknown) == (6, 0, 0)
    assert pattern.one_a_step
    assert (pattern.host_call, pattern.host_gaps) == ("cudaMemcpyAsync", 6)
    assert (pattern.host_operator, pattern.host_annotation) == ("aten::copy_", "## exchange ##")
    assert found.to_dict()["patterns"][0]["every_us"] == pattern.every_ns / 1000


def test_idle_time_with_many_small_causes_has_one_finding(tmp_path: Path) -> None:
    # GIVEN 2 % of gaps in a queue, and 2 % at a wait
    program = Program()
    for _ in range(20):
        program.launch("kernel", 1_000)
        program.free[7] += 28
    for _ in range(4):
        program.operator(us=1_000)
        program.wait(tail=110)
    found = idle_of(program.trace(tmp_path))
    assert max(found.by_cause.values()) < 0.03 * found.span_ns < found.idle_ns
    assert codes(found) == ["idle.several"]
    (finding,) = found.findings()
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (sum(found.by_cause.values()), True)
    assert len(found.findings()[0].evidence) >= 2


def warm_up(program: Program) -> None:
    program.operator("aten::relu", us=20)
    with program.within("aten::conv2d"):
        program.call("cudaHostAlloc", 2)
        program.call("cudaFree", 30_000)
        program.call("cudaFree", 20_000)
        program.launch("conv", 20)


def test_a_first_call_is_reported_as_the_start_not_as_allocation(tmp_path: Path) -> None:
    # GIVEN a library that frees for 50 ms in the first call of an operator, and ten quick calls
    program = Program()
    warm_up(program)
    for _ in range(10):
        with program.within("aten::conv2d"):
            program.launch("conv", 20)
    found = idle_of(program.trace(tmp_path))
    assert codes(found)[0] == "idle.start_up"
    assert "idle.memory_allocation" not in codes(found)
    assert found.start is not None
    assert [each.label for each in found.start.places] == ["the first aten::conv2d"]
    free = found.findings()[0].evidence[0]
    # The first kernel ran for that long at the same time.
    hidden = 20 + LATENCY - 2
    assert (free.event, free.figure) == ("calls of cudaFree", 50 * MS - hidden * US)


@pytest.mark.parametrize("several", [False, True])
def test_what_a_program_starts_in_is_told_with_its_own_time(several: bool, tmp_path: Path) -> None:
    # GIVEN operators that take long in their first call: one 30 ms, then 20 ms and perhaps 10 ms
    names = {"aten::conv2d": 30_000, "aten::gelu": 20_000} | (
        {"aten::mm": 10_000} if several else {}
    )
    program = Program()
    program.operator("aten::relu", us=20)
    for call in range(10):
        for name, us in names.items():
            with program.within(name):
                program.call("cudaMemGetInfo", 2 if call else us)
                program.launch(name, 20)
    finding = idle_of(program.trace(tmp_path)).findings()[0]
    assert finding.code == "idle.start_up"
    # THEN the time with a name is that of the operator that has it
    where, numbers = finding.sentence, finding.numbers
    assert numbers["in_place_ns"] == pytest.approx(30 * MS, rel=0.01)
    assert numbers["in_others_ns"] == pytest.approx((30 if several else 20) * MS, rel=0.01)
    assert f"{in_words(numbers['in_place_ns'], 'ns')} of it in the first aten::conv2d and" in where
    rest = in_words(numbers["in_others_ns"], "ns")
    assert f"{rest} in {'2 others' if several else 'the first aten::gelu'}:" in where
    assert unstated([finding]) == []


@pytest.mark.parametrize("mark", ["warmup", "[model|0|warmup|forward]", "Warm-up of the engine"])
def test_an_annotated_warm_up_is_recognised(mark: str, tmp_path: Path) -> None:
    program = Program()
    program.operator("aten::relu", us=20)
    with program.within(mark, "user_annotation"):
        warm_up(program)
    found = idle_of(program.trace(tmp_path))
    assert codes(found)[0] == "idle.start_up"
    assert found.start is not None
    assert [each.label for each in found.start.places] == [mark]


def test_an_allocator_that_frees_everything(tmp_path: Path) -> None:
    program = Program()
    for _ in range(100):
        with program.within("aten::conv2d"):
            program.call("hipMalloc", 100)
            program.launch("conv", 20)
            program.call("hipFree", 200)
    found = idle_of(program.trace(tmp_path))
    (finding,) = [f for f in found.findings() if f.code == "idle.memory_allocation"]
    assert (finding.numbers["allocations"], finding.numbers["releases"]) == (100, 100)
    assert found.start is None
    assert finding.evidence[0].event == "hipFree"
    # Within the gap: from the kernel's end, and from the next call until the next kernel begins.
    assert finding.evidence[0].figure == (200 - 20 - LATENCY + LATENCY) * US


def test_a_wait_shows_the_time_of_the_call(tmp_path: Path) -> None:
    program = Program()
    for _ in range(10):
        with program.within("train.py(3): step", "python_function"):
            program.operator(us=100)
            program.wait(tail=2)
            program.work(300)
    found = idle_of(program.trace(tmp_path))
    (group,) = found.groups
    assert group.in_call_ns == 9 * 2 * US
    assert group.idle_ns >= group.in_call_ns + 9 * (10 + CALL + LATENCY) * US


def test_the_same_lost_time_is_one_finding() -> None:
    launch = Finding(
        "medium",
        "Launch.",
        (Evidence("a", 1, 2.0, "ns"),),
        "idle.launch",
        covers=("stages.launch",),
    )
    stage = Finding("high", "Stage.", (Evidence("b", 1, 2.0, "ns"),), "stages.launch")
    other = Finding("low", "Other.", (Evidence("c", 1, 2.0, "ns"),), "memory.growth")
    bare = Finding("low", "Without a code.", (Evidence("d", 1, 2.0, "ns"),))
    found = without_repeats([launch, stage, other, bare, bare])
    assert [(f.code, f.severity) for f in found[:2]] == [
        ("idle.launch", "high"),
        ("memory.growth", "low"),
    ]
    assert found[2:] == [bare, bare]
    assert [each.event for each in found[0].evidence] == ["a", "b"]
    assert without_repeats([stage, other, bare]) == [stage, other, bare]
    # WHEN several findings cover it THEN it is joined to the first one
    further = structs.replace(other, covers=("stages.launch",))
    assert [f.severity for f in without_repeats([stage, launch, further])] == ["high", "low"]
    # WHEN the finding that covers it is itself covered THEN it stays
    covering = structs.replace(other, covers=("idle.launch",))
    assert [f.code for f in without_repeats([launch, stage, covering])] == [
        "stages.launch",
        "memory.growth",
    ]


# Causes of one kind, and the profiler's own time


@pytest.mark.parametrize("pause", [150, 250])
def test_slow_launches_and_other_work_between_them_are_one_finding(
    pause: int, tmp_path: Path
) -> None:
    # GIVEN a program that launches a kernel after 60 µs of operators or after `pause` of Python
    program = Program()
    for _ in range(40):
        with program.within("train.py(3): step", "python_function"):
            program.operator("aten::add", us=150, before=160)
            program.work(pause)
            program.operator("aten::mul", us=100, before=10)
        program.wait()
    found = idle_of(program.trace(tmp_path))
    (finding,) = [f for f in found.findings() if f.code in ("idle.launch", "idle.host_work")]
    # In the steps or the trace, the first launch counts too.
    first = (CALL + LATENCY) * US
    pace = [cause for cause, row in causes.ROWS.items() if row.is_pace]
    total = sum(found.by_cause.get(cause, 0) for cause in pace) + first
    assert (finding.code, finding.numbers["time_ns"]) == ("idle.launch", total)
    assert finding.gain is not None
    assert finding.gain.time_ns == total
    if pause > 200:
        assert finding.numbers["launch_ns"] == found.by_cause[causes.LAUNCH] + first
        assert finding.numbers["host_work_ns"] == found.by_cause[causes.HOST_WORK] > 0


@pytest.mark.parametrize("launches", [30, 3])
def test_slow_launches_within_a_compiled_region_name_it(launches: int, tmp_path: Path) -> None:
    program = Program()
    for _ in range(2):
        with program.within("Torch-Compiled Region: 0/0"):
            for _ in range(launches):
                program.operator("aten::mm", us=10, before=90)
    for _ in range(15):
        program.operator("aten::add", us=10, before=90)
    found = idle_of(program.trace(tmp_path))
    (finding,) = [each for each in found.findings() if each.code == "idle.launch"]
    if launches == 30:
        # Without the first launch, which ends no gap.
        assert (
            finding.numbers["region_ns"] == (2 * 30 - 1) * (90 + CALL + LATENCY - 10 - LATENCY) * US
        )
        assert "of this is in 2 calls of Torch-Compiled Region: 0/0." in finding.text
    else:
        assert "region_ns" not in finding.numbers


def test_one_long_gap_is_not_a_part_of_slow_launches(tmp_path: Path) -> None:
    program = Program()
    for number in range(40):
        with program.within("train.py(3): step", "python_function"):
            program.operator("aten::add", us=10, before=90)
        if number == 20:
            with program.within("train.py(9): save", "python_function"):
                program.work(5_000)
    # WHEN the idle time is analysed THEN each has its own finding
    found = idle_of(program.trace(tmp_path))
    assert set(codes(found)) == {"idle.launch", "idle.host_work"}


def buffers(program: Program, us: int) -> None:
    """The profiler takes time, within whatever the host does."""
    begin = program.now
    program.event("Activity Buffer Request", "overhead", begin, begin + us)
    program.work(us)


@pytest.mark.parametrize("where", ["before", "between", "within a call"])
def test_the_time_of_the_profiler_is_a_part_of_its_own(where: str, tmp_path: Path) -> None:
    program = Program()
    with program.within("ProfilerStep#1", "user_annotation"):
        if where == "before":
            buffers(program, 400)
        program.operator(us=300)
        program.wait()
        if where == "between":
            buffers(program, 400)
        if where == "within a call":
            begin = program.now + 1
            program.event("Activity Buffer Request", "overhead", begin, begin + 400)
            program.launch("gemm", 300, call_us=402)
        program.operator(us=300)
        program.wait()
    trace = program.trace(tmp_path)
    results = analyze(trace, ["verdict", "idle", "steps"])
    judged = checked(results.results["verdict"], Verdict)
    # THEN this time is a part of its own, and the device is not idle because of the host
    assert judged.parts_ns["profiler"] == 400 * US
    assert judged.times_ns["profiler"] == 400 * US
    assert judged.verdict == "device-busy"
    # AND the findings do not give advice on it
    assert {finding.code for finding in results.findings()} <= {"idle.profiler"}


def test_findings_about_the_host_estimate_what_recorded_stacks_cost(tmp_path: Path) -> None:
    # GIVEN launches 100 µs apart, between which 100 short calls of Python were recorded, each for
    # 0.5 µs, and 0.5 µs apart
    def run(stacks: bool) -> Finding:
        program = Program()
        for _ in range(30):
            program.operator(us=10, before=0)
            for number in range(100):
                begin = program.now + number
                if stacks:
                    program.event("f.py(1): g", "python_function", begin, begin + 0.5)
            program.work(100)
        (finding,) = idle_of(program.trace(tmp_path)).findings()
        return finding

    with_stacks, without = run(True), run(False)
    # THEN the one of the trace with stacks has an estimate: 0.5 µs for each start and each end
    took = with_stacks.numbers["recording_ns"]
    assert "recording_ns" not in without.numbers
    assert "calls per ms)" in with_stacks.text
    assert took == pytest.approx(29 * (100 - 10) * US, rel=0.15)
    assert took <= with_stacks.numbers["time_ns"]


# Devices that are not GPUs


def accelerator(tmp_path: Path, **names: str) -> Trace:
    """A host that launches three pieces of work on a device with its own categories."""
    base: dict[str, Any] = {"ph": "X", "pid": 1, "tid": 1, "cat": "mtia_runtime", "dur": 5}
    work: dict[str, Any] = {
        "ph": "X",
        "pid": 17,
        "tid": 3536,
        "cat": names.get("cat", "npx_events"),
    }
    stream = {"stream": 101} if "thread" not in names else {}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 17, "tid": 0, "args": {"name": "MTIA 17"}},
        {"ph": "M", "name": "thread_name", "pid": 17, "tid": 3536,
         "args": {"name": names.get("thread", "lane")}},
        {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 90},
        base | {"name": "runFunction", "ts": 10, "args": {"correlation": 1}},
        base | {"name": "memcpyHtoDAsync", "ts": 20, "args": {"correlation": 2}},
        work | {"name": "pe_exe", "ts": 30, "dur": 100, "args": {"correlation": 1, **stream}},
        work | {"name": "dma_request", "ts": 140, "dur": 20, "args": {"correlation": 2, **stream}},
        work | {"name": "event_wait", "ts": 160, "dur": 40, "args": stream},
        # On the device's process, but on no stream: the queue that feeds it.
        base | {"name": "synchronize", "pid": 17, "tid": 3534, "ts": 300, "args": {"device": 17}},
    ]  # fmt: skip
    path = tmp_path / "accelerator.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return read_trace(path)


@pytest.mark.parametrize(
    "names",
    [{"cat": "mtia_ccp_events"}, {"cat": "npx_events"}, {"thread": "Stream 101"},
     {"thread": "stream 7", "cat": ""}],
)  # fmt: skip
def test_a_process_with_streams_is_a_device(names: dict[str, str], tmp_path: Path) -> None:
    # GIVEN work with a stream as argument, or on a thread that is named like one
    trace = accelerator(tmp_path, **names)
    work, use = device_work(trace), device_use(trace)
    assert [trace.names[int(code)] for code in trace.events.name[work.kernels]] == ["pe_exe"]
    # THEN the wait of a stream is not work
    assert work.kind[work.rows].tolist() == [COMPUTE, COPY]
    assert (use.span_ns, use.busy_ns, use.copy_ns) == (130 * US, 120 * US, 20 * US)
    assert use.without_launch == 0
    assert isinstance(analyze(trace, ["launches"]).results["launches"], Launches)


@pytest.mark.parametrize("name", ["EVENT_WAIT", "stream_wait_event", "notify_wait", "Wait"])
@pytest.mark.parametrize("cat", ["kernel", "npx_events"])
def test_waits_of_a_stream_are_idle_time_with_a_reason(name: str, cat: str, tmp_path: Path) -> None:
    # GIVEN work of 100 us that follows waits of 300 us, and no launches
    base: dict[str, Any] = {"ph": "X", "cat": cat, "pid": 3, "tid": 7}
    args = {"args": {"stream": 7, "device": 0}}
    events = []
    for number in range(20):
        begin = 400 * number
        events += [
            base | args | {"name": name, "ts": begin, "dur": 300},
            base | args | {"name": "convolve", "ts": begin + 300, "dur": 100},
        ]
    path = tmp_path / "waits.json"
    path.write_text(json.dumps(events))
    trace = read_trace(path)
    assert device_use(trace).busy_ns == 20 * 100 * US
    found = analyze(trace)
    parts = found.results["verdict"].to_dict()
    # THEN the verdict knows why the device was idle between its work
    assert parts["verdict"] == "wait-bound"
    assert parts["parts_us"]["dependency"] == 19 * 300


def test_kernels_named_after_waits_are_work(tmp_path: Path) -> None:
    base: dict[str, Any] = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 10}
    names = ["void wait_for_values<float>(float*)", "triton_poi_fused_await", "event_histogram"]
    path = tmp_path / "names.json"
    path.write_text(json.dumps([base | {"name": n, "ts": 20 * i} for i, n in enumerate(names)]))
    assert device_work(read_trace(path)).kind.tolist() == [COMPUTE] * 3


def test_tracks_beside_the_streams_of_a_device_are_its_work(tmp_path: Path) -> None:
    base: dict[str, Any] = {"ph": "X", "cat": "mtia_ccp_events", "pid": 17}
    events = [
        base | {"name": "pe_exe", "tid": 3, "ts": 100, "dur": 50, "args": {"stream": 3}},
        base | {"name": "dma_request", "tid": 801, "ts": 200, "dur": 20},
        base | {"name": "memory", "tid": 802, "ts": 250, "dur": 20, "cat": "mtia_ccp_sync"},
        base | {"name": "note", "tid": 802, "ts": 280, "dur": 20, "cat": ""},
    ]
    path = tmp_path / "tracks.json"
    path.write_text(json.dumps(events))
    work = device_work(read_trace(path))
    # THEN that of the engine is included, and events of another category are not
    assert work.kind.tolist() == [COMPUTE, COPY, NOT_DEVICE, NOT_DEVICE]


def test_events_of_the_host_with_a_stream_are_not_a_device(tmp_path: Path) -> None:
    base: dict[str, Any] = {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    args = {"args": {"stream": 7}}
    events = [
        base | args | {"name": "record_param_comms", "cat": "cpu_op"},
        base | args | {"name": "step", "cat": "gpu_user_annotation", "pid": 0},
        base | args | {"name": "Stream Wait Event", "cat": "cuda_sync", "pid": 0},
        base | args | {"name": "xpuWait", "cat": "xpu_sync", "pid": 0},
        base | args | {"name": "call", "cat": "xpu_runtime", "pid": 0},
        base | args | {"name": "note", "cat": "mine"},
    ]
    path = tmp_path / "host.json"
    path.write_text(json.dumps(events))
    assert not device_work(read_trace(path)).kind.any()


# Public traces


def test_mtia(real: Callable[[str], Trace]) -> None:
    # GIVEN an inference on MTIA: kernels, DMA and waits on twelve streams
    trace = real("mtia_inference")
    use = device_use(trace)
    assert use.device_events == {"mtia_ccp_events": 974}
    assert (use.busy_ns, use.span_ns) == (421_661_824, 442_646_618)
    work = device_work(trace)
    name = np.array(trace.names)[trace.events.name[work.rows]]
    time = trace.events.dur_ns[work.rows]
    sums = {each: int(time[name == each].sum()) for each in set(name.tolist())}
    assert (sums["pe_exe"], sums["dma_request"]) == (107_685_728, 45_371_190)
    assert "event_wait" not in sums
    findings = analyze(trace).findings()
    assert not [f for f in findings if f.code.startswith("host.")]


def test_a_host_blocked_in_one_copy(real: Callable[[str], Trace]) -> None:
    # GIVEN a decoding step whose first kernels wait for the previous step, which is not in the
    # trace
    found = idle_of(real("rocm_mi300_sglang_decode"))
    # THEN the gap has a pattern with what is known: the copy, the line, and the early launch
    pattern = found.patterns[0]
    assert (pattern.host_call, pattern.host_operator) == ("hipMemcpyWithStream", "aten::copy_")
    assert 463.0 * MS < (pattern.host_call_ns or 0) < 463.1 * MS
    assert pattern.stream_wait == "hipStreamWaitEvent"
    assert "cuda_graph_runner.py(276)" in (pattern.line or "")
    # AND no finding is about it, because it is earlier work
    assert all(each.severity == "low" for each in found.findings())


def test_five_equal_gaps(real: Callable[[str], Trace]) -> None:
    # GIVEN a training with 63 to 65 ms of idle time before each backward graph
    found = idle_of(real("cuda_a100_cudagraph_triton_nccl"))
    pattern = found.patterns[0]
    # THEN they are one pattern: once per step, launched early, the host blocked in the exchange
    assert (pattern.next, pattern.gaps) == ("Memset (Device)", 5)
    assert pattern.one_a_step
    assert (pattern.least_ns, pattern.most_ns) == (63_324 * US, 64_652 * US)
    assert (pattern.launched_before, pattern.launched_later, pattern.launch_unknown) == (5, 0, 0)
    assert (pattern.host_call, pattern.host_gaps) == ("cudaMemcpyAsync", 4)
    assert pattern.host_annotation == "## sparse_data_dist ##"
    assert {"idle.unseen_wait", "idle.graph"} <= set(codes(found))


def test_the_event_that_took_the_time_is_named(real: Callable[[str], Trace]) -> None:
    # GIVEN two benchmarks whose warm-up contains the first call of cuDNN
    for name, least in (("cuda_a100_simple_add", 7.98e9), ("cuda_a100_alexnet", 6.5e9)):
        found = idle_of(real(name))
        assert codes(found) == ["idle.start_up"], name
        first = found.findings()[0].evidence[0]
        assert first.event in ("cudaFree", "calls of cudaFree"), name
        assert least < (first.figure or 0) < 1.02 * least, name


def test_no_event_of_the_host_for_18_ms(real: Callable[[str], Trace]) -> None:
    found = idle_of(real("cuda_a100_sync_multi_stream"))
    assert codes(found) == ["idle.host_unseen", "idle.preparation"]
    assert found.by_cause[causes.HOST_UNSEEN] == 18_446 * US


def test_gaps_of_a_microsecond_between_kernels_from_before(real: Callable[[str], Trace]) -> None:
    # GIVEN a trace with 508 gaps between kernels that were launched before it began
    found = idle_of(real("cuda_h100_qwen"))
    assert causes.NOT_TRACED not in found.by_cause
    assert codes(found) == ["idle.queued"]


def test_a_stage_and_the_whole_trace_have_one_common_finding(real: Callable[[str], Trace]) -> None:
    findings = analyze(real("cuda_b200_vllm_eager"), ["idle", "stages"]).findings()
    assert [f.code for f in findings if "launch" in f.code] == ["idle.launch"]
    assert any("execute_context" in each.event for each in findings[0].evidence)


@pytest.mark.parametrize("mark", ["ProfilerStep#{}", "generate_batch_{}"])
def test_the_mark_of_a_step_does_not_show_what_the_host_did(mark: str, tmp_path: Path) -> None:
    # GIVEN steps in which the host does 5 ms of something without an event
    program = Program()
    for step in range(4):
        with program.within(mark.format(step), "user_annotation"):
            for _ in range(2):
                program.operator(us=100)
                program.wait()
                program.work(5_000)
            program.operator(us=100)
    found = idle_of(program.trace(tmp_path))
    # THEN the trace does not show it, unless an annotation of the program's own is around it
    unseen, seen = (
        found.by_cause.get(cause, 0) for cause in (causes.HOST_UNSEEN, causes.HOST_WORK)
    )
    if mark.startswith("Profiler"):
        assert unseen == pytest.approx(40 * MS, rel=0.01)
        assert seen == 0
    else:
        assert seen == pytest.approx(40 * MS, rel=0.01)
        assert unseen == 0


def test_time_after_a_wait_is_not_told_as_time_of_waiting(tmp_path: Path) -> None:
    # GIVEN a host that waits for a few us, and then takes 300 to the next launch
    program = Program()
    for _ in range(10):
        program.operator(us=500)
        with program.within("aten::item"):
            program.wait(tail=4)
        with program.within("aten::mm"):
            program.work(150)
            with program.within("aten::resize_"):
                program.work(150)
            program.launch("gemm", 500)
    finding = next(
        each
        for each in idle_of(program.trace(tmp_path)).findings()
        if each.code == "idle.synchronisation"
    )
    assert finding.numbers["in_call_ns"] < finding.numbers["time_ns"] / 10
    assert "the next work was launched only after a wait for the device" in finding.sentence
    assert "waited" not in finding.sentence
