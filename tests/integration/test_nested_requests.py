"""Requests inside of requests, and one trace with what another tracer has between them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import Any

import pytest
from recording import printed, python

import stagespan
from recorded import part_of
from running import PROGRAMS
from stagespan import _core, recording
from stagespan.recording.timelines import Timeline, timelines

REQUESTING = PROGRAMS / "requesting.py"

pytestmark = pytest.mark.usefixtures("fresh")


def rows(*ids: str) -> dict[str, Timeline]:
    """Return the latest request with each id; other tests of this process have others."""
    found = {one.id: one for one in timelines([recording.open(os.getpid())]) if one.id in ids}
    for one in found.values():
        assert sum(one.where.values()) == one.total_ns
        assert one.causes == []
    return found


def counted() -> int:
    return sum(one.count for one in stagespan.stats(kind="request").values())


def test_a_request_inside_of_another_one_is_its_child() -> None:
    with stagespan.request("outer") as outer:
        time.sleep(0.002)
        with stagespan.request("inner") as inner:
            time.sleep(0.003)
            with stagespan.queued("room"):
                time.sleep(0.002)
            with stagespan.span("render"):
                time.sleep(0.002)
    assert inner.trace_id == outer.trace_id
    assert counted() == 1
    found = rows("outer", "inner")
    # THEN all of its time is execution of the outer one, and it has a row of its own
    of_inner = found["inner"]
    assert of_inner.where_sum("queue") >= 2_000_000
    assert of_inner.where_sum("unattributed") >= 3_000_000
    assert found["outer"].where_sum("execution") >= of_inner.total_ns
    assert found["outer"].where["execution", "render"] >= 2_000_000
    assert found["outer"].where["execution", "request default"] >= 5_000_000
    segment = of_inner.segments[0].segment
    outer_segment = found["outer"].segments[0].segment
    assert (segment["origin"], segment["parent_segment"]) == ("nested", outer_segment["segment"])
    assert segment["link"] == (outer.trace_id, outer_segment["segment"])
    # AND the order in which the two are asked for changes nothing
    of_this_id = timelines([recording.open(os.getpid())], "inner")
    (alone,) = (one for one in of_this_id if one.trace_id == inner.trace_id)  # not other tests'
    assert alone.where.keys() == of_inner.where.keys()
    assert alone.where_sum("queue") == pytest.approx(of_inner.where_sum("queue"), abs=99)


def test_very_deep_requests_are_shown_only_inside_of_the_outer_ones() -> None:
    ids = [f"level {depth}" for depth in range(200)]
    with contextlib.ExitStack() as levels:
        for id_ in ids:
            levels.enter_context(stagespan.request(id_))
        with stagespan.span("innermost"):
            time.sleep(0.001)
    found = rows(*ids)
    # THEN the root and 64 levels have rows, each with all that is inside of it
    assert [len(found[id_].segments) for id_ in ids[:65]] == [200 - depth for depth in range(65)]
    assert found.keys() == set(ids[:65])
    for one in found.values():
        assert one.where["execution", "innermost"] >= 1_000_000


def test_a_request_that_goes_on_after_the_outer_one_counts_up_to_its_end() -> None:
    async def main() -> None:
        async def later() -> None:
            async with stagespan.request("inner"):
                await asyncio.sleep(0.02)

        async with stagespan.request("outer"):
            task = asyncio.create_task(later())
            await asyncio.sleep(0.005)
        await task

    asyncio.run(main())
    found = rows("outer", "inner")
    assert found["inner"].total_ns >= 20_000_000
    assert found["outer"].where_sum("execution") <= found["outer"].total_ns < 20_000_000


def test_a_task_that_outlives_its_request_begins_requests_of_its_own() -> None:
    async def main() -> Any:
        async def batcher() -> Any:
            await asyncio.sleep(0.01)
            async with stagespan.request("of the batcher") as late:
                return late

        async with stagespan.request("first") as first:
            task = asyncio.create_task(batcher())
        return first, await task

    first, late = asyncio.run(main())
    assert late.trace_id != first.trace_id
    assert counted() == 2
    segment = rows("of the batcher")["of the batcher"].segments[0].segment
    assert (segment["origin"], segment["parent_segment"]) == ("root", None)
    assert segment["link"] is not None
    assert segment["link"][0] == first.trace_id


def test_a_new_request_is_always_a_root() -> None:
    @stagespan.request("decorated", new=True)
    def function() -> Any:
        return stagespan.current_request()

    with stagespan.request("outer") as outer:
        with stagespan.request("inner", new=True) as inner:
            pass
        made = function()
    assert len({outer.trace_id, inner.trace_id, made.trace_id}) == 3
    assert counted() == 3
    assert rows("inner")["inner"].segments[0].segment["link"] is None


def test_one_object_can_be_nested_once_and_a_root_later() -> None:
    one = stagespan.request("one")
    with stagespan.request("outer") as outer, one:
        assert one.trace_id == outer.trace_id
    with one:
        assert one.trace_id != outer.trace_id
    assert counted() == 2


def test_a_child_in_a_fork_is_no_child_of_the_parents_request() -> None:
    with stagespan.request("outer") as outer:
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                with stagespan.request("child") as child:
                    os.write(writing, str(child.trace_id).encode())
            finally:
                os._exit(0)
        os.wait()
        assert os.read(reading, 99).decode() != outer.trace_id
    os.close(reading)
    os.close(writing)


# --- beside another tracer ------------------------------------------------------------------------


def test_the_sender_is_known_from_the_tracestate_of_a_trusted_carrier() -> None:
    with stagespan.request("front") as front:
        carrier = front.inject(queue="tasks")
        state = carrier["tracestate"]
        assert state.startswith("stagespan=")
        assert len(state) == len("stagespan=") + 16
        # GIVEN a proxy that passes on only what W3C names, behind its own span
        header = f"{carrier['traceparent'][:36]}{'b7ad6b7169203331'}-01"
        proxied = {"traceparent": header, "tracestate": f"{state},other=1"}
        with stagespan.extract(proxied) as worker, stagespan.span("work"):
            time.sleep(0.002)
            onwards = worker.inject()["tracestate"]
    assert onwards.endswith(",other=1")
    assert onwards.count("stagespan=") == 1
    assert onwards[:26] != state[:26]
    (found,) = timelines([recording.open(os.getpid())], front.id)[-1:]
    assert found.where["execution", "work"] >= 2_000_000
    assert found.hops[0].state == "unknown"
    assert counted() == 1
    # AND not from one that is not trusted, or that has two of them
    for trusted, text in ((False, state), (True, f"{state},{state}"), (True, f"{state}0")):
        remote = stagespan.extract({**proxied, "tracestate": text}, trusted=trusted)
        with remote:
            pass
        copy = recording.open(os.getpid())
        assert copy.segments()[-1]["parent_segment"] is None, text


def test_a_part_with_an_unknown_sender_joins_the_root_that_encloses_it() -> None:
    with stagespan.request("front") as front:
        header = f"{front.inject()['traceparent'][:36]}b7ad6b7169203331-01"
        with stagespan.extract({"traceparent": header}), stagespan.span("work"):
            time.sleep(0.002)
    with stagespan.extract({"traceparent": header}), stagespan.span("late"):
        pass
    joined, late = timelines([recording.open(os.getpid())])[-2:]
    assert joined.id == "front"
    assert joined.where["execution", "work"] >= 2_000_000
    assert [one.segment["origin"] for one in joined.segments] == ["root", "remote"]
    # THEN one that the root does not enclose is a request of its own
    assert ("execution", "late") in late.where


def test_nested_requests_and_links_are_exported() -> None:
    oracle = pytest.importorskip("otlp_oracle", exc_type=ImportError)
    with stagespan.request("outer"), stagespan.request("inner"):
        pass
    copy = recording.open(os.getpid())
    outer, inner = copy.segments()[-2:]
    sent, _ = oracle.messages_of([part_of(inner)])
    (span,) = oracle.spans_in(sent)
    assert span.parent_span_id.hex() == outer["segment"]
    assert not span.flags & oracle.IS_REMOTE
    (link,) = span.links
    assert link.span_id.hex() == outer["segment"]


@pytest.mark.parametrize("is_on", [True, False])
def test_a_span_of_the_sdk_inside_of_a_request_is_its_child(tmp_path: Any, is_on: bool) -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    variables = {"STAGESPAN_OTEL_CONTEXT": "true"} if is_on else {}
    (found,) = printed(python((REQUESTING, "sdk"), tmp_path, **variables))
    assert found == [[is_on, is_on]] * 3 + [False, False]


def test_a_request_is_not_told_of_where_nothing_is_recorded() -> None:
    stagespan.disable()
    try:
        with stagespan.request() as off:
            assert _core.Request._w3c.__get__(off) is None  # type: ignore[attr-defined]
    finally:
        stagespan.enable()
