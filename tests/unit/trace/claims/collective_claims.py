"""Checks of findings about collectives: their operations, sizes and times, from raw events."""

from __future__ import annotations

import bisect
import math
import re
from collections import defaultdict
from fractions import Fraction
from typing import Any, NamedTuple

from checks import Page
from finding_claims import Found, of
from raw_trace import (
    COLLECTIVE,
    NOT_COMPUTING,
    Event,
    Interval,
    Overlap,
    RawTrace,
    clipped,
    host_computing,
    length,
    union,
)

_ANNOTATION = re.compile(r"^(?:nccl|rccl|hccl|gloo|mpi|ucc):", re.IGNORECASE)
_ON_HOST = re.compile(r"^(?:gloo|mpi|ucc):", re.IGNORECASE)
_MARKS = ("user_annotation", "cpu_op", "Operator")
_OPERATIONS = {
    "allreduce": "all_reduce", "alltoall": "all_to_all", "reducescatter": "reduce_scatter",
    "allgather": "all_gather", "broadcast": "broadcast", "sendrecv": "send_recv",
    "barrier": "barrier", "send": "send", "recv": "recv", "reduce": "reduce",
}  # fmt: skip
_ELEMENT_BYTES = {
    "float": 4, "int": 4, "long": 8, "long int": 8, "double": 8, "half": 2, "bfloat16": 2,
    "short": 2, "byte": 1, "char": 1, "signed char": 1, "unsigned char": 1, "bool": 1,
}  # fmt: skip
_SMALL_BYTES, _SMALL_NS, _CALL_NS = 1 << 20, 20_000, 100_000
# The fastest growth with the size that a link explains, in ns for each byte.
_SLOWEST_LINK = 10


class Collective(NamedTuple):
    """One call of a collective."""

    operation: str
    bytes: int | None
    """Of the input."""
    event: Event


def _operation(name: str) -> str:
    plain = name.lower().replace("_", "")
    return next((word for part, word in _OPERATIONS.items() if part in plain), "other")


def _bytes_of_type(name: str) -> int | None:
    return _ELEMENT_BYTES.get(name.lower().removeprefix("c10::"))


def _bytes_of_shapes(arguments: dict[str, Any]) -> int | None:
    """Return the bytes of all tensors in `Input Dims`."""
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    if not dims or not types:
        return None
    total = 0
    for shape, name in zip(dims, types, strict=True):
        size = _bytes_of_type(str(name))
        if shape and size is not None:
            total += size * math.prod(int(each) for each in shape)
    return total or None


class _Annotations:
    """The annotations of collectives on the host, by thread."""

    def __init__(self, raw: RawTrace) -> None:
        self._by_thread: dict[Any, list[Event]] = defaultdict(list)
        for each in raw.events:
            if each.category in _MARKS and _ANNOTATION.match(each.name):
                self._by_thread[each.thread].append(each)
        for events in self._by_thread.values():
            events.sort(key=lambda each: each.begin)

    def around(self, call: Event) -> Event | None:
        """Return the innermost one around a call."""
        events = self._by_thread.get(call.thread, [])
        at = bisect.bisect_right(events, call.begin, key=lambda each: each.begin)
        inside = (each for each in reversed(events[max(at - 10, 0) : at]) if each.end >= call.begin)
        return next(inside, None)


def collectives(page: Page) -> list[Collective]:
    """Return the collectives that begin in the range of the page, on the device or the host."""
    raw, base = page.raw, page.base
    assert base is not None
    begin, end = base
    events = [each for each in raw.device if raw.kind(each) == "communication"]
    if not events:
        events = _outermost([e for e in raw.events if _ON_HOST.match(e.name)])
    annotations = _Annotations(raw)
    found = []
    for event in events:
        if not begin <= event.begin < end:
            continue
        call = raw.launch(event)
        mark = event if _ANNOTATION.match(event.name) else None
        if mark is None and call is not None:
            mark = annotations.around(call)
        arguments = event.arguments
        name = arguments.get("Collective name") or (event.name if mark is None else mark.name)
        size = _bytes_of_type(str(arguments.get("dtype", "")))
        elements = arguments.get("In msg nelems")
        if elements is not None and size is not None:
            carried = int(elements) * size
        else:
            carried = None if mark is None else _bytes_of_shapes(mark.arguments)
        found.append(Collective(_operation(name), carried, event))
    return found


def _outermost(events: list[Event]) -> list[Event]:
    """Return the events that are not inside another one of their thread."""
    reached: dict[Any, int] = {}
    found = []
    for each in sorted(events, key=lambda e: (e.begin, -e.end)):
        if each.begin >= reached.get(each.thread, -1):
            found.append(each)
            reached[each.thread] = each.end
    return found


def exposed(page: Page, calls: list[Collective]) -> list[float]:
    """Return the time of each call in which nothing computed; of calls at once, a share."""
    raw = page.raw
    computing = raw.intervals("compute") if raw.device else _operators(raw)
    overlap = Overlap(computing)
    times: list[float] = [
        call.event.duration - overlap.within(call.event.begin, call.event.end) for call in calls
    ]
    whole = union([(call.event.begin, call.event.end) for call in calls])
    total = sum(end - begin - overlap.within(begin, end) for begin, end in whole)
    if sum(times) > total:
        times = [each * total / sum(times) for each in times]
    return times


def _operators(raw: RawTrace) -> list[Interval]:
    return union([(e.begin, e.end) for e in raw.operators if not NOT_COMPUTING.search(e.name)])


def _line(calls: list[Collective]) -> tuple[Fraction, Fraction]:
    """Return the time of a call without data and the time of each byte, by least squares."""
    shortest: dict[int, int] = {}
    for call in calls:
        assert call.bytes is not None
        shortest[call.bytes] = min(shortest.get(call.bytes, 1 << 62), call.event.duration)
    sizes = list(shortest)
    count = len(sizes)
    mean_size = Fraction(sum(sizes), count)
    mean_time = Fraction(sum(shortest.values()), count)
    square = sum((size - mean_size) ** 2 for size in sizes)
    slope = sum((size - mean_size) * (time - mean_time) for size, time in shortest.items()) / square
    if not 0 < slope <= _SLOWEST_LINK:
        return Fraction(min(shortest.values())), Fraction(0)
    constant = mean_time - slope * mean_size
    if constant < 0:
        slope = Fraction(
            sum(size * time for size, time in shortest.items()), sum(size**2 for size in sizes)
        )
        return Fraction(0), slope
    return constant, slope


@of("communication.volume", "communication.waiting", "communication.latency")
def _dependence(page: Page, finding: dict[str, Any]) -> Found:
    """Return sizes and times of the operation that the sentence names, and its largest part."""
    named = re.search(r"calls of (\w+)", finding["sentence"])
    assert named is not None
    every = collectives(page)
    calls = [each for each in every if each.operation == named[1] and each.bytes]
    constant, slope = _line(calls)
    shortest: dict[int | None, int] = {}
    for each in calls:
        shortest[each.bytes] = min(shortest.get(each.bytes, 1 << 62), each.event.duration)
    total = sum(each.event.duration for each in calls)
    per_call = constant * len(calls)
    if slope:
        waiting = sum(each.event.duration - shortest[each.bytes] for each in calls)
    else:
        waiting = total - per_call
    per_call = min(per_call, Fraction(total - waiting))
    parts = {"waiting": waiting, "per_call": per_call, "volume": total - waiting - per_call}
    # The finding is about the largest part; another one would have another share.
    largest = max(parts.values())
    sizes = [each.bytes or 0 for each in calls]
    return {
        "time_us": (total / 1000, 0.01),
        "calls": (len(calls), 0),
        "least_bytes": (min(sizes), 0),
        "most_bytes": (max(sizes), 0),
        "percent": (float(100 * largest / total), 0.01),
        "per_call_us": (float(constant) / 1000, 0.01),
    }


@of("communication.small_calls")
def _small_calls(page: Page, finding: dict[str, Any]) -> Found:
    """Return number and time of the calls with little data, of which 100 µs each count."""
    assert page.base is not None
    calls = collectives(page)
    times = exposed(page, calls)
    small = [
        min(time, _CALL_NS)
        for call, time in zip(calls, times, strict=True)
        if (call.event.duration < _SMALL_NS if call.bytes is None else call.bytes < _SMALL_BYTES)
    ]
    whole = page.base[1] - page.base[0]
    return {
        "time_us": (sum(small) / 1000, 0.01),
        "percent": (100 * sum(small) / whole, 0.01),
        "calls": (len(small), 0),
        "of": (len(calls), 0),
        "most_per_call_us": (_CALL_NS / 1000, 0),
    }


@of("host.communication")
def _on_host(page: Page, finding: dict[str, Any]) -> Found:
    """Return how long the host communicated while no operator ran, between operators."""
    raw = page.raw
    assert page.base is not None
    begin, end = page.base
    operators = union(clipped(host_computing(raw), begin, end))
    collectives = [e for e in raw.events if e.category in _MARKS and COLLECTIVE.match(e.name)]
    own = clipped([(e.begin, e.end) for e in collectives], begin, end)
    alone = length(union(own + operators)) - length(operators)
    return {
        "time_us": (alone / 1000, 0.01),
        "whole_us": ((end - begin) / 1000, 0.01),
        "percent": (100 * alone / (end - begin), 0.01),
    }
