"""Windows of the real torch.profiler: one at a time, bounded, and harmless to the pipeline."""

from __future__ import annotations

import gzip
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import preloaded
from running import in_threads, ran
from stagespan.errors import SettingsError, StagespanError
from stagespan.profiling import profile_window
from stagespan.profiling.bounds import THREAD_NAME
from stagespan.profiling.controller import open_window
from stagespan.profiling.timeline import TimelineSpan, compressed_with_spans
from stagespan.trace import breakdown, read_trace

Work = Callable[[], None]


def products(path: Path) -> int:
    """Return the number of matrix products in a trace."""
    return next(
        row.count for row in breakdown(read_trace(path), "s").rows if row.name == "aten::mm"
    )


def test_a_window_is_exported_as_a_trace(work: Work, tmp_path: Path) -> None:
    with profile_window("denoise") as window:
        work()
    assert window.recorded
    written = window.export(tmp_path / "deep" / "denoise_trace.json.gz")
    # THEN the file is gzipped JSON that contains the work, and the folder has no other files
    assert json.loads(gzip.decompress(written.read_bytes()))["traceEvents"]
    assert products(written) == 10
    assert list(written.parent.iterdir()) == [written]


def test_spans_are_a_separate_process(work: Work, tmp_path: Path) -> None:
    import stagespan

    names = ["re", 'quote" \\ and\nline', "ünï", "Pi"]
    still_open = stagespan.begin("still open")
    with profile_window("s") as window:
        for name in names:
            with stagespan.span(name):
                work()
    path = window.export(tmp_path / "t.json.gz")
    stagespan.end(still_open)
    recorded = {
        stagespan.stage_names()[row["stage"]]: row
        for row in stagespan.spans()
        if row["begin_ns"] > window.begin_ns
    }
    trace = read_trace(path)
    process = next(pid for pid, name in trace.process_names.items() if name == "stagespan")
    rows = np.flatnonzero(trace.events.pid == process)
    drawn = {trace.names[trace.events.name[row]]: row for row in rows}
    assert set(drawn) == {*names, "still open"}
    for name in names:
        # The recorder fits its clock again at each reading, so two readings may differ a little.
        assert abs(trace.events.begin_ns[drawn[name]] - recorded[name]["begin_ns"]) < 100_000
        assert abs(trace.events.end_ns[drawn[name]] - recorded[name]["end_ns"]) < 100_000
        assert trace.events.tid[drawn[name]] == threading.get_native_id()
    assert {trace.categories[c] for c in trace.events.category[rows]} == {"user_annotation"}
    assert trace.events.end_ns[drawn["still open"]] == window.end_ns
    entries = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    arguments = {e["name"]: e["args"] for e in entries if e.get("cat") == "user_annotation"}
    assert arguments["still open"]["unfinished"] is True
    assert "unfinished" not in arguments["re"]
    assert arguments["re"]["id"] == recorded["re"]["id"]
    assert {row.name for row in breakdown(trace, "s").rows}.isdisjoint(drawn)


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ('{"traceEvents": [], "baseTimeNanoseconds": 1000}', 1000),
        ('{"baseTimeNanoseconds": 1000, "traceEvents": [\n{"ph":"X","ts":1}]}', 1000),
        ('[{"ph":"X","name":"n","ts":"1.500","dur":1}]', 0),
        ("[]", 0),
    ],
)
def test_the_spans_fit_every_layout(tmp_path: Path, text: str, base: int) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    packed = compressed_with_spans(path, [TimelineSpan("s", 5_001, 6_002, 0, 1, 0, 0)])
    (tmp_path / "m.json").write_bytes(packed)
    json.loads(gzip.decompress(packed))
    trace = read_trace(tmp_path / "m.json")
    assert trace.incomplete is None
    row = [trace.names[code] for code in trace.events.name].index("s")
    assert trace.events.begin_ns[row] == 5_001
    assert (trace.base_ns or 0) == base


@pytest.mark.parametrize("text", ["", '{"traceEvents": [', '{"a": 1}', '[{"ph":"X"},'])
def test_a_truncated_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="completely"):
        compressed_with_spans(path, [])


def test_a_nested_window_is_skipped_with_one_warning(
    work: Work, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with profile_window("outer") as outer:
        for name in ("inner", "another"):
            with profile_window(name) as inner:
                work()
            assert not inner.recorded
            assert inner.skipped is not None
            assert "'outer'" in inner.skipped
        in_threads(profile_window("third").start)
    assert products(outer.export(tmp_path / "o.json.gz")) == 20
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(StagespanError, match="already running"):
        inner.export(tmp_path / "i.json.gz")
    with profile_window("next") as following:
        work()
    assert following.recorded


def test_the_applications_profiler_is_not_affected(
    work: Work, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from torch.profiler import ProfilerActivity, profile, schedule

    kept: list[Any] = []

    def keep(profiler: Any) -> None:
        profiler.export_chrome_trace(str(tmp_path / f"user{len(kept)}.json"))
        kept.append(profiler)

    recorded = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=1, repeat=2),
        on_trace_ready=keep,
    ) as profiler:
        for _ in range(6):
            with profile_window("stage") as window:
                work()
            recorded.append(window.recorded)
            profiler.step()
    # THEN it opens only while that profiler waits, which gets all of its own traces
    assert recorded == [True, False, False, True, False, False]
    assert [products(tmp_path / f"user{i}.json") for i in range(2)] == [10, 10]
    assert len([r for r in caplog.records if "application" in r.getMessage()]) == 1
    # AND afterwards it opens again
    with profile_window("stage") as window:
        work()
    assert window.recorded


def test_the_older_profiler_of_torch_is_detected_too(work: Work) -> None:
    import torch

    with torch.autograd.profiler.profile() as profiler, profile_window("s") as window:
        work()
    assert not window.recorded
    assert any(event.name == "aten::mm" for event in profiler.function_events)


def test_a_window_leaves_no_trace_in_torch(work: Work) -> None:
    from torch.autograd.profiler import KinetoStepTracker

    before = dict(KinetoStepTracker._step_dict)
    level = os.environ.get("KINETO_LOG_LEVEL")
    with profile_window("s"):
        work()
    assert KinetoStepTracker._step_dict == before
    assert os.environ.get("KINETO_LOG_LEVEL") == level


@pytest.mark.parametrize("level", [None, "0"])
def test_messages_of_kineto_are_shown_if_their_level_is_set(level: str | None) -> None:
    # GIVEN a program that profiles, with and without a level
    code = """
import torch
from stagespan.profiling import profile_window
from stagespan.profiling.bounds import THREAD_NAME
with profile_window("s"):
    torch.ones(2) + 1
"""
    environment = dict(os.environ)
    environment.pop("KINETO_LOG_LEVEL", None)
    if level is not None:
        environment["KINETO_LOG_LEVEL"] = level
    done = ran([*preloaded.python(), "-c", code], env=environment, status=0)
    assert ("Completed Stage" in done.stderr) == (level is not None)


def test_the_pipelines_exception_passes(work: Work, tmp_path: Path) -> None:
    window = profile_window("s")

    def stage() -> None:
        with window:
            work()
            raise KeyError("the stage's own")

    with pytest.raises(KeyError, match="the stage's own"):
        stage()
    # THEN it contains the work until the error, and the next window opens
    assert products(window.export(tmp_path / "t.json.gz")) == 10
    with profile_window("s") as following:
        work()
    assert following.recorded


def test_a_profiler_that_does_not_start_does_not_raise(
    work: Work, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.profiler import profile

    def fail(self: Any) -> None:
        raise RuntimeError("no permission for counters")

    monkeypatch.setattr(profile, "start", fail)
    with profile_window("s") as window:
        work()
    # THEN the work ran, and one sentence says why there is no trace
    assert not window.recorded
    assert "no permission for counters" in caplog.text
    monkeypatch.undo()
    with profile_window("s") as window:
        work()
    assert window.recorded


def test_a_missing_activity_is_named(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    # GIVEN a window with the activity of a device, and torch without support for it
    with profile_window("s", ["CPU", "XPU", "MTIA"]) as window:
        work()
    assert window.recorded
    assert "XPU, MTIA" in caplog.text


def test_a_window_ends_by_itself_on_the_main_thread(
    work: Work, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with profile_window("long", max_seconds=0.1) as window:
        until = time.monotonic() + 60
        while not window.recorded and time.monotonic() < until:
            work()
            time.sleep(0.001)  # so that it does not end by its number of events
    assert window.recorded
    assert window.ended_early
    assert "0.1 seconds" in caplog.text
    assert products(window.export(tmp_path / "t.json.gz")) >= 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_seconds": "3"},
        {"max_seconds": math.nan},
        {"max_seconds": True},
        {"max_events": -1},
        {"max_events": "many"},
        {"max_bytes": 0},
        {"max_bytes": b"1"},
    ],
    ids=str,
)
def test_a_wrong_bound_is_refused_before_anything_is_marked(
    wrong: dict[str, Any], work: Work
) -> None:
    with pytest.raises(SettingsError, match=r"profile_window\(max_\w+=.*must be a number above 0"):
        profile_window("bounded", **wrong)
    with profile_window("bounded", max_seconds=10**400, max_events=np.int64(10**9)) as window:
        work()
    assert (window.recorded, window.skipped) == (True, None)


def test_a_window_whose_bound_cannot_be_watched_is_given_up(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a process in which no thread can start, because its stack is larger than its memory
    before = threading.stack_size(1 << 46)
    try:
        with profile_window("unwatched", max_seconds=60) as window:
            work()
    finally:
        threading.stack_size(before)
    # THEN it is not recorded, a sentence says so, and nothing stays marked
    assert not window.recorded
    assert "the profiler did not start" in caplog.text
    assert open_window() is None
    with profile_window("unwatched", max_seconds=60) as window:
        work()
    assert window.recorded


def test_a_deadline_that_is_not_reached_does_nothing(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with profile_window("short", max_seconds=60) as window:
            work()
        assert not window.ended_early
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join(timeout=30)
            assert not thread.is_alive()
    assert not caplog.records


@pytest.mark.parametrize("options", [{}, {"record_shapes": True}, {"profile_memory": True}])
def test_a_window_ends_after_a_number_of_events(
    options: dict[str, bool],
    work: Work,
    call: Callable[[Work], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    window = profile_window("large", max_events=2_000, **options)

    def stage() -> None:
        with window:
            until = time.monotonic() + 60
            while not window.recorded and time.monotonic() < until:
                work()

    call(stage)
    trace = read_trace(window.export(tmp_path / "t.json.gz"))
    operators = int(trace.rows_of(["cpu_op"]).sum())
    assert operators >= 1_000
    (message,) = caplog.messages
    assert "'large' is incomplete: it ends after" in message
    assert "max_events is 2,000" in message
    assert window.ended_early is not None
    with profile_window("next") as window:
        work()
    assert window.recorded
    assert window.ended_early is None


@pytest.mark.parametrize(("setting", "ends"), [("1000", True), ("0", False), ("100000", False)])
def test_the_environment_limits_the_number_of_events(
    setting: str, ends: bool, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGESPAN_PROFILER_MAX_EVENTS", setting)
    # WHEN a block runs that records about 10,000 events
    with profile_window("s") as window:
        until = time.monotonic() + 60
        for number in range(200):
            work()
            while ends and number == 199 and not window.recorded and time.monotonic() < until:
                work()
    assert (window.ended_early is not None) == ends


def test_a_limit_that_the_profiler_cannot_keep_is_logged(
    work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from stagespan.profiling import counting

    # GIVEN a build of torch that does not show how many operators were recorded
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(counting, "_blocks", lambda: None)
    with profile_window("s", max_events=10) as window:
        work()
    assert window.recorded
    assert window.ended_early is None
    assert any("max_events does not limit" in message for message in caplog.messages)


def in_a_pool(work: Work) -> None:
    in_threads(work)


def test_the_count_of_a_profiler_that_is_gone_is_erased() -> None:
    # In a process of its own, because those of other tests may still be there.
    program = """
import gc, torch, stagespan
steps = torch.autograd.profiler.KinetoStepTracker._step_dict
theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
theirs.start()
theirs.stop()
for is_gone in (False, True):  # as long as it is there, it may begin again
    if is_gone:
        del theirs
        gc.collect()
    with stagespan.profile_window("s"):
        torch.ones(4) + 1
    print("ProfilerStep" in steps)
"""
    done = ran([sys.executable, "-c", program])
    assert done.stdout.splitlines() == ["True", "False"], done.stderr


@pytest.mark.parametrize("all_threads", [True, False])
def test_operators_of_other_threads_are_recorded_on_request(
    all_threads: bool, work: Work, tmp_path: Path
) -> None:
    with profile_window("s", all_threads=all_threads, trace_only=True) as window:
        in_a_pool(work)
        if not all_threads:
            work()
    trace = read_trace(window.export(tmp_path / "t.json.gz"))
    threads = set(trace.events.tid[trace.rows_of(["cpu_op"])].tolist())
    assert products(tmp_path / "t.json.gz") == 10
    assert (threads == {threading.get_native_id()}) == (not all_threads)
    assert window.shows_work


def test_a_window_of_all_threads_is_paused_from_any_thread(work: Work, tmp_path: Path) -> None:
    import torch

    def work_until_paused() -> None:
        until = time.monotonic() + 60
        while window.ended_early is None and time.monotonic() < until:
            work()
        for thread in threading.enumerate():
            if thread.name == THREAD_NAME:
                thread.join(60)
        torch.ones(4).cumprod(0)

    with profile_window("s", all_threads=True, max_events=1_000) as window:
        in_a_pool(work_until_paused)
    trace = read_trace(window.export(tmp_path / "t.json.gz"))
    assert int(trace.rows_of(["cpu_op"]).sum()) > 500
    assert "aten::cumprod" not in trace.names


@pytest.mark.parametrize("all_threads", [True, False])
def test_a_profiler_that_another_thread_starts_takes_over(all_threads: bool, work: Work) -> None:
    import torch

    def profiled() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
            work()
        found.update(event.key for event in theirs.key_averages())

    def stage() -> None:
        with window:
            work()
            in_a_pool(profiled)

    found: set[str] = set()
    window = profile_window("s", all_threads=all_threads)
    # In a thread, because torch refuses further profilers there.
    in_a_pool(stage)
    assert "aten::mm" in found
    assert "another torch.profiler" in str(window.skipped)
    with profile_window("next") as window:
        work()
    assert window.recorded


def test_a_trace_that_is_too_large_is_refused(work: Work, tmp_path: Path) -> None:
    with profile_window("s", max_bytes=1000) as window:
        work()
    with pytest.raises(StagespanError, match=r"takes 0\.\d+ MB, more than 0\.001 MB"):
        window.export(tmp_path / "t.json.gz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["target", "scratch"])
def test_a_folder_that_cannot_be_written(
    work: Work, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with profile_window("s") as window:
        work()
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "t.json.gz" if where == "target" else tmp_path / "t.json.gz"
    if where == "scratch":
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"\w"):
        window.export(target)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_window_can_be_exported_again(work: Work, tmp_path: Path) -> None:
    # GIVEN a window whose first export fails because of its path
    with profile_window("s") as window:
        work()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"\w"):
        window.export(tmp_path / "file" / "t.json.gz")
    # WHEN it is exported three times THEN all files have the same content, by their suffixes
    packed = window.export(tmp_path / "t.json.gz").read_bytes()
    plain = window.export(tmp_path / "t.json").read_bytes()
    assert window.export(tmp_path / "again.json.gz").read_bytes() == packed
    assert gzip.decompress(packed) == plain
    assert json.loads(plain)["traceEvents"]
    # AND an export whose source has gone says so
    (tmp_path / "t.json.gz").unlink()
    with pytest.raises(StagespanError, match="changed or removed"):
        window.export(tmp_path / "late.json.gz")


def test_a_trace_whose_first_file_is_plain_can_be_exported_as_gzip(
    work: Work, tmp_path: Path
) -> None:
    with profile_window("s") as window:
        work()
    plain = window.export(tmp_path / "t.json").read_bytes()
    assert gzip.decompress(window.export(tmp_path / "t.json.gz").read_bytes()) == plain


def test_a_forked_child_says_that_it_has_no_profiler() -> None:
    # GIVEN a process that forks in a window and in a loop of profile_steps
    code = """
import os, sys, torch, stagespan
kind = sys.argv[1]
context = stagespan.profile_window("w") if kind == "window" else stagespan.profile_steps(0, 0, 2)
with context as opened:
    child = os.fork()
    if kind == "steps" and child == 0:
        opened.step()
print(("child" if child == 0 else "parent"), opened.skipped, flush=True)
if child:
    os.waitpid(child, 0)
else:
    os._exit(0)
"""
    for kind in ("window", "steps"):
        done = ran([*preloaded.python(), "-c", code, kind])
        said = next(line for line in done.stdout.splitlines() if line.startswith("child"))
        assert "forked" in said, done.stderr
        assert "thread" not in said
        assert "forked" not in next(
            line for line in done.stdout.splitlines() if line.startswith("parent")
        )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_is_free_to_profile(work: Work) -> None:
    with profile_window("parent"):
        child = os.fork()
        if child == 0:
            # The child must not run torch after a fork, so it opens no window itself.
            os._exit(open_window() is not None)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_package_does_not_import_torch() -> None:

    code = (
        "import sys, stagespan.profiling, stagespan.profiling.profiled, stagespan.trace;"
        "sys.exit('torch' in sys.modules)"
    )
    assert ran([sys.executable, "-c", code]).returncode == 0


def test_logging_goes_to_one_logger(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    with profile_window("a"), profile_window("b"):
        work()
    assert {record.name for record in caplog.records} == {"stagespan"}
    assert caplog.records[0].levelno == logging.WARNING
    assert caplog.records[0].getMessage().startswith("[Profiler] Stage 'b' is not profiled")


@pytest.mark.parametrize("ends_inside", [True, False])
def test_a_profiler_that_the_stage_starts_takes_over(ends_inside: bool, tmp_path: Path) -> None:
    import torch

    theirs = torch.profiler.profile()

    with profile_window("outer") as window:
        theirs.start()
        torch.ones(4).sum()
        if ends_inside:
            theirs.stop()
    if not ends_inside:
        torch.ones(4).cumsum(0)
        theirs.stop()
        assert "aten::cumsum" in {event.key for event in theirs.key_averages()}

    assert "aten::sum" in {event.key for event in theirs.key_averages()}
    assert not window.recorded
    assert "another torch.profiler" in str(window.skipped)
    with pytest.raises(StagespanError, match="another torch"):
        window.export(tmp_path / "trace.json.gz")
    with profile_window("next") as window:
        torch.ones(4).sum()
    assert window.export(tmp_path / "next.json.gz").exists()
