"""Finds the operators of device graphs: the launches that were captured into a graph have them.

A graph is launched by one call, so the trace of a replay does not show the operators of its
kernels. The launches under capture do. They are in another trace, made while the graph was
captured, or earlier in the same one. Kernels and launches are matched by order and name.

A capture is one recording of launches into a graph, and a capture trace is the file of a profiler
that ran meanwhile, which can have several. A tape is the launches of a capture, or of a thread that
ran the work directly. A graph gets its operators from the candidates that fit best: parts of tapes
with the same work.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived import kernel_kinds as kinds
from stagespan.trace.derived.device import device_work, launch_of, launches
from stagespan.trace.derived.gaps import graph_calls
from stagespan.trace.derived.idle_causes import (
    CAPTURE_BEGINS,
    CAPTURE_ENDS,
    GRAPH_LAUNCHES,
    SINGLE_LAUNCHES,
)
from stagespan.trace.derived.launch_sources import (
    LaunchSources,
    forward_operators,
    no_operators,
    stages_around,
    values_at,
)
from stagespan.trace.derived.threads import ThreadIndex, named, threads
from stagespan.trace.derived.trees import Nesting
from stagespan.trace.read.groups import by_group, firsts_of, numbered, values_of
from stagespan.trace.read.intervals import Mask, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once, operators_of

LEAST_PERCENT = 90.0
"""The percentage of a graph's work that must be the same: others have other shapes."""
# A node of a graph that runs a function of the host.
_ON_HOST = re.compile("LaunchHost")
# Copies and fills: the device's work, which may be a kernel on ROCm, and calls.
_COPY, _COPIES = re.compile(r"^Memcpy|rocclr_copy"), re.compile("Memcpy")
_FILL, _FILLS = re.compile(r"^Memset|rocclr_fill"), re.compile("Memset|MemFill")
# The requests or tokens of a step in a server's annotation. Other numbers can count steps.
_SIZES = (
    re.compile(r"\b(?:num_)?(?:toks|tokens)\W{0,2}(\d+)"),
    re.compile(r"context_\d+\((\d+)\)_generation_\d+\((\d+)\)"),
    re.compile(r"(?:\b|_)(?:bs|batch|batch_size|size|execute|capture)[_\W]{0,2}(\d+)"),
)
# Codes of what has no name of its own on both sides.
COPY, FILL, UNNAMED = -2, -3, -1
# The most pairs of kernels and launches that are aligned, and the most places of an eager run.
_MOST_PAIRS = 4_000_000
_MOST_PLACES = 64
# Kinds that an operator of another kind does not launch.
_DISTINCT = frozenset((kinds.MATMUL, kinds.ATTENTION, kinds.COMMUNICATION))
_SIMPLE = frozenset(
    (kinds.ELEMENTWISE, kinds.REDUCTION, kinds.EMBEDDING, kinds.INDEXING, kinds.NORM)
)


class Tape(msgspec.Struct, frozen=True, dict=True):
    """Launches in the order in which they were made."""

    calls: Rows
    """Rows of the trace with the operators."""
    code: Numbers
    """The code of each kernel's name, `COPY`, `FILL`, or `UNNAMED`."""
    captured: bool
    """Whether the launches were made under capture, and not by running the work directly."""
    is_one_graph: bool
    """Whether these are all launches of one capture, by the calls around them."""

    @cached_property
    def text(self) -> str:
        """The codes as characters."""
        return _as_text(self.code)

    @cached_property
    def counts(self) -> Counter[int]:
        """How often each code occurs."""
        return Counter(self.code.tolist())


class GraphMatch(msgspec.Struct, frozen=True):
    """Launches of graphs with the same work in the same order."""

    calls: Rows
    """The rows of the launches."""
    events: int
    """The number of the device's events in each of them."""
    time_ns: int
    """The durations of all these events."""
    matched: int
    """The number of events of each launch whose operators are known."""
    matched_ns: int
    candidates: int
    """The number of candidates that fit equally well."""
    source: str | None
    """The annotation around the capture, or "work outside of graphs"; None without a match."""
    shapes: bool
    """Whether the shapes are known for all launches."""
    closest: float
    """The percentage of the work that the most similar tape has."""


class CapturedWork(msgspec.Struct, frozen=True):
    """The captured launch of each of the device's events, with one element for each of them.

    Rows are those of `operators`; -1 is unknown, and for work outside of device graphs.
    """

    operators: Trace
    """The trace whose rows the calls and operators are: the trace itself, or one that has the
    events of the capture traces after its own."""
    of_graph: Mask
    call: Rows
    operator: Rows
    """The innermost operator around the captured launch."""
    forward: Rows
    launch: Numbers
    """The number of the graph's launch, from 1; 0 for other work."""
    with_shapes: Mask
    """Whether the shapes of the operator are those of this launch."""
    graphs: list[GraphMatch]

    @property
    def has_operator(self) -> Mask:
        """Which events have an operator."""
        has_operator: Mask = self.operator >= 0
        return has_operator

    def forward_or(self, others: LaunchSources) -> Rows:
        """Return the forward operators, for other work those of `others`."""
        return np.where(self.call >= 0, self.forward, others.forward)

    def numbers(self, rows: Rows) -> Rows:
        """Return different numbers for the same row in different launches of a graph.

        `number % len(operators.events)` is the row; -1 stays -1.
        """
        return np.where(rows >= 0, self.launch * len(self.operators.events) + rows, -1)


@once
def captured_work(trace: Trace) -> CapturedWork | None:
    """Find the captured launches of all of the device's events; None without device graphs."""
    rows = device_work(trace).rows
    calls = launch_of(trace, rows)
    of_graph = graph_calls(trace, calls)
    if not of_graph.any():
        return None
    search = _Search(trace, rows, calls, of_graph)
    search.run()
    hosts = search.hosts
    operator, forward = _operators_around(hosts, search.call)
    return CapturedWork(
        operators=hosts,
        of_graph=of_graph,
        call=search.call,
        operator=operator,
        forward=forward,
        launch=search.launch,
        with_shapes=search.with_shapes & (operator >= 0),
        graphs=search.graphs,
    )


def _operators_around(hosts: Trace, calls: Rows) -> tuple[Rows, Rows]:
    """Return the innermost operator around each call, and its forward operator; -1 for none."""
    none = np.full(len(calls), -1, dtype=np.intp)
    launched = calls >= 0
    operators = np.flatnonzero(hosts.rows_of(["cpu_op"]))
    if not launched.any() or len(operators) == 0:
        return none, none
    called, which = numbered(calls[launched])
    index = ThreadIndex(hosts, operators, called)
    if not index.fits:
        return none, none
    forest = Nesting.of(hosts, index.axis, operators, index.of[0])
    inside = none.copy()
    places = index.axis.place(index.of[1], hosts.events.begin_ns[called])
    inside[launched] = forest.at(places)[which]
    work = ~no_operators(hosts)[forest.rows]
    operator = values_at(forest.rows, values_at(forest.first_around(work), inside))
    return operator, values_at(forward_operators(hosts, index, forest), inside)


class _Search:
    """Matches the launches of graphs with tapes of launches."""

    def __init__(self, trace: Trace, rows: Rows, calls: Rows, of_graph: Mask) -> None:
        self._trace, self._rows = trace, rows
        self.hosts = operators_of(trace)
        self._graph_calls = calls
        self._of_graph = of_graph
        self._codes = {name: code for code, name in enumerate(self.hosts.names)}
        self.call: Rows = np.full(len(rows), -1, dtype=np.intp)
        self.launch = np.zeros(len(rows), dtype=np.int64)
        self.with_shapes: Mask = np.zeros(len(rows), dtype=np.bool_)
        self.graphs: list[GraphMatch] = []

    def run(self) -> None:
        """Match all launches of graphs."""
        groups = self._groups()
        for code, launched in groups:
            found = self._candidates(code, [each for _, each in launched])
            self._apply(code, launched, *found)

    # --- the replay ---

    def _groups(self) -> list[tuple[Numbers, list[tuple[int, Rows]]]]:
        """Return the different sequences of work, each with its launches and their events.

        Events are indices of `rows`, in the order of the nodes of the graph, if that is known, or
        of time.
        """
        events = self._trace.events
        places = np.flatnonzero(self._of_graph)
        nodes = _numbers(self._trace, "graph node id")
        order = np.lexsort(
            (
                events.begin_ns[self._rows[places]],
                nodes[self._rows[places]],
                self._graph_calls[places],
            )
        )
        places = places[order]
        code = self._device_codes(self._rows[places])
        call, first = firsts_of(self._graph_calls[places])
        by_codes: dict[bytes, tuple[Numbers, list[tuple[int, Rows]]]] = {}
        parts = zip(np.split(places, first[1:]), np.split(code, first[1:]), strict=True)
        by_time = sorted(zip(call.tolist(), parts, strict=True), key=lambda each: each[0])
        by_time.sort(key=lambda each: int(events.begin_ns[each[0]]))
        for number, (row, (some, codes)) in enumerate(by_time, 1):
            self.launch[some] = number
            by_codes.setdefault(codes.tobytes(), (codes, []))[1].append((row, some))
        return list(by_codes.values())

    def _device_codes(self, rows: Rows) -> Numbers:
        trace = self._trace
        code = trace.events.name[rows].astype(np.int64)
        code[trace.rows_of(["gpu_memcpy"])[rows] | named(trace, _COPY, rows)] = COPY
        code[trace.rows_of(["gpu_memset"])[rows] | named(trace, _FILL, rows)] = FILL
        return code

    # --- the tapes ---

    @cached_property
    def _tapes(self) -> list[Tape]:
        """The launches of each capture, and those of each thread that ran work directly."""
        hosts = self.hosts
        events = hosts.events
        single = launches(hosts) & named(hosts, SINGLE_LAUNCHES)
        rows = np.flatnonzero(single & ~named(hosts, GRAPH_LAUNCHES) & ~named(hosts, _ON_HOST))
        rows = _outermost(hosts, rows)
        rows = rows[np.lexsort((events.begin_ns[rows], events.pid[rows]))]
        ran = self._ran[rows] >= 0
        direct, captured = rows[ran], rows[~ran]
        code = self._code_of_launch(rows)
        tapes = self._tapes_of_captures(captured, code[~ran])
        _, thread = threads(hosts, direct)
        for some in by_group(thread, int(thread.max()) + 1) if len(direct) else []:
            tapes.append(Tape(direct[some], code[ran][some], False, False))
        return tapes

    @cached_property
    def _ran(self) -> Rows:
        """The first device event of each row that launched it directly, or -1."""
        hosts = self.hosts
        work = np.flatnonzero(device_work(hosts).kind)
        calls = launch_of(hosts, work)
        ran = np.full(len(hosts.events) + 1, -1, dtype=np.intp)
        known = calls >= 0
        ran[calls[known][::-1]] = work[known][::-1]
        return ran

    def _code_of_launch(self, rows: Rows) -> Numbers:
        hosts = self.hosts
        code = np.full(len(rows), UNNAMED, dtype=np.int64)
        ran = self._ran[rows]
        code[ran >= 0] = hosts.events.name[ran[ran >= 0]]
        told = hosts.argument("kernel")
        if told is not None and told.numbers is None:
            # A name that no event has differs from all others.
            known = [self._code_of_name(text, -10 - at) for at, text in enumerate(told.texts)]
            of_row = np.full(len(hosts.events), UNNAMED, dtype=np.int64)
            of_row[told.rows] = np.array(known, dtype=np.int64)[told.codes]
            code = np.where(code == UNNAMED, of_row[rows], code)
        device = np.where(ran >= 0, ran, rows)
        code[named(hosts, _COPIES, rows) | named(hosts, _COPY, device)] = COPY
        code[named(hosts, _FILLS, rows) | named(hosts, _FILL, device)] = FILL
        return code

    def _code_of_name(self, kernel: str, unknown: int) -> int:
        if _COPY.search(kernel) or _FILL.search(kernel):
            return COPY if _COPY.search(kernel) else FILL
        return self._codes.get(kernel, unknown)

    def _tapes_of_captures(self, rows: Rows, code: Numbers) -> list[Tape]:
        """Split captured launches where captures begin and end; calls of a process in order."""
        hosts, events = self.hosts, self.hosts.events
        calls = launches(hosts)
        edges = np.flatnonzero(
            calls
            & (
                named(hosts, CAPTURE_BEGINS)
                | named(hosts, CAPTURE_ENDS)
                | named(hosts, GRAPH_LAUNCHES)
            )
        )
        both = np.concatenate((rows, edges))
        is_edge = np.arange(len(both)) >= len(rows)
        order = np.lexsort((events.begin_ns[both], events.pid[both]))
        part = np.cumsum(is_edge[order] | np.append(False, np.diff(events.pid[both][order]) != 0))
        part_of = np.empty(len(both), dtype=np.int64)
        part_of[order] = part
        if len(rows) == 0:
            return []
        _, number = numbered(part_of[: len(rows)])
        groups = by_group(number, int(number.max()) + 1)
        with_edges = np.isin(events.pid[rows], events.pid[edges])
        return [Tape(rows[some], code[some], True, bool(with_edges[some[0]])) for some in groups]

    @cached_property
    def _work_of_launch(self) -> tuple[Rows, Numbers, Numbers]:
        """All launches of tapes in ascending order, and the operator and shapes of each."""
        tapes = self._tapes
        calls = values_of(np.concatenate([each.calls for each in tapes]))
        operator, _ = _operators_around(self.hosts, calls)
        names = np.where(operator >= 0, self.hosts.events.name[operator], -1).astype(np.int64)
        return calls, names, values_at(_codes(self.hosts, "Input Dims"), operator)

    def _same_work(self, first: Rows, second: Rows) -> bool:
        calls, operator, shape = self._work_of_launch
        one, other = np.searchsorted(calls, first), np.searchsorted(calls, second)
        return len(one) == len(other) and bool(
            (operator[one] == operator[other]).all() and (shape[one] == shape[other]).all()
        )

    # --- matching ---

    def _candidates(
        self, code: Numbers, launched: list[Rows]
    ) -> tuple[list[tuple[Rows, bool]], float]:
        """Return the tapes that fit best, as a captured call for each event, and how well.

        Events without a call have -1.
        """
        best, closest = LEAST_PERCENT, 0.0
        candidates: list[tuple[Rows, bool]] = []
        for tape in self._tapes:
            # A graph that is a part of another one is not the same.
            one = tape.is_one_graph
            whole = max(len(code), len(tape.calls)) if one else len(code)
            for calls in [self._aligned(code, tape)] if one else self._places(code, tape):
                percent = 100.0 * float((calls >= 0).sum()) / whole
                if not self._same_grids(calls, launched[0]):
                    continue
                closest = max(closest, percent)
                if percent < best:
                    continue
                if percent > best:
                    candidates = []
                best = percent
                candidates.append((calls, tape.captured))
        # What was captured is the graph itself.
        if any(captured for _, captured in candidates):
            candidates = [each for each in candidates if each[1]]
        return candidates, closest

    def _aligned(self, code: Numbers, tape: Tape) -> Rows:
        """Return the call of a tape for each event of a graph, or -1."""
        calls = np.full(len(code), -1, dtype=np.intp)
        if (tape.code == UNNAMED).any():
            return self._by_order(code, tape)
        if np.array_equal(code, tape.code):
            return tape.calls
        common = (Counter(code.tolist()) & tape.counts).total()
        if 100.0 * common < LEAST_PERCENT * len(code):
            # Too few to be this graph; only the number is of interest.
            calls[:common] = tape.calls[:common]
            return calls
        if len(code) * len(tape.code) <= _MOST_PAIRS:
            from difflib import SequenceMatcher  # few traces need it

            matcher = SequenceMatcher(None, code.tolist(), tape.code.tolist(), autojunk=False)
            for at, other, length in matcher.get_matching_blocks():
                calls[at : at + length] = tape.calls[other : other + length]
        # Streams of a graph run at the same time, so the order may differ.
        left: dict[int, list[int]] = defaultdict(list)
        used = np.isin(tape.calls, calls)
        for other in np.flatnonzero(~used).tolist():
            left[int(tape.code[other])].append(int(tape.calls[other]))
        for at in np.flatnonzero(calls < 0).tolist():
            if waiting := left[int(code[at])]:
                calls[at] = waiting.pop(0)
        return calls

    def _by_order(self, code: Numbers, tape: Tape) -> Rows:
        """Match launches whose kernels have no names: CUDA's calls do not name them.

        Number and order must be the same, and the kernels must be of kinds that their operators
        can launch.
        """
        none = np.full(len(code), -1, dtype=np.intp)
        kernels = (code != COPY) & (code != FILL)
        if len(code) != len(tape.code) or ((tape.code == COPY) != (code == COPY)).any():
            return none
        if ((tape.code == FILL) != (code == FILL)).any():
            return none
        all_calls, operator, _ = self._work_of_launch
        operators = operator[np.searchsorted(all_calls, tape.calls)]
        checked = agreed = 0
        pairs = Counter(zip(code[kernels].tolist(), operators[kernels].tolist(), strict=True))
        for (kernel, by), count in pairs.items():
            if by < 0:
                continue
            answer = _can_launch(self.hosts.names[by], self.hosts.names[kernel])
            checked += count if answer is not None else 0
            agreed += count if answer else 0
        return tape.calls if checked and 100.0 * agreed >= LEAST_PERCENT * checked else none

    def _places(self, code: Numbers, tape: Tape) -> list[Rows]:
        """Return the places where exactly the work of a graph was launched."""
        text, wanted = tape.text, _as_text(code)
        places: list[Rows] = []
        at = text.find(wanted)
        while at >= 0 and len(places) < _MOST_PLACES:
            places.append(tape.calls[at : at + len(code)])
            at = text.find(wanted, at + 1)
        return places

    def _same_grids(self, calls: Rows, launched: Rows) -> bool:
        """Whether kernels have the same grids as those that calls launched, if known."""
        grids = self._grids
        # ROCm's calls have the grid of their kernel.
        grid = np.where(self._ran[calls] >= 0, grids[self._ran[calls]], grids[calls])
        other = grids[self._rows[launched]]
        known = (grid >= 0) & (other >= 0)
        return not known.any() or 100.0 * float((grid == other)[known].mean()) >= LEAST_PERCENT

    @cached_property
    def _grids(self) -> Numbers:
        return _codes(self.hosts, "grid")

    def _apply(
        self,
        code: Numbers,
        launched: list[tuple[int, Rows]],
        tapes: list[tuple[Rows, bool]],
        closest: float,
    ) -> None:
        """Set the calls of all launches of one sequence of work."""
        candidates = [calls for calls, _ in tapes]
        alike = all(self._same_work(candidates[0], each) for each in candidates[1:])
        sizes = [self._size(int(each[each >= 0][0])) for each in candidates]
        with_shapes = bool(candidates)
        for at, (call, some) in enumerate(launched) if candidates else ():
            choice, shapes = at % len(candidates), alike
            size = self._size(call)
            fits = [
                (own, number) for number, own in enumerate(sizes) if own and size and own >= size
            ]
            if fits:
                # Servers capture several sizes, and launch the smallest that is large enough.
                least = min(own for own, _ in fits)
                same = [number for own, number in fits if own == least]
                choice = same[at % len(same)]
                shapes = all(
                    self._same_work(candidates[same[0]], candidates[each]) for each in same
                )
            elif size and all(sizes):
                shapes = False
            with_shapes &= shapes
            self.call[some] = candidates[choice]
            self.with_shapes[some] = shapes
        times = self._trace.events.dur_ns[self._rows]
        every = np.concatenate([some for _, some in launched])
        matched = every[self.call[every] >= 0]
        self.graphs.append(
            GraphMatch(
                calls=np.array([call for call, _ in launched], dtype=np.intp),
                events=len(code),
                time_ns=int(times[every].sum()),
                matched=len(matched) // len(launched),
                matched_ns=int(times[matched].sum()),
                candidates=len(candidates),
                source=self._source(*tapes[0]) if tapes else None,
                shapes=with_shapes,
                closest=closest,
            )
        )

    def _source(self, calls: Rows, captured: bool) -> str:
        around = self._annotation(int(calls[calls >= 0][0]))
        if around is not None:
            return around
        return "a capture" if captured else "work outside of graphs"

    def _annotation(self, call: int) -> str | None:
        row = int(stages_around(self.hosts, np.array([call], dtype=np.intp))[0])
        return None if row < 0 else self.hosts.names[self.hosts.events.name[row]]

    def _size(self, call: int) -> int | None:
        """Return the requests or tokens in the annotation around a call; None if it has none."""
        around = self._annotation(call) or ""
        found = next((each for rule in _SIZES if (each := rule.search(around))), None)
        return sum(map(int, found.groups())) if found else None


def _outermost(trace: Trace, calls: Rows) -> Rows:
    """Return the calls that are not within another one, as calls of the driver can be."""
    events = trace.events
    # Nested calls with the same correlation are one launch.
    outer = launch_of(trace, calls)
    calls = calls[(outer < 0) | (outer == calls)]
    _, thread = threads(trace, calls)
    kept = []
    for some in by_group(thread, int(thread.max()) + 1) if len(calls) else []:
        of_thread = calls[some]
        of_thread = of_thread[np.lexsort((-events.end_ns[of_thread], events.begin_ns[of_thread]))]
        reach = np.maximum.accumulate(events.end_ns[of_thread])
        begin, end = events.begin_ns[of_thread][1:], events.end_ns[of_thread][1:]
        kept.append(of_thread[np.append(True, (end > reach[:-1]) | (begin >= reach[:-1]))])
    return np.concatenate(kept) if kept else calls


def _can_launch(operator: str, kernel: str) -> bool | None:
    """Whether an operator can launch a kernel, by the kinds of both; None if they do not tell."""
    if operator.startswith("triton_") or kernel.startswith("triton_"):
        return kernel.startswith(operator) or operator.startswith(kernel)
    kind, other = kinds.kind_of(operator), kinds.kind_of(kernel)
    if kind == other:
        return None if kind == kinds.OTHER else True
    if (kind in _DISTINCT and other in _SIMPLE) or (kind in _SIMPLE and other in _DISTINCT):
        return False
    return None


# Above the surrogates; codes are not below -10.
_FIRST_CHARACTER = 0x10000
_LAST_CODE = 0x10FFFF - _FIRST_CHARACTER


def _as_text(code: Numbers) -> str:
    """Return codes as characters, in which sequences are found quickly."""
    return "".join(map(chr, (np.clip(code, -10, _LAST_CODE) + _FIRST_CHARACTER).tolist()))


def _codes(trace: Trace, key: str) -> Numbers:
    """Return a code for the text of an argument of each event; -1 without it, and for row -1."""
    argument = trace.argument(key)
    codes = np.full(len(trace.events) + 1, -1, dtype=np.int64)
    if argument is not None and argument.numbers is None:
        codes[argument.rows] = argument.codes
    return codes


def _numbers(trace: Trace, key: str) -> NDArray[np.int64]:
    """Return the integer argument of each event; 0 without it."""
    argument = trace.argument(key)
    numbers = np.zeros(len(trace.events), dtype=np.int64)
    if argument is not None and argument.numbers is not None:
        numbers[argument.rows] = argument.numbers.astype(np.int64)
    return numbers
