"""The page on a terminal: it fits, says the most important, and what else there is."""

from __future__ import annotations

import io
import itertools
import re
from pathlib import Path

import pytest
from html_pages import a_trace
from rich.console import Console

from stagespan.pages.amounts import in_words
from stagespan.pages.result import Evidence, Finding, time_units
from stagespan.pages.terminal import one_liners, print_block, print_page, whole_finding_block
from stagespan.trace.analysis import Analysis
from stagespan.trace.paths import analyze_path

SIZES = [(24, 80), (40, 120), (24, 200)]
REAL = [
    "cuda_b200_vllm_eager.json.gz", "rocm_mi300_ddp_resnet.json.gz", "cpu_only.json.gz",
    "cuda_v100_nccl_train.json.gz", "ascend_level1/rank0_ascend_pt",
]  # fmt: skip


def printed(analysis: Analysis, height: int, width: int) -> list[str]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=width, height=height, no_color=True)
    print_page(analysis, console)
    return re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue()).splitlines()


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_a_trace_with_every_analysis_fits(height: int, width: int, tmp_path: Path) -> None:
    # GIVEN a trace with steps, memory, stacks and waits
    analysis = analyze_path(a_trace(tmp_path))
    lines = printed(analysis, height, width)
    # THEN the prompt still has its line, and nothing is broken at the right edge
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    # AND verdict, the device's bar, a finding with its evidence, and the list of the rest are there
    text = " ".join(" ".join(lines).split())
    assert analysis.to_dict()["verdict"]["sentence"] in text
    # On a small screen, the finding is more important than the table.
    assert "why it was idle" in text or height == 24
    assert analysis.findings()[0].first_line in text
    tables = sum(len(result.tables()) for result in analysis.results.values())
    assert f"{tables} tables and all evidence: --html FILE, --markdown or --json." in text


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_a_comparison_fits(height: int, width: int, tmp_path: Path) -> None:
    before = a_trace(tmp_path, us=40, name="before")
    analysis = analyze_path(a_trace(tmp_path, us=900, name="after"), before)
    lines = printed(analysis, height, width)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert any(line.startswith("all ") for line in lines)


def test_on_a_tall_terminal_each_analysis_has_a_line(tmp_path: Path) -> None:
    analysis = analyze_path(a_trace(tmp_path))
    figures = analysis.to_dict()
    told = dict(one_liners(analysis))
    assert list(told) == ["Steps", "Critical path", "Memory"]
    median = figures["steps"]["step_us"]["median"]
    assert told["Steps"].startswith(f"{figures['steps']['count']}, {median:.0f} µs in the median")
    # 2 µs before the first step, steps of 158 and 168 µs, 300 after each, 15 into the third.
    assert told["Memory"] == "at most 7.00 MiB on cuda:0, at 943.000 µs"
    lines = printed(analysis, 50, 120)
    spent = "Time goes to: matrix products 100 % of the 150 µs of 3 device events."
    assert lines.count(spent) == 1
    assert [line for line in lines if line.startswith("Steps ")] == [f"{'Steps':15}{told['Steps']}"]


@pytest.mark.parametrize("name", REAL)
def test_real_traces_fit(name: str, traces: Path) -> None:
    analysis = analyze_path(traces / name)
    for height, width in SIZES:
        assert len(printed(analysis, height, width)) < height, (height, width)


def test_the_bar_and_its_words_are_one_line(traces: Path) -> None:
    analysis = analyze_path(traces / "cuda_b200_vllm_eager.json.gz")
    lines = printed(analysis, 60, 100)
    (line,) = [line for line in lines if line.startswith("Device ")]
    assert line.count("#") > 20
    words = ["computing", "communicating", "copying", "idle"]
    assert re.findall(r"([a-z]+) [\d.]+ %", line) == words


def test_a_real_comparison_fits(traces: Path) -> None:
    before, after = (traces / f"old_v100_resnet_workers{n}.json.gz" for n in (0, 4))
    analysis = analyze_path(after, before)
    for height, width in SIZES:
        assert len(printed(analysis, height, width)) < height, (height, width)


@pytest.mark.parametrize("name", REAL)
def test_evidence_does_not_repeat_the_sentence(name: str, traces: Path) -> None:
    found = analyze_path(traces / name).findings()
    for finding in found:
        repeated = [
            each
            for each in finding.evidence
            if each.time_ns is None
            and each.figure is not None
            and in_words(each.figure, each.unit) in finding.text
        ]
        assert len(finding.evidence) == 1 or repeated == []


@pytest.mark.parametrize("width", [80, 120])
def test_a_piece_of_evidence_has_one_line(width: int) -> None:
    # GIVEN evidence whose name is a long path, and one that is a short name
    frame = f"/{'folder/' * 20}model.py(12): {'forward' * 9}"
    shown = (Evidence(frame, 1_500_000, 2_500.0, "ns"), Evidence("gemm", 10, 3_000.0, "ns"))
    finding = Finding("high", "A sentence.", shown, "a.b")
    text = io.StringIO()
    console = Console(file=text, width=width, height=40, no_color=True)
    print_block(whole_finding_block(finding, width), console)
    # THEN each has a line with its file, its time and its figure
    first, second = [line for line in text.getvalue().splitlines() if line.strip()[:1] == "-"]
    assert first.strip().startswith("- model.py(12): forward")
    assert first.endswith(" at 1.500 ms: 2.50 µs")
    assert len(first) <= width
    assert second.strip() == "- gemm at 0.010 µs: 3.00 µs"


@pytest.mark.parametrize("name", REAL)
def test_the_first_change_and_its_gain_are_on_the_smallest_screen(name: str, traces: Path) -> None:
    analysis = analyze_path(traces / name)
    text = " ".join(" ".join(printed(analysis, 24, 80)).split())
    assert analysis.to_dict()["verdict"]["sentence"] in text
    first = analysis.findings()[0]
    assert first.first_line in text
    assert first.first_line.startswith("" if first.gain is None else str(first.gain))


@pytest.mark.parametrize("name", REAL)
def test_an_amount_is_on_the_line_of_its_unit(name: str, traces: Path) -> None:
    analysis = analyze_path(traces / name)
    unit = re.compile(r"\s*(?:%|µs|ms|s|bytes|[KMGT]iB)(?![\w/])")
    for width in range(60, 121, 10):
        lines = printed(analysis, 100, width)
        for line, following in itertools.pairwise(lines):
            assert not (line[-1:].isdigit() and unit.match(following)), (line, following)
        # AND no line contains what stands for such a blank
        assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("longest", "units"),
    [
        ([999_999, 1_000], ["µs", "µs"]),
        ([0, 0], ["µs", "µs"]),
        ([1_000_000, 20_000], ["ms", "ms"]),
        # A column of times below 10 µs would lose its digits in ms.
        ([50_000_000, 9_999, 0], ["ms", "µs", "ms"]),
        ([10**12, 20_000_000, 9_999_999], ["s", "s", "ms"]),
    ],
)
def test_only_columns_of_far_shorter_times_have_another_unit(
    longest: list[int], units: list[str]
) -> None:
    assert [unit for _, unit in time_units(longest)] == units
