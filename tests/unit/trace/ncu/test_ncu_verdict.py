"""Verdicts and roofline on kernels with known figures, and the links to a trace."""

from __future__ import annotations

import pytest
from ncu_files import (
    ACHIEVED,
    BARRIER,
    COMPUTE,
    DRAM,
    FFMA,
    ISSUED,
    KERNELS,
    L2,
    LONG,
    MEMORY,
    MULTIPLIES,
    STREAMS,
    THEORETICAL,
    WAITS,
    WAVES,
    WHOLE,
    Figures,
    long_file,
)  # fmt: skip

from stagespan.trace.ncu.command import Top, TopKernels, base_name, one_way, without_parameters
from stagespan.trace.ncu.limits import Judgement, judge, point_of, roofs_of
from stagespan.trace.ncu.reading import Measured, parse
from stagespan.trace.ncu.report import NcuReport, report
from stagespan.trace.render.markdown import markdown_of


def measured(figures: Figures) -> Measured:
    return parse(long_file([("k", figures)]), "ncu.csv").kernels[0]


def judged(**figures: float | int) -> Judgement:
    return judge(Measured(0, "k", None, None, dict(figures)))


def at(compute: float, memory: float, **more: float) -> Judgement:
    return judge(Measured(0, "k", None, None, {COMPUTE: compute, MEMORY: memory, **more}))


def test_each_bound_by_throughput() -> None:
    # GIVEN the four kernels
    # WHEN the verdicts are determined
    # THEN each has its bound, with evidence
    found = [judge(measured(figures)) for _, figures in KERNELS]
    assert [each.bound for each in found] == [
        "memory-bound", "compute-bound", "latency-bound", "balanced",
    ]  # fmt: skip
    assert (found[0].memory_level, found[1].memory_level) == ("device memory", "L2")
    assert found[0].reasons == ["device memory is the busiest part"]
    assert found[1].reasons == ["the arithmetic pipes are the busiest part"]


def test_the_thresholds() -> None:
    for compute, memory, bound in (
        (59.9, 59.9, "latency-bound"), (60.0, 49.9, "compute-bound"), (49.9, 60.0, "memory-bound"),
        (60.0, 50.1, "balanced"), (70.0, 60.0, "compute-bound"), (69.9, 60.0, "balanced"),
        (60.0, 70.0, "memory-bound"), (95.0, 94.0, "balanced"), (0.0, 0.0, "latency-bound"),
        (100.0, 12.0, "compute-bound"),
    ):  # fmt: skip
        assert at(compute, memory).bound == bound, (compute, memory)


def test_why_a_kernel_waits() -> None:
    # GIVEN a small grid, an occupancy that shared memory limits and that is not reached, and warps
    # that wait for memory
    # WHEN the verdict is determined
    found = judge(measured(WAITS))
    # THEN each of these is a reason, with its figure
    lost = "it reaches 22.0 % of the possible occupancy of 50.0 %: "
    assert found.reasons == [
        "its grid fills the device only 0.12 times: too few blocks",
        "its occupancy is limited to 50.0 %, by shared memory",
        f"{lost}blocks differ in length, or there are too few",
        "its warps spend 70.0 % of the time waiting for data from L1, L2 or device memory",
    ]
    assert (found.stall, found.stall_percent) == ("long_scoreboard", 70.0)
    assert found.occupancy_percent == 22.0


def test_no_reason_is_invented() -> None:
    # GIVEN a full grid, full occupancy and a busy scheduler
    found = at(50, 40, **{WAVES: 1.0, THEORETICAL: 80.0, ACHIEVED: 70.0, WHOLE: 10.0, LONG: 9.0,
                          ISSUED: 0.8})  # fmt: skip
    assert found.reasons == ["neither computing nor memory is in use for most of the time"]
    # AND a stall below the threshold is not a reason
    found = at(50, 40, **{WHOLE: 10.0, BARRIER: 2.9})
    assert found.reasons == ["neither computing nor memory is in use for most of the time"]
    assert (found.stall, found.stall_percent) == ("barrier", 29.0)
    found = at(50, 40, **{WHOLE: 10.0, BARRIER: 3.0})
    assert "other warps at a barrier" in found.reasons[0]


def test_without_throughput_nothing_is_claimed() -> None:
    found = judge(measured({"gpu__time_duration.sum": 5, DRAM: 99.0, L2: 4.0}))
    assert (found.bound, found.compute_percent, found.memory_percent) == ("cannot tell", None, 99.0)
    assert found.reasons == [
        "the file has no throughput of computing: let ncu collect the section SpeedOfLight",
    ]
    assert judged().bound == "cannot tell"


def test_the_position_below_the_roofs() -> None:
    # GIVEN 50e9 fused operations and 100 MB in 2 ms
    point = point_of(measured(MULTIPLIES))
    assert point is not None
    # THEN these are 100e9 operations at 50 TFLOP/s, 1000 per byte
    assert (point.operations, point.precision) == (100e9, "single")
    assert point.rate == pytest.approx(50e12)
    assert point.intensity == pytest.approx(1000)
    # AND the roofs are 2 x 16896 x 1.5 GHz and 1024 bytes x 2500.5 MHz
    roofs = roofs_of([measured(figures) for _, figures in KERNELS])
    assert roofs.rates == {"single": pytest.approx(50.688e12)}
    assert roofs.bandwidth == pytest.approx(3200e6 / 1e-3 / 0.9125)
    alone = roofs_of([measured(MULTIPLIES)])
    assert alone.bandwidth == pytest.approx(1024 * 2500.5e6)


def test_operations_of_every_kind() -> None:
    name = "sm__sass_thread_inst_executed_op_{}_pred_on.sum"
    counts = {"fadd": 3, "fmul": 5, "ffma": 7, "dadd": 11, "dfma": 13, "hmul": 17}
    figures = {name.format(kind): count for kind, count in counts.items()}
    figures |= {"gpu__time_duration.sum": 1000, "dram__bytes_read.sum": 20,
                "dram__bytes_write.sum": 5}  # fmt: skip
    point = point_of(measured(figures))
    assert point is not None
    assert point.operations == 3 + 5 + 2 * 7 + 11 + 2 * 13 + 17
    assert (point.precision, point.bytes) == ("double", 25)
    # Counted per cycle, like the roofline section of ncu.
    figures = {
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed": 10,
        "smsp__cycles_elapsed.avg.per_second": 1_000_000_000,
        "gpu__time_duration.sum": 2_000,
        "dram__bytes.sum": 8,
    }
    point = point_of(measured(figures))
    assert point is not None
    assert point.operations == pytest.approx(2 * 10 * 1e9 * 2e-6)


def test_no_position_without_counted_operations() -> None:
    tensor = {"sm__inst_executed_pipe_tensor.sum": 4}
    assert point_of(measured({**MULTIPLIES, **tensor})) is None
    assert point_of(measured({"gpu__time_duration.sum": 5, "dram__bytes.sum": 5})) is None
    assert point_of(measured({FFMA: 5, "dram__bytes.sum": 5})) is None
    assert point_of(measured({FFMA: 5, "gpu__time_duration.sum": 5})) is None
    # Nor for negative figures, which have no position on a logarithmic axis.
    for name in ("gpu__time_duration.sum", "dram__bytes.sum", FFMA):
        whole = {FFMA: 5, "gpu__time_duration.sum": 5, "dram__bytes.sum": 5}
        assert point_of(measured(whole)) is not None
        assert point_of(measured({**whole, name: -5})) is None
    damaged = {name: -abs(figure) for name, figure in MULTIPLIES.items()}
    assert roofs_of([measured(damaged)]).rates == {}


@pytest.mark.parametrize(
    ("name", "base", "bare"),
    [
        ("void at::native::copy<float, (int)4>(float *, float *)", "copy",
         "at::native::copy<float,4>"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("void (anonymous namespace)::softmax<(bool)1, int>(int, S<(int)3>)", "softmax",
         "(anonymousnamespace)::softmax<1,int>"),
        ("void cutlass::Kernel2<a::b<1>, c>(a::b<1>::Params)", "Kernel2",
         "cutlass::Kernel2<a::b<1>,c>"),
        ("triton_per_fused_0", "triton_per_fused_0", "triton_per_fused_0"),
        ("f(void (*)(int), long)", "f", "f"), ("", "", ""), ("<<<", "<<<", "<<<"),
    ],
)  # fmt: skip
def test_names_of_kernels(name: str, base: str, bare: str) -> None:
    assert (base_name(name), without_parameters(name)) == (base, bare)


def test_both_spellings_are_one_kernel() -> None:
    ncu = "void ns::gemm<(int)32, (bool)1>(const float *, unsigned int)"
    trace = "void ns::gemm<32, 1>(const float*, unsigned int)"
    assert one_way(ncu) == one_way(trace)
    ncu, trace = "void <unnamed>::k<4>(int)", "void (anonymous namespace)::k<4>(int)"
    assert one_way(ncu) == one_way(trace)
    assert base_name(ncu) == base_name(trace) == "k"


def a_report() -> NcuReport:
    """A report of four kernels; the breakdown spells them differently, and has more."""
    top = TopKernels(
        "denoise",
        [
            Top("void at::native::copy<float, 4>(float*, float*)", 60.0, 600),
            Top("sm90_xmma_gemm", 25.0, 20),
            Top("void other::tiny<true>(int)", 5.0, 1),
            Top("void ns::tiny<false>(int)", 4.0, 1),
            Top("never_measured", 3.0, 1),
        ],
        100.0,
        1,
    )
    launchers = {top.kernels[0].name: ("aten::copy_", "denoise/attention")}
    return report(parse(long_file(KERNELS), "ncu.csv"), top, 5, launchers)


def test_the_report_links_stage_and_operator() -> None:
    # GIVEN a breakdown, and operators from its trace
    # WHEN the report is created
    found = a_report()
    rows = found.to_dict()["kernels"]
    # THEN a kernel that matches has its time, operator and stage; an ambiguous one does not
    assert [row["bound"] for row in rows] == [
        "memory-bound", "compute-bound", "latency-bound", "balanced",
    ]  # fmt: skip
    assert [row["traced_ms"] for row in rows] == [60.0, 25.0, None, None]
    assert (rows[0]["operator"], rows[0]["stage"]) == ("aten::copy_", "denoise/attention")
    assert (rows[1]["operator"], rows[1]["stage"]) == (None, "denoise")
    assert found.not_measured == ["never_measured"]
    # AND the findings are ordered by their cost, each with its evidence
    findings = found.findings()
    assert [each.severity for each in findings] == ["high", "high", "low", "low"]
    assert [each.code for each in findings] == [
        "ncu.memory_bound", "ncu.compute_bound", "ncu.latency_bound", "ncu.balanced",
    ]  # fmt: skip
    assert findings[0].numbers == {
        "percent": 60, "compute_percent": 20.5, "memory_percent": 91.25,
    }  # fmt: skip
    assert findings[0].sentence.startswith(
        "copy (60.0 % of the kernel time of denoise, launched by aten::copy_) is memory-bound:"
        " computing 20.5 %, memory 91.2 % of the peak; device memory is the busiest part."
    )
    assert [(e.event, e.figure, e.unit) for e in findings[0].evidence] == [
        ("void at::native::copy<float, (int)4>(float *, float *)", 1_000_000, "ns"),
        (COMPUTE, 20.5, "%"), (MEMORY, 91.25, "%"), (ACHIEVED, 85.0, "%"),
    ]  # fmt: skip


def test_a_file_with_counts_alone_is_answered_by_its_fastest_kernel() -> None:
    # GIVEN four kernels of which only the time, the bytes and the operations were measured: one
    # that computes at a tenth of the rate of the fastest, one at 80 %, and one without operations
    counts = {"dram__bytes.sum": 1_000_000, "sm__sass_thread_inst_executed_op_ffma_pred_on.sum": 0}
    ffma = "sm__sass_thread_inst_executed_op_ffma_pred_on.sum"
    kernels = [
        ("slow", counts | {"gpu__time_duration.sum": 10_000_000, ffma: 1_000_000_000}),
        ("near", counts | {"gpu__time_duration.sum": 1_000_000, ffma: 800_000_000}),
        ("fast", counts | {"gpu__time_duration.sum": 1_000_000, ffma: 1_000_000_000}),
        ("copy", counts | {"gpu__time_duration.sum": 1_000_000}),
    ]
    # WHEN they are judged
    found = report(parse(long_file(kernels), "counts.csv"))
    # THEN the slow one is known not to be limited by arithmetic: 200 GFLOP/s of 2 TFLOP/s or more
    assert {each.bound for each in found.kernels} == {"cannot tell"}
    (finding,) = found.findings()
    assert finding.code == "ncu.low_rate"
    assert finding.sentence.startswith("slow computes 200.000 GFLOP/s, at most 10.0 % of")
    assert finding.evidence[0].event == "slow"


def test_hostile_names_do_not_reach_the_page() -> None:
    name = "</svg><script>alert(1)</script>\x1b&\"'" + "x" * 9_999
    found = report(parse(long_file([(name, {**STREAMS, **MULTIPLIES})]), "ncu.csv"))
    assert "\x1b" not in markdown_of(found)
