"""A synthetic Ascend result folder: no NPU wrote it.

No public profile holds the events of compiled calls, so these are made from what the sources of
TorchAir and torch_npu say. Every folder that is written has "synthetic" in its name, and every
trace says so in a metadata entry. All times are given in ns from the start.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stagespan.trace import Trace, read_trace

BEGIN = 1_736_408_883_000_000_000
PYTHON, CANN, DEVICE, GROUPS, OVERLAP = 1000, 2000, 2100, 2200, 2300
MAIN, QUEUE = 1000, 1001
_PROCESSES = {
    PYTHON: ("Python", "CPU"),
    CANN: ("CANN", "CPU"),
    DEVICE: ("Ascend Hardware", "NPU"),
    GROUPS: ("Communication", "NPU"),
    OVERLAP: ("Overlap Analysis", "NPU"),
}
_OVERLAPS = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")
STEP_COLUMNS = (
    "Computing",
    "Communication(Not Overlapped)",
    "Overlapped",
    "Communication",
    "Free",
    "Stage",
    "Bubble",
    "Communication(Not Overlapped and Exclude Receive)",
    "Preparing",
)


def us(time_ns: int) -> str:
    """Return microseconds as the profiler writes them."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


class SyntheticAscend:
    """Collects events; the overlap analysis and the tables are made of them."""

    def __init__(self, level: int = 1) -> None:
        self.level = level
        self.events: list[dict[str, Any]] = []
        self.kernels: list[tuple[str, str, str, int, int]] = []
        self.collectives: list[tuple[str, int, int]] = []
        self._number = 0

    def event(self, name: str, pid: int, tid: int, begin: int, end: int, **more: Any) -> None:
        cat = more.pop("cat", None)
        entry = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": us(BEGIN + begin)}
        entry |= {"dur": (end - begin) / 1000, **({"cat": cat} if cat else {})}
        self.events.append(entry | ({"args": more} if more else {}))

    def host(self, name: str, begin: int, end: int, tid: int = MAIN, cat: str = "cpu_op") -> None:
        """An operator, or a mark, of the framework."""
        self.event(name, PYTHON, tid, begin, end, cat=cat)

    def cann(self, name: str, begin: int, end: int, tid: int = MAIN, connection: int = 0) -> None:
        """A call of CANN, which level 0 leaves out."""
        if self.level:
            self.event(name, CANN, tid, begin, end, **_connected(connection))

    def kernel(
        self,
        name: str,
        begin: int,
        end: int,
        stream: int = 2,
        launched: tuple[int, int] | None = None,
        tid: int = MAIN,
        core: str = "AI_CORE",
        queued: tuple[int, int] | None = None,
    ) -> None:
        """An operator on the device; where and by which thread the host launched it.

        `queued` is when it was put into the task queue, and when it was taken out.
        """
        self._number += 1
        number = self._number
        self.event(name, DEVICE, stream, begin, end, **{"Task Type": core, "connection_id": number})
        self.kernels.append((name, name.rsplit("_", maxsplit=1)[-1], core, begin, end))
        if launched is None:
            return
        self.cann("Node@launch", *launched, tid=tid, connection=number)
        # Every level has the flows, including those that begin in calls which level 0 leaves out.
        self._arrow("async_npu", number, launched[0], (PYTHON, MAIN), begin, (DEVICE, stream))
        self._arrow("HostToDevice", number, launched[0], (CANN, tid), begin, (DEVICE, stream))
        if queued is not None:
            put, taken = queued
            self.host("Enqueue", put, put + 1_000, cat="enqueue")
            self.host(f"Dequeue@{name}", taken, launched[1] + 1, tid=tid, cat="dequeue")
            flow = "async_task_queue"
            self._arrow(flow, number, put, (PYTHON, MAIN), taken, (PYTHON, tid))

    def collective(self, name: str, begin: int, end: int) -> None:
        """A collective in the row of its group."""
        self.event(name, GROUPS, 0, begin, end, connection_id=0)
        self.collectives.append((name, begin, end))

    def wait(self, name: str, begin: int, end: int, stream: int = 2) -> None:
        """A stream that waits."""
        self.event(name, DEVICE, stream, begin, end, **{"Task Type": name})

    def call(
        self,
        begin: int,
        lookup: int = 50_000,
        region: int = 100_000,
        python: int = 200_000,
        cpp: int = 80_000,
        execute: int = 150_000,
        after: int = 30_000,
        compiler: str = "npu_fx_compiler inference",
        run: str = "ExecuteGraph",
        name: str = "Torch-Compiled Region: 0/0",
    ) -> int:
        """A compiled call: how long each part takes; returns where the graph is run."""
        entered = begin + lookup
        compiled = entered + region
        called = compiled + python
        executed = called + cpp
        end = executed + execute + after
        if lookup:
            self.host("TorchDynamo Cache Lookup", begin, entered)
        if name:
            self.host(name, entered, end + 10_000)
        self.host(compiler, compiled, end)
        self.host("TorchNpuGraphBase::Run", called, end - 1_000)
        self.host(run, executed, executed + execute)
        return executed

    @contextmanager
    def step(self, number: int, begin: int, end: int) -> Any:
        self.host(f"ProfilerStep#{number}", begin, end)
        yield

    def overlap(self) -> dict[str, list[tuple[int, int]]]:
        """The overlap analysis, moment by moment between the edges of all events."""
        computes = [(begin, end) for *_, begin, end in self.kernels]
        talks = [(begin, end) for _, begin, end in self.collectives]
        edges = sorted({edge for pair in computes + talks for edge in pair})
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in _OVERLAPS}
        for begin, end in itertools.pairwise(edges):
            computing = any(b <= begin and end <= e for b, e in computes)
            talking = any(b <= begin and end <= e for b, e in talks)
            state = (computing, talking, talking and not computing, not computing and not talking)
            for name, on in zip(_OVERLAPS, state, strict=True):
                if on and found[name] and found[name][-1][1] == begin:
                    found[name][-1] = found[name][-1][0], end
                elif on:
                    found[name].append((begin, end))
        return found

    def entries(self, overlap: bool = True) -> list[dict[str, Any]]:
        """Return the content of trace_view.json."""
        found: list[dict[str, Any]] = [
            {"ph": "M", "name": "note", "pid": 0, "tid": 0, "args": {"text": "synthetic trace"}}
        ]
        for pid, (name, label) in _PROCESSES.items():
            for key, value in (("name", name), ("labels", label)):
                entry = {"ph": "M", "name": f"process_{key}", "pid": pid, "tid": 0}
                found.append(entry | {"args": {key: value}})
        threads = [(GROUPS, 0, "Group 0 Communication"), (DEVICE, 2, "Stream 2")]
        for pid, tid, name in threads:
            entry = {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid}
            found.append(entry | {"args": {"name": name}})
        if overlap:
            for tid, (name, pieces) in enumerate(self.overlap().items()):
                for begin, end in pieces:
                    entry = {"ph": "X", "name": name, "pid": OVERLAP, "tid": tid}
                    found.append(entry | {"ts": us(BEGIN + begin), "dur": (end - begin) / 1000})
        return found + self.events

    def trace(self, folder: Path, overlap: bool = True) -> Trace:
        path = folder / "synthetic_trace_view.json"
        path.write_text(json.dumps(self.entries(overlap)))
        return read_trace(path)

    def write(self, folder: Path, steps: dict[str, tuple[int, ...]] | None = None) -> Path:
        """Write the complete folder; `steps` are the rows of step_trace_time.csv in ns."""
        root = folder / "synthetic_ascend_pt"
        output = root / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        config = {"experimental_config": {"_profiler_level": f"Level{self.level}"}}
        (root / "profiler_info_3.json").write_text(json.dumps({"config": config, "rank_id": 3}))
        (output / "trace_view.json").write_text(json.dumps(self.entries()))
        head = ("Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)")
        rows = [
            (name, type_, core, f"{us(BEGIN + begin)}\t", us(end - begin))
            for name, type_, core, begin, end in self.kernels
        ]
        _table(output / "kernel_details.csv", head, rows)
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for _, type_, core, begin, end in self.kernels:
            groups[type_, core].append(end - begin)
        head = ("OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)", "Max Time(us)")
        types = [
            (*key, len(all_), us(sum(all_)), us(min(all_)), us(max(all_)))
            for key, all_ in groups.items()
        ]
        if self.level:
            _table(output / "op_statistic.csv", head, types)
        if steps is not None:
            rows = [(name, *map(us, times)) for name, times in steps.items()]
            _table(output / "step_trace_time.csv", ("Step", *STEP_COLUMNS), rows)
        return root

    def _arrow(self, cat: str, number: int, begin: int, source: Any, end: int, target: Any) -> None:
        both = {"name": cat, "cat": cat, "id": number, "bp": "e"}
        for ph, time, (pid, tid) in (("s", begin, source), ("f", end, target)):
            entry = {"ph": ph, "pid": pid, "tid": tid, "ts": us(BEGIN + time)}
            self.events.append(both | entry)


def _connected(number: int) -> dict[str, int]:
    return {"connection_id": number} if number else {}


def _table(path: Path, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
