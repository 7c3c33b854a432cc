"""The page of `stagespan top`: the latest activity of stages and threads."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.live import statistics
from stagespan.live.span_kinds import RUNS, Kind, number_of
from stagespan.live.statistics import StageStats, Stats
from stagespan.pages.amounts import duration
from stagespan.pages.escaping import one_line
from stagespan.pages.tables import Column, fitted_table
from stagespan.recording import finding, ranks, summary
from stagespan.recording.reading import Recording
from stagespan.recording.texts import ended_requests, open_requests

_ORDERS = ("share", "rate", "p99", "name")
_KEPT_S = 10.0
_MOST_THREADS = 8
_MOST_QUEUES = 8
_OPTIONAL = {"runs": 2, "running": 3, "p50": 1}
"""Columns that are left out if the page is too narrow, the largest number first."""
_KINDS: tuple[Kind, ...] = (*RUNS, "queue")


class _Reading(NamedTuple):
    """A copy of the recording of one process, and when it was made."""

    at_s: float
    recording: Recording
    window: _Window | None
    """What the spans in the copy tell, if they tell more than earlier readings of the page."""


class _Window(NamedTuple):
    """The spans that ended in the last seconds."""

    stats: dict[Kind, Stats]
    seconds: float
    self_ns: dict[Kind, dict[str, int]]
    """The time of each stage without that of its children."""


class LivePage:
    """The state of the page: the latest readings of each process, the order, and the filter."""

    def __init__(self, which: str | None, job: str | None) -> None:
        self._which = which
        self._job = job
        self._paths: list[str] = []
        self._readings: dict[str, list[_Reading]] = {}
        self._order = 0
        self._message = ""
        self.filter = ""
        self.is_typing = False
        self.is_frozen = False

    # --- reading --------------------------------------------------------------------------------

    def read(self) -> None:
        """Read the processes again.

        Raises StagespanError if there is no process. A process that has ended is shown in its last
        state.
        """
        self._message = ""
        now = time.monotonic()
        if self._job is not None:
            is_filled = all(self._is_filled(path, now) for path in self._paths)
            found = ranks.of_job(self._job, spans=not (self._paths and is_filled))
        elif self._paths:
            found = []
            for path in self._paths:
                try:
                    found.append(Recording(path, everything=not self._is_filled(path, now)))
                except StagespanError:
                    self._message = "The process has ended: this is its last known state."
        else:
            found = [self._first()]
        for recording in found:
            recording.snapshot()  # taken now, so that snapshots can be subtracted in this order
            kept = self._readings.setdefault(recording.path, [])
            window = _window(recording, now - kept[0].at_s if kept else 0.0)
            kept.append(_Reading(now, recording, window))
            # The page shows the figures since the oldest stored reading.
            while len(kept) > 2 and now - kept[1].at_s >= _KEPT_S:
                del kept[0]
        if found:
            self._paths = [recording.path for recording in found]
            self._readings = {path: self._readings[path] for path in self._paths}

    def _is_filled(self, path: str, now_s: float) -> bool:
        """Whether the page has observed a process for as long as its figures cover."""
        kept = self._readings.get(path, [])
        return len(kept) > 0 and now_s - kept[0].at_s >= _KEPT_S

    def _first(self) -> Recording:
        if self._which is not None:
            return finding.open_recording(self._which)
        alive = [one for one in finding.recordings() if one.state == "alive"]
        if not alive:
            raise StagespanError(
                "No process records here at the moment: `stagespan ps --all` lists earlier ones."
            )
        return finding.open_recording(max(alive, key=summary.finished_spans).path)

    # --- keys -----------------------------------------------------------------------------------

    def press(self, key: str) -> bool:
        """Handle a key. Returns False if the user wants to quit."""
        if self.is_typing:
            if key in "\r\n":
                self.is_typing = False
            elif key == "\x1b":
                self.is_typing, self.filter = False, ""
            elif key in "\x7f\b":
                self.filter = self.filter[:-1]
            elif key.isprintable():
                self.filter += key
            return True
        if key in ("q", "\x03", "\x04"):
            return False
        if key == "f":
            self.is_frozen = not self.is_frozen
        elif key == "s":
            self._order = (self._order + 1) % len(_ORDERS)
        elif key == "/":
            self.is_typing = True
        return True

    def show_message(self, message: str) -> None:
        """Show a message until the next reading."""
        self._message = message

    # --- the page -------------------------------------------------------------------------------

    def render(self, width: int, height: int | None) -> list[Any]:
        """Return the page as lines and tables for rich, at most ``height`` rows high."""
        shown = [self._readings[path] for path in self._paths]
        body: list[Any] = [Text(one_line(self._title(shown)), no_wrap=True, overflow="ellipsis")]
        used = 1
        shown_ranks = ranks.ranks([kept[-1].recording for kept in shown])
        for sentence in ranks.findings(shown_ranks):
            body.append(Text(one_line(sentence), style="bold", no_wrap=True, overflow="ellipsis"))
            used += 1
        if self._message:
            body.append(Text(one_line(self._message), no_wrap=True, overflow="ellipsis"))
            used += 1
        load = summary.load(kept[-1].recording for kept in shown)
        ended = summary.requests(kept[-1].recording for kept in shown)
        for sentence in filter(None, (open_requests(load), ended_requests(ended))):
            body.append(Text(sentence, no_wrap=True, overflow="ellipsis"))
            used += 1
        rows = self._position_rows(shown_ranks)
        queues = self._queues(shown, load, width)
        # Each table has a header of two rows, and an empty row above and below.
        used += min(len(rows), _MOST_THREADS) + 8 + (queues.row_count + 4 if queues else 0)
        body.append(
            self._stages(shown, width, None if height is None else height - used, load.running)
        )
        if queues is not None:
            body.append(queues)
        body.append(self._position_table(rows[:_MOST_THREADS], width, len(rows)))
        return body

    def _title(self, shown: list[list[_Reading]]) -> str:
        frozen = ", frozen" if self.is_frozen else ""
        if self._job is not None:
            what = ("rank", "ranks") if _are_ranks(shown) else ("process", "processes")
            return f"job {self._job}, {len(shown)} {what[len(shown) != 1]}{frozen}"
        if not shown:
            return "no process"
        recording = shown[0][-1].recording
        rank = "" if recording.rank is None else f", rank {recording.rank}"
        until = recording.read_ns if recording.state == "alive" else recording.end_ns
        age = f", {duration(until - recording.begin_ns)}" if until else ""
        state = "ended" if self._message and recording.state == "alive" else recording.state
        return f"{recording.pid} {recording.name}, {state}{rank}{age}{frozen}"

    def _stages(
        self,
        shown: list[list[_Reading]],
        width: int,
        most: int | None,
        running: dict[str, int],
    ) -> Table:
        rows = [row for kept in shown for kind in RUNS for row in self._changes(kept, kind)]
        total_ns = sum(row.self_ns for row in rows) or 1
        merged = self._by_name(rows)
        for name in running:  # of which no run has ended
            if name not in merged and self._is_wanted(name):
                merged[name] = [_Change(name, 0.0, 0, 0, None, 0)]
        are_ranks = _are_ranks(shown)
        lines = [_line(name, changes, total_ns, are_ranks) for name, changes in merged.items()]
        order = _ORDERS[self._order]
        keys: dict[str, Any] = {
            "share": lambda line: (-line.share, line.name),
            "rate": lambda line: (-line.rate, line.name),
            "p99": lambda line: (-line.p99_ns, line.name),
            "name": lambda line: line.name,
        }
        lines.sort(key=keys[order])
        if most is not None:
            del lines[max(most, 1) :]
        columns = [Column("stage", [one_line(line.name) for line in lines], is_flexible=True)]
        columns += [
            Column(title, cells, is_number=True, optional=_OPTIONAL.get(title, 0))
            for title, cells in (
                ("runs/s", [f"{line.rate:,.1f}" for line in lines]),
                ("runs", [f"{line.count:,}" for line in lines]),
                ("running", [_count(running.get(line.name, 0)) for line in lines]),
                ("p50", [_quantile(line.p50_ns) for line in lines]),
                ("p95", [_quantile(line.p95_ns) for line in lines]),
                ("p99", [_quantile(line.p99_ns) for line in lines]),
                ("share", [f"{line.share:.0%}" for line in lines]),
                ("errors/s", [f"{line.error_rate:,.1f}" if line.errors else "" for line in lines]),
                ("errors", [f"{line.errors:,}" if line.errors else "" for line in lines]),
                ("device", [_shown(line.device_ns) for line in lines]),
            )
            if title not in ("running", "errors/s", "errors", "device") or any(cells)
        ]
        return fitted_table(columns, width)

    def _is_wanted(self, name: str) -> bool:
        return self.filter.lower() in name.lower()

    def _by_name(self, rows: Iterable[_Change]) -> dict[str, list[_Change]]:
        merged: dict[str, list[_Change]] = {}
        for row in rows:
            if self._is_wanted(row.name):
                merged.setdefault(row.name, []).append(row)
        return merged

    def _queues(
        self, shown: list[list[_Reading]], load: summary.LoadFigures, width: int
    ) -> Table | None:
        """Return the queues: what waits in each, and the waits that ended in the last seconds."""
        merged = self._by_name(row for kept in shown for row in self._changes(kept, "queue"))
        names = sorted({*merged, *filter(self._is_wanted, load.waiting)})
        if not names:
            return None
        names.sort(key=lambda name: -load.waiting.get(name, 0))
        lines = [_line(name, merged.get(name, []), 1, _are_ranks(shown)) for name in names]
        del lines[_MOST_QUEUES:]
        return fitted_table(
            [
                Column("queue", [one_line(line.name) for line in lines], is_flexible=True),
                *(
                    Column(title, cells, is_number=True)
                    for title, cells in (
                        ("waiting", [f"{load.waiting.get(line.name, 0):,}" for line in lines]),
                        ("longest", [_shown(load.longest_ns.get(line.name)) for line in lines]),
                        ("waits/s", [f"{line.rate:,.1f}" for line in lines]),
                        ("p50", [_quantile(line.p50_ns) for line in lines]),
                        ("p95", [_quantile(line.p95_ns) for line in lines]),
                        ("p99", [_quantile(line.p99_ns) for line in lines]),
                    )
                ),
            ],
            width,
        )

    def _changes(self, kept: list[_Reading], kind: Kind) -> list[_Change]:
        """Return the activity of each stage in the last seconds before the latest reading."""
        first, last = kept[0], kept[-1]
        seconds = last.at_s - first.at_s
        if last.window is not None:
            recent, seconds = last.window.stats[kind], last.window.seconds
            own_ns = last.window.self_ns[kind]
        elif seconds <= 0:
            recent, own_ns = last.recording.stats(kind=kind), {}
        else:
            between = last.recording.snapshot().since(first.recording.snapshot())
            recent = statistics.of_recording(between, {}, 0, kind)
            own_ns = {
                name: stage.total_ns - stage.children_ns
                for name, stage in between.stages(number_of(kind)).items()
            }
        return [
            _Change(
                name,
                seconds,
                stage.count,
                stage.errors,
                recent.get(name),
                max(own_ns.get(name, 0), 0),
            )
            for name, stage in last.recording.stats(kind=kind).items()
        ]

    def _position_rows(self, shown_ranks: list[ranks.Rank]) -> list[_PositionRow]:
        rows = []
        for rank in shown_ranks:
            positions = summary.positions(rank.recording)
            if len(shown_ranks) > 1:
                positions = positions[:1]
            for position in positions:
                label = rank.label if len(shown_ranks) > 1 else f"{position.thread} {position.name}"
                elapsed = "" if position.elapsed_ns is None else duration(position.elapsed_ns)
                rows.append(_PositionRow(label, position.stages, elapsed))
        return rows

    def _position_table(self, rows: list[_PositionRow], width: int, total: int) -> Table:
        hidden = f" ({total - len(rows)} more)" if total > len(rows) else ""
        of_job = "rank" if _are_ranks(list(self._readings.values())) else "process"
        title = ("thread" if self._job is None else of_job) + hidden
        label = [_cut(one_line(row.label), max(width // 3, 12)) for row in rows]
        elapsed = [row.elapsed for row in rows]
        used = sum(max(map(cell_len, cells)) + 3 for cells in ([title, *label], ["for", *elapsed]))
        left = max(width - used - 3, 8)
        inside = [_innermost([one_line(name) for name in row.stages], left) for row in rows]
        return fitted_table(
            [Column(title, label), Column("in", inside, is_flexible=True), Column("for", elapsed)],
            width,
        )


def _window(recording: Recording, observed_s: float) -> _Window | None:
    """Return the figures of the last seconds from the latest spans in a recording.

    Returns None if the recording was read without spans, or if its rings reach back less far than
    ``observed_s`` seconds.
    """
    if not recording.has_spans:
        return None
    spans = recording.spans()
    until_ns = recording.read_ns if recording.state in ("alive", "unknown") else recording.end_ns
    until_ns = until_ns or recording.last_ns
    if until_ns is None:
        return None
    began_ns = max(until_ns - round(_KEPT_S * 1e9), recording.complete_ns)
    spans = spans[spans["end_ns"] > began_ns]
    # A young process, which may have recorded spans that were timed before its first one.
    first_ns = min(recording.begin_ns, int(spans["end_ns"].min()) if len(spans) else until_ns)
    seconds = (until_ns - max(began_ns, first_ns)) / 1e9
    if seconds <= observed_s:
        return None
    names = recording.stage_names()
    numbers = (spans["flags"] >> _core.KIND_SHIFT).tolist()
    lengths = (spans["end_ns"] - spans["begin_ns"]).tolist()
    ids, stages, parents = (spans[name].tolist() for name in ("id", "stage", "parent"))
    places = {id_: place for place, id_ in enumerate(ids)}
    self_ns: dict[int, Counter[str]] = {number_of(kind): Counter() for kind in _KINDS}
    for number, stage, parent, length in zip(numbers, stages, parents, lengths, strict=True):
        if number not in self_ns:
            continue
        self_ns[number][names[stage]] += length
        around = places.get(parent)
        if around is not None and numbers[around] in self_ns:
            self_ns[numbers[around]][names[stages[around]]] -= length
    of_kind = {
        kind: spans[spans["flags"] >> _core.KIND_SHIFT == number_of(kind)] for kind in _KINDS
    }
    stats = {kind: statistics.of_spans(of, names, {}, seconds) for kind, of in of_kind.items()}
    return _Window(stats, seconds, {kind: self_ns[number_of(kind)] for kind in _KINDS})


class _PositionRow(NamedTuple):
    """The open stages of a thread or rank."""

    label: str
    stages: tuple[str, ...]
    elapsed: str


def _count(count: int) -> str:
    return f"{count:,}" if count else ""


def _shown(ns: float | None) -> str:
    return "" if ns is None else duration(round(ns))


def _quantile(ns: float) -> str:
    """Return a quantile of the last seconds; "-" without runs, so that its column stays."""
    return _shown(ns) if ns else "-"


def _cut(text: str, width: int) -> str:
    cut = Text(text)
    cut.truncate(width, overflow="ellipsis")
    return cut.plain


def _innermost(stages: list[str], width: int) -> str:
    """Return the path to the innermost stage, without the outermost ones if it is too long."""
    for first in range(len(stages)):
        path = " > ".join((["…"] if first else []) + stages[first:])
        if cell_len(path) <= width:
            return path
    return _cut(" > ".join((["…"] if len(stages) > 1 else []) + stages[-1:]), width)


@dataclass(frozen=True)
class _Change:
    """The activity of one stage in one process."""

    name: str
    seconds: float
    """The time in which the recent runs ended."""
    count: int
    errors: int
    recent: StageStats | None
    self_ns: int

    def per_s(self, count: int) -> float:
        """Return a number of recent runs per second."""
        return count / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class _Line:
    """A row of the page."""

    name: str
    rate: float
    count: int
    p50_ns: float
    p95_ns: float
    p99_ns: float
    share: float
    error_rate: float
    errors: int
    device_ns: float | None


def _are_ranks(shown: list[list[_Reading]]) -> bool:
    return any(kept[-1].recording.rank is not None for kept in shown)


def _line(name: str, changes: list[_Change], total_ns: int, are_ranks: bool) -> _Line:
    recent = [change.recent for change in changes if change.recent is not None]
    if len(recent) > 1 and not are_ranks:
        recent = [statistics.merged_stage(recent)]
    device = [
        stats.device_elapsed_ns.mean_ns for stats in recent if stats.device_elapsed_ns is not None
    ]
    # If there are several ranks, show the slowest one.
    slowest = [
        max((getattr(stats, key) for stats in recent), default=0.0)
        for key in ("p50_ns", "p95_ns", "p99_ns")
    ]
    return _Line(
        name,
        sum(change.per_s(change.recent.count) for change in changes if change.recent is not None),
        sum(change.count for change in changes),
        p50_ns=slowest[0],
        p95_ns=slowest[1],
        p99_ns=slowest[2],
        share=sum(change.self_ns for change in changes) / total_ns,
        error_rate=sum(
            change.per_s(change.recent.errors) for change in changes if change.recent is not None
        ),
        errors=sum(change.errors for change in changes),
        device_ns=max(device, default=None),
    )
