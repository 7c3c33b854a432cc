"""Traces of device events alone, and the use and the verdict of a trace."""

from __future__ import annotations

import json
from pathlib import Path

from commands import checked

from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import device_use, verdict
from stagespan.trace.analyses.device_use import Use
from stagespan.trace.analyses.verdict import Verdict

US = 1_000


def use_of(trace: Trace) -> Use:
    return checked(device_use.analyze(trace), Use)


def judged(trace: Trace) -> Verdict:
    """Return the verdict, whose times and parts are the whole."""
    found = checked(verdict.analyze(trace), Verdict)
    assert sum(found.times_ns.values()) == sum(found.parts_ns.values()) == found.whole_ns
    assert found.bar().whole_ns == found.whole_ns
    return found


def device_only(tmp_path: Path, *work: tuple[str, str, int, int, int]) -> Trace:
    """A trace of device events: name, category, stream, begin and end in us."""
    path = tmp_path / "device.json"
    entries = [
        {"ph": "X", "name": name, "cat": cat, "ts": begin, "dur": end - begin, "pid": 0,
         "tid": stream, "args": {"device": 0, "stream": stream}}
        for name, cat, stream, begin, end in work
    ]  # fmt: skip
    path.write_text(json.dumps(entries))
    return read_trace(path)


def devices_only(tmp_path: Path, *work: tuple[str, int, int, int]) -> Trace:
    """A trace of kernels and copies: name, device, begin and end in us."""
    path = tmp_path / "devices.json"
    entries = [
        {"ph": "X", "name": name, "cat": "gpu_memcpy" if "Memcpy" in name else "kernel",
         "ts": begin, "dur": end - begin, "pid": device, "tid": 7,
         "args": {"device": device, "stream": 7}}
        for name, device, begin, end in work
    ]  # fmt: skip
    path.write_text(json.dumps(entries))
    return read_trace(path)
