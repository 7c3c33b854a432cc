"""What findings would win: exact on planted programs, and never counted twice."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_programs import operator
from planted import Program
from real_traces import read_real

from stagespan.pages.amounts import in_words
from stagespan.pages.result import Finding, Gain, Spared, by_severity, together_ns
from stagespan.trace import Trace, read_trace
from stagespan.trace.analysis import Analysis, analyze
from stagespan.trace.derived.gains import without
from stagespan.trace.derived.threads import ThreadIndex
from stagespan.trace.derived.trees import Nesting
from stagespan.trace.derived.windows import base_window

TWO = {"Input type": ["c10::BFloat16", "c10::BFloat16"]}
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936, "numSms": 132}


def analysed(program: Program, folder: Path) -> Analysis:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": program.events, "deviceProperties": [H100]}))
    trace: Trace = read_trace(path)
    return analyze(trace)


def gains(analysis: Analysis) -> dict[str, Gain]:
    return {each.code: each.gain for each in analysis.findings() if each.gain is not None}


def test_idle_time_can_be_won_at_most_once(tmp_path: Path) -> None:
    program = Program()
    for step in range(3):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            for _ in range(4):
                operator(program, "aten::mm", "gemm", 400)
                program.wait()
                with program.within("aten::nonzero"):
                    program.work(200)
    analysis = analysed(program, tmp_path)
    found = gains(analysis)
    idle = {code: gain for code, gain in found.items() if code.startswith("idle.")}
    assert idle
    for finding in analysis.findings():
        if finding.code in idle:
            assert idle[finding.code].time_ns == finding.numbers["time_ns"]
            assert str(idle[finding.code]) in finding.text
    total = sum(gain.time_ns for gain in found.values())
    assert together_ns(found.values()) == total


def test_exposed_communication_wins_its_time_whatever_could_hide_it(tmp_path: Path) -> None:
    program = Program()
    program.launch("gemm", 100)
    program.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 900, stream=20, after=7)
    program.wait()
    analysis = analysed(program, tmp_path)
    (finding,) = (
        each for each in analysis.findings() if each.code == "device_use.exposed_communication"
    )
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (900_000, True)
    assert finding.gain.how == (
        "100 µs of computation hide a part of it, and the rest takes no time"
    )
    assert "Computation can hide it" not in finding.text
    assert "cannot hide all of it" in finding.text


def test_products_win_what_the_peak_allows(tmp_path: Path) -> None:
    program = Program()
    for _ in range(4):
        operator(program, "aten::bmm", "gemm", 500, [[16, 999, 512], [16, 512, 999]], **TWO)
        operator(program, "aten::mm", "nvjet", 1000, [[4096, 4096], [4096, 4096]], **TWO)
    gain = gains(analysed(program, tmp_path))["rates.unaligned"]
    # 60 % of 989.4 TFLOP/s, of 500 µs each
    least_ns = 2 * 16 * 999 * 512 * 999 / (0.6 * 989.4e12) * 1e9
    assert gain.time_ns == pytest.approx(4 * (500_000 - least_ns), rel=1e-6)


def test_kernels_are_not_made_shorter_twice() -> None:
    rows, times = np.array([3, 5, 9]), np.array([100.0, 50.0, 10.0])
    one = Gain(160, True, "one", Spared(rows, times))
    other = Gain(90, True, "other", Spared(np.array([5, 11]), np.array([80.0, 10.0])))
    idle = Gain(7, True, "idle")
    assert together_ns([one]) == 160
    assert together_ns([one, other, idle]) == 100 + 80 + 10 + 10 + 7
    assert together_ns([]) == 0


def test_findings_of_one_severity_are_sorted_by_gain() -> None:
    def finding(severity: str, ns: int | None) -> Finding:
        gain = None if ns is None else Gain(ns, True, "so")
        return Finding(severity, "", (), str(ns), gain=gain)  # type: ignore[arg-type]

    found = by_severity(
        [finding("low", 9), finding("high", None), finding("high", 3), finding("high", 5)]
    )
    assert [each.code for each in found] == ["5", "3", "None", "9"]


def test_a_step_that_took_long_wins_what_it_took_beyond_the_median(tmp_path: Path) -> None:
    # GIVEN six steps of 1 ms, of which one waits for 3 ms more
    program = Program()
    for step in range(6):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            with program.within("aten::mm"):
                program.work(1_000)
            if step == 3:
                with program.within("aten::item"):
                    program.work(3_000)
    found = analysed(program, tmp_path)
    (outlier,) = [each for each in found.findings() if each.code == "steps.outlier"]
    assert outlier.gain == Gain(3_000_000, True, "it takes as long as the median step")
    assert outlier.numbers == {
        "step_ns": 4_000_000,
        "median_ns": 1_000_000,
        "part_ns": 4_000_000,
        "part_of_others_ns": 1_000_000,
        "event_ns": 3_000_000,
        "event_of_others_ns": 0,
    }


def steps_of(program: Program, *slow: int) -> Program:
    """Twelve steps of 1 ms; those in `slow` take 4 ms."""
    for step in range(12):
        with program.within(f"ProfilerStep#{step}", "user_annotation"), program.within("aten::mm"):
            program.work(4_000 if step in slow else 1_000)
    return program


def test_gains_of_several_steps_are_added(tmp_path: Path) -> None:
    found = analysed(steps_of(Program(), 3, 7), tmp_path)
    assert [each.code for each in found.findings()] == ["steps.outlier"] * 2
    assert found.won_together_ns() == 2 * 3_000_000


def test_a_first_step_alone_is_lost_only_once(tmp_path: Path) -> None:
    found = analysed(steps_of(Program(), 0), tmp_path)
    (outlier,) = found.findings()
    assert (outlier.code, outlier.gain, outlier.no_gain) == ("steps.outlier", None, "")
    assert outlier.severity != "high"
    assert "It is the first step." in outlier.text
    assert "Begin the trace after a warm-up" in outlier.action


def test_a_step_that_waits_for_what_another_finding_blames_is_not_added(tmp_path: Path) -> None:
    # GIVEN twelve steps of which one waits longer for the host, and the finding on all waiting
    program = Program()
    for step in range(12):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            with program.within("aten::nonzero"):
                program.work(9_000 if step == 5 else 1_000)
            program.operator(us=500)
            program.wait()
    found = analysed(program, tmp_path)
    codes = [each.code for each in found.findings()]
    assert "steps.outlier" in codes
    idle = [each.gain.time_ns for each in found.findings() if each.about == "idle" and each.gain]
    assert found.won_together_ns() == sum(idle)


def test_a_finding_says_why_its_gain_is_unknown(tmp_path: Path) -> None:
    program = Program()
    for _ in range(3):
        program.launch("attention_of_the_user", 10_000)
        program.launch("gemm", 100)
    (finding,) = [
        each for each in analysed(program, tmp_path).findings() if each.code == "kernels.dominant"
    ]
    assert finding.gain is None
    assert finding.text.endswith(
        " The gain is unknown, because the trace does not show how fast the kernel could be."
    )
    assert finding.to_dict()["no_gain"] == "the trace does not show how fast the kernel could be"


# Findings that are not about the time of the steps.
# What is lost only once has no gain either.
NOT_ABOUT_TIME = (
    "idle.start_up",
    "compiled.in_window",
    "steps.outlier",
    "memory.",
    "ascend.memory_unused",
    "ascend.steps_differ",
    "ascend.calls_differ",
)


@pytest.mark.slow
def test_each_finding_about_a_real_trace_has_a_gain_or_a_reason(every_trace: list[Path]) -> None:
    for path in every_trace:
        for finding in analyze(read_real(path)).findings():
            if not finding.code.startswith(NOT_ABOUT_TIME):
                assert (finding.gain is None) == bool(finding.no_gain), (path.name, finding.code)


# --- All gains together ---

SPARED = st.dictionaries(st.integers(0, 5), st.integers(0, 100), min_size=1)
GAINS = st.lists(st.one_of(st.integers(0, 100), SPARED), max_size=6)


@given(GAINS)
def test_each_event_is_made_shorter_once(drawn: list[int | dict[int, int]]) -> None:
    gains, idle = [], 0
    most: dict[int, int] = {}
    for each in drawn:
        if isinstance(each, int):
            gains.append(Gain(each, True, "idle"))
            idle += each
        else:
            spared = Spared(np.array(list(each)), np.array(list(each.values()), dtype=np.float64))
            gains.append(Gain(sum(each.values()), True, "shorter", spared))
            most = {row: max(most.get(row, 0), each.get(row, 0)) for row in {*most, *each}}
    assert together_ns(gains) == idle + sum(most.values())


# Levels to leave before an operator begins, its own time before and after what is in it, a pause.
OPERATOR = st.tuples(*(st.integers(0, most) for most in (4, 90, 90, 200)))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operators=st.lists(OPERATOR, min_size=1, max_size=20), drawn=st.randoms())
def test_what_vanishes_for_two_reasons_vanishes_once(
    operators: list[tuple[int, ...]], drawn: Random, tmp_path: Path
) -> None:
    # GIVEN operators in operators, with pauses between them, of which two changes spare some
    program = Program()
    with ExitStack() as every:
        levels = [every.enter_context(ExitStack())]
        for leaves, before, after, pause in operators:
            for _ in range(min(leaves, len(levels) - 1)):
                levels.pop().close()
            program.work(pause)
            level = ExitStack()
            level.enter_context(program.within("aten::mul"))
            level.callback(program.work, after)
            every.push(level)
            levels.append(level)
            program.work(before + 1)
        while len(levels) > 1:
            levels.pop().close()
    trace = program.trace(tmp_path)
    rows = np.flatnonzero(trace.rows_of(["cpu_op"]))
    index = ThreadIndex(trace, rows)
    forest = Nesting.of(trace, index.axis, rows, index.of[0])
    found, masks = [], []
    for _ in range(2):
        chosen = np.array([drawn.random() < 0.3 for _ in range(len(forest))])
        masks.append(forest.first_around(chosen) >= 0)
        spared = without(trace, forest, masks[-1])
        found.append(Gain(spared.total_ns, True, "so", spared))
        # THEN each spares the outermost of its operators, and the pauses after them
        outermost = np.flatnonzero(masks[-1] & ~((forest.parent >= 0) & masks[-1][forest.parent]))
        lengths = (forest.end - forest.begin)[outermost]
        pauses = np.minimum(forest.pause_ns()[outermost], 50_000 + lengths // 2)
        assert spared.total_ns == int(lengths.sum() + pauses.sum())
    # AND both together spare what a change spares that is both
    assert together_ns(found) == without(trace, forest, masks[0] | masks[1]).total_ns


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("operator"), st.integers(1, 2_000)),
        st.tuples(st.just("copy"), st.integers(1, 500)),
        st.tuples(st.just("communicate"), st.integers(1, 2_000)),
        st.tuples(st.just("tiny"), st.integers(10, 150)),
        st.tuples(st.just("wait"), st.integers(1, 500)),
        st.tuples(st.just("work"), st.integers(1, 3_000)),
        st.tuples(st.just("optimizer"), st.integers(1, 40)),
        st.tuples(st.just("load"), st.integers(1, 2_000)),
    ),
    min_size=1,
    max_size=8,
)


def act(program: Program, what: str, amount: int) -> None:
    """Do one thing that a finding can be about."""
    if what == "operator":
        operator(program, "aten::bmm", "gemm", amount, [[16, 999, 512], [16, 512, 999]], **TWO)
    elif what == "copy":
        program.launch("Memcpy HtoD (Pageable -> Device)", amount, cat="gpu_memcpy")
    elif what == "communicate":
        program.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", amount, stream=20)
    elif what == "tiny":
        for _ in range(amount):
            program.operator("aten::add", us=2, before=20)
    elif what == "wait":
        program.wait(tail=amount)
    elif what == "work":
        with program.within("aten::nonzero"):
            program.work(amount)
    elif what == "optimizer":
        with program.within("Optimizer.step#SGD.step", "user_annotation"):
            for _ in range(amount):
                program.operator("aten::add_", us=3)
    else:
        with program.within("enumerate(DataLoader)#_Loader.__next__", "user_annotation"):
            program.work(amount)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(ACTIONS, min_size=1, max_size=6), are_marked=st.booleans())
def test_all_gains_together_fit_into_the_time_that_they_refer_to(
    steps: list[list[tuple[str, int]]], are_marked: bool, tmp_path: Path
) -> None:
    program = Program()
    for number, actions in enumerate(steps):
        mark = f"ProfilerStep#{number}" if are_marked else f"iteration {number}"
        with program.within(mark, "user_annotation"):
            for what, amount in actions:
                act(program, what, amount)
    program.operator("aten::sum")
    program.wait()
    analysis = analysed(program, tmp_path)
    base = base_window(analysis.trace)
    assert base is not None
    won = [each.gain.time_ns for each in analysis.findings() if each.gain is not None]
    assert all(0 < each <= base.whole_ns for each in won)
    text = analysis.together()
    assert (text is None) == (len(won) < 2)
    if text is not None:
        together = analysis.won_together_ns()
        assert max(won) <= together <= min(sum(won), base.whole_ns)
        is_known = not any(each.no_gain for each in analysis.findings())
        which = "All gains" if is_known else "All known gains"
        assert text == f"{which} together: at most {in_words(together, 'ns')} of {base.whose}."


@pytest.mark.parametrize(("host_us", "limited"), [(5_000, True), (0, False)])
def test_a_gain_now_is_what_the_critical_path_allows(
    host_us: int, limited: bool, tmp_path: Path
) -> None:
    # GIVEN products that are slower than they could be, on a device that waits for the host or not
    program = Program()
    for _ in range(6):
        operator(program, "aten::bmm", "gemm", 500, [[16, 999, 512], [16, 512, 999]], **TWO)
        with program.within("aten::nonzero"):
            program.work(host_us)
    program.wait()
    found = analysed(program, tmp_path)
    (finding,) = (each for each in found.findings() if each.code == "rates.unaligned")
    gain = finding.gain
    assert gain is not None
    assert gain.now_ns is not None
    if limited:
        # The host launches the next one long after each has ended; at most the last one counts.
        assert gain.now_ns <= gain.time_ns / 6 + 1
        assert f"now, up to {in_words(gain.time_ns, 'ns')} once the host is faster" in finding.text
    else:
        assert gain.now_ns == pytest.approx(gain.time_ns, rel=0.02)
        assert str(gain) == f"Gain: at most {in_words(gain.time_ns, 'ns')}."


def test_a_change_that_removes_kernels_also_spares_their_launches(tmp_path: Path) -> None:
    program = Program()
    operator(program, "aten::mm", "nvjet", 100, [[4096, 4096], [4096, 4096]], **TWO)
    for _ in range(40):
        operator(program, "aten::mul", "elementwise_kernel", 20)
        with program.within("aten::nonzero"):
            program.work(100)
    program.wait()
    found = analysed(program, tmp_path)
    spared = [each.gain for each in found.findings() if each.gain and each.gain.spared]
    assert spared
    assert all(gain.now_ns is None for gain in spared)


def test_a_finding_is_no_more_severe_than_what_it_wins(tmp_path: Path) -> None:
    # GIVEN most of the device's work in slow products, but a host that takes a hundred times longer
    program = Program()
    for _ in range(4):
        operator(program, "aten::bmm", "gemm", 500, [[16, 999, 512], [16, 512, 999]], **TWO)
        with program.within("aten::nonzero"):
            program.work(60_000)
    program.wait()
    found = analysed(program, tmp_path)
    (finding,) = (each for each in found.findings() if each.code == "rates.unaligned")
    assert finding.severity == "low"


def test_communication_wins_nothing_now_where_the_host_is_the_limit(tmp_path: Path) -> None:
    # GIVEN steps whose last kernel the host launches when a collective has ended long before
    program = Program()
    for step in range(4):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            program.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 4_000, 20)
            with program.within("aten::index"):
                program.work(6_000)
            program.launch("gemm", 500)
            program.wait()
    findings = analysed(program, tmp_path).findings()
    (finding,) = (each for each in findings if each.code == "device_use.exposed_communication")
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.now_ns) == (16_000_000, 0)
    assert finding.severity == "low"
    assert finding.text.startswith("Gain: nothing now, up to 16.0 ms once the host is faster.")


@pytest.mark.parametrize(
    ("kernel_us", "rest", "severity"),
    [(9_200, 700, "low"), (8_400, 1_500, "medium"), (5_900, 4_000, "high"), (100, 9_800, "high")],
)
def test_communication_is_as_severe_as_the_time_without_it(
    kernel_us: int, rest: int, severity: str, tmp_path: Path
) -> None:
    # GIVEN steps of 11 ms, in each of which a collective begins after the only kernel
    program = Program()
    for step in range(4):
        with program.within(f"ProfilerStep#{step}", "user_annotation"):
            program.launch("gemm", kernel_us)
            program.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", rest, 20, after=7)
            program.wait()
            program.work(1_000)
    findings = analysed(program, tmp_path).findings()
    (finding,) = (each for each in findings if each.code == "device_use.exposed_communication")
    assert finding.gain is not None
    assert finding.severity == severity
    assert finding.gain.time_ns == finding.gain.now_ns == 4 * rest * 1_000
    # THEN no finding wins less than one below it that has a known gain
    won = [each.gain.sure_ns for each in findings if each.gain is not None]
    assert won == sorted(won, reverse=True)


def test_findings_without_a_gain_are_sorted_by_their_time() -> None:
    found = [
        Finding("medium", "", (), code, {"time_ns": time})
        for code, time in (("a", 5), ("b", 9), ("c", 7))
    ]
    gained = Finding("medium", "", (), "d", gain=Gain(1, True, "so"))
    assert [each.code for each in by_severity([*found, gained])] == ["d", "b", "c", "a"]
