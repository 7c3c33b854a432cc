"""Traces of the host only: synthetic programs, exact to the nanosecond, and one by torch."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from commands import checked
from planted import Program

from stagespan.pages.markdown import markdown
from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import communication, host, steps
from stagespan.trace.analyses.host import Host
from stagespan.trace.analysis import analyze

US = 1_000


def host_of(trace: Trace) -> Host:
    found = checked(host.analyze(trace), Host)
    assert sum(found.parts.values()) == found.span_ns
    return found


def operator(program: Program, us: int, name: str = "aten::mm") -> None:
    with program.within(name):
        program.work(us)


def test_operators_without_a_pause_have_no_findings(tmp_path: Path) -> None:
    program = Program()
    begin = program.now
    for _ in range(50):
        operator(program, 100)
        program.work(5)
    program.thread = 300
    program.event("gloo:all_reduce", "user_annotation", begin, begin + 1_000)
    found = host_of(program.trace(tmp_path))
    # THEN there are no findings: all but nine pauses overlap communication, or are short
    assert found.parts == {
        host.OPERATORS: 50 * 100 * US,
        host.COMMUNICATING: 9 * 5 * US,
        host.BETWEEN_OPERATORS: 40 * 5 * US,
    }
    assert found.findings() == []


def test_a_sleep_between_steps_and_one_within(tmp_path: Path) -> None:
    program = Program()
    with program.within("ProfilerStep#1", "user_annotation"):
        operator(program, 1_000)
        program.work(3_000)
    with program.within("ProfilerStep#2", "user_annotation"):
        operator(program, 1_000)
        program.work(500)
        operator(program, 1_000)
    found = host_of(program.trace(tmp_path))
    assert found.parts == {
        host.OPERATORS: 3_000 * US,
        host.BETWEEN_STEPS: 3_000 * US,
        host.UNSEEN: 500 * US,
    }
    between, unseen = found.findings()
    assert (between.severity, unseen.severity) == ("high", "low")
    assert (between.code, unseen.code) == ("host.between_steps", "host.unseen")
    assert between.evidence[0].figure == 3_000 * US
    assert between.evidence[0].time_ns == 1_000 * US
    assert between.numbers["percent"] == pytest.approx(100 * 3_000 / 6_500)


@pytest.mark.parametrize("cat", ["python_function", "user_annotation"])
def test_events_between_operators_are_named(cat: str, tmp_path: Path) -> None:
    # GIVEN 3 ms in a frame or an annotation within others, 2 ms in which only the outermost is
    # open, and another thread that waits all the time
    program = Program()
    with program.within("train.py(1): main", "python_function"):
        operator(program, 1_000)
        with program.within("outer", cat), program.within("decode_images", cat):
            program.work(3_000)
        operator(program, 1_000)
        program.work(2_000)
        operator(program, 1_000)
    program.thread = 300
    program.event("threading.py(355): wait", "python_function", 1_500, 5_000)
    found = host_of(program.trace(tmp_path))
    assert found.parts == {host.OPERATORS: 3_000 * US, host.OTHER: 5_000 * US}
    assert found.filled == {
        host.OTHER: {"decode_images": 3_000 * US, "train.py(1): main": 2_000 * US}
    }
    (finding,) = found.findings()
    assert finding.code == "host.other"
    assert [each.event for each in finding.evidence] == ["decode_images", "train.py(1): main"]
    assert found.to_dict()["instead_of_operators_us"]["other"]["decode_images"] == 3_000


def test_marks_of_steps_name_nothing(tmp_path: Path) -> None:
    program = Program()
    with program.within("ProfilerStep#1", "user_annotation"):
        operator(program, 1_000)
        program.work(3_000)
        operator(program, 1_000)
    found = host_of(program.trace(tmp_path))
    assert found.parts == {host.OPERATORS: 2_000 * US, host.UNSEEN: 3_000 * US}
    assert [f.code for f in found.findings()] == ["host.unseen"]


NEXT = "torch/utils/data/dataloader.py(701): __next__"


def test_frames_of_a_loader_without_annotations(tmp_path: Path) -> None:
    # GIVEN steps that load a batch, which only Python's stacks show; one waits for its batch
    program = Program()
    for number in range(6):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            operator(program, 1_000)
            with program.within(NEXT, "python_function"):
                program.work(60_000 if number == 4 else 5_000)
            operator(program, 1_000)
    trace = program.trace(tmp_path)
    found, steps_found = host_of(trace), steps.analyze(trace)
    assert isinstance(steps_found, steps.Steps)
    assert found.parts == {host.DATA_LOADING: 85_000 * US, host.OPERATORS: 12_000 * US}
    assert [each.event for each in found.evidence[host.DATA_LOADING]] == [NEXT] * 3
    assert sum(step.parts["data_loading"] for step in steps_found.steps) == 85_000 * US
    (outlier,) = steps_found.outliers
    assert (outlier.part, outlier.culprit) == ("data_loading", NEXT)


def test_starting_the_loader_is_distinguished_from_loading(tmp_path: Path) -> None:
    # GIVEN two passes over a loader with workers: starting it takes 30 ms, a batch 5 ms
    program = Program()
    for _ in range(2):
        with (
            program.within("torch/utils/data/dataloader.py(492): __iter__", "python_function"),
            program.within("torch/utils/data/dataloader.py(1101): __init__", "python_function"),
        ):
            program.work(30_000)
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        with program.within(name, "user_annotation"):
            program.work(5_000)
        operator(program, 1_000)
    found = host_of(program.trace(tmp_path))
    assert found.parts == {
        host.DATA_LOADING: 10_000 * US,
        host.LOADER_START: 60_000 * US,
        host.OPERATORS: 2_000 * US,
    }
    start, load = found.findings()
    assert (start.code, load.code) == ("host.loader_start", "host.data_loader")
    assert "persistent_workers" in start.text
    assert "More workers" in load.text


def test_new_workers_cost_the_first_wait_and_their_end(tmp_path: Path) -> None:
    # GIVEN two passes over a loader, each with workers of its own: the first batch takes longer
    program = Program()
    at = "torch/utils/data/dataloader.py"
    batch = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    for _ in range(2):
        with program.within(f"{at}(492): __iter__", "python_function"):
            program.work(30_000)
        for us in (12_000, 2_000, 2_000):
            with program.within(batch, "user_annotation"):
                program.work(us)
            operator(program, 1_000)
        end = f"{at}(1606): _shutdown_workers"
        with program.within(batch, "user_annotation"), program.within(end, "python_function"):
            program.work(14_000)
    found = host_of(program.trace(tmp_path))
    # THEN only the usual wait for the first batch is that of all batches
    started = 2 * (30_000 + 10_000 + 14_000) * US
    assert found.parts == {
        host.LOADER_START: started,
        host.DATA_LOADING: 2 * 3 * 2_000 * US,
        host.OPERATORS: 2 * 3 * 1_000 * US,
    }
    (finding,) = (each for each in found.findings() if each.code == "host.loader_start")
    assert finding.gain is not None
    assert finding.gain.time_ns == started + (found.span_ns - started) // 2
    assert str(finding.gain) == "Gain: at most 117 ms, 9.00 ms of it in what follows."


@pytest.mark.parametrize(
    "name", ["gloo:all_reduce", "mpi:broadcast", "nccl:all_to_all", "rccl:all_reduce"]
)
def test_communication_that_nothing_hides(name: str, tmp_path: Path) -> None:
    program = Program()
    for _ in range(3):
        operator(program, 1_000)
        with program.within(name, "user_annotation"), program.within("c10d::allreduce_"):
            program.work(2_000)
    operator(program, 1_000)
    found = host_of(program.trace(tmp_path))
    assert found.parts == {host.OPERATORS: 4_000 * US, host.COMMUNICATING: 6_000 * US}
    (finding,) = found.findings()
    assert finding.evidence[0].event in {name, "c10d::allreduce_"}


def test_tiny_operators_and_loading(tmp_path: Path) -> None:
    program = Program()
    for _ in range(200):
        operator(program, 2)
        program.work(10)
    with program.within("enumerate(DataLoader)#x", "user_annotation"):
        operator(program, 300)
        program.work(700)
    operator(program, 2)
    found = host_of(program.trace(tmp_path))
    # THEN passing from one to the next took the most time, and loading is a separate cause
    assert found.parts == {
        host.DATA_LOADING: 1_000 * US,
        host.OPERATORS: 402 * US,
        host.BETWEEN_OPERATORS: 2_000 * US,
    }
    between = found.findings()[0]
    assert between.code == "host.between_operators"
    assert between.numbers == {
        "time_ns": 2_000 * US,
        "percent": pytest.approx(100 * 2_000 / 3_402),
        "whole_ns": 3_402 * US,
        "operators": 202,
        "median_operator_ns": 2 * US,
    }


def test_the_page_tells_above_the_findings_where_the_time_goes(tmp_path: Path) -> None:
    program = Program()
    operator(program, 100)
    operator(program, 50, "aten::add")
    page = markdown(analyze(program.trace(tmp_path)))
    spent = "Time goes to: matrix products 66.7 %; elementwise 33.3 % of the 150 µs of 2 operators."
    assert spent in page.replace("\n", " ")


def test_with_a_device_or_without_operators_it_has_no_result(tmp_path: Path) -> None:
    program = Program()
    program.operator()
    assert isinstance(host.analyze(program.trace(tmp_path)), Unavailable)
    program = Program()
    with program.within("step", "user_annotation"):
        program.work(10)
    assert isinstance(host.analyze(program.trace(tmp_path)), Unavailable)


def test_a_sleep_that_torch_has_profiled(tmp_path: Path) -> None:
    # GIVEN three steps of a real program that sleeps 30 ms after each
    torch = pytest.importorskip("torch")
    value = torch.ones(64, 64)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=4),
    ) as profile:
        profile.step()
        for _ in range(3):
            value = (value @ value).tanh()
            time.sleep(0.03)
            profile.step()
    path = tmp_path / "torch.json"
    profile.export_chrome_trace(str(path))
    found = host_of(read_trace(path))
    # THEN both sleeps between operators are reported with the right cause
    assert found.parts[host.BETWEEN_STEPS] >= 2 * 30_000 * US
    longest = [each.figure for each in found.evidence[host.BETWEEN_STEPS]]
    assert len(longest) == 2
    assert all(figure is not None and figure >= 30_000 * US for figure in longest)


# --- The base, and the work inside operators ---


def _computing(program: Program) -> None:
    for _ in range(10):
        operator(program, 10_000)


@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.parametrize(
    ("name", "cat", "part"),
    [
        ("gloo:all_reduce", "user_annotation", host.COMMUNICATING),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation",
         host.DATA_LOADING),
        ("_compile.compile_inner (dynamo_timed)", "cpu_op", host.COMPILING),
        ("read", "user_annotation", host.OTHER),
    ],
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_what_precedes_or_follows_the_operators_counts(
    first: bool, name: str, cat: str, part: str, in_step: bool, tmp_path: Path
) -> None:
    # GIVEN 0.9 s of something else before or after 0.1 s of operators
    program = Program()
    begin = program.now
    if not first:
        _computing(program)
    with program.within(name, cat):
        program.work(900_000)
    if first:
        _computing(program)
    if in_step:
        program.event("ProfilerStep#3", "user_annotation", begin, program.now)
    found = host_of(program.trace(tmp_path))
    assert found.parts == {part: 900_000 * US, host.OPERATORS: 100_000 * US}
    assert found.base.of == ("steps" if in_step else "trace")


def test_nodes_that_wait_for_a_collective_do_not_compute(tmp_path: Path) -> None:
    # GIVEN backward nodes that contain a blocking collective, one that waits for the collective of
    # another thread without an event, and operators inside a collective
    program = Program()
    node = "autograd::engine::evaluate_function: RegisterPostBackwardFunctionBackward"
    with program.within(node):
        operator(program, 1_000)
        with program.within("c10d::_reduce_scatter_base_"):
            program.work(3_000)
            operator(program, 200, "aten::copy_")
            program.work(2_000)
    begin = program.now
    with program.within(node):
        program.work(4_000)
        operator(program, 500)
    program.thread = 300
    program.event("gloo:all_reduce", "user_annotation", begin + 1_000, begin + 4_200)
    trace = program.trace(tmp_path)
    found = host_of(trace)
    assert found.parts == {
        host.OPERATORS: (1_000 + 200 + 1_000 + 500) * US,
        host.COMMUNICATING: (5_000 + 3_000) * US,
    }
    # THEN the row about collectives has the same exposed time
    row = communication.analyze(trace)
    assert isinstance(row, communication.Communication)
    assert row.exposed_ns == found.parts[host.COMMUNICATING]


def test_operators_that_a_compiler_runs_are_part_of_compiling(tmp_path: Path) -> None:
    program = Program()
    with program.within("_compile.compile_inner (dynamo_timed)"):
        program.work(5_000)
        operator(program, 1_000)
    operator(program, 2_000)
    found = host_of(program.trace(tmp_path))
    assert found.parts == {host.COMPILING: 6_000 * US, host.OPERATORS: 2_000 * US}


FIRST = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@pytest.mark.parametrize("usual_us", [300, 20_000])
def test_the_time_before_the_first_batch_is_the_start_of_the_loader(
    usual_us: int, tmp_path: Path
) -> None:
    program = Program()
    operator(program, 100)
    program.work(50_000)
    for _ in range(4):
        with program.within(FIRST, "user_annotation"):
            program.work(1_000)
        operator(program, 100)
        program.work(usual_us)
    found = host_of(program.trace(tmp_path))
    # THEN it is, unless the same time passes before the other batches
    assert found.parts.get(host.LOADER_START, 0) == (50_000 * US if usual_us == 300 else 0)


def test_mostly_needs_a_majority(tmp_path: Path) -> None:
    program = Program()
    for name in ("read", "write", "sort"):
        with program.within(name, "user_annotation"):
            program.work(2_000)
        operator(program, 100)
    (finding,) = host_of(program.trace(tmp_path)).findings()
    assert "the longest part in read (2.00 ms)" in finding.text
    assert "mostly" not in finding.text


@pytest.mark.parametrize("apart_us", [0, 3_000])
def test_time_in_steps_that_touch_is_not_between_them(apart_us: int, tmp_path: Path) -> None:
    program = Program()
    for number in range(3):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            operator(program, 7_000)
            program.work(10_000)
        program.work(apart_us)
    said = [each.text for each in host_of(program.trace(tmp_path)).findings()]
    assert any("at the end of a step" in each for each in said)
    assert any("between two steps" in each for each in said) == bool(apart_us)
