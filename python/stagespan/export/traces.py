"""Joins the parts of requests, and chooses the requests that are exported."""

from __future__ import annotations

import heapq
import itertools
import re
from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stagespan.export.parts import Part, by_reading
from stagespan.live.quantiles import quantile
from stagespan.process import imports
from stagespan.recording.segments import Trace
from stagespan.recording.slowness import Limit, Slowness
from stagespan.recording.spans import are_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LONGEST_WAIT_NS = 10 * 10**9
"""How long the parts of a request wait for others after the latest of them has ended, such as for
those of processes that have not been read yet."""
_LONGEST_REQUEST_NS = 3600 * 10**9
"""How long they wait instead if the part in which the request began is missing, and a process of
this machine still works on the request."""
_MOST_PARTS = 20_000
_MANY_PARTS = 10_000
"""If more parts wait, requests count as complete with the parts that are known."""
_NO_TRACE = 0, 0
_MANY_CHOSEN = 1 << 16
"""At least so many of the latest chosen traces are known, and at most about twice as many."""
_MINUTE_NS = 60 * 10**9
_SHRINK_NS = 10**9
_FEWEST_COMPARED = 100
_MOST_COMPARED = 1000
"""A request is compared with so many of the latest ones of its pipeline."""
_MOST_PIPELINES = 1000
_RANDOM_BITS = 56
"""The lowest bits of a trace's id are random, as W3C Trace Context says."""


class Over(NamedTuple):
    """How slow a request must be, beside the latest ones of its pipeline."""

    factor: float
    quantile: float

    @classmethod
    def parsed(cls, text: str) -> Over | None:
        """Return what a text such as 2.0xp99 says; None if it says nothing."""
        match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)xp(\d{1,2}(?:\.\d{1,3})?)", text)
        if match is None or not float(match[1]):
            return None
        return cls(float(match[1]), float(match[2]) / 100)


class Rules(NamedTuple):
    """Which requests are exported: those that one of the rules chooses."""

    one_in: int = 1
    """Choose one of this many requests; 0 for none. The choice depends on the trace's id, so that
    all machines make the same one. Requests with the flag "not sampled" are not chosen."""
    slowest: int = 0
    """Choose this many of each minute's requests: the slowest that no other rule chooses."""
    failed: bool = True
    """Choose all requests that did not end as ok."""
    over: Over | None = None
    """Choose all requests that took longer than this."""


class _Latest:
    """How long the latest requests of a pipeline took."""

    def __init__(self) -> None:
        self._in_order: deque[int] = deque()
        self._sorted: list[int] = []

    def exceeded(self, length_ns: int, over: Over) -> Limit | None:
        """Return the limit if a request took too long; None while there are few to compare with."""
        if len(self._sorted) < _FEWEST_COMPARED:
            return None
        percentile_ns = quantile(self._sorted, over.quantile)
        if length_ns <= over.factor * percentile_ns:
            return None
        median_ns = quantile(self._sorted, 0.5)
        return Limit(*over, int(percentile_ns), int(median_ns), len(self._sorted))

    def add(self, length_ns: int) -> None:
        if len(self._in_order) == _MOST_COMPARED:
            del self._sorted[bisect_left(self._sorted, self._in_order.popleft())]
        self._in_order.append(length_ns)
        insort(self._sorted, length_ns)


class Pending:
    """Parts that wait for the other parts of their request."""

    def __init__(self, rules: Rules, awaited: Iterable[int] = ()) -> None:
        """``awaited`` is what is to be done with the parts that are chosen (`Part.awaited`)."""
        self._rules = rules
        self._awaited = sum(awaited)
        self._waiting: dict[Trace, list[Part]] = {}
        self._parts = 0
        self._chosen: set[Trace] = set()
        """The traces of the latest requests that were chosen."""
        self._chosen_before: set[Trace] = set()
        self._slowest: list[tuple[int, int, list[Part]]] = []
        self._minute = 0
        self._latest: OrderedDict[str, _Latest] = OrderedDict()
        self._numbers = itertools.count()
        self._shrunk_ns = 0
        self.lost = 0
        """Parts that were dropped because too many waited."""

    def add(self, parts: Iterable[Part]) -> None:
        """Add parts that have ended."""
        waiting = self._waiting
        for part in parts:
            trace = part.of.traces[part.at]
            if trace != _NO_TRACE:
                others = waiting.setdefault(trace, [])
                others.append(part)
                self._parts += 1
        while self._parts > _MOST_PARTS:
            dropped = waiting.pop(next(iter(waiting)))
            self._parts -= len(dropped)
            self.lost += len(dropped)
            _await_only(dropped, 0)

    def complete(
        self, open_traces: Iterable[NDArray[np.uint64]], now_ns: int, *, at_end: bool = False
    ) -> list[list[Part]]:
        """Return the chosen ones of the requests that are complete, and forget the others.

        ``open_traces`` are the halves of those with parts that have not ended.
        """
        requests, others = [], []
        going_on = self._among_waiting(open_traces)
        takes_all = self._rules.one_in == 1 and self._rules.over is None
        for trace, parts in list(self._waiting.items()):
            first = parts[0]
            is_usual = len(parts) == 1 and first.of.are_usual[first.at]
            if takes_all and is_usual and trace not in going_on:  # as most are: this is fast
                del self._waiting[trace]
                self._parts -= 1
                requests.append(parts)
                continue
            has_root = any(part.of.are_roots[part.at] for part in parts)
            is_open = trace in going_on
            if not ((has_root and not is_open) or at_end or self._parts > _MANY_PARTS):
                longest_ns = _LONGEST_REQUEST_NS if is_open and not has_root else _LONGEST_WAIT_NS
                if now_ns - max(part.end_ns for part in parts) <= longest_ns:
                    continue
            del self._waiting[trace]
            self._parts -= len(parts)
            is_over = self._rules.over is not None and self._note_if_over(parts, self._rules.over)
            if is_over or self._is_chosen(trace, parts):
                requests.append(parts)
            elif self._rules.slowest and has_root:
                length_ns = max(part.end_ns - part.begin_ns for part in parts if part.is_root)
                heapq.heappush(self._slowest, (length_ns, next(self._numbers), parts))
                if len(self._slowest) > self._rules.slowest:
                    others += heapq.heappop(self._slowest)[2]
            else:
                others += parts
        minute = now_ns // _MINUTE_NS
        if minute != self._minute or at_end:
            self._minute = minute
            requests += [parts for _, _, parts in self._slowest]
            self._slowest.clear()
        self._chosen.update([parts[0].of.traces[parts[0].at] for parts in requests])
        if len(self._chosen) >= _MANY_CHOSEN:
            self._chosen, self._chosen_before = set(), self._chosen
        _await_only(others, 0)
        _await_only([part for parts in requests for part in parts], self._awaited)
        self._shrink(now_ns)
        return requests

    def _among_waiting(self, open_traces: Iterable[NDArray[np.uint64]]) -> set[Trace]:
        """Return the traces that parts wait for, and perhaps others."""
        lows = imports.load("numpy").array([low for _, low in self._waiting], "u8")
        found = (halves[are_in(halves[:, 1], lows)] for halves in open_traces)
        return {(high, low) for halves in found for high, low in halves.tolist()}

    def _shrink(self, now_ns: int) -> None:
        """Keep no rows of other parts with those that wait."""
        if now_ns - self._shrunk_ns < _SHRINK_NS:
            return
        self._shrunk_ns = now_ns
        waiting = defaultdict(list)
        for parts in (*self._waiting.values(), *(parts for *_, parts in self._slowest)):
            for part in parts:
                waiting[part.of].append(part)
        for of, parts in waiting.items():
            if 2 * len(parts) <= len(of):
                parts.sort(key=lambda part: part.at)
                some = of.only([part.at for part in parts])
                for at, part in enumerate(parts):
                    part.of, part.at = some, at

    def _note_if_over(self, parts: list[Part], over: Over) -> bool:
        """Compare a request with earlier ones of its pipeline, as later ones are with it.

        Returns whether it took too long; the limit is then noted in its first part.
        """
        root = next((part for part in parts if part.is_root), None)
        if root is None:
            return False
        latest = self._latest.setdefault(root.pipeline, _Latest())
        self._latest.move_to_end(root.pipeline)
        if len(self._latest) > _MOST_PIPELINES:
            self._latest.popitem(last=False)
        length_ns = root.end_ns - root.begin_ns
        limit = latest.exceeded(length_ns, over)
        latest.add(length_ns)
        if limit is not None:
            root.slowness = Slowness(limit)
        return limit is not None

    def _is_chosen(self, trace: Trace, parts: list[Part]) -> bool:
        is_unsampled = any(part.of.are_unsampled[part.at] for part in parts)
        if self._rules.one_in == 1 and not is_unsampled:
            return True
        if trace in self._chosen or trace in self._chosen_before:
            return True
        if self._rules.failed and any(part.of.have_failed[part.at] for part in parts):
            return True
        if not self._rules.one_in or is_unsampled:
            return False
        share = (1 << _RANDOM_BITS) // self._rules.one_in
        return trace[1] & ((1 << _RANDOM_BITS) - 1) < share


def _await_only(parts: Sequence[Part], flags: int) -> None:
    for of, indices in by_reading(parts):
        of.await_only(indices, flags)
