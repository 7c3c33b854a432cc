"""Stages that are named for the profiler: their files, log lines, and limits."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import preloaded
import stagespan
from running import in_threads, ran
from stagespan import ProfilingContext, ProfilingContext4Debug, enable_profiler_for_names
from stagespan.trace import breakdown, read_trace

Work = Callable[[], None]
Call = Callable[[Work], None]


@pytest.fixture(autouse=True)
def _no_stage_has_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from stagespan.contexts import context
    from stagespan.live import service
    from stagespan.process import forks
    from stagespan.profiling.profiled import ProfiledHook

    with monkeypatch.context() as patch:
        # The functions for exit and fork would stay for all later tests.
        patch.setattr(service, "on_exit", lambda function: None)
        patch.setattr(forks, "after_in_child", lambda function: None)
        context.register_hook(ProfiledHook())
    yield
    stagespan.set_debug(False)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def products(folder: Path, stage: str) -> int:
    table = json.loads((folder / f"{stage}_breakdown.json").read_text())
    return int({row["name"]: row["count"] for row in table["top_kernels"]}.get("aten::mm", 0))


def runs_of(stage: str, count: int, work: Work) -> None:
    """The n-th run works n times, so that a file shows which run it is from."""
    for number in range(1, count + 1):
        with ProfilingContext(stage):
            for _ in range(number):
                work()


_WORKER = """
import multiprocessing, torch, stagespan

def run():
    with stagespan.ProfilingContext("denoise"):
        torch.ones(4) + 1

worker = multiprocessing.get_context("fork").Process(target=run)
worker.start()
worker.join()
print(worker.pid)
run()
"""


def test_workers_do_not_write_each_others_files(tmp_path: Path) -> None:
    environment = {"ENABLE_PROFILER_NAMES": "denoise", "STAGESPAN_OUTPUT_DIR": str(tmp_path)}

    done = ran([*preloaded.python(), "-c", _WORKER], **environment)

    # THEN the names of the worker's files contain its process id
    assert done.returncode == 0, done.stderr
    stems = ("denoise", f"denoise_pid{done.stdout.strip()}")
    kinds = ("breakdown.json", "trace.json.gz")
    assert set(files(tmp_path)) == {f"{stem}_{kind}" for stem in stems for kind in kinds}


def test_a_named_stage_writes_its_files(
    work: Work, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stagespan")
    enable_profiler_for_names("denoise")
    with ProfilingContext("denoise"):
        work()
    with ProfilingContext("other"):
        work()
    assert files(folder) == ["denoise_breakdown.json", "denoise_trace.json.gz"]
    table = json.loads((folder / "denoise_breakdown.json").read_text())
    assert table["name"] == "denoise"
    assert products(folder, "denoise") == 10
    trace = read_trace(folder / "denoise_trace.json.gz")
    assert table == breakdown(trace, "denoise").to_dict()
    assert "denoise" in [trace.names[code] for code in trace.events.name]
    lines = [record.getMessage() for record in caplog.records]
    assert f"[Profiler] Chrome trace saved to: {folder / 'denoise_trace.json.gz'}" in lines
    assert f"[Profiler] Kernel breakdown saved to: {folder / 'denoise_breakdown.json'}" in lines


@pytest.mark.parametrize("option", [None, "RECORD_SHAPES", "PROFILE_MEMORY", "WITH_STACK"])
def test_variables_choose_what_a_trace_contains(
    work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch, option: str | None
) -> None:
    if option is not None:
        monkeypatch.setenv(f"STAGESPAN_PROFILER_{option}", "1")
    enable_profiler_for_names("denoise")
    with ProfilingContext("denoise"):
        work()
    # THEN the trace contains what was chosen, and nothing else of the three
    page = json.loads(gzip.decompress((folder / "denoise_trace.json.gz").read_bytes()))
    found = {
        "RECORD_SHAPES": any("Input Dims" in e.get("args", {}) for e in page["traceEvents"]),
        "PROFILE_MEMORY": any(e["name"] == "[memory]" for e in page["traceEvents"]),
        "WITH_STACK": bool(page.get("with_stack")),
    }
    assert [name for name, is_there in found.items() if is_there] == [option] * (option is not None)


def test_the_stages_span_covers_its_operators(work: Work, folder: Path) -> None:
    enable_profiler_for_names(["outer"])
    with ProfilingContext("outer"), stagespan.span("inner"):
        work()
    trace = read_trace(folder / "outer_trace.json.gz")
    events = trace.events
    row = {trace.names[code]: at for at, code in enumerate(events.name)}
    products = [at for at, code in enumerate(events.name) if trace.names[code] == "aten::mm"]
    assert events.begin_ns[row["outer"]] <= events.begin_ns[row["inner"]]
    assert events.begin_ns[row["inner"]] <= events.begin_ns[products].min()
    assert events.end_ns[products].max() <= events.end_ns[row["inner"]]
    assert events.end_ns[row["inner"]] <= events.end_ns[row["outer"]]
    entries = json.loads(gzip.decompress((folder / "outer_trace.json.gz").read_bytes()))
    ours = {e["name"]: e["args"] for e in entries["traceEvents"] if e.get("pid") == "stagespan"}
    assert ours["inner"]["parent"] == ours["outer"]["id"] > 0
    assert "unfinished" not in ours["outer"]
    assert events.tid[row["outer"]] == events.tid[row["inner"]]


def test_open_stages_in_a_trace_belong_to_their_request(work: Work, folder: Path) -> None:
    # GIVEN a profiled stage inside another stage of a request; both are open when it is written
    enable_profiler_for_names(["profiled"])
    with stagespan.request() as one, ProfilingContext("around"), ProfilingContext("profiled"):
        work()
    page = json.loads(gzip.decompress((folder / "profiled_trace.json.gz").read_bytes()))
    ours = {e["name"]: e["args"] for e in page["traceEvents"] if e.get("pid") == "stagespan"}
    assert ours["around"]["request"] == ours["profiled"]["request"] == one.number


def test_decorated_functions_and_coroutines(work: Work, folder: Path) -> None:
    enable_profiler_for_names("*")

    @ProfilingContext("plain")
    def plain(x: int) -> int:
        work()
        return x + 1

    @ProfilingContext("awaited")
    async def awaited(x: int) -> int:
        await asyncio.sleep(0)
        work()
        return x + 1

    # THEN they return what they return, and have their files
    assert plain(1) == 2
    assert asyncio.run(awaited(2)) == 3
    for stage in ("plain", "awaited"):
        assert products(folder, stage) == 10


def test_debug_contexts_are_profiled_too(work: Work, folder: Path) -> None:
    stagespan.set_debug(True)
    enable_profiler_for_names("stage")
    with ProfilingContext4Debug("stage"):
        work()
    assert {"stage_breakdown.json", "stage_trace.json.gz"} <= set(files(folder))


def test_only_the_first_runs_are_profiled(
    work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGESPAN_PROFILER_RUNS", "2")
    enable_profiler_for_names("loop")
    written: list[bytes] = []
    for _ in range(3):
        with ProfilingContext("loop"):
            work()
        written.append((folder / "loop_trace.json.gz").read_bytes())
    # THEN the files show the second run, and the third did not change them
    assert written[0] != written[1]
    assert written[1] == written[2]


def test_a_nested_stage_is_skipped_and_keeps_its_run(
    work: Work, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    enable_profiler_for_names(["outer", "inner"])
    for _ in range(3):
        with ProfilingContext("outer"):
            for _ in range(2):
                with ProfilingContext("inner"):
                    work()
    assert {"inner_trace.json.gz", "outer_trace.json.gz"} <= set(files(folder))
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len([line for line in warnings if "not profiled" in line]) == 1


def test_several_threads_never_profile_at_once(work: Work, folder: Path) -> None:
    enable_profiler_for_names("*")
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for _ in range(3):
                with ProfilingContext(f"stage{number}"):
                    work()
        except BaseException as error:
            errors.append(error)

    in_threads(*(functools.partial(run, number) for number in range(8)))
    assert errors == []
    for path in folder.glob("*_trace.json.gz"):
        assert read_trace(path).incomplete is None


def test_ranks_have_separate_files(
    work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    enable_profiler_for_names("denoise")
    with ProfilingContext("denoise"):
        work()
    assert files(folder) == ["denoise_rank3_breakdown.json", "denoise_rank3_trace.json.gz"]


@pytest.mark.parametrize("stage", ["re", "Pi", "a/../../b", 'q"uote\nline', "ü", "."])
def test_any_name_of_a_stage(work: Work, folder: Path, stage: str) -> None:
    enable_profiler_for_names([stage])
    with ProfilingContext(stage):
        work()
    assert len(files(folder)) == 2
    table = json.loads(next(folder.glob("*_breakdown.json")).read_text())
    assert table["name"] == stage
    trace = read_trace(next(folder.glob("*_trace.json.gz")))
    assert stage in [trace.names[code] for code in trace.events.name]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_stage_that_raises_is_profiled_and_raises(work: Work, folder: Path) -> None:
    enable_profiler_for_names("broken")

    @ProfilingContext("broken")
    def broken() -> None:
        work()
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        broken()
    assert len(files(folder)) == 2


def test_a_folder_that_cannot_be_written_gives_one_warning(
    work: Work, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    stagespan.set_profiler_output_dir(tmp_path / "file" / "out")
    enable_profiler_for_names("stage")
    with ProfilingContext("stage"):
        work()
    stagespan.set_profiler_output_dir(None)
    # THEN the pipeline continued, one sentence says so, and nothing was written
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "could not be written" in warnings[0]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


_FULL_DISK = """
import resource, sys, torch, stagespan
stagespan.enable_profiler_for_names("stage")
torch.ones(4) + 1
# No file may grow beyond a few bytes: every write fails as on a full disk.
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
with stagespan.ProfilingContext("stage"):
    result = torch.ones(4) + 1
print(result.sum().item())
"""


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    # GIVEN a process with a limit on the size of files
    environment: dict[str, Any] = {"STAGESPAN_OUTPUT_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = ran([*preloaded.python(), "-c", _FULL_DISK], **environment)
    # THEN it returns its result, a warning is printed, and there is no file
    assert done.stdout.split() == ["8.0"], done.stderr
    assert "could not be written" in done.stderr
    left = [path.name for path in tmp_path.iterdir()]
    assert [name for name in left if not name.startswith("stagespan-claims-")] == []


def test_names_from_the_environment(tmp_path: Path) -> None:
    # GIVEN TeleFuser's variable
    code = (
        "import torch, stagespan\nwith stagespan.ProfilingContext('denoise'): torch.ones(4) + 1\n"
    )
    environment = {"ENABLE_PROFILER_NAMES": "denoise", "STAGESPAN_OUTPUT_DIR": str(tmp_path)}
    done = ran([*preloaded.python(), "-c", code], **environment)
    # THEN its stage has files, and the terminal does not show the profiler's own messages
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == ["denoise_breakdown.json", "denoise_trace.json.gz"]
    assert "profiler_start" not in done.stderr


def test_the_files_show_a_warm_run(work: Work, folder: Path) -> None:
    enable_profiler_for_names("loop")
    runs_of("loop", 4, work)
    assert products(folder, "loop") == 20


def test_runs_can_be_skipped(work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESPAN_PROFILER_SKIP", "2")
    monkeypatch.setenv("STAGESPAN_PROFILER_RUNS", "1")
    enable_profiler_for_names("loop")
    runs_of("loop", 4, work)
    assert products(folder, "loop") == 30


def test_one_trace_can_hold_several_runs(
    work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN six runs, each with more work than the previous one, and one trace for three runs
    monkeypatch.setenv("STAGESPAN_PROFILER_SKIP", "1")
    monkeypatch.setenv("STAGESPAN_PROFILER_RUNS", "3")
    monkeypatch.setenv("STAGESPAN_PROFILER_ONE_TRACE", "true")
    enable_profiler_for_names("loop")

    runs_of("loop", 6, work)

    assert products(folder, "loop") == 20 + 30 + 40
    trace = read_trace(folder / "loop_trace.json.gz")
    assert [trace.names[code] for code in trace.events.name].count("loop") == 3
    table = json.loads((folder / "loop_breakdown.json").read_text())
    assert table["runs"] == 3


def test_one_trace_of_a_program_that_ends_before_is_written(tmp_path: Path) -> None:
    program = (
        "import torch, stagespan\n"
        "for number in range(2):\n"
        "    with stagespan.ProfilingContext('loop'):\n"
        "        torch.ones(4, 4) @ torch.ones(4, 4)\n"
    )
    settings = {"RUNS": "5", "ONE_TRACE": "true", "NAMES": "loop"}
    environment = {f"STAGESPAN_PROFILER_{name}": value for name, value in settings.items()}

    ran(
        [*preloaded.python(), "-c", program],
        status=0,
        **environment,
        STAGESPAN_OUTPUT_DIR=str(tmp_path),
    )

    assert products(tmp_path, "loop") == 2
    assert json.loads((tmp_path / "loop_breakdown.json").read_text())["runs"] == 2


def test_a_stage_that_is_named_again_is_profiled_again(work: Work, folder: Path) -> None:
    enable_profiler_for_names("loop")
    runs_of("loop", 3, work)
    enable_profiler_for_names("loop")
    with ProfilingContext("loop"):
        for _ in range(7):
            work()
    assert products(folder, "loop") == 70


def test_a_stage_that_is_named_again_ends_its_trace_of_several_runs(
    work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGESPAN_PROFILER_RUNS", "2")
    monkeypatch.setenv("STAGESPAN_PROFILER_ONE_TRACE", "true")
    enable_profiler_for_names("loop")
    runs_of("loop", 1, work)

    enable_profiler_for_names("loop")
    runs_of("loop", 3, work)

    assert products(folder, "loop") == 10 + 20


def test_a_trace_of_several_runs_contains_none_after_its_end(
    call: Call, work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a window that may be open for less time than its two runs take
    monkeypatch.setattr("stagespan.profiling.profiled.MAX_SECONDS", 0.05)
    monkeypatch.setenv("STAGESPAN_PROFILER_RUNS", "2")
    monkeypatch.setenv("STAGESPAN_PROFILER_ONE_TRACE", "true")
    enable_profiler_for_names("loop")
    found: list[tuple[int, int]] = []

    def loop() -> None:
        for _ in range(2):
            runs_of("loop", 1, work)
            time.sleep(0.06)
        table = json.loads((folder / "loop_breakdown.json").read_text())
        found.append((products(folder, "loop"), table["runs"]))

    call(loop)

    # THEN the files are of one run; on a busy machine, of its beginning
    ((count, runs),) = found
    assert count <= 10
    assert runs == 1


_IN_THREADS = """
import logging, threading, torch, stagespan
logging.basicConfig(format="%(message)s")
stagespan.enable_profiler_for_names("stream, loop, after")


@stagespan.ProfilingContext("stream")
def stream():
    torch.ones(4, 4) @ torch.ones(4, 4)
    yield 1
    torch.ones(4, 4) @ torch.ones(4, 4)


def loop():
    for number in range(2):
        with stagespan.ProfilingContext("loop"):
            torch.ones(4, 4) @ torch.ones(4, 4)


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


numbers = stream()
for work in {work}:
    in_thread(work)
with stagespan.ProfilingContext("after"):
    torch.ones(4, 4) @ torch.ones(4, 4)
"""


def run_in_threads(work: str, folder: Path, **settings: str) -> str:
    """Run a program that calls functions in one new thread each; returns its errors."""
    environment = {f"STAGESPAN_PROFILER_{name}": value for name, value in settings.items()}
    done = ran(
        [*preloaded.python(), "-c", _IN_THREADS.replace("{work}", work)],
        status=0,
        **environment,
        STAGESPAN_OUTPUT_DIR=str(folder),
    )
    return done.stderr


def test_a_trace_of_several_runs_ends_with_its_thread(tmp_path: Path) -> None:
    run_in_threads("(loop, loop)", tmp_path, ONE_TRACE="true", RUNS="5")

    assert json.loads((tmp_path / "loop_breakdown.json").read_text())["runs"] == 2
    assert products(tmp_path, "loop") == 2
    assert products(tmp_path, "after") == 1


def test_a_stage_that_outlasts_its_thread_is_profiled_up_to_its_end(tmp_path: Path) -> None:
    said = run_in_threads("(lambda: next(numbers), lambda: list(numbers))", tmp_path)

    assert products(tmp_path, "stream") == 1
    assert "'stream' is incomplete: it ends with the thread" in said
    assert products(tmp_path, "after") == 1


def test_a_stage_that_ends_in_another_thread_than_it_began_is_not_profiled(
    work: Work, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @ProfilingContext("stream")
    def stream() -> Iterator[int]:
        work()
        yield 1

    enable_profiler_for_names("stream, after")
    numbers = stream()
    next(numbers)

    thread = threading.Thread(target=lambda: list(numbers))
    thread.start()
    thread.join()

    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "it was closed in a thread other than the one that opened it" in said
    with ProfilingContext("after"):
        work()
    assert files(folder) == ["after_breakdown.json", "after_trace.json.gz"]
