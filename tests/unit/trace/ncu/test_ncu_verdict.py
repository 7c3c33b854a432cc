"""Verdicts on kernels with known figures, from files in both layouts and many notations."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from ncu_files import (
    ACHIEVED,
    BARRIER,
    COMPUTE,
    DRAM,
    FFMA,
    KERNELS,
    LONG,
    MEMORY,
    THEORETICAL,
    WAITS,
    WAVES,
    WHOLE,
    Figures,
    long_file,
    wide_file,
)  # fmt: skip

from stagespan.errors import TraceError
from stagespan.pages.markdown import markdown_of
from stagespan.trace import nsight
from stagespan.trace.nsight import NcuReport, Reading, TopKernels, judge, parse, read_ncu, report

Layout = Callable[..., str]
BOUNDS = ["memory-bound", "compute-bound", "latency-bound", "balanced"]


def judged(figures: Figures) -> tuple[str, list[str]]:
    return judge(parse(long_file([("k", figures)]), "ncu.csv").kernels[0].metrics)


def check(reading: Reading) -> None:
    """Check that all figures are there, with times in seconds."""
    assert [kernel.name for kernel in reading.kernels] == [name for name, _ in KERNELS]
    for kernel, (_, figures) in zip(reading.kernels, KERNELS, strict=True):
        assert kernel.metrics.keys() == figures.keys()
        for metric, value in figures.items():
            scale = 1e-9 if metric == "gpu__time_duration.sum" else 1
            assert kernel.metrics[metric] == pytest.approx(float(value) * scale, rel=1e-12), metric


@pytest.mark.parametrize("layout", [long_file, wide_file])
@pytest.mark.parametrize(
    ("decimal", "parted_by"),
    [
        (".", ","), (",", "."), (",", "\u202f"), (",", "\u00a0"), (".", "'"), (".", "\u2019"),
        (".", ""),
    ],
)  # fmt: skip
def test_both_layouts_in_every_notation(layout: Layout, decimal: str, parted_by: str) -> None:
    # GIVEN the same kernels in one layout and one country's number format
    reading = parse(layout(KERNELS, decimal, parted_by), "ncu.csv")
    # THEN the figures are the same
    check(reading)
    assert reading.left_out == 0


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "ncu.csv"
    path.write_bytes(wide_file(KERNELS, ",", "\u00a0").encode(encoding))
    check(read_ncu(path))


@pytest.mark.parametrize("layout", [long_file, wide_file])
def test_a_table_that_another_program_has_saved(layout: Layout) -> None:
    saved = io.StringIO()
    csv.writer(saved).writerows(csv.reader(layout(KERNELS).splitlines()))
    assert '"ID"' not in saved.getvalue()
    check(parse(saved.getvalue(), "ncu.csv"))


@pytest.mark.parametrize("layout", [long_file, wide_file])
def test_a_programs_output_around_the_table(layout: Layout) -> None:
    lines = layout(KERNELS).splitlines(keepends=True)
    # GIVEN a table with lines of ncu and of a program before, inside and after it
    lines.insert(2, '==PROF== Profiling "copy" - 0: 0%....50%....100% - 40 passes\n')
    lines.insert(5, "Running 1 warmup iteration(s)...\n")
    text = "==PROF== Connected to process 1\nloading, please wait\n" + "".join(lines) + "done\n"
    reading = parse(text, "ncu.csv")
    # THEN the program's lines are counted, and nothing else differs
    check(reading)
    assert reading.left_out == 2


@pytest.mark.parametrize("layout", [long_file, wide_file])
def test_a_file_that_was_cut_off(layout: Layout) -> None:
    # GIVEN files of which only a part was written
    text = layout(KERNELS)
    for end in range(len(text) - 1, text.index(KERNELS[1][0]), -7):
        # WHEN they are read THEN no figure of the last row is taken that is not complete
        reading = parse(text[:end], "ncu.csv")
        for kernel, (_, figures) in zip(reading.kernels, KERNELS, strict=False):
            assert set(kernel.metrics) <= set(figures)
            assert kernel.metrics.get(COMPUTE, figures[COMPUTE]) == figures[COMPUTE]


def test_values_that_are_not_numbers_are_counted() -> None:
    words = {"device__attribute_display_name": "NVIDIA H100, PCIe", "c2clink__enabled_mask": "0x3"}
    odd = {DRAM: "n/a", FFMA: "nan", COMPUTE: "9" * 400, WAVES: "1.2.3", WHOLE: "(32, 1, 1)"}
    # GIVEN damaged figures, and descriptions of the device that are words
    reading = parse(long_file([("k", {MEMORY: 50.0, **odd, **words})]), "ncu.csv")
    # WHEN they are read THEN only figures are counted: metrics have a dot in their names
    assert reading.left_out == 4
    assert reading.kernels[0].metrics == {MEMORY: 50.0}


@pytest.mark.parametrize("text", ["", "a,b\n", "==ERROR== ERR_NVGPUCTRPERM - no\x1b\n", '"ID",'])
def test_a_file_without_kernels_is_one_sentence(text: str) -> None:
    with pytest.raises(TraceError, match="contains no kernels") as raised:
        parse(text, "ncu.csv")
    assert ("ERR_NVGPUCTRPERM" in str(raised.value)) == ("ERR_NVGPUCTRPERM" in text)
    assert str(raised.value).isprintable()


def test_a_sample_of_a_real_device(traces: Path) -> None:
    # GIVEN nine launches of eight products of 1024 x 1024 matrices
    reading = read_ncu(traces / "ncu" / "sgemm_series_cc86.csv")
    # THEN the hand-written ones did exactly 1024^3 fused operations
    assert [k.metrics[FFMA] for k in reading.kernels] == [1024**3] * 7 + [1_094_713_344] * 2
    assert reading.kernels[0].metrics["gpu__time_duration.sum"] == pytest.approx(10_776_576e-9)
    assert reading.left_out == 0
    # AND without throughputs, nothing is claimed
    assert {kernel.bound for kernel in report(reading).kernels} == {"cannot tell"}


def test_each_bound_by_throughput() -> None:
    # GIVEN the four kernels
    # WHEN the verdicts are determined THEN each has its bound
    assert [judged(figures)[0] for _, figures in KERNELS] == BOUNDS


def test_the_thresholds() -> None:
    for compute, memory, bound in (
        (59.9, 59.9, "latency-bound"), (60.0, 49.9, "compute-bound"), (49.9, 60.0, "memory-bound"),
        (60.0, 50.1, "balanced"), (70.0, 60.0, "compute-bound"), (69.9, 60.0, "balanced"),
        (60.0, 70.0, "memory-bound"), (95.0, 94.0, "balanced"), (0.0, 0.0, "latency-bound"),
        (100.0, 12.0, "compute-bound"),
    ):  # fmt: skip
        assert judge({COMPUTE: compute, MEMORY: memory})[0] == bound, (compute, memory)


def test_why_a_kernel_waits() -> None:
    # GIVEN a small grid, a limited occupancy that is not reached, and warps that wait for memory
    # WHEN the verdict is determined THEN each of these is a reason, with its figure
    assert judged(WAITS)[1] == [
        "its grid fills the device only 0.12 times: too few blocks",
        "its occupancy is limited to 50.0 %",
        "it reaches only 22.0 % of the possible occupancy",
        "its warps spend 70.0 % of the time in the stall `long_scoreboard`",
    ]


def test_no_reason_is_invented() -> None:
    nothing = ["neither computing nor memory is in use for most of the time"]
    # GIVEN a full grid and full occupancy, and a stall below the threshold
    full = {COMPUTE: 50, MEMORY: 40, WAVES: 1.0, THEORETICAL: 80.0, ACHIEVED: 70.0, WHOLE: 10.0}
    ready = LONG.replace("long_scoreboard", "not_selected")
    # WHEN the verdict is determined THEN no reason is given
    assert judge({**full, BARRIER: 2.9, ready: 9.0}) == ("latency-bound", nothing)
    assert "`barrier`" in judge({**full, BARRIER: 3.0})[1][0]


def test_without_throughput_nothing_is_claimed() -> None:
    assert judge({"gpu__time_duration.sum": 5, DRAM: 99.0})[0] == "cannot tell"


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("void at::native::copy<float, (int)4>(float *, float *)", "copy"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("void (anonymous namespace)::softmax<(bool)1, int>(int, S<(int)3>)", "softmax"),
        ("void cutlass::Kernel2<a::b<1>, c>(a::b<1>::Params)", "Kernel2"),
        ("f(void (*)(int), long)", "f"), ("", ""), ("<<<", "<<<"),
    ],
)  # fmt: skip
def test_names_of_kernels(name: str, base: str) -> None:
    assert nsight.base_name(name) == base


@pytest.mark.parametrize(
    ("ncu", "trace"),
    [
        ("void ns::gemm<(int)32, (bool)1>(const float *, unsigned int)",
         "void ns::gemm<32, 1>(const float*, unsigned int)"),
        ("void <unnamed>::k<4>(int)", "void (anonymous namespace)::k<4>(int)"),
    ],
)  # fmt: skip
def test_both_spellings_are_one_kernel(ncu: str, trace: str) -> None:
    assert nsight.normal_form(ncu) == nsight.normal_form(trace)
    assert nsight.normal_form(ncu) != nsight.normal_form(ncu.replace("4", "8").replace("32", "64"))
    assert nsight.base_name(ncu) == nsight.base_name(trace)


def a_report() -> NcuReport:
    """A report of four kernels; the breakdown spells them differently, and has more."""
    top = TopKernels(
        [
            nsight.Top("void at::native::copy<float, 4>(float*, float*)", 60.0, 600),
            nsight.Top("sm90_xmma_gemm", 25.0, 20),
            nsight.Top("void other::tiny<true>(int)", 5.0, 1),
            nsight.Top("never_measured", 3.0, 1),
        ],
        "denoise",
        100.0,
    )
    return report(parse(long_file(KERNELS), "ncu.csv"), top, 5)


def test_the_report_has_the_times_of_the_stage() -> None:
    # GIVEN a breakdown
    found = a_report()
    rows = found.to_dict()["kernels"]
    # THEN a kernel that the breakdown lists has its time
    assert [row["bound"] for row in rows] == BOUNDS
    assert [row["traced_ms"] for row in rows] == [60.0, 25.0, None, None]
    assert found.not_measured == ["never_measured"]
    # AND the findings are ordered by their cost, each with its evidence
    findings = found.findings()
    assert [finding.severity for finding in findings] == ["high", "high", "low", "low"]
    assert [finding.code for finding in findings] == [
        "ncu.memory_bound", "ncu.compute_bound", "ncu.latency_bound", "ncu.balanced",
    ]  # fmt: skip
    assert findings[0].numbers == {"percent": 60}
    assert findings[0].sentence.startswith(
        "copy (60.0 % of the kernel time of denoise) is memory-bound:"
        " computing 20.5 %, memory 91.2 % of the peak; memory is the busiest part."
    )
    assert [(e.event, e.figure, e.unit) for e in findings[0].evidence] == [
        ("void at::native::copy<float, (int)4>(float *, float *)", 1_000_000, "ns"),
    ]  # fmt: skip


def test_hostile_names_do_not_reach_the_page() -> None:
    name = "</svg><script>alert(1)</script>\x1b&\"'" + "x" * 9_999
    found = report(parse(long_file([(name, KERNELS[0][1])]), "ncu.csv"))
    assert "\x1b" not in markdown_of(found, found.findings())
