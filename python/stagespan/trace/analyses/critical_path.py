"""The chain of calls and device work that determines how long a step takes, and what would help.

The path goes through launches, streams, and calls that wait (`derived.dependencies`). Each moment
of the step belongs to one part of the path, so the parts sum to the step's length. A predicted gain
comes from computing all times again with shorter parts, so it accounts for another chain that
becomes the longest one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from stagespan.pages.amounts import in_words
from stagespan.pages.figures import Count, Figures, Internal, Ns, one_of
from stagespan.pages.result import Spared, StructResult, Table, Unavailable, share, shortened
from stagespan.trace.derived.dependencies import (
    CALL,
    HOST,
    KINDS,
    WORK,
    Edges,
    dependencies,
)
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.launch_sources import no_operators
from stagespan.trace.derived.step_ranges import step_ranges
from stagespan.trace.derived.threads import ThreadIndex
from stagespan.trace.derived.trees import Nesting
from stagespan.trace.derived.windows import base_window, steps_of
from stagespan.trace.read.groups import numbered, sums
from stagespan.trace.read.intervals import Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

# The most events of the step that is described, and of the other steps together: the times of a
# graph are computed point by point.
_MOST_EVENTS = 60_000
_MOST_OF_OTHERS = 10_000
_MOST_STEPS = 100
_MOST_PREDICTED = 12
# A change that spares more than this part of an event removes it.
_REMOVED = 0.95
_SHOWN = 50
_NAMES = tuple(KINDS)
# Kinds whose time a program can change.
_CAN_BE_SHORTER = (WORK, HOST, CALL)

_Kind = Annotated[str, one_of(KINDS)]


class PathPart(Figures, frozen=True):
    """What one name contributes to the critical path of the described step; times in ns."""

    kind: _Kind | None
    """None for the parts after the largest ones, which are summed up."""
    name: str
    """The kernel, the call, or, for the time before a call, the operator that makes the call."""
    count: Count
    """The number of its events on the path."""
    time_ns: Ns
    """Its time on the path."""
    percent: float
    """Of the step."""
    gain_ns: Ns | None = msgspec.field(name="gain_if_half_us")
    """How much shorter the step would be if all of its events took half of their time; None if it
    was not computed."""


class OffPath(Figures, frozen=True):
    """Device work of one name that is not on the critical path of the described step."""

    name: str
    count: Count
    time_ns: Ns
    slack_ns: Ns
    """How much longer the first of its events that matters could take without a longer step."""


class StepPath(Figures, frozen=True):
    """The critical path of one step by kind; the times sum to the length."""

    name: str
    whole_ns: Ns
    kinds: dict[_Kind, Ns] = msgspec.field(name="kinds_us")


class Segment(Figures, frozen=True):
    """A part of the critical path in the order of time."""

    begin_ns: int
    end_ns: int
    kind: str
    name: str


class CriticalPath(StructResult, frozen=True):
    """The critical path of every step, and of one step in detail."""

    step: str | None
    """The step with the median length, which is described; None if it is the whole trace."""
    whole_ns: Ns
    """Its length, to which the times of `parts` sum."""
    parts: list[PathPart]
    gains: dict[_Kind, Ns] = msgspec.field(name="gains_if_half_us")
    """How much shorter the step would be if everything of a kind took half of its time."""
    off_path: list[OffPath]
    steps: list[StepPath]
    segments: Internal[list[Segment]]
    """The path of the described step."""

    def line(self) -> str:
        """Return the largest parts of the path by kind."""
        times = Counter[str]()
        for part in self.parts:
            if part.kind is not None:
                times[part.kind] += part.time_ns
        parts = [
            f"{share(time, self.whole_ns):.0f} % {KINDS[kind]}"
            for kind, time in times.most_common(3)
            if time
        ]
        return f"{in_words(self.whole_ns, 'ns')}: {', '.join(parts)}"

    def tables(self) -> list[Table]:
        """The parts of the path, the work that is not on it, and every step."""
        of = "the trace" if self.step is None else shortened(self.step)
        tables = [
            Table.of(
                f"Critical path of {of}",
                self.parts,
                ("name", "", ""),
                (lambda part: KINDS.get(part.kind), "kind", ""),
                ("count", "events", ""),
                ("time_ns", "time", "ns"),
                ("percent", "of the path", "%"),
                ("gain_ns", "gain if half", "ns"),
                note="The last column is how much shorter it would be if this took half its time.",
            )
        ]
        if self.off_path:
            tables.append(
                Table.of(
                    "Not on the critical path",
                    self.off_path,
                    ("name", "kernel", ""),
                    ("count", "events", ""),
                    ("time_ns", "time", "ns"),
                    ("slack_ns", "slack", "ns"),
                    note="The slack is how much longer it could take without a longer step.",
                )
            )
        if len(self.steps) > 1:
            tables.append(
                Table(
                    "Critical path by step",
                    (("step", ""), ("length", "ns"), *((kind, "ns") for kind in KINDS)),
                    [
                        (step.name, step.whole_ns, *(step.kinds.get(kind, 0) for kind in KINDS))
                        for step in self.steps
                    ],
                )
            )
        return tables


@once
def analyze(trace: Trace) -> CriticalPath | Unavailable:
    """Find the critical path of each step; Unavailable without device events or launches."""
    if not device_work(trace).kind.any():
        return Unavailable("The trace has no device events.", "no_device")
    described = _described(trace)
    if isinstance(described, Unavailable):
        return described
    windows, middle, edges = described
    edges_of_step = {middle: edges}
    left = _MOST_OF_OTHERS
    for at, window in enumerate(windows[:_MOST_STEPS]):
        other = 0 if at == middle else _edges(trace, window, left)
        if not isinstance(other, int):
            left -= other.points // 2
            edges_of_step[at] = other
    path = _path(edges)
    names = _names(trace, edges)
    parts, gains = _parts(edges, path, names)
    return CriticalPath(
        step=windows[middle].step or None,
        whole_ns=edges.end_ns - edges.begin_ns,
        parts=parts,
        gains=gains,
        off_path=_off_path(edges, path[0], names),
        steps=[
            StepPath(windows[at].step, each.end_ns - each.begin_ns, _by_kind(each))
            for at, each in sorted(edges_of_step.items())
            if windows[at].step
        ],
        segments=[
            Segment(begin, end, _NAMES[edges.kind[edge]], names.words[names.word[edge]])
            for edge, begin, end in zip(*(column.tolist() for column in path), strict=True)
        ],
    )


def parts_won_now(trace: Trace, changes: Sequence[Spared]) -> tuple[list[float | None], str]:
    """Return which part of the time that each change spares of the device's events would be won if
    nothing else changed, and what else limits the step.

    The times of the described step are computed again with the shorter events. A part is None if
    none of the events is in this step, if there is no critical path, and if the change removes an
    event that is then not launched, because the host has less to do, too.
    """
    if not changes or not device_work(trace).kind.any():
        return [None] * len(changes), ""
    described = _described(trace)
    if isinstance(described, Unavailable):
        return [None] * len(changes), ""
    _, _, edges = described
    work = np.flatnonzero(edges.kind == _NAMES.index(WORK))
    work = work[np.argsort(edges.row[work], kind="stable")]
    rows = edges.row[work]
    lags = np.repeat(edges.lag_ns[:, None], len(changes), axis=1)
    removes = []
    for case, change in enumerate(changes):
        at = np.minimum(np.searchsorted(rows, change.rows), len(rows) - 1)
        inside = rows[at] == change.rows
        edge = work[at[inside]]
        spared = change.time_ns[inside].astype(np.int64)
        lags[edge, case] -= np.minimum(spared, edges.lag_ns[edge])
        removed = spared > _REMOVED * edges.lag_ns[edge]
        removes.append(bool(removed.any()) and not change.launched)
    spared_ns = (edges.lag_ns[:, None] - lags).sum(axis=0).tolist()
    won_ns = [edges.end_ns - end for end in edges.ends(lags)]
    times = _by_kind(edges)
    of_host = sum(times.get(kind, 0) for kind in (HOST, CALL))
    limit = "the host" if 2 * of_host > edges.end_ns - edges.begin_ns else "other work"
    return [
        won / spared if spared and not removed else None
        for won, spared, removed in zip(won_ns, spared_ns, removes, strict=True)
    ], limit


@once
def _described(trace: Trace) -> tuple[list[_Window], int, Edges] | Unavailable:
    """Return all steps, and the number and the edges of the one that is described: the median."""
    windows = _windows(trace)
    lengths = [window.end_ns - window.begin_ns for window in windows]
    middle = sorted(range(len(windows)), key=lambda at: lengths[at])[(len(windows) - 1) // 2]
    edges = _edges(trace, windows[middle], _MOST_EVENTS)
    if not isinstance(edges, int):
        return windows, middle, edges
    what = "step" if windows[middle].step else "trace"
    return Unavailable(
        f"The {what} has {edges:,} calls and device events, but a critical path can be computed"
        f" for at most {_MOST_EVENTS:,}: mark shorter steps."
        if edges
        else f"The {what} has no device events.",
        "too_many_events" if edges else "no_device",
    )


class _Window(NamedTuple):
    """A step, or the whole trace without a name."""

    step: str
    begin_ns: int
    end_ns: int
    host_end_ns: int
    """When the host has done its part of it."""


def _windows(trace: Trace) -> list[_Window]:
    steps, ranges = steps_of(trace), step_ranges(trace)
    windows = []
    if steps is not None and ranges is not None:
        host_end = np.maximum(ranges.end_ns, steps.begin_ns) if ranges.on_host else steps.end_ns
        columns = (steps.begin_ns.tolist(), steps.end_ns.tolist(), host_end.tolist())
        windows = [_Window(*row) for row in zip(steps.names, *columns, strict=True)]
        windows = [window for window in windows if window.begin_ns < window.end_ns]
    base = base_window(trace)
    assert base is not None  # there is an event
    return windows or [_Window("", base.begin_ns, base.end_ns, base.end_ns)]


def _edges(trace: Trace, window: _Window, most: int) -> Edges | int:
    return dependencies(trace, window.begin_ns, window.end_ns, window.host_end_ns, most)


def _path(edges: Edges) -> tuple[Rows, Numbers, Numbers]:
    """Return the edges of the path with their begins and ends; each moment belongs to one.

    An event that begins before the end of the one that it waited for gets the time of both.
    """
    path = edges.path
    begin = edges.times[edges.source[path]]
    # Each ends where the first of those after it begins.
    until = np.minimum.accumulate(np.append(edges.end_ns, begin[::-1]))[-2::-1]
    is_shown = begin < until
    return path[is_shown], begin[is_shown], until[is_shown]


def _by_kind(edges: Edges) -> dict[str, int]:
    edge, begin, until = _path(edges)
    kind = edges.kind[edge].astype(np.int64)
    times = sums(kind, until - begin, len(_NAMES))
    return {kind: time for kind, time in zip(_NAMES, times.tolist(), strict=True) if time}


class _Named(msgspec.Struct, frozen=True):
    """The name of each edge: the device's event, the call, or the operator around it."""

    words: list[str]
    word: Rows
    """Index into `words` of each edge's name."""


def _names(trace: Trace, edges: Edges) -> _Named:
    events, count = trace.events, len(trace.names)
    is_host = edges.kind == _NAMES.index(HOST)
    code = events.name[edges.row].astype(np.int64)
    # The time before a call is named after the operator around the call, if there is one.
    of_host = np.flatnonzero(is_host & (edges.row >= 0))
    around = _operators(trace, edges.row[of_host])
    code[of_host] = np.where(around >= 0, events.name[around], code[of_host] + count)
    code[edges.row < 0] = 2 * count
    codes, word = numbered(code)
    words = [
        trace.names[code]
        if code < count
        else f"before {trace.names[code - count]}"
        if code < 2 * count
        else "after the last call or work"
        for code in codes.tolist()
    ]
    # Equal names get one index, such as a kernel called "before x" and the time before x.
    number = {each: at for at, each in enumerate(dict.fromkeys(words))}
    return _Named(list(number), np.array([number[each] for each in words], dtype=np.intp)[word])


def _operators(trace: Trace, rows: Rows) -> Rows:
    """Return the row of the innermost operator around each event of the host, or -1."""
    none = np.full(len(rows), -1, dtype=np.intp)
    if len(rows) == 0:
        return none
    events = trace.events
    asked = events.begin_ns[rows]
    operators = np.flatnonzero(
        trace.rows_of(["cpu_op"])
        & ~no_operators(trace)
        & (events.begin_ns <= asked.max())
        & (events.end_ns > asked.min())
    )
    index = ThreadIndex(trace, operators, rows)
    if not index.fits:
        return none
    forest = Nesting.of(trace, index.axis, operators, index.of[0])
    if len(forest) == 0:
        return none
    at = forest.at(index.axis.place(index.of[1], asked))
    return np.where(at >= 0, forest.rows[at], -1)


def _parts(
    edges: Edges, path: tuple[Rows, Numbers, Numbers], names: _Named
) -> tuple[list[PathPart], dict[str, int]]:
    """Return the parts of the path, and what half of the time of each kind would gain."""
    of_edge = edges.kind.astype(np.int64) * len(names.words) + names.word
    edge, begin, end = path
    keys, first, of = np.unique(of_edge[edge], return_index=True, return_inverse=True)
    of = of.reshape(-1)
    counts, times = np.bincount(of), sums(of, end - begin, len(keys))
    # The most time first; of equal ones, the one that comes first on the path.
    order = np.lexsort((first, -times))
    keys, counts, times = (each[order] for each in (keys, counts, times))
    kinds, words = np.divmod(keys, len(names.words))
    shorter = [_NAMES.index(kind) for kind in _CAN_BE_SHORTER]
    chosen = np.flatnonzero(np.isin(kinds, shorter))[:_MOST_PREDICTED]
    halves = [of_edge == key for key in keys[chosen].tolist()]
    halves += [edges.kind == kind for kind in shorter]
    half = np.stack(halves, axis=1) * (np.maximum(edges.lag_ns, 0) // 2)[:, None]
    gains = [edges.end_ns - end for end in edges.ends(edges.lag_ns[:, None] - half)]
    gain = dict(zip(chosen.tolist(), gains, strict=False))
    whole = edges.end_ns - edges.begin_ns
    columns = (kinds, words, counts, times)
    parts = [
        PathPart(
            kind=_NAMES[kind],
            name=names.words[word],
            count=count,
            time_ns=time,
            percent=share(time, whole),
            gain_ns=gain.get(at),
        )
        for at, (kind, word, count, time) in enumerate(
            zip(*(each[:_SHOWN].tolist() for each in columns), strict=True)
        )
    ]
    if len(keys) > _SHOWN:
        count, time = int(counts[_SHOWN:].sum()), int(times[_SHOWN:].sum())
        parts.append(PathPart(None, "(other)", count, time, share(time, whole), None))
    return parts, dict(zip(_CAN_BE_SHORTER, gains[len(chosen) :], strict=True))


def _off_path(edges: Edges, path: Rows, names: _Named) -> list[OffPath]:
    on_path = np.zeros(len(names.words), dtype=np.bool_)
    on_path[names.word[path]] = True
    work = np.flatnonzero((edges.kind == _NAMES.index(WORK)) & ~on_path[names.word])
    time = edges.times[edges.target[work]] - edges.times[edges.source[work]]
    slack = edges.slack_ns()[work]
    words, first, of = np.unique(names.word[work], return_index=True, return_inverse=True)
    of = of.reshape(-1)
    counts, times = np.bincount(of, minlength=len(words)), sums(of, time, len(words))
    least = np.full(len(words), np.iinfo(np.int64).max)
    np.minimum.at(least, of, slack)
    order = np.lexsort((first, -times))[:_SHOWN]
    columns = (each[order].tolist() for each in (words, counts, times, least))
    return [OffPath(names.words[word], *row) for word, *row in zip(*columns, strict=True)]
