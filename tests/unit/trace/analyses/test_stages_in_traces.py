"""Stages of synthetic programs: host and device time, self and total, exact to the nanosecond."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from commands import checked
from planted import CALL, LATENCY, Program
from real_traces import read_real

from stagespan.pages.amounts import in_words
from stagespan.pages.result import Table, Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import stages
from stagespan.trace.analyses.kernel_rows import KernelRows, kernel_rows
from stagespan.trace.analyses.stages import Stage, Stages
from stagespan.trace.analysis import analyze
from stagespan.trace.compare import TraceComparison, compare

US = 1_000
NOTE = "user_annotation"


def stages_of(trace: Trace) -> Stages:
    found = checked(stages.analyze(trace), Stages)
    if found.on_device:
        own = sum(stage.device_self_ns or 0 for stage in found.stages)
        assert own + found.outside_ns == found.device_ns
    return found


def by_path(found: Stages) -> dict[str, Stage]:
    return {"/".join(stage.path): stage for stage in found.stages}


def test_own_and_nested_time(tmp_path: Path) -> None:
    program = Program()
    for number in range(2):
        with program.within(f"ProfilerStep#{number}", NOTE):
            with program.within("outer", NOTE):
                program.operator(us=40)
                with program.within("inner", NOTE):
                    program.operator(us=100 + 10 * number)
                    program.operator(us=7)
                program.work(9)
            program.operator(us=3)
    found = stages_of(program.trace(tmp_path))
    # THEN every figure is as computed by hand: an operator takes the host 10 µs and a call
    inner, outer = by_path(found)["outer/inner"], by_path(found)["outer"]
    one = 10 + CALL
    assert (outer.calls, outer.host_ns, outer.host_self_ns) == (
        2, 2 * (3 * one + 9) * US, 2 * (one + 9) * US,
    )  # fmt: skip
    assert (inner.host_ns, inner.host_self_ns) == (2 * 2 * one * US, 2 * 2 * one * US)
    assert (outer.device_ns, outer.device_self_ns) == ((80 + 210 + 14) * US, 80 * US)
    assert (inner.device_ns, inner.launched, inner.launched_self) == (224 * US, 4, 4)
    assert (outer.launched, outer.launched_self) == (6, 2)
    assert (inner.steps, inner.step_host_ns, inner.step_device_ns) == (2, 2 * one * US, 112 * US)
    assert outer.step_device_ns == 152 * US
    assert (found.outside, found.outside_ns) == (2, 6 * US)
    assert [stage.path for stage in found.stages] == [("outer",), ("outer", "inner")]
    assert found.findings() == []


def test_idle_time_within_stages(tmp_path: Path) -> None:
    # GIVEN a stage of 30 µs that contains one of 10 µs, while the device is still idle
    program = Program()
    with program.within("outer", NOTE):
        program.work(20)
        with program.within("inner", NOTE):
            program.work(10)
    program.operator()
    found = by_path(stages_of(program.trace(tmp_path)))
    assert found["outer"].idle_self_ns == 20 * US
    assert found["outer/inner"].idle_self_ns == 10 * US


def test_idle_time_of_stages_that_cross(tmp_path: Path) -> None:
    program = Program()
    for name, begin, end in (("a", 0, 1_000), ("b", 500, 1_500), ("c", 900, 1_600)):
        program.event(name, NOTE, begin, end)
    for name, begin, end in (("d", 3_000, 3_100), ("e", 3_010, 3_050), ("f", 3_040, 3_070)):
        program.event(name, NOTE, begin, end)
    for at in (0, 1_200, 1_990, 3_060):
        program.event("gemm", "kernel", at, at + 10, device=0, stream=7)
    found = by_path(stages_of(program.trace(tmp_path)))
    assert {path: stage.idle_self_ns for path, stage in found.items()} == {
        "a": 490 * US, "b": 400 * US, "c": 690 * US,
        "d": 40 * US, "d/e": 30 * US, "d/f": 20 * US,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "is_stage"),
    [
        ("## Call CompiledFxGraph abc ##", False),
        ("nccl:all_reduce", False),
        ("gloo:all_reduce", False),
        ("Iteration#7", False),
        ("ProfilerStep#7", False),
        ("_compile.inner (dynamo_timed)", False),
        ("## forward ##", True),
        ("Optimizer.step#SGD.step", True),
    ],
)
@pytest.mark.parametrize("cat", [NOTE, "cpu_op"])
def test_stages_are_those_of_the_kernels(
    name: str, is_stage: bool, cat: str, tmp_path: Path
) -> None:
    # GIVEN a stage around an annotation, which may be the framework's own, around a kernel
    program = Program()
    with program.within("forward", NOTE):
        program.operator(us=10)
        with program.within(name, cat):
            program.operator(us=30)
    trace = program.trace(tmp_path)
    found = {s.path[-1]: s.device_self_ns for s in stages_of(trace).stages if s.device_self_ns}
    by_stage = analyze(trace, ["kernels"]).results["kernels"].to_dict()["by_stage"]
    # THEN both tables agree, and annotations of the framework are not stages
    is_stage &= cat == NOTE or "#" in name
    inner = {name: 30 * US} if is_stage else {}
    assert found == {"forward": (10 if is_stage else 40) * US} | inner
    assert {each["stage"]: each["time_us"] * US for each in by_stage} == found


def test_backward_counts_to_the_stage_that_called_it(tmp_path: Path) -> None:
    program = Program()
    with program.within("backward", NOTE):
        begin = program.now
        program.work(100)
    program.now, program.thread = begin + 5, 200
    program.operator("autograd::engine::evaluate_function: MmBackward0", us=30)
    program.now, program.thread = begin + 50, 300
    program.operator("aten::add", us=20)
    found = stages_of(program.trace(tmp_path))
    (stage,) = found.stages
    assert (stage.device_ns, stage.launched, found.by_time) == (30 * US, 1, 1)
    assert (found.outside, found.outside_ns) == (1, 20 * US)
    assert f" {found.by_time:,} were" in found.tables()[0].note


def test_stages_and_kernels_agree_on_the_backward_pass(tmp_path: Path) -> None:
    # GIVEN a stage that waits while autograd's thread launches, partly in an annotation of its own
    program = Program()
    with program.within("backward", NOTE):
        begin = program.now
        program.work(200)
    program.now, program.thread = begin + 5, 200
    program.operator("autograd::engine::evaluate_function: MmBackward0", us=30)
    with program.within("all_to_all", NOTE):
        program.operator("MmBackward0", us=20)
    trace = program.trace(tmp_path)
    found = {s.path[-1]: s.device_self_ns for s in stages_of(trace).stages}
    by_stage = analyze(trace, ["kernels"]).results["kernels"].to_dict()["by_stage"]
    assert found == {"backward": 30 * US, "all_to_all": 20 * US}
    assert {each["stage"]: each["time_us"] * US for each in by_stage} == found


def test_spans_of_stagespan_contain_annotations(tmp_path: Path) -> None:
    program = Program()
    begin = program.now
    program.work(2)
    with program.within("denoise", NOTE):
        program.operator(us=40)
    program.operator(us=5)
    program.work(2)
    program.event("dit", NOTE, begin, program.now)
    program.events[-1].update(pid="stagespan", tid=1)
    program.operator(us=1)
    found = by_path(stages_of(program.trace(tmp_path)))
    assert found.keys() == {"dit", "dit/denoise"}
    assert (found["dit"].device_ns, found["dit"].device_self_ns) == (45 * US, 5 * US)


def test_spans_of_several_threads_are_matched_by_time(tmp_path: Path) -> None:
    # GIVEN spans of two threads with other ids than the profiler's; sometimes both are open
    program = Program()
    begin = program.now
    program.operator(us=10)
    middle = program.now
    program.operator(us=20)
    program.event("first", NOTE, begin, program.now)
    program.event("second", NOTE, middle, program.now)
    for entry, number in zip(program.events[-2:], (1, 2), strict=True):
        entry.update(pid="stagespan", tid=number)
    trace = program.trace(tmp_path)
    found = stages_of(trace)
    assert by_path(found)["first"].device_ns == 10 * US
    assert (found.outside, found.outside_ns) == (1, 20 * US)
    by_stage = analyze(trace, ["kernels"]).results["kernels"].to_dict()["by_stage"]
    assert {each["stage"]: each["time_us"] for each in by_stage} == {"first": 10, None: 20}


def span(program: Program, name: str, begin: float, thread: int | None = None) -> None:
    """Add a span that ends now, as stagespan writes it: in a process of its own."""
    program.event(name, NOTE, begin, program.now)
    program.events[-1].update(pid="stagespan", tid=thread or program.thread)


def by_kernels(trace: Trace) -> dict[str | None, float]:
    rows = analyze(trace, ["kernels"]).results["kernels"].to_dict()["by_stage"]
    return {each["stage"]: each["time_us"] for each in rows}


def by_comparison(trace: Trace) -> dict[str, float]:
    found = checked(compare(trace, trace), TraceComparison)
    return {each.name: each.before_ns / US for each in found.stages}


def two_workers(program: Program) -> None:
    """Two threads of a program, each of which launches in a span of its own at the same time."""
    begin = program.now
    for number, (name, us) in enumerate((("denoise", 100), ("decode", 50))):
        program.now, program.thread = begin, 10 + number
        program.operator(f"aten::{name}", us=us)
        span(program, name, begin)


def test_each_thread_launches_in_its_own_span(tmp_path: Path) -> None:
    program = Program()
    two_workers(program)
    trace = program.trace(tmp_path)
    found = stages_of(trace)
    assert {path: stage.launched for path, stage in by_path(found).items()} == {
        "denoise": 1, "decode": 1,
    }  # fmt: skip
    assert (found.outside, found.outside_ns, found.by_time) == (0, 0, 0)
    assert by_kernels(trace) == by_comparison(trace) == {"denoise": 100, "decode": 50}


def test_backward_of_a_program_with_spans(tmp_path: Path) -> None:
    program = Program()
    begin = program.now
    program.operator(us=10)
    program.now, program.thread = begin + 30, 200
    program.operator("autograd::engine::evaluate_function: MmBackward0", us=30)
    program.thread = 100
    span(program, "train", begin)
    program.now, program.thread = begin + 20, 300
    program.operator("aten::add", us=5)
    trace = program.trace(tmp_path)
    found = stages_of(trace)
    # THEN the backward pass belongs to the span, in all tables, and the other thread does not
    assert (by_path(found)["train"].device_ns, found.by_time) == (40 * US, 1)
    assert by_kernels(trace) == {"train": 40, None: 5}
    assert by_comparison(trace) == {"train": 40, "(no annotation)": 5}


def test_backward_while_two_threads_are_in_a_stage(tmp_path: Path) -> None:
    program = Program()
    begin = program.now
    for thread, name in ((100, "train"), (101, "train"), (101, "load")):
        program.now, program.thread = begin, thread
        with program.within(name, NOTE):
            program.work(200)
    program.now, program.thread = begin + 5, 200
    program.operator("autograd::engine::evaluate_function: MmBackward0", us=30)
    trace = program.trace(tmp_path)
    # THEN no table guesses which of them it belongs to
    assert (stages_of(trace).outside, stages_of(trace).outside_ns) == (1, 30 * US)
    assert by_kernels(trace) == {None: 30}
    assert by_comparison(trace) == {"(no annotation)": 30}


def small_program() -> Program:
    program = Program()
    for _ in range(3):
        with program.within("build_past", NOTE):
            for _ in range(40):
                program.operator("aten::zeros", us=2, before=30)
        with program.within("forward", NOTE):
            program.operator(us=900)
            program.wait()
    return program


def test_the_stage_with_the_idle_time_is_in_the_sentence_about_it(tmp_path: Path) -> None:
    # GIVEN a stage that launches 40 kernels of 2 µs, 35 µs apart, and one of a large kernel
    trace = small_program().trace(tmp_path)
    (finding,) = [each for each in analyze(trace).findings() if each.code == "idle.launch"]
    # THEN the stage is named with its part of the idle time, and with what it launches
    time = in_words(finding.numbers["stage_idle_ns"], "ns")
    launches = "120 launches of work of 2.00 µs on average: aten::zeros"
    assert f", mostly in the stage build_past ({time}, {launches})" in finding.text
    idle = by_path(stages_of(trace))["build_past"].idle_self_ns
    assert idle is not None
    # The time before the first kernel of each call is not, or not only, of this cause.
    assert idle - finding.numbers["stage_idle_ns"] == 3 * (30 + CALL + LATENCY) * US
    # AND the first screen has the times of both stages
    (table,) = stages_of(trace).head()
    assert isinstance(table, Table)
    own = {row[0]: row[1:] for row in table.rows}
    host = 3 * 40 * (30 + CALL) * US
    assert own["build_past"] == (host, 3 * 40 * 2 * US, 120, idle)
    assert own["forward"][2] == 3


def test_a_stage_around_everything_is_not_named_as_the_place(tmp_path: Path) -> None:
    program = Program()
    with program.within("serve", NOTE):
        for _ in range(40):
            program.operator("aten::zeros", us=2, before=30)
    (finding,) = analyze(program.trace(tmp_path)).findings()[:1]
    assert finding.code == "idle.launch"
    assert "in the stage" not in finding.text


def test_the_first_screen_has_the_stages_of_the_steps(tmp_path: Path) -> None:
    # GIVEN a stage of which a part runs before the first step
    program = Program()
    with program.within("load", NOTE):
        program.work(1_000)
        for number in range(2):
            with program.within(f"ProfilerStep#{number}", NOTE):
                program.operator(us=20)
    found = stages_of(program.trace(tmp_path))
    (table,) = found.head()
    assert isinstance(table, Table)
    # THEN it has only the time and the work of the steps, to which all shares refer
    assert [row[:4] for row in table.rows] == [("load", 2 * 15 * US, 40 * US, 2)]
    assert by_path(found)["load"].host_ns == 1_030 * US


def test_a_stage_of_many_small_kernels_is_named(tmp_path: Path) -> None:
    # GIVEN a stage that launches 40 kernels of 2 µs, 35 µs apart, and one of a large kernel
    found = stages_of(small_program().trace(tmp_path))
    (finding,) = found.findings()
    assert finding.code == "stages.launch"
    assert finding.evidence[1].event == "build_past"
    idle = by_path(found)["build_past"].idle_self_ns
    # The last kernel of each call runs after it.
    assert idle == 3 * (40 * 35 - 39 * 2) * US
    assert finding.numbers == {
        "host_ns": 4_200 * US,
        "launched": 120,
        "mean_ns": 2 * US,
        "idle_ns": idle,
    }
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (idle, True)


def test_a_stage_that_works_on_the_host_is_not_blamed_for_its_launches(tmp_path: Path) -> None:
    # GIVEN a stage that resizes images for a long time, and launches some small kernels
    program = Program()
    with program.within("preprocess", NOTE):
        for _ in range(30):
            program.work(2_000)
            program.operator("aten::to", us=3)
    # WHEN it is analysed THEN nothing is reported about its launches
    assert stages_of(program.trace(tmp_path)).findings() == []


def test_a_graph_is_one_launch(tmp_path: Path) -> None:
    # GIVEN a stage that launches 30 kernels at once and then sleeps
    program = Program()
    with program.within("decode", NOTE):
        program.graph([1] * 30, gap=1)
        program.work(250)
    # WHEN it is analysed THEN nothing is reported about its launches
    found = stages_of(program.trace(tmp_path))
    assert (found.stages[0].launched, found.stages[0].calls_made) == (30, 1)
    assert found.findings() == []


def test_a_trace_without_annotations_says_how_to_add_them(tmp_path: Path) -> None:
    program = Program()
    program.operator()
    found = stages.analyze(program.trace(tmp_path))
    assert isinstance(found, Unavailable)
    assert "record_function" in found.reason


def test_thousands_of_names_with_numbers_are_one_stage(tmp_path: Path) -> None:
    program = Program()
    for number in range(400):
        with program.within(f"request {number}", NOTE):
            program.work(1)
    (stage,) = stages_of(program.trace(tmp_path)).stages
    assert (stage.path, stage.calls) == (("request #",), 400)


@pytest.mark.parametrize("count", [41, 1_200])
def test_some_of_many_equally_long_stages_are_shown(count: int, tmp_path: Path) -> None:
    program = Program()
    letters = [chr(97 + number // 26**at % 26) for number in range(count) for at in range(3)]
    for number in range(count):
        with program.within("".join(letters[3 * number : 3 * number + 3]), NOTE):
            program.work(7)
    found = stages_of(program.trace(tmp_path))
    (table,) = found.tables()
    assert len(table.rows) == 40
    written = found.to_dict()
    assert len(written["stages"]) == min(count, 1_000)
    assert written["stages_left_out"] == count - len(written["stages"])


def time_of_kernels(trace: Trace) -> Counter[str | None]:
    """The time in ns of all device events by stage."""
    found = kernel_rows(trace)
    assert isinstance(found, KernelRows)
    times: Counter[str | None] = Counter()
    for code, time in zip(found.stage.tolist(), found.time_ns.tolist(), strict=True):
        times[trace.names[code] if code >= 0 else None] += time
    return +times


def test_real_traces(traces: Path) -> None:
    said = {}
    for path in sorted([*traces.glob("*.json.gz"), *traces.rglob("trace_view.json.gz")]):
        trace = read_real(path)
        if not isinstance(stages.analyze(trace), Unavailable):
            said[path.name.split(".")[0]] = found = stages_of(trace)
            if found.device_ns is not None:
                own: Counter[str | None] = Counter({None: found.outside_ns})
                for stage in found.stages:
                    own[stage.path[-1]] += stage.device_self_ns or 0
                assert time_of_kernels(trace) == +own
    train = by_path(said["cuda_v100_train_ns"])
    assert train["## backward ##"].launched == 3_750
    assert (said["cuda_v100_train_ns"].outside, said["cuda_v100_train_ns"].outside_ns) == (0, 0)
    # THEN only the eager server's step is reported for small launches
    assert [name for name, each in said.items() if each.findings()] == ["cuda_b200_vllm_eager"]


def test_torch_writes_the_tree(tmp_path: Path) -> None:
    # GIVEN annotations of a real program
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            with torch.profiler.record_function("model"):
                with torch.profiler.record_function("layer"):
                    torch.ones(8, 8) @ torch.ones(8, 8)
                torch.ones(8)
    path = tmp_path / "torch.json"
    profile.export_chrome_trace(str(path))
    found = by_path(stages_of(read_trace(path)))
    assert {path: stage.calls for path, stage in found.items()} == {"model": 3, "model/layer": 3}
    model, layer = found["model"], found["model/layer"]
    assert model.host_ns == model.host_self_ns + layer.host_ns
    assert model.device_ns is None
