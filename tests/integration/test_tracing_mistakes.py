"""Mistakes that tracers of requests make, and stagespan must not: one test for each."""

from __future__ import annotations

import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from recording import lost, python
from test_remotes import HOUR_NS, changed, counts, elsewhere, timeline

import stagespan
from running import PROGRAMS
from stagespan import batch, bind, extract, inject, recording, request, span
from stagespan.recording import request_figures
from stagespan.recording.request_figures import RequestFigures
from stagespan.recording.timelines import timelines

TIMED = PROGRAMS / "timed.py"

pytestmark = pytest.mark.usefixtures("fresh")
CLOCK_ERROR_NS = 20_000


def test_hops_are_matched_by_their_ids_and_not_by_their_order() -> None:
    # GIVEN three messages that arrive in another order
    with request("order"):
        carriers = {name: inject(queue="work", branch=name) for name in ("a", "b", "c")}
    for name in ("c", "a", "b"):
        with extract(pickle.loads(pickle.dumps(carriers[name]))), span(f"work {name}"):
            pass
    found = timeline("order")
    assert found.causes == []
    for one in found.segments[1:]:
        name = one.segment["branch"] or ""
        assert one.segment["parent_hop"] == carriers[name]["traceparent"].split("-")[2]
        assert [work.stage for work in one.spans] == [f"work {name}"]


def test_a_hop_that_nobody_received_is_named_and_its_time_is_unattributed() -> None:
    with request("unmatched"), span("parse"):
        inject(queue="work")
        # While the request is open, the message may still be under way.
        waiting = timeline("unmatched")
    lost_ = timeline("unmatched")
    for found, state, cause in (
        (waiting, "waiting", "message waiting to be received"),
        (lost_, "lost", "message not received"),
    ):
        assert not found.complete
        assert cause in found.causes
        (hop,) = RequestFigures.of(found).to_dict()["hops"]
        assert (hop["state"], hop["sender"]) == (state, os.getpid())
        unknown = ("queue", "receiver", "hand_off_ns", "queue_ns", "attempt")
        assert {hop[name] for name in unknown} == {None}
        # It is in no figure of hand-offs.
        assert request_figures.hand_offs(found.hops, []) == []
    assert RequestFigures.of(lost_).to_dict()["causes"] == ["message not received"]


def test_a_message_that_was_received_and_dropped_is_named() -> None:
    with request("dropped"):
        carriers = [inject(queue="work"), inject(queue="work")]
    extract(carriers[0])
    # A process in the middle that passes a message on drops nothing.
    with extract(extract(carriers[1]).inject()):
        pass
    found = timeline("dropped")
    assert found.causes == ["message received and not entered"]
    assert [(hop.state, hop.queue, hop.receiver) for hop in found.hops] == [
        ("received", "work", os.getpid()),
        ("not_entered", "work", os.getpid()),
    ]


def test_a_reply_that_is_only_received_ends_no_wait() -> None:
    with request("replied"):
        extract(inject(queue="replies"))
        time.sleep(0.001)
    found = timeline("replied")
    assert found.causes == []
    assert [(hop.is_return, hop.queue_ns) for hop in found.hops] == [(True, None)]
    assert ("queue", "replies") not in found.where


def test_what_is_unknown_is_null() -> None:
    with request("unknown"):
        carrier = changed(inject(queue="unknown"), clock=99, segment=12345)
        with extract(carrier):
            pass
    found = timeline("unknown")
    (hop,) = RequestFigures.of(found).to_dict()["hops"]
    assert hop["hand_off_ns"] is None
    (row,) = request_figures.hand_offs(found.hops, [])
    assert (row.count, row.unknown, row.p50_ns, row.max_ns) == (1, 1, None, None)
    assert "unknown" not in counts("handoff")


def test_a_wait_is_not_booked_as_transfer() -> None:
    before_ns = time.monotonic_ns()
    remote = extract(elsewhere("waits"))
    received_ns = time.monotonic_ns()
    time.sleep(0.01)
    with remote:
        pass
    (hop,) = timeline("waits").hops
    assert hop.queue_ns is not None
    assert hop.hand_off_ns is not None
    assert hop.queue_ns >= 10_000_000 - CLOCK_ERROR_NS
    assert 0 <= hop.hand_off_ns <= received_ns - before_ns + CLOCK_ERROR_NS
    assert stagespan.stats(kind="handoff")["tasks"].max_ns <= received_ns - before_ns + (
        CLOCK_ERROR_NS
    )


def test_no_request_of_a_batch_is_its_parent() -> None:
    remotes = [extract(elsewhere(f"member {i}")) for i in range(3)]
    with batch("forward", remotes), span("kernel"):
        pass
    names = stagespan.stage_names()
    rows = {names[int(row["stage"])]: row for row in stagespan.spans()}
    assert int(rows["forward"]["request"]) == int(rows["forward"]["parent"]) == 0
    assert int(rows["kernel"]["request"]) == 0
    served = [timeline(f"member {i}") for i in range(3)]
    assert [[s.stage for s in one.segments[-1].spans] for one in served] == [["forward"]] * 3


def test_a_span_that_outlives_its_request_makes_no_total_wrong() -> None:
    work = span("work")
    with request("outlived"):
        child = extract(changed(inject(queue="child")))
        child.__enter__()
        work.__enter__()
    total_ns = timeline("outlived").total_ns
    time.sleep(0.01)
    work.__exit__(None, None, None)
    child.__exit__(None, None, None)
    # THEN the root is as long as before, and what is outside of it is told
    found = timeline("outlived")
    assert found.total_ns == pytest.approx(total_ns, rel=1e-3)
    assert found.clipped_ns >= 10_000_000 - CLOCK_ERROR_NS


def test_durations_do_not_follow_the_wall_clock() -> None:
    before_ns = time.monotonic_ns()
    with extract(elsewhere("wall clock", unix_ns=time.time_ns() - 24 * HOUR_NS)):
        pass
    (hop,) = timeline("wall clock").hops
    assert hop.hand_off_ns is not None
    assert 0 <= hop.hand_off_ns <= time.monotonic_ns() - before_ns + CLOCK_ERROR_NS


def test_trace_ids_have_128_bits() -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    with request("given", traceparent=f"00-{trace_id}-b7ad6b7169203331-01"):
        carrier = inject()
    with extract(changed(carrier, segment=1)) as remote:
        assert remote.trace_id == trace_id
    assert {one.trace_id for one in timelines([recording.open(os.getpid())], "given")} == {trace_id}
    own = []
    for _ in range(8):
        with request() as one:
            own.append(one.trace_id or "")
    halves = {half for one in own for half in (one[:16], one[16:])}
    assert len(halves) == 16
    assert "0" * 16 not in halves


def test_a_process_that_does_not_record_breaks_no_trace_and_records_later() -> None:
    with request("not recorded") as root:
        sent = inject(queue="middle")
    stagespan.disable()
    with extract(sent), span("not recorded"):
        passed = inject(queue="unused")
    stagespan.enable()
    assert passed == sent
    with extract(passed), span("work"):
        pass
    found = timeline("not recorded")
    assert [one.segment["trace_id"] for one in found.segments] == [root.trace_id] * 2
    assert found.causes == []


def test_functions_get_the_arguments_that_they_were_called_with() -> None:
    def work(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    expected = ((1, [2]), {"c": 3})
    with request("arguments"):
        assert bind(work)(1, [2], c=3) == expected
        assert span("work")(work)(1, [2], c=3) == expected
        with stagespan.BoundExecutor(ThreadPoolExecutor(1)) as pool:
            assert pool.submit(work, 1, [2], c=3).result() == expected
        stagespan.propagate_to_threads()
        try:
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(work, 1, [2], c=3).result() == expected
        finally:
            stagespan.propagate_to_threads(False)


def test_a_request_opens_no_file_and_no_connection_in_its_thread(tmp_path: Path) -> None:
    assert python((TIMED, "audited_requests"), tmp_path).stdout.strip() == "[]"


def test_an_error_of_tracing_does_not_end_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    context = pytest.importorskip("opentelemetry.context")

    def fail() -> None:
        raise RuntimeError

    monkeypatch.setattr(trace, "get_current_span", fail)
    before = lost().get("hook_errors", 0)
    # GIVEN a context of OpenTelemetry, because the span is not asked for without one
    token = context.attach(context.set_value("any", 1))
    with request("provider fails") as one, span("work"):
        pass
    context.detach(token)
    assert one.trace_id is not None
    assert lost()["hook_errors"] == before + 1
    assert timeline("provider fails").where["execution", "work"] > 0


def test_spans_of_children_arrive_however_they_end(folder: Path, tmp_path: Path) -> None:
    python((TIMED, "ends_of_children"), tmp_path, STAGESPAN_RECORDING="keep")
    found = timelines([recording.open(path) for path in folder.glob("*.stagespan")])
    assert [(one.id, one.causes) for one in found] == [
        ("returns", []),
        ("exits", []),
        ("killed", []),
    ]
    for one in found:
        assert one.spent["execution", one.id][0] == 100


def test_ids_of_requests_are_no_names_of_figures() -> None:
    def serve(id_: str) -> None:
        with request(id_) as root, span("parse"):
            carrier = inject(queue="work")
            root.chunk()
        remote = extract(carrier)
        with remote, batch("forward", [remote]):
            remote.chunk()

    serve("id 0")
    names = stagespan.stage_names()
    for i in range(1, 100):
        serve(f"id {i}")
    assert stagespan.stage_names() == names
