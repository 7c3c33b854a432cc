"""Files of times with any content: shown and compared, or refused in one sentence; no crash."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from properties import examples
from stagespan.errors import ReportError
from stagespan.pages.markdown import markdown
from stagespan.pages.terminal import print_page
from stagespan.report import changes_pages, compare_timing_reports
from stagespan.report.changes import compare_files
from stagespan.report.reader import read_timing_report
from stagespan.report.tables import print_report

QUIET = settings(
    max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
JUNK = [None, True, -1, 10**30, 10**400, 1e308, "x", "a\0b\n", [], [1], [{}], {}, {"a": "b"}]

# As this version writes it, with all fields that a table reads.
WHOLE = {
    "schema_version": 1,
    "request_id": "night",
    "wall_clock_ms": 30.0,
    "total_stages_ms": 20.0,
    "rank": 1,
    "world_size": 2,
    "stages": {
        "pipeline": {
            "duration_ms": 20.0,
            "count": 1,
            "mean_ms": 20.0,
            "p50_ms": 20.0,
            "errors": 1,
            "suspended_ms": 2.0,
            "children_ms": 15.0,
            "unattributed_ms": 5.0,
            "device_elapsed_ms": 7.0,
            "device_runs": 1,
            "work_per_s": {"tokens": 230.0},
            "memory": {"peak_allocated_mb": 1.0, "peak_rss_mb": None},
            "parent": None,
            "parents": [{"parent": None, "count": 1, "duration_ms": 20.0}],
        },
        "denoise": {
            "duration_ms": 15.0,
            "count": 3,
            "unattributed_ms": 15.0,
            "parent": "pipeline",
            "parents": [
                {"parent": "pipeline", "count": 2, "duration_ms": 10.0},
                {"parent": "(several)", "count": 1, "duration_ms": 5.0},
            ],
        },
    },
    "environment": {"torch": "2.13", "pid": 1},
    "lost": {"overwritten": 3, "names": 0},
}

TIMES_MS = [1.0, 2.0, 3.0] * 9
COMPARED = {
    "report": WHOLE,
    "baseline": {
        "kind": "stagespan baseline",
        "environment": {"cpu": "EPYC"},
        "stages": {
            "denoise": {
                "samples_ms": TIMES_MS,
                "disturbed": True,
                "fixed_ns": 1e5,
                "relative": TIMES_MS,
            }
        },
    },
    "bench": {
        "stage": "denoise",
        "device": "cpu",
        "adapter": "loop",
        "step": {"number": 2},
        "settings": {"dtype": None, "threads": "captured"},
        "signature": {"key": "k"},
        "times_ms": TIMES_MS,
        "cpu_times_ms": TIMES_MS,
        "fixed_times_ns": [1e5] * len(TIMES_MS),
        "timing_ms": {"fixed_ns": 1e5, "busy": None},
    },
    "breakdown": {
        "name": "denoise",
        "profile_steps": 2,
        "top_kernels": [{"name": "gemm", "ms": 1.0}, {"name": "copy", "ms": 2.0}],
    },
}


def damaged(node: Any, chance: random.Random) -> Any:
    """Return the node with one part replaced, removed or added."""
    if isinstance(node, list) and node and chance.random() < 0.9:
        at = chance.randrange(len(node))
        return [*node[:at], damaged(node[at], chance), *node[at + 1 :]]
    if isinstance(node, dict) and node and chance.random() < 0.95:
        name = chance.choice(list(node))
        rest = {key: value for key, value in node.items() if key != name}
        if chance.random() < 0.1:
            return rest
        return {**rest, name: damaged(node[name], chance)}
    return chance.choice(JUNK)


def shown_and_compared(path: Path, whole: Path) -> str:
    """Return what a terminal and a comparison show of the file."""
    stream = io.StringIO()
    print_report(read_timing_report(path), Console(file=stream, width=200))
    return stream.getvalue() + compare_timing_reports(path, whole)


@QUIET
@given(chance=st.randoms(use_true_random=False))
def test_damaged_reports_are_shown_or_refused(chance: random.Random, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.json", tmp_path / "timing.json"
    whole.write_text(json.dumps(WHOLE))
    report: Any = WHOLE
    for _ in range(chance.randint(1, 2)):
        report = damaged(report, chance)
    path.write_text(json.dumps(report))

    text = refused = ""
    try:
        text = shown_and_compared(path, whole)
    except ReportError as error:
        refused = str(error)

    # THEN it is shown, or one sentence contains the name of the file
    assert text.startswith("Timing report") or str(path) in refused
    assert "\n" not in refused


@pytest.mark.parametrize("kind", COMPARED)
@QUIET
@given(chance=st.randoms(use_true_random=False))
def test_damaged_files_are_compared_or_refused(
    kind: str, chance: random.Random, tmp_path: Path
) -> None:
    whole, path = tmp_path / "whole.json", tmp_path / "damaged.json"
    whole.write_text(json.dumps(COMPARED[kind]))
    path.write_text(json.dumps(damaged(damaged(COMPARED[kind], chance), chance)))

    for pair in ((whole, path), (path, whole)):
        pages, refused = [], ""
        try:
            found = compare_files(*pair)
        except ReportError as error:
            refused = str(error)
        else:
            stream = io.StringIO()
            page = changes_pages.ComparisonPage(found)
            print_page(page, Console(file=stream, width=200))
            pages = [stream.getvalue(), markdown(page)]
        # THEN the pages do not control the terminal, or one sentence contains the name of the file
        assert pages or str(path) in refused
        lines = [refused, *(line for page in pages for line in page.splitlines())]
        assert all(line.isprintable() for line in lines)


@QUIET
@given(content=st.binary(max_size=200))
def test_any_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "timing.json"
    path.write_bytes(content)

    # WHEN it is read THEN one sentence contains its name
    with pytest.raises(ReportError) as refused:
        read_timing_report(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", COMPARED)
def test_undamaged_files_are_compared(kind: str, tmp_path: Path) -> None:
    # The tests above start from files that can be compared. Single runs have no known noise.
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(COMPARED[kind]))
    found = compare_files(path, path)
    assert (found.kind, {change.verdict for change in found.changes}) == (kind, {"unknown"})


def test_the_report_itself_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # a file is as wide as the table
    path = tmp_path / "timing.json"
    path.write_text(json.dumps(WHOLE))

    text = shown_and_compared(path, path)
    for part in ("rank 1 of 2", "230 tokens/s", "(unattributed)", "overwritten 3", "| denoise |"):
        assert part in text
