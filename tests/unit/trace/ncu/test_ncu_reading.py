"""ncu's CSV: both layouts, number formats of countries, units, and invalid files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ncu_files import DRAM, FFMA, HEAD, KERNELS, MEMORY, long_file, place, wide_file

from stagespan.errors import TraceError
from stagespan.trace.ncu.reading import (
    NoKernelsError,
    Reading,
    decimal_sign,
    in_base_unit,
    number,
    parse,
    read_ncu,
)

EXPECTED = {
    "gpu__time_duration.sum": (1e-3, 2e-3, 12.345e-6, 5e-6),
    "dram__bytes.sum": (3_200_000_000, 100_000_000, 1_000, None),
    FFMA: (400_000_000, 50_000_000_000, None, None),
    MEMORY: (91.25, 45.0, 31.0, 66.0),
    "sm__cycles_elapsed.avg.per_second": (None, 1.5e9, None, None),
    "dram__cycles_elapsed.avg.per_second": (None, 2_500.5e6, None, None),
}


def check(reading: Reading) -> None:
    """Check that all figures are there in base units, and nothing was left out."""
    assert [kernel.name for kernel in reading.kernels] == [name for name, _ in KERNELS]
    assert [kernel.number for kernel in reading.kernels] == [0, 1, 2, 3]
    assert reading.kernels[0].grid == (64, 2, 1)
    assert reading.kernels[0].block == (256, 1, 1)
    for metric, values in EXPECTED.items():
        for kernel, value in zip(reading.kernels, values, strict=True):
            if value is None:
                assert metric not in kernel.metrics
            else:
                assert kernel.metrics[metric] == pytest.approx(value, rel=1e-12), metric
    assert reading.left_out == {}
    assert reading.incomplete is None


@pytest.mark.parametrize("layout", [long_file, wide_file])
@pytest.mark.parametrize(
    ("decimal", "parted_by"),
    [
        (".", ","),
        (",", "."),
        (",", "\u202f"),
        (",", "\u00a0"),
        (".", "'"),
        (".", "\u2019"),
        (".", ""),
    ],
)
def test_both_layouts_in_every_notation(layout: object, decimal: str, parted_by: str) -> None:
    # GIVEN the same kernels in one layout and one country's number format
    assert callable(layout)
    text = layout(KERNELS, decimal, parted_by)
    # WHEN it is read
    # THEN the figures are the same
    check(parse(text, "ncu.csv"))


@pytest.mark.parametrize("layout", [long_file, wide_file])
def test_a_programs_output_around_the_table(layout: object) -> None:
    assert callable(layout)
    lines = layout(KERNELS).splitlines(keepends=True)
    # GIVEN a table with lines of ncu and of a program before, inside and after it
    lines.insert(2, '==PROF== Profiling "copy" - 0: 0%....50%....100% - 40 passes\n')
    lines.insert(5, "Running 1 warmup iteration(s)...\n")
    text = "==PROF== Connected to process 1\nloading, please wait\n" + "".join(lines) + "done\n"
    # WHEN it is read
    reading = parse(text, "ncu.csv")
    # THEN the program's lines are counted, and nothing else differs
    assert reading.left_out == {"line that is not a row of the table": 2}
    reading.left_out.clear()
    check(reading)


@pytest.mark.parametrize("short", [False, True])
def test_the_page_of_details_is_read_by_its_labels(short: bool) -> None:
    # GIVEN rows with labels instead of metrics, one of which is ambiguous, and rules
    head = [*HEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name"]
    head += ["Rule Type", "Rule Description"] if short else []
    rows = [
        ("GPU Speed Of Light Throughput", "Duration", "usecond", "12.35", ""),
        ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "31.00", ""),
        ("GPU Speed Of Light Throughput", "Compute (SM) Throughput", "%", "12.00", ""),
        ("Memory Workload Analysis", "Memory Throughput", "Gbyte/second", "1,234.50", ""),
        ("Launch Statistics", "Enabled TPC IDs", "", "all", ""),
        ("SpeedOfLight", "", "", "", "SOLBottleneck", *(["OPT", "It waits."] if short else [])),
    ]
    text = "\n".join(
        ",".join(f'"{cell}"' for cell in row)
        for row in (head, *([*place(0, "k"), *row] for row in rows))
    )
    if short:  # as newer versions write them
        text = text.replace(',""\n', ",\n")
    # WHEN it is read
    reading = parse(text + "\n", "ncu.csv")
    (kernel,) = reading.kernels
    assert reading.left_out == {}
    # THEN the figures have the metrics' own names
    assert kernel.metrics == {
        "gpu__time_duration.sum": pytest.approx(12.35e-6),
        MEMORY: 31.0,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 12.0,
        "dram__bytes.sum.per_second": pytest.approx(1234.5e9),
    }


def test_columns_about_device_and_launch_are_read() -> None:
    # GIVEN the columns that ncu writes next to the metrics, one of which looks like a fraction
    words = {
        "c2clink__enabled_mask": "0x3",
        "device__attribute_display_name": "NVIDIA H100, PCIe",
        "device__attribute_confidential_computing_mode": "No-CC",
        "launch__func_cache_config": "CachePreferNone",
    }
    kernels = [("void <unnamed>::k<4, 1>(const __half *)", {**words, FFMA: 1_234, MEMORY: "7"})]
    # WHEN they are read
    # THEN the numbers are unchanged, and there is no remark
    reading = parse(wide_file(kernels), "ncu.csv")
    assert reading.left_out == {}
    assert reading.kernels[0].metrics == {FFMA: 1_234, MEMORY: 7}


def test_a_sample_of_a_real_device(traces: Path) -> None:
    # GIVEN nine launches of eight products of 1024 x 1024 matrices
    reading = read_ncu(traces / "ncu" / "sgemm_series_cc86.csv")
    # WHEN it is read
    # THEN the hand-written ones did exactly 1024^3 fused operations
    assert [k.metrics[FFMA] for k in reading.kernels] == [1024**3] * 7 + [1_094_713_344] * 2
    assert reading.kernels[0].metrics == {
        "dram__bytes.sum": 32_746_880,
        "gpu__time_duration.sum": pytest.approx(10_776_576e-9, rel=1e-15),
        "sm__sass_thread_inst_executed_op_fadd_pred_on.sum": 0,
        FFMA: 1024**3,
        "sm__sass_thread_inst_executed_op_fmul_pred_on.sum": 1024**2,
    }
    assert reading.kernels[7].name == "ampere_sgemm_128x64_nn"
    assert reading.left_out == {}


@pytest.mark.parametrize(
    ("values", "sign"),
    [
        (["1,234.5"], "."), (["1.234,5"], ","), (["1,234,567"], "."), (["1.234.567"], ","),
        (["12,5"], ","), (["12.5"], "."), (["1,234"], "."), ([], "."), (["7"], "."),
        (["0,125"], ","), (["0.125"], "."), (["1,234", "0,50"], ","), (["1.234", "0.50"], "."),
        (["1,234", "5,678", "12.25"], "."), (["1 234,5"], ","), (["12345,678"], ","),
    ],
)  # fmt: skip
def test_the_decimal_sign_is_recognised(values: list[str], sign: str) -> None:
    assert decimal_sign(values) == sign


@pytest.mark.parametrize(
    ("text", "decimal", "value"),
    [
        ("1,073,741,824", ".", 1_073_741_824), ("1.073.741.824", ",", 1_073_741_824),
        ("1\u202f234,5", ",", 1234.5), ("1'234.5", ".", 1234.5), ("45.70 %", ".", 45.7),
        ("1.5e+09", ".", 1.5e9), ("-3", ".", -3), ("9,007,199,254,740,993", ".", 2**53 + 1),
        ("nan", ".", None), ("n/a", ".", None), ("", ".", None), ("(32, 1, 1)", ".", None),
        ("1.2.3", ".", None), ("9" * 400, ".", None), ("1e999", ".", None), ("1e-99", ".", None),
        ("0.00", ".", 0.0),
    ],
)  # fmt: skip
def test_numbers(text: str, decimal: str, value: float | None) -> None:
    assert number(text, decimal) == value


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (5, "nsecond", (5e-9, "second")), (5, "us", (5e-6, "second")), (2, "ms", (2e-3, "second")),
        (3, "Kbyte", (3000, "byte")), (3, "Gbyte/second", (3e9, "byte/second")),
        (1.41, "cycle/nsecond", (1.41e9, "hz")), (1.41, "Ghz", (1.41e9, "hz")),
        (7, "", (7, "")), (7, "%", (7, "%")), (4, "register/thread", (4, "register/thread")),
        (2, "Kbyte/block", (2000, "byte/block")), (9, "sector", (9, "sector")),
    ],
)  # fmt: skip
def test_units(value: float, unit: str, expected: tuple[float, str]) -> None:
    scaled, base = in_base_unit(value, unit)
    assert (pytest.approx(scaled), base) == expected


@pytest.mark.parametrize(
    ("text", "cause", "says"),
    [
        ("", "empty", "is empty"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "permission", "as root"),
        (
            "==PROF== Connected\n==WARNING== No kernels were profiled.\n",
            "no_match",
            "raise --top",
        ),
        ("==ERROR== Failed to find metric foo__bar\n", "ncu", "Failed to find metric foo__bar"),
        ("a,b\n1,2\n", "format", "is not a CSV file of ncu"),
        (
            '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n',
            "format",
            "is not a CSV file of ncu",
        ),
        ("\x1b[2J\x00\xff" * 9, "format", "is not a CSV file of ncu"),
    ],
)
def test_files_without_a_kernel_give_one_sentence(
    text: str, cause: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "ncu.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(NoKernelsError, match=re.escape(says)) as caught:
        read_ncu(path)
    assert caught.value.cause == cause
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_ncu(tmp_path / "none.csv")
    (tmp_path / "x.ncu-rep").write_bytes(b"NVR\x00...")
    with pytest.raises(TraceError, match="--report"):
        read_ncu(tmp_path / "x.ncu-rep")


@pytest.mark.parametrize("layout", [long_file, wide_file])
def test_a_truncated_file_gives_a_remark(layout: object) -> None:
    # GIVEN a file that ends in the middle of its last row
    assert callable(layout)
    text = layout(KERNELS)
    whole = parse(text, "ncu.csv").kernels
    last_line = text.rindex("\n", 0, -1) + 1
    for end in range(last_line + 5, len(text) - 2):
        # WHEN it is read
        # THEN the complete rows are unchanged, and a remark says that the rest is missing
        reading = parse(text[:end], "ncu.csv")
        for kernel in reading.kernels:
            assert kernel.metrics.items() <= whole[kernel.number].metrics.items(), text[
                end - 9 : end
            ]
        assert reading.kernels[0].metrics[DRAM] == 91.25
        assert reading.incomplete or text[end - 1] == '"', text[end - 9 : end]


def test_values_that_are_not_numbers_are_counted() -> None:
    text = long_file([("k", {MEMORY: 50.0, DRAM: "n/a", FFMA: "nan"})])
    reading = parse(text, "ncu.csv")
    assert reading.left_out == {"value that is not a number": 2}
    assert reading.kernels[0].metrics == {MEMORY: 50.0}


def test_encodings(tmp_path: Path) -> None:
    text = wide_file(KERNELS, ",", "\u00a0")
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "cp1252"):
        path = tmp_path / f"{encoding}.csv"
        path.write_bytes(text.encode(encoding))
        check(read_ncu(path))
