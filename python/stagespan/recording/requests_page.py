"""The page of requests: where their time went, over processes, stages and hand-offs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from stagespan.pages.amounts import amount, counted, in_words, quoted
from stagespan.pages.escaping import one_line
from stagespan.pages.figures import document_schema
from stagespan.pages.page import Page, Words
from stagespan.pages.result import (
    Bar,
    BarPart,
    Block,
    Evidence,
    Finding,
    Line,
    Result,
    Table,
    share,
)
from stagespan.pages.timeline import TimelineRow
from stagespan.recording import request_figures
from stagespan.recording.partition import Part, pieces
from stagespan.recording.request_figures import (
    PART_NAMES,
    RequestFigures,
    RequestsFigures,
)
from stagespan.recording.request_sums import RequestSums
from stagespan.recording.slow_causes import SlowFigures, slow_figures
from stagespan.recording.spans import SYSTEM_COUNTS
from stagespan.recording.texts import clock
from stagespan.recording.timelines import Hop, Stretch, Timeline, Timelines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagespan.recording.source import RequestSource

_MOST_ROWS = 60
"""Rows of the timeline."""
_KINDS = {
    kind: (name, colour)
    for (kind, name), colour in zip(
        PART_NAMES.items(), ("computing", "communicating", "medium", "line"), strict=True
    )
}
"""What the page calls each kind, and the name of its colour."""
_DISTRIBUTION = ("p50_ns", "p50", "ns"), ("p95_ns", "p95", "ns"), ("max_ns", "longest", "ns")
_MOST_UNATTRIBUTED = 20
"""In percent of the time of all requests; a larger part is a finding."""
_POSITIONS = (
    (
        "before the first stage",
        "waiting for a thread of the pool or for the loop; wrap it with `queued`",
    ),
    ("between stages", "wrap what runs there with `span`, and waits with `queued`"),
    ("after the last stage", "wrap what sends the answer with `span`"),
)
"""Where the time of `RequestSums.outside_ns` is, and what to do."""
_LOST = {"links": "links of batches", "overwritten": "spans"}
_INDENT = "  "


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of what `stagespan requests --json` prints."""
    return document_schema(RequestsFigures, title="Requests")


@dataclass(frozen=True, repr=False)
class Requests(Result):
    """Requests, of which `listed` are listed one by one."""

    requests: Timelines
    listed: Sequence[Timeline]
    lost: Mapping[str, int]
    count: int
    """Of all requests; more than those in `requests` if only the slowest of them were read."""
    in_detail: bool
    """Whether the first screen shows the timeline of each request instead of tables of all."""

    @cached_property
    def sums(self) -> RequestSums:
        """What all requests have spent, and where their time went."""
        return RequestSums(self.requests)

    def figures(self) -> RequestsFigures:
        """Return the figures of the requests that are shown, and of the stages of all of them."""
        return RequestsFigures(
            self.count,
            [RequestFigures.of(timeline) for timeline in self.listed],
            request_figures.stages(self.sums),
            request_figures.hand_offs(self.sums.hops, self.sums.recordings),
            request_figures.work(self.sums),
            dict(self.lost),
        )

    def findings(self) -> list[Finding]:
        """Return what is missing, by its reason."""
        totals_ns = self.requests.totals_ns
        incomplete = [
            Finding(
                severity="medium",
                sentence=(
                    f"{counted(len(those), 'request is', 'requests are')} incomplete: {cause}."
                ),
                evidence=self._evidence(np.array(those, np.intp), totals_ns),
                code="requests.incomplete",
            )
            for cause, those in self.sums.causes.items()
        ]
        lost = [
            Finding(
                severity="low",
                sentence=(
                    f"The recordings have lost {count:,} {_LOST.get(cause, cause)}, so figures can"
                    " be incomplete."
                ),
                evidence=(Evidence(cause, None, count, ""),),
                code="requests.lost",
            )
            for cause, count in self.lost.items()
            if count
        ]
        return [*self._unattributed(), *incomplete, *lost]

    def _unattributed(self) -> list[Finding]:
        """Return where a large part of the time is not in any stage, and what to wrap."""
        total_ns = int(self.requests.totals_ns.sum())
        findings = []
        for (where, advice), of_requests in zip(_POSITIONS, self.sums.outside_ns, strict=True):
            percent = share(int(of_requests.sum()), total_ns)
            if percent <= _MOST_UNATTRIBUTED:
                continue
            findings.append(
                Finding(
                    severity="medium",
                    sentence=f"{percent:.0f} % of the time passes {where}: {advice}.",
                    evidence=self._evidence(np.arange(len(of_requests)), of_requests),
                    code="requests.unattributed",
                )
            )
        return findings

    def _evidence(
        self, requests: NDArray[np.intp], times_ns: NDArray[np.int64]
    ) -> tuple[Evidence, ...]:
        """Return the five requests of some with the longest of these times of all."""
        longest = requests[(-times_ns[requests]).argsort(kind="stable")[:5]]
        ids = self.requests.chosen(longest).column("id")
        return tuple(
            Evidence(id_, None, ns, "ns")
            for id_, ns in zip(ids, times_ns[longest].tolist(), strict=True)
        )

    def tables(self) -> list[Table]:
        """Return the requests, where the time of each went, their stages and hand-offs."""
        all_tables = (
            *(self._requests(), _where(self.listed), self._stages()),
            *(self._hand_offs(), _chunks(self.sums), _work(self.sums)),
        )
        return [table.filled() for table in all_tables if table.rows]

    def title(self) -> tuple[str, str]:
        """Return the number of requests and how long they took."""
        p50_ns, p95_ns, max_ns = request_figures.distribution(self.requests.totals_ns.tolist())
        p50, p95, longest = (in_words(time_ns or 0, "ns") for time_ns in (p50_ns, p95_ns, max_ns))
        return (
            counted(len(self.requests), "request"),
            (
                f"The median time is {p50}, the 95th percentile {p95}, and the longest {longest}."
                " The parts of each request sum to its time."
            ),
        )

    def head(self) -> list[Block]:
        """Return where the time went, then the tables, or the timeline of each request."""
        times_ns: Counter[str] = Counter()
        for (kind, _), ns in self.sums.where.items():
            times_ns[kind] += ns
        sums = [BarPart(name, times_ns[kind], colour) for kind, (name, colour) in _KINDS.items()]
        parts = [part for part in sums if part.time_ns]
        head: list[Block] = [Bar("Request", parts, len(self.requests))] if parts else []
        if self.in_detail:
            return [*head, *(block for timeline in self.listed for block in _details(timeline))]
        tables = (
            *(self._requests(), self._stages()),
            *(self._hand_offs(), _chunks(self.sums), _work(self.sums)),
        )
        return [*head, *(table.filled() for table in tables if table.rows)]

    def _requests(self) -> Table:
        listed, columns = self.listed, [(kind, name) for kind, (name, _) in _KINDS.items()]
        return Table.of(
            "Requests"
            if len(listed) == self.count
            else f"The {len(listed):,} slowest of {self.count:,} requests",
            listed,
            ("id", "request", ""),
            ("status", "status", ""),
            *([("pipeline", "pipeline", "")] if any(map(_has_pipeline, listed)) else []),
            ("total_ns", "total", "ns"),
            *((lambda one, kind=kind: one.where_sum(kind), name, "ns") for kind, name in columns),
            *(
                [(_processes, "processes", "")]
                if any(_processes(one) > 1 for one in listed)
                else []
            ),
            (lambda one: _fields(one.fields), "fields", ""),
            (_why_slow, "slow", ""),
            ("first_chunk_ns", "first chunk", "ns"),
            ("part_first_chunk_ns", "first chunk since its part was entered", "ns"),
            (lambda one: ", ".join(one.causes), "incomplete", ""),
        )

    def _hand_offs(self) -> Table:
        return _hand_offs(self.sums.hops, self.sums.recordings)

    def _stages(self) -> Table:
        entries = request_figures.entries(self.sums.hops)
        rows = request_figures.stages(self.sums)
        return Table.of(
            "Stages",
            # The entry of a plain service is a queue in which nothing waits.
            [row for row in rows if row.count or row.stage not in entries],
            *(("stage", "stage", ""), ("count", "count", ""), ("queue_ns", "queue", "ns")),
            *(("execution_ns", "execution", "ns"), *_DISTRIBUTION, ("parallel", "at once", "")),
            note=(
                "The times are sums over spans, which can exceed the time of the requests: 'at"
                " once' is how many ran at the same time on average."
            ),
        )


def _processes(timeline: Timeline) -> int:
    return len({stretch.recording.path for stretch in timeline.segments})


def _why_slow(timeline: Timeline) -> str:
    slow = slow_figures(timeline)
    return "" if slow is None else slow.in_words


def _where(requests: Sequence[Timeline]) -> Table:
    rows = [
        (request.id, _KINDS[kind][0], name or None, ns, share(ns, request.total_ns))
        for request in requests
        for (kind, name), ns in sorted(request.where.items(), key=lambda item: -item[1])
    ]
    columns = ("request", ""), ("part", ""), ("name", ""), ("time", "ns"), ("share", "%")
    return Table("Where the time of each of them went", columns, rows)


def _hand_offs(hops: Sequence[Hop], recordings: Sequence[RequestSource]) -> Table:
    rows = request_figures.hand_offs(hops, recordings)
    return Table.of(
        "Hand-offs",
        # Without a known sender there is nothing to show, as in a plain web service.
        rows if any(row.unknown < row.count for row in rows) else [],
        *(("queue", "queue", ""), ("count", "count", ""), *_DISTRIBUTION),
        *(("queue_p50_ns", "wait p50", "ns"), ("queue_max_ns", "longest wait", "ns")),
        ("behind_others_ns", "behind others", "ns"),
        *(("unknown", "unknown", ""), ("negative", "negative", "")),
        ("mean_bytes", "message", "bytes"),
        note=(
            "A message waits while the thread that receives it works for others, and from received"
            " to entered; the rest of the time is its hand-off. 'behind others' is the sum."
        ),
    )


def _work(sums: RequestSums) -> Table:
    return Table.of(
        "Work of a request",
        request_figures.work(sums),
        *(("name", "pipeline or batch", ""), ("unit", "unit", ""), ("count", "count", "")),
        *((name, name, "") for name in ("p50", "p95", "max")),
        note="What the stages of single requests have counted, and the sizes of their batches.",
    )


def _chunks(sums: RequestSums) -> Table:
    rows = request_figures.chunks(sums)
    return Table.of(
        "Chunks",
        rows,
        *(("pipeline", "pipeline", ""), ("count", "requests", "")),
        *(("first_p50_ns", "first p50", "ns"), ("first_p95_ns", "first p95", "ns")),
        *(("token_p50_ns", "per token p50", "ns"), ("token_p95_ns", "per token p95", "ns")),
        note="The first chunk counts from when the request began.",
    )


# --- one request ----------------------------------------------------------------------------------


def _details(timeline: Timeline) -> list[Block]:
    """Return one request: where its time went, and each of its spans."""
    figures = RequestFigures.of(timeline)
    total = in_words(figures.total_ns, "ns")
    began = f"trace {figures.trace_id}, began {clock(figures.begin_ns)}"
    spans: list[tuple[Any, ...]] = []
    for segment in figures.segments:
        process = f"{segment.name} {segment.pid}"
        spans.append((segment.at_ns, segment.duration_ns, process, segment.status, ""))
        for span in segment.spans:
            kind = "" if span.kind == "execution" else f"{span.kind} "
            size = f" of {span.size:,}" if span.kind == "batch" else ""
            work = "".join(
                f", {amount(n or 0)} {SYSTEM_COUNTS[unit]}"
                if unit in SYSTEM_COUNTS
                else f", {unit} {amount(n or 0)}"
                for unit, n in (span.work or {}).items()
                if n or unit not in SYSTEM_COUNTS
            )
            text = f"{_INDENT * (span.depth + 1)}{kind}{span.stage}{size}{work}"
            if span.cpu_ns is not None:
                text += f", ran {_out_of(span.cpu_ns, span.duration_ns)}"
            state = "open" if span.open else span.exception or ""
            times = ""
            if span.median_ns:
                ratio = span.duration_ns / span.median_ns
                times = f"{ratio:,.3g} x its median ({in_words(span.median_ns, 'ns')})"
            spans.append((span.at_ns, span.duration_ns, text, state, times))
    where = [
        (f"{_KINDS[part.kind][0]} {part.name}".rstrip(), part.ns, share(part.ns, figures.total_ns))
        for part in figures.where
    ]
    columns = (
        *(("at", "ns"), ("time", "ns"), ("process and stage", "")),
        *(("", ""), ("beside others", "")),
    )
    recordings = {id(one.process): one.recording for one in timeline.segments}
    tables = (
        Table("", (("where the time went", ""), ("time", "ns"), ("share", "%")), where),
        Table("", columns, spans).filled(),
        _hand_offs(timeline.hops, list(recordings.values())).filled(),
    )
    return [
        Line(f"Request {figures.request_id}, {figures.status}, {began}, {total}", "strong"),
        *(Line(sentence) for sentence in _remarks(figures)),
        *(table for table in tables if table.rows),
    ]


def _out_of(part_ns: int, whole_ns: int) -> str:
    """Return a part of a time with the whole, such as "12.0 of 369 ms"."""
    part, whole = in_words(part_ns, "ns").split(), in_words(whole_ns, "ns").split()
    return " ".join((part[:1] if part[1:] == whole[1:] else part) + ["of"] + whole)


def _has_pipeline(request: Timeline | RequestFigures) -> bool:
    return request.pipeline != "default"


def _fields(fields: Mapping[str, int | float | str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in fields.items())


def _notes(slow: SlowFigures) -> list[str]:
    """Return what a slow request is compared with, and what is not known of it."""
    limit = slow.limit
    median, percentile = (in_words(ns, "ns") for ns in (limit.median_ns, limit.percentile_ns))
    of_others = (
        f"kept because it took more than {limit.factor:g} x the {slow.percentile} ({percentile}) of"
        f" the latest {limit.compared:,} requests of its pipeline, whose median is {median}"
    )
    signatures = (f"signature of {quoted([one.stage])}: {one.words}" for one in slow.signatures)
    return [of_others, *signatures, *(f"not known: {text}" for text in slow.missing)]


def _remarks(figures: RequestFigures) -> list[str]:
    chunks = f"{figures.chunks:,} chunks, {figures.tokens:,} tokens"
    firsts = {
        "the request began": figures.first_chunk_ns,
        "its part was entered": figures.part_first_chunk_ns,
    }
    after = [f"{in_words(ns, 'ns')} after {what}" for what, ns in firsts.items() if ns is not None]
    if after:
        chunks += f", the first {' and '.join(after)}"
    late = f"{counted(figures.late_spans, 'span')} began after the end of the request"
    meanwhile = figures.open_meanwhile or 0
    open_ = counted(meanwhile, "other request was", "other requests were")
    slow = figures.slow
    said = {} if slow is None else dict.fromkeys((f"slow: {slow.in_words}", *_notes(slow)), 1)
    remarks = {
        **said,
        f"{open_} open meanwhile": meanwhile,
        f"pipeline {figures.pipeline}": _has_pipeline(figures),
        f"fields: {_fields(figures.fields)}": len(figures.fields),
        f"ended with {figures.exception}": figures.exception is not None,
        chunks: figures.chunks,
        f"discarded branches: {in_words(figures.discarded_ns, 'ns')} of executions": (
            figures.discarded_ns
        ),
        late: figures.late_spans,
        f"{in_words(figures.clipped_ns, 'ns')} of spans and hops are outside of the request": (
            figures.clipped_ns
        ),
        f"incomplete: {', '.join(figures.causes)}": len(figures.causes),
    }
    return [sentence for sentence, count in remarks.items() if count]


# --- the page -------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class RequestsPage(Page):
    """The page of requests."""

    of: Requests

    words = Words(
        page="Requests",
        timeline="Timeline of requests and their processes",
        axis="time since the start",
        as_text="stagespan requests",
        heights="",
        no_findings="No findings: all requests are complete.",
    )
    is_whole = True

    @property
    def results(self) -> dict[str, Result]:
        """The requests."""
        return {"requests": self.of}

    def name(self) -> str:
        """Return the id of the only request; otherwise "Requests"."""
        requests = self.of.requests
        return one_line(*requests.column("id")) if len(requests) == 1 else "Requests"

    def summary(self) -> str:
        """Return how many requests and processes there are, and when the first one began."""
        begins_ns = self.of.requests.begins_ns
        processes = {recording.path for recording in self.of.sums.recordings}
        began = clock(int(begins_ns[0]) if len(begins_ns) else None)
        count = counted(self.of.count, "request")
        return f"{count} in {counted(len(processes), 'process', 'processes')}, the first at {began}"

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {"schema_version": 1, **self.of.figures().to_dict()}

    def notes(self) -> list[str]:
        """Return how many requests are not in the timeline."""
        _, left_out = self._rows
        return [f"{left_out} of the requests are not in the timeline."] if left_out else []

    def window_ns(self) -> int:
        """Return the time of the longest request."""
        totals_ns = self.of.requests.totals_ns
        return int(totals_ns.max()) if len(totals_ns) else 0

    def timeline(self) -> list[TimelineRow]:
        """Return a row for each request, and rows for its segments if it has several."""
        return self._rows[0]

    @cached_property
    def _rows(self) -> tuple[list[TimelineRow], int]:
        return _rows(self.of.listed)


# --- the timeline ---------------------------------------------------------------------------------


def _rows(requests: Sequence[Timeline]) -> tuple[list[TimelineRow], int]:
    """Return the rows of the requests, and how many requests have none.

    A request has a row of where its time went, and below it one for each of its segments if there
    are several.
    """
    spent: Counter[str] = Counter()
    for request in requests:
        spent.update({n: ns for (kind, n), ns in request.where.items() if kind == "execution"})
    keys = [_KINDS[kind][::-1] for kind in ("handoff", "queue")]
    keys += [(f"stage {name}", name) for name, _ in spent.most_common()]
    rows: list[TimelineRow] = []
    left_out = 0
    for request in requests:
        segments = [
            (stretch, parts)
            for stretch, parts in zip(request.segments, request.parts, strict=True)
            if parts
        ]
        if len(segments) == 1:
            segments = []
        if rows and len(rows) + 1 + len(segments) > _MOST_ROWS:
            left_out += 1
            continue
        root = request.segments[0]
        begin_ns, end_ns = root.begin_ns, root.begin_ns + request.total_ns
        all_parts = [part for parts in request.parts for part in parts]
        rows.append(_row(one_line(request.id), begin_ns, pieces(begin_ns, end_ns, all_parts), keys))
        for stretch, parts in segments:
            own = pieces(begin_ns, end_ns, parts)
            rows.append(_row(_label(stretch), begin_ns, own, keys))
    return [row for row in rows if len(row.begin)], left_out


def _label(stretch: Stretch) -> str:
    recording = stretch.recording
    name = recording.worker or recording.name.removeprefix("python ").rpartition("/")[2]
    return f"{'> ' * max(stretch.depth, 1)}{one_line(name)} {recording.pid}"


def _row(
    name: str, begin_ns: int, parts: Iterator[Part], keys: list[tuple[str, str]]
) -> TimelineRow:
    shown_parts = [part for part in parts if part.kind != "unattributed"]
    of_stage = {name: at for at, (_, name) in enumerate(keys) if at > 1}
    of_kind = {"handoff": 0, "queue": 1}
    names: dict[str, int] = {}
    key = [of_kind.get(part.kind, of_stage.get(part.name, 0)) for part in shown_parts]
    label = [
        names.setdefault(f"{_KINDS[part.kind][0]} {one_line(part.name)}".rstrip(), len(names))
        for part in shown_parts
    ]
    return TimelineRow(
        name,
        np.array([part.begin_ns - begin_ns for part in shown_parts], dtype=np.int64),
        np.array([part.end_ns - begin_ns for part in shown_parts], dtype=np.int64),
        np.array(key, dtype=np.intp),
        keys,
        np.array(label, dtype=np.intp),
        list(names),
        "parts",
    )
