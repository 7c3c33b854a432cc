"""Head overhead of compiled calls in Ascend's graph mode: what passes before the first operator.

Framework: from the compiled region's begin (with dynamo's look-up that found it) to the compiler's
event. TorchAir: from there to where the graph is run, Python until `TorchNpuGraphBase::Run`.
GE: from there to the end of the compiler's event, and to the first operator on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.analysis.axis import Cover
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Nothing,
    Severity,
    Table,
    in_words,
    many,
    share,
    shortened,
    window_of,
)
from stagespan.trace.analysis.torchair_calls import Call, compiled_calls
from stagespan.trace.device import device_work
from stagespan.trace.model import Trace

FRAMEWORK, PYTHON, CPP, TORCHAIR = "framework", "python", "cpp", "torchair"
GE, REPLAY, UNKNOWN = "ge", "replay", "unknown"
_WHOSE = {
    FRAMEWORK: "the framework",
    PYTHON: "TorchAir's Python",
    CPP: "TorchAir's C++",
    TORCHAIR: "TorchAir",
    GE: "GE",
    REPLAY: "the replay of captured graphs",
    UNKNOWN: "what the trace does not tell apart",
}
_ADVICE = {
    FRAMEWORK: "Look at what the serving framework does before the call, and at dynamo's guards:"
    " fewer inputs and attributes that it must check",
    PYTHON: "Pass tensors instead of numbers and lists, contiguous ones, and fewer inputs",
    CPP: "Look at the number of inputs and outputs",
    TORCHAIR: "Look at the number of inputs, and at what they must be converted to",
    GE: "Look at whether the graph's shapes change, and at how it is scheduled",
    REPLAY: "Look at what is copied and updated before a captured graph is launched",
    UNKNOWN: "The events that would tell whose it is are not in the trace",
}
_SHARES: tuple[tuple[float, Severity], ...] = ((25.0, "high"), (10.0, "medium"), (5.0, "low"))
_MOST_IN_JSON = 200
_LARGEST = 10
_KEYS = {
    "framework": "framework_us",
    "lookup": "framework_cache_lookup_us",
    "guards": "framework_guards_us",
    "torchair": "torchair_us",
    "python": "torchair_python_us",
    "cpp": "torchair_cpp_us",
    "ge": "ge_to_compiler_end_us",
    "execute": "ge_execute_us",
    "first_operator": "ge_to_first_operator_us",
    "replay": "graph_replay_us",
    "unknown": "unknown_us",
}
_TITLES = {
    "framework": "framework",
    "lookup": "of it dynamo's cache look-up",
    "guards": "of it guards with an event of their own",
    "torchair": "TorchAir",
    "python": "of it Python, to TorchNpuGraphBase::Run",
    "cpp": "of it C++",
    "ge": "GE, to the end of the compiler event",
    "execute": "of it the call that runs the graph",
    "first_operator": "GE, to the first operator",
    "replay": "replay of the captured graph",
    "unknown": _WHOSE[UNKNOWN],
}


@dataclass(frozen=True, slots=True)
class HeadOverhead:
    """All calls; those that compiled something stand apart, as they are not like the others."""

    calls: list[Call]
    window: tuple[int, int]
    operators: dict[int, str]
    """Names of the first operators, by row."""
    idle_ns: int | None
    """How much of the heads the device did nothing; None without a device."""
    threads: int

    @property
    def counted(self) -> list[Call]:
        """The calls whose times are summed: those that did not compile, unless all did."""
        return [call for call in self.calls if not call.compiles] or self.calls

    def total(self, name: str) -> int | None:
        """Sum of a part over the counted calls that show it, or None when none does."""
        known = self._known(name)
        return sum(known) if known else None

    def median(self, name: str) -> int | None:
        """Its median, or None."""
        known = self._known(name)
        return int(np.median(known)) if known else None

    def _known(self, name: str) -> list[int]:
        times = [getattr(call, f"{name}_ns") for call in self.counted]
        return [time for time in times if time is not None]

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        scalars, contiguous = self._conversions()
        return {
            "calls": len(self.calls),
            "calls_that_compiled": sum(call.compiles for call in self.calls),
            "counted_calls": len(self.counted),
            "head_us": sum(call.head_ns for call in self.counted) / 1000,
            "device_idle_us": _us(self.idle_ns),
            "totals": {key: _us(self.total(name)) for name, key in _KEYS.items()},
            "medians": {key: _us(self.median(name)) for name, key in _KEYS.items()},
            "scalar_inputs": {"operators": scalars[0], "time_us": scalars[1] / 1000},
            "non_contiguous_inputs": {"operators": contiguous[0], "time_us": contiguous[1] / 1000},
            "other_events_us": {name: time / 1000 for name, time in self._named().items()},
            "per_call": [self._call_dict(call) for call in self.calls[:_MOST_IN_JSON]],
        }

    def findings(self) -> list[Finding]:
        """Heads during which the device was idle for a good part of the time."""
        calls = self.counted
        head = sum(call.head_ns for call in calls)
        lost = head if self.idle_ns is None else self.idle_ns
        # Idle time is the device's; without one the heads of several threads pass side by side.
        threads = self.threads if self.idle_ns is None else 1
        percent = share(lost, (self.window[1] - self.window[0]) * threads)
        severity = next((s for least, s in _SHARES if percent >= least), None)
        if severity is None:
            return []
        until = "before their first operators"
        if self.total("first_operator") is None:
            until = "until the compiler's event ended"
        parts = self._parts()
        most = max(parts, key=lambda part: parts[part])
        sentence = (
            f"{many(len(calls), 'call')} of compiled graphs spent {in_words(head, 'ns')} {until}"
        )
        if self.idle_ns is not None:
            sentence += (
                f", and for {in_words(lost, 'ns')} of that ({percent:.1f} % of the trace) the"
                " device was idle"
            )
        told = [f"{_WHOSE[part]} {in_words(time, 'ns')}" for part, time in parts.items()]
        sentence += f": {', '.join(told)}. Most of it is {_WHOSE[most]}"
        sentence += f"{self._why(most)}. {_ADVICE[most]}."
        longest = sorted(calls, key=lambda call: -call.head_ns)[:3]
        evidence = tuple(self._evidence(call) for call in longest)
        return [Finding(severity, sentence, evidence, "ascend.head_overhead")]

    def tables(self) -> list[Table]:
        """The parts, then the largest calls."""
        rows = []
        for name, title in _TITLES.items():
            total = self.total(name)
            if total is not None and (total or name not in ("guards", "replay", "unknown")):
                rows.append((title, total, self.median(name)))
        for title, each in (
            ("of it inputs that became tensors", [call.scalars for call in self.counted]),
            ("of it inputs made contiguous", [call.contiguous for call in self.counted]),
        ):
            count, times = sum(n for n, _ in each), [time for _, time in each]
            if count:
                rows.append((f"{title} ({count:,})", sum(times), int(np.median(times))))
        rows += [(name, time, None) for name, time in list(self._named().items())[:_LARGEST]]
        largest = [
            (
                call.region or "unknown",
                call.begin_ns - self.window[0],
                call.head_ns,
                call.framework_ns,
                call.python_ns,
                call.cpp_ns,
                call.ge_ns,
                call.first_operator_ns,
                self.operators.get(call.first_operator),
            )
            for call in sorted(self.calls, key=lambda call: -call.head_ns)[:_LARGEST]
        ]
        titles = ("head", "framework", "TorchAir Python", "TorchAir C++", "GE to end")
        columns = (
            ("call", ""),
            ("at", "ns"),
            *((title, "ns") for title in titles),
            ("GE to first operator", "ns"),
            ("first operator", ""),
        )
        return [
            Table(
                "Head overhead of compiled calls",
                (("part", ""), ("all calls", "ns"), ("median", "ns")),
                rows,
                self._note(),
            ),
            Table("Calls with the largest head overhead", columns, largest),
        ]

    def _note(self) -> str:
        calls, counted = len(self.calls), len(self.counted)
        note = f"{many(calls, 'call')}."
        if counted < calls:
            note += f" {calls - counted:,} that compiled or loaded a graph are left out."
        lacking = {
            "framework": "what entered the compiled call is not in the trace",
            "python": "TorchNpuGraphBase::Run is not in the trace, so TorchAir's Python and C++ are"
            " not told apart",
            "ge": "no ExecuteGraph or RunGraph is in the trace, so GE's part is unknown",
            "first_operator": "no operator on the device could be told to be the graph's first",
        }
        for name, words in lacking.items():
            missing = counted - len(self._known(name))
            replays = name == "ge" and self.total("replay") is not None
            if missing and not replays:
                note += f" Of {missing:,} {words}."
        by_time = sum(c.first_operator >= 0 and not c.by_launch for c in self.counted)
        if by_time:
            note += f" Of {by_time:,} the first operator is the next one in time."
        return note

    def _parts(self) -> dict[str, int]:
        """The parts of all heads, which sum to them."""
        parts: dict[str, int] = {}
        for call in self.counted:
            first = call.first_operator_ns
            times = {
                FRAMEWORK: call.framework_ns,
                PYTHON: call.python_ns,
                CPP: call.cpp_ns,
                TORCHAIR: call.torchair_ns if call.python_ns is None else None,
                GE: call.ge_ns if first is None else first,
                REPLAY: call.replay_ns if call.ge_ns is None else None,
                UNKNOWN: call.unknown_ns or None,
            }
            for part, time in times.items():
                if time is not None:
                    parts[part] = parts.get(part, 0) + time
        return {part: parts[part] for part in _WHOSE if part in parts}

    def _why(self, part: str) -> str:
        if part == FRAMEWORK and self.total("lookup"):
            return f", {in_words(self.total('lookup'), 'ns')} of it dynamo's cache look-up"
        scalars, contiguous = self._conversions()
        told = []
        if part in (PYTHON, TORCHAIR) and scalars[0]:
            told.append(f"{in_words(scalars[1], 'ns')} for inputs that are no tensors")
        if part in (PYTHON, TORCHAIR) and contiguous[0]:
            told.append(f"{in_words(contiguous[1], 'ns')} to make inputs contiguous")
        return f", of it {' and '.join(told)}" if told else ""

    def _conversions(self) -> tuple[tuple[int, int], tuple[int, int]]:
        scalars = [call.scalars for call in self.counted]
        contiguous = [call.contiguous for call in self.counted]
        return (
            (sum(n for n, _ in scalars), sum(t for _, t in scalars)),
            (sum(n for n, _ in contiguous), sum(t for _, t in contiguous)),
        )

    def _named(self) -> dict[str, int]:
        sums: dict[str, int] = {}
        for call in self.counted:
            for name, time in call.named.items():
                sums[name] = sums.get(name, 0) + time
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def _evidence(self, call: Call) -> Evidence:
        what = f"head of {shortened(call.region)}" if call.region else "head of a compiled call"
        return Evidence(what, call.begin_ns - self.window[0], call.head_ns, "ns")

    def _call_dict(self, call: Call) -> dict[str, Any]:
        return {
            "time_us": (call.begin_ns - self.window[0]) / 1000,
            "region": call.region,
            "execute": call.execute,
            "head_us": call.head_ns / 1000,
            **{key: _us(getattr(call, f"{name}_ns")) for name, key in _KEYS.items()},
            "first_operator": self.operators.get(call.first_operator),
            "first_operator_by": _by(call),
            "compiled": call.compiles,
            "scalar_inputs_us": call.scalars[1] / 1000,
            "non_contiguous_inputs_us": call.contiguous[1] / 1000,
        }


def analyze(trace: Trace) -> HeadOverhead | Nothing:
    """Split the heads of all compiled calls; Nothing for traces without TorchAir's events."""
    calls = compiled_calls(trace)
    window = window_of(trace)
    if not calls or window is None:
        return Nothing(
            "The trace has no calls of graphs that TorchAir compiled (npu_fx_compiler inference)."
        )
    events, names = trace.events, trace.names
    rows = {call.first_operator for call in calls if call.first_operator >= 0}
    found = HeadOverhead(
        calls,
        window,
        {row: names[int(events.name[row])] for row in rows},
        None,
        len({(int(events.pid[c.row]), int(events.tid[c.row])) for c in calls}),
    )
    return HeadOverhead(calls, window, found.operators, _idle(trace, found), found.threads)


def _idle(trace: Trace, found: HeadOverhead) -> int | None:
    """How long the device did nothing within the heads, those of several threads once."""
    events, device = trace.events, device_work(trace).rows
    if len(device) == 0:
        return None
    first = found.window[0]
    busy = Cover(events.begin_ns[device] - first, events.end_ns[device] - first)
    begin = np.array([call.begin_ns - first for call in found.counted], dtype=np.int64)
    length = np.array([call.head_ns for call in found.counted], dtype=np.int64)
    heads = Cover(begin, begin + length)
    inside = busy.within(heads.begin, heads.end)
    return int((heads.end - heads.begin - inside).sum())


def _by(call: Call) -> str | None:
    if call.first_operator < 0:
        return None
    return "launch" if call.by_launch else "time"


def _us(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1000
