"""Determines what a trace without a device spent its time on, in one word and one sentence."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec import structs

from stagespan.pages.amounts import in_percent, in_words
from stagespan.pages.result import share, shortened
from stagespan.trace.analyses import host
from stagespan.trace.analyses.kernel_rows import KernelRows, kernel_rows
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.idle_causes import COMMUNICATES
from stagespan.trace.derived.launch_sources import stage_calls
from stagespan.trace.derived.missing import (
    no_device_events,
    steps_without_operators,
    unrecorded_device,
)
from stagespan.trace.derived.threads import named
from stagespan.trace.derived.windows import BaseWindow
from stagespan.trace.evidence import window_of
from stagespan.trace.read.groups import grouped, values_of
from stagespan.trace.read.intervals import exclusive
from stagespan.trace.read.model import Trace

COMPUTING = "computing"
COMMUNICATION = "communication-bound"
DATA = "data-bound"
OUTSIDE = "outside operators"
OVERHEAD = "overhead-bound"
COMPILING = "compiling"
IN_STAGES = "in stages"
HOST_VERDICTS: dict[str, tuple[str, ...]] = {
    COMPUTING: (host.OPERATORS,),
    COMMUNICATION: (host.COMMUNICATING,),
    DATA: (host.DATA_LOADING, host.LOADER_START),
    OUTSIDE: (host.OTHER, host.UNSEEN, host.BETWEEN_STEPS),
    OVERHEAD: (host.BETWEEN_OPERATORS,),
    COMPILING: (host.COMPILING,),
    IN_STAGES: (),
}
"""The verdicts on a host, each with the parts of its time that support it."""
IN_STAGE, NO_STAGE = "in_stage", "no_stage"
STAGE_PARTS = {IN_STAGE: "in a stage", NO_STAGE: "in no stage"}
"""The parts of the time of a trace that contains only stages."""
_MOST_NAMED = 2
# Percent of the time in all stages: stages that take less are not named.
_LEAST_STAGE_PERCENT = 5.0


class HostVerdict(msgspec.Struct, frozen=True):
    """The verdict on the host; times in ns."""

    verdict: str
    sentence: str
    base: BaseWindow
    parts_ns: dict[str, int]
    """By part of `host.PARTS` or `STAGE_PARTS`, the longest first; they sum to the whole time."""
    times_ns: dict[str, int]
    """The time that supports each verdict, the most first."""


def host_verdict(trace: Trace) -> HostVerdict | None:
    """Return the verdict on a trace without a device, or None if it shows nothing of the host.

    The operators decide. A trace without operators, such as one of `stagespan dump`, has a verdict
    about its stages.
    """
    if len(device_work(trace).rows):
        return None
    found = host.analyze(trace)
    if isinstance(found, host.Host) and found.span_ns:
        return _of_operators(trace, found)
    return _of_stages(trace)


def _of_operators(trace: Trace, host_times: host.Host) -> HostVerdict:
    times = {
        name: sum(host_times.parts.get(part, 0) for part in parts)
        for name, parts in HOST_VERDICTS.items()
    }
    times = {name: time for name, time in sorted(times.items(), key=lambda i: -i[1]) if time}
    word = next(iter(times))
    sentence = _SENTENCES[word](trace, host_times, f"for {host_times.base.part(times[word])}")
    sentence = " ".join(filter(None, (sentence, host_times.base.split)))
    device = unrecorded_device(trace)
    if device is not None:
        sentence = (
            f"Host only: the program used a device ({device}), but {no_device_events(trace)}."
            f" {sentence}"
        )
    return HostVerdict(
        verdict=word,
        sentence=sentence,
        base=host_times.base,
        parts_ns=dict(sorted(host_times.parts.items(), key=lambda item: -item[1])),
        times_ns=times,
    )


def _computes(trace: Trace, host_times: host.Host, time: str) -> str:
    work = kernel_rows(trace)
    kinds = work.kinds(_MOST_NAMED) if isinstance(work, KernelRows) else []
    return f"Computes: {', '.join(kinds)} of the operators' time; {time} operators ran."


def _waits(trace: Trace, host_times: host.Host, time: str) -> str:
    events = trace.events
    which = trace.rows_of(["user_annotation", "cpu_op"]) & named(trace, COMMUNICATES)
    total = np.bincount(events.name[which], weights=events.dur_ns[which])
    name = shortened(trace.names[int(total.argmax())], 60)
    return f"Waits for {name}: {time} the program communicated while no operator ran."


def _loads(trace: Trace, host_times: host.Host, time: str) -> str:
    return f"Loads data: {time} the program loaded data or started its data loader."


def _is_outside(trace: Trace, times: host.Host, time: str) -> str:
    parts = [times.filled.get(part, {}) for part in HOST_VERDICTS[OUTSIDE]]
    inside: dict[str, int] = {}
    for name, spent in (item for part in parts for item in part.items()):
        inside[name] = inside.get(name, 0) + spent
    if not inside:
        return f"Outside operators: {time} no operator ran, and the trace does not show why."
    name = max(inside, key=lambda each: inside[each])
    whole = sum(times.parts.get(part, 0) for part in HOST_VERDICTS[OUTSIDE])
    where = host.filled_mostly(name, inside[name], whole)
    return f"Outside operators: {time} no operator ran, {where}."


def _prepares(trace: Trace, result: host.Host, time: str) -> str:
    return (
        f"Between operators: {time} the host was between two operators; the median of"
        f" {result.operators:,} operators takes {in_words(result.operator_ns, 'ns')}."
    )


def _compiles(trace: Trace, host_times: host.Host, time: str) -> str:
    operators = in_words(host_times.parts.get(host.OPERATORS, 0), "ns")
    return f"Compiles: {time} torch.compile compiled; operators ran for {operators}."


_SENTENCES = {
    COMPUTING: _computes,
    COMMUNICATION: _waits,
    DATA: _loads,
    OUTSIDE: _is_outside,
    OVERHEAD: _prepares,
    COMPILING: _compiles,
}


def _of_stages(trace: Trace) -> HostVerdict | None:
    events = trace.events
    marks = stage_calls(trace) if len(events) else None
    if marks is None:
        return None
    begin, end = events.begin_ns[marks.rows], events.end_ns[marks.rows]
    own = exclusive(begin, end, marks.thread)
    times: dict[str, int] = {}
    for each in grouped(events.name[marks.rows].astype(np.int64), own):
        times[trace.names[each.code]] = each.time_ns
    if not sum(times.values()):
        return None
    threads = len(values_of(marks.thread))
    empty = steps_without_operators(trace)
    of_stages = verdict_on_stages(
        times,
        (int(begin.min()), int(end.max())),
        int(exclusive(begin, end, np.zeros(len(begin), dtype=np.int64)).sum()),
        "" if threads == 1 else f" in {threads:,} threads",
        (window_of(trace) or (0, 0))[0],
    )
    return (
        of_stages
        if empty is None
        else structs.replace(of_stages, sentence=f"{of_stages.sentence} {empty}")
    )


def verdict_on_stages(
    times_ns: dict[str, int],
    window: tuple[int, int],
    covered_ns: int,
    where: str = "",
    origin_ns: int = 0,
) -> HostVerdict:
    """Return the verdict on stages, whose times (without the stages inside them) are known.

    For `covered_ns` of the window, at least one stage was open. `where` follows the word "stages".
    The window's times count from `origin_ns`.
    """
    total = sum(times_ns.values())
    order = sorted(times_ns, key=lambda name: -times_ns[name])[: _MOST_NAMED + 1]
    listed = [
        f"{shortened(name, 60)} {in_percent(share(times_ns[name], total))}"
        for name in order
        if share(times_ns[name], total) >= _LEAST_STAGE_PERCENT
    ]
    base = BaseWindow.between(*window, origin_ns)
    parts = {IN_STAGE: covered_ns, NO_STAGE: base.whole_ns - covered_ns}
    return HostVerdict(
        verdict=IN_STAGES,
        sentence=(
            f"In stages: {', '.join(listed) or 'none takes 5 %'} of {in_words(total, 'ns')} in all"
            f" stages{where}, each without the stages inside it."
        ),
        base=base,
        parts_ns={name: time for name, time in sorted(parts.items(), key=lambda i: -i[1]) if time},
        times_ns={IN_STAGES: base.whole_ns},
    )
