"""Removes or corrects what cannot be true in a trace, before any figure is computed.

Everything that is changed is counted: `Trace.left_out` for events that are removed,
`Trace.adjusted` for events that are kept with another duration, and `Trace.ignored_ns` for the time
that is not used. `Trace.doubtful` contains the intervals in which the device's work is unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np

from stagespan.trace.read.groups import pairs
from stagespan.trace.read.intervals import Mask, Numbers, Rows
from stagespan.trace.read.model import MISSING, Trace

NO_DURATION = "device event without a valid duration"
FAR = "event far outside of all others"
FAR_DEVICES = "event of a device, all of which are far outside of all others"
ENDS_FAR = "duration that ends far outside of all events, cut"
COVERING = "device event that covers later events of its stream"
CUT = "device event that covers later events of its stream, cut"
LONG_NAME = "name of more than 16,384 characters, cut"
RANGE_CUT = "range that overlaps another one a little, cut"

# The causes that the scanner counts when it replaces a duration by 0.
ABSENT, NEGATIVE = "no duration, taken as 0", "negative duration, taken as 0"
# No profile has a pause of this length, and clocks that are not set are off by years.
_FAR_NS = 3_600 * 10**9
# In a trace that begins an hour after another clock's zero, such a pause may be real, so it must
# also be long compared with the trace.
_FAR_TIMES = 10
# Ten years; no trace is as long.
_MOST_NS = 10 * 365 * 86_400 * 10**9
# Events are outside of all others if they are at most this part of all: a quarter.
_MOST_PART = 4
# A time of exactly 0 was probably never set, so a shorter distance is enough.
_UNSET_NS = 10**9
# No program pauses for a month: clocks that are not set are off by years.
_MONTH_NS = 30 * 86_400 * 10**9
# Clocks of devices, traces in whole microseconds and programmatic dependent launches make
# neighbours of a stream overlap by some microseconds.
_NEIGHBOURS_NS = 10_000
# An event that is cut may be this many times as long as the longest event of its name.
_LONGEST_TIMES = 2
# Ranges overlap by mistake if it is less than this, and than this part of both.
_RANGES_NS = 10_000
_RANGES_PART = 100
_LONGEST_NAME = 16_384
# The most open ranges with which one is compared.
_MOST_OPEN = 8
LAUNCH_SUFFIXES = ("_runtime", "_driver")
"""How the categories of calls of a runtime or driver end."""
ASCEND_DEVICE = "Ascend Hardware"
"""The name of the process in which torch_npu.profiler shows the device's streams."""
_ASCEND_COMMUNICATION = frozenset({"HCCL", "Communication"})
# How Ascend's task types of kernels begin. Older versions of CANN write "Other" for most of them.
_ASCEND_COMPUTES = re.compile(r"^(?:AI_|AIC|AIV|MIX_|DSA_)")
# Types, and names of tasks, that do not compute: waits, marks, copies, communication.
_ASCEND_IDLES = re.compile(
    r"(?:wait|record|notify|event)(?:_v\d+)?(?:[_ ]sqe)?$|dma(?:[_ ]sqe)?$"
    r"|^(?:write[_ ]value|place_?holder|notify|event_|memcpy|memset|hcom|hccl|communication"
    r"|profiling|model_|cmo|barrier|label_?|stream_|cond_|reduce[_ ]inline)",
    re.IGNORECASE,
)
_ASCEND_COMMUNICATES = re.compile(
    r"^(?:notify|write[_ ]value|rdma|sdma$|hcom|hccl|communication|reduce[_ ]inline)", re.IGNORECASE
)
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events")
_RANGES = ("user_annotation", "gpu_user_annotation")
_STEP = re.compile(r"^ProfilerStep[#*]")


class _Work:
    """A trace, and what is changed in it. Rows are those of `trace.events`."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.begin_ns = trace.events.begin_ns
        self.dur_ns = trace.events.dur_ns
        """Durations; replaced by a copy before the first change."""
        self.on_device = _on_device(trace)
        self.keep: Mask = np.ones(len(trace.events), dtype=np.bool_)
        self.unknown: Mask = np.zeros(len(trace.events), dtype=np.bool_)
        """The device events whose duration is not known."""
        self.left_out: Counter[str] = Counter(trace.left_out)
        self.adjusted: Counter[str] = Counter(trace.adjusted)
        self.ignored_ns: Counter[str] = Counter()
        self.doubtful: list[Numbers] = []
        self.near: Mask | None = None
        """The instants that are not far away; None if all are near."""

    def leave_out(self, cause: str, rows: Rows) -> None:
        """Remove events, and count them."""
        if len(rows):
            self.keep[rows] = False
            self.left_out[cause] += len(rows)

    def cut(self, cause: str, rows: Rows, dur_ns: Numbers) -> None:
        """Shorten events, and count them and the time that is not used."""
        if len(rows) == 0:
            return
        if self.dur_ns is self.trace.events.dur_ns:
            self.dur_ns = self.dur_ns.copy()
        self.adjusted[cause] += len(rows)
        # These sums of Python's integers cannot overflow.
        self.ignored_ns[cause] += sum((self.dur_ns[rows] - dur_ns).tolist())
        self.dur_ns[rows] = dur_ns

    def result(self) -> Trace:
        """Return the trace with the changes, or the trace itself if there are none."""
        trace = self.trace
        events, instants, arguments = trace.events, trace.instants, dict(trace.arguments)
        if self.dur_ns is not events.dur_ns:
            events = replace(events, dur_ns=self.dur_ns)
        if not self.keep.all():
            events = events.chosen(self.keep)
            arguments["events"] = arguments["events"].chosen(self.keep)
        if self.near is not None:
            instants = instants.chosen(self.near)
            arguments["instants"] = arguments["instants"].chosen(self.near)
        names, cut = _short_names(trace.names)
        if cut:
            self.adjusted[LONG_NAME] += cut
        elif events is trace.events and instants is trace.instants:
            return trace
        none = np.empty(0, dtype=np.int64)
        return replace(
            trace,
            events=events,
            instants=instants,
            arguments=arguments,
            names=names,
            left_out=dict(self.left_out),
            adjusted={cause: count for cause, count in self.adjusted.items() if count},
            ignored_ns={cause: time for cause, time in self.ignored_ns.items() if time},
            doubtful=np.concatenate(self.doubtful) if self.doubtful else trace.doubtful,
            # Rows may have other numbers now, and these are handled.
            no_duration=none,
            negative_duration=none,
        )


def plausible(trace: Trace) -> Trace:
    """Return the trace without what cannot be true; the trace itself if nothing is wrong."""
    if len(trace.events) == 0:
        return trace
    work = _Work(trace)
    _leave_out_far_begins(work)
    _find_invalid_durations(work)
    _cut_far_ends(work)
    _check_streams(work)
    _cut_ranges(work)
    return work.result()


def _short_names(names: list[str]) -> tuple[list[str], int]:
    """Return names of a length that does not slow down the analyses, and how many were longer."""
    cut = sum(len(name) > _LONGEST_NAME for name in names)
    return ([name[:_LONGEST_NAME] for name in names] if cut else names), cut


def _on_device(trace: Trace) -> Mask:
    """Which events ran on a stream of a device, one after another."""
    rows: Mask = trace.rows_of(_ON_DEVICE)
    return rows | ascend_kernels(trace) if ASCEND_DEVICE in trace.process_names.values() else rows


def ascend_kernels(trace: Trace) -> Mask:
    """Which events are kernels of an Ascend device.

    Besides the tasks of known types, those of other types are kernels, unless their type or name is
    that of a wait, a mark, a copy or communication, or their stream only communicates.
    """
    events = trace.events
    pids = [pid for pid, name in trace.process_names.items() if name == ASCEND_DEVICE]
    on_device: Mask = events.pid.having(pids) & (events.task_type >= 0)
    computes_by_type = _matching(trace.names, _ASCEND_COMPUTES)[events.task_type]
    idles = _matching(trace.names, _ASCEND_IDLES)
    unknown = on_device & ~computes_by_type & ~idles[events.task_type] & ~idles[events.name]
    kernels: Mask = on_device & computes_by_type
    if not unknown.any():
        return kernels
    talks = _matching(trace.names, _ASCEND_COMMUNICATES)
    talks = on_device & (talks[events.task_type] | talks[events.name])
    streams, of_stream = pairs(events.pid.all(), events.tid.all())
    computes, communicates = (np.zeros(len(streams), dtype=np.bool_) for _ in range(2))
    computes[of_stream[kernels]], communicates[of_stream[talks]] = True, True
    return kernels | (unknown & (computes | ~communicates)[of_stream])


def is_ascend_idle(task_type: str, name: str) -> bool:
    """Whether a task of a table is a wait, a mark or a copy, by its type or name."""
    if _ASCEND_COMPUTES.search(task_type):
        return False
    return any(_ASCEND_IDLES.search(each) for each in (task_type, name))


def ascend_collectives(trace: Trace) -> Mask:
    """Which events are collectives of an Ascend device, in the threads of the groups of ranks."""
    events = trace.events
    # All groups of a process are handled at once, because a trace can name any number of groups.
    by_process: dict[int, list[int]] = {}
    for (pid, tid), name in trace.thread_names.items():
        if name.startswith("Group") and trace.process_names.get(pid) in _ASCEND_COMMUNICATION:
            by_process.setdefault(pid, []).append(tid)
    collectives: Mask = np.zeros(len(events), dtype=np.bool_)
    for pid, tids in by_process.items():
        collectives |= events.pid.having([pid]) & events.tid.having(tids)
    return collectives


def _matching(names: list[str], pattern: re.Pattern[str]) -> Mask:
    """Which of the names match, with one more element that does not, for the code -1."""
    return np.array([*(pattern.search(name) is not None for name in names), False], dtype=np.bool_)


def _leave_out_far_begins(work: _Work) -> None:
    """Leave out events whose begin is far from that of all others: years away, or 0."""
    trace, begin = work.trace, work.begin_ns
    low, high = int(begin.min()), int(begin.max())
    zero = trace.base_ns or 0
    if low == zero < high:
        unset = begin == zero
        first, last = int(begin[~unset].min()), int(work.dur_ns[unset].max()) + zero
        is_few = _MOST_PART * np.count_nonzero(unset) <= len(unset)
        # Even most events are left out if they are far away and the others have more time.
        if first - last > _FAR_NS:
            is_few |= int(work.dur_ns[unset].sum()) <= int(work.dur_ns[~unset].sum())
            instants = trace.instants.begin_ns
            if is_few and (far := instants < first - _FAR_NS).any():
                work.near = ~far
                work.left_out[FAR] += int(far.sum())
        if not is_few or first - last < max(_UNSET_NS, high - first):
            # A device event without a length at the very time 0 has no time at all.
            unset &= work.on_device & (work.dur_ns == 0)
        _leave_out_far(work, unset, first - zero)
        low = first
    if high - low > _FAR_NS:
        kept = begin[work.keep]
        main = _most_time(kept, work.dur_ns[work.keep]) or _main_group(kept, zero)
        if main is not None:
            first, last = main
            outside = work.keep & ((begin < first) | (begin > last))
            times = begin[outside]
            _leave_out_far(work, outside, int(np.maximum(first - times, times - last).max()))
            instants = trace.instants.begin_ns
            far = (instants < first - _FAR_NS) | (instants > last + _FAR_NS)
            if far.any():
                near = np.ones(len(far), dtype=np.bool_) if work.near is None else work.near
                work.left_out[FAR] += int((far & near).sum())
                work.near = near & ~far


def _leave_out_far(work: _Work, which: Mask, away_ns: int) -> None:
    rows = np.flatnonzero(which)
    if len(rows) == 0:
        return
    on_device = work.on_device[rows]
    device, others = rows[on_device], rows[~on_device]
    if (work.on_device & work.keep & ~which).any():
        device, others = device[:0], rows
    for cause, far in ((FAR, others), (FAR_DEVICES, device)):
        if len(far):
            work.leave_out(cause, far)
            work.ignored_ns[cause] = max(work.ignored_ns[cause], away_ns)
    work.doubtful.append(_after_launches(work, rows[on_device]))


def _after_launches(work: _Work, rows: Rows) -> Numbers:
    """Return when device events without a time may have run: from their launch to the next event.

    Events whose launch is unknown are left out.
    """
    trace, events = work.trace, work.trace.events
    calls = np.array([name.endswith(LAUNCH_SUFFIXES) for name in [*trace.categories, ""]])
    missing = events.correlation[rows]
    chosen = calls[events.category] & work.keep
    chosen &= events.correlation.exist() & events.correlation.having(missing)
    launched = np.sort(events.begin_ns[chosen])
    ran = np.sort(events.begin_ns[work.on_device & work.keep])
    following = np.searchsorted(ran, launched, side="right")
    known = following < len(ran)
    return np.stack((launched[known], ran[following[known]]), axis=1)


def _main_group(begin: Numbers, zero: int) -> tuple[int, int] | None:
    """Return the first and last time of most events, if few others are far away; otherwise None.

    Events at the time `zero` are never the majority, because their times were probably not set.
    """
    ordered = np.sort(begin, kind="stable")
    ends = np.flatnonzero(np.diff(ordered) > _FAR_NS)
    firsts = np.concatenate(([0], ends + 1))
    lasts = np.concatenate((ends, [len(ordered) - 1]))
    largest = int(np.argmax(np.where(ordered[lasts] == zero, -1, lasts - firsts)))
    first, last = int(firsts[largest]), int(lasts[largest])
    low, high = int(ordered[first]), int(ordered[last])
    # Groups at a smaller distance belong to it.
    reach = max(_FAR_NS, _FAR_TIMES * (high - low))
    while first > 0 and low - int(ordered[first - 1]) <= reach:
        first = int(firsts[np.searchsorted(firsts, first - 1, side="right") - 1])
        low = int(ordered[first])
    while last + 1 < len(ordered) and int(ordered[last + 1]) - high <= reach:
        last = int(lasts[np.searchsorted(lasts, last + 1)])
        high = int(ordered[last])
    far = len(ordered) - (last - first + 1)
    return (low, high) if 0 < _MOST_PART * far <= len(ordered) else None


def _most_time(begin: Numbers, dur: Numbers) -> tuple[int, int] | None:
    """Return the first and last begin of the events with the most time, if others are far away.

    None if all events are within a month of their neighbours.
    """
    order = np.argsort(begin, kind="stable")
    ordered = begin[order]
    firsts = np.concatenate(([0], np.flatnonzero(np.diff(ordered) > _MONTH_NS) + 1))
    if len(firsts) == 1:
        return None
    # A duration that is longer may be as wrong as the times.
    times = np.add.reduceat(np.clip(dur[order], 0, _FAR_NS).astype(np.float64), firsts)
    at = int(np.argmax(times))
    last = int(firsts[at + 1]) if at + 1 < len(firsts) else len(ordered)
    return int(ordered[firsts[at]]), int(ordered[last - 1])


def _find_invalid_durations(work: _Work) -> None:
    """Note the device events whose duration is absent or negative; on the host it counts as 0."""
    trace = work.trace
    for cause, rows in ((ABSENT, trace.no_duration), (NEGATIVE, trace.negative_duration)):
        rows = rows[work.on_device[rows]]
        work.unknown[rows] = True
        work.adjusted[cause] -= len(rows)


def _cut_far_ends(work: _Work) -> None:
    """Correct durations that end far after all other events, such as those of unfinished calls."""
    begin, dur, keep = work.begin_ns, work.dur_ns, work.keep
    if int(dur.max()) <= _FAR_NS:
        return
    low, high = int(begin[keep].min()), int(begin[keep].max())
    margin = min(max(_FAR_NS, _FAR_TIMES * (high - low)), _MOST_NS)
    # No side of the comparison exceeds 64 bits.
    far = keep & (dur - margin > high - begin)
    if not far.any():
        return
    others = keep & ~far
    last = max(high, int((begin[others] + dur[others]).max())) if others.any() else high
    rows = np.flatnonzero(far & ~work.on_device)
    work.cut(ENDS_FAR, rows, last - begin[rows])
    # An event of a device is examined with its stream, where its end may be known.
    work.unknown |= far & work.on_device


def _check_streams(work: _Work) -> None:
    """Correct device events that run over later events of their stream.

    A stream runs one event after another, and only neighbours can overlap. Such an event is cut
    where the next one begins, unless that is much later than other events of its name last: then
    its duration is unknown, and it is left out.
    """
    rows = np.flatnonzero(work.on_device & work.keep)
    if len(rows) == 0:
        return
    trace = work.trace
    order, of_stream, following, second = _later(trace, rows)
    rows = rows[order]
    begin, dur = work.begin_ns[rows], work.dur_ns[rows]
    covers = (second >= 0) & (dur - (begin[second] - begin) > _NEIGHBOURS_NS)
    # The last but one has only one later event, but it cannot contain it.
    longer = dur - dur[following] - _NEIGHBOURS_NS
    covers |= (following >= 0) & (dur[following] > 0) & (longer > begin[following] - begin)
    if covers.any():
        # If most events of a stream overlap, it does not run one event after another.
        counts = np.bincount(of_stream)
        covers &= (2 * np.bincount(of_stream[covers], minlength=len(counts)) <= counts)[of_stream]
    suspect = covers | work.unknown[rows]
    if not suspect.any():
        return
    longest = np.zeros(len(trace.names) + 1, dtype=np.int64)
    np.maximum.at(longest, trace.events.name[rows[~suspect]], dur[~suspect])
    at = np.flatnonzero(suspect)
    has_next = following[at] >= 0
    until = np.where(has_next, begin[following[at]], begin[at])
    new = until - begin[at]
    is_usual = new <= _LONGEST_TIMES * longest[trace.events.name[rows[at]]]
    cut = has_next & (dur[at] > 0) & is_usual
    work.cut(CUT, rows[at[cut]], new[cut])
    work.leave_out(COVERING, rows[at[~cut & covers[at]]])
    work.leave_out(NO_DURATION, rows[at[~cut & ~covers[at]]])
    work.ignored_ns[COVERING] += sum(dur[at[~cut & covers[at]]].tolist())
    work.doubtful.append(np.stack((begin[at], until), axis=1)[has_next])


def _later(trace: Trace, rows: Rows) -> tuple[Rows, Numbers, Rows, Rows]:
    """Return the order of some events by stream and begin, and for each place in this order the
    number of the stream, and two later events.

    These are the next one that begins later in the stream, and the one after it, as places in the
    order; -1 if there is none.
    """
    events = trace.events
    stream, tid, device = events.stream[rows], events.tid[rows], events.device[rows]
    _, of_device = pairs(events.pid[rows], device)
    _, of_stream = pairs(of_device, np.where(stream == MISSING, tid, stream))
    begin = events.begin_ns[rows]
    order: Rows = np.lexsort((begin, of_stream)).astype(np.intp)
    of_stream, begin = of_stream[order], begin[order]
    count = len(rows)
    new = np.ones(count, dtype=np.bool_)
    new[1:] = (of_stream[1:] != of_stream[:-1]) | (begin[1:] != begin[:-1])
    starts = np.flatnonzero(new)
    following = np.append(starts, count)[np.cumsum(new)]

    def within(place: Rows) -> Rows:
        inside = place < count
        inside[inside] = of_stream[place[inside]] == of_stream[inside]
        return np.where(inside, place, -1)

    return order, of_stream, within(following), within(following + 1)


def _ranges(trace: Trace) -> Mask:
    """Which events are ranges and steps. Old profilers mark steps as operators."""
    rows: Mask = trace.rows_of(_RANGES)
    steps = np.array([_STEP.match(name) is not None for name in [*trace.names, ""]])
    if steps.any():
        rows = rows | (steps[trace.events.name] & trace.rows_of(["cpu_op"]))
    return rows


def _cut_ranges(work: _Work) -> None:
    """Cut ranges that cross by a time that is small against both.

    If one ends a little after the next begins, it is cut there. If one ends a little after the one
    around it, it is cut at that end.
    """
    events = work.trace.events
    rows = np.flatnonzero(_ranges(work.trace) & work.keep & (work.dur_ns > 0))
    if len(rows) < 2:
        return
    _, thread = pairs(events.pid[rows], events.tid[rows])
    begin, dur = work.begin_ns[rows], work.dur_ns[rows]
    order = np.lexsort((-dur, begin, thread))
    rows, thread, begin = rows[order], thread[order], begin[order]
    end = begin + dur[order]
    ends = end.tolist()
    opened: list[int] = []
    last = -1
    for at, (own, start) in enumerate(zip(thread.tolist(), begin.tolist(), strict=True)):
        if own != last:
            opened, last = [], own
        while opened and ends[opened[-1]] <= start:
            opened.pop()
        # Others may cross by more, so several that are open are compared.
        for around in opened[: -_MOST_OPEN - 1 : -1]:
            if not start < ends[around] < ends[at]:
                continue
            overlap, excess = ends[around] - start, ends[at] - ends[around]
            length = min(ends[around] - int(begin[around]), ends[at] - start)
            if _is_little(overlap, length):
                ends[around] = start
            elif _is_little(excess, length):
                ends[at] = ends[around]
        opened.append(at)
    new = np.array(ends, dtype=np.int64)
    cut = np.flatnonzero(new != end)
    work.cut(RANGE_CUT, rows[cut], new[cut] - begin[cut])


def _is_little(time_ns: int, length_ns: int) -> bool:
    return time_ns < _RANGES_NS and time_ns * _RANGES_PART < length_ns
