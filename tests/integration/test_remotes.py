"""Segments, hops, waits, batches and chunks, as the recording of this process has them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording import in_child, lost, python

import stagespan
from carrier_texts import own_text, sent_in
from running import PROGRAMS, ran
from stagespan import (
    batch,
    begin,
    current_request,
    end,
    extract,
    inject,
    queued,
    recording,
    request,
    span,
)
from stagespan.recording import request_figures
from stagespan.recording.request_figures import RequestFigures
from stagespan.recording.request_sums import RequestSums
from stagespan.recording.timelines import Timeline, timelines

REQUESTING = PROGRAMS / "requesting.py"

pytestmark = pytest.mark.usefixtures("fresh")
HOUR_NS = 3600 * 10**9


def timeline(name: str) -> Timeline:
    """Return the latest request with this id, which other tests in this process may have used."""
    found = timelines([recording.open(os.getpid())], name)[-1]
    assert sum(found.where.values()) == found.total_ns
    assert min(found.where.values(), default=0) >= 0
    return found


def counts(kind: Any) -> dict[str, int]:
    """Return how often each stage of a kind has run."""
    return {name: one.count for name, one in stagespan.stats(kind=kind).items()}


def changed(carrier: dict[str, str], **changes: Any) -> dict[str, str]:
    """Return a carrier whose own key says something else."""
    return {**carrier, "stagespan": own_text(sent_in(carrier["stagespan"])._replace(**changes))}


def elsewhere(name: str, **changes: Any) -> dict[str, str]:
    """Return a carrier of a request that is open in no process."""
    with request(name):
        return changed(inject(queue="tasks"), **changes)


# --- the context ----------------------------------------------------------------------------------


def test_inside_a_remote_it_is_the_current_request() -> None:
    carrier = elsewhere("r", queue="decode", attempt=2, branch="b")
    remote = extract(carrier)
    assert (remote.id, remote.queue, remote.attempt, remote.branch) == ("r", "decode", 2, "b")
    assert current_request() is None
    with request("outer") as outer:
        with remote as entered:
            assert entered is remote is current_request()
            with pytest.raises(RuntimeError, match="already open"), remote:
                pass
        assert current_request() is outer
        with pytest.raises(KeyError), extract(carrier):
            raise KeyError
        assert current_request() is outer

    async def main() -> None:
        async with extract(carrier) as inside:
            assert current_request() is inside
        assert current_request() is None

    asyncio.run(main())
    assert current_request() is None


def test_a_generator_that_is_dropped_inside_of_a_remote_leaves_the_context_as_it_was() -> None:
    def generate() -> Iterator[int]:
        with extract(elsewhere("r")), span("generator"):
            yield 1

    with request("outer") as outer:
        generator = generate()
        next(generator)
        del generator
        assert current_request() is outer


def test_a_remote_that_is_entered_several_times_is_one_request_of_the_report() -> None:
    # GIVEN a scheduler, which enters a request to begin and to end a wait
    remote = extract(elsewhere("scheduled"))
    with remote, span("admit"):
        pass
    with request("between"):
        pass
    time.sleep(0.002)
    with remote, span("dispatch"):
        pass
    entries = stagespan.timing_report()["requests"][-2:]
    assert [one["request_id"] for one in entries] == ["between", "scheduled"]
    assert set(entries[1]["stages"]) == {"admit", "dispatch"}
    assert entries[1]["duration_ms"] >= 2


# --- hops and clocks ------------------------------------------------------------------------------


def test_a_hop_inside_of_the_root_s_process_comes_back_to_the_root() -> None:
    with request("r") as root, span("first"):
        carrier = inject(queue="again")
    with root:
        back = extract(inject(queue="again"))
        with back:
            assert current_request() is back
            assert (back.id, back.number) == ("r", root.number)
            with span("second"):
                pass
    one = timelines([recording.open(os.getpid())], "r")[-1]
    assert [hop.is_return for hop in one.hops] == [True]
    assert one.where["execution", "second"] > 0
    assert counts("handoff") == counts("queue") == {"again": 1}
    assert carrier["traceparent"]


def test_a_stamp_in_the_future_is_shown_and_not_clamped() -> None:
    before = counts("handoff")
    now = time.monotonic_ns()
    with extract(elsewhere("future", monotonic_ns=now + HOUR_NS)):
        time.sleep(0.001)
    one = timelines([recording.open(os.getpid())], "future")
    (hop,) = next(found.hops for found in one if found.hops)
    assert hop.hand_off_ns is not None
    assert -HOUR_NS <= hop.hand_off_ns < -HOUR_NS + 60 * 10**9
    # It is in no distribution.
    assert counts("handoff") == before


@pytest.mark.parametrize("sent_unix_ns", [0, 10**18, 2**62 - 1])
def test_a_carrier_of_another_clock_has_no_hand_off_of_its_own(sent_unix_ns: int) -> None:
    with request(f"other host {sent_unix_ns}") as root:
        out = inject(queue="there")
        time.sleep(0.002)
        back = changed(
            out,
            monotonic_ns=12 * HOUR_NS + 1_000_000,
            unix_ns=sent_unix_ns,
            clock=99,
            segment=12345,
            queue="replies",
        )
        with extract(back):
            pass
    assert root.trace_id is not None
    one = timeline(root.id)
    (hop,) = one.hops
    assert (hop.queue, hop.hand_off_ns, hop.is_return) == ("replies", None, True)
    assert one.causes == ["recording removed"]
    assert "replies" not in counts("handoff")
    assert counts("queue")["replies"] == 1


def test_the_same_carrier_twice_counts_once() -> None:
    carrier = elsewhere("twice")
    with extract(carrier), span("work"):
        pass
    with extract(carrier), span("work"):
        pass
    one = timeline("twice")
    assert [stretch.segment["origin"] for stretch in one.segments] == ["root", "remote", "repeated"]
    assert [hop.is_repeated for hop in one.hops] == [False, True]
    assert counts("handoff")["tasks"] == counts("queue")["tasks"] == 1
    assert one.causes == []


@pytest.mark.parametrize("trusted", [True, False])
def test_each_call_of_a_foreign_parent_is_a_request(trusted: bool) -> None:
    # GIVEN several calls below one span of another tracer, as a gateway makes them for one client
    header = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    carrier = {"traceparent": header, "tracestate": "vendor=1"}
    names = []
    for n in range(3):
        with extract(carrier, trusted=trusted) as remote, span("work"):
            names.append(remote.id)
            if n == 1:
                inner = changed(inject(queue="tasks"), id=f"inner {trusted}")
    for _ in range(2):
        with extract(inner), span("work"):
            pass
    origins = {one["id"]: one["origin"] for one in recording.open(os.getpid()).segments()}
    assert [origins[name] for name in names] == ["remote"] * 3
    found = recording.open(os.getpid()).segments()
    inner_origins = [one["origin"] for one in found if one["id"] == f"inner {trusted}"]
    assert inner_origins == ["remote", "repeated"]
    assert counts("remote")["default"] == 3


def test_segments_and_returned_hops_are_chosen_by_key() -> None:
    # GIVEN a request whose message comes back, and one that is open
    with request("by key"):
        carrier = inject(queue="tasks")
        with extract(carrier), span("work"):
            pass
    with request("open, by key"):
        found = recording.open(os.getpid())
    # WHEN only some of the segments are read
    keys = found.segment_rows()["key"].tolist()
    chosen = {
        key: one
        for key, one in zip(keys, found.segments(), strict=True)
        if one["id"].endswith("by key")
    }
    # THEN they are the same as among all of them
    assert len(chosen) == 3
    assert chosen.keys() <= found.segment_keys
    assert found.segments(chosen.keys()) == list(chosen.values())
    assert all(one in found.segments() for one in chosen.values())
    assert found.segments(set()) == []
    open_ids = [one["id"] for one in found.open_segments]
    assert "open, by key" in open_ids
    assert "by key" not in open_ids


# --- waits, batches and chunks --------------------------------------------------------------------


def test_waits_of_a_request_add_up() -> None:
    with request("preempted"):
        for _ in range(3):
            token = begin("scheduler", kind="queue")
            time.sleep(0.001)
            end(token)
            with span("run"):
                pass
        with queued("replica"):
            time.sleep(0.001)
    one = timeline("preempted")
    assert one.where["queue", "scheduler"] >= 3_000_000
    assert one.where["queue", "replica"] >= 1_000_000
    assert one.spent["queue", "scheduler"][0] == 3
    assert counts("queue") == {"scheduler": 3, "replica": 1}
    assert counts("execution") == {"run": 3}
    assert [one["kind"] for one in stagespan.open_spans()] == []
    with queued("replica"):
        assert [one["kind"] for one in stagespan.open_spans()] == ["queue"]
    with pytest.raises(ValueError, match="'wait' is not a kind of span"):
        begin("x", kind="wait")
    with pytest.raises(ValueError, match="'wait' is not a kind of span"):
        stagespan.stats(kind="wait")  # type: ignore[arg-type]


def test_the_wait_of_a_bound_function_is_a_queue() -> None:
    def work() -> None:
        with span("work"):
            pass

    def slow() -> None:
        started.set()
        go_on.wait()

    started, go_on = threading.Event(), threading.Event()
    with stagespan.BoundExecutor(ThreadPoolExecutor(1)) as pool, request("pool"):
        pool.submit(slow)
        started.wait()
        waiting = pool.submit(work)
        time.sleep(0.002)
        go_on.set()
        waiting.result()
        bound = stagespan.bind(work)
        bound()
        bound()
    with stagespan.BoundExecutor(ThreadPoolExecutor(1)) as pool:
        pool.submit(work).result()  # without a request, nothing waits for one
    name = work.__qualname__
    assert counts("queue") == {slow.__qualname__: 1, name: 2}
    one = timeline("pool")
    assert one.where["queue", name] >= 2_000_000


def test_one_name_may_be_a_stage_and_a_queue() -> None:
    with span("encoder"), queued("encoder"), batch("encoder", []):
        pass
    names = stagespan.stage_names()
    found = stagespan.spans()
    assert set(found["kind"]) == {"execution", "queue", "batch"}
    assert {names[int(stage)] for stage in found["stage"]} == {"encoder"}
    assert counts("execution") == counts("queue") == counts("batch") == {"encoder": 1}


def test_a_batch_counts_fully_for_each_request_and_once_in_the_statistics() -> None:
    remotes = [extract(elsewhere(f"b{i}")) for i in range(4)]
    with batch("forward", remotes) as forward:
        forward.add(tokens=8)
        time.sleep(0.004)
    for remote in remotes:
        with remote:
            pass
    total_ns = stagespan.stats(kind="batch")["forward"].total_ns
    assert counts("batch") == {"forward": 1}
    read = timelines([recording.open(os.getpid())])  # once: each reading converts the times anew
    found = read.selected(id_ in {f"b{i}" for i in range(4)} for id_ in read.column("id"))
    assert len(found) == 4
    for one in found:
        (span_,) = [s for stretch in one.segments for s in stretch.spans if s.kind == "batch"]
        # The rate of the clock may be measured anew between the readings (some ppm).
        assert span_.end_ns - span_.begin_ns == pytest.approx(total_ns, rel=1e-4)
        assert span_.size == 4
        assert one.spent["execution", "forward"][1] in (
            (span_.end_ns - span_.begin_ns) // 4,
            (span_.end_ns - span_.begin_ns) // 4 + 1,
        )
    shares = [one.spent["execution", "forward"][1] for one in found]
    assert sum(shares) == span_.end_ns - span_.begin_ns
    (row,) = (row for row in request_figures.stages(RequestSums(found)) if row.stage == "forward")
    assert (row.count, row.execution_ns) == (1, sum(shares))
    assert row.max_ns == sum(shares)
    with pytest.raises(TypeError, match="batch\\(\\) takes requests"):
        batch("forward", ["r1"])  # type: ignore[list-item]


def test_the_requests_of_a_batch_cannot_be_replaced_by_something_else() -> None:
    with request("mine") as mine:
        given = [mine]
        made = batch("fixed", given)
        given.append("r1")  # type: ignore[arg-type]
        assert made.requests == (mine,)
        with made:
            pass
    links = recording.open(os.getpid()).links()
    assert [size for _, number, size in links if number == mine.number] == [1]


@pytest.mark.parametrize("size", [0, 1, 128, 129, 10_000])
def test_batches_of_any_size_and_of_ended_requests(size: int) -> None:
    with request("ended") as ended:
        pass
    with batch("large", [ended] * size):
        pass
    found = recording.open(os.getpid()).links()
    assert len([link for link in found if link[1] == ended.number]) == size
    assert {link[2] for link in found if link[1] == ended.number} <= {size}


def test_sizes_of_messages_where_they_are_told() -> None:
    for size_bytes in (100, 300):
        with request("sized"):
            carriers_ = inject(queue="sized"), inject(queue="not sized")
        with extract(carriers_[0], size_bytes=size_bytes), extract(carriers_[1]):
            pass
    assert stagespan.stats(kind="queue")["sized"].work == {"bytes": 400}
    found = timelines([recording.open(os.getpid())], "sized")
    sums = RequestSums(found)
    hand_offs = request_figures.hand_offs(sums.hops, sums.recordings)
    rows = {row.queue: row.mean_bytes for row in hand_offs}
    assert rows == {"sized": 200, "not sized": None}
    with pytest.raises(TypeError, match="'bytes'"):
        extract(carriers_[0], size_bytes="large")  # type: ignore[arg-type]


def test_queues_that_others_name_leave_places_for_own_stages(tmp_path: Path) -> None:
    python((REQUESTING, "many_queues"), tmp_path)


def test_links_that_do_not_fit_are_counted() -> None:
    capacity = 4 * 4096
    before = lost().get("links", 0)
    with request("many") as many:
        for _ in range(3):
            with batch("many", [many] * 8_000):
                pass
    assert lost().get("links", 0) - before >= 3 * 8_000 - capacity
    assert len(recording.open(os.getpid()).links()) <= capacity
    assert "links overwritten" in timeline("many").causes
    with request("after many") as after, batch("many", [after]):
        pass
    assert timeline("after many").causes == []


def test_chunks_are_figures_without_spans() -> None:
    spans = len(stagespan.spans())
    with request("stream") as stream:
        time.sleep(0.001)
        stream.chunk(tokens=4)
        for _ in range(3):
            stream.chunk()
        current = current_request()
        assert current is not None
        current.chunk(tokens=0)
    assert len(stagespan.spans()) == spans
    one = timeline("stream")
    assert (one.chunks, one.tokens) == (5, 7)
    assert one.part_first_chunk_ns is not None
    assert 1_000_000 <= one.part_first_chunk_ns <= one.total_ns
    assert one.first_chunk_ns == one.part_first_chunk_ns
    names = ("first_chunk", "part_first_chunk", "between_chunks", "per_token")
    kinds = [counts(kind) for kind in names]
    assert kinds == [{"default": 1}, {"default": 1}, {"default": 4}, {"default": 3}]


def test_the_earliest_chunk_is_the_first_one_of_the_request() -> None:
    carrier = elsewhere("two streams")
    time.sleep(0.003)
    with extract(carrier) as one:
        with extract(one.inject()) as slow:
            time.sleep(0.002)
            slow.chunk()
        with extract(one.inject()) as fast:
            fast.chunk()
    found = timeline("two streams")
    page = RequestFigures.of(found).to_dict()
    assert found.part_first_chunk_ns is not None
    # The part of the later chunk took less time to it.
    assert found.part_first_chunk_ns >= 2_000_000
    assert found.part_first_chunk_ns <= found.segments[1].end_ns - found.segments[1].begin_ns
    assert page["part_first_chunk_ns"] == found.part_first_chunk_ns
    assert found.first_chunk_ns is not None
    assert found.first_chunk_ns >= found.part_first_chunk_ns + 3_000_000
    assert page["first_chunk_ns"] == found.first_chunk_ns


def first_chunk_ns(carrier: dict[str, str], trusted: bool = True) -> int | None:
    """Return the live figure of a part that makes a chunk; it is None exactly if it was lost."""
    before, counted = lost().get("first_chunk_clock", 0), counts("first_chunk").get("default", 0)
    with extract(carrier, trusted=trusted) as remote:
        remote.chunk()
    is_lost = lost().get("first_chunk_clock", 0) - before
    assert is_lost + counts("first_chunk").get("default", 0) - counted == 1
    segment = recording.open(os.getpid()).segments()[-1]
    if is_lost:
        assert segment["request_ns"] is None
        return None
    assert segment["first_chunk_ns"] is not None
    assert segment["request_ns"] is not None
    assert segment["request_ns"] <= (segment["received_ns"] or 0)
    return segment["first_chunk_ns"] - segment["request_ns"]


def test_the_first_chunk_counts_from_the_begin_of_the_request() -> None:
    before_ns = time.monotonic_ns()
    with request("client") as client:
        since_ns = time.monotonic_ns()
        time.sleep(0.01)
        carrier = client.inject(queue="tasks")
        time.sleep(0.01)
        # GIVEN a part in the middle, as in a chain of processes
        with extract(changed(carrier, id="elsewhere")) as middle:
            time.sleep(0.01)
            onwards = middle.inject(queue="decode")
    for one, least_ns in ((carrier, 10_000_000), (onwards, 30_000_000)):
        assert (sent_in(one["stagespan"]).age or 0) >= least_ns
    earliest_ns = time.monotonic_ns() - since_ns
    found_ns = first_chunk_ns(changed(onwards, id="elsewhere"))
    latest_ns = time.monotonic_ns() - before_ns
    assert found_ns is not None
    assert earliest_ns - 50_000 <= found_ns <= latest_ns + 50_000
    stats = stagespan.stats(kind="first_chunk")["default"]
    assert stats.total_ns == pytest.approx(found_ns, abs=2_000)


def test_an_age_that_cannot_be_true_or_placed_is_not_used() -> None:
    carrier = elsewhere("r")
    sent = sent_in(carrier["stagespan"])
    assert first_chunk_ns(carrier) is not None
    assert first_chunk_ns(changed(carrier, age=0)) is not None
    unusable = {
        "another clock": changed(carrier, clock=sent.clock ^ 1),
        "a clock hours ahead": changed(carrier, monotonic_ns=sent.monotonic_ns + HOUR_NS),
        "a request older than its clock": changed(carrier, age=sent.monotonic_ns + 1),
        "any age": changed(carrier, age=(1 << 62) - 1),
        "the first version": changed(carrier, age=None),
        "a later version": {**carrier, "stagespan": f"3{carrier['stagespan'][1:]}"},
        "only W3C": {"traceparent": carrier["traceparent"]},
        "none": {},
    }
    for what, one in unusable.items():
        assert first_chunk_ns(one) is None, what
    assert first_chunk_ns(carrier, trusted=False) is None


def test_an_unknown_age_is_not_passed_on() -> None:
    for carrier in ({}, changed(elsewhere("r"), age=None)):
        with extract(carrier) as remote:
            assert sent_in(remote.inject()["stagespan"]).age is None
    # WHEN it is known where the recorder was off THEN it is passed on as it was
    carrier = elsewhere("r")
    stagespan.disable()
    try:
        with extract(carrier) as remote:
            assert remote.inject()["stagespan"] == carrier["stagespan"]
    finally:
        stagespan.enable()


def test_carriers_of_three_versions_in_one_chain() -> None:
    # GIVEN a process whose version knows no ages, and a later one whose key cannot be read
    with request("chain") as root:
        first = changed(root.inject(queue="first"), age=None)
    with extract(first) as old:
        second = old.inject(queue="second")
    later = {**second, "stagespan": f"3{second['stagespan'][1:]}"}
    with extract(later) as new, span("work"):
        new.chunk()
    # THEN the parts belong to one request, whose hop of an unknown version has no time
    assert root.trace_id == old.trace_id == new.trace_id
    found = timeline("chain")
    assert len(found.segments) == 3
    states = [(hop.state, hop.hand_off_ns is None) for hop in found.hops]
    assert states == [("received", False), ("unknown", True)]
    assert found.chunks == 1
    assert first_chunk_ns(later) is None


# --- statuses, retries and branches ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "ok"),
        (KeyError, "error"),
        (asyncio.CancelledError, "cancelled"),
        (GeneratorExit, "cancelled"),
        (KeyboardInterrupt, "error"),
    ],
)
def test_the_status_follows_from_how_a_request_is_left(
    error: type[BaseException] | None, status: str
) -> None:
    expected = contextlib.nullcontext() if error is None else pytest.raises(error)
    with expected, request("status"):
        if error is not None:
            raise error
    assert timelines([recording.open(os.getpid())], "status")[-1].status == status


def test_a_status_that_is_set_stays() -> None:
    one = request("set")

    def fail() -> None:
        with one:
            one.set_status("cancelled")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert timeline("set").status == "cancelled"
    assert stagespan.timing_report()["requests"][-1]["status"] == "cancelled"
    with pytest.raises(ValueError, match="'done' is not a status"):
        one.set_status("done")  # type: ignore[arg-type]


def test_a_discarded_branch_is_reported_separately() -> None:
    with request("speculative"):
        hops = [inject(queue="draft", branch=name) for name in ("fast", "slow")]
        time.sleep(0.001)
        stretched = changed(hops[0]), changed(hops[1])
    for carrier, status in zip(stretched, ("ok", "discarded"), strict=True):
        remote = extract(carrier)
        with remote, span("draft"):
            time.sleep(0.002)
            if status == "discarded":
                remote.set_status("discarded")
    one = timeline("speculative")
    assert [hop.branch for hop in one.hops] == ["fast", "slow"]
    assert one.discarded_ns >= 2_000_000
    assert one.late_spans == 1  # of the other branch: the request had ended
    assert one.causes == []


def test_a_retry_is_another_attempt_of_the_same_request() -> None:
    with request("retried"):
        first = inject(queue="work")
        second = inject(queue="work", attempt=2)
    with pytest.raises(KeyError), extract(first):
        raise KeyError
    with extract(second):
        pass
    one = timeline("retried")
    assert [(s.segment["attempt"], s.segment["status"]) for s in one.segments[1:]] == [
        (1, "error"),
        (2, "ok"),
    ]


def test_work_after_the_end_changes_no_total() -> None:
    with request("late"):
        carrier = inject()
    total_ns = timeline("late").total_ns
    with extract(carrier), span("late work"):
        time.sleep(0.002)
    one = timeline("late")
    # Each reading of the clock may convert it differently by a few parts in a million.
    assert one.total_ns == pytest.approx(total_ns, rel=1e-3)
    assert one.late_spans == 1
    assert ("execution", "late work") not in one.where


# --- many requests, and processes -----------------------------------------------------------------


def test_ids_may_be_reused() -> None:
    for _ in range(3):
        with request("same"):
            carrier = inject()
        with extract(carrier):
            pass
    found = timelines([recording.open(os.getpid())], "same")
    assert len(found) == len({one.trace_id for one in found}) == 3
    assert {len(one.segments) for one in found} == {2}


def test_a_hundred_thousand_open_requests_are_counted_and_lose_no_span() -> None:
    before = lost().get("requests", 0)
    carrier = elsewhere("one of many")
    remotes = [extract(carrier) for _ in range(50_000)]
    opened = [request(f"q{i}", new=True) for i in range(50_000)]
    for one in opened:
        one.__enter__()
    with span("inside"):
        pass
    for one in reversed(opened):
        one.__exit__()
    assert stagespan.stats()["inside"].count == 1
    assert lost()["requests"] - before >= 100_000 - 4_096 - 1
    assert len(recording.open(os.getpid()).segments()) <= 4_096
    remotes.clear()
    assert current_request() is None
    with request("afterwards"):
        pass
    assert timeline("afterwards").causes == []


def test_a_request_that_does_not_end() -> None:
    # GIVEN a request that is open whenever it is read
    with request("endless"), span("work"):
        first = timeline("endless")
        time.sleep(0.002)
        second = timeline("endless")
    # THEN its time, which goes on, is complete up to then
    for one in (first, second):
        assert (one.status, one.causes) == ("open", ["not ended yet"])
        assert one.where["execution", "work"] > 0
    assert second.total_ns >= first.total_ns + 2_000_000 - 20_000
    assert timeline("endless").causes == []


def test_a_process_without_stagespan_passes_the_carrier_on() -> None:
    with request("through"):
        sent = json.dumps(inject(queue="work"))
    passed = ran(["cat"], input=sent, status=0)
    with extract(json.loads(passed.stdout)), span("work"):
        pass
    found = timeline("through")
    assert [one.segment["origin"] for one in found.segments] == ["root", "remote"]
    assert found.causes == []


def test_a_fork_inside_of_a_request(tmp_path: Path) -> None:
    *children, parent = map(json.loads, in_child((REQUESTING, "fork_inside"), tmp_path))
    # THEN the ids are different, and each child has its own recording
    assert len({one[0] for one in (*children, parent)}) == 3
    assert [one[1] for one in children] == [["child", "child"]] * 2


def test_a_hop_to_a_forked_child_does_not_come_back(folder: Path, tmp_path: Path) -> None:
    python((REQUESTING, "hop_to_a_child"), tmp_path, STAGESPAN_RECORDING="keep")
    (found,) = timelines([recording.open(path) for path in folder.glob("*.stagespan")])
    assert found.causes == []
    assert [one.segment["origin"] for one in found.segments] == ["root", "remote"]
    assert found.where["execution", "work"] > 0


@pytest.mark.parametrize("kind", ["batch", "queue"])
def test_a_process_that_ends_in_a_batch_or_a_wait(kind: str, folder: Path, tmp_path: Path) -> None:
    program = f"""
        import os, stagespan
        with stagespan.request("r"):
            carrier = stagespan.inject()
            if os.fork() == 0:
                with stagespan.extract(carrier) as remote, stagespan.span("prefill"):
                    pass
                if {kind!r} == "batch":
                    serving = stagespan.batch("forward", [remote])
                    serving.__enter__()
                else:
                    with remote:
                        token = stagespan.begin("forward", kind="queue")
                os._exit(3)
            os.wait()
    """
    python(program, tmp_path, STAGESPAN_RECORDING="keep")
    (found,) = timelines([recording.open(path) for path in folder.glob("*.stagespan")])
    assert found.causes == ["process ended"]
    assert found.segments[1].segment["status"] == "abandoned"
    assert [(span.stage, span.kind, span.is_open) for span in found.segments[1].spans] == [
        ("prefill", "execution", False),
        ("forward", kind, True),
    ]


@pytest.mark.parametrize("first", ["stagespan.request('r')", "stagespan.extract({})"])
def test_making_the_recording_is_not_a_part_of_the_first_request(
    first: str, folder: Path, tmp_path: Path
) -> None:
    # GIVEN a folder where that takes long, because it removes what ended processes left
    ended = subprocess.Popen(["true"])
    ended.wait()
    for n in range(3000):
        (folder / f"{ended.pid}-{n + 1}.stagespan").touch()
    program = f"""
        import os, stagespan
        from stagespan import recording
        # WHEN the first thing that is recorded is a request
        with {first}: pass
        made_ns = os.stat(os.environ["STAGESPAN_RECORDING_DIR"]).st_mtime_ns
        (one,) = recording.open(os.getpid()).segments()
        begin_ns = one["begin_ns"] if one["received_ns"] is None else one["received_ns"]
        # THEN it begins after the last file has been removed
        assert len(os.listdir(os.environ["STAGESPAN_RECORDING_DIR"])) < 100
        assert begin_ns > made_ns - 100_000, (made_ns - begin_ns) / 1e6
    """
    python(program, tmp_path)


def test_hashes_instead_of_ids(tmp_path: Path) -> None:
    program = """
        import json, logging, os, sys, stagespan
        from stagespan import recording
        from stagespan.logging import RequestFilter
        handler = logging.StreamHandler()
        handler.addFilter(RequestFilter())
        handler.setFormatter(logging.Formatter("%(request)s %(message)s"))
        logging.basicConfig(level="INFO", handlers=[handler])
        with stagespan.request("secret-17"):
            with stagespan.extract(stagespan.inject()), stagespan.ProfilingContext("logged"):
                logging.info("inside")
        stagespan.flush()
        shown = [one["id"] for one in recording.open(os.getpid()).segments()]
        report = stagespan.timing_report()["requests"]
        print(json.dumps([shown, [one["request_id"] for one in report]]))
    """
    done = ran(
        [sys.executable, "-c", textwrap.dedent(program)], status=0, STAGESPAN_REQUEST_IDS="hash"
    )
    shown, reported = json.loads(done.stdout)
    assert set(shown) == set(reported)
    assert len(set(shown)) == 1
    assert len(shown[0]) == 16
    assert f"{shown[0]} inside" in done.stderr
    assert "logged" in done.stderr
    assert "secret" not in done.stdout + done.stderr


def test_chunks_and_statuses_while_nothing_is_recorded() -> None:
    stagespan.disable()
    try:
        with stagespan.request("off") as off:
            off.chunk(3)
            off.set_status("cancelled")
            stagespan.inject()
        remote = stagespan.extract({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})
        with remote:
            remote.chunk()
        received = stagespan.extract({"traceparent": f"00-{'a' * 32}-{'c' * 16}-01"})
    finally:
        stagespan.enable()
    later = stagespan.request("later")
    # WHEN they are used as if they were recorded / THEN nothing is raised
    later.chunk()
    later.set_status("error")
    with stagespan.batch("forward", [received, later]):
        pass
    with received:
        received.chunk(2)


def test_amounts_of_chunks() -> None:
    with stagespan.request("amounts") as current:
        current.chunk(np.int64(3))
        for tokens in (-1, 2**64):
            with pytest.raises(ValueError, match=f"tokens is {tokens}: pass a number from 0"):
                current.chunk(tokens)
        with pytest.raises(TypeError):
            current.chunk(1.5)  # type: ignore[arg-type]


def test_replies_come_back_to_their_own_request_of_a_trace() -> None:
    # GIVEN two calls of one client in one process, which belong to one trace, also with long ids
    header = f"00-{'a' * 32}-{'b' * 16}-01"
    for ids in (("first", "second"), ("r" * 200 + "1", "r" * 200 + "2"), ("Ä 1", "Ä 2")):
        opened = [request(id_, traceparent=header) for id_ in ids]
        for one in opened:
            one.__enter__()
        sent = [one.inject(queue="work") for one in opened]
        assert [extract(carrier).number for carrier in sent] == [one.number for one in opened]
        opened[1].__exit__(None, None, None)
        assert extract(opened[0].inject()).number == opened[0].number
        assert extract(sent[1]).number not in {one.number for one in opened}
        opened[0].__exit__(None, None, None)


@pytest.mark.parametrize("header", [{}, {"traceparent": f"00-{'c' * 32}-{'d' * 16}-01"}])
def test_replies_come_back_to_what_a_client_has_begun(header: dict[str, str]) -> None:
    with (
        extract(header, trusted=False) as root,
        extract(inject(queue="replies")),
        span("render"),
    ):
        pass
    (found,) = timelines([recording.open(os.getpid())], root.id)
    assert len(found.segments) == 1
    assert [hop.is_return for hop in found.hops if hop.sender is not None] == [True]
    assert extract(root.inject()).number != root.number
