"""What bounds the device's time: one word, and the figure that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stagespan.trace.analysis import causes
from stagespan.trace.analysis.idle import split_gaps, sums_by_cause
from stagespan.trace.analysis.result import Finding, Nothing, Table, in_words, share
from stagespan.trace.device_use import device_use
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
_REASONS = {
    COMPUTE_BOUND: "it computed",
    COMMUNICATION_BOUND: "it communicated while nothing computed",
    COPY_BOUND: "it copied while nothing else ran",
    LAUNCH_BOUND: "it was idle because {cause}",
    HOST_BOUND: "it was idle because of the host, most of it because {cause}",
    CANNOT_TELL: "it was idle without a cause on the host that the trace shows: mostly, {cause}",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict; times in ns."""

    verdict: str
    span_ns: int
    time_ns: int
    """The time that the verdict rests on."""
    times_ns: dict[str, int]
    """By verdict the time that speaks for it, the most first; they sum to `span_ns`."""
    cause: str | None
    """Of a verdict on idle time the largest cause, else None."""

    @property
    def sentence(self) -> str:
        """The verdict with its figure."""
        name = self.verdict[0].upper() + self.verdict[1:]
        return (
            f"{name}: for {in_words(self.time_ns, 'ns')} of the device's"
            f" {in_words(self.span_ns, 'ns')} ({share(self.time_ns, self.span_ns):.1f} %)"
            f" {_REASONS[self.verdict].format(cause=causes.CAUSES.get(self.cause or ''))}."
        )

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
    idle; of idle time the largest group of causes.
    """
    use = device_use(trace)
    if use.span_ns is None or use.idle_ns is None:
        return Nothing(
            "Cannot tell: the trace has no device events, so what bounds the device is unknown."
        )
    _, parts = split_gaps(trace)
    by_cause = sums_by_cause(parts)
    busy = {
        COMPUTE_BOUND: use.compute_ns or 0,
        COMMUNICATION_BOUND: use.exposed_communication_ns or 0,
        COPY_BOUND: use.exposed_copy_ns or 0,
    }
    waiting = {name: sum(by_cause.get(cause, 0) for cause in of) for name, of in _IDLE.items()}
    most = max(busy, key=lambda name: busy[name])
    verdict = most
    if use.idle_ns > busy[most]:
        verdict = max(waiting, key=lambda name: waiting[name])
    times = busy | waiting
    return Verdict(
        verdict=verdict,
        span_ns=use.span_ns,
        time_ns=times[verdict],
        times_ns={n: t for n, t in sorted(times.items(), key=lambda item: -item[1]) if t},
        cause=next((cause for cause in by_cause if cause in _IDLE.get(verdict, ())), None),
    )
