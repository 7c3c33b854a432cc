"""Calls of graphs that TorchAir compiled, and their heads: the time before the first operator."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from typing import Literal

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stagespan.pages.figures import Figures, Internal, Ns
from stagespan.trace.derived.device import COPY, device_work, launched
from stagespan.trace.derived.threads import named, names_with
from stagespan.trace.read.groups import by_group, pairs, values_of
from stagespan.trace.read.intervals import Cover, SortedIntervals
from stagespan.trace.read.model import MISSING, Trace
from stagespan.trace.read.view import once

# TorchAir's sources write a space, its documents an underscore. Cached graphs have another name.
_COMPILER = re.compile(r"^(?:npu_fx_compiler|cache_compiler)[ _]inference$")
_REGION = re.compile(r"^Torch-Compiled Region\b")
_LOOKUP = re.compile(r"^TorchDynamo Cache Lookup$")
_GUARDS = re.compile(r"guard", re.IGNORECASE)
_FUNCTION = re.compile(r"^CompiledFunction(?:Backward)?$")
_RUN = re.compile(r"^TorchNpuGraphBase::Run$")
_EXECUTE = re.compile(r"^(?:ExecuteGraph|RunGraph|RunGraphWithStreamAsync)$")
_REPLAY = re.compile(r"^acl_graph_replay$")
_COMPILES = re.compile(
    r"\(dynamo_timed\)$|^TorchNpuGraphBase::(?:Load|Compile|AutoTune)$|^(?:Load|Compile|Add)Graph$"
)
# Calls of TorchAir's Python for inputs that are not tensors, or not contiguous.
_SCALARS = re.compile(
    r"^aten::(?:scalar_tensor|tensor|lift_fresh|full|empty|to|_to_copy|detach_?)$"
)
_CONTIGUOUS = re.compile(r"^aten::(?:contiguous|clone)$")
_ATEN = re.compile(r"^aten::")
# No other event is between a look-up and the region that it found.
_ADJACENT_NS = 1_000_000


class HeadParts(Figures, frozen=True):
    """The parts of heads; for several calls, their sums or medians. None: not in the trace."""

    framework_ns: Ns | None
    """From the start of the framework's part to the start of the compiler's event."""
    framework_cache_lookup_ns: Ns | None
    """Part of the framework's: dynamo's cache look-up, in which it checks guards."""
    framework_guards_ns: Ns | None
    """Part of the framework's: guards that have their own events."""
    torchair_ns: Ns | None
    """From the start of the compiler's event until the graph is run or replayed."""
    torchair_python_ns: Ns | None
    """Part of TorchAir's: until `TorchNpuGraphBase::Run`."""
    torchair_cpp_ns: Ns | None
    """Part of TorchAir's: from there until the graph is run or replayed."""
    ge_to_compiler_end_ns: Ns | None
    """From the run of the graph to the end of the compiler's event."""
    ge_execute_ns: Ns | None
    """Part of GE's: the call that runs the graph."""
    ge_to_first_operator_ns: Ns | None
    """From the run of the graph to the start of its first operator on the device."""
    graph_replay_ns: Ns | None
    """The call that replays a captured graph, if none is run."""
    unknown_ns: Ns | None
    """The time of the head whose part is unknown."""


class CompiledCall(HeadParts, frozen=True):
    """One call, with the parts of its head."""

    time_ns: Ns
    """When it begins, from the start of the trace's window."""
    region: str | None
    """The compiled region's name, such as `Torch-Compiled Region: 0/0`."""
    execute: str | None
    """The name of the call that runs the graph."""
    head_ns: Ns
    """The time until the first operator or, if unknown, until the compiler event's end."""
    first_operator: str | None
    first_operator_by: Literal["launch", "time"] | None
    """Whether its launch shows that it belongs to the graph, or it is just the next one."""
    compiled: bool
    """Whether something was compiled or loaded in the call, so that it is not representative."""
    scalar_inputs_ns: Ns
    non_contiguous_inputs_ns: Ns
    row: Internal[int]
    """The row of the compiler's event."""
    begin_ns: Internal[int]
    """The start of the framework's part, or of TorchAir's part if that is unknown."""
    compiler_end_ns: Internal[int]
    """The end of the compiler's event."""
    scalars: Internal[tuple[int, int]]
    """The number and time of operators with which Python converted inputs to tensors."""
    contiguous: Internal[tuple[int, int]]
    """The number and time of operators that made inputs contiguous."""
    others_ns: Internal[dict[str, int]]
    """The time of other events in the framework's and TorchAir's parts, by name."""

    def with_head(self) -> CompiledCall:
        """Return the call with the time of its head and its unknown part."""
        ge, first = self.ge_to_compiler_end_ns, self.ge_to_first_operator_ns
        head = self.compiler_end_ns - self.begin_ns
        if ge is not None and first is not None:
            head += first - ge
        until_run = self.torchair_python_ns if self.torchair_ns is None else self.torchair_ns
        since_run = self.graph_replay_ns if ge is None else ge
        if first is not None:
            since_run = first
        unknown = head - (self.framework_ns or 0) - (until_run or 0) - (since_run or 0)
        return structs.replace(self, head_ns=head, unknown_ns=unknown)


def calls_torchair(trace: Trace) -> bool:
    """Whether a trace contains calls of graphs that TorchAir compiled."""
    return bool(names_with(trace, _COMPILER).any())


def compiled_calls(trace: Trace) -> list[CompiledCall]:
    """Return all calls in order of time; empty for traces without TorchAir."""
    events = trace.events
    marks = trace.rows_of(["cpu_op", "user_annotation", ""])
    compilers = np.flatnonzero(marks & named(trace, _COMPILER))
    compilers = compilers[np.argsort(events.begin_ns[compilers], kind="stable")]
    calls: list[CompiledCall] = []
    marked = np.flatnonzero(marks)
    threads, thread = pairs(events.pid[marked], events.tid[marked])
    asked = values_of(thread[np.searchsorted(marked, compilers)]).tolist()
    of_thread = by_group(thread, len(threads))
    for number in asked:
        calls += _Thread(trace, marked[of_thread[number]]).calls()
    calls.sort(key=lambda call: call.begin_ns)
    return _with_first_operators(trace, calls)


class _Thread:
    """The events of one thread by time, outer events first."""

    def __init__(self, trace: Trace, rows: NDArray[np.intp]) -> None:
        events = trace.events
        order = np.lexsort((-events.end_ns[rows], events.begin_ns[rows]))
        self._trace, self._rows = trace, rows[order]
        self._window_ns = int(events.begin_ns.min())
        self._begin, self._end = events.begin_ns[self._rows], events.end_ns[self._rows]
        self._begins: list[int] = self._begin.tolist()
        self._name = events.name[self._rows]
        self._compilers = self._marks(_COMPILER)
        self._regions = self._marks(_REGION)
        self._lookups = self._marks(_LOOKUP)
        self._functions = self._marks(_FUNCTION)

    def calls(self) -> list[CompiledCall]:
        """Return all calls except those inside other calls."""
        found = [self._call(place) for place in self._compilers.places.tolist()]
        return [call for call in found if call is not None]

    def _call(self, place: int) -> CompiledCall | None:
        begin, end = int(self._begin[place]), int(self._end[place])
        if self._compilers.around(begin, end, place) >= 0:
            return None
        region = self._regions.around(begin, end)
        start, lookup = self._start(region, begin, end)
        framework = None if start is None else begin - start
        run, execute = self._first(_RUN, begin, end), self._first(_EXECUTE, begin, end)
        replay = self._first(_REPLAY, begin, end)
        executed = execute if execute >= 0 else replay
        at = int(self._begin[executed]) if executed >= 0 else None
        entered = int(self._begin[run]) if run >= 0 else None
        python_until = entered if entered is not None else at
        framework_parts = self._outermost(start, begin) if start is not None else {}
        inputs = self._outermost(begin, python_until, _ATEN) if python_until is not None else {}
        stretches = [framework_parts]
        if at is not None:  # the time in `Run` before the graph runs is not in another event
            stretches.append(self._outermost(begin, at))
        others: Counter[str] = Counter()
        for name, (_, time) in (item for parts in stretches for item in parts.items()):
            if not (_LOOKUP.match(name) or _GUARDS.search(name) or _ATEN.match(name)):
                others[name] += time
        first = start if start is not None else begin
        graph = execute >= 0 and at is not None
        scalars, contiguous = _sum(inputs, _SCALARS), _sum(inputs, _CONTIGUOUS)
        return CompiledCall(
            row=int(self._rows[place]),
            time_ns=first - self._window_ns,
            begin_ns=first,
            compiler_end_ns=end,
            region=self._text(region) if region >= 0 else None,
            framework_ns=framework,
            framework_cache_lookup_ns=lookup,
            framework_guards_ns=_sum(framework_parts, _GUARDS)[1],
            torchair_ns=None if at is None else at - begin,
            torchair_python_ns=None if entered is None else entered - begin,
            torchair_cpp_ns=None if entered is None or at is None else at - entered,
            ge_to_compiler_end_ns=end - at if graph and at is not None else None,
            ge_execute_ns=int(self._end[execute] - self._begin[execute]) if graph else None,
            execute=self._text(execute) if graph else None,
            graph_replay_ns=int(self._end[replay] - self._begin[replay]) if replay >= 0 else None,
            compiled=self._first(_COMPILES, first, end) >= 0,
            scalars=scalars,
            scalar_inputs_ns=scalars[1],
            contiguous=contiguous,
            non_contiguous_inputs_ns=contiguous[1],
            others_ns=dict(others.most_common()),
            # Found later, for all calls together.
            ge_to_first_operator_ns=None,
            first_operator=None,
            first_operator_by=None,
            head_ns=0,
            unknown_ns=None,
        )

    def _start(self, region: int, begin: int, end: int) -> tuple[int | None, int]:
        """Return the start of the framework's part of a call, and its look-up time."""
        before = self._compilers.before(begin)
        last = int(self._end[before]) if before >= 0 else None
        if region >= 0:
            start = int(self._begin[region])
            lookup = self._lookups.time_in(start, begin)
            if last is not None and last > start:  # a further call in the same region
                return last, self._lookups.time_in(last, begin)
            at = self._lookups.before(start)
            if at >= 0:
                # No event is between them, so the look-up found this region.
                following = bisect_left(self._begins, int(self._end[at]))
                following += following == at
                if following == region and start - int(self._end[at]) <= _ADJACENT_NS:
                    return int(self._begin[at]), lookup + int(self._end[at] - self._begin[at])
            return start, lookup
        function = self._functions.around(begin, end)
        if function >= 0:
            start = int(self._begin[function])
            return start, self._lookups.time_in(start, begin)
        # Before torch 2.3 there are no regions, and the call begins with the look-up.
        at = self._lookups.before(begin)
        if at < 0 or begin - int(self._end[at]) > _ADJACENT_NS:
            return None, 0
        if last is not None and last > int(self._begin[at]):
            return None, 0
        return int(self._begin[at]), int(self._end[at] - self._begin[at])

    def _marks(self, pattern: re.Pattern[str]) -> SortedIntervals:
        places = np.flatnonzero(names_with(self._trace, pattern)[self._name])
        return SortedIntervals(places, self._begin, self._end)

    def _first(self, pattern: re.Pattern[str], begin: int, end: int) -> int:
        """Return the first event of a name within an interval, or -1."""
        low, high = bisect_left(self._begins, begin), bisect_left(self._begins, end)
        found = np.flatnonzero(names_with(self._trace, pattern)[self._name[low:high]])
        found = found[self._end[low:high][found] <= end]
        return int(low + found[0]) if len(found) else -1

    def _outermost(
        self, begin: int, end: int, pattern: re.Pattern[str] | None = None
    ) -> dict[str, tuple[int, int]]:
        """Return count and time of the outermost events within an interval, by name."""
        low, high = bisect_left(self._begins, begin), bisect_left(self._begins, end)
        places = np.arange(low, high)
        places = places[self._end[places] <= end]
        if pattern is not None:
            places = places[names_with(self._trace, pattern)[self._name[places]]]
        if len(places) == 0:
            return {}
        reach = np.maximum.accumulate(self._end[places])
        outer = places[np.concatenate(([True], self._begin[places][1:] >= reach[:-1]))]
        outermost: dict[str, tuple[int, int]] = {}
        for place in outer.tolist():
            count, time = outermost.get(self._text(place), (0, 0))
            length = int(self._end[place] - self._begin[place])
            outermost[self._text(place)] = count + 1, time + length
        return outermost

    def _text(self, place: int) -> str:
        return self._trace.names[int(self._name[place])]


def _sum(parts: dict[str, tuple[int, int]], pattern: re.Pattern[str]) -> tuple[int, int]:
    """Return count and time of events whose name contains the pattern."""
    mine = [part for name, part in parts.items() if pattern.search(name)]
    return sum(count for count, _ in mine), sum(time for _, time in mine)


def _with_first_operators(trace: Trace, calls: list[CompiledCall]) -> list[CompiledCall]:
    """Return the calls with their first operators on the device."""
    events, work = trace.events, device_work(trace)
    rows = work.rows
    rows = rows[work.kind[rows] != COPY]
    rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    launched_ns, _, launched_by = launched(trace, rows)
    is_known = launched_ns != MISSING
    launched_ns = np.where(is_known, launched_ns, np.iinfo(np.int64).max)
    order = np.argsort(launched_ns, kind="stable")
    begins, by_time, may_be = events.begin_ns[rows], launched_ns[order], ~is_known
    runs = [(c.compiler_end_ns, c.ge_to_compiler_end_ns) for c in calls]
    starts = np.sort([end - ge for end, ge in runs if ge is not None])
    heads = []
    for call in calls:
        if call.ge_to_compiler_end_ns is None:
            heads.append(call.with_head())
            continue
        begin = call.compiler_end_ns - call.ge_to_compiler_end_ns
        low, high = np.searchsorted(by_time, (begin, call.compiler_end_ns)).tolist()
        of_head = order[low:high]
        own = of_head[launched_by[of_head] == events.tid[call.row]]
        of_head = own if len(own) else of_head
        by_launch = len(of_head) > 0
        if not by_launch:  # the next operator before the next call that was not launched earlier
            following = np.searchsorted(starts, begin, side="right")
            until = starts[following] if following < len(starts) else np.iinfo(np.int64).max
            low, high = np.searchsorted(begins, (begin, until)).tolist()
            of_head = low + np.flatnonzero(may_be[low:high] | (launched_ns[low:high] >= begin))
        if len(of_head):
            row = int(rows[of_head.min()])
            call = structs.replace(
                call,
                first_operator=trace.names[int(events.name[row])],
                first_operator_by="launch" if by_launch else "time",
                ge_to_first_operator_ns=int(events.begin_ns[row]) - begin,
            )
        heads.append(call.with_head())
    return heads


# --- The analysis ---


def counted_calls(calls: list[CompiledCall]) -> list[CompiledCall]:
    """Return the calls whose times are summed: those without compilation, or all if all compiled.

    Calls that compiled something take far longer than others.
    """
    return [call for call in calls if not call.compiled] or calls


@once
def heads(trace: Trace) -> Cover:
    """Return the times from the begins of compiled calls to their first operators."""
    calls = counted_calls(compiled_calls(trace)) if calls_torchair(trace) else []
    begin = np.array([call.begin_ns for call in calls], dtype=np.int64)
    return Cover(begin, begin + np.array([call.head_ns for call in calls], dtype=np.int64))
