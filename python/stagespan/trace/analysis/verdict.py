"""What bounds the device's time: one word, and the figure that says so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stagespan.trace.analysis import causes
from stagespan.trace.analysis.device_time import DeviceTime, device_rows, device_times, together
from stagespan.trace.analysis.idle import split_gaps, sums_by_cause
from stagespan.trace.analysis.result import Finding, Nothing, Table, in_words, many, share
from stagespan.trace.model import Trace

LAUNCH_BOUND = "launch-bound"
COMPUTE_BOUND = "compute-bound"
COMMUNICATION_BOUND = "communication-bound"
COPY_BOUND = "copy-bound"
HOST_BOUND = "host-bound"
CANNOT_TELL = "cannot tell"
VERDICTS = (
    LAUNCH_BOUND,
    COMPUTE_BOUND,
    COMMUNICATION_BOUND,
    COPY_BOUND,
    HOST_BOUND,
    CANNOT_TELL,
)

_IDLE = {
    LAUNCH_BOUND: (causes.LAUNCH,),
    HOST_BOUND: tuple(cause for cause in causes.STARVED if cause != causes.LAUNCH),
    CANNOT_TELL: tuple(cause for cause in causes.CAUSES if cause not in causes.STARVED),
}
_ROWS = {CANNOT_TELL: "idle, no cause on the host seen"}
_IDLE_BESIDE = "{it} {was} idle while another device worked"
_REASONS = {
    COMPUTE_BOUND: "{it} computed",
    COMMUNICATION_BOUND: "{it} communicated while nothing computed",
    COPY_BOUND: "{it} copied while nothing else ran",
    LAUNCH_BOUND: "{it} {was} idle because {cause}",
    HOST_BOUND: "{it} {was} idle because of the host, most of it because {cause}",
    CANNOT_TELL: (
        "{it} {was} idle without a cause on the host that the trace shows: mostly, {cause}"
    ),
}
# A device that worked for less of the trace is not told about by itself.
_LEAST_DEVICE = 10.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict; times in ns, of several devices the sums of theirs."""

    verdict: str
    span_ns: int
    time_ns: int
    """The time that the verdict rests on."""
    times_ns: dict[str, int]
    """By verdict the time that speaks for it, the most first; they sum to `span_ns`."""
    cause: str | None
    """Of a verdict on idle time the largest cause, else None; None too where a device was mostly
    idle while another one worked.
    """
    devices: int = 1
    differs: tuple[str, ...] = ()
    """Of several devices those that spent their time otherwise, each as a sentence."""

    @property
    def sentence(self) -> str:
        """The verdict with its figure."""
        name = self.verdict[0].upper() + self.verdict[1:]
        one = self.devices == 1
        whose = "the device's" if one else f"the {self.devices} devices'"
        reason = _REASONS[self.verdict]
        if self.verdict == CANNOT_TELL and self.cause is None:
            reason = _IDLE_BESIDE
        said = reason.format(
            it="it" if one else "they",
            was="was" if one else "were",
            cause=causes.CAUSES.get(self.cause or ""),
        )
        sentence = (
            f"{name}: for {in_words(self.time_ns, 'ns')} of {whose}"
            f" {in_words(self.span_ns, 'ns')}{'' if one else ' together'}"
            f" ({share(self.time_ns, self.span_ns):.1f} %) {said}."
        )
        if self.differs:
            sentence += f" Not so {self.differs[0]}"
            more = len(self.differs) - 1
            sentence += f"; and {many(more, 'other device')}." if more else "."
        return sentence

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "span_us": self.span_ns / 1000,
            "time_us": self.time_ns / 1000,
            "percent": share(self.time_ns, self.span_ns),
            "times_us": {name: time / 1000 for name, time in self.times_ns.items()},
            "cause": self.cause,
        }

    def findings(self) -> list[Finding]:
        """None: the verdict says where to look, not that something is wrong."""
        return []

    def tables(self) -> list[Table]:
        """The times that speak for each verdict."""
        rows = [
            (_ROWS.get(name, name), time, share(time, self.span_ns))
            for name, time in self.times_ns.items()
        ]
        return [
            Table("Verdict", (("", ""), ("time", "ns"), ("of all", "%")), rows, self.sentence),
        ]


def analyze(trace: Trace) -> Verdict | Nothing:
    """Weigh the device's busy times and the causes of its idle time; Nothing without a device.

    The device's largest kind of time decides: computing, exposed communication, exposed copies or
    idle; of idle time the largest group of causes. Several devices are weighed by their sums.
    """
    devices = device_times(trace)
    if not devices:
        return Nothing(
            "Cannot tell: the trace has no device events, so what bounds the device is unknown."
        )
    whole = together(devices.values())
    if whole.busy_ns == 0:
        return Nothing(
            "Cannot tell: the trace's device events have no duration, so what bounds the device is"
            " unknown."
        )
    by_cause, between = _idle_by_cause(trace)
    # Devices are idle while another works, too; why is not looked at.
    beside = whole.idle_ns + between - sum(by_cause.values())
    busy, idle_ns = _busy(whole), whole.idle_ns + between
    waiting = {name: sum(by_cause.get(cause, 0) for cause in of) for name, of in _IDLE.items()}
    waiting[CANNOT_TELL] += beside
    several = len(devices) > 1
    # Where devices are at odds, what could be won comes first.
    most = max(busy, key=lambda name: (busy[name], several and name != COMPUTE_BOUND))
    verdict = most
    if idle_ns > busy[most]:
        verdict = max(waiting, key=lambda name: waiting[name])
    times = busy | waiting
    cause = next((cause for cause in by_cause if cause in _IDLE.get(verdict, ())), None)
    if verdict == CANNOT_TELL and beside > by_cause.get(cause or "", 0):
        cause = None
    return Verdict(
        verdict=verdict,
        span_ns=whole.span_ns + between,
        time_ns=times[verdict],
        times_ns={n: t for n, t in sorted(times.items(), key=lambda item: -item[1]) if t},
        cause=cause,
        devices=len(devices),
        differs=_differing(devices, verdict) if several else (),
    )


def _busy(time: DeviceTime) -> dict[str, int]:
    return {
        COMPUTE_BOUND: time.compute_ns,
        COMMUNICATION_BOUND: time.exposed_communication_ns,
        COPY_BOUND: time.exposed_copy_ns,
    }


def _idle_by_cause(trace: Trace) -> tuple[dict[str, int], int]:
    """Idle time by cause, the longest first, and how much of it is between devices' times.

    A gap, in which no device works, counts for each device that has worked before and works after
    it; for one, where there is no such device.
    """
    found, parts = split_gaps(trace)
    events = trace.events
    begun, ended = [], []
    ends = events.end_ns
    for rows in device_rows(trace).values():
        begun.append(events.begin_ns[rows].min())
        ended.append(ends[rows].max())
    # No device ends within a gap: one that has ended by its begin is over, each other goes on.
    times = np.searchsorted(np.sort(begun), found.begin_ns, side="right")
    times -= np.searchsorted(np.sort(ended), found.begin_ns, side="right")
    between = int(found.dur_ns[times == 0].sum())
    weighed = parts.parts * np.maximum(times, 1)[:, np.newaxis]
    return sums_by_cause(replace(parts, parts=weighed)), between


def _most(times: dict[str, int], wanted: str) -> str:
    """Where most time went; of equal ones `wanted`."""
    return max(times, key=lambda name: (times[name], name == wanted))


def _differing(devices: dict[int, DeviceTime], verdict: str) -> tuple[str, ...]:
    """The devices that spent most of their time otherwise than the verdict says."""
    longest = max(time.span_ns for time in devices.values())
    found = []
    for device, time in devices.items():
        times = _busy(time) | {"": time.idle_ns}
        wanted = verdict if verdict in times else ""
        own = _most(times, wanted)
        if own == wanted or share(time.span_ns, longest) < _LEAST_DEVICE:
            continue
        did = _REASONS[own].format(it="it") if own else "it was idle"
        found.append(
            f"device {device}: for {in_words(times[own], 'ns')} of its"
            f" {in_words(time.span_ns, 'ns')} ({share(times[own], time.span_ns):.1f} %) {did}"
        )
    return tuple(found)
