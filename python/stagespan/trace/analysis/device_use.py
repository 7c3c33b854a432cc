"""How the device spent its time, how streams overlapped, how much communication was hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.analysis.host_time import pairs
from stagespan.trace.analysis.result import (
    Evidence,
    Finding,
    Nothing,
    Severity,
    Table,
    evidence,
    in_words,
    share,
)
from stagespan.trace.device import COMMUNICATION, COPY, device_work, launch_of, streams
from stagespan.trace.device_use import DeviceUse, device_use
from stagespan.trace.intervals import covered, merged
from stagespan.trace.model import Trace

# Of the device's span: exposed communication or copies below it are no finding.
_SHARES: tuple[tuple[float, Severity], ...] = ((25.0, "high"), (10.0, "medium"), (5.0, "low"))


@dataclass(frozen=True, slots=True)
class Use:
    """The device's use; times in ns."""

    use: DeviceUse
    device_busy_ns: dict[int, tuple[int, int]]
    """By device: busy, and from its first event to its last one's end."""
    overlap_ns: int
    """When two or more streams were busy at once."""
    before_window: int
    """Events whose launch is not in the trace; most were launched before it began."""
    before_window_ns: int
    """Their durations' sum."""
    longest: dict[int, Evidence]
    """The longest communication and copy, by kind."""

    @property
    def hidden_communication_ns(self) -> int:
        """Communication beside which something computed."""
        return (self.use.communication_ns or 0) - (self.use.exposed_communication_ns or 0)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the keys of `DeviceUse`, and those of overlap; microseconds."""
        use = self.use
        communication = use.communication_ns or 0
        return {
            **use.to_dict(),
            "overlap_us": self.overlap_ns / 1000,
            "hidden_comm_us": self.hidden_communication_ns / 1000,
            "hidden_comm_percent": share(self.hidden_communication_ns, communication)
            if communication
            else None,
            "gpu_events_without_launch_us": self.before_window_ns / 1000,
            "per_device_us": {
                str(device): {
                    "busy": busy / 1000,
                    "idle": (span - busy) / 1000,
                    "span": span / 1000,
                }
                for device, (busy, span) in self.device_busy_ns.items()
            },
        }

    def findings(self) -> list[Finding]:
        """Communication and copies that nothing hides, where they take a good part of the time."""
        use, found = self.use, []
        span = use.span_ns or 0
        for kind, exposed, whole, what, advice in (
            (
                COMMUNICATION,
                use.exposed_communication_ns or 0,
                use.communication_ns or 0,
                "communication",
                "Starting it earlier, on its own stream, lets computation hide it",
            ),
            (
                COPY,
                use.exposed_copy_ns or 0,
                use.copy_ns or 0,
                "copies",
                "Pinned memory and copies on a stream of their own let computation hide them",
            ),
        ):
            percent = share(exposed, span)
            severity = next((s for least, s in _SHARES if percent >= least), None)
            if severity is None:
                continue
            sentence = (
                f"For {in_words(exposed, 'ns')} ({percent:.1f} % of its time) the device did"
                f" nothing but {what}: {share(whole - exposed, whole):.1f} % of all {what} was"
                f" hidden behind computation. {advice}."
            )
            found.append(
                Finding(
                    severity,
                    sentence,
                    (Evidence(f"exposed {what}", None, exposed, "ns"), self.longest[kind]),
                )
            )
        return found

    def tables(self) -> list[Table]:
        """What the device's time went to, and how busy each stream was."""
        use = self.use
        span = use.span_ns or 0
        parts = (
            ("computing", use.compute_ns),
            ("communicating, nothing else", use.exposed_communication_ns),
            ("copying, nothing else", use.exposed_copy_ns),
            ("idle", use.idle_ns),
        )
        note = f"{in_words(span, 'ns')} from the first device event to the end of the last."
        if self.before_window:
            note += (
                f" {self.before_window:,} of its events ({in_words(self.before_window_ns, 'ns')})"
                " were launched outside the trace; they are included."
            )
        by_stream = [
            (f"device {device}, stream {stream}", busy, share(busy, span))
            for (device, stream), busy in sorted(
                use.stream_busy_ns.items(), key=lambda item: -item[1]
            )
        ]
        return [
            Table(
                "Device",
                (("", ""), ("time", "ns"), ("of all", "%")),
                [(what, time, share(time or 0, span)) for what, time in parts],
                note,
            ),
            Table(
                "Streams",
                (("stream", ""), ("busy", "ns"), ("of all", "%")),
                by_stream,
                f"Two or more were busy at once for {in_words(self.overlap_ns, 'ns')}.",
            ),
        ]


def analyze(trace: Trace) -> Use | Nothing:
    """Sum up the device's time; Nothing without device events."""
    use = device_use(trace)
    if use.span_ns is None:
        return Nothing(
            "The trace has no device events, so nothing is known about the device: record it with"
            " the device's activity.",
            use.to_dict(),
        )
    work, events = device_work(trace), trace.events
    rows = work.rows
    begin, end = events.begin_ns[rows], events.end_ns[rows]
    device, _ = streams(trace, rows)
    by_device = {}
    for number in np.unique(device):
        mine = device == number
        span = int(end[mine].max() - begin[mine].min())
        by_device[int(number)] = (covered(begin[mine], end[mine]), span)
    longest = {}
    for kind in (COMMUNICATION, COPY):
        of_kind = rows[work.kind[rows] == kind]
        if len(of_kind):
            longest[kind] = evidence(trace, int(of_kind[np.argmax(events.dur_ns[of_kind])]))
    outside = rows[launch_of(trace, rows) < 0]
    return Use(
        use=use,
        device_busy_ns=by_device,
        overlap_ns=_overlap(trace),
        before_window=len(outside),
        before_window_ns=int(events.dur_ns[outside].sum()),
        longest=longest,
    )


def _overlap(trace: Trace) -> int:
    """Time when at least two streams were busy."""
    events = trace.events
    rows = device_work(trace).rows
    device, stream = streams(trace, rows)
    _, lane = pairs(device, stream)
    begins, ends = [], []
    for number in range(int(lane.max()) + 1):
        mine = rows[lane == number]
        begin, end = merged(events.begin_ns[mine], events.end_ns[mine])
        begins.append(begin)
        ends.append(end)
    time = np.concatenate([*begins, *ends])
    step = np.repeat([1, -1], len(time) // 2)
    order = np.argsort(time, kind="stable")
    busy = np.cumsum(step[order])
    lengths = np.diff(time[order])
    return int(lengths[busy[:-1] >= 2].sum())
