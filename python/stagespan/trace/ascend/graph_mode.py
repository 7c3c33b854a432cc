"""Head overhead of compiled calls in Ascend's graph mode: the time before the first operator."""

from __future__ import annotations

import msgspec
import numpy as np

from stagespan.pages.amounts import counted, in_percent, in_words
from stagespan.pages.figures import Count, Figures, Ns
from stagespan.pages.result import (
    Evidence,
    Finding,
    Result,
    Table,
    Thresholds,
    Unavailable,
    share,
    shortened,
)
from stagespan.trace.derived.compiled_heads import (
    CompiledCall,
    HeadParts,
    compiled_calls,
    counted_calls,
)
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.gains import idle_gain
from stagespan.trace.evidence import window_of
from stagespan.trace.read.groups import median
from stagespan.trace.read.intervals import Cover
from stagespan.trace.read.model import Trace

_FRAMEWORK, _PYTHON, _CPP, _TORCHAIR = "framework", "python", "cpp", "torchair"
_GE, _GRAPH_REPLAY, _UNKNOWN = "ge", "replay", "unknown"
_WHOSE = {
    _FRAMEWORK: "the framework",
    _PYTHON: "TorchAir's Python",
    _CPP: "TorchAir's C++",
    _TORCHAIR: "TorchAir",
    _GE: "GE",
    _GRAPH_REPLAY: "the replay of captured graphs",
    _UNKNOWN: "time that the trace does not separate",
}
_ADVICE = {
    _FRAMEWORK: "Check what the serving framework does before the call, and dynamo's guards:"
    " fewer inputs and attributes that it must check",
    _PYTHON: "Pass fewer inputs, and pass contiguous tensors instead of numbers and lists",
    _CPP: "Check the number of inputs and outputs",
    _TORCHAIR: "Check the number of inputs, and their conversions",
    _GE: "Check whether the graph's shapes change, and how it is scheduled",
    _GRAPH_REPLAY: "Check what is copied and updated before a captured graph is launched",
    _UNKNOWN: "The events that would separate them are not in the trace",
}
_SHARES = Thresholds(25.0, 10.0, 5.0)
_MOST_IN_JSON = 200
_LARGEST = 10
_TITLES = {
    "framework_ns": "framework",
    "framework_cache_lookup_ns": "framework: look-up in dynamo's cache",
    "framework_guards_ns": "framework: guards with an event of their own",
    "torchair_ns": "TorchAir",
    "torchair_python_ns": "TorchAir: Python, to TorchNpuGraphBase::Run",
    "torchair_cpp_ns": "TorchAir: C++",
    "ge_to_compiler_end_ns": "GE, to the end of the compiler event",
    "ge_execute_ns": "GE: the call that runs the graph",
    "ge_to_first_operator_ns": "GE, to the first operator",
    "graph_replay_ns": "replay of the captured graph",
    "unknown_ns": _WHOSE[_UNKNOWN],
}
_SHOWN_IF_LONG = ("framework_guards_ns", "graph_replay_ns", "unknown_ns")


class Converted(Figures, frozen=True):
    """The number and time of operators that converted inputs."""

    operators: Count
    time_ns: Ns


class HeadFigures(Figures, frozen=True):
    """The heads of all calls."""

    calls: Count
    calls_that_compiled: Count
    counted_calls: Count
    head_ns: Ns
    device_idle_ns: Ns | None
    totals: HeadParts
    medians: HeadParts
    scalar_inputs: Converted
    non_contiguous_inputs: Converted
    other_events_ns: dict[str, Ns]
    per_call: list[CompiledCall]


class HeadOverhead(Result, msgspec.Struct, frozen=True):
    """All calls; only `counted` are summed."""

    calls: list[CompiledCall]
    window: tuple[int, int]
    idle_ns: int | None
    """The idle time of the device within the heads; None without a device."""
    threads: int

    @property
    def counted(self) -> list[CompiledCall]:
        """The calls without compilation, or all if all compiled."""
        return counted_calls(self.calls)

    def total(self, name: str) -> int | None:
        """Return the sum of a field over the counted calls that show it; None if no call does."""
        known = self._times_of(name)
        return sum(known) if known else None

    def median(self, name: str) -> int | None:
        """Return the median of a field over these calls, or None."""
        known = self._times_of(name)
        return int(median(known)) if known else None

    def _times_of(self, name: str) -> list[int]:
        times = [getattr(call, name) for call in self.counted]
        return [time for time in times if time is not None]

    def figures(self) -> HeadFigures:
        """For JSON."""
        scalars, contiguous = self._conversions()
        return HeadFigures(
            calls=len(self.calls),
            calls_that_compiled=sum(call.compiled for call in self.calls),
            counted_calls=len(self.counted),
            head_ns=sum(call.head_ns for call in self.counted),
            device_idle_ns=self.idle_ns,
            totals=HeadParts(**{name: self.total(name) for name in _TITLES}),
            medians=HeadParts(**{name: self.median(name) for name in _TITLES}),
            scalar_inputs=Converted(*scalars),
            non_contiguous_inputs=Converted(*contiguous),
            other_events_ns=self._others_ns(),
            per_call=self.calls[:_MOST_IN_JSON],
        )

    def findings(self) -> list[Finding]:
        """A finding if the device was idle for a large part of the heads."""
        calls = self.counted
        head = sum(call.head_ns for call in calls)
        lost = head if self.idle_ns is None else self.idle_ns
        # With a device, use its idle time; without one, heads of several threads can overlap.
        threads = self.threads if self.idle_ns is None else 1
        percent = share(lost, (self.window[1] - self.window[0]) * threads)
        severity = _SHARES.severity(percent)
        if severity is None:
            return []
        until = "before their first operators"
        if self.total("ge_to_first_operator_ns") is None:
            until = "until the compiler's event ended"
        parts = self._parts()
        most = max(parts, key=lambda part: parts[part])
        sentence = (
            f"{counted(len(calls), 'call')} of compiled graphs spent {in_words(head, 'ns')} {until}"
        )
        if self.idle_ns is not None:
            sentence += (
                f", and for {in_words(lost, 'ns')} of that ({in_percent(percent)} of the trace) the"
                " device was idle"
            )
        listed = [f"{_WHOSE[part]} {in_words(time, 'ns')}" for part, time in parts.items()]
        sentence += f": {', '.join(listed)}. Most of it is {_WHOSE[most]}"
        sentence += f"{self._why(most)}."
        longest = sorted(calls, key=lambda call: -call.head_ns)[:3]
        evidence = tuple(self._evidence(call) for call in longest)
        numbers: dict[str, float] = {"calls": len(calls), "head_ns": head}
        if self.idle_ns is not None:
            numbers |= {"idle_ns": lost, "idle_percent": percent}
        numbers |= {f"{part}_ns": time for part, time in parts.items()}
        gain = idle_gain(lost) if self.idle_ns is not None else None
        unknown = "" if gain else "the trace does not show whether the device waited"
        code = "ascend.head_overhead"
        action = f"{_ADVICE[most]}."
        covers = ("idle.host_work",)
        return [
            Finding(
                severity, sentence, evidence, code, numbers, gain, unknown, action, covers=covers
            )
        ]

    def tables(self) -> list[Table]:
        """Tables of the parts and of the longest heads."""
        rows = []
        for name, title in _TITLES.items():
            total = self.total(name)
            if total is not None and (total or name not in _SHOWN_IF_LONG):
                rows.append((title, total, self.median(name)))
        for title, graph_rows in (
            ("TorchAir: inputs that became tensors", [call.scalars for call in self.counted]),
            ("TorchAir: inputs made contiguous", [call.contiguous for call in self.counted]),
        ):
            count, times = sum(n for n, _ in graph_rows), [time for _, time in graph_rows]
            if count:
                rows.append((f"{title} ({count:,})", sum(times), int(median(times))))
        rows += [(name, time, None) for name, time in list(self._others_ns().items())[:_LARGEST]]
        return [
            Table(
                "Head overhead of compiled calls",
                (("part", ""), ("all calls", "ns"), ("median", "ns")),
                rows,
                self._note(),
            ),
            Table.of(
                "Calls with the largest head overhead",
                sorted(self.calls, key=lambda call: -call.head_ns)[:_LARGEST],
                (lambda call: call.region or "unknown", "call", ""),
                ("time_ns", "at", "ns"),
                ("head_ns", "head", "ns"),
                ("framework_ns", "framework", "ns"),
                ("torchair_python_ns", "TorchAir Python", "ns"),
                ("torchair_cpp_ns", "TorchAir C++", "ns"),
                ("ge_to_compiler_end_ns", "GE to end", "ns"),
                ("ge_to_first_operator_ns", "GE to first operator", "ns"),
                ("first_operator", "first operator", ""),
            ),
        ]

    def _note(self) -> str:
        calls, complete = len(self.calls), len(self.counted)
        note = f"{counted(calls, 'call')}."
        if complete < calls:
            note += f" {calls - complete:,} that compiled or loaded a graph are skipped."
        lacking = {
            "framework_ns": "the caller of the compiled graph is not in the trace",
            "torchair_python_ns": "TorchNpuGraphBase::Run is not in the trace, so TorchAir's Python"
            " and C++ are not separate",
            "ge_to_compiler_end_ns": "no ExecuteGraph or RunGraph is in the trace, so GE's part is"
            " unknown",
            "ge_to_first_operator_ns": "no operator on the device could be identified as the"
            " graph's first",
        }
        for name, words in lacking.items():
            missing = complete - len(self._times_of(name))
            of_ge = name == "ge_to_compiler_end_ns"
            replays = of_ge and self.total("graph_replay_ns") is not None
            if missing and not replays:
                note += f" For {missing:,} of them, {words}."
        by_time = sum(call.first_operator_by == "time" for call in self.counted)
        if by_time:
            note += f" For {by_time:,} of them, the first operator is the next one in time."
        return note

    def _parts(self) -> dict[str, int]:
        """Return the parts of all heads, which sum to the heads."""
        parts: dict[str, int] = {}
        for call in self.counted:
            python, ge = call.torchair_python_ns, call.ge_to_compiler_end_ns
            first = call.ge_to_first_operator_ns
            times = {
                _FRAMEWORK: call.framework_ns,
                _PYTHON: python,
                _CPP: call.torchair_cpp_ns,
                _TORCHAIR: call.torchair_ns if python is None else None,
                _GE: ge if first is None else first,
                _GRAPH_REPLAY: call.graph_replay_ns if ge is None else None,
                _UNKNOWN: call.unknown_ns or None,
            }
            for part, time in times.items():
                if time is not None:
                    parts[part] = parts.get(part, 0) + time
        return {part: parts[part] for part in _WHOSE if part in parts}

    def _why(self, part: str) -> str:
        lookup = self.total("framework_cache_lookup_ns")
        if part == _FRAMEWORK and lookup:
            time = in_words(lookup, "ns")
            return f", including {time} for the look-up in dynamo's cache"
        scalars, contiguous = self._conversions()
        parts = []
        if part in (_PYTHON, _TORCHAIR) and scalars[0]:
            parts.append(f"{in_words(scalars[1], 'ns')} for inputs that are not tensors")
        if part in (_PYTHON, _TORCHAIR) and contiguous[0]:
            parts.append(f"{in_words(contiguous[1], 'ns')} to make inputs contiguous")
        return f", including {' and '.join(parts)}" if parts else ""

    def _conversions(self) -> tuple[tuple[int, int], tuple[int, int]]:
        scalars = [call.scalars for call in self.counted]
        contiguous = [call.contiguous for call in self.counted]
        return (
            (sum(n for n, _ in scalars), sum(t for _, t in scalars)),
            (sum(n for n, _ in contiguous), sum(t for _, t in contiguous)),
        )

    def _others_ns(self) -> dict[str, int]:
        sums: dict[str, int] = {}
        for call in self.counted:
            for name, time in call.others_ns.items():
                sums[name] = sums.get(name, 0) + time
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def _evidence(self, call: CompiledCall) -> Evidence:
        what = f"head of {shortened(call.region)}" if call.region else "head of a compiled call"
        return Evidence(what, call.time_ns, call.head_ns, "ns")


def analyze(trace: Trace) -> HeadOverhead | Unavailable:
    """Split the heads of all compiled calls; Unavailable without events of TorchAir."""
    calls = compiled_calls(trace)
    window = window_of(trace)
    if not calls or window is None:
        return Unavailable(
            "The trace has no calls of graphs that TorchAir compiled (npu_fx_compiler inference).",
            "no_compiled_graphs",
        )
    events = trace.events
    return HeadOverhead(
        calls=calls,
        window=window,
        idle_ns=_idle(trace, counted_calls(calls), window[0]),
        threads=len({(int(events.pid[c.row]), int(events.tid[c.row])) for c in calls}),
    )


def _idle(trace: Trace, calls: list[CompiledCall], first: int) -> int | None:
    """Return the device's idle time within the heads; overlapping heads count once.

    `first` is the start of the trace's window. None without a device.
    """
    events, device = trace.events, device_work(trace).rows
    if len(device) == 0:
        return None
    busy = Cover(events.begin_ns[device] - first, events.end_ns[device] - first)
    begin = np.array([call.begin_ns - first for call in calls], dtype=np.int64)
    length = np.array([call.head_ns for call in calls], dtype=np.int64)
    heads = Cover(begin, begin + length)
    inside = busy.length(heads.begin, heads.end)
    return int((heads.end - heads.begin - inside).sum())
