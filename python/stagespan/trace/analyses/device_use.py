"""Shows how the device spent its time, how streams overlapped, and exposed communication."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stagespan.trace.derived.device import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    device_work,
    launch_of,
    streams,
    work_by_stream,
)
from stagespan.trace.derived.device_time import (
    DeviceTime,
    DeviceTimeFigures,
    DeviceUse,
    DeviceUseFigures,
    device_rows,
    device_times,
    device_use,
    stream_times,
    together,
)
from stagespan.trace.derived.windows import BaseWindow, base_window
from stagespan.trace.figures import Ns
from stagespan.trace.read.intervals import Mask, Rows, merged
from stagespan.trace.read.model import Trace
from stagespan.trace.result import (
    Evidence,
    Finding,
    Result,
    Table,
    Thresholds,
    Unavailable,
    evidence,
    in_words,
    of_size,
    share,
)

# Percent of the steps or the trace: less exposed communication or copies are not reported.
_SHARES = Thresholds(25.0, 10.0, 5.0)

_WITHIN_DEVICE = re.compile(r"DtoD|DeviceToDevice|Device -> Device", re.IGNORECASE)
_PAGEABLE = re.compile(r"Pageable", re.IGNORECASE)
WITHIN_DEVICE, PAGEABLE, PINNED = "within_device", "pageable", "other"


class UseFigures(DeviceUseFigures, frozen=True):
    """The device's use, and how its streams overlapped."""

    overlap_ns: Ns
    hidden_comm_ns: Ns
    hidden_comm_percent: float | None
    """Of communication; None without communication."""
    custom_comm_ns: Ns
    gpu_events_without_launch_ns: Ns
    per_device_ns: dict[str, DeviceTimeFigures]
    per_stream_ns: dict[str, DeviceTimeFigures]


@dataclass(frozen=True, slots=True)
class Use(Result):
    """The device's use; times in ns."""

    use: DeviceUse
    """The use of all devices together, which are busy if any device is busy."""
    devices: dict[int, DeviceTime]
    """The use of each device, with all kernels that communicate as communication."""
    stream_times: dict[tuple[int, int], DeviceTime]
    """The use of each stream alone, by device and stream."""
    overlap_ns: int
    """The time in which two or more streams were busy."""
    before_window: int
    """Events whose launch is not in the trace; most were launched before it began."""
    before_window_ns: int
    """The sum of their durations."""
    longest: dict[tuple[int, int], Evidence]
    """The longest communication and copy by device and kind; copies of the most frequent sort."""
    base: BaseWindow
    """The time to which the shares on pages refer."""
    within: dict[int, DeviceTime]
    """The use of the base's time by device."""
    streams_within: dict[tuple[int, int], DeviceTime]
    """The use of the base's time by device and stream."""
    copies: dict[int, str]
    """The sort of copies with the most time on each device: `WITHIN_DEVICE`, `PAGEABLE`, ..."""
    shares_stream: dict[tuple[int, int], bool]
    """Whether most work of a kind runs on a stream that mostly computes, by device and kind."""

    @property
    def parts(self) -> DeviceTime:
        """The times of the device, or the sums over several devices."""
        return together(self.devices.values())

    def figures(self) -> UseFigures:
        """The figures of `DeviceUse`, and those of overlap."""
        use, parts = self.use.figures(), self.parts
        return UseFigures(
            **structs.asdict(use),
            overlap_ns=self.overlap_ns,
            hidden_comm_ns=parts.hidden_communication_ns,
            hidden_comm_percent=share(parts.hidden_communication_ns, parts.communication_ns)
            if parts.communication_ns
            else None,
            custom_comm_ns=parts.custom_ns,
            gpu_events_without_launch_ns=self.before_window_ns,
            per_device_ns={str(name): time.figures() for name, time in self.devices.items()},
            per_stream_ns={
                name: self.stream_times[key].figures()
                for name, key in zip(use.per_stream_busy_ns, self.use.stream_busy_ns, strict=True)
            },
        )

    def findings(self) -> list[Finding]:
        """Exposed communication and copies, if they take much of the time.

        If there are several devices, the finding is about the one that loses the most time.
        """
        found = []
        for kind, what in ((COMMUNICATION, "communication"), (COPY, "copies")):
            times = {name: _exposed(time, kind) for name, time in self.within.items()}
            worst = max(times, key=lambda name: times[name][0])
            exposed, whole = times[worst]
            percent = share(exposed, self.base.whole_ns)
            severity = _SHARES.severity(percent)
            if severity is None:
                continue
            several = len(times) > 1
            which = f"device {worst}, the worst of {len(times)}," if several else "the device"
            does = "communicate" if kind == COMMUNICATION else "copy"
            behind = "computation" if kind == COMMUNICATION else "computation or communication"
            sentence = (
                f"For {in_words(exposed, 'ns')} of {self.base.whose} ({percent:.1f} %) {which} did"
                f" nothing but {does}: {share(whole - exposed, whole):.1f} % of all"
                f" {'its ' if several else ''}{what} was hidden behind {behind}."
                f" {self._advice(worst, kind)}"
            )
            found.append(
                Finding(
                    of_size(severity, exposed),
                    sentence,
                    (Evidence(f"exposed {what}", None, exposed, "ns"), self.longest[worst, kind]),
                    f"device_use.exposed_{what}",
                    numbers={
                        "time_ns": exposed,
                        "percent": percent,
                        "whole_ns": self.base.whole_ns,
                        "hidden_percent": share(whole - exposed, whole),
                        "device": worst,
                    },
                )
            )
        return found

    def _advice(self, device: int, kind: int) -> str:
        """Return advice on how computation could hide it, based on its streams and kinds."""
        if kind == COMMUNICATION:
            if self.shares_stream.get((device, kind)):
                return (
                    "It runs on a stream that also computes. On a separate stream, independent"
                    " computation can hide it."
                )
            return (
                "It runs on its own stream. Computation can hide it if it starts earlier or in"
                " smaller parts."
            )
        of = self.copies.get(device)
        if of == WITHIN_DEVICE:
            return (
                "Most of this time is in copies within the device. They come from clones, changes"
                " of layout and concatenation, or fill the inputs of device graphs. Reduce their"
                " number."
            )
        if of == PAGEABLE:
            return (
                "Most of this time is in copies to or from pageable memory, for which the host"
                " waits. With pinned memory and non_blocking=True, computation can hide them."
            )
        if self.shares_stream.get((device, kind)):
            return "On a separate stream, independent computation can hide them."
        return (
            "They run on their own stream. Computation can hide them if they start earlier, for"
            " example by prefetching."
        )

    def tables(self) -> list[Table]:
        """Tables of the time of all devices, of each device, and of each stream."""
        parts, of = together(self.within.values()), f"of {self.base.label}"
        several = len(self.devices) > 1
        by_stream = [
            (
                f"device {device}, stream {stream}",
                time.busy_ns,
                share(time.busy_ns, self.base.whole_ns),
                time.compute_ns,
                time.communication_ns,
                time.copy_ns,
            )
            for (device, stream), time in sorted(
                self.streams_within.items(), key=lambda item: -item[1].busy_ns
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
                ("all", "ns"),
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
                for name, time in self.within.items()
            ],
            f"Each of {self.base.label}.",
        )
        return [
            Table(
                "Device",
                (("", ""), ("time", "ns"), (of, "%")),
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
                    (of, "%"),
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
        span = in_words(self.use.span_ns, "ns")
        note = f"From the first device event to the end of the last: {span}."
        if count > 1:
            note += f" The times are the sums over {count} devices."
        if parts.custom_ns:
            note += (
                f" {in_words(parts.custom_ns, 'ns')} of communication are in kernels that are not"
                " NCCL's, RCCL's or HCCL's; compute_union_us in --json counts them as computing."
            )
        if self.before_window:
            note += (
                f" {self.before_window:,} of its events ({in_words(self.before_window_ns, 'ns')})"
                " were launched outside the trace; they are included."
            )
        return note


def analyze(trace: Trace) -> Use | Unavailable:
    """Sum up the device's time; Unavailable if the trace has no device events."""
    use = device_use(trace)
    if use.span_ns is None:
        return Unavailable(
            "The trace has no device events, so the use of the device is unknown: record it with"
            " the device's activity.",
            "no_device",
            use.figures(),
        )
    work, events, base = device_work(trace), trace.events, base_window(trace)
    assert base is not None
    within = base.begin_ns, base.end_ns
    kind = work.kind
    sorts = _sorts_of_copies(trace)
    longest: dict[tuple[int, int], Evidence] = {}
    copies: dict[int, str] = {}
    shares_stream: dict[tuple[int, int], bool] = {}
    for device, mine in device_rows(trace).items():
        for each in (COMMUNICATION, COPY):
            rows = mine[kind[mine] == each]
            if len(rows) == 0:
                continue
            shares_stream[device, each] = _on_computing_stream(trace, mine, kind, each)
            if each == COPY:
                of_sort = {name: rows[chosen[events.name[rows]]] for name, chosen in sorts.items()}
                times = {
                    name: int(events.dur_ns[mine].sum())
                    for name, mine in of_sort.items()
                    if len(mine)
                }
                copies[device] = max(times, key=lambda name: times[name])
                rows = of_sort[copies[device]]
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
        base=base,
        within=device_times(trace, within),
        streams_within=stream_times(trace, within),
        copies=copies,
        shares_stream=shares_stream,
    )


def _sorts_of_copies(trace: Trace) -> dict[str, Mask]:
    """Return which names of events are copies of each sort; each name has one sort."""
    inside = np.array([_WITHIN_DEVICE.search(name) is not None for name in trace.names] + [False])
    pageable = np.array([_PAGEABLE.search(name) is not None for name in trace.names] + [False])
    pageable &= ~inside
    return {WITHIN_DEVICE: inside, PAGEABLE: pageable, PINNED: ~inside & ~pageable}


def _on_computing_stream(trace: Trace, rows: Rows, kind: NDArray[np.int8], of: int) -> bool:
    """Whether most of the time of one kind of work is on streams that mostly compute."""
    _, stream = streams(trace, rows)
    durations, kinds = trace.events.dur_ns[rows], kind[rows]
    shared = 0
    for number in np.unique(stream):
        here = stream == number
        mine = int(durations[here & (kinds == of)].sum())
        if int(durations[here & (kinds == COMPUTE)].sum()) > mine:
            shared += mine
    return 2 * shared > int(durations[kinds == of].sum())


def _exposed(time: DeviceTime, kind: int) -> tuple[int, int]:
    """The exposed time and the total time of communication or copies."""
    if kind == COMMUNICATION:
        return time.exposed_communication_ns, time.communication_ns
    return time.exposed_copy_ns, time.copy_ns


def _overlap(trace: Trace) -> int:
    """Return the time in which at least two streams were busy."""
    events = trace.events
    rows = device_work(trace).rows
    begins, ends = [], []
    for here in work_by_stream(trace)[0].values():
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
