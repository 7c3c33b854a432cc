"""The CPU time of a span: the thread's, beside its duration, in runs that measure it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import math
import pickle
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded_process import command_here, started
from recording import python

import stagespan
from running import PROGRAMS, end, in_threads
from stagespan import _core, recording, span

TIMED = PROGRAMS / "timed.py"

MS = 1_000_000


def compute(ms: float) -> None:
    """Use the CPU for some time."""
    until = time.thread_time_ns() + ms * MS
    while time.thread_time_ns() < until:
        pass


def cpu_ns_of(stage: str) -> list[float]:
    """Return the CPU times of the spans of a stage, NaN where unknown."""
    names = _core.stage_names()
    return [float(row["cpu_ns"]) for row in _core.spans() if names[row["stage"]] == stage]


@pytest.mark.usefixtures("fresh")
def test_a_block_that_asks_has_the_cpu_time_of_its_thread() -> None:
    with span("computes", cpu=True):
        compute(10)
    with span("sleeps", cpu=True):
        time.sleep(0.03)
    with span("does not ask"):
        compute(1)

    (computes,), (sleeps,), (unasked,) = map(cpu_ns_of, ("computes", "sleeps", "does not ask"))
    stats = stagespan.stats()
    assert 10 * MS <= computes <= stats["computes"].total_ns
    assert 0 < sleeps < 20 * MS
    assert math.isnan(unasked)
    assert stats["computes"].cpu_total_ns == computes
    assert stats["computes"].cpu_count == 1
    assert stats["does not ask"].cpu_total_ns is None
    assert "CPU mean ms" in str(stats)


@pytest.mark.usefixtures("fresh")
def test_a_thread_that_computes_beside_is_not_counted() -> None:
    with span("waits", cpu=True):
        in_threads(lambda: compute(40))
    (waits,) = cpu_ns_of("waits")
    assert waits < 20 * MS


@pytest.mark.usefixtures("fresh")
def test_every_form_of_a_stage() -> None:
    @span("named", cpu=True)
    def named() -> None:
        compute(5)

    @span(cpu=True)
    def unnamed() -> None:
        compute(5)

    class Model:
        @span("method", cpu=True)
        def method(self) -> None:
            compute(5)

    reused = span("reused", cpu=True)
    named()
    unnamed()
    Model().method()
    for context in (reused, copy.copy(reused), pickle.loads(pickle.dumps(reused))):
        with context:
            compute(5)
    with contextlib.ExitStack() as stack:
        stack.enter_context(span("stacked", cpu=True))
        compute(5)
    for stage in ("named", unnamed.__qualname__, "method", "reused", "stacked"):
        times = cpu_ns_of(stage)
        assert times, stage
        assert all(time_ns >= 5 * MS for time_ns in times), stage


@pytest.mark.usefixtures("fresh")
def test_nested_and_recursive_spans_have_their_own() -> None:
    @span("recursive", cpu=True)
    def recursive(depth: int) -> None:
        compute(2)
        if depth:
            recursive(depth - 1)

    recursive(3)
    for levels, time_ns in enumerate(sorted(cpu_ns_of("recursive")), 1):
        assert time_ns >= 2 * MS * levels


@pytest.mark.usefixtures("fresh")
def test_it_is_unknown_where_other_code_of_the_thread_could_run() -> None:
    @span("coroutine", cpu=True)
    async def coroutine() -> None:
        await asyncio.sleep(0.001)

    @span("generator", cpu=True)
    def generator() -> Iterator[int]:
        yield 1
        yield 2

    def by_hand() -> Iterator[None]:
        with span("in a generator", cpu=True):
            yield

    async def waits() -> None:
        with span("awaits", cpu=True):
            await asyncio.sleep(0.01)

    async def computes() -> None:
        await asyncio.sleep(0.002)
        compute(5)

    async def main() -> None:
        await asyncio.gather(coroutine(), waits(), computes())

    asyncio.run(main())
    list(generator())
    list(by_hand())
    for stage in ("coroutine", "generator", "in a generator", "awaits"):
        (cpu_ns,) = cpu_ns_of(stage)
        assert math.isnan(cpu_ns), stage
        assert stagespan.stats()[stage].cpu_total_ns is None


@pytest.mark.parametrize("greenlets", ["no", "yes"])
def test_it_is_known_in_tasks_that_do_not_wait(greenlets: str, tmp_path: Path) -> None:
    # In a process of its own, since it matters whether another test has imported greenlet.
    if greenlets == "yes":
        pytest.importorskip("greenlet", reason="greenlet is not installed")
    python((TIMED, "loop"), tmp_path, GREENLETS=greenlets)


def test_it_is_unknown_in_greenlets_that_switch(tmp_path: Path) -> None:
    pytest.importorskip("greenlet", reason="greenlet is not installed")
    python((TIMED, "greenlets_that_switch"), tmp_path)


@pytest.mark.usefixtures("fresh")
def test_a_span_that_another_thread_ends_has_none() -> None:
    context = span("elsewhere", cpu=True)
    context.__enter__()
    in_threads(lambda: context.__exit__(None, None, None))
    (cpu_ns,) = cpu_ns_of("elsewhere")
    assert math.isnan(cpu_ns)


@pytest.mark.usefixtures("fresh")
def test_more_open_spans_than_are_measured_lose_only_their_times() -> None:
    contexts = [span(f"level {level % 7}", cpu=True) for level in range(300)]
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
    times = [cpu_ns for level in range(7) for cpu_ns in cpu_ns_of(f"level {level}")]
    assert len(times) == len(contexts)
    assert sum(map(math.isnan, times)) < len(contexts) / 2


def test_one_variable_asks_for_all_stages(tmp_path: Path) -> None:
    python((TIMED, "all_stages"), tmp_path, STAGESPAN_CPU_TIME="true")


@pytest.mark.usefixtures("fresh")
def test_threads_that_end_leave_their_figures() -> None:
    def work() -> None:
        with span("in a thread", cpu=True):
            compute(2)

    in_threads(*[work] * 8)
    for stats in (stagespan.stats(), stagespan.stats(window_s=3600)):
        stage = stats["in a thread"]
        assert stage.cpu_count == 8
        assert stage.cpu_total_ns is not None
        assert stage.cpu_total_ns >= 16 * MS


def test_a_child_has_its_own(tmp_path: Path) -> None:
    python((TIMED, "child"), tmp_path)


def spans_of(path: Path) -> dict[str, float]:
    """Return the CPU time of each stage in a recording."""
    read = recording.open_recording(str(path))
    names = read.stage_names()
    return {names[row["stage"]]: float(row["cpu_ns"]) for row in read.spans()}


def test_other_processes_read_it_also_after_a_kill(folder: Path) -> None:
    process = started(TIMED, "slow_request")
    (path,) = folder.glob("*.stagespan")
    for kill in (False, True):
        if kill:
            process.send_signal(signal.SIGKILL)
            process.wait()
        found = spans_of(path)
        assert 12 * MS <= found["outer"] < 100 * MS
        assert math.isnan(found["plain"])
        assert recording.open_recording(str(path)).stats()["outer"].cpu_total_ns == found["outer"]
    # THEN commands say it in words and in JSON
    text = " ".join(command_here("requests", "--id", "slow").stdout.split())
    assert "outer, ran 1" in text
    assert "plain, ran" not in text
    (request,) = json.loads(command_here("requests", "--id", "slow", "--json").stdout)["requests"]
    cpu_ns = {one["stage"]: one["cpu_ns"] for one in request["segments"][0]["spans"]}
    assert cpu_ns == {"outer": found["outer"], "plain": None}
    rows = json.loads(command_here("dump", str(path), "--format", "json").stdout)["spans"]
    assert {row["stage"]: row["cpu_ns"] for row in rows} == cpu_ns


def test_a_recording_grows_only_where_it_is_asked_for(folder: Path) -> None:
    reserved = {}
    for asks in ("", ", cpu=True"):
        process = started(
            f"""
            import stagespan
            with stagespan.span("stage"{asks}):
                pass
            print("ready", flush=True)
            input()
            """,
            STAGESPAN_RING_SPANS="8192",
        )
        (path,) = folder.glob(f"{process.pid}-*.stagespan")
        reserved[asks] = path.stat().st_blocks * 512
        end(process)
    assert reserved[", cpu=True"] - reserved[""] == 16 * 8192


def test_the_counts_of_the_kernel_are_work_of_the_span_where_it_is_asked_for(folder: Path) -> None:
    names = {"page_faults", "voluntary_switches", "involuntary_switches", "system_us"}
    if Path("/proc/thread-self/schedstat").exists():
        names.add("run_delay_us")
    process = started(TIMED, "faults_and_switches", STAGESPAN_SYSTEM="true")
    (path,) = folder.glob("*.stagespan")
    read = recording.open_recording(str(path))
    work = {stage: figures.work for stage, figures in read.stats().items() if figures.work}
    assert all(work[stage].keys() == names for stage in ("outer", "touches", "waits"))
    assert 2000 <= work["touches"]["page_faults"] <= work["outer"]["page_faults"]
    assert work["waits"]["page_faults"] < 2000
    assert 20 <= work["waits"]["voluntary_switches"] <= work["outer"]["voluntary_switches"]
    assert read.stats()["outer"].cpu_count == 1
    text = " ".join(command_here("requests", "--id", "slow").stdout.split())
    assert re.search(r"touches, 2,\d+ page faults", text)
    # THEN the request does not count nested spans twice
    assert "page_faults" not in command_here("requests").stdout
    end(process)
    # AND without the variable, nothing is counted
    process = started(TIMED, "faults_and_switches", STAGESPAN_CPU_TIME="true")
    assert not recording.open(process.pid).stats()["outer"].work
