"""Requests as an HTML page: their timelines over processes, stages, hand-offs, and what is missing.

The page is that of traces (`stagespan.pages.html`), with other data.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from stagespan.pages import html
from stagespan.pages.amounts import counted, in_words
from stagespan.pages.escaping import one_line
from stagespan.pages.html.data import packed, written_finding, written_table
from stagespan.pages.result import Evidence, Finding, Table
from stagespan.pages.timeline import TimelineRow, drawn
from stagespan.recording import request_summary
from stagespan.recording.partition import Part, pieces
from stagespan.recording.texts import clock
from stagespan.recording.timelines import Stretch, Timeline

_MOST_ROWS = 60
"""Rows of the timeline."""
_KINDS = {
    "execution": ("execution", "computing"),
    "handoff": ("hand-off", "communicating"),
    "queue": ("queue", "medium"),
    "unattributed": ("unattributed", "line"),
}
"""What the page calls each kind, and the name of its colour."""
_WORDS = {
    "page": "Requests",
    "timeline": "Timeline of requests and their processes",
    "axis": "time since the begin",
    "as_text": "stagespan requests",
    "heights": "",
    "no_findings": "No findings: all requests are complete.",
}


def page(found: Sequence[Timeline], shown: Sequence[Timeline], lost: Mapping[str, int]) -> str:
    """Return the page of requests, with the timelines of some of them, which are ``shown``.

    Raises StagespanError if plotly is not installed.
    """
    return html.filled(_data(found, shown, lost))


def _data(
    found: Sequence[Timeline], shown: Sequence[Timeline], lost: Mapping[str, int]
) -> dict[str, Any]:
    rows, left_out = _rows(shown)
    timeline = drawn(rows)
    total_ns = sum(one.total_ns for one in found)
    times = request_summary.distribution([one.total_ns for one in found])
    sums = [(kind, sum(one.where_sum(kind) for one in found)) for kind in _KINDS]
    texts = {name: in_words(times[f"{name}_ns"], "ns") for name in ("p50", "p95", "max")}
    processes = {stretch.recording.path for one in found for stretch in one.segments}
    begin_ns = min(one.begin_ns for one in found)
    notes = [f"{left_out} of the requests are not in the timeline."] if left_out else []
    return {
        "words": _WORDS,
        "title": one_line(found[0].id) if len(found) == 1 else "Requests",
        "summary": (
            f"{counted(len(found), 'request')} in {counted(len(processes), 'process', 'processes')}"
            f", the first at {clock(begin_ns)}"
        ),
        "made_by": f"stagespan {metadata.version('stagespan')}",
        "incomplete": False,
        "notes": notes,
        "verdict": {
            "word": counted(len(found), "request"),
            "sentence": (
                f"The median time is {texts['p50']}, the 95th percentile {texts['p95']}, and the"
                f" longest {texts['max']}. The parts of each request sum to its time."
            ),
        },
        "bar": {
            "name": "request",
            "count": len(found),
            "parts": [(_KINDS[kind][0], ns, _KINDS[kind][1]) for kind, ns in sums if ns],
        }
        if total_ns
        else None,
        "compared": False,
        "findings": [written_finding(one) for one in _findings(found, lost)],
        "window_ns": max(one.total_ns for one in found),
        "rows": [row["name"] for row in timeline["rows"]],
        "timeline": packed(timeline),
        "pictures": [],
        "sections": [
            _section("requests", "Requests", _requests(shown, len(found)), _where(shown)),
            _section("stages", "Stages", _stages(found)),
            _section("hand-offs", "Hand-offs", _hops(found)),
        ],
    }


# --- the timeline ---------------------------------------------------------------------------------


def _rows(shown: Sequence[Timeline]) -> tuple[list[TimelineRow], int]:
    """Return the rows of the requests, and how many requests have none.

    A request has a row of where its time went, and below it one for each of its segments if there
    are several.
    """
    spent: Counter[str] = Counter()
    for one in shown:
        spent.update({name: ns for (kind, name), ns in one.where.items() if kind == "execution"})
    keys = [_KINDS[kind][::-1] for kind in ("handoff", "queue")]
    keys += [(f"stage {name}", name) for name, _ in spent.most_common()]
    rows: list[TimelineRow] = []
    left_out = 0
    for one in shown:
        segments = [stretch for stretch in one.segments if stretch.parts]
        if len(segments) == 1:
            segments = []
        if rows and len(rows) + 1 + len(segments) > _MOST_ROWS:
            left_out += 1
            continue
        root = one.segments[0]
        begin_ns, end_ns = root.begin_ns, root.begin_ns + one.total_ns
        parts = [part for stretch in one.segments for part in stretch.parts]
        rows.append(_row(one_line(one.id), begin_ns, pieces(begin_ns, end_ns, parts), keys))
        for stretch in segments:
            own = pieces(begin_ns, end_ns, stretch.parts)
            rows.append(_row(_label(stretch), begin_ns, own, keys))
    return [row for row in rows if len(row.begin)], left_out


def _label(stretch: Stretch) -> str:
    recording = stretch.recording
    name = recording.worker or recording.name.removeprefix("python ").rpartition("/")[2]
    return f"{'> ' * max(stretch.depth, 1)}{one_line(name)} {recording.pid}"


def _row(
    name: str, begin_ns: int, parts: Iterator[Part], keys: list[tuple[str, str]]
) -> TimelineRow:
    found = [part for part in parts if part.kind != "unattributed"]
    of_stage = {name: at for at, (_, name) in enumerate(keys) if at > 1}
    of_kind = {"handoff": 0, "queue": 1}
    names: dict[str, int] = {}
    key = [of_kind.get(part.kind, of_stage.get(part.name, 0)) for part in found]
    label = [
        names.setdefault(f"{_KINDS[part.kind][0]} {one_line(part.name)}".rstrip(), len(names))
        for part in found
    ]
    return TimelineRow(
        name,
        np.array([part.begin_ns - begin_ns for part in found], dtype=np.int64),
        np.array([part.end_ns - begin_ns for part in found], dtype=np.int64),
        np.array(key, dtype=np.intp),
        keys,
        np.array(label, dtype=np.intp),
        list(names),
        "parts",
    )


# --- findings and tables --------------------------------------------------------------------------


def _findings(found: Sequence[Timeline], lost: Mapping[str, int]) -> list[Finding]:
    by_cause: defaultdict[str, list[Timeline]] = defaultdict(list)
    for one in found:
        for cause in one.causes:
            by_cause[cause.partition(" (")[0]].append(one)
    findings = [
        Finding(
            severity="medium",
            sentence=f"{counted(len(those), 'request is', 'requests are')} incomplete: {cause}.",
            evidence=tuple(
                Evidence(event=one.id, time_ns=None, figure=one.total_ns, unit="ns")
                for one in sorted(those, key=lambda one: -one.total_ns)[:5]
            ),
            code="requests.incomplete",
        )
        for cause, those in by_cause.items()
    ]
    for cause, count in lost.items():
        if count:
            evidence = Evidence(event=cause, time_ns=None, figure=count, unit="")
            sentence = f"The recordings have lost {cause}, so figures can be incomplete."
            findings.append(
                Finding(
                    severity="low", sentence=sentence, evidence=(evidence,), code="requests.lost"
                )
            )
    return findings


def _section(name: str, heading: str, *tables: Table) -> dict[str, Any]:
    return {
        "name": name,
        "first": False,
        "heading": heading,
        "unknown": None,
        "tables": [written_table(_filled(table)) for table in tables if table.rows],
    }


def _filled(table: Table) -> Table:
    """Return a table without the columns in which all cells are 0, empty or unknown."""
    at = [i for i in range(len(table.columns)) if any(row[i] for row in table.rows)]
    rows = [tuple(row[i] for i in at) for row in table.rows]
    return Table(table.title, tuple(table.columns[i] for i in at), rows, table.note)


def _requests(shown: Sequence[Timeline], count: int) -> Table:
    columns: list[Any] = [(kind, name) for kind, (name, _) in _KINDS.items()]
    return Table.of(
        "Requests" if len(shown) == count else f"The {len(shown):,} slowest of {count:,} requests",
        shown,
        ("id", "request", ""),
        ("status", "status", ""),
        ("total_ns", "total", "ns"),
        *((lambda one, kind=kind: one.where_sum(kind), name, "ns") for kind, name in columns),
        *([(_processes, "processes", "")] if any(_processes(one) > 1 for one in shown) else []),
        ("part_first_chunk_ns", "first chunk since this part was entered", "ns"),
        (lambda one: ", ".join(one.causes), "incomplete", ""),
    )


def _processes(one: Timeline) -> int:
    return len({stretch.recording.path for stretch in one.segments})


def _where(shown: Sequence[Timeline]) -> Table:
    rows = [
        (one.id, _KINDS[kind][0], name or None, ns, 100 * ns / max(one.total_ns, 1))
        for one in shown
        for (kind, name), ns in sorted(one.where.items(), key=lambda item: -item[1])
    ]
    columns = ("request", ""), ("part", ""), ("name", ""), ("time", "ns"), ("share", "%")
    return Table("Where the time of each of them went", columns, rows)


def _stages(found: Sequence[Timeline]) -> Table:
    return Table.of(
        "Stages",
        request_summary.stages(found),
        *((lambda row, key=key: row[key], name, unit) for key, name, unit in _STAGE_COLUMNS),
        note=(
            "The times are sums over spans, which can exceed the time of the requests: 'at once' is"
            " how many ran at the same time on average."
        ),
    )


_DISTRIBUTION = ("p50_ns", "p50", "ns"), ("p95_ns", "p95", "ns"), ("max_ns", "longest", "ns")
_STAGE_COLUMNS = (
    *(("stage", "stage", ""), ("count", "count", ""), ("queue_ns", "queue", "ns")),
    *(("execution_ns", "execution", "ns"), *_DISTRIBUTION, ("parallel", "at once", "")),
)
_HOP_COLUMNS = (
    *(("queue", "queue", ""), ("count", "count", ""), *_DISTRIBUTION),
    *(("queue_p50_ns", "wait p50", "ns"), ("queue_max_ns", "longest wait", "ns")),
    *(("unknown", "unknown", ""), ("negative", "negative", "")),
    ("mean_bytes", "message", "bytes"),
)


def _hops(found: Sequence[Timeline]) -> Table:
    rows = request_summary.hops(found)
    return Table.of(
        "Hand-offs",
        # Without a known sender there is nothing to show, as in a plain web service.
        rows if any(row["unknown"] < row["count"] for row in rows) else [],
        *((lambda row, key=key: row[key], name, unit) for key, name, unit in _HOP_COLUMNS),
        note="A hand-off is from sent to received, a wait from received to entered.",
    )
