"""The traces that `stagespan dump` writes, checked strictly against the Trace Event Format."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from perfetto import check
from recorded_process import command, started

from running import PROGRAMS, end
from stagespan import recording
from stagespan.recording import dump
from stagespan.recording.analysis import trace_of
from stagespan.trace import Trace, read_trace

LIVE = PROGRAMS / "live.py"


def test_a_trace_for_perfetto_is_strictly_valid(folder: Path, tmp_path: Path) -> None:
    # GIVEN a process with threads, tasks, requests, tokens, and open spans
    process = started(LIVE, "spans_of_all_kinds")
    alive = json.loads(command("dump", str(process.pid)).stdout)
    end(process)
    found = recording.open(process.pid)
    path = tmp_path / "trace.json"
    path.write_bytes(b"".join(dump.as_perfetto(found)))
    spans = found.spans()
    expected = Counter(found.stage_names()[stage] for stage in spans["stage"].tolist())
    expected.update(span["stage"] for span in found.open_spans())
    assert expected["step"] == 12
    assert expected["inner"] == 40
    for trace in (alive, json.loads(path.read_text())):
        every = check(trace)
        slices = [event for event in every if event["cat"] == "user_annotation"]
        assert Counter(event["name"] for event in slices) == expected
        assert len({event["args"]["id"] for event in slices}) == len(slices)
        flows = {event["id"] for event in trace["traceEvents"] if event["ph"] == "s"}
        assert len(flows) == 4  # one for each request with more than one outermost span
        assert Counter(event["name"] for event in every if event["cat"] == "request") == {
            **{f"request {i}": 1 for i in range(4)},
            "of threads": 40,
        }
    begins = {event["args"]["id"]: event["ts"] for event in slices}
    base = trace["baseTimeNanoseconds"]
    for number, begin in zip(spans["id"].tolist(), spans["begin_ns"].tolist(), strict=True):
        assert base + round(begins[number] * 1000) == begin
    read = read_trace(path)
    assert len(read.events) == sum(expected.values()) + 44
    assert set(spans["begin_ns"].tolist()) <= set(read.events.begin_ns.tolist())
    made = trace_of(found, str(path))
    assert shown_by(made) == shown_by(read)


def shown_by(trace: Trace) -> dict[str, object]:
    events = trace.events
    columns = (events.begin_ns, events.dur_ns, events.pid, events.tid)
    return {
        "names": [trace.names[code] for code in events.name.tolist()],
        "categories": [trace.categories[code] for code in events.category.tolist()],
        "columns": [column.tolist() for column in columns],
        "tracks": trace.thread_names,
        "processes": trace.process_names,
        "about": trace.metadata["otherData"],
        "base": trace.base_ns,
    }
