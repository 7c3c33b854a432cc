"""How the device spent its time, how streams overlapped, how much communication was hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stagespan.trace.analysis.device_time import (
    DeviceTime,
    custom_communication,
    device_rows,
    device_times,
    stream_times,
    together,
)
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
from stagespan.trace.arrays import by_group
from stagespan.trace.device import COMMUNICATION, COPY, device_work, launch_of, streams
from stagespan.trace.device_use import DeviceUse, device_use
from stagespan.trace.intervals import merged
from stagespan.trace.model import Trace

# Of the device's span: exposed communication or copies below it are no finding.
_SHARES: tuple[tuple[float, Severity], ...] = ((25.0, "high"), (10.0, "medium"), (5.0, "low"))


@dataclass(frozen=True, slots=True)
class Use:
    """The device's use; times in ns."""

    use: DeviceUse
    """All devices as one: a moment is busy when any of them is."""
    devices: dict[int, DeviceTime]
    """By device; all kernels that communicate are communication."""
    stream_times: dict[tuple[int, int], DeviceTime]
    """By device and stream, each by itself."""
    overlap_ns: int
    """When two or more streams were busy at once."""
    before_window: int
    """Events whose launch is not in the trace; most were launched before it began."""
    before_window_ns: int
    """Their durations' sum."""
    longest: dict[tuple[int, int], Evidence]
    """The longest communication and copy, by device and kind."""

    @property
    def parts(self) -> DeviceTime:
        """Of one device its times, of several their sums."""
        return together(self.devices.values())

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the keys of `DeviceUse`, and those of overlap; microseconds."""
        use, parts = self.use, self.parts
        streams = use.to_dict()["per_stream_busy_us"]
        return {
            **use.to_dict(),
            "overlap_us": self.overlap_ns / 1000,
            "hidden_comm_us": parts.hidden_communication_ns / 1000,
            "hidden_comm_percent": share(parts.hidden_communication_ns, parts.communication_ns)
            if parts.communication_ns
            else None,
            "custom_comm_us": parts.custom_ns / 1000,
            "gpu_events_without_launch_us": self.before_window_ns / 1000,
            "per_device_us": {str(name): time.to_dict() for name, time in self.devices.items()},
            "per_stream_us": {
                name: self.stream_times[key].to_dict()
                for name, key in zip(streams, use.stream_busy_ns, strict=True)
            },
        }

    def findings(self) -> list[Finding]:
        """Communication and copies that nothing hides, where they take a good part of the time.

        Of several devices the one that loses the most time is told about.
        """
        found = []
        for kind, what, advice in (
            (
                COMMUNICATION,
                "communication",
                "Starting it earlier, on its own stream, lets computation hide it",
            ),
            (
                COPY,
                "copies",
                "Pinned memory and copies on a stream of their own let computation hide them",
            ),
        ):
            times = {name: _exposed(time, kind) for name, time in self.devices.items()}
            worst = max(times, key=lambda name: times[name][0])
            exposed, whole = times[worst]
            percent = share(exposed, self.use.span_ns or 0)
            severity = next((s for least, s in _SHARES if percent >= least), None)
            if severity is None:
                continue
            several = len(times) > 1
            which = f"device {worst}, the worst of {len(times)}," if several else "the device"
            sentence = (
                f"For {in_words(exposed, 'ns')} ({percent:.1f} % of"
                f" {'the whole' if several else 'its'} time) {which} did"
                f" nothing but {what}: {share(whole - exposed, whole):.1f} % of all"
                f" {'its ' if several else ''}{what} was hidden behind computation. {advice}."
            )
            found.append(
                Finding(
                    severity,
                    sentence,
                    (Evidence(f"exposed {what}", None, exposed, "ns"), self.longest[worst, kind]),
                )
            )
        return found

    def tables(self) -> list[Table]:
        """What the devices' time went to, together and each, and how busy each stream was."""
        use, parts = self.use, self.parts
        several = len(self.devices) > 1
        by_stream = [
            (
                f"device {device}, stream {stream}",
                time.busy_ns,
                share(time.busy_ns, use.span_ns or 0),
                time.compute_ns,
                time.communication_ns,
                time.copy_ns,
            )
            for (device, stream), time in sorted(
                self.stream_times.items(), key=lambda item: -item[1].busy_ns
            )
        ]
        by_device = Table(
            "Devices",
            (
                ("device", ""),
                ("computing", "ns"),
                ("communicating, nothing else", "ns"),
                ("copying, nothing else", "ns"),
                ("idle", "ns"),
                ("of all", "ns"),
                ("communication", "ns"),
                ("copies", "ns"),
            ),
            [
                (
                    f"device {name}",
                    time.compute_ns,
                    time.exposed_communication_ns,
                    time.exposed_copy_ns,
                    time.idle_ns,
                    time.span_ns,
                    time.communication_ns,
                    time.copy_ns,
                )
                for name, time in self.devices.items()
            ],
            "Each from its first event to the end of its last.",
        )
        return [
            Table(
                "Device",
                (("", ""), ("time", "ns"), ("of all", "%")),
                [
                    (what, time, share(time, parts.span_ns))
                    for what, time in (
                        ("computing", parts.compute_ns),
                        ("communicating, nothing else", parts.exposed_communication_ns),
                        ("copying, nothing else", parts.exposed_copy_ns),
                        ("idle", parts.idle_ns),
                    )
                ],
                self._note(),
            ),
            *([by_device] if several else []),
            Table(
                "Streams",
                (
                    ("stream", ""),
                    ("busy", "ns"),
                    ("of all", "%"),
                    ("computing", "ns"),
                    ("communication", "ns"),
                    ("copies", "ns"),
                ),
                by_stream,
                f"Two or more were busy at once for {in_words(self.overlap_ns, 'ns')}.",
            ),
        ]

    def _note(self) -> str:
        count, parts = len(self.devices), self.parts
        note = f"{in_words(self.use.span_ns, 'ns')} from the first device event to the end of the"
        note += " last."
        if count > 1:
            note += f" The times are the sums over {count} devices."
        if parts.custom_ns:
            note += (
                f" {in_words(parts.custom_ns, 'ns')} of communication is of kernels other than"
                " NCCL's, RCCL's and HCCL's; compute_union_us in --json has them as computing."
            )
        if self.before_window:
            note += (
                f" {self.before_window:,} of its events ({in_words(self.before_window_ns, 'ns')})"
                " were launched outside the trace; they are included."
            )
        return note


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
    kind = np.where(custom_communication(trace), COMMUNICATION, work.kind)
    longest = {}
    for device, mine in device_rows(trace).items():
        for each in (COMMUNICATION, COPY):
            rows = mine[kind[mine] == each]
            if len(rows):
                longest[device, each] = evidence(trace, int(rows[np.argmax(events.dur_ns[rows])]))
    outside = work.rows[launch_of(trace, work.rows) < 0]
    return Use(
        use=use,
        devices=device_times(trace),
        stream_times=stream_times(trace),
        overlap_ns=_overlap(trace),
        before_window=len(outside),
        before_window_ns=int(events.dur_ns[outside].sum()),
        longest=longest,
    )


def _exposed(time: DeviceTime, kind: int) -> tuple[int, int]:
    """Of communication or copies what nothing hid, and all."""
    if kind == COMMUNICATION:
        return time.exposed_communication_ns, time.communication_ns
    return time.exposed_copy_ns, time.copy_ns


def _overlap(trace: Trace) -> int:
    """Time when at least two streams were busy."""
    events = trace.events
    rows = device_work(trace).rows
    device, stream = streams(trace, rows)
    found, lane = pairs(device, stream)
    begins, ends = [], []
    for here in by_group(lane, len(found)):
        mine = rows[here]
        begin = events.begin_ns[mine]
        begin, end = merged(begin, begin + events.dur_ns[mine])
        begins.append(begin)
        ends.append(end)
    time = np.concatenate([*begins, *ends])
    step = np.repeat([1, -1], len(time) // 2)
    order = np.argsort(time, kind="stable")
    busy = np.cumsum(step[order])
    lengths = np.diff(time[order])
    return int(lengths[busy[:-1] >= 2].sum())
