"""A trace as plain events, for checks that share no code with the package that is checked.

All times are integer nanoseconds after the earliest event.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections import defaultdict
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from plain_json import entries_of

Interval = tuple[int, int]

_DEVICE = {
    "kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "compute",
    "mtia_ccp_events": "compute", "Kernel": "compute", "Memcpy": "copy", "Memset": "compute",
}  # fmt: skip
_RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime", "mtia_runtime")
_OPERATORS = ("cpu_op", "Operator")
_MARKS = ("user_annotation", "cpu_op", "Operator")
_COMMUNICATION = re.compile(
    r"nccl|rccl|hccl|multimem_all_reduce|cross_device_reduce|all_?reduce_fusion"
    r"|\bep::int(?:er|ra)node",
    re.IGNORECASE,
)
_STEP = re.compile(r"^ProfilerStep[#*]")
# Device work that begins so long after its launch had to wait for unrecorded work.
_QUEUED_NS = 1_000_000


class Event(NamedTuple):
    """A complete event."""

    name: str
    category: str
    begin: int
    end: int
    thread: tuple[Any, Any]
    arguments: dict[str, Any]

    @property
    def duration(self) -> int:
        return self.end - self.begin


class Gap(NamedTuple):
    """A time in which no stream of the device was busy."""

    begin: int
    end: int
    next: Event


def union(intervals: list[Interval]) -> list[Interval]:
    """Return the intervals in which at least one of `intervals` is open."""
    found: list[list[int]] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return [(begin, end) for begin, end in found]


def length(intervals: list[Interval]) -> int:
    """Return the time that any of the intervals covers."""
    return sum(end - begin for begin, end in union(intervals))


def clipped(intervals: list[Interval], begin: int, end: int) -> list[Interval]:
    """Return the parts of intervals within a range."""
    return [(max(a, begin), min(b, end)) for a, b in intervals if min(b, end) > max(a, begin)]


class Overlap:
    """Answers how much of a range is covered by given intervals."""

    def __init__(self, intervals: list[Interval]) -> None:
        self._parts = union(intervals)
        self._begins = [begin for begin, _ in self._parts]

    def within(self, begin: int, end: int) -> int:
        """Return the covered time of a range."""
        at = max(bisect.bisect_right(self._begins, begin) - 1, 0)
        time = 0
        while at < len(self._parts) and self._parts[at][0] < end:
            time += max(min(end, self._parts[at][1]) - max(begin, self._parts[at][0]), 0)
            at += 1
        return time


@functools.cache
def _communicates(name: str) -> bool:
    return _COMMUNICATION.search(name) is not None


class RawTrace:
    """The events of a trace, and what follows from them without any heuristics."""

    def __init__(self, path: Path) -> None:
        self.entries = entries_of(path, Decimal)
        self._intervals: dict[tuple[str, ...], list[Interval]] = {}
        found = []
        for entry in self.entries:
            if entry.get("ph") == "X" and "dur" in entry:
                begin = round(Decimal(entry["ts"]) * 1000)
                end = begin + round(Decimal(entry["dur"]) * 1000)
                thread = (entry.get("pid"), entry.get("tid"))
                found.append(
                    Event(
                        str(entry.get("name", "")), entry.get("cat", ""), begin, end, thread,
                        entry.get("args") or {},
                    )
                )  # fmt: skip
        self.origin = min((each.begin for each in found), default=0)
        self.events = [
            each._replace(begin=each.begin - self.origin, end=each.end - self.origin)
            for each in found
        ]
        self.end = max((each.end for each in self.events), default=0)

    # --- The device ---

    @cached_property
    def device(self) -> list[Event]:
        """The device's events by begin."""
        work = [
            each
            for each in self.events
            if each.category in _DEVICE and each.name not in ("event_wait", "event_record")
        ]
        return sorted(work, key=lambda each: each.begin)

    def kind(self, event: Event) -> str:
        """Return "compute", "communication" or "copy"."""
        if event.name == "dma_request":
            return "copy"
        kind = _DEVICE[event.category]
        return "communication" if kind == "compute" and _communicates(event.name) else kind

    def is_kernel(self, event: Event) -> bool:
        """Whether a device event is neither a copy nor a fill."""
        kernels = ("kernel", "Kernel", "mtia_ccp_events")
        return event.category in kernels and event.name != "dma_request"

    @cached_property
    def devices(self) -> set[Any]:
        """The devices by number."""
        return {each.arguments.get("device", each.thread[0]) for each in self.device}

    def intervals(self, *kinds: str) -> list[Interval]:
        """Return when at least one event of these kinds, or of all, ran on the device."""
        if kinds not in self._intervals:
            self._intervals[kinds] = union(
                [(e.begin, e.end) for e in self.device if not kinds or self.kind(e) in kinds]
            )
        return self._intervals[kinds]

    @cached_property
    def gaps(self) -> list[Gap]:
        """The gaps between the device's events."""
        found = []
        reached = None
        order = sorted(self.device, key=lambda e: (e.begin, self.launch_begin(e)))
        for event in order:
            if reached is not None and event.begin > reached:
                found.append(Gap(reached, event.begin, event))
            reached = event.end if reached is None else max(reached, event.end)
        return found

    # --- Launches ---

    @cached_property
    def calls(self) -> list[Event]:
        """The calls of the runtime and driver."""
        return [each for each in self.events if each.category in _RUNTIME]

    @cached_property
    def _by_correlation(self) -> dict[Any, Event]:
        """By correlation, the outermost call. A driver call within a runtime call has its id."""
        found: dict[Any, Event] = {}
        for call in self.calls:
            number = call.arguments.get("correlation")
            if number in (None, 0):
                continue
            known = found.get(number)
            if known is None or (call.begin <= known.begin and call.end >= known.end):
                found[number] = call
        return found

    def launch(self, event: Event) -> Event | None:
        """Return the call that launched a device event."""
        if not self._by_correlation:
            return self._calls_by_external_id.get(event.arguments.get("External id"))
        return self._by_correlation.get(event.arguments.get("correlation"))

    @cached_property
    def _calls_by_external_id(self) -> dict[Any, Event]:
        """By external id, its first call. Some tools write no correlations."""
        found: dict[Any, Event] = {}
        for call in self.calls:
            number = call.arguments.get("External id")
            if number is not None:
                found.setdefault(number, call)
        return found

    def launch_begin(self, event: Event) -> int:
        """Return when a device event was launched, or else when it began."""
        call = self.launch(event)
        return event.begin if call is None else call.begin

    @cached_property
    def operators(self) -> list[Event]:
        """The operators."""
        return [each for each in self.events if each.category in _OPERATORS]

    @cached_property
    def _by_external_id(self) -> dict[Any, Event]:
        found = {}
        for each in self.operators:
            number = each.arguments.get("External id", each.arguments.get("external id"))
            if number is not None:
                found[number] = each
        return found

    def operator(self, event: Event) -> Event | None:
        """Return the operator that a device event names as its own."""
        arguments = event.arguments
        number = arguments.get("External id", arguments.get("external id"))
        return self._by_external_id.get(number)

    # --- Steps ---

    @cached_property
    def marks(self) -> list[Event]:
        """The profiler's marks of steps by begin."""
        found = [each for each in self.events if _STEP.match(each.name)]
        return sorted(
            (each for each in found if each.category in _MARKS), key=lambda each: each.begin
        )

    @cached_property
    def earlier_end(self) -> int | None:
        """When the device had finished what was launched before the trace began."""
        first: dict[Any, int] = {}
        for event in self.device:
            if self.launch(event) is not None:
                stream = (event.arguments.get("device"), event.arguments.get("stream"))
                first.setdefault(stream, event.begin)
        if not first:
            return None
        ends = []
        for event in self.device:
            stream = (event.arguments.get("device"), event.arguments.get("stream"))
            limit = first.get(stream, min(first.values()))
            if self.launch(event) is None and event.begin < limit:
                ends.append(event.end)
        if ends:
            return max(ends)
        call = self.launch(self.device[0])
        if call is not None and self.device[0].begin - call.end > _QUEUED_NS:
            return self.device[0].begin
        return None

    @cached_property
    def steps(self) -> list[Interval]:
        """The marked steps: to the end of the work that was launched in them."""
        launched: dict[int, int] = defaultdict(int)
        begins = [mark.begin for mark in self.marks]
        for event in self.device:
            call = self.launch(event)
            if call is None:
                continue
            at = bisect.bisect_right(begins, call.begin) - 1
            if at >= 0 and call.begin < self.marks[at].end:
                launched[at] = max(launched[at], event.end)
        found = []
        reached = self.earlier_end or 0
        for number, mark in enumerate(self.marks):
            end = max(mark.end, launched[number], reached)
            found.append((max(mark.begin, reached), end))
            reached = end
        return found

    def launched_between(self, begin: int, end: int) -> list[Event]:
        """Return the device's events that were launched in a range."""
        found = []
        for event in self.device:
            call = self.launch(event)
            if call is not None and begin <= call.begin < end:
                found.append(event)
        return found

    def named(self, pattern: str, events: list[Event] | None = None) -> list[Event]:
        """Return the events whose names match a regular expression, ignoring case."""
        chosen = self.events if events is None else events
        matching = names_matching(pattern, chosen)
        return [each for each in chosen if each.name in matching]


def names_matching(pattern: str, events: list[Event]) -> set[str]:
    """Return the names of events that match a regular expression, ignoring case."""
    expression = re.compile(pattern, re.IGNORECASE)
    return {name for name in {each.name for each in events} if expression.search(name)}


# --- What computes on a host ---

COLLECTIVE = re.compile(r"^(?:(?:nccl|gloo|mpi|ucc|c10d)\w*:|record_param_comms)", re.IGNORECASE)
_NODE = re.compile(r"^(?:torch::)?autograd::|Backward\w*$|^DistributedDataParallel")
NOT_COMPUTING = re.compile(
    r"^(?:gloo|mpi|ucc|nccl|c10d)\b|^record_param_comms|^ProfilerStep|^Optimizer\."
)


def host_computing(raw: RawTrace, *, nodes: bool = False) -> list[Interval]:
    """Return when operators computed, which they do not while a collective inside them runs.

    A node of the backward pass may wait for the collective of another thread. With `nodes`, its
    time outside of all collectives is included.
    """
    collectives = [e for e in raw.events if COLLECTIVE.match(e.name)]
    working: list[Interval] = []
    for thread in {e.thread for e in raw.operators}:
        mine = [e for e in raw.operators if e.thread == thread]
        waits = [e for e in collectives if e.thread == thread]
        computing = [
            e for e in mine if not NOT_COMPUTING.search(e.name) and not _NODE.search(e.name)
        ]
        inside = [e for e in computing if any(w.begin <= e.begin < e.end <= w.end for w in waits)]
        working += _without(
            [(e.begin, e.end) for e in computing], [(e.begin, e.end) for e in waits]
        )
        working += [(e.begin, e.end) for e in inside]
    if nodes:
        around = [(e.begin, e.end) for e in raw.operators if _NODE.search(e.name)]
        working += _without(around, [(e.begin, e.end) for e in collectives])
    return working


def _without(whole: list[Interval], part: list[Interval]) -> list[Interval]:
    """Return the time of `whole` that `part` does not cover."""
    whole, part = union(whole), union(part)
    edges = sorted({each for pair in (*whole, *part) for each in pair})
    has, lacks = Overlap(whole), Overlap(part)
    return [
        (first, last)
        for first, last in itertools.pairwise(edges)
        if has.within(first, last) and not lacks.within(first, last)
    ]
