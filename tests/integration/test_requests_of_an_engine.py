"""Requests of an engine of four processes: every boundary lies between the engine's own stamps."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from recorded_process import command_here, recordings_in, serving

from running import ended
from stagespan import recording
from stagespan.recording.timelines import Timeline, timelines

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("zmq", reason="pyzmq is not installed")
pytestmark = pytest.mark.slow

CLOCK_ERROR_NS = 20_000
"""What the conversion of clocks may add to a boundary."""
STAMPS_VARIABLE = "ENGINE_STAMPS"
JOB = "engine"
REQUESTS = 200
STEPS = 6
KILL, EXIT = 70, 130
TESTS = Path(__file__).parent.parent

Stamps = dict[tuple[str, str], list[tuple[int, int]]]
"""Ns before and after each call, by what was called and the request's id or that of its hop."""


class Engine(NamedTuple):
    """What the processes have recorded, and their own stamps."""

    folder: Path
    timelines: dict[str, Timeline]
    stamps: Stamps
    endings: dict[str, str]
    """What clients got, by request: ``"complete"`` or ``"gone"``."""


def kind_of(number: int) -> str:
    """Return the kind of a request."""
    if number in (KILL, EXIT):
        return "kill" if number == KILL else "exit"
    return ("plain", "plain", "stream", "preempt", "plain", "leave", "stream", "cancel")[number % 8]


def is_abandoned(number: int) -> bool:
    """Whether the client of a request goes away."""
    return kind_of(number) in ("leave", "cancel")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    stamps = tmp_path_factory.mktemp("stamps")
    variables = {
        "STAGESPAN_JOB": JOB,
        STAMPS_VARIABLE: str(stamps),
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS / "integration")]),
    }
    program = TESTS / "served_engine.py"
    # The names of sockets have at most 107 characters.
    with (
        tempfile.TemporaryDirectory() as sockets,
        serving(program, sockets, "stamped_engine:Stamped", **variables) as (process, port, folder),
    ):
        # Two of the requests end their worker.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            endings = dict(pool.map(lambda number: _get(port, number), range(REQUESTS)))
        ended(process, 0)
        found = timelines(recording.open(one.path) for one in recordings_in(folder))
        yield Engine(folder, {one.id: one for one in found}, _stamps(stamps), endings)


def _get(port: int, number: int) -> tuple[str, str]:
    name, kind = f"r{number}", kind_of(number)
    steps = 1 if kind == "plain" else STEPS
    sent = {"stream": "plain", "leave": "endless", "cancel": "endless"}.get(kind, kind)
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    client.request("GET", f"/{sent}/{steps}/{name}")
    if kind == "leave":
        client.close()
        return name, "gone"
    answer = client.getresponse()
    if kind == "cancel":
        assert answer.read(1) == b"x"
        answer.close()
        client.close()
        return name, "gone"
    body = answer.read()
    client.close()
    assert body.endswith(b".")
    return name, "complete"


def _stamps(folder: Path) -> Stamps:
    found: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            what, keys, before, after = json.loads(line)
            for key in keys:
                found[what, key].append((before, after))
    return dict(found)


def test_every_total_is_the_sum_of_its_parts(engine: Engine) -> None:
    assert set(engine.timelines) == {f"r{i}" for i in range(REQUESTS)}
    for one in engine.timelines.values():
        assert sum(one.where.values()) == one.total_ns
        assert min(one.where.values()) >= 0


def test_the_command_shows_every_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESPAN_RECORDING_DIR", str(engine.folder))
    done = command_here("requests", "--json", "--slowest", str(REQUESTS), "--job", JOB)
    page = json.loads(done.stdout)
    assert page["count"] == len(page["requests"]) == REQUESTS
    for one in page["requests"]:
        assert sum(part["ns"] for part in one["where"]) == one["total_ns"]
        parts = [one[f"{kind}_ns"] for kind in ("execution", "handoff", "queue", "unattributed")]
        assert sum(parts) == one["total_ns"]
    hops = {row["queue"]: row["count"] for row in page["hops"]}
    assert set(hops) == {"scheduler", "worker", "replies"}
    assert sum(hops.values()) == len({key for what, key in engine.stamps if what == "receive"})


def _boundaries(one: Timeline) -> Iterator[tuple[str, str, int, int]]:
    """Yield what was called, for which key, the how many-th time, and the boundary in ns."""
    root = one.segments[0]
    yield "begin", one.id, 0, root.begin_ns
    yield "end", one.id, 0, root.end_ns
    received = [(stretch.recording, stretch.segment) for stretch in one.segments[1:]]
    received += [
        (root.recording, segment)
        for segment in root.recording.segments()
        if segment["origin"] == "return" and segment["number"] == root.segment["number"]
    ]
    for of, segment in received:
        key = segment["parent_hop"] or ""
        assert segment["sent_monotonic_ns"] is not None
        yield "send", key, 0, segment["sent_monotonic_ns"]
        for what, index, at_ns in (
            ("receive", 0, segment["received_ns"]),
            ("enter", 0, segment["begin_ns"]),
            ("leave", -1, segment["end_ns"]),
            ("chunk", 0, segment["first_chunk_ns"]),
            ("chunk", -1, segment["last_chunk_ns"]),
        ):
            if at_ns is not None:
                yield what, key, index, at_ns - of.unix_offset_ns
    for stretch in one.segments:
        key = one.id if stretch is root else stretch.segment["parent_hop"] or ""
        counts: Counter[str] = Counter()
        for span in sorted(stretch.spans, key=lambda span: span.begin_ns):
            index = counts[span.stage]
            counts[span.stage] += 1
            yield f"begin {span.stage}", key, index, span.begin_ns
            if not span.is_open:
                yield f"end {span.stage}", key, index, span.end_ns


def test_every_boundary_lies_between_the_engine_s_own_stamps(engine: Engine) -> None:
    checked: Counter[str] = Counter()
    wrong = []
    for one in engine.timelines.values():
        for what, key, index, at_ns in _boundaries(one):
            before_ns, after_ns = engine.stamps[what, key][index]
            if not before_ns - CLOCK_ERROR_NS <= at_ns <= after_ns + CLOCK_ERROR_NS:
                wrong.append((one.id, what, key, at_ns - before_ns, at_ns - after_ns))
            checked[what] += 1
    assert wrong == []
    # AND no call is missing. A segment has its first entry, its last exit, and two of its chunks.
    stamped: Counter[str] = Counter()
    for (what, _), calls in engine.stamps.items():
        several = what in ("enter", "leave")
        stamped[what] += 1 if several else min(len(calls), 2) if what == "chunk" else len(calls)
    one_chunk = sum(
        len(calls) == 1 for (what, _), calls in engine.stamps.items() if what == "chunk"
    )
    # The last exit before a death is not the end of a segment.
    statuses = [s.segment["status"] for one in engine.timelines.values() for s in one.segments]
    stamped["leave"] -= statuses.count("abandoned")
    sent = stamped.pop("send")
    assert sent - checked.pop("send") == _unreceived(engine)
    assert checked == {**stamped, "chunk": stamped["chunk"] + one_chunk}


def _unreceived(engine: Engine) -> int:
    """Return how many hops the workers that died did not receive, or had not sent yet."""
    received = {key for what, key in engine.stamps if what == "receive"}
    return len({key for what, key in engine.stamps if what == "send"} - received)


def _attempts(one: Timeline) -> int:
    return max(stretch.segment["attempt"] for stretch in one.segments)


def test_requests_have_all_their_parts(engine: Engine) -> None:
    retried = 0
    for number in range(REQUESTS):
        one, kind = engine.timelines[f"r{number}"], kind_of(number)
        if _attempts(one) > 1:
            retried += 1
            continue
        assert one.causes == []
        if is_abandoned(number):
            continue
        steps = 1 if kind == "plain" else STEPS
        queues = ["scheduler", "worker", "replies"]
        if kind == "preempt":
            queues[2:2] = ["scheduler", "worker"]
        assert [hop.queue for hop in one.hops] == queues
        assert [hop.is_return for hop in one.hops] == [*[False] * (len(queues) - 1), True]
        assert (one.status, one.chunks, one.tokens) == ("ok", steps, steps)
        assert one.spent["queue", "waiting"][0] == (2 if kind == "preempt" else 1)
        assert one.spent["execution", "forward"][0] == steps
        assert one.where["execution", "forward"] >= steps * 1_000_000
        assert one.late_spans == one.clipped_ns == 0
    # Besides the two that ended their worker, those that were in it
    assert 2 <= retried <= 8


def test_requests_whose_client_has_gone_are_cancelled(engine: Engine) -> None:
    for number in filter(is_abandoned, range(REQUESTS)):
        one = engine.timelines[f"r{number}"]
        assert one.status == "cancelled"
        assert ("handoff", "replies") not in one.where
        last = max(one.segments, key=lambda stretch: stretch.begin_ns)
        assert _attempts(one) > 1 or last.segment["status"] == "cancelled"


@pytest.mark.parametrize("number", [KILL, EXIT])
def test_a_request_whose_worker_died_is_tried_again(engine: Engine, number: int) -> None:
    # GIVEN a worker that was killed by SIGKILL, and one that called os._exit, in a batch
    one = engine.timelines[f"r{number}"]
    assert engine.endings[one.id] == "complete"
    workers = [stretch for stretch in one.segments if stretch.segment["queue"] == "worker"]
    died, second = sorted(workers, key=lambda stretch: stretch.segment["attempt"])
    assert [died.segment["attempt"], died.segment["status"]] == [1, "abandoned"]
    assert [(span.kind, span.stage) for span in died.spans if span.is_open] == [
        ("batch", "forward")
    ]
    assert died.recording.state == "died"
    assert [second.segment["attempt"], second.segment["status"]] == [2, "ok"]
    assert one.status == "ok"
    assert one.chunks == STEPS
    assert one.causes == ["process ended"]


def test_batches_count_fully_for_each_request_and_once_in_the_statistics(engine: Engine) -> None:
    total_ns = share_ns = count = 0
    sizes = set()
    for one in recordings_in(engine.folder):
        batches = one.stats(kind="batch")
        if "forward" in batches:
            count += batches["forward"].count
            total_ns += batches["forward"].total_ns
    shares = 0
    for timeline in engine.timelines.values():
        for stretch in timeline.segments:
            for span in stretch.spans:
                if span.kind == "batch" and not span.is_open:
                    share_ns += (span.end_ns - span.begin_ns) // span.size
                    sizes.add(span.size)
                    shares += 1
    assert max(sizes) > 1
    assert shares > count
    # Each share is rounded down, and each span is converted to ns separately.
    assert total_ns - 2 * shares <= share_ns <= total_ns + 2 * shares
