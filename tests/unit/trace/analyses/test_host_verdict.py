"""The verdict on traces without a device, and what pages advise then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from device_programs import judged
from planted import Program

from stagespan.pages.html.data import page_data
from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import steps, verdict
from stagespan.trace.analyses.verdict import Verdict
from stagespan.trace.analysis import analyze

US = 1_000


def verdict_of(trace: Trace) -> Verdict:
    found = judged(trace)
    assert not found.on_device
    assert "annot tell" not in found.sentence
    return found


def operator(program: Program, us: int, name: str = "aten::mm") -> None:
    with program.within(name):
        program.work(us)


def test_the_kinds_of_operators_are_named(tmp_path: Path) -> None:
    program = Program()
    operator(program, 470, "aten::native_batch_norm")
    operator(program, 300, "aten::mkldnn_convolution")
    operator(program, 230, "aten::add")
    found = verdict_of(program.trace(tmp_path))
    assert found.verdict == "computing"
    assert found.sentence.startswith("Computes: normalisation 47.0 %, convolutions 30.0 % of")
    assert "(100 %) operators ran." in found.sentence


@pytest.mark.parametrize("name", ["gloo:all_reduce", "mpi:broadcast"])
def test_the_collective_that_it_waits_for_is_named(name: str, tmp_path: Path) -> None:
    program = Program()
    operator(program, 86)
    with program.within("c10d::allreduce_"):
        program.work(1)
    with program.within(name, "user_annotation"):
        program.work(827)
    operator(program, 86)
    found = verdict_of(program.trace(tmp_path))
    assert found.verdict == "communication-bound"
    assert found.sentence.startswith(f"Waits for {name}: for 828 µs of the trace's 1.00 ms")
    assert "(82.8 %)" in found.sentence
    page = page_data(analyze(program.trace(tmp_path)))
    assert page["verdict"]["word"] == f"Waits for {name}"
    assert page["bar"]["name"] == "Host"


def test_operators_that_wait_for_another_thread_communicate(tmp_path: Path) -> None:
    # GIVEN a hook that waits 600 us for a collective of another thread, which goes on for 100 us
    # beside an operator of 300 us
    program = Program()
    begin = program.now
    with program.within("FSDP::pre_forward"):
        program.work(600)
    operator(program, 300)
    program.thread = 9
    program.event("gloo:all_gather", "user_annotation", begin, begin + 700)
    trace = program.trace(tmp_path)
    found = verdict_of(trace)
    assert found.times_ns == {"communication-bound": 600 * US, "computing": 300 * US}
    page = analyze(trace)
    # THEN the time by kind is that of the verdict, and the rest of the operator can hide some
    (line,) = (each for each in page.lines() if each.startswith("Time goes to"))
    assert "communication 66.7 %; matrix products 33.3 %" in line
    (finding,) = (each for each in page.findings() if each.code == "host.communication")
    assert finding.gain is not None
    assert finding.gain.time_ns == 200 * US
    assert "200 µs of computation could run beside it" in str(page.results["communication"].line())


def test_python_outside_of_operators_is_named(tmp_path: Path) -> None:
    # GIVEN a program that spends its time in a function of its own
    program = Program()
    for _ in range(3):
        operator(program, 100)
        with program.within("augment", "user_annotation"):
            program.work(5_000)
    operator(program, 100)
    found = verdict_of(program.trace(tmp_path))
    assert found.verdict == "outside operators"
    assert "mostly in augment (15.0 ms)" in found.sentence


def test_a_first_compilation_is_the_verdict(tmp_path: Path) -> None:
    # GIVEN a compilation with a part of the backward pass that is compiled later
    program = Program()
    for name in ("_compile.compile_inner", "_backward_codegen.entire_backward_compile"):
        with program.within(f"{name} (dynamo_timed)"):
            program.work(450_000)
        with program.within("Torch-Compiled Region: 0/0"):
            program.work(50_000)
    trace = program.trace(tmp_path)
    found = verdict_of(trace)
    assert found.verdict == "compiling"
    assert found.sentence == (
        "Compiles: for 900 ms of the trace's 1.00 s (90.0 %) torch.compile compiled;"
        " operators ran for 100 ms."
    )
    assert [part.name for part in found.bar().parts] == ["computing", "compiling"]
    # THEN one finding tells of it, and its gain is the time of its sentence
    (finding,) = analyze(trace).findings()
    assert (finding.severity, finding.code) == ("high", "compiled.in_window")
    assert finding.gain is not None
    assert finding.gain.time_ns == finding.numbers["time_ns"] == 900_000 * US


def test_looking_up_compiled_code_is_no_operator(tmp_path: Path) -> None:
    program = Program()
    for _ in range(3):
        with program.within("TorchDynamo Cache Lookup"):
            program.work(700)
        with program.within("Torch-Compiled Region: 0/0"), program.within("CompiledFunction"):
            operator(program, 300)
    trace = program.trace(tmp_path)
    found = verdict_of(trace)
    assert found.parts_ns == {"other": 2_100 * US, "operators": 900 * US}
    assert "mostly in TorchDynamo Cache Lookup (2.10 ms)" in found.sentence
    # THEN the kinds of operators have the time in which operators ran
    kinds = analyze(trace).results["kernels"].to_dict()["by_kind"]
    assert sum(kind["time_us"] for kind in kinds) == 900


def test_loading_data_and_the_time_between_operators(tmp_path: Path) -> None:
    loading, between = Program(), Program()
    for _ in range(5):
        with loading.within("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            loading.work(2_000)
        operator(loading, 100)
    for _ in range(50):
        operator(between, 2)
        between.work(8)
    operator(between, 2)
    assert verdict_of(loading.trace(tmp_path)).verdict == "data-bound"
    found = verdict_of(between.trace(tmp_path))
    assert found.verdict == "overhead-bound"
    assert "the median of 51 operators takes 2.00 µs" in found.sentence
    assert [part.name for part in found.bar().parts] == ["computing", "pauses"]


def test_the_bar_has_the_time_outside_of_operators(tmp_path: Path) -> None:
    # GIVEN short pauses between operators, and a longer time without any
    program = Program()
    for _ in range(10):
        operator(program, 20)
        program.work(5)
    operator(program, 20)
    program.work(5_000)
    operator(program, 20)
    found = verdict_of(program.trace(tmp_path))
    assert found.verdict == "outside operators"
    parts = {part.name: part.time_ns for part in found.bar().parts}
    assert parts == {"computing": 240 * US, "other": found.time_ns, "pauses": 50 * US}


def test_a_trace_of_stages_only(tmp_path: Path) -> None:
    # GIVEN stages without operators, one inside another
    program = Program()
    with program.within("request", "user_annotation"):
        with program.within("decode", "user_annotation"):
            program.work(600)
        program.work(300)
    program.work(50)
    with program.within("idle", "user_annotation"):
        program.work(100)
    found = verdict_of(program.trace(tmp_path))
    # THEN each counts without the stages inside it
    assert found.verdict == "in stages"
    assert "decode 60.0 %, request 30.0 %, idle 10.0 % of 1.00 ms" in found.sentence
    assert found.parts_ns == {"in_stage": 1_000 * US, "no_stage": 50 * US}


@pytest.mark.parametrize("with_stage", [True, False])
def test_steps_whose_work_ran_elsewhere(with_stage: bool, tmp_path: Path) -> None:
    program = Program()
    for number in range(3):
        with program.within(f"ProfilerStep#{number}", "user_annotation"):
            program.work(1_000)
    if with_stage:
        program.thread = 300
        program.event("model", "user_annotation", 1_100, 1_900)
    trace = program.trace(tmp_path)
    found = verdict.analyze(trace)
    sentence = found.reason if isinstance(found, Unavailable) else found.sentence
    assert "steps contain no operators: the work ran in other threads or processes" in sentence
    assert isinstance(found, Verdict) == with_stage
    (said,) = analyze(trace).missing()
    assert "operators (the work ran in other threads; see above)" in said
    assert "device" not in said
    # THEN no step counts as one that never began
    every = steps.analyze(trace)
    assert not isinstance(every, Unavailable)
    assert len(every.steps) == 3


@pytest.mark.parametrize("devices", [[], [{"id": 0, "name": "a GPU"}], None])
def test_a_device_is_only_to_be_recorded_if_there_is_one(
    devices: list[dict[str, object]] | None, tmp_path: Path
) -> None:
    program = Program()
    operator(program, 100)
    path = tmp_path / "t.json"
    content = {"traceEvents": program.events}
    path.write_text(
        json.dumps(content if devices is None else content | {"deviceProperties": devices})
    )
    (said,) = analyze(read_trace(path)).missing()
    assert ("record the device's activity" in said) == bool(devices)


def test_an_empty_trace_has_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("[]")
    found = verdict.analyze(read_trace(path))
    assert isinstance(found, Unavailable)
    assert found.reason.startswith("Cannot tell: the trace contains no device events")


def test_events_without_categories_are_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        json.dumps([{"ph": "X", "name": "infer", "pid": 1, "tid": 1, "ts": 1, "dur": 2}])
    )
    found = analyze(read_trace(path))
    reason = found.results["verdict"]
    assert isinstance(reason, Unavailable)
    assert "no category (`cat`): another program than torch.profiler" in reason.reason
    assert found.missing() == []
