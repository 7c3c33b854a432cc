"""Sums over many requests, from columns: spans become objects only in what is shown of one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stagespan import _core
from stagespan.live.quantiles import rank
from stagespan.live.span_kinds import KINDS
from stagespan.recording.partition import ORDER, UNATTRIBUTED, Part
from stagespan.recording.spans import OPEN_NS, SYSTEM_COUNTS, kinds_of
from stagespan.recording.timelines import Process, Stretch, Timeline, part_of_nested

if TYPE_CHECKING:
    from stagespan.recording.reading import Work

_EXECUTION, _QUEUE = ORDER.index("execution"), ORDER.index("queue")
_LARGEST = 1 << 62
_Columns = dict[str, NDArray[np.int64]]
_NO_BATCH = -1
_AT_ONCE = 2048
"""Requests, or stages of requests, whose time is divided at once."""
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

    def __init__(self, timelines: Sequence[Timeline]) -> None:
        self.timelines = timelines
        """The requests."""
        self._names: dict[str, int] = {}
        self._processes: list[Process] = []
        self._segments = self._columns_of_segments()
        self._spans = self._columns_of_spans()

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _columns_of_segments(self) -> _Columns:
        """Return a row for each segment of each request, in the order of the requests."""
        places: dict[int, int] = {}
        rows: list[tuple[int, int, int, int, int, bool, bool, int]] = []
        for at, timeline in enumerate(self.timelines):
            for stretch in timeline.segments:
                place = places.get(id(stretch.process))
                if place is None:
                    place = places[id(stretch.process)] = len(self._processes)
                    self._processes.append(stretch.process)
                offset_ns = stretch.offset_ns
                rows.append(
                    (
                        *(at, place, stretch.segment["number"], stretch.depth, offset_ns or 0),
                        *(offset_ns is not None, stretch.is_discarded, stretch.segment["chunks"]),
                    )
                )
        names = (
            *("request", "process", "number", "depth", "offset_ns"),
            *("is_placed", "is_discarded", "chunks"),
        )
        columns = zip(*rows, strict=True) if rows else iter([()] * len(names))
        return {name: _integers(column) for name, column in zip(names, columns, strict=True)}

    def _columns_of_spans(self) -> _Columns:
        """Return a row for each span of each segment: the batches of a process after the others.

        ``segment`` is the row of the segment; times are those of its process. ``row`` is that of
        the process, among its batches if ``size`` is not `_NO_BATCH`.
        """
        parts = []
        for place, process in enumerate(self._processes):
            own = np.flatnonzero(self._segments["process"] == place)
            parts.append(self._spans_of(place, process, own))
            parts.append(self._batches_of(place, process, own))
        parts = [part for part in parts if len(part["name"])]
        if not parts:
            return {name: _integers(()) for name in _OF_SPANS}
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _spans_of(self, place: int, process: Process, segments: NDArray[np.intp]) -> _Columns:
        numbers, firsts = process.numbers
        wanted = self._segments["number"][segments].astype(np.uint64)
        at = np.minimum(np.searchsorted(numbers, wanted), max(len(numbers) - 1, 0))
        has_spans = numbers[at] == wanted if len(numbers) else np.zeros(len(segments), bool)
        segments, at = segments[has_spans], at[has_spans]
        counts = firsts[at + 1] - firsts[at]
        rows = _ranges(firsts[at], counts)
        columns = self._read(process, process.rows, rows)
        columns |= {
            "segment": np.repeat(segments, counts),
            "process": np.full(len(rows), place),
            "row": rows,
            "size": np.full(len(rows), _NO_BATCH),
            "share_ns": columns["end"] - columns["begin"],
        }
        return columns

    def _batches_of(self, place: int, process: Process, of_process: NDArray[np.intp]) -> _Columns:
        numbers = self._segments["number"][of_process].tolist()
        served = [
            (segment, *batch)
            for segment, number in zip(of_process.tolist(), numbers, strict=True)
            for batch in process.batches_by_number.get(number, ())
        ]
        segments, rows, sizes, places = (
            _integers(column) for column in (zip(*served, strict=True) if served else [()] * 4)
        )
        found = self._read(process, process.batches, rows)
        share_ns, rest_ns = np.divmod(found["end"] - found["begin"], np.maximum(sizes, 1))
        return found | {
            "segment": segments,
            "process": np.full(len(rows), place),
            "row": rows,
            "size": np.maximum(sizes, 0),
            "share_ns": share_ns + (places < rest_ns),
        }

    def _read(self, process: Process, spans: NDArray[np.void], rows: NDArray[np.intp]) -> _Columns:
        """Return the columns of spans, with times of the process's clock as `spans.made` has."""
        names = _integers([self._name(name) for name in process.recording.stage_names()])
        begin, ends_ns = spans["begin_ns"][rows] - process.offset_ns, spans["end_ns"][rows]
        is_open = ends_ns == OPEN_NS
        end = ends_ns - process.offset_ns
        end[is_open] = np.maximum(begin[is_open], process.last_ns)
        is_queue = kinds_of(spans)[rows] == KINDS.index("queue")
        return {
            "name": names[spans["stage"][rows]] if len(names) else _integers(()),
            "kind": np.where(is_queue, _QUEUE, _EXECUTION),
            "level": spans["depth"][rows].astype(np.int64),
            "begin": begin,
            "end": end,
        }

    # --- where the time went ----------------------------------------------------------------------

    @cached_property
    def _divided(self) -> tuple[dict[tuple[str, str], int], NDArray[np.int64]]:
        """The time of each kind and name, and the rows that `_core.divide_requests` fills."""
        owners: dict[tuple[str, str], int] = {}
        owned_ns: Counter[int] = Counter()
        count = len(self.timelines)
        requests = np.empty((2, count), np.int64)
        roots = [one.segments[0] for one in self.timelines]
        offsets_ns = _integers([root.process.offset_ns for root in roots])
        requests[0] = _integers([one.begin_ns for one in self.timelines]) - offsets_ns
        requests[1] = _integers([root.end_ns for root in roots])
        outside = np.zeros((3, count), np.int64)
        # The parts of all requests at once would take more memory than the spans.
        for first in range(0, count, _AT_ONCE):
            some = slice(first, min(first + _AT_ONCE, count))
            parts = self._columns_of_parts(some, owners)
            owned, own_outside = np.zeros(len(owners), np.int64), outside[:, some].copy()
            _core.divide_requests(parts, requests[:, some].copy(), owned, own_outside)
            outside[:, some] = own_outside
            owned_ns.update(dict(enumerate(owned.tolist())))
        return {key: owned_ns[owner] for key, owner in owners.items() if owned_ns[owner]}, outside

    @cached_property
    def _by_segment(self) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """The rows of spans that are in `where`, ordered by their segment, and that of each."""
        segments, of = self._segments, self._spans["segment"]
        is_shown = (segments["is_placed"] != 0) & (segments["is_discarded"] == 0)
        rows = np.flatnonzero(is_shown[of])
        rows = rows[of[rows].argsort(kind="stable")]
        return rows, of[rows]

    def _columns_of_parts(
        self, some: slice, owners: dict[tuple[str, str], int]
    ) -> NDArray[np.int64]:
        """Return what `_core.divide_requests` takes of some requests, and add the owners."""
        segments, spans = self._segments, self._spans
        first, last = np.searchsorted(segments["request"], (some.start, some.stop)).tolist()
        hops = []
        place = first
        for at, timeline in enumerate(self.timelines[some]):
            for stretch in timeline.segments:
                for part in _parts_of_hops(stretch, timeline.segments[0]):
                    owner = owners.setdefault((part.kind, part.name), len(owners))
                    kind = ORDER.index(part.kind)
                    hops.append((place, at, kind, *part.reach, owner, part.begin_ns, part.end_ns))
                place += 1
        columns = zip(*hops, strict=True) if hops else iter([()] * 9)
        of_hops = [_integers(column) for column in columns]
        all_rows, all_segments = self._by_segment
        inside = slice(*np.searchsorted(all_segments, (first, last)).tolist())
        rows, of = all_rows[inside], all_segments[inside]
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
            *(of, segments["request"][of] - some.start, spans["kind"][rows], segments["depth"][of]),
            *(spans["level"][rows], begin, codes[pair_of], begin + offset_ns),
            spans["end"][rows] + offset_ns,
        )
        both = np.stack([np.concatenate(pair) for pair in zip(of_hops, of_spans, strict=True)])
        # The hops of a segment come before its spans, as in `Timeline.parts`.
        return np.ascontiguousarray(both[1:, both[0].argsort(kind="stable")])

    @property
    def where(self) -> dict[tuple[str, str], int]:
        """Where the time went, by kind and name, as `Timeline.where` of each."""
        where, (unattributed, _, _) = self._divided
        total_ns = int(unattributed.sum())
        return where | ({(UNATTRIBUTED, ""): total_ns} if total_ns else {})

    @property
    def outside_ns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The time of each request in which nothing was open: before, between, and after parts."""
        _, (unattributed, before, after) = self._divided
        return before, unattributed - before - after, after

    # --- what was spent ---------------------------------------------------------------------------

    def spent(self) -> tuple[Counter[str], Counter[str]]:
        """Return the sums of executions and of waits by stage, as `Timeline.spent` of each."""
        sums = []
        for kind in (_EXECUTION, _QUEUE):
            chosen = self._spans["kind"] == kind
            names = self._spans["name"][chosen]
            of_names = np.zeros(len(self._names), np.int64)
            np.add.at(of_names, names, self._spans["share_ns"][chosen])
            present = np.unique(names).tolist()
            all_names = list(self._names)
            sums.append(Counter({all_names[code]: int(of_names[code]) for code in present}))
        return sums[0], sums[1]

    def durations(self) -> dict[str, Durations]:
        """Return the durations of executions by stage; a batch counts once."""
        spans = self._spans
        chosen = (spans["kind"] == _EXECUTION) & (spans["size"] == _NO_BATCH)
        chosen[self._batches()] = True
        names = spans["name"][chosen]
        times_ns = (spans["end"] - spans["begin"])[chosen]
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

    def _batches(self) -> NDArray[np.intp]:
        """Return a row of each batch: it is that of several requests, also of several copies."""
        spans = self._spans
        paths: dict[str, int] = {}
        of_paths = _integers(
            [paths.setdefault(one.recording.path, len(paths)) for one in self._processes]
        )
        batches = np.flatnonzero(spans["size"] != _NO_BATCH)
        if not len(batches):
            return batches
        ids = np.zeros(len(batches), np.uint64)
        for place, process in enumerate(self._processes):
            own = np.flatnonzero(spans["process"][batches] == place)
            ids[own] = process.batches["id"][spans["row"][batches[own]]]
        keys = np.stack((of_paths[spans["process"][batches]].astype(np.uint64), ids))
        return batches[np.unique(keys, axis=1, return_index=True)[1]]

    # --- work -------------------------------------------------------------------------------------

    def work(self) -> dict[tuple[str, str], list[int | float]]:
        """Return the work of each request, and the sizes of their batches, by name and unit.

        The name is that of the pipeline, or of the stage of the batches, whose unit is "requests".
        Requests with spans whose work is not known are left out. The tokens of chunks are the work
        of a request whose spans have not counted tokens.
        """
        amounts: defaultdict[tuple[str, str], list[int | float]] = defaultdict(list)
        of_requests: defaultdict[int, Counter[str]] = defaultdict(Counter)
        is_known = np.ones(len(self.timelines), bool)
        counted = list(self._counted_work(is_known))
        counted.sort(key=lambda one: one[0])  # each sum is in the order of the request's segments
        for segment, of_span in counted:
            # Nested spans would count twice what the kernel has done.
            of_requests[int(self._segments["request"][segment])].update(
                {unit: number for unit, number in of_span.items() if unit not in SYSTEM_COUNTS}
            )
        for at in np.unique(self._segments["request"][self._segments["chunks"] != 0]).tolist():
            of_requests[at].setdefault("tokens", self.timelines[at].tokens)
        for at, of_request in of_requests.items():
            pipeline = self.timelines[at].pipeline
            for unit, number in of_request.items() if is_known[at] else ():
                amounts[pipeline, unit].append(number)
        names, batches = list(self._names), self._batches()
        stages, sizes = (self._spans[name][batches].tolist() for name in ("name", "size"))
        for stage, size in zip(stages, sizes, strict=True):
            amounts[names[stage], "requests"].append(size)
        return dict(amounts)

    def _counted_work(self, is_known: NDArray[np.bool_]) -> Iterator[tuple[int, Work]]:
        """Yield the segment of each span with work, and that; clear what is not known of all."""
        spans = self._spans
        single = np.flatnonzero(spans["size"] == _NO_BATCH)
        for place, process in enumerate(self._processes):
            own = single[spans["process"][single] == place]
            rows, segments = spans["row"][own], spans["segment"][own]
            is_lost = process.rows["begin_ns"][rows] <= process.recording.amounts_since_ns
            is_known[self._segments["request"][segments[is_lost]]] = False
            ids = process.rows["id"][rows]
            with_work = np.fromiter(process.amounts, np.uint64, len(process.amounts))
            found = np.flatnonzero(np.isin(ids, with_work) & ~is_lost)
            for segment, span in zip(segments[found].tolist(), ids[found].tolist(), strict=True):
                yield segment, process.amounts[span]

    def at_once(self) -> dict[str, float]:
        """Return by stage how many executions of a request ran at once, while at least one did."""
        spans, names = self._spans, list(self._names)
        chosen = np.flatnonzero((spans["kind"] == _EXECUTION) & (spans["begin"] < spans["end"]))
        request = self._segments["request"][spans["segment"][chosen]]
        group = request * len(names) + spans["name"][chosen]
        order = group.argsort(kind="stable")
        chosen = chosen[order]
        name, begin, end = (spans[column][chosen] for column in ("name", "begin", "end"))
        _, firsts, of_group = np.unique(group[order], return_index=True, return_inverse=True)
        running_ns, any_ns = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
        np.add.at(running_ns, name, end - begin)
        bounds = np.append(firsts, len(chosen))
        for first in range(0, len(firsts), _AT_ONCE):
            last = min(first + _AT_ONCE, len(firsts))
            at, rows = firsts[first:last] - firsts[first], slice(bounds[first], bounds[last])
            # Each stage of a request is divided by itself, so it gets the time in which it ran.
            times = np.minimum.reduceat(begin[rows], at), np.maximum.reduceat(end[rows], at)
            none = np.zeros(rows.stop - rows.start, np.int64)
            own = of_group[rows] - first, none, none, none, none, name[rows], begin[rows], end[rows]
            outside = np.zeros((3, len(at)), np.int64)
            _core.divide_requests(np.stack(own), np.stack(times), any_ns, outside)
        found = zip(names, running_ns.tolist(), any_ns.tolist(), strict=True)
        return {name: running / any_ for name, running, any_ in found if any_}


def _parts_of_hops(stretch: Stretch, root: Stretch) -> Iterable[Part]:
    around = part_of_nested(stretch, root)
    return stretch.hop_parts if around is None else (*stretch.hop_parts, around)


def _ranges(firsts: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the indices of consecutive rows, of each range after the one before."""
    before = np.cumsum(counts) - counts
    indices: NDArray[np.intp] = np.arange(counts.sum()) + np.repeat(firsts - before, counts)
    return indices


def _integers(values: Sequence[int]) -> NDArray[np.int64]:
    """Return a column; numbers that it cannot have, as of damaged files, become the nearest."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array([min(max(one, -_LARGEST), _LARGEST) for one in values], np.int64)
