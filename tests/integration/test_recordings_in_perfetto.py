"""The traces that `stagespan dump` writes, checked strictly against the Trace Event Format."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from recorded_process import command, end, ready, start

from stagespan import recording
from stagespan.recording import dump
from stagespan.trace import read_trace

FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": (int, float), "dur": (int, float)},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "s": {"name": str, "cat": str, "pid": int, "tid": int, "ts": (int, float), "id": (int, str)},
}
FIELDS["t"] = FIELDS["f"] = FIELDS["s"]


def check(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Check each event and how the events belong together; return the slices."""
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    slices: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    flows: defaultdict[tuple[str, str, int | str], list[tuple[float, str]]] = defaultdict(list)
    names: Counter[tuple[str, int, int]] = Counter()
    for event in events:
        for name, kind in FIELDS[event["ph"]].items():
            assert isinstance(event[name], kind), event
            assert not isinstance(event[name], bool), event
        assert isinstance(event.get("args", {}), dict), event
        track = (event["pid"], event["tid"])
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name"), event
            assert event["args"].keys() == {"name"}, event
            assert isinstance(event["args"]["name"], str), event
            names[event["name"], event["pid"], event["tid"]] += 1
        elif event["ph"] == "X":
            assert event["dur"] >= 0, event
            slices[track].append((event["ts"], event["ts"] + event["dur"]))
        else:
            flows[event["cat"], event["name"], event["id"]].append((event["ts"], event["ph"]))
            if event["ph"] == "f":
                assert event["bp"] == "e", event
            # Each end of a flow is bound to a slice that is open at that time.
            assert any(begin <= event["ts"] <= end for begin, end in slices[track]), event
    # Each track and process has one name.
    assert set(names.values()) <= {1}
    assert {("thread_name", *track) for track in slices} <= set(names)
    assert {("process_name", pid, 0) for pid, _ in slices} <= set(names)
    # Slices of a track are in order, and no two of them overlap partially.
    for of_track in slices.values():
        assert of_track == sorted(of_track, key=lambda one: one[0])
        open_ends: list[float] = []
        for begin, stop in of_track:
            # In us, with a resolution of a thousandth.
            while open_ends and open_ends[-1] <= begin + 0.0005:
                open_ends.pop()
            assert not open_ends or stop <= open_ends[-1] + 0.0005
            open_ends.append(stop)
    # Each flow begins once and ends once.
    for of_flow in flows.values():
        phases = "".join(phase for _, phase in sorted(of_flow, key=lambda one: one[0]))
        assert phases == "s" + "t" * (len(phases) - 2) + "f"
    return [event for event in events if event["ph"] == "X"]


PROGRAM = """
    import asyncio, sys, threading, time
    import stagespan

    async def serve(i):
        with stagespan.request(f"request {i}"):
            for step in range(3):
                with stagespan.span("step"):
                    await asyncio.sleep(0.001 * (i + 1))

    async def main():
        await asyncio.gather(*(serve(i) for i in range(4)))

    def work():
        for _ in range(20):
            with stagespan.request("of threads"), stagespan.span("outer"):
                with stagespan.span("inner"):
                    pass

    asyncio.run(main())
    workers = [threading.Thread(target=work, name=name) for name in ("w", "\\"w\\" \\u00e9")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    token = stagespan.begin("token")
    with stagespan.span("around the end of the token"):
        stagespan.end(token)
    stagespan.record("earlier", time.time_ns() - 10**9, time.time_ns())
    try:
        with stagespan.span("failed"):
            raise ValueError
    except ValueError:
        pass
    left_open = stagespan.begin("token that is open")
    with stagespan.span("main"), stagespan.span("inside"):
        print("ready", flush=True)
        time.sleep(60)
"""


def test_a_trace_for_perfetto_is_strictly_valid(folder: Path, tmp_path: Path) -> None:
    # GIVEN a process with threads, tasks, requests, tokens, and open spans
    process = start(PROGRAM)
    try:
        ready(process)
        alive = json.loads(command("dump", str(process.pid)).stdout)
    finally:
        end(process)
    # WHEN it is dumped while alive, and after it was killed
    found = recording.open(process.pid)
    path = tmp_path / "trace.json"
    path.write_text(dump.as_perfetto(found))
    spans = found.spans()
    expected = Counter(found.stage_names()[stage] for stage in spans["stage"].tolist())
    expected.update(span["stage"] for span in found.open_spans())
    assert expected["step"] == 12
    assert expected["inner"] == 40
    for trace in (alive, json.loads(path.read_text())):
        # THEN the trace is valid, and has a slice for each span
        slices = check(trace)
        assert Counter(event["name"] for event in slices) == expected
        assert len({event["args"]["id"] for event in slices}) == len(slices)
        flows = {event["id"] for event in trace["traceEvents"] if event["ph"] == "s"}
        assert len(flows) == 4  # one for each request with more than one outermost span
    # THEN no time has been rounded
    begins = {event["args"]["id"]: event["ts"] for event in slices}
    base = trace["baseTimeNanoseconds"]
    for number, begin in zip(spans["id"].tolist(), spans["begin_ns"].tolist(), strict=True):
        assert base + round(begins[number] * 1000) == begin
    # THEN readers that use the base of the times get the same spans
    read = read_trace(path).events
    assert len(read.begin_ns) == sum(expected.values())
    assert set(spans["begin_ns"].tolist()) <= set(read.begin_ns.tolist())
