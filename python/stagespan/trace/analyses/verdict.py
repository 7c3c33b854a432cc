"""Determines what limits the program, in one word and one figure."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from msgspec import structs

from stagespan.pages.amounts import counted, in_percent, in_words
from stagespan.pages.figures import Internal, Ns, one_of
from stagespan.pages.result import (
    Bar,
    BarPart,
    Block,
    Line,
    StructResult,
    Table,
    Unavailable,
    share,
    shortened,
)
from stagespan.trace.analyses import host
from stagespan.trace.analyses.host_verdict import (
    COMMUNICATION,
    HOST_VERDICTS,
    IN_STAGE,
    IN_STAGES,
    OUTSIDE,
    STAGE_PARTS,
    HostVerdict,
    host_verdict,
)
from stagespan.trace.analyses.idle_time import (
    FINISHING,
    IDLE_CAUSES,
    PREPARATION,
    base_idle,
    gaps_by_cause,
)
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.device_time import DeviceTime, device_rows, device_times, together
from stagespan.trace.derived.gaps import Gaps, gaps
from stagespan.trace.derived.missing import not_of_torch, steps_without_operators
from stagespan.trace.derived.step_ranges import step_ranges
from stagespan.trace.derived.step_times import steps_without_work
from stagespan.trace.derived.windows import BaseWindow, base_window
from stagespan.trace.read.model import Trace

LAUNCH_BOUND = "launch-bound"
# The trace does not show whether arithmetic or memory is the limit: see `trace.nsight`.
DEVICE_BUSY = "device-busy"
COMMUNICATION_BOUND = COMMUNICATION
COPY_BOUND = "copy-bound"
HOST_BOUND = "host-bound"
WAIT_BOUND = "wait-bound"
CANNOT_TELL = "cannot tell"
# Only parts of the time, never the verdict.
PROFILER, ONCE, EARLIER_WORK = "profiler", "once", "earlier work"
VERDICTS = (
    LAUNCH_BOUND,
    DEVICE_BUSY,
    COMMUNICATION_BOUND,
    COPY_BOUND,
    HOST_BOUND,
    WAIT_BOUND,
    CANNOT_TELL,
    PROFILER,
    ONCE,
    EARLIER_WORK,
    *(name for name in HOST_VERDICTS if name != COMMUNICATION),
)

_NEVER = {
    ONCE: ("once-only", "the program did what it does once", "Begin the trace after a warm-up."),
    EARLIER_WORK: (
        "earlier work",
        "the host waited for work that the trace does not contain",
        "Synchronise the device before the trace begins.",
    ),
    PROFILER: (
        "profiler",
        "the profiler itself took the time",
        "This time is lost only under the profiler.",
    ),
}
"""The parts of the time that are never the verdict: names, what happened, and what to do."""
OTHER_DEVICE_BUSY = "other_device_busy"
BUSY_PARTS = {
    "computing": DEVICE_BUSY,
    "communicating": COMMUNICATION_BOUND,
    "copying": COPY_BOUND,
}
"""The parts of a busy device's time, and the verdict that each supports."""
VERDICT_PARTS = tuple(
    dict.fromkeys((*BUSY_PARTS, *IDLE_CAUSES, OTHER_DEVICE_BUSY, *host.PARTS, *STAGE_PARTS))
)
"""The parts of the devices' time or, on a trace without a device, of the host's time."""
_HOST_BUSY = {
    host.OPERATORS: ("computing", "computing"),
    IN_STAGE: ("in a stage", "computing"),
    host.COMMUNICATING: ("communicating", "communicating"),
    host.DATA_LOADING: ("loading data", "copying"),
    host.LOADER_START: ("starting the data loader", "copying"),
}
"""The parts that are not drawn as idle, each with its name and the key of its colour."""
_HOST_DRAWN = {
    host.COMPILING: "compiling",
    host.BETWEEN_OPERATORS: "pauses",
}
"""The others that have a name, so that the rest is that of the verdict `OUTSIDE`."""

_EDGES = (PREPARATION, FINISHING)
_DRAWN = ((PREPARATION, "preparing"), (FINISHING, "finishing"))
_ON_HOST = (*_EDGES, *causes.causes_of("host"))
_FAMILIES = {
    HOST_BOUND: _ON_HOST,
    WAIT_BOUND: (*causes.causes_of("device"), OTHER_DEVICE_BUSY),
    CANNOT_TELL: (causes.NOT_TRACED,),
    PROFILER: (causes.PROFILER,),
    ONCE: causes.causes_of("once"),
    EARLIER_WORK: (causes.EARLIER_WORK,),
}
"""The causes of idle time that support each verdict; `HOST_BOUND` may be `LAUNCH_BOUND`."""
_PART_WORDS = {
    "computing": "computing",
    "communicating": "communicating, nothing else",
    "copying": "copying, nothing else",
    OTHER_DEVICE_BUSY: "idle while another device worked",
    **{cause: f"idle: {words}" for cause, words in IDLE_CAUSES.items()},
}
_WHILE_OTHER_BUSY = "{it} {was} idle while another device worked"
_REASONS = {
    DEVICE_BUSY: "{it} computed",
    COMMUNICATION_BOUND: "{it} communicated while nothing computed",
    COPY_BOUND: "{it} copied while nothing else ran",
    LAUNCH_BOUND: "{it} {was} idle because of the host, mostly because {cause}",
    HOST_BOUND: "{it} {was} idle because of the host, mostly because {cause}",
    WAIT_BOUND: "{it} {was} idle although work had been launched, mostly because {cause}",
    CANNOT_TELL: "{it} {was} idle, and the trace does not show why",
}
# Percent: devices that worked for less of the trace are not mentioned separately.
_LEAST_DEVICE = 10.0
# A cause is named with its figure if it is below this part of the verdict's time.
_OTHER = 0.99
# Percent of the whole: lost time that takes at least this part decides, even if the device computes
# for longer.
_MUCH = 25.0
# Percent of the whole: the bar has no separate part for less preparation.
_LEAST_EDGE = 5.0


_Name = Annotated[str, one_of(VERDICTS)]


def analyze(trace: Trace) -> Verdict | Unavailable:
    """Determine the verdict from busy and idle times; without a device, from those of the host.

    Causes of idle time count by family: those on the host, and those of work that was launched in
    time. The largest loss (idle time of a family, exposed communication, exposed copies) decides
    if it takes more time than computing, or a quarter of all time. Otherwise the device is busy.
    The profiler's own time does not count, nor what a program does once. Times are summed over
    devices. They cover the steps, or the whole trace if it has no steps.
    """
    base = base_window(trace)
    if base is None or len(device_work(trace).rows) == 0:
        of_host = host_verdict(trace)
        if of_host is None:
            why = (
                steps_without_operators(trace)
                or not_of_torch(trace)
                or "The trace contains no device events, operators or stages."
            )
            reason = f"Cannot tell: {why[0].lower()}{why[1:]}"
            return Unavailable(reason, "no_device", verdict=CANNOT_TELL)
        return verdict_of_host(of_host)
    devices = device_times(trace, (base.begin_ns, base.end_ns))
    whole = together(devices.values())
    if whole.busy_ns == 0:
        return Unavailable(
            "Cannot tell: the trace's device events have no duration, so what bounds the device is"
            " unknown.",
            "no_durations",
            verdict=CANNOT_TELL,
        )
    of_base = base_idle(trace)
    assert of_base is not None
    idle = of_base.by_cause
    spans = _spans(trace)
    parts = {name: _busy(whole)[of] for name, of in BUSY_PARTS.items()}
    parts |= {cause: time * len(devices) for cause, time in idle.items()}
    # Devices are also idle while another one works. The causes of this are not examined.
    parts[OTHER_DEVICE_BUSY] = whole.idle_ns - sum(idle.values()) * len(devices)
    parts = {name: time for name, time in sorted(parts.items(), key=lambda p: -p[1]) if time}
    on_host = {cause: parts[cause] for cause in _ON_HOST if cause in parts}
    is_launching = 2 * on_host.get(causes.LAUNCH, 0) > sum(on_host.values())
    host_word = LAUNCH_BOUND if is_launching else HOST_BOUND
    families = {
        host_word if name == HOST_BOUND else name: {
            cause: parts[cause] for cause in of if cause in parts
        }
        for name, of in _FAMILIES.items()
    }
    times = _busy(whole) | {name: sum(of.values()) for name, of in families.items()}
    several, total = len(devices) > 1, base.whole_ns * len(devices)
    edges = 0 if base.steps else sum(on_host.get(cause, 0) for cause in _EDGES)
    counted_ns = total - sum(times[part] for part in _NEVER)
    verdict = _decided(times, counted_ns, several, {host_word: edges})
    ranges = step_ranges(trace)
    without = 0 if ranges is None else len(steps_without_work(trace))
    steps = 0 if ranges is None else len(ranges)
    if 2 * without > steps:
        verdict = CANNOT_TELL
    cause = next((part for part in parts if part in families.get(verdict, {})), None)
    result = Verdict(
        verdict=verdict,
        sentence="",
        on_device=True,
        base=base,
        whole_ns=total,
        span_ns=sum(end - begin for begin, end in spans.values()) + _between(gaps(trace), spans),
        time_ns=times[verdict],
        percent=share(times[verdict], total),
        times_ns={n: t for n, t in sorted(times.items(), key=lambda item: -item[1]) if t},
        parts_ns=parts,
        cause=None if cause == OTHER_DEVICE_BUSY else cause,
        preparing=of_base.preparing,
        gaps=gaps_by_cause(of_base.parts),
        devices=len(devices),
        differs=_differing(spans, devices, verdict) if several else (),
        steps_without_events=(without, steps),
    )
    return structs.replace(result, sentence=_sentence(result))


class Verdict(StructResult, frozen=True):
    """The verdict; times in ns, summed over all devices; without a device, those of the host."""

    verdict: _Name
    sentence: str
    """The verdict with its figure."""
    on_device: bool
    """Whether the verdict is about devices and not about the host."""
    base: BaseWindow
    """The time to which it refers."""
    whole_ns: Ns
    """The length of the base times the number of devices."""
    span_ns: Ns
    """The time from a device's first event to its last, summed over devices, and the time between
    them."""
    time_ns: Ns
    """The time that supports the verdict."""
    percent: float
    """Of `whole_ns`."""
    times_ns: dict[_Name, Ns]
    """The time that supports each verdict, the most first; they sum to `whole_ns`."""
    parts_ns: dict[Annotated[str, one_of(VERDICT_PARTS)], Ns]
    """The time by part of `VERDICT_PARTS`, the longest first; they sum to `whole_ns`."""
    cause: Annotated[str, one_of(IDLE_CAUSES)] | None
    """The largest cause, for a verdict on idle time. None for other verdicts, and if a device was
    mostly idle while another one worked."""
    preparing: str | None
    """The host's activity for most of the time before the device's first work."""
    gaps: Internal[dict[str, int]] = msgspec.field(default_factory=dict)
    """The number of gaps by their largest cause; {} without a device."""
    devices: Internal[int] = 1
    differs: Internal[tuple[str, ...]] = ()
    """A sentence for each device that spent its time differently."""
    steps_without_events: Internal[tuple[int, int]] = (0, 0)
    """The number of steps whose device events are missing, and of all steps."""

    def title(self) -> tuple[str, str]:
        """The verdict, and the sentence with its figure."""
        if not self.on_device:
            return self.sentence.partition(": ")[0], self.sentence
        leading = self.leading()
        return _NEVER[leading[0]][0] if leading else self.verdict, self.sentence

    def leading(self) -> list[str]:
        """The parts of `times_ns` that are never the verdict, if one of them is its largest part.

        The verdict refers to the rest.
        """
        parts = [part for part in self.times_ns if part in _NEVER]
        if not parts or self.times_ns[parts[0]] <= max(
            time for part, time in self.times_ns.items() if part not in _NEVER
        ):
            return []
        return [each for each in parts if share(self.times_ns[each], self.whole_ns) >= _LEAST_EDGE]

    def head(self) -> list[Block]:
        """The sentence, and the parts of the time as a bar."""
        return [Line(self.sentence, "strong"), self.bar()]

    def bar(self) -> Bar:
        """The parts of the time, which sum to `whole_ns`.

        Preparation and the time after the last work count as idle time if they are short, and what
        is never the verdict if the headline does not begin with it.
        """
        if not self.on_device:
            busy = [
                BarPart(_HOST_BUSY[part][0], time, _HOST_BUSY[part][1])
                for part, time in self.parts_ns.items()
                if part in _HOST_BUSY
            ]
            drawn = [
                BarPart(word, self.parts_ns.get(part, 0), "idle")
                for part, word in _HOST_DRAWN.items()
                if self.verdict == OUTSIDE
                or share(self.parts_ns.get(part, 0), self.whole_ns) >= _LEAST_EDGE
            ]
            other_ns = self.whole_ns - sum(part.time_ns for part in (*busy, *drawn))
            parts = [*busy, BarPart("other", other_ns, "idle"), *drawn]
            return Bar("Host", [part for part in parts if part.time_ns])
        parts_busy = [BarPart(name, self.parts_ns.get(name, 0), name) for name in BUSY_PARTS]
        times = [(word, self.parts_ns.get(name, 0)) for name, word in _DRAWN]
        times += [(_NEVER[part][0], self.times_ns[part]) for part in self.leading()]
        edges = [
            BarPart(word, time, "idle")
            for word, time in times
            if share(time, self.whole_ns) >= _LEAST_EDGE
        ]
        idle_ns = self.whole_ns - sum(part.time_ns for part in (*parts_busy, *edges))
        parts = [*parts_busy, BarPart("idle", idle_ns, "idle"), *edges]
        return Bar("Device", [part for part in parts if part.time_ns], self.devices)

    def tables(self) -> list[Table]:
        """The parts of the time, with the causes of idle time."""
        if self.on_device:
            words, of = _PART_WORDS, f"of {self.base.label}"
        else:
            of = "of all" if self.verdict == IN_STAGES else f"of {self.base.label}"
            words = host.PARTS | STAGE_PARTS
        rows = [
            (
                words[name],
                self._supported_verdict(name),
                time,
                share(time, self.whole_ns),
                self.gaps.get(name) or None,
            )
            for name, time in self.parts_ns.items()
        ]
        columns = (("", ""), ("verdict", ""), ("time", "ns"), (of, "%"), ("gaps", ""))
        of_all = f" The times are sums over {self.devices} devices." if self.devices > 1 else ""
        table = Table("Verdict", columns, rows, f"{self.sentence}{of_all}")
        return [table.filled(("", "verdict", "time", of))]

    def _supported_verdict(self, part: str) -> str:
        """Return the verdict that a part supports."""
        if not self.on_device:
            return next((name for name, of in HOST_VERDICTS.items() if part in of), self.verdict)
        if part in BUSY_PARTS:
            return BUSY_PARTS[part]
        family = next((name for name, of in _FAMILIES.items() if part in of), CANNOT_TELL)
        is_launching = family == HOST_BOUND and LAUNCH_BOUND in self.times_ns
        return LAUNCH_BOUND if is_launching else family


def verdict_of_host(of_host: HostVerdict) -> Verdict:
    """Return the verdict on a trace without a device."""
    whole, time = of_host.base.whole_ns, of_host.times_ns[of_host.verdict]
    return Verdict(
        verdict=of_host.verdict,
        sentence=of_host.sentence,
        on_device=False,
        base=of_host.base,
        whole_ns=whole,
        span_ns=whole,
        time_ns=time,
        percent=share(time, whole),
        times_ns=of_host.times_ns,
        parts_ns=of_host.parts_ns,
        cause=None,
        preparing=None,
    )


_ONE = {"it": "the device", "was": "was", "They": "It", "have": "has", "them": "it"}
_SEVERAL = {"it": "the devices", "was": "were", "They": "They", "have": "have", "them": "them"}


def _sentence(verdict: Verdict) -> str:
    """Return the verdict on devices with its figure, and what limits it."""
    without, steps = verdict.steps_without_events
    if 2 * without > steps:
        return (
            f"Cannot tell: {without:,} of the {counted(steps, 'step')} have no device events,"
            " so what the device did in them is unknown."
        )
    leading = verdict.leading()
    rest_ns = verdict.whole_ns - sum(verdict.times_ns[part] for part in leading)
    sentences = [_of_part(verdict, part, at == 0) for at, part in enumerate(leading)]
    sentences.append(_with_its_figure(verdict, rest_ns))
    computing = verdict.times_ns.get(DEVICE_BUSY, 0)
    if verdict.verdict != DEVICE_BUSY and computing:
        they = (_ONE if verdict.devices == 1 else _SEVERAL)["They"]
        percent = share(computing, rest_ns)
        of = " of that" if leading else ""
        took = f"{in_words(computing, 'ns')}{of} ({in_percent(percent)})"
        sentences.append(f"{they} computed for {took}.")
    for part in () if leading else (ONCE, EARLIER_WORK):
        time = verdict.times_ns.get(part, 0)
        if (percent := share(time, verdict.whole_ns)) >= _LEAST_EDGE:
            took = f"{in_words(time, 'ns')} ({in_percent(percent)})"
            sentences.append(f"For {took} {_NEVER[part][1]}.")
    sentences.append(verdict.base.split)
    if verdict.base.unrecorded_ns:
        sentences.append(
            f"Before that, the device was busy for {in_words(verdict.base.unrecorded_ns, 'ns')}"
            " with earlier work that the trace does not contain."
        )
    if without:
        words = _ONE if without == 1 else _SEVERAL
        sentences.append(
            f"{without:,} of the {counted(steps, 'step')} {words['have']} no device events: what"
            f" the device did in {words['them']} is unknown."
        )
    if verdict.differs:
        sentences.append(f"This does not apply to {verdict.differs[0]}.")
    if more := len(verdict.differs[1:]):
        sentences.append(f"It also does not apply to {counted(more, 'other device')}.")
    return " ".join(filter(None, sentences))


def _of_part(verdict: Verdict, part: str, first: bool) -> str:
    """Return a part that is larger than the verdict with its figure, and what to do."""
    time, (word, did, action) = verdict.times_ns[part], _NEVER[part]
    name = f"{word[0].upper()}{word[1:]}: for" if first else "For"
    of = f" of {_whose(verdict)}" if first else ""
    percent = share(time, verdict.whole_ns)
    return f"{name} {in_words(time, 'ns')}{of} ({in_percent(percent)}) {did}. {action}"


def _whose(verdict: Verdict) -> str:
    """Return what the shares refer to, with its length."""
    if verdict.devices == 1:
        return verdict.base.whose
    whole = in_words(verdict.whole_ns, "ns")
    return f"{whole}, {verdict.devices} devices times {verdict.base.whose}"


def _with_its_figure(verdict: Verdict, rest_ns: int) -> str:
    name = verdict.verdict[0].upper() + verdict.verdict[1:]
    reason = _REASONS[verdict.verdict]
    if verdict.verdict == WAIT_BOUND and verdict.cause is None:
        reason = _WHILE_OTHER_BUSY
    words = _ONE if verdict.devices == 1 else _SEVERAL
    reason = reason.format(**words, cause=_cause_in_words(verdict))
    of, percent = verdict.base.whose, f"{in_percent(share(verdict.time_ns, rest_ns))}"
    if rest_ns < verdict.whole_ns:
        of = f"the other {in_words(rest_ns, 'ns')}"
    elif verdict.devices > 1:
        percent = f"{percent}; {verdict.devices} devices times {of}"
        of = in_words(verdict.whole_ns, "ns")
    return f"{name}: for {in_words(verdict.time_ns, 'ns')} of {of} ({percent}) {reason}."


def _cause_in_words(verdict: Verdict) -> str:
    if verdict.cause is None:
        return ""
    words = IDLE_CAUSES[verdict.cause]
    more = []
    if verdict.parts_ns[verdict.cause] < _OTHER * verdict.time_ns:
        more.append(in_words(verdict.parts_ns[verdict.cause], "ns"))
    if verdict.cause == PREPARATION and verdict.preparing is not None:
        more.append(f"mostly in {shortened(verdict.preparing, 90)}")
    return f"{words} ({', '.join(more)})" if more else words


def _decided(times: dict[str, int], whole_ns: int, several: bool, at_edges: dict[str, int]) -> str:
    """Return the verdict for times by verdict.

    `at_edges` is the part of a loss before the device's first and after its last work, if that may
    only be the start or the end of the trace. Such time alone does not count as much.
    """
    causes = {n: time for n, time in times.items() if n not in (CANNOT_TELL, *_NEVER)}
    computing = causes.pop(DEVICE_BUSY)
    most = max(causes, key=lambda name: causes[name])
    # The sums over devices that communicate and others that compute say nothing about each of them.
    of_each = not several or most not in BUSY_PARTS.values()
    if of_each and share(causes[most] - at_edges.get(most, 0), whole_ns) >= _MUCH:
        return most
    if times[CANNOT_TELL] > max(causes[most], computing):
        return CANNOT_TELL
    # If devices differ, the verdict is the one with time that can be saved.
    more = causes[most] > computing or (several and causes[most] == computing)
    return most if more else DEVICE_BUSY


def _busy(time: DeviceTime) -> dict[str, int]:
    return {
        DEVICE_BUSY: time.compute_ns,
        COMMUNICATION_BOUND: time.exposed_communication_ns,
        COPY_BOUND: time.exposed_copy_ns,
    }


def _spans(trace: Trace) -> dict[int, tuple[int, int]]:
    """Return, by device, the start of its first event and the end of its last."""
    events = trace.events
    return {
        device: (int(events.begin_ns[rows].min()), int(events.end_ns[rows].max()))
        for device, rows in device_rows(trace).items()
    }


def _between(gaps: Gaps, spans: dict[int, tuple[int, int]]) -> int:
    """Return the time between the spans of devices that run one after the other."""
    inside = np.zeros(len(gaps.begin_ns), dtype=np.bool_)
    for begin, end in spans.values():
        inside |= (gaps.begin_ns >= begin) & (gaps.end_ns <= end)
    return int(gaps.dur_ns[~inside].sum())


def _most(times: dict[str, int], preferred: str) -> str:
    """Return the part with the most time; `preferred` if it is one of several equal ones."""
    return max(times, key=lambda name: (times[name], name == preferred))


def _differing(
    spans: dict[int, tuple[int, int]], devices: dict[int, DeviceTime], verdict: str
) -> tuple[str, ...]:
    """Return the devices for which the verdict does not hold."""
    lengths = {device: end - begin for device, (begin, end) in spans.items()}
    longest = max(lengths.values())
    steps = []
    for device, time in devices.items():
        times = _busy(time) | {"": time.idle_ns}
        preferred = verdict if verdict in times else ""
        most = _most(times, preferred)
        agrees = most == preferred or (
            preferred != DEVICE_BUSY and share(times[preferred], time.span_ns) >= _MUCH
        )
        if agrees or share(lengths[device], longest) < _LEAST_DEVICE:
            continue
        did = _REASONS[most].format(it="it") if most else "it was idle"
        steps.append(
            f"device {device}: for {in_words(times[most], 'ns')} of its"
            f" {in_words(time.span_ns, 'ns')} ({in_percent(share(times[most], time.span_ns))})"
            f" {did}"
        )
    return tuple(steps)
