"""From entries of the list of events to the tables of a trace, with an account of every entry."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from stagespan.trace import split
from stagespan.trace.columns import Codebook, EventColumns, FlowColumns, Numbering, category_today
from stagespan.trace.model import MISSING, Numbers, Trace
from stagespan.trace.schema import (
    AnyEvent,
    arguments_of,
    coerce,
    events_decoder,
    exact_events_decoder,
    loose_decoder,
)
from stagespan.trace.times import NotExact, durations_ns, time_ns, times_ns

_FLOW = frozenset("stf")
_INSTANT = frozenset("iIR")
_OTHER_PHASES = {
    "C": "counter",
    "P": "sample",
    "v": "memory dump",
    "V": "memory dump",
    "N": "object",
    "O": "object",
    "D": "object",
    "b": "async event",
    "n": "async event",
    "e": "async event",
    "S": "async event",
    "T": "async event",
    "p": "async event",
    "F": "async event",
    "c": "clock mark",
    "(": "context mark",
    ")": "context mark",
}
_LARGEST_BASE_NS = 2**62
_OpenEvents = defaultdict[tuple[object, object], list[tuple[AnyEvent, int]]]


class Assembly:
    """Takes entries, in pieces or one by one, and gives a Trace."""

    def __init__(self) -> None:
        self.total = 0
        self.left_out: Counter[str] = Counter()
        self.adjusted: Counter[str] = Counter()
        self.looks_like_a_trace = False
        self._names = Codebook()
        self._categories = Codebook(category_today)
        self._ids = Numbering()
        self._events = EventColumns(self._names, self._categories, self._ids)
        self._instants = EventColumns(self._names, self._categories, self._ids)
        self._flows = FlowColumns(self._categories, self._ids)
        self._exact = False
        self._open: _OpenEvents = defaultdict(list)
        self._process_names: dict[int, str] = {}
        self._process_labels: dict[int, str] = {}
        self._thread_names: dict[tuple[int, int], str] = {}

    def add_piece(self, piece: bytes) -> bool:
        """Take a JSON list of entries; False, with nothing taken, when it is not valid JSON."""
        try:
            events = self._decode(piece)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        try:
            self._add(events)
        except NotExact:
            self._exact = True
            self._add(self._decode(piece))
        return True

    def add_entry(self, entry: bytes) -> None:
        """Take one entry, set right if need be, or count it as malformed."""
        for text in (entry, split.repaired(entry)):
            if self.add_piece(b"[" + text + b"]"):
                return
        self.total += 1
        self.left_out["malformed entry"] += 1

    def count_left_out(self, cause: str, count: int) -> None:
        """Count entries that were left out before they came here."""
        self.total += count
        self._count(self.left_out, cause, count)

    def count_quoted(self, count: int) -> None:
        """Count names that held quotes which were not escaped."""
        self._count(self.adjusted, "quotes in a name that were not escaped", count)

    def trace(self, path: str, metadata: dict[str, Any], incomplete: str | None) -> Trace:
        """The finished trace; the assembly is empty afterwards."""
        unclosed = sum(map(len, self._open.values()))
        if unclosed:
            self.left_out["begin without an end"] += unclosed
        base = metadata.get("baseTimeNanoseconds")
        if not isinstance(base, int) or isinstance(base, bool) or not 0 <= base < _LARGEST_BASE_NS:
            if base is not None:
                self.adjusted["baseTimeNanoseconds that is no time"] += 1
            base = None
        return Trace(
            path=path,
            events=self._events.take(base or 0),
            instants=self._instants.take(base or 0),
            flows=self._flows.take(base or 0),
            names=self._names.words,
            categories=self._categories.words,
            base_ns=base,
            total=self.total,
            metadata=metadata,
            process_names=self._process_names,
            process_labels=self._process_labels,
            thread_names=self._thread_names,
            named_ids=self._ids.named,
            left_out=dict(self.left_out),
            adjusted=dict(self.adjusted),
            incomplete=incomplete,
        )

    def _decode(self, piece: bytes) -> Sequence[AnyEvent]:
        try:
            return (exact_events_decoder if self._exact else events_decoder).decode(piece)
        except msgspec.ValidationError:
            pass
        # Some entry is not of the usual form: take each as it is.
        left_out: Counter[str] = Counter()
        adjusted: Counter[str] = Counter()
        entries = loose_decoder.decode(piece)
        events = [event for entry in entries if (event := coerce(entry, left_out, adjusted))]
        self.total += len(entries) - len(events)
        self.left_out += left_out
        self.adjusted += adjusted
        return events

    def _add(self, events: Sequence[AnyEvent]) -> None:
        complete = [event for event in events if event.ph == "X"]
        if complete:
            self._add_complete(complete)
        self.total += len(events)
        if len(complete) == len(events):
            return
        flows = [event for event in events if event.ph in _FLOW]
        if flows:
            self.looks_like_a_trace = True
            self._flows.add(flows, self.left_out)
        if len(complete) + len(flows) < len(events):
            instants = [event for event in events if event.ph in _INSTANT]
            if instants:
                self._add_instants(instants)
            for event in events:
                if event.ph != "X" and event.ph not in _FLOW and event.ph not in _INSTANT:
                    self._add_other(event)

    def _add_complete(self, events: list[AnyEvent]) -> None:
        begin_ns = times_ns([event.ts for event in events])
        dur_ns = durations_ns([event.dur for event in events])
        self.looks_like_a_trace = True
        lowest = min(int(begin_ns.min()), int(dur_ns.min()))
        if lowest < 0:
            negative = (dur_ns < 0) & (dur_ns != MISSING)
            unknown = dur_ns == MISSING
            self._count(self.adjusted, "negative duration, taken as 0", int(negative.sum()))
            self._count(self.adjusted, "no duration, taken as 0", int(unknown.sum()))
            dur_ns[negative | unknown] = 0
            events, begin_ns, dur_ns = self._timed(events, begin_ns, dur_ns)
        self._events.add(events, begin_ns, dur_ns)

    def _add_instants(self, events: list[AnyEvent]) -> None:
        self.looks_like_a_trace = True
        begin_ns = times_ns([event.ts for event in events])
        events, begin_ns, dur_ns = self._timed(events, begin_ns, np.zeros(len(events), np.int64))
        self._instants.add(events, begin_ns, dur_ns)

    def _timed(
        self, events: list[AnyEvent], begin_ns: Numbers, dur_ns: Numbers
    ) -> tuple[list[AnyEvent], Numbers, Numbers]:
        """Leave out, counted, what has no time."""
        timed = begin_ns != MISSING
        if timed.all():
            return events, begin_ns, dur_ns
        self.left_out["event without a time"] += int((~timed).sum())
        kept = [event for event, keep in zip(events, timed, strict=True) if keep]
        return kept, begin_ns[timed], dur_ns[timed]

    def _add_other(self, event: AnyEvent) -> None:
        if event.ph == "M":
            self.looks_like_a_trace = True
            self._add_metadata(event)
        elif event.ph in {"B", "E"}:
            self.looks_like_a_trace = True
            self._add_begin_or_end(event)
        elif event.ph in _OTHER_PHASES:
            self.looks_like_a_trace = True
            self.left_out[_OTHER_PHASES[event.ph]] += 1
        else:
            self.left_out["entry of no known phase"] += 1

    def _add_metadata(self, event: AnyEvent) -> None:
        arguments = arguments_of(event)
        pid = int(self._ids.encode([event.pid])[0])
        if event.name == "process_name":
            self._process_names[pid] = arguments.name
        elif event.name == "process_labels":
            self._process_labels[pid] = arguments.labels
        elif event.name == "thread_name":
            self._thread_names[pid, int(self._ids.encode([event.tid])[0])] = arguments.name
        else:
            self.left_out["metadata entry that is no name"] += 1

    def _add_begin_or_end(self, event: AnyEvent) -> None:
        """Pair a begin with the end that closes it; both become one event."""
        time = time_ns(event.ts)
        stack = self._open[event.pid, event.tid]
        if time == MISSING:
            self.left_out["event without a time"] += 1
        elif event.ph == "B":
            stack.append((event, time))
        elif stack:
            opened, begin = stack.pop()
            self.adjusted["begin and end, joined to one event"] += 1
            if time < begin:
                self.adjusted["negative duration, taken as 0"] += 1
            self._events.add([opened], np.array([begin]), np.array([max(time - begin, 0)]))
        else:
            self.left_out["end without a begin"] += 1

    @staticmethod
    def _count(counter: Counter[str], cause: str, count: int) -> None:
        if count:
            counter[cause] += count
