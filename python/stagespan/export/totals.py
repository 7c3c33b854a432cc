"""The figures of several processes together, in a bounded number of series."""

from __future__ import annotations

import bisect
import math
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.export.exit_status import ENDS, End, Watch, how
from stagespan.export.families import FAMILIES, GAUGES, HISTOGRAMS, OF_QUANTILES, Family
from stagespan.export.figures import (
    BOUNDS_NS,
    OTHER,
    Counts,
    Names,
    ShownNames,
    figures_of,
)
from stagespan.export.parts import Part, Parts, Resource, by_reading
from stagespan.export.recent import WINDOW_S, Recent
from stagespan.export.requests import QUIET_NS, UNREAD, Taker
from stagespan.export.traces import Pending
from stagespan.live.span_kinds import KINDS, RUNS, Kind
from stagespan.process import imports
from stagespan.recording.backlog import Backlog
from stagespan.recording.reading import Recording, open_file
from stagespan.recording.segments import Segment, began_here
from stagespan.recording.spans import kinds_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_STAGES = 200
"""The most stages that are exported by name; the others are summed."""
MOST_UNITS = 100
MOST_PIPELINES = 200
_MOST_GROUPS = 256
_SHORTEST_PAUSE_S = 0.005
_COUNT_INTERVAL_S = 1.0
"""Between two times that what a process has recorded is added to the recent durations, unless these
are asked for."""
_ROOT, _REMOTE = (_core.ORIGINS.index(origin) for origin in ("root", "remote"))
"""The origins of requests that begin in a process (`began_here`)."""


class Group(NamedTuple):
    """The labels of a process."""

    service: str
    pipeline: str
    rank: str


class Exemplar(NamedTuple):
    """A request of a bucket of a histogram."""

    trace_id: str
    duration_ns: int
    end_ns: int


_NONE_ENDED = Counts({}, {"ended": {end: {"": 0} for end in ENDS}})

Exemplars = dict[tuple[Group, str, str], dict[int, Exemplar]]
"""By the group, the family, the stage or status, and the bucket."""
Series = dict[tuple[str, ...], float]
"""Values of a gauge by the values of its labels, of which those of the group are the last."""


class Gauges:
    """What is going on in live processes: the series of each family by its key."""

    def __init__(self) -> None:
        self.series: dict[str, Series] = {family.key: {} for family in GAUGES}

    def add(self, key: str, labels: tuple[str, ...], number: float) -> None:
        """Add to a series."""
        series = self.series[key]
        series[labels] = series.get(labels, 0) + number

    def raise_to(self, key: str, labels: tuple[str, ...], value: float) -> None:
        """Raise a series to a value."""
        series = self.series[key]
        series[labels] = max(series.get(labels, 0), value)

    def add_idle(self, group: Group, figures: Counts) -> None:
        """Add what has figures, with 0 if nothing is open."""
        for family in GAUGES:
            for labels in _idle(family, figures):
                self.add(family.key, (*labels, *group), 0)

    def groups(self) -> set[Group]:
        """Return the groups that have a series."""
        of_groups = (self.series[family.key] for family in GAUGES if family.has_group)
        return {Group(*labels[-len(Group._fields) :]) for series in of_groups for labels in series}


def _idle(family: Family, figures: Counts) -> set[tuple[str, ...]]:
    """Return the labels of the series of a gauge for which there are figures.

    What is not open has no age.
    """
    if family.age_of is not None:
        return set()
    return {
        (of.values(label)[-1],)
        for of in HISTOGRAMS
        # What is handed over waits in a queue.
        if of.kind in family.open_kinds or (of.key == "handoff" and "queue" in family.open_kinds)
        for label in figures.durations.get(of.key, {})
    }


def ended(end: End) -> Counts:
    """Return the figures of a process that has ended in a way."""
    return Counts({}, {"ended": {end: {"": 1}}})


class ReadProcess:
    """A process whose recording is read again and again."""

    def __init__(self, first: Recording, handle: int = -1) -> None:
        self.identity = first.identity
        self.handle = handle
        """Its open file, which stays readable after it was removed; -1 if no file of it may stay
        open."""
        self.inode = (0, 0)
        """The device and the number of the file."""
        self.path = first.path
        # Rounded far below the width of a bucket, so that it is the same for all processes.
        self.ns_per_tick = float(f"{first.snapshot().ns_per_tick:.4g}")
        self.resets = first.snapshot().resets
        self.group = group_of(first)
        self.figures = Counts({}, {})
        """Since the process began, or since its figures were last set to zero."""
        self.given = Counts({}, {})
        """The part of them that is already in the totals of another group."""
        self.latest = first
        self.used: Recording | None = None
        """The latest copy that `Totals.update` has taken."""
        self.counted: _core.Snapshot | None = None
        """The snapshot up to which its durations are among the recent ones."""
        self.counted_s = -math.inf
        """When that was taken."""
        self.taker = Taker()
        self.is_partial = False
        """Whether a part of its figures is not in its file."""
        self.has_ended = False
        """Whether it was read for the last time. It stays until its requests are sent."""
        self.observed = Counts({}, {})
        """The part of the figures that was counted here: what was lost before it was read."""
        self.noted_ns = 0
        """The Unix time until which its requests are among the exemplars."""
        self.longest_pause_s = math.inf
        """From the latest reading to the next one, so that no request or span is displaced before
        it is read."""
        self.read_at_s = -math.inf
        self._heads: list[int] = []
        self._marks = self._read_marks = b""
        self._watch = Watch(first, may_open=handle >= 0)

    def read(self, *, spans: bool) -> Recording:
        """Return a new copy, also if the file has been removed. Raises StagespanError.

        If nothing was recorded since the latest copy, and it was used completely, it is that one.
        """
        handle = self.handle if self.handle >= 0 else open_file(self.path)
        try:
            status = os.fstat(handle)
            if self.handle < 0 and (status.st_dev, status.st_ino) != self.inode:
                raise StagespanError(f"{self.path} was removed before it was read to its end.")
            marks = _core.recording_marks(handle)
            is_settled = not spans or self.taker.is_settled
            if marks and marks == self._marks and self.used is not None and is_settled:
                reused = self.used.reuse(handle)
                if reused is not None and reused.is_exact:
                    return reused
            self._read_marks = marks
            self.read_at_s = time.monotonic()
            if spans:
                self._heads = _core.recording_heads(handle)
            return Recording(self.path, everything=spans, handle=handle)
        finally:
            if handle != self.handle:
                os.close(handle)

    @property
    def rings(self) -> tuple[int, list[int], int]:
        """Its open file, and the spans of each ring up to the latest reading, and at most."""
        return self.handle, self._heads, self.latest.ring_spans

    def accept(self, copy: Recording) -> None:
        """Take what `read` has returned as the latest copy."""
        self.latest = self.used = copy
        self._marks = self._read_marks

    def end(self) -> None:
        """Read it no more, and close its file."""
        if not self.has_ended:
            end = how(self.latest, self._watch.status()) if self.latest.has_gone else "unknown"
            self.figures.raise_to(ended(end))
        self._watch.close()
        self.has_ended = True
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def counts_of_group(self) -> Counts:
        """Return the figures that belong to the present group."""
        is_all = not (self.given.durations or self.given.amounts)
        return self.figures if is_all else self.figures.without(self.given)


def group_of(recording: Recording) -> Group:
    """Return the labels of a process."""
    rank = "" if recording.rank is None else str(recording.rank)
    return Group(recording.service, recording.pipeline, rank)


def resource_of(recording: Recording) -> Resource:
    """Return what is said of a process beside the parts of requests that ran in it."""
    return Resource(
        *group_of(recording),
        recording.pid,
        recording.host,
        recording.program,
        recording.identity,
        recording.name,
    )


def _pause_s(before: Recording | None, copy: Recording, new: int) -> float:
    """Return the most seconds until the next reading, from the rates since ``before``.

    Without one they are those since the process began. It is half of what the fastest thread needs
    to fill its ring, or the requests to fill their table, of which there are ``new`` ones; or up to
    three quarters, if it leaves `_core.RING_ENOUGH_S`.
    """
    if copy.read_ns is None:
        return math.inf
    since_ns = copy.begin_ns if before is None else before.read_ns or copy.begin_ns
    spans = {} if before is None else {one["thread"]: one["spans"] for one in before.threads()}
    fastest = max((one["spans"] - spans.get(one["thread"], 0) for one in copy.threads()), default=0)
    part = max(fastest / copy.ring_spans, new / copy.most_segments)
    if part <= 0:
        return math.inf
    full_s = (copy.read_ns - since_ns) / part / 1e9
    return max(full_s / 2, min(full_s - _core.RING_ENOUGH_S, full_s * 3 / 4), _SHORTEST_PAUSE_S)


def _latest(
    keys: NDArray[np.int64], begins_ns: NDArray[np.int64], ends_ns: NDArray[np.int64]
) -> list[int]:
    """Return the index of the latest item of each key and bucket of durations."""
    if not len(keys):
        return []
    numpy = imports.load("numpy")
    buckets = numpy.searchsorted(BOUNDS_NS, ends_ns - begins_ns, "right")
    of = keys << 8 | buckets
    order = numpy.lexsort((ends_ns, of))
    latest: list[int] = order[numpy.append(of[order][1:] != of[order][:-1], True)].tolist()
    return latest


class Totals:
    """The figures of processes that are read again and again, and of those that have ended."""

    def __init__(self, requests: Pending | None = None) -> None:
        """With ``requests``, the recordings must be read with their spans, which are put there."""
        self.requests = requests
        self.names = ShownNames(Names(MOST_STAGES), Names(MOST_UNITS), Names(MOST_PIPELINES))
        self.retained: dict[Group, Counts] = {}
        """The figures of processes that have ended, or that had other labels before."""
        self.groups: dict[Group, None] = {}
        self.exemplars: Exemplars = {}
        """The latest ones."""
        self._recent = Recent()

    def update(self, process: ReadProcess, copy: Recording, *, at_end: bool = False) -> None:
        """Take a new copy of a process's recording; with ``at_end`` the last one."""
        before = process.used
        process.accept(copy)
        if before is not None and copy.shares_copy_with(before):
            process.longest_pause_s = math.inf
            return
        if copy.is_exact or copy.has_gone:
            self._take(process, copy, at_end)
            if self.requests is not None:
                process.longest_pause_s = _pause_s(before, copy, process.taker.new)
        elif self.requests is not None:
            process.taker.look(copy)

    def _take(self, process: ReadProcess, copy: Recording, at_end: bool) -> None:
        resets = copy.snapshot().resets
        if resets != process.resets:
            self.fold(process)
            process.figures, process.given = Counts({}, {}), Counts({}, {})
            process.observed = Counts({}, {})
            process.resets = resets
        group = self.admitted(group_of(copy))
        if group != process.group:
            self.fold(process)
            process.given = Counts({}, {})
            process.given.add(process.figures)
            process.group = group
        self._take_requests(process, copy, at_end)
        if copy.has_gone or time.monotonic() - process.counted_s >= _COUNT_INTERVAL_S:
            self._count_recent(process)
        process.figures.raise_to(figures_of(copy, process.ns_per_tick, self.names))
        process.figures.raise_to(process.observed)
        process.figures.raise_to(_NONE_ENDED)

    def _count_recent(self, process: ReadProcess) -> None:
        copy, before = process.latest, process.counted
        now = process.counted = copy.snapshot()
        process.counted_s = time.monotonic()
        if before is not None:
            new = now.since(before)
        elif copy.read_ns is not None and copy.read_ns - copy.begin_ns < WINDOW_S * 1e9:
            new = now
        else:  # it is not known when it has recorded what it has by now
            return
        self._recent.add(process.counted_s, process.group, new, self.names)

    def _take_requests(self, process: ReadProcess, copy: Recording, at_end: bool) -> None:
        if self.requests is None:
            for one in copy.latest_requests(process.noted_ns):
                self._note_request(process.group, one)
            # Some may have ended while the copy was made.
            process.noted_ns = (copy.read_ns or QUIET_NS) - QUIET_NS
            return
        ended = process.taker.ended(copy, at_end=at_end)
        process.taker.count_spans(copy)
        self.requests.add(process.taker.parts(copy, resource_of(copy), ended) or ())
        missed = process.taker.missed
        process.observed.amounts["lost"] = {cause: {"": float(missed[cause])} for cause in UNREAD}

    def _note_request(self, group: Group, request: Segment) -> None:
        begin_ns, end_ns = request["received_ns"] or request["begin_ns"], request["end_ns"]
        if begin_ns is not None and end_ns is not None and began_here(request):
            label = Family.text(self.names.pipelines.label(request["pipeline"]), request["status"])
            self._note(group, "request", label, request["trace_id"], begin_ns, end_ns)

    def _note_parts(self, of: Parts, indices: list[int]) -> None:
        """Remember the latest request and the latest spans of each bucket, of some parts."""
        numpy = imports.load("numpy")
        group = self.admitted(Group(*of.resource[:3]))
        rows = of.segments.take(indices)
        began = (rows["origin"] == _ROOT) | (rows["origin"] == _REMOTE)
        began &= rows["parent_segment"] == 0
        began &= (rows["end_ns"] != _core.UNKNOWN_NS) & (
            (rows["received_ns"] != _core.UNKNOWN_NS) | (rows["begin_ns"] != _core.UNKNOWN_NS)
        )
        at = numpy.array(indices, "i8")[began]
        times_ns = of.begins_ns[at], of.ends_ns[at]
        keys = rows["pipeline"][began].astype("i8") << 3 | rows["status"][began]
        for i in _latest(keys, *times_ns):
            part = Part(of, int(at[i]))
            status = _core.STATUSES[rows["status"][began][i]]
            label = Family.text(self.names.pipelines.label(part.pipeline), status)
            self._note(group, "request", label, part.trace_id, part.begin_ns, part.end_ns)
        spans, of_part = of.rows_of(indices)
        is_queue = kinds_of(spans) == KINDS.index("queue")
        keys = spans["stage"].astype("i8") << 1 | is_queue
        for i in _latest(keys, spans["begin_ns"], spans["end_ns"]):
            begin_ns, end_ns = int(spans["begin_ns"][i]), int(spans["end_ns"][i])
            stage = self.names.stages.label(of.read.names[spans["stage"][i]])
            family = "queue" if is_queue[i] else "stage"
            self._note(group, family, stage, Part(of, int(of_part[i])).trace_id, begin_ns, end_ns)

    def _note(
        self, group: Group, family: str, label: str, trace: str | None, begin_ns: int, end_ns: int
    ) -> None:
        """Remember a request as the exemplar of its bucket."""
        if trace is not None:
            duration_ns = end_ns - begin_ns
            bucket = bisect.bisect_right(BOUNDS_NS, duration_ns)
            mine = self.exemplars.setdefault((group, family, label), {})
            if bucket not in mine or mine[bucket].end_ns < end_ns:
                mine[bucket] = Exemplar(trace, duration_ns, end_ns)

    def admitted(self, group: Group) -> Group:
        """Return the labels that a process is shown with."""
        if group in self.groups:
            return group
        if len(self.groups) >= _MOST_GROUPS:
            return Group(OTHER, OTHER, "")
        self.groups[group] = None
        return group

    def fold(self, process: ReadProcess) -> None:
        """Add the figures of a process that ends, or changes its labels, for good."""
        self.retained.setdefault(process.group, Counts({}, {})).add(process.counts_of_group())

    def complete(
        self, processes: Iterable[ReadProcess], now_ns: int, *, at_end: bool = False
    ) -> list[list[Part]]:
        """Return the requests that are complete now, and that are to be exported."""
        if self.requests is None:
            return []
        open_traces = [halves for process in processes for halves in process.taker.open_traces]
        complete = self.requests.complete(open_traces, now_ns, at_end=at_end)
        # The others have no trace to refer to.
        for of, indices in by_reading([part for parts in complete for part in parts]):
            self._note_parts(of, indices)
        return complete

    def sums(self, processes: Iterable[ReadProcess]) -> dict[Group, Counts]:
        """Return all figures by group."""
        sums: dict[Group, Counts] = {}
        for group, figures in self.retained.items():
            sums.setdefault(group, Counts({}, {})).add(figures)
        for process in processes:
            sums.setdefault(process.group, Counts({}, {})).add(process.counts_of_group())
        return sums

    def gauges(self, processes: Iterable[ReadProcess]) -> Gauges:
        """Return what is going on in live processes, as they were last read."""
        gauges = Gauges()
        gauges.add("unnamed", (), self.names.stages.others)
        processes = list(processes)
        for process in processes:
            if process.latest.is_exact:
                self._count_recent(process)
        for of, quantile, value_s in self._recent.quantiles(time.monotonic()):
            family = OF_QUANTILES[of.family]
            labels = *FAMILIES[of.family].values(of.label), quantile, *of.group
            gauges.add(family.key, labels, value_s)
        for group, figures in self.retained.items():
            gauges.add("up", (group.service,), 0)
            gauges.add_idle(group, figures)
        backlog = self._backlog(processes)
        for process in processes:
            gauges.add("up", (process.group.service,), not process.has_ended)
            gauges.add_idle(process.group, process.figures)
            if not process.has_ended:
                self._add_gauges(process, backlog, gauges)
        return gauges

    def _handed_over(
        self, processes: Iterable[ReadProcess]
    ) -> tuple[dict[str, Counter[Group]], Counter[str]]:
        """Return the messages that were sent, and how many of them have been accounted for.

        The former are by queue and group; of the latter, it is known that they were received, or
        counted as unknown.
        """
        sent: defaultdict[str, Counter[Group]] = defaultdict(Counter)
        received: Counter[str] = Counter()

        def add(group: Group, figures: Counts, sign: int) -> None:
            for queue, units in figures.amounts.get("sent", {}).items():
                sent[queue][group] += sign * int(units.get("", 0))
            for queue, histogram in figures.durations.get("handoff", {}).items():
                received[queue] += sign * histogram.below[-1]
            for queue, units in figures.amounts.get("unknown", {}).items():
                received[queue] += sign * int(units.get("", 0))

        for group, figures in self.retained.items():
            add(group, figures, 1)
        for process in processes:
            add(process.group, process.figures, 1)
            add(process.group, process.given, -1)
        return sent, received

    def _backlog(self, processes: Collection[ReadProcess]) -> Backlog:
        sent, received = self._handed_over(processes)
        queues = {
            name
            for figures in self.retained.values()
            for name in figures.durations.get("handoff", {})
        }

        def most(queue: str) -> int:
            label = self.names.stages.label(queue)
            return sum(sent[label].values()) - received[label]

        return Backlog([process.latest for process in processes], queues, most)

    def count_unknown(self, processes: Collection[ReadProcess], began_ns: int) -> None:
        """Count the messages that nobody has received, and whose requests have ended.

        All processes of this node must have been read since ``began_ns`` (Unix time). They are
        those that were sent up to then, without those that were received and those of open
        requests. A message that is received after its request has ended stays counted, until
        another one is lost.
        """
        sent, received = self._handed_over(processes)
        if any(received[queue] < sum(by_group.values()) for queue, by_group in sent.items()):
            backlog = self._backlog(processes)
            for process in processes:
                waiting = set(backlog.unreceived(process.latest))
                for message in process.latest.sent_messages():
                    if message in waiting or message.sent_ns > began_ns:
                        received[self.names.stages.label(message.queue)] += 1
        for queue, by_group in sent.items():
            group, _ = by_group.most_common(1)[0]
            # 0 at first, so that the first one is an increase.
            lost = max(sum(by_group.values()) - received[queue], 0)
            more = Counts({}, {"unknown": {queue: {"": lost}}})
            self.retained.setdefault(group, Counts({}, {})).add(more)

    def _add_gauges(self, process: ReadProcess, backlog: Backlog, gauges: Gauges) -> None:
        copy, group = process.latest, process.group

        def add(kind: Kind, name: str, since_ns: int | None) -> None:
            labels = (self.names.stages.label(name), *group)
            for family in GAUGES:
                if kind not in family.open_kinds:
                    continue
                if family.age_of is None:
                    gauges.add(family.key, labels, 1)
                elif since_ns is not None and copy.read_ns is not None:
                    gauges.raise_to(family.key, labels, max(copy.read_ns - since_ns, 0) / 1e9)

        for span in copy.open_spans():
            since_ns: int | None = span["begin_ns"]
            if span["kind"] in RUNS:  # a coroutine that is suspended does not run
                since_ns = copy.read_ns if span["suspended"] else span["active_ns"]
            add(span["kind"], span["stage"], since_ns)
        for segment in copy.open_segments:
            begin_ns = segment["begin_ns"]
            if begin_ns is None:
                add("queue", segment["queue"] or "", segment["received_ns"])
            elif copy.read_ns is not None and segment["origin"] == "root":
                age_s = max(copy.read_ns - begin_ns, 0) / 1e9
                gauges.raise_to("oldest", tuple(group), age_s)
        for message in backlog.waiting(copy):
            add("queue", message.queue, message.sent_ns)
        for name, value in copy.gauges().items():
            gauges.add("gauge", (self.names.units.label(name), *group), value)


class Exported:
    """Processes whose figures and requests are exported."""

    def __init__(self, totals: Totals) -> None:
        self._lock = threading.RLock()
        self._totals = totals
        self._processes: dict[str, ReadProcess] = {}
        """By identity."""
        self.losses: list[Callable[[], dict[str, int]]] = []
        """Functions that return what others have lost, by cause."""

    def complete(self, *, at_end: bool = False) -> list[list[Part]]:
        """Return the parts of each request that is complete and was chosen, each one once.

        ``at_end`` returns those that are not complete too.
        """
        with self._lock:
            return self._totals.complete(self._processes.values(), time.time_ns(), at_end=at_end)

    def live(self) -> dict[str, Recording]:
        """Return the latest copies of the processes that had not ended, by identity."""
        with self._lock:
            return {
                identity: one.latest
                for identity, one in self._processes.items()
                if not one.has_ended
            }

    def totals(self) -> dict[Group, Counts]:
        """Return the figures by group, of all processes that were read."""
        with self._lock:
            return self._totals.sums(self._processes.values())

    def lost(self) -> dict[str, int]:
        """Return what was lost besides what is in the figures, by cause."""
        lost: Counter[str] = Counter()
        for losses in self.losses:
            lost.update(losses())
        return dict(lost)

    def longest_pause_s(self) -> float:
        """Return the most seconds until the next reading, so that all requests are read."""
        with self._lock:
            live = [one for one in self._processes.values() if not one.has_ended]
            ends_s = (one.read_at_s + one.longest_pause_s for one in live)
            return max(min(ends_s, default=math.inf) - time.monotonic(), _SHORTEST_PAUSE_S)

    def exemplars(self) -> Exemplars:
        """Return the latest request of each bucket."""
        with self._lock:
            return {key: dict(found) for key, found in self._totals.exemplars.items()}

    def gauges(self) -> Gauges:
        """Return what is going on in the live processes, as they were last read."""
        with self._lock:
            return self._totals.gauges(self._processes.values())
