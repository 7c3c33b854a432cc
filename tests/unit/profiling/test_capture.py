"""Captures on demand: whole runs of a stage, and a sentence for all that can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import importlib
import io
import json
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stagespan
from running import ran
from stagespan import Capture, capture
from stagespan.device.platforms import loaded_platform
from stagespan.errors import SettingsError, StagespanError
from stagespan.profiling.capture_result import CaptureResult
from stagespan.profiling.controller import open_window
from stagespan.profiling.forked_export import save_in_child, why_in_place

Work = Callable[[], None]
_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux only")


class Service:
    """A thread that runs a stage again and again, as a service does."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._is_over = False
        self.may_run = threading.Event()
        self.may_run.set()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._is_over:
            self.may_run.wait()
            with stagespan.request(), stagespan.span("serve"):
                self._work()
            time.sleep(0.002)

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self.may_run.set()
        self._thread.join()


def entries_of(path: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(gzip.decompress(Path(path).read_bytes()))[
        "traceEvents"
    ]
    return entries


def names_in(path: str) -> Counter[str]:
    return Counter(entry["name"] for entry in entries_of(path) if entry.get("ph") == "X")


def until(is_true: Callable[[], object], seconds: float = 30) -> None:
    end_s = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def is_waiting(started: Capture) -> bool:
    return "waits for a run" in started.progress()


def said(result: CaptureResult) -> list[str]:
    """Return the remarks but the one about who wrote the trace: a thread may be importing."""
    return [remark for remark in result.remarks if "by the process itself" not in remark]


def refusal(started: Capture) -> str:
    with pytest.raises(StagespanError) as caught:
        started.wait(60)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _nothing_is_left(folder: Path) -> Iterator[None]:
    yield
    until(lambda: "stagespan-capture" not in {each.name for each in threading.enumerate()})
    assert open_window() is None
    with stagespan.span("afterwards"):  # no hook runs any more
        pass


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [1, 2, 5])
def test_a_capture_has_exactly_the_runs_that_were_asked_for(runs: int, work: Work) -> None:
    with Service(work):
        result = capture("serve", runs=runs, max_seconds=60).wait(60)

    # THEN each of the runs has its ten products, and no other operator is in the trace
    assert (result.runs, result.asked, result.unit) == (runs, runs, "run")
    names = names_in(result.path)
    assert names["serve"] == runs
    assert names["aten::matmul"] == 10 * runs
    assert said(result) == []
    assert result.bytes == Path(result.path).stat().st_size
    assert result.events is not None
    assert result.longest_pause_ns > 0
    assert result.requests_delayed is not None


def test_a_run_in_progress_is_not_captured(work: Work) -> None:
    is_inside, may_end = threading.Event(), threading.Event()

    def long_run() -> None:
        with stagespan.span("serve"):
            is_inside.set()
            may_end.wait()
            work()
        for _ in range(3):
            with stagespan.span("serve"):
                work()

    thread = threading.Thread(target=long_run)
    thread.start()
    is_inside.wait()
    started = capture("serve", probe=False, max_seconds=60)
    until(lambda: is_waiting(started))
    may_end.set()
    result = started.wait(60)
    thread.join()
    assert names_in(result.path)["aten::matmul"] == 10
    assert (result.runs, said(result)) == (1, [])


def test_steps_last_until_the_next_run_begins(work: Work) -> None:
    def with_work_between() -> None:
        work()

    with Service(with_work_between):
        result = capture("serve", steps=3, max_seconds=60).wait(60)
    assert (result.runs, result.unit) == (3, "step")
    steps = [entry for entry in entries_of(result.path) if "ProfilerStep#" in entry["name"]]
    numbers = sorted({int(step["name"].partition("#")[2]) for step in steps})
    assert numbers == list(range(numbers[0], numbers[0] + 3))


def test_a_context_is_captured_like_a_span(work: Work) -> None:
    started = capture("context", probe=False, max_seconds=60)
    until(lambda: is_waiting(started))
    for _ in range(2):
        with stagespan.ProfilingContext("context"):
            work()
    assert started.wait(60).runs == 1


def test_runs_in_other_threads_are_counted_and_left_out(work: Work) -> None:
    started = capture("serve", probe=False, max_seconds=60)
    until(lambda: is_waiting(started))

    def other() -> None:
        with stagespan.span("serve"):
            work()

    with stagespan.span("serve"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        work()
    result = started.wait(60)
    assert result.runs == 1
    assert "1 run in other threads meanwhile are not in it" in " ".join(result.remarks)
    assert names_in(result.path)["aten::matmul"] == 10


def test_a_recursive_stage_has_its_inner_runs_in_the_trace(work: Work) -> None:
    def recursive(depth: int) -> None:
        with stagespan.span("recursive"):
            work()
            if depth:
                recursive(depth - 1)

    started = capture("recursive", probe=False, max_seconds=60)
    until(lambda: is_waiting(started))
    recursive(2)
    result = started.wait(60)
    assert result.runs == 1
    assert "also contains 2 other runs of the stage" in " ".join(result.remarks)


def test_parts_of_runs_that_overlap_are_said(work: Work) -> None:
    async def one(seconds: float) -> None:
        with stagespan.span("overlapping"):
            work()
            await asyncio.sleep(seconds)

    async def both() -> None:
        await asyncio.gather(one(0.01), one(0.2))

    started = capture("overlapping", probe=False, max_seconds=60)
    until(lambda: is_waiting(started))
    asyncio.run(both())
    result = started.wait(60)
    assert result.runs == 1
    assert "It also contains a part of another run of the stage." in result.remarks


# --- bounds ---------------------------------------------------------------------------------------


def test_max_events_ends_a_capture_between_runs(work: Work) -> None:
    def much() -> None:
        for _ in range(60):
            work()

    with Service(much):
        result = capture("serve", runs=50, max_events=6000, max_seconds=60).wait(60)
    assert 1 <= result.runs < 50
    assert names_in(result.path)["aten::matmul"] == 600 * result.runs
    assert f"Max_events (6,000) ended it after {result.runs} of 50 runs" in result.remarks[0]


def test_a_part_of_a_run_is_said(work: Work) -> None:
    def too_much() -> None:
        for _ in range(300):
            work()
            time.sleep(0.001)

    with Service(too_much):
        result = capture("serve", max_events=1000, probe=False, max_seconds=60).wait(60)
    assert result.runs == 0
    assert "max_events is 1,000" in result.remarks[0]
    assert "It also contains a part of another run of the stage." in result.remarks


def test_max_seconds_counts_if_the_stage_never_runs() -> None:
    with stagespan.span("a stage that ran"):  # first in the list of all stages of the process
        pass
    sentence = refusal(capture("never", max_seconds=0.3))
    assert "'never' did not run within 0.3 s (max_seconds)" in sentence
    assert "'a stage that ran'" in sentence


def test_a_generator_that_is_never_finished_ends_with_max_seconds(work: Work) -> None:
    started = capture("generated", probe=False, max_seconds=6)
    until(lambda: is_waiting(started))

    def generate() -> Iterator[int]:
        with stagespan.span("generated"):
            work()
            yield 1

    values = generate()
    next(values)
    until(started.is_over)
    result = started.wait(60)
    assert result.runs == 0
    assert "6 seconds (max_seconds)" in result.remarks[0]
    values.close()


def test_a_capture_can_be_cancelled(work: Work) -> None:
    started = capture("never", max_seconds=60)
    with pytest.raises(TimeoutError, match=r"waits for a run|prepares"):
        started.wait(0.01)
    started.cancel()
    assert refusal(started) == "The capture was cancelled."
    with Service(work):  # and while it records
        started = capture("serve", runs=100_000, probe=False, max_seconds=60, max_events=100_000)
        until(lambda: "records run" in started.progress())
        started.cancel()
        assert refusal(started) == "The capture was cancelled."


def test_the_bound_is_known_after_a_first_window(folder: Path) -> None:
    # GIVEN a process without earlier windows
    program = """
import threading, time, torch, stagespan
values, is_over = torch.randn(8), False
def serve():
    while not is_over:
        with stagespan.span("serve"):
            for _ in range(100):
                torch.neg(values)
thread = threading.Thread(target=serve, daemon=True)
thread.start()
first = stagespan.capture("serve", probe=False)
first.wait()
third = stagespan.capture("serve", shapes=True)
result = third.wait()
print(first.pause_bound_ns, third.pause_bound_ns == result.pause_bound_ns)
print(result.pause_bound_ns > 0, result.runs)
is_over = True
thread.join()
"""
    done = ran([sys.executable, "-c", program], STAGESPAN_OUTPUT_DIR=str(folder))
    assert done.stdout.splitlines() == ["None True", "True 1"], done.stderr


# --- refusals -------------------------------------------------------------------------------------


def test_a_second_capture_is_refused_with_the_time_left() -> None:
    first = capture("never", max_seconds=30)
    with pytest.raises(StagespanError, match=r"'never' is in progress, .* in \d+ s at the latest"):
        capture("another")
    first.cancel()
    refusal(first)


def test_when_one_is_over_the_next_one_can_begin() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            begun = capture("never", max_seconds=0.001, probe=False)
            while not begun.is_over():
                pass
    finally:
        sys.setswitchinterval(before)


def test_a_profiler_of_the_application_is_a_reason(work: Work) -> None:
    from torch.profiler import profile

    with profile(), pytest.raises(StagespanError, match="A profiler of the application is running"):
        capture("serve")
    started = capture("serve", probe=False, max_seconds=60)
    until(lambda: is_waiting(started))
    with profile() as own, stagespan.span("serve"):
        work()
    assert "a profiler of the application is running" in refusal(started)
    assert own.events()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"stage": ""}, "must be the name of one stage"),
        ({"stage": "*"}, "must be the name of one stage"),
        ({"stage": "x", "runs": 0}, "runs=0"),
        ({"stage": "x", "steps": True}, "steps=True"),
        ({"stage": "x", "runs": 1, "steps": 1}, "not both"),
        ({"stage": "x", "max_events": -1}, "max_events=-1"),
        ({"stage": "x", "max_seconds": "2"}, "max_seconds='2'"),
        ({"stage": "x", "output": 3}, "output=3"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence.replace("(", r"\(")):
        capture(**arguments)


def test_too_little_memory_is_a_refusal() -> None:
    with pytest.raises(StagespanError, match="GiB of memory are free"):
        capture("serve", max_events=1e12)


def test_a_stage_in_compiled_code_is_told_so() -> None:
    torch = pytest.importorskip("torch")

    def model(values: Any) -> Any:
        with stagespan.span("compiled"):
            return values + 1

    compiled = torch.compile(model, backend="eager")
    compiled(torch.zeros(2))
    started = capture("compiled", max_seconds=0.3, probe=False)
    while not started.is_over():
        compiled(torch.zeros(2))
    assert "torch.compile has compiled does not run as a stage" in refusal(started)


def test_a_build_without_a_profiler_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = pytest.importorskip("torch.profiler")
    monkeypatch.setattr(profiler, "kineto_available", lambda: False)
    with pytest.raises(StagespanError, match="torch was built without its profiler"):
        capture("serve")


def test_a_full_disk_is_a_refusal(work: Work, tmp_path: Path) -> None:
    # GIVEN a limit on the size of files, at which writes fail as on a full disk
    path = tmp_path / "trace.json.gz"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Service(work):
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
        try:
            why = refusal(capture("serve", output=path, probe=False))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    # THEN nothing is left of the trace, and the next capture is written
    assert "was not written" in why
    assert list(tmp_path.iterdir()) == []
    with Service(work):
        assert names_in(capture("serve", output=path, probe=False).wait(60).path)["serve"] == 1


def test_a_process_without_torch_is_told_so() -> None:
    program = "import stagespan\nstagespan.capture('serve')"
    done = ran([sys.executable, "-c", program])
    assert "Nothing can be captured: this process has not imported torch." in done.stderr


def test_a_trace_that_cannot_be_written_is_a_refusal(work: Work, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Service(work):
        started = capture("serve", output=tmp_path / "file" / "trace.json.gz", max_seconds=60)
        assert refusal(started).startswith("The trace was not written: ")
        # AND the next capture works
        assert capture("serve", max_seconds=60).wait(60).runs == 1


def test_a_thread_that_ends_in_the_middle_keeps_the_whole_runs(work: Work) -> None:
    started = capture("serve", runs=5, probe=False, max_seconds=60)
    until(lambda: is_waiting(started))

    def twice() -> None:
        for _ in range(2):
            with stagespan.span("serve"):
                work()

    thread = threading.Thread(target=twice)
    thread.start()
    thread.join()
    result = started.wait(60)
    assert result.runs == 2
    assert "contains 2 of 5 runs, because it ended after the end of its thread" in result.remarks[0]


def test_a_forked_child_has_no_capture(work: Work) -> None:
    started = capture("serve", probe=False, max_seconds=60)
    until(lambda: is_waiting(started))
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            with stagespan.span("serve"):
                pass
            os._exit(0 if open_window() is None else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert is_waiting(started)
    with stagespan.span("serve"):
        work()
    assert started.wait(60).runs == 1


def test_many_captures_leave_nothing_behind(work: Work) -> None:
    from stagespan.contexts import context

    with Service(work):
        capture("serve", max_seconds=60).wait(60)
        threads = threading.active_count()
        descriptors = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
        hooks = len(context._hooks)
        for _ in range(20):
            assert capture("serve", max_seconds=60).wait(60).runs == 1
        until(lambda: threading.active_count() < threads + 10)
        assert len(context._hooks) == hooks
        if sys.platform == "linux":  # others may have opened a few
            assert len(os.listdir("/proc/self/fd")) < descriptors + 10


# --- the child ------------------------------------------------------------------------------------


@_LINUX
def test_stacks_are_written_by_a_child(work: Work) -> None:
    with Service(work):
        result = capture("serve", stacks=True, max_seconds=60).wait(60)
    assert result.in_place is None
    assert names_in(result.path)["aten::matmul"] == 10


@_LINUX
def test_a_child_that_hangs_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text() if children.exists() else ""
    child = save_in_child(io.open, fifo, longest_s=0.3)
    assert child.failed == "the child did not write it within 0.3 s"
    assert (children.read_text() if children.exists() else "") == before


@_LINUX
def test_a_child_that_fails_is_noticed(tmp_path: Path) -> None:
    child = save_in_child(io.open, tmp_path / "missing")
    assert child.failed == "the child ended before it had written it"


@_LINUX
def test_a_function_of_python_is_not_called_in_a_child(tmp_path: Path) -> None:
    assert "could not be forked" in str(save_in_child(lambda _: None, tmp_path).failed)


@_LINUX
def test_the_process_itself_writes_the_trace_during_an_import(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "reads_a_fifo.py").write_text(f"open({str(fifo)!r}).read()")
    monkeypatch.syspath_prepend(str(tmp_path))
    importer = threading.Thread(target=importlib.import_module, args=("reads_a_fifo",))
    importer.start()
    until(lambda: "reads_a_fifo" in sys.modules)
    try:
        with Service(work):
            result = capture("serve", stacks=True, max_seconds=60).wait(60)
    finally:
        fifo.write_text("")
        importer.join()
    assert result.in_place == "another thread is importing a module"
    assert any(f"because {result.in_place}" in remark for remark in result.remarks)
    assert names_in(result.path)["aten::matmul"] == 10


@_LINUX
def test_no_child_is_forked_while_a_thread_is_inside_a_profiler() -> None:
    torch = pytest.importorskip("torch")
    began, may_end = threading.Event(), threading.Event()

    def profile() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            began.set()
            may_end.wait()

    thread = threading.Thread(target=profile)
    assert why_in_place() is None
    thread.start()
    began.wait()
    try:
        assert why_in_place() == "a profiler of the application is running"
    finally:
        may_end.set()
        thread.join()
    assert why_in_place() is None


@_LINUX
@pytest.mark.parametrize(
    ("name", "answer", "reason"),
    [
        ("times.is_attached", True, "an accelerator is in use"),
        ("resident_bytes", 5 << 30, "the process has more than 4 GiB of resident memory"),
    ],
)
def test_the_process_itself_writes_the_trace_on_such_hardware(
    work: Work, monkeypatch: pytest.MonkeyPatch, name: str, answer: object, reason: str
) -> None:
    monkeypatch.setattr(f"stagespan.profiling.forked_export.{name}", lambda: answer)
    with Service(work):
        result = capture("serve", stacks=True, max_seconds=60).wait(60)
    assert result.in_place == reason
    assert names_in(result.path)["aten::matmul"] == 10


def test_a_stage_in_a_graph_capture_is_told_so(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(loaded_platform()), "is_capturing", lambda _: True)
    with Service(work):
        told = refusal(capture("serve", probe=False, max_seconds=60))
    assert "while a device graph is being captured" in told
