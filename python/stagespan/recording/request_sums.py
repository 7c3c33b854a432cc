"""Sums over many requests, from columns: only those that were joined become objects, in blocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from stagespan import _core
from stagespan.live.quantiles import rank
from stagespan.live.span_kinds import KINDS
from stagespan.recording.partition import ORDER, UNATTRIBUTED, Part
from stagespan.recording.spans import OPEN_NS, SYSTEM_COUNTS, Work, kinds_of
from stagespan.recording.timelines import AT_ONCE, Hop, Stretch, Timelines, part_of_nested

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagespan.recording.processes import Process
    from stagespan.recording.source import RequestSource

_EXECUTION, _QUEUE = ORDER.index("execution"), ORDER.index("queue")
_LARGEST = 1 << 62
_Columns: TypeAlias = "dict[str, NDArray[np.int64]]"
_NO_BATCH = -1
_OF_EACH = 16
"""Requests for each process that are looked at at once, so that few arrays are short."""
_OF_SEGMENTS = (
    *("request", "process", "number", "depth", "offset_ns"),
    *("is_placed", "is_discarded", "chunks"),
)
_OF_SPANS = (
    *("name", "kind", "level", "begin", "end"),
    *("segment", "process", "row", "size", "share_ns"),
)


class Durations(NamedTuple):
    """The durations of the spans of a stage, in ns."""

    runs: int
    p50_ns: int
    p95_ns: int
    max_ns: int


class RequestSums:
    """What requests have spent in their stages, and where their time went, together."""

    def __init__(self, requests: Timelines) -> None:
        self.requests = requests
        self.where: Counter[tuple[str, str]] = Counter()
        """Where the time went, by kind and name, as `Timeline.where` of each."""
        self.executions_ns: Counter[str] = Counter()
        """The sums of executions by stage, as `Timeline.spent` of each."""
        self.waits_ns: Counter[str] = Counter()
        """The same of waits."""
        self.work: defaultdict[tuple[str, str], list[int | float]] = defaultdict(list)
        """The work of each request, and the sizes of their batches, by name and unit.

        The name is that of the pipeline, or of the stage of the batches, whose unit is "requests".
        Requests with spans whose work is not known are left out. The tokens of chunks are the work
        of a request whose spans have not counted tokens.
        """
        self.hops: list[Hop] = []
        """The hops of all of them."""
        self.causes: defaultdict[str, list[int]] = defaultdict(list)
        """The indices of requests that are not complete, by each reason without its number."""
        self.first_chunks_ns: defaultdict[str, list[int | None]] = defaultdict(list)
        """From the start of each request with chunks to the first one, if known, by pipeline."""
        self._names: dict[str, int] = {}
        self._processes: dict[int, None] = {}
        self._runs: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
        """The names and the durations of executions; a batch counts once."""
        self._running_ns: Counter[str] = Counter()
        self._any_ns: Counter[str] = Counter()
        self._batches: set[tuple[str, int]] = set()
        """Those that were counted, by path and id."""
        outside_ns = np.zeros((3, len(requests)), np.int64)
        # The columns of all requests at once would take more memory than the spans.
        at_once = max(AT_ONCE, len(requests.join.processes) * _OF_EACH)
        for first in range(0, len(requests), at_once):
            some = slice(first, first + at_once)
            outside_ns[:, some] = self._add(first, _Block(requests[some], self._names))
        unattributed_ns, before_ns, after_ns = outside_ns
        self.outside_ns = before_ns, unattributed_ns - before_ns - after_ns, after_ns
        """The time of each request in which nothing was open: before, between, and after parts."""
        if total_ns := int(unattributed_ns.sum()):
            self.where[UNATTRIBUTED, ""] = total_ns

    def _add(self, first: int, block: _Block) -> NDArray[np.int64]:
        """Add some requests, the first of which has an index. Return their `_core` rows outside."""
        self._processes.update(dict.fromkeys(block.segments["process"].tolist()))
        for at, timeline in block.timelines.items():
            self.hops += timeline.hops
            for cause in timeline.causes:
                self.causes[cause.partition(" (")[0]].append(first + at)
            if timeline.chunks:
                self.first_chunks_ns[timeline.pipeline].append(timeline.first_chunk_ns)
        spans, names = block.spans, list(self._names)
        name, times_ns = spans["name"], spans["end"] - spans["begin"]
        for kind, sums_ns in ((_EXECUTION, self.executions_ns), (_QUEUE, self.waits_ns)):
            chosen = spans["kind"] == kind
            of_names = _sums(name[chosen], spans["share_ns"][chosen], len(names))
            sums_ns.update({names[at]: of_names[at] for at in set(name[chosen].tolist())})
        batches = block.new_batches(self._batches)
        is_run = (spans["kind"] == _EXECUTION) & (spans["size"] == _NO_BATCH)
        is_run[batches] = True
        self._runs.append((name[is_run].astype(np.int32), times_ns[is_run]))
        for at, size in zip(name[batches].tolist(), spans["size"][batches].tolist(), strict=True):
            self.work[names[at], "requests"].append(size)
        for key, number in block.work():
            self.work[key].append(number)
        is_longer = (spans["kind"] == _EXECUTION) & (times_ns > 0)
        running_ns = _sums(name[is_longer], times_ns[is_longer], len(names))
        self._running_ns.update(dict(zip(names, running_ns, strict=True)))
        self._any_ns.update(dict(zip(names, block.any_ns(is_longer), strict=True)))
        owners: dict[tuple[str, str], int] = {}
        parts = block.parts(owners)
        owned_ns, outside_ns = np.zeros(len(owners), np.int64), np.zeros((3, len(block)), np.int64)
        _core.divide_requests(parts, block.times_ns, owned_ns, outside_ns)
        owned = zip(owners, owned_ns.tolist(), strict=True)
        self.where.update({owner: ns for owner, ns in owned if ns})
        return outside_ns

    @property
    def recordings(self) -> list[RequestSource]:
        """The recordings that have a part of them."""
        return [self.requests.join.processes[at].recording for at in self._processes]

    def durations(self) -> dict[str, Durations]:
        """Return the durations of executions by stage; a batch counts once."""
        names, times_ns = (
            np.concatenate([np.empty(0, np.int64), *(run[side] for run in self._runs)])
            for side in (0, 1)
        )
        order = np.lexsort((times_ns, names))
        names, times_ns = names[order], times_ns[order]
        present, firsts, counts = np.unique(names, return_index=True, return_counts=True)
        all_names = list(self._names)
        return {
            all_names[code]: Durations(
                count,
                int(times_ns[first + rank(0.5, count) - 1]),
                int(times_ns[first + rank(0.95, count) - 1]),
                int(times_ns[first + count - 1]),
            )
            for code, first, count in zip(
                present.tolist(), firsts.tolist(), counts.tolist(), strict=True
            )
        }

    def at_once(self) -> dict[str, float]:
        """Return by stage how many executions of a request ran at once, while at least one did."""
        return {name: self._running_ns[name] / ns for name, ns in self._any_ns.items() if ns}


class _Block:
    """Some requests, with a row for each of their segments and spans."""

    def __init__(self, requests: Timelines, names: dict[str, int]) -> None:
        """Names of stages are added to ``names``, which has their numbers."""
        self.requests = requests
        self._names = names
        at = np.flatnonzero(~requests.join.is_plain[requests.roots])
        made = requests.join.timelines(requests.roots[at])
        self.timelines = dict(zip(at.tolist(), made, strict=True))
        """Those that are more than their spans, by index."""
        self.segments = self._columns_of_segments()
        """In the order of requests."""
        self._of_process = {
            place: (process, np.flatnonzero(self.segments["process"] == place))
            for place in sorted(set(self.segments["process"].tolist()))
            for process in (requests.join.processes[place],)
        }
        """Each process, and the rows of its segments."""
        self.spans = self._columns_of_spans()
        """The batches of a process after its other spans.

        ``segment`` is the row of the segment; times are those of its process. ``row`` is that of
        the process, and ``size`` that of a batch, else `_NO_BATCH`.
        """

    def __len__(self) -> int:
        return len(self.requests)

    def _columns_of_segments(self) -> _Columns:
        join, roots = self.requests.join, self.requests.roots
        is_plain = join.is_plain[roots]
        plain = roots[is_plain]
        zeros = np.zeros(len(plain), np.int64)
        of_plain = np.flatnonzero(is_plain), join.process[plain], join.numbers[plain].view("i8")
        places = {id(process): place for place, process in enumerate(join.processes)}
        rows = [
            (
                *(at, places[id(stretch.process)], stretch.segment["number"], stretch.depth),
                *(stretch.offset_ns or 0, stretch.offset_ns is not None, stretch.is_discarded),
                stretch.segment["chunks"],
            )
            for at, timeline in self.timelines.items()
            for stretch in timeline.segments
        ]
        of_others = zip(*rows, strict=True) if rows else [()] * len(_OF_SEGMENTS)
        both = zip(
            (*of_plain, zeros, zeros, zeros + 1, zeros, zeros),
            map(_integers, of_others),
            strict=True,
        )
        joined = [np.concatenate(pair) for pair in both]
        order = joined[0].argsort(kind="stable")
        return {name: column[order] for name, column in zip(_OF_SEGMENTS, joined, strict=True)}

    def _columns_of_spans(self) -> _Columns:
        parts = [{name: _integers(()) for name in _OF_SPANS}]
        for place, (process, segments) in self._of_process.items():
            numbers = self.segments["number"][segments].view("u8")
            all_numbers, firsts = process.numbers
            chosen, rows = _matches(all_numbers, firsts, numbers)
            columns = self._read(place, process, segments[chosen], process.rows[rows])
            columns["share_ns"] = columns["end"] - columns["begin"]
            columns["size"] = np.full(len(rows), _NO_BATCH)
            parts.append(columns)
            if not len(process.batches):
                continue
            served = process.served
            present, starts = np.unique(served.numbers, return_index=True)
            chosen, at = _matches(present, np.append(starts, len(served.numbers)), numbers)
            columns = self._read(place, process, segments[chosen], served.rows[at])
            sizes = served.sizes[at]
            shares = np.divmod(columns["end"] - columns["begin"], np.maximum(sizes, 1))
            columns["share_ns"] = shares[0] + (served.places[at] < shares[1])
            columns["size"] = np.maximum(sizes, 0)
            parts.append(columns)
        return {name: np.concatenate([part[name] for part in parts]) for name in _OF_SPANS}

    def _read(
        self, place: int, process: Process, segments: NDArray[np.intp], rows: NDArray[np.intp]
    ) -> _Columns:
        """Return the columns of spans, with times of the process's clock as `spans.made` has."""
        names, spans = self._names, process.spans
        codes = [names.setdefault(one, len(names)) for one in process.recording.stage_names()]
        begin, ends_ns = spans["begin_ns"][rows] - process.offset_ns, spans["end_ns"][rows]
        is_open = ends_ns == OPEN_NS
        end = ends_ns - process.offset_ns
        end[is_open] = np.maximum(begin[is_open], process.last_ns)
        is_queue = kinds_of(spans)[rows] == KINDS.index("queue")
        return {
            "name": _integers(codes)[spans["stage"][rows]] if codes else _integers(()),
            "kind": np.where(is_queue, _QUEUE, _EXECUTION),
            "level": spans["depth"][rows].astype(np.int64),
            "begin": begin,
            "end": end,
            "segment": segments,
            "process": np.full(len(rows), place),
            "row": rows,
        }

    # --- where the time went ----------------------------------------------------------------------

    @property
    def times_ns(self) -> NDArray[np.int64]:
        """When each request began and ended, on the clock of its root."""
        requests = self.requests
        ends_ns = requests.join.ends_ns[requests.roots]
        return np.stack((ends_ns - requests.totals_ns, ends_ns))

    def parts(self, owners: dict[tuple[str, str], int]) -> NDArray[np.int64]:
        """Return what `_core.divide_requests` takes, and add the owners."""
        segments, spans = self.segments, self.spans
        firsts = np.searchsorted(segments["request"], list(self.timelines)).tolist()
        hops = [
            (
                *(first + number, at, ORDER.index(part.kind), *part.reach),
                owners.setdefault((part.kind, part.name), len(owners)),
                *(part.begin_ns, part.end_ns),
            )
            for first, (at, timeline) in zip(firsts, self.timelines.items(), strict=True)
            for number, stretch in enumerate(timeline.segments)
            for part in _parts_of_hops(stretch, timeline.segments[0])
        ]
        columns = zip(*hops, strict=True) if hops else iter([()] * 9)
        of_hops = [_integers(column) for column in columns]
        is_shown = (segments["is_placed"] != 0) & (segments["is_discarded"] == 0)
        rows = np.flatnonzero(is_shown[spans["segment"]])
        of = spans["segment"][rows]
        names = list(self._names)
        pairs, pair_of = np.unique(
            spans["kind"][rows] * len(names) + spans["name"][rows], return_inverse=True
        )
        codes = _integers(
            [
                owners.setdefault(
                    (ORDER[pair // len(names)], names[pair % len(names)]), len(owners)
                )
                for pair in pairs.tolist()
            ]
        )
        offset_ns, begin = segments["offset_ns"][of], spans["begin"][rows]
        of_spans = (
            *(of, segments["request"][of], spans["kind"][rows], segments["depth"][of]),
            *(spans["level"][rows], begin, codes[pair_of], begin + offset_ns),
            spans["end"][rows] + offset_ns,
        )
        both = np.stack([np.concatenate(pair) for pair in zip(of_hops, of_spans, strict=True)])
        # The hops of a segment come before its spans, as in `Timeline.parts`.
        return np.ascontiguousarray(both[1:, both[0].argsort(kind="stable")])

    def any_ns(self, chosen: NDArray[np.bool_]) -> list[int]:
        """Return by stage for how long at least one of some executions of a request ran."""
        spans, count = self.spans, len(self._names)
        request = self.segments["request"][spans["segment"][chosen]]
        group = request * count + spans["name"][chosen]
        order = group.argsort(kind="stable")
        name, begin, end = (spans[column][chosen][order] for column in ("name", "begin", "end"))
        _, firsts, of_group = np.unique(group[order], return_index=True, return_inverse=True)
        any_ns = np.zeros(count, np.int64)
        if not len(firsts):
            return any_ns.tolist()
        # Each stage of a request is divided by itself, so it gets the time in which it ran.
        times = np.minimum.reduceat(begin, firsts), np.maximum.reduceat(end, firsts)
        none = np.zeros(len(name), np.int64)
        own = of_group, none, none, none, none, name, begin, end
        outside = np.zeros((3, len(firsts)), np.int64)
        _core.divide_requests(np.stack(own), np.stack(times), any_ns, outside)
        return any_ns.tolist()

    # --- batches and work -------------------------------------------------------------------------

    def new_batches(self, counted: set[tuple[str, int]]) -> NDArray[np.intp]:
        """Return a row of each batch that was not counted, and add it to these."""
        spans = self.spans
        batches = np.flatnonzero(spans["size"] != _NO_BATCH)
        new = []
        processes = spans["process"][batches].tolist()
        for at, place, row in zip(
            batches.tolist(), processes, spans["row"][batches].tolist(), strict=True
        ):
            process = self._of_process[place][0]
            key = process.recording.path, int(process.spans["id"][row])
            if key not in counted:
                counted.add(key)
                new.append(at)
        return np.array(new, np.intp)

    def work(self) -> Iterator[tuple[tuple[str, str], int | float]]:
        """Yield the pipeline and unit of the work of each request, and its number."""
        of_requests: defaultdict[int, Counter[str]] = defaultdict(Counter)
        is_known = np.ones(len(self), bool)
        counted = list(self._counted_work(is_known))
        counted.sort(key=lambda one: one[0])  # each sum is in the order of the request's segments
        for segment, of_span in counted:
            # Nested spans would count twice what the kernel has done.
            of_requests[int(self.segments["request"][segment])].update(
                {unit: number for unit, number in of_span.items() if unit not in SYSTEM_COUNTS}
            )
        for at, timeline in self.timelines.items():
            if timeline.chunks:
                of_requests[at].setdefault("tokens", timeline.tokens)
        places = sorted(of_requests)
        pipelines = self.requests.chosen(np.array(places, np.intp)).column("pipeline")
        for at, pipeline in zip(places, pipelines, strict=True):
            for unit, number in of_requests[at].items() if is_known[at] else ():
                yield (pipeline, unit), number

    def _counted_work(self, is_known: NDArray[np.bool_]) -> Iterator[tuple[int, Work]]:
        """Yield the segment of each span with work, and that; clear what is not known of all."""
        spans = self.spans
        is_single = spans["size"] == _NO_BATCH
        for place, (process, _) in self._of_process.items():
            own = np.flatnonzero(is_single & (spans["process"] == place))
            rows, segments = spans["row"][own], spans["segment"][own]
            is_lost = process.spans["begin_ns"][rows] <= process.recording.amounts_since_ns
            is_known[self.segments["request"][segments[is_lost]]] = False
            amounts = process.amounts
            if not amounts:
                continue
            ids = process.spans["id"][rows[~is_lost]].tolist()
            for segment, span in zip(segments[~is_lost].tolist(), ids, strict=True):
                if span in amounts:
                    yield segment, amounts[span]


def _parts_of_hops(stretch: Stretch, root: Stretch) -> Iterable[Part]:
    around = part_of_nested(stretch, root)
    return stretch.hop_parts if around is None else (*stretch.hop_parts, around)


def _matches(
    present: NDArray[np.uint64], bounds: NDArray[np.intp], wanted: NDArray[np.uint64]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of wanted numbers, where those of ``present`` have the rows between bounds.

    These are pairs: the index of the number, and the row.
    """
    at = np.minimum(present.searchsorted(wanted), max(len(present) - 1, 0))
    is_there = present[at] == wanted if len(present) else np.zeros(len(wanted), bool)
    firsts, counts = bounds[at[is_there]], np.diff(bounds)[at[is_there]]
    before = np.cumsum(counts) - counts
    rows = np.arange(counts.sum()) + np.repeat(firsts - before, counts)
    return np.flatnonzero(is_there).repeat(counts), rows


def _sums(codes: NDArray[np.int64], numbers: NDArray[np.int64], count: int) -> list[int]:
    """Return the exact sums of numbers by their codes."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, codes, numbers)
    return sums.tolist()


def _integers(values: Sequence[int]) -> NDArray[np.int64]:
    """Return a column; numbers that it cannot have, as of damaged files, become the nearest."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array([min(max(one, -_LARGEST), _LARGEST) for one in values], np.int64)
