"""The page of one process: what its threads were doing, its stages, and its latest spans."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from stagespan.live.span_kinds import RUNS, number_of
from stagespan.live.stage_figures import stages_table
from stagespan.pages.amounts import duration
from stagespan.pages.page import Page, Words
from stagespan.pages.result import Block, Line, Result, Table
from stagespan.pages.timeline import TimelineRow, timeline_row
from stagespan.recording import summary
from stagespan.recording.reading import Recording
from stagespan.recording.request_figures import RequestsFigures
from stagespan.recording.requests_page import Requests
from stagespan.recording.source import RecordedOpenSpan, with_open
from stagespan.recording.spans import OPEN_NS, kinds_of
from stagespan.recording.stages_over_time import StagesOverTime
from stagespan.recording.summary import ProcessFigures, ThreadFigures
from stagespan.recording.texts import clock, ending
from stagespan.recording.timelines import timelines

_MOST_THREADS, _MOST_DEPTHS = 12, 4
"""Of the timeline."""
_DEEPEST = 8
"""Deeper open spans are shown at this depth."""
_MOST_REQUESTS = 20


class ProcessState(Result):
    """What a process was doing when it died, or does now."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    @cached_property
    def _figures(self) -> ProcessFigures:
        return ProcessFigures.of(self.recording)

    def figures(self) -> ProcessFigures:
        """Return what is known of the process."""
        return self._figures

    def facts(self) -> list[str]:
        """Return lines about where the process ran, and when."""
        recording = self.recording
        facts = [f"host {recording.host}", f"pipeline {recording.pipeline}"]
        if recording.rank is not None:
            of = f" of {recording.world_size}" if recording.world_size else ""
            facts.insert(0, f"rank {recording.rank}{of}")
        if recording.job:
            facts.append(f"job {recording.job}")
        times = f"first span {clock(recording.begin_ns)}, last event {clock(recording.last_ns)}"
        return [", ".join(facts), times]

    def head(self) -> list[Block]:
        """Return the facts, the open stages of each thread, the open requests and the stages."""
        figures = self._figures
        lines = [
            *(f"  {fact}" for fact in self.facts()),
            "",
            "Threads",
            *([] if figures.threads else ["  none"]),
            *(line for thread in figures.threads for line in self._thread(thread)),
            *(
                f"  on no thread: {span['stage']} (since {clock(span['begin_ns'])})"
                for span in figures.detached_open_spans
            ),
        ]
        if figures.open_requests:
            lines += ["", "Open requests"]
        for request in figures.open_requests:
            trace = f", trace {request['trace_id']}" if request["trace_id"] else ""
            # A request without a start was received, and waits.
            begin_ns = request["begin_ns"]
            state = "waiting" if begin_ns is None else f"since {clock(begin_ns)}"
            lines.append(f"  {request['id']} ({state}{trace})")
        return [*map(Line, lines), *([self._stages] if self._stages.rows else [])]

    def _thread(self, thread: ThreadFigures) -> list[str]:
        lines = [f"  {thread.thread} {thread.name}{'' if thread.is_alive else ', ended'}"]
        for depth, span in _nested(thread.open_spans):
            request = f", request {span['request']}" if span["request"] else ""
            elapsed = self._elapsed(span)
            since = f"since {clock(span['begin_ns'])}{elapsed and f', for {elapsed}'}"
            indent = "  " * min(depth, _DEEPEST)
            lines.append(f"    {indent}in {span['stage']} ({since}{request})")
        if not thread.open_spans:
            lines.append("    in no stage")
        latest = ", ".join(
            f"{span.stage} {duration(span.end_ns - span.begin_ns)}" for span in thread.latest_spans
        )
        return [*lines, *([f"    finished last, newest first: {latest}"] if latest else [])]

    def _elapsed(self, span: RecordedOpenSpan) -> str:
        """Return for how long a span has been open; "" if it is unknown."""
        recording, begin_ns = self.recording, span["begin_ns"]
        if span["elapsed_ns"] is not None:
            return duration(span["elapsed_ns"])
        if recording.end_ns is not None and recording.end_ns > begin_ns:
            return duration(recording.end_ns - begin_ns)
        last_ns = recording.last_ns
        if last_ns is not None and last_ns > begin_ns:
            return f"at least {duration(last_ns - begin_ns)}"
        return ""

    @cached_property
    def _stages(self) -> Table:
        return stages_table("Statistics", summary.runs([self.recording]))

    def tables(self) -> list[Table]:
        """Return the open stages, the latest spans, the open requests and the statistics."""
        figures = self._figures
        is_open = [
            (
                f"{thread.thread} {thread.name}",
                f"{'  ' * min(depth, _DEEPEST)}{span['stage']}",
                span["request"],
                clock(span["begin_ns"]),
                self._elapsed(span),
            )
            for thread in figures.threads
            for depth, span in _nested(thread.open_spans)
        ]
        is_open += [
            ("", span["stage"], span["request"], clock(span["begin_ns"]), self._elapsed(span))
            for span in figures.detached_open_spans
        ]
        ended = [
            (
                f"{thread.thread} {thread.name}",
                span.stage,
                span.request,
                clock(span.end_ns),
                span.end_ns - span.begin_ns,
            )
            for thread in figures.threads
            for span in thread.latest_spans
        ]
        requests = [
            (request["id"], request["trace_id"], clock(request["begin_ns"]))
            for request in figures.open_requests
        ]
        threads, stages = ("thread", ""), ("stage", "")
        tables = (
            Table(
                "Open stages of each thread",
                (threads, stages, ("request", ""), ("since", ""), ("for", "")),
                is_open,
            ),
            self._stages,
            Table(
                "Latest spans of each thread",
                (threads, stages, ("request", ""), ("ended", ""), ("time", "ns")),
                ended,
            ),
            Table("Open requests", (("request", ""), ("trace", ""), ("since", "")), requests),
        )
        return [table.filled() for table in tables if table.rows]


def _nested(spans: Sequence[RecordedOpenSpan]) -> list[tuple[int, RecordedOpenSpan]]:
    """Return the spans of a thread with their depths, each below its parent.

    Spans of asyncio tasks that take turns are not nested.
    """
    ids = {span["id"] for span in spans}
    children: defaultdict[int, list[RecordedOpenSpan]] = defaultdict(list)
    for span in spans:
        children[span["parent"] if span["parent"] in ids else 0].append(span)
    nested: list[tuple[int, RecordedOpenSpan]] = []
    left = [(0, span) for span in reversed(children.pop(0, []))]
    while left:
        depth, span = left.pop()
        nested.append((depth, span))
        left.extend((depth + 1, child) for child in reversed(children.pop(span["id"], [])))
    # In a damaged file, spans can be parents of each other.
    return nested + [(0, span) for siblings in children.values() for span in siblings]


class ProcessRequests(Result):
    """The tables of the requests that a process has served, for pages without a limited length.

    A first screen does without them, because joining many requests takes seconds.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    @cached_property
    def _requests(self) -> Requests:
        joined = timelines([self.recording], are_all=False)
        slowest = joined.slowest(_MOST_REQUESTS)
        return Requests(joined, slowest, self.recording.lost(), len(joined), in_detail=False)

    def figures(self) -> RequestsFigures:
        """Return the slowest requests, and the stages of all of them."""
        return self._requests.figures()

    def tables(self) -> list[Table]:
        """Return the slowest requests, where their time went, and the stages of all of them."""
        return self._requests.tables()


class ProcessPage(Page):
    """The page of one process, with a timeline of its latest spans."""

    words = Words(
        page="Process",
        timeline="Latest spans of each thread",
        axis="time",
        as_text="stagespan show",
    )
    is_whole = True

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._state = ProcessState(recording)
        self._over_time = StagesOverTime(recording)
        self._requests = ProcessRequests(recording)

    @property
    def results(self) -> dict[str, Result]:
        """The state of the process, its stages over time, and its requests."""
        return {
            "process": self._state,
            "stages_over_time": self._over_time,
            "requests": self._requests,
        }

    def name(self) -> str:
        """Return the process."""
        return f"Process {self.recording.pid} ({self.recording.name})"

    def summary(self) -> str:
        """Return how the process ended."""
        return re.sub(r"^(is|was) ", "", ending(self.recording))

    def headline(self) -> str:
        """Return the process and how it ended."""
        return f"{self.name()} {ending(self.recording)}."

    def lines(self) -> list[str]:
        """Return the facts; tables show the threads."""
        return self._state.facts()

    def caveat(self) -> str | None:
        """Return the problems of the recording."""
        return " ".join(self.recording.warnings()) or None

    def to_dict(self) -> dict[str, object]:
        """Return the version of the schema and the figures."""
        return {"schema_version": 1, **self._state.to_dict()}

    def window_ns(self) -> int:
        """Return the length of the timeline."""
        return max((int(row.end.max()) for row in self.timeline()), default=0)

    def timeline(self) -> Sequence[TimelineRow]:
        """Return rows for the spans of each thread, by depth."""
        return self._rows

    @cached_property
    def _rows(self) -> list[TimelineRow]:
        recording = self.recording
        spans = with_open(recording)
        # Waits and hand-offs are not what a thread did.
        spans = spans[np.isin(kinds_of(spans), [number_of(kind) for kind in RUNS])]
        if not len(spans):
            return []
        begin_ns, end_ns = spans["begin_ns"], spans["end_ns"].copy()
        is_open = end_ns == OPEN_NS
        until_ns = recording.read_ns if recording.state == "alive" else recording.end_ns
        last_ns = max(int(times.max(initial=0)) for times in (begin_ns, end_ns[~is_open]))
        end_ns[is_open] = max(last_ns, until_ns or 0)
        # Open spans usually began long ago, so the timeline starts with the first finished span.
        first_ns = int((begin_ns if is_open.all() else begin_ns[~is_open]).min())
        begin_ns = np.maximum(begin_ns, first_ns) - first_ns
        end_ns = end_ns - first_ns
        names = recording.stage_names()
        time_ns = Counter(
            dict(enumerate(np.bincount(spans["stage"], end_ns - begin_ns, len(names)).tolist()))
        )
        order = [stage for stage, _ in time_ns.most_common()]
        keys = [(f"stage {names[stage]}", names[stage]) for stage in order]
        key_of = np.empty(len(names), np.intp)
        key_of[order] = np.arange(len(order))
        threads = {thread["thread"]: thread["name"] for thread in recording.threads()}
        busiest = Counter(spans["thread"].tolist()).most_common(_MOST_THREADS)
        rows = []
        for thread, _ in busiest:
            for depth in range(_MOST_DEPTHS):
                at = np.flatnonzero((spans["thread"] == thread) & (spans["depth"] == depth))
                if len(at):
                    stage = spans["stage"][at].astype(np.intp)
                    label = f"{thread} {threads.get(thread, '')}" if not depth else "inside"
                    rows.append(
                        timeline_row(
                            f"{'> ' * depth}{label}".rstrip(),
                            begin_ns[at],
                            end_ns[at],
                            key_of[stage],
                            keys,
                            stage,
                            names,
                            "spans",
                        )
                    )
        return rows
