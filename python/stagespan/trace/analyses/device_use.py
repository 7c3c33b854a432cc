"""Shows how the device spent its time, how streams overlapped, and exposed communication."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stagespan.pages.amounts import in_percent, in_words
from stagespan.pages.figures import Internal, Ns
from stagespan.pages.result import (
    Evidence,
    Finding,
    Gain,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    of_size,
    share,
)
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
    DeviceUse,
    device_rows,
    device_times,
    device_use,
    stream_times,
    streams_by_name,
    together,
)
from stagespan.trace.derived.gains import gain_shared_by, how_nothing_is_left
from stagespan.trace.derived.missing import needs_device
from stagespan.trace.derived.windows import BaseWindow, base_window
from stagespan.trace.evidence import evidence
from stagespan.trace.rates.collectives import exposed_calls
from stagespan.trace.read.groups import values_of
from stagespan.trace.read.intervals import Cover, Mask, Numbers, Rows, merged
from stagespan.trace.read.model import Trace

# Percent of the steps or the trace: less exposed communication or copies are not reported.
_SHARES = Thresholds(25.0, 10.0, 5.0)

_WITHIN_DEVICE = re.compile(r"DtoD|DeviceToDevice|Device -> Device", re.IGNORECASE)
_PAGEABLE = re.compile(r"Pageable", re.IGNORECASE)
WITHIN_DEVICE, PAGEABLE, PINNED = "within_device", "pageable", "other"
_SEPARATE = "On a separate stream, independent computation can hide {}."


def analyze(trace: Trace) -> Use | Unavailable:
    """Sum up the device's time; Unavailable if the trace has no device events."""
    use = device_use(trace)
    if use.span_ns is None:
        return Unavailable(
            "The trace has no device events, so the use of the device is unknown: record it with"
            " the device's activity.",
            "no_device",
            use,
            needs_device(trace),
        )
    work, events, base = device_work(trace), trace.events, base_window(trace)
    assert base is not None
    window = base.begin_ns, base.end_ns
    kind = work.kind
    sorts = _sorts_of_copies(trace)
    longest: dict[tuple[int, int], Evidence] = {}
    copies: dict[int, str] = {}
    shares_stream: dict[tuple[int, int], bool] = {}
    exposed: dict[int, tuple[Rows, Numbers]] = {}
    for device, of_device in device_rows(trace).items():
        for part in (COMMUNICATION, COPY):
            rows = of_device[kind[of_device] == part]
            if len(rows) == 0:
                continue
            if part == COMMUNICATION:
                computing = of_device[kind[of_device] == COMPUTE]
                computes = Cover(events.begin_ns[computing], events.end_ns[computing])
                exposed[device] = exposed_calls(trace, rows, computes, window)
            shares_stream[device, part] = _on_computing_stream(trace, of_device, kind, part)
            if part == COPY:
                of_sort = {name: rows[chosen[events.name[rows]]] for name, chosen in sorts.items()}
                times = {
                    name: int(events.dur_ns[mine].sum())
                    for name, mine in of_sort.items()
                    if len(mine)
                }
                copies[device] = max(times, key=lambda name: times[name])
                rows = of_sort[copies[device]]
            longest[device, part] = evidence(trace, int(rows[np.argmax(events.dur_ns[rows])]))
    outside = work.rows[launch_of(trace, work.rows) < 0]
    devices = device_times(trace)
    whole = together(devices.values())
    hidden = whole.hidden_communication_ns
    return Use(
        **structs.asdict(use),
        overlap_ns=_overlap(trace),
        hidden_comm_ns=hidden,
        hidden_comm_percent=share(hidden, whole.communication_ns)
        if whole.communication_ns
        else None,
        custom_comm_ns=whole.custom_ns,
        devices={str(number): time for number, time in devices.items()},
        stream_times=streams_by_name(trace),
        before_window_ns=int(events.dur_ns[outside].sum()),
        longest=longest,
        base=base,
        by_device=device_times(trace, window),
        by_stream=stream_times(trace, window),
        copies=copies,
        shares_stream=shares_stream,
        exposed_calls=exposed,
    )


class Use(DeviceUse, StructResult, frozen=True):
    """The device's use, and how its streams overlapped; times in ns."""

    overlap_ns: Ns
    """The time in which two or more streams were busy."""
    hidden_comm_ns: Ns
    hidden_comm_percent: float | None
    """Of communication; None without communication."""
    custom_comm_ns: Ns
    """Communication in kernels other than those of NCCL, RCCL and HCCL, summed over devices."""
    before_window_ns: Ns = msgspec.field(name="gpu_events_without_launch_us")
    """The sum of the durations of events whose launch is not in the trace; most were launched
    before it began."""
    devices: dict[str, DeviceTime] = msgspec.field(name="per_device_us")
    stream_times: dict[str, DeviceTime] = msgspec.field(name="per_stream_us")
    """The use of each stream alone."""
    longest: Internal[dict[tuple[int, int], Evidence]]
    """The longest communication and copy by device and kind; copies of the most frequent sort."""
    base: Internal[BaseWindow]
    """The time to which the shares on pages refer."""
    by_device: Internal[dict[int, DeviceTime]]
    """The use of the base's time by device."""
    by_stream: Internal[dict[tuple[int, int], DeviceTime]]
    """The use of the base's time by device and stream."""
    copies: Internal[dict[int, str]]
    """The sort of copies with the most time on each device: `WITHIN_DEVICE`, `PAGEABLE`, ..."""
    shares_stream: Internal[dict[tuple[int, int], bool]]
    """Whether most work of a kind runs on a stream that mostly computes, by device and kind."""
    exposed_calls: Internal[dict[int, tuple[Rows, Numbers]]]
    """By device: its communication in the base's time, and how long nothing computed during it."""

    def findings(self) -> list[Finding]:
        """Exposed communication and copies, if they take much of the time.

        If there are several devices, the finding is about the one that loses the most time.
        """
        findings = []
        for kind, what in ((COMMUNICATION, "communication"), (COPY, "copies")):
            times = {name: _exposed(time, kind) for name, time in self.by_device.items()}
            worst = max(times, key=lambda name: times[name][0])
            exposed, whole = times[worst]
            severity = _SHARES.severity(share(exposed, self.base.whole_ns))
            if severity is None:
                continue
            several = len(times) > 1
            which = f"device {worst}, the worst of {len(times)}," if several else "the device"
            does = "communicate" if kind == COMMUNICATION else "copy"
            behind = "computation" if kind == COMMUNICATION else "computation or communication"
            sentence = (
                f"For {self.base.part(exposed)} {which} did nothing but {does}:"
                f" {in_percent(share(whole - exposed, whole))} of"
                f" all {'its ' if several else ''}{what} was hidden behind {behind}."
            )
            details, action, numbers = self._advice(worst, kind)
            findings.append(
                Finding(
                    of_size(severity, exposed),
                    sentence,
                    (Evidence(f"exposed {what}", None, exposed, "ns"), self.longest[worst, kind]),
                    f"device_use.exposed_{what}",
                    numbers=self.base.figures_of(exposed)
                    | {"hidden_percent": share(whole - exposed, whole), "device": worst}
                    | numbers,
                    gain=self._gain(worst, kind, exposed),
                    action=action,
                    details=details,
                )
            )
        return findings

    def _gain(self, device: int, kind: int, exposed: int) -> Gain:
        """Return what is won if none of it is left, by hiding it and by making it shorter.

        It can exceed the computation that could hide it: messages can be smaller, the link faster,
        and other ranks earlier.
        """
        if kind == COPY and self.copies.get(device) == WITHIN_DEVICE:
            return Gain(exposed, at_most=True, how="there are none")
        time = self.by_device[device]
        hidden = _exposed(time, kind)[1] - exposed
        how = how_nothing_is_left(max(time.compute_ns - hidden, 0), exposed)
        if kind == COMMUNICATION:
            return gain_shared_by(*self.exposed_calls[device], exposed, how, launched=True)
        return Gain(exposed, at_most=True, how=how)

    def _advice(self, device: int, kind: int) -> tuple[str, str, dict[str, float]]:
        """Return where it runs or what it is, how computation could hide it, and the figures."""
        of, time = self.copies.get(device), self.by_device[device]
        whole_ns, shares_stream = _exposed(time, kind)[1], self.shares_stream.get((device, kind))
        # Whether there is as much computation as communication or copies.
        can_hide = time.compute_ns >= whole_ns
        against = f"({in_words(time.compute_ns, 'ns')} against {in_words(whole_ns, 'ns')})."
        if kind == COMMUNICATION:
            if shares_stream:
                details = "It runs on a stream that also computes."
                return details, _SEPARATE.format("communication"), {}
            if not can_hide:
                details = (
                    "It runs on its own stream, and takes longer than all computation, which"
                    f" therefore cannot hide all of it {against}"
                )
                return details, "", {"computing_ns": time.compute_ns, "communication_ns": whole_ns}
            action = "Computation can hide communication if it starts earlier or in smaller parts."
            return "It runs on its own stream.", action, {}
        if of == WITHIN_DEVICE:
            details = (
                "Most of this time is in copies within the device. They come from clones,"
                " changes of layout and concatenation, or fill the inputs of device graphs."
            )
            return details, "Reduce the number of copies within the device.", {}
        pageable = (
            "Most of this time is in copies to or from pageable memory, for which the host waits."
        )
        if not can_hide:
            details = (
                "Copies take longer than all computation, which therefore cannot hide all of them"
                f" {against}"
            )
            action = "Copy less data, such as in a smaller type."
            if of == PAGEABLE:
                details = f"{pageable} {details}"
                action = "With pinned memory, these copies are faster."
            return details, action, {"computing_ns": time.compute_ns, "copying_ns": whole_ns}
        if of == PAGEABLE:
            action = "With pinned memory and non_blocking=True, computation can hide copies."
            return pageable, action, {}
        if shares_stream:
            return "", _SEPARATE.format("copies"), {}
        action = "Computation can hide copies if they start earlier, for example by prefetching."
        return "They run on their own stream.", action, {}

    def tables(self) -> list[Table]:
        """Tables of the time of each device, and of each stream; the verdict has that of all."""
        of, tables = f"of {self.base.label}", list[Table]()
        if len(self.devices) > 1:
            tables.append(
                Table.of(
                    "Devices",
                    [_NamedTime(f"device {name}", time) for name, time in self.by_device.items()],
                    ("name", "device", ""),
                    ("time.compute_ns", "computing", "ns"),
                    ("time.exposed_communication_ns", "communicating, nothing else", "ns"),
                    ("time.exposed_copy_ns", "copying, nothing else", "ns"),
                    ("time.idle_ns", "idle", "ns"),
                    ("time.span_ns", "all", "ns"),
                    ("time.communication_ns", "communication", "ns"),
                    ("time.copy_ns", "copies", "ns"),
                    note=f"Each of {self.base.label}.",
                )
            )
        streams = [
            _NamedTime(f"device {device}, stream {stream}", time)
            for (device, stream), time in self.by_stream.items()
        ]
        tables.append(
            Table.of(
                "Streams",
                sorted(streams, key=lambda stream: -stream.time.busy_ns),
                ("name", "stream", ""),
                ("time.busy_ns", "busy", "ns"),
                (lambda stream: share(stream.time.busy_ns, self.base.whole_ns), of, "%"),
                ("time.compute_ns", "computing", "ns"),
                ("time.communication_ns", "communication", "ns"),
                ("time.copy_ns", "copies", "ns"),
                note=f"Two or more were busy at once for {in_words(self.overlap_ns, 'ns')}."
                f" {self._note()}",
            )
        )
        return tables

    def _note(self) -> str:
        span = in_words(self.span_ns, "ns")
        note = f"From the first device event to the end of the last: {span}."
        if self.custom_comm_ns:
            note += (
                f" {in_words(self.custom_comm_ns, 'ns')} of communication are in kernels that are"
                " not NCCL's, RCCL's or HCCL's."
            )
        if self.without_launch:
            note += (
                f" {self.without_launch:,} of its events ({in_words(self.before_window_ns, 'ns')})"
                " were launched outside the trace; they are included."
            )
        return note


class _NamedTime(NamedTuple):
    """A row of the tables of devices and streams."""

    name: str
    time: DeviceTime


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
    for number in values_of(stream):
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
