"""Checks traces strictly against the Trace Event Format of Perfetto."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

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
            # Each end of a flow is bound to a slice that is open at that time. Times are in us,
            # with a resolution of a thousandth.
            ts = event["ts"]
            assert any(begin <= ts <= end + 0.0005 for begin, end in slices[track]), event
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
