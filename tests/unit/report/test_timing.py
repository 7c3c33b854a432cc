"""The timing report of a real recorder: its content, its start, and its file."""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stagespan
from stagespan import _core
from stagespan.device import memory
from stagespan.errors import ReportError, SettingsError
from stagespan.report import timing
from stagespan.report.reader import read_timing_report


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    stagespan.flush()
    _core._reset()
    _core.requests_forget_finished()
    memory.reset()
    timing._report = timing._Report()
    yield
    timing._report = timing._Report()


def some_pipeline() -> None:
    with stagespan.span("pipeline"):
        with stagespan.span("encode"):
            time.sleep(0.002)
        for _ in range(2):
            with stagespan.ProfilingContext("denoise") as denoise:
                time.sleep(0.002)
                denoise.add(steps=4)


# --- content --------------------------------------------------------------------------------------


def test_the_keys_of_the_format() -> None:
    some_pipeline()
    report = stagespan.timing_report()
    assert {
        *("schema_version", "request_id", "timestamp", "wall_clock_ms", "total_stages_ms"),
        *("num_stages", "stages", "requests", "metadata", "environment", "lost"),
    } <= set(report)
    assert report["schema_version"] == 1
    assert report["num_stages"] == 3
    assert report["timestamp"].endswith("Z")
    assert report["rank"] == 0
    assert {"python", "torch", "platform", "hostname", "cpu", "stagespan", "clock"} <= set(
        report["environment"]
    )
    assert report["environment"]["clock"] == _core.clock_info()["source"]
    assert report["lost"]["overwritten"] == 0


def test_the_figures_add_up() -> None:
    some_pipeline()
    report = stagespan.timing_report()
    stages = report["stages"]
    pipeline, denoise, encode = stages["pipeline"], stages["denoise"], stages["encode"]
    assert denoise["count"] == 2
    assert denoise["work"] == {"steps": 8.0}
    assert denoise["parent"] == "pipeline"
    assert pipeline["parent"] is None
    assert pipeline["percentage"] == pytest.approx(100)
    assert (denoise["percentage"], encode["percentage"]) == (None, None)
    inside = denoise["duration_ms"] + encode["duration_ms"]
    assert pipeline["children_ms"] == pytest.approx(inside, rel=1e-6)
    assert pipeline["duration_ms"] == pytest.approx(inside + pipeline["unattributed_ms"], rel=1e-6)
    assert report["total_stages_ms"] == pytest.approx(pipeline["duration_ms"])
    assert report["wall_clock_ms"] > report["total_stages_ms"]


def test_memory_of_a_cpu_is_its_peak_rss_or_null() -> None:
    some_pipeline()
    stages = stagespan.timing_report()["stages"]
    assert stages["denoise"]["memory"]["peak_rss_mb"] > 1
    assert stages["denoise"]["memory"]["peak_allocated_mb"] is None
    assert stages["encode"]["memory"] is None


def test_a_notebook_shows_the_report_as_a_table() -> None:
    with stagespan.span("shown"):
        pass
    report = stagespan.timing_report()
    assert isinstance(report, dict)
    assert json.loads(json.dumps(report))["stages"].keys() >= {"shown"}
    html = report._repr_html_()  # type: ignore[attr-defined]
    assert "Timing report, " in html
    assert "<td" in html
    assert ">shown<" in html


def test_captured_and_named_snapshots_are_included() -> None:
    with stagespan.ProfilingContext("load", capture_memory=True):
        block = mmap.mmap(-1, 32 << 20)  # new pages, as a bytearray may reuse resident ones
        block[::4096] = b"x" * len(block[::4096])
    stagespan.memory_snapshot("loaded")
    report = stagespan.timing_report()
    (run,) = report["stages"]["load"]["memory"]["runs"]
    assert run["after"]["rss_mb"] - run["before"]["rss_mb"] == pytest.approx(32, abs=16)
    (snapshot,) = report["memory_snapshots"]
    assert snapshot["name"] == "loaded"


def test_requests_have_their_own_figures() -> None:
    with stagespan.request("req-1", user="a"):
        some_pipeline()
    with pytest.raises(KeyError), stagespan.request("req-2"), stagespan.span("encode"):
        raise KeyError

    first, second = stagespan.timing_report()["requests"]

    assert (first["request_id"], first["metadata"], first["complete"]) == (
        *("req-1", {"user": "a"}),
        True,
    )
    assert first["stages"]["denoise"]["count"] == 2
    assert first["total_stages_ms"] == pytest.approx(first["stages"]["pipeline"]["duration_ms"])
    assert first["duration_ms"] >= first["total_stages_ms"]
    assert second["stages"]["encode"]["errors"] == 1
    assert [first["error"], second["error"]] == [False, True]


def test_a_request_whose_spans_are_partly_lost_has_no_total() -> None:
    ring = _core.arena_info()["ring_spans"]
    with stagespan.request("r"):
        for _ in range(ring + 1):
            with stagespan.span("a"):
                pass
    (request,) = stagespan.timing_report()["requests"]
    assert request["total_stages_ms"] is None
    assert request["stages"]["a"]["count"] == ring


def test_signatures_come_from_the_module_that_captures_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some_pipeline()
    known = {"encode": [{"key": "ab", "count": 1, "p50_ms": 2.0}]}
    store = SimpleNamespace(signature_stats=lambda: known)
    monkeypatch.setitem(sys.modules, "stagespan.signature.store", store)
    stages = stagespan.timing_report()["stages"]
    assert stages["encode"]["signatures"] == known["encode"]
    assert stages["denoise"]["signatures"] == []


def test_the_rank_of_a_launcher_is_included(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    report = stagespan.timing_report()
    assert (report["rank"], report["world_size"]) == (3, 8)


# --- from where it counts -------------------------------------------------------------------------


def test_a_reset_starts_a_new_report() -> None:
    with stagespan.request("old"):
        some_pipeline()
    stagespan.memory_snapshot("old")
    stagespan.set_timing_metadata("old", 1)
    _core.lost_add("unmatched", 3)

    stagespan.reset_timing_registry("req-9", {"seed": 7})
    empty = stagespan.timing_report()
    assert (empty["request_id"], empty["metadata"]) == ("req-9", {"seed": 7})
    assert (empty["stages"], empty["requests"], empty["memory_snapshots"]) == ({}, [], [])
    assert empty["total_stages_ms"] == 0
    assert empty["lost"]["unmatched"] == 0
    # and new spans count, while stats() still includes the time before
    with stagespan.span("encode"):
        time.sleep(0.002)
    report = stagespan.timing_report()
    assert {name: s["count"] for name, s in report["stages"].items()} == {"encode": 1}
    assert report["stages"]["encode"]["percentage"] == pytest.approx(100)
    assert report["wall_clock_ms"] < 60_000
    assert stagespan.stats()["encode"].count == 2


def test_a_span_that_is_open_at_the_reset_counts_when_it_ends() -> None:
    with stagespan.span("outer"):
        stagespan.reset_timing_registry()
        with stagespan.span("inner"):
            pass
        assert list(stagespan.timing_report()["stages"]) == ["inner"]
    assert set(stagespan.timing_report()["stages"]) == {"outer", "inner"}


def test_metadata_that_is_not_a_mapping_is_refused() -> None:
    with pytest.raises(SettingsError, match="mapping"):
        stagespan.reset_timing_registry("r", ["a"])  # type: ignore[arg-type]


# --- the file -------------------------------------------------------------------------------------


def test_the_file_is_the_report(tmp_path: Path) -> None:
    some_pipeline()
    stagespan.set_timing_metadata("seed", 7)
    path = stagespan.dump_timing_report(tmp_path / "new" / "folder" / "timing.json")
    written = json.loads(path.read_text())
    assert written["metadata"] == {"seed": 7}
    assert set(written["stages"]) == {"pipeline", "encode", "denoise"}
    assert read_timing_report(path)["stages"] == written["stages"]
    markdown = stagespan.compare_timing_reports(path, path)
    assert "| denoise |" in markdown


def test_a_folder_that_cannot_be_written_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"cannot be written .*; choose another") as refused:
        stagespan.dump_timing_report(tmp_path / "file" / "timing.json")
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(
    not os.path.exists("/dev/full"),
    reason="this system has no /dev/full, which reports a full disk",
)
def test_a_full_disk_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "timing.json"
    target.write_text("earlier")
    real = os.fdopen
    monkeypatch.setattr(
        os,
        "fdopen",
        lambda fd, mode: (os.close(fd), real(os.open("/dev/full", os.O_WRONLY), mode))[1],
    )

    with pytest.raises(ReportError, match="No space left"):
        stagespan.dump_timing_report(target)

    assert target.read_text() == "earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["timing.json"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary(max_size=4)
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.none(), inner, max_size=3)
        | st.tuples(inner)
        | st.frozensets(st.integers(), max_size=3)
    ),
    max_leaves=15,
)


@given(VALUES)
def test_any_metadata_can_be_written(value: Any) -> None:
    encoded = msgspec.json.encode(timing.plain(value))
    json.loads(encoded, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_metadata_without_a_json_representation() -> None:
    class Silent:
        def __str__(self) -> str:
            raise RuntimeError

    ring: list[Any] = []
    ring.append(ring)
    np = pytest.importorskip("numpy")
    assert timing.plain(Silent()) == "<Silent>"
    assert timing.plain(Path("/x")) == "/x"
    assert timing.plain(np.float32(0.5)) == 0.5
    assert timing.plain({1: np.int64(3)}) == {"1": 3}
    assert timing.plain(math.inf) is None
    assert timing.plain(2**70) == str(2**70)
    assert isinstance(timing.plain(ring), list)
