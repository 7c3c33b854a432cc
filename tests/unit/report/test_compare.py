"""Reading timing reports, including broken and foreign ones, and comparing two of them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import stagespan
from properties import examples
from stagespan.cli import command
from stagespan.compat.telefuser import comparison as telefuser
from stagespan.errors import ReportError
from stagespan.report import compare_timing_reports
from stagespan.report.reader import read_timing_report


def write(path: Path, report: object) -> Path:
    path.write_text(json.dumps(report))
    return path


def rows(markdown: str) -> dict[str, list[str]]:
    """Return the cells of each table row, by the first one."""
    found = {}
    for line in markdown.splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            found[cells[0]] = cells[1:]
    return found


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a file with only TeleFuser's keys."""
    return write(
        tmp_path / "old.json",
        {
            "request_id": "req_1",
            "timestamp": "2026-04-02T10:00:00",
            "wall_clock_ms": 1300.0,
            "total_stages_ms": 1200.0,
            "num_stages": 2,
            "stages": {
                "denoise": {"duration_ms": 1000.0, "percentage": 83.3, "parallel_info": None},
                "vae_decode": {"duration_ms": 200.0, "percentage": 16.7, "parallel_info": None},
            },
            "metadata": {},
        },
    )


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write(
        tmp_path / "new.json",
        {
            "schema_version": 1,
            "wall_clock_ms": 900.0,
            "total_stages_ms": 850.0,
            "stages": {
                "denoise": {"duration_ms": 800.0, "count": 2, "mean_ms": 400.0},
                "text | encode\n": {"duration_ms": 50.0, "count": 1},
            },
            "environment": {"torch": "2.13.0"},
        },
    )


def test_changes_are_shown_in_ms_and_percent(old: Path, new: Path) -> None:
    found = rows(compare_timing_reports(old, new))
    assert found["wall clock"] == ["1,300", "900", "-400", "-30.8 %"]
    assert found["all stages"] == ["1,200", "850", "-350", "-29.2 %"]
    # the old file has no counts, so its time is taken as that of one run
    assert found["denoise"] == [
        *("1,000", "400", "-60.0 %", "", "? / 2", "faster"),
        *("-20.0 %", "? / 400", "1,000 / 800"),
    ]


def test_stages_that_only_one_report_has_are_named(old: Path, new: Path) -> None:
    found = rows(compare_timing_reports(old, new))
    added, removed = found["text \\| encode\\\\n"], found["vae_decode"]
    assert added == ["", "50.0", "", "", "1", "added", "", "50.0", "50.0"]
    assert removed == ["200", "", "", "", "?", "missing", "", "", "200"]


def test_the_largest_change_comes_first_and_counts_are_paired(tmp_path: Path) -> None:
    before = {"a": (10.0, 1), "b": (10.0, 1), "c": (10.0, 2)}
    after = {"a": (11.0, 1), "b": (5.0, 2), "c": (10.0, 2)}
    files = [
        write(
            tmp_path / f"{i}.json",
            {"stages": {n: {"duration_ms": d, "count": c} for n, (d, c) in stages.items()}},
        )
        for i, stages in enumerate((before, after))
    ]

    found = rows(compare_timing_reports(*files))

    assert [name for name in found if len(name) == 1] == ["b", "a", "c"]
    assert found["b"][4] == "1 / 2"
    assert found["b"][6:] == ["-75.0 %", "-50.0 %", "10.0 / 2.50", "10.0 / 5.00"]
    assert found["c"][2] == found["c"][6] == found["c"][7] == "+0.0 %"


def test_a_stage_that_took_no_time_before_has_no_percentage(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", {"stages": {"s": {"duration_ms": 0}}})
    b = write(tmp_path / "b.json", {"stages": {"s": {"duration_ms": 2}}})
    assert rows(compare_timing_reports(a, b))["s"][:3] == ["0", "2.00", ""]


def test_a_change_that_rounds_to_zero_has_no_minus(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", {"stages": {"s": {"duration_ms": 10_000}}})
    b = write(tmp_path / "b.json", {"stages": {"s": {"duration_ms": 9_999.9999}}})
    markdown = compare_timing_reports(a, b)
    assert rows(markdown)["s"][2] == "+0.0 %"
    assert "-0.0" not in markdown


def pipeline_report(folder: Path, times_ms: dict[str, list[float]]) -> Path:
    """Write a timing report of this process, with runs that took these times."""
    stagespan.reset_timing_registry()
    now = time.time_ns()
    for stage, runs in times_ms.items():
        for ms in runs:
            stagespan.record(stage, now - int(ms * 1e6), now)
    return stagespan.dump_timing_report(folder / "timing.json")


@pytest.mark.parametrize(
    ("before", "after", "verdicts"),
    [
        # two outliers before: the sums and means say the opposite of the medians
        (
            {"step": [200.0] * 2 + [10.0] * 58},
            {"step": [12.0] * 60},
            {"step": (20, "slower", "-26.5 %")},
        ),
        # two outliers after, which make it unclear whether the stage is faster, more runs than
        # before, and a stage that has not changed
        (
            {"decode": [40.0] * 50, "encode": [5.0] * 50},
            {"decode": [30.0] * 78 + [2000.0] * 2, "encode": [5.0] * 80},
            {
                "decode": (-25, "not known", "+98.1 %"),
                "encode": (0, "unchanged", "+0.0 %"),
            },
        ),
    ],
)
def test_all_ways_to_compare_two_reports_agree(
    tmp_path: Path,
    before: dict[str, list[float]],
    after: dict[str, list[float]],
    verdicts: dict[str, tuple[float, str, str]],
) -> None:
    files = [
        str(pipeline_report(tmp_path / name, times))
        for name, times in (("before", before), ("after", after))
    ]

    function = compare_timing_reports(files[0], files[1])
    page, against, command_markdown = (
        CliRunner().invoke(command, arguments, env={"COLUMNS": "200"})
        for arguments in (
            ["compare", *files],
            ["report", files[1], "--against", files[0]],
            ["compare", *files, "--markdown", "-"],
        )
    )

    assert page.stdout == against.stdout
    assert function == command_markdown.stdout
    is_slower = any(verdict == "slower" for _, verdict, _ in verdicts.values())
    assert page.exit_code == against.exit_code == is_slower
    found = rows(function)
    lines = {line.split()[0]: line for line in page.output.splitlines() if line.strip()}
    for stage, (change, verdict, mean_change) in verdicts.items():
        cells = found[stage]
        assert (cells[5], cells[6]) == (verdict, mean_change)
        assert float(cells[2].removesuffix(" %")) == pytest.approx(change, abs=3)
        for shown, times in zip(cells, (before, after), strict=False):
            assert float(shown) == pytest.approx(statistics.median(times[stage]), rel=0.03)
        assert all(cell in lines[stage] for cell in cells)


def test_a_stage_with_several_signatures_keeps_its_total_and_mean(tmp_path: Path) -> None:
    def report(ms: float) -> dict[str, Any]:
        signatures = [{"key": key, "count": 10, "p50_ms": ms} for key in ("small", "large")]
        return {"stages": {"s": {"duration_ms": 20 * ms, "count": 20, "signatures": signatures}}}

    paths = [write(tmp_path / f"{ms}.json", report(ms)) for ms in (10.0, 20.0)]

    found = rows(compare_timing_reports(*paths))

    assert found["s (small)"][:3] == found["s (large)"][:3] == ["10.0", "20.0", "+100 %"]
    assert found["total of s"] == ["200", "400", "+200", "+100 %"]
    assert found["mean of s"] == ["10.0", "20.0", "+10.0", "+100 %"]
    done = CliRunner().invoke(command, ["compare", *map(str, paths), "--json", "-"])
    totals = {total["name"]: total["change_ms"] for total in json.loads(done.output)["totals"]}
    assert totals["total of s"] == 200.0


def test_requests_are_named(tmp_path: Path) -> None:
    stages = {"s": {"duration_ms": 1}}
    a = write(tmp_path / "a.json", {"stages": stages, "request_id": "req_1"})
    b = write(tmp_path / "b.json", {"stages": stages})
    page = compare_timing_reports(a, b).replace("\\", "")
    assert f"{b} against {a} (request req_1): " in page


@pytest.mark.parametrize("compare", [compare_timing_reports, telefuser.compare_timing_reports])
def test_the_tables_do_not_control_the_terminal(
    compare: Callable[[Any, Any], str], tmp_path: Path
) -> None:
    paths = []
    for name, text in (("old", "plain"), ("new", "\x1b[2J")):
        path = tmp_path / f"{name}.json"
        stages = {"\x1b[1m": {"duration_ms": 1}, text: {"duration_ms": 2}}
        content = {"stages": stages, "request_id": text, "environment": {"cpu": text}}
        path.write_text(json.dumps(content))
        paths.append(path)
    assert all(line.isprintable() for line in compare(*paths).splitlines())


def test_a_different_environment_is_shown(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", {"stages": {}, "environment": {"torch": "2.12", "pid": 1}})
    b = write(tmp_path / "b.json", {"stages": {}, "environment": {"torch": "2.13", "pid": 2}})
    markdown = compare_timing_reports(a, b)
    assert rows(markdown)["torch"] == ["2.12", "2.13"]
    assert "cpu" not in rows(markdown)
    assert "contains no times" in markdown


def test_reports_without_a_common_stage_have_a_page(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", {"stages": {"x": {"duration_ms": 1.0}}})
    b = write(tmp_path / "b.json", {"stages": {"y": {"duration_ms": 2.0}}})
    markdown = compare_timing_reports(a, b)
    assert "have no stage in common: 'x' before, 'y' after." in markdown
    assert (rows(markdown)["x"][5], rows(markdown)["y"][5]) == ("missing", "added")
    # AND the command refuses them, since it would not know whether anything is slower
    for arguments in (["compare", str(a), str(b)], ["report", str(b), "--against", str(a)]):
        done = CliRunner().invoke(command, arguments)
        assert (done.exit_code, "have no stage in common" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"{}", "is empty"),
        (b'{"stages": {"a": {"duration_ms": 1', "is not valid JSON"),
        (
            b"\xff\xfe",
            "is not JSON but text in UTF-16, as PowerShell writes it: convert it to UTF-8.",
        ),
        (b"\xff", "is not valid JSON"),
        (b"PK\x03\x04rest", "is not JSON but a zip archive: unpack it, and pass the file in it."),
        (b"<!DOCTYPE html><html>", "is not JSON but a page of HTML or XML"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[]", 'no "stages"'),
        (b'{"stages": []}', 'no "stages"'),
        (b'{"stages": {"a": 1}}', "stage 'a'"),
        (b'{"stages": {"a": {"duration_ms": "fast"}}}', "stage 'a'"),
        (b'{"stages": {"a": {"duration_ms": true}}}', "stage 'a'"),
        (b'{"stages": {"a": {"duration_ms": 1, "parents": 3}}}', '"parents"'),
        (b'{"stages": {"a": {"duration_ms": 1, "parents": [{}]}}}', '"parents"'),
        (b'{"stages": {"a": {"input_signatures": {}}}}', r"pass the timing\.json in the same"),
    ],
)
def test_files_that_are_not_reports_are_refused_in_one_sentence(
    content: bytes | None, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "timing.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ReportError, match=sentence) as refused:
        read_timing_report(file)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"is a folder without a timing\.json"):
        read_timing_report(tmp_path)


STAGES = st.dictionaries(
    st.text(min_size=1, max_size=20),
    st.fixed_dictionaries(
        {"duration_ms": st.floats(0, 1e9)},
        optional={
            "count": st.integers(0, 10**9) | st.none(),
            "mean_ms": st.floats(0, 1e9) | st.none(),
            "percentage": st.text(),
        },
    ),
    max_size=6,
)


@given(STAGES, STAGES)
@settings(max_examples=examples(100))
def test_any_two_reports_give_valid_tables(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, Any], after: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    a = write(folder / "a.json", {"stages": before})
    b = write(folder / "b.json", {"stages": after})

    markdown = compare_timing_reports(a, b)
    # THEN no name ends its row or cell: each row has as many cells as its header
    width = 0
    for line in markdown.splitlines():
        cells = line.replace("\\\\", "").replace("\\|", "").count("|")
        width = cells if line.startswith("| ") and not width else width
        assert not line.startswith("|") or cells == width, line
        width = width if line.startswith("|") else 0
