"""Tests of when something last began or ended at or below an open span, here and from outside."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import pytest
from exporting import exporter, of, scraped
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_process import started

import stagespan
from running import PROGRAMS, end, tell, until
from stagespan import recording
from stagespan.recording.reading import Recording

LIVE = PROGRAMS / "live.py"

pytestmark = pytest.mark.usefixtures("fresh")


def open_now() -> dict[str, Any]:
    """Return the open spans by stage, which are the same here and in both kinds of copies."""
    path = recording.open(os.getpid()).path
    here, whole, figures = (
        {one["stage"]: one for one in spans}
        for spans in (
            stagespan.open_spans(),
            Recording(path).open_spans(),
            Recording(path, everything=False).open_spans(),
        )
    )
    for copy in (whole, figures):
        assert here.keys() == copy.keys()
        for stage, one in copy.items():
            assert one["suspended"] == here[stage]["suspended"]
            assert one["active_ns"] == pytest.approx(here[stage]["active_ns"], abs=100_000)
    return here


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 300))
def test_a_span_was_active_when_the_latest_one_inside_of_it_began_or_ended(
    opens: list[bool], extra: int
) -> None:
    # GIVEN spans that begin and end in one another, more of them than a ring keeps
    stack: list[tuple[str, Any]] = []
    latest: dict[str, int] = {}
    for number, is_begin in enumerate(opens):
        if is_begin or not stack:
            stack.append((f"level {number}", stagespan.span(f"level {number}")))
            stack[-1][1].__enter__()
        else:
            name, one = stack.pop()
            one.__exit__(None, None, None)
            latest.pop(name)
        for name, _ in stack:
            latest[name] = time.time_ns()
    if stack:
        for _ in range(extra):
            with stagespan.span("short"):
                pass
        if extra:
            latest.update(dict.fromkeys(latest, time.time_ns()))
    found = open_now()
    assert found.keys() == latest.keys()
    for name, at_ns in latest.items():
        assert at_ns - found[name]["active_ns"] in range(-100_000, 20_000_000)
        assert not found[name]["suspended"]
    for _, one in reversed(stack):
        one.__exit__(None, None, None)


def test_spans_of_other_threads_count_for_the_span_that_they_are_in() -> None:
    with stagespan.span("outer"), stagespan.span("other"):
        pass
    with stagespan.span("outer"):
        work = stagespan.bind(
            lambda: stagespan.span("inner").__enter__().__exit__(None, None, None)
        )
        time.sleep(0.05)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        (outer,) = open_now().values()
        assert outer["active_ns"] - outer["begin_ns"] >= 50_000_000
        # WHEN a thread does something else THEN it does not count
        thread = threading.Thread(target=lambda: stagespan.span("alone").__enter__())
        thread.start()
        thread.join()
        assert open_now()["outer"]["active_ns"] == pytest.approx(outer["active_ns"], abs=100_000)


def test_a_coroutine_that_waits_is_suspended() -> None:
    @stagespan.span("decorated")
    async def decorated() -> None:
        with stagespan.span("in decorated"):
            await asyncio.sleep(10)

    async def inside() -> None:
        with stagespan.span("task"):
            await asyncio.sleep(10)

    async def main() -> None:
        tasks = [asyncio.create_task(decorated()), asyncio.create_task(inside())]
        await asyncio.sleep(0.01)
        with stagespan.span("runs"):
            found = open_now()
            states = {name: one["suspended"] for name, one in found.items()}
            assert states == {
                "decorated": True,
                "in decorated": True,
                "task": True,
                "runs": False,
                "around": False,
            }
        for task in tasks:
            task.cancel()

    with stagespan.span("around"):
        asyncio.run(main())


def test_a_generator_is_suspended_between_two_values() -> None:
    @stagespan.span("values")
    def values() -> Any:
        yield open_now()["values"]["suspended"]
        yield None

    made = values()
    assert next(made) is False
    assert open_now()["values"]["suspended"] is True


def test_the_metrics_tell_how_long_nothing_has_happened(folder: Any) -> None:
    process = started(LIVE, "inner_spans", STAGESPAN_JOB="svc")
    ages = {
        "stage": "stagespan_stage_oldest_running_age_seconds",
        "batch": "stagespan_batch_oldest_running_age_seconds",
        "queue": "stagespan_queue_oldest_waiting_age_seconds",
        "request": "stagespan_oldest_request_age_seconds",
    }
    with exporter() as (_, port):
        until(lambda: of(scraped(port), "stagespan_process_up", service="svc"))
        # THEN what has begun has a series before it has ended once
        samples = scraped(port)
        assert of(samples, "stagespan_stage_duration_seconds_count", stage="outer") == 0
        assert of(samples, "stagespan_stage_errors_total", stage="outer") == 0
        assert of(samples, "stagespan_batch_duration_seconds_count", stage="forward") == 0
        assert of(samples, "stagespan_stage_queue_duration_seconds_count", stage="jobs") == 0
        for status in ("ok", "error"):
            count = "stagespan_request_duration_seconds_count"
            assert of(samples, count, status=status, service="svc") == 0
        time.sleep(1)
        samples = scraped(port)
        assert all((of(samples, name) or 0) >= 1 for name in ages.values())
        # WHEN a stage begins and ends THEN only what it is in is young
        tell(process, "go")
        samples = scraped(port)
        is_old = {key: (of(samples, name) or 0) >= 1 for key, name in ages.items()}
        assert is_old == {"stage": False, "batch": False, "queue": True, "request": True}
        end(process)
        # THEN it is open no more, and has no age
        until(lambda: of(scraped(port), "stagespan_stage_running", stage="outer") == 0)
        assert of(scraped(port), ages["stage"], stage="outer") is None
