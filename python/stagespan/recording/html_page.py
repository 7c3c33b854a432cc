"""Writes a recording as an HTML page: stages, open spans, and a timeline of the latest spans."""

from __future__ import annotations

import html
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from stagespan.pages.amounts import duration
from stagespan.pages.escaping import one_line
from stagespan.recording import dump, summary
from stagespan.recording.texts import clock, ending

if TYPE_CHECKING:
    from stagespan.recording.reading import Recording

_MOST_SPANS = 4000
_WIDTH, _ROW = 1200, 16
_DEEPEST = 30
"""Deeper stages and spans are drawn at this depth."""

_STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1240px; padding: 0 1em; }
table { border-collapse: collapse; margin: 0.5em 0; }
th, td { padding: 0.15em 0.8em; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
.timeline { overflow-x: auto; }
svg { background: #8881; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
.open { stroke: #d33; stroke-width: 2; }
.note { opacity: 0.75; }
"""


def page(recording: Recording) -> str:
    """Return the page. It needs no other file and no network."""
    title = f"{recording.name}, process {recording.pid}"
    parts = [
        f"<h1>{_text(title)}</h1>",
        f"<p>The process {ending(recording)}.<br>{_text(_facts(recording))}</p>",
        *(f"<p><strong>{_text(warning)}</strong></p>" for warning in recording.warnings()),
        "<h2>Open stages of each thread</h2>",
        _open_spans(recording),
        "<h2>Stages</h2>",
        _stages(recording),
        "<h2>Latest spans</h2>",
        _timeline(recording),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _text(text: str) -> str:
    return html.escape(one_line(text))


def _facts(recording: Recording) -> str:
    facts = [f"host {recording.host}", f"pipeline {recording.pipeline}"]
    if recording.rank is not None:
        facts.append(f"rank {recording.rank}")
    if recording.job:
        facts.append(f"job {recording.job}")
    facts.append(f"first span {clock(recording.begin_ns)}")
    facts.append(f"last event {clock(recording.last_ns)}")
    return ", ".join(facts)


def _table(titles: list[str], rows: list[list[str]], texts: int = 1) -> str:
    """Return a table. Its first ``texts`` columns are text, the others are numbers."""

    def cells(tag: str, row: list[str]) -> str:
        return "".join(
            f"<{tag}{' class=text' if i < texts else ''}>{cell}</{tag}>"
            for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', titles)}</tr></thead><tbody>{body}</tbody></table>"


def _open_spans(recording: Recording) -> str:
    rows = []
    for position in summary.positions(recording):
        path = " &gt; ".join(_text(stage) for stage in position.stages)
        since = _text(clock(position.begin_ns))
        elapsed = "" if position.elapsed_ns is None else duration(position.elapsed_ns)
        name = _text(f"{position.thread} {position.name}")
        rows.append([name, path, _text(position.request or ""), since, elapsed])
    if not rows:
        return "<p>No span was open.</p>"
    return _table(["thread", "in", "request", "since", "for"], rows, texts=4)


def _stages(recording: Recording) -> str:
    """Return the tree of stages, with each stage below the stage in which it ran."""
    figures = recording.snapshot().stages()
    children: defaultdict[str | None, list[tuple[str, int, int]]] = defaultdict(list)
    for name, stage in figures.items():
        for parent, (count, total_ns) in stage.parents.items():
            children[parent].append((name, count, total_ns))
    rows: list[list[str]] = []

    def children_by_time(parent: str | None) -> list[tuple[str, int, int]]:
        return sorted(children.get(parent, ()), key=lambda row: -row[2])

    def add(parent: str | None) -> None:
        # Not recursive, because a recording can contain chains of thousands of stages.
        levels, above = [iter(children_by_time(parent))], [parent]
        while levels:
            found = next(levels[-1], None)
            if found is None:
                levels.pop()
                above.pop()
                continue
            name, count, total_ns = found
            stage = figures[name]
            quantiles = (stage.p50_ns, stage.p95_ns, stage.p99_ns, stage.max_ns)
            rows.append(
                [
                    "&nbsp;" * 4 * min(len(levels) - 1, _DEEPEST) + _text(name),
                    f"{count:,}",
                    duration(total_ns),
                    *(duration(round(ns)) for ns in quantiles),
                    f"{stage.errors:,}",
                ]
            )
            # Recursive stages are listed only once.
            if name not in above and len(rows) < _MOST_SPANS:
                levels.append(iter(children_by_time(name)))
                above.append(name)

    add(None)
    # Parents whose first run has not ended, and "(several)".
    for parent in children:
        if parent is not None and parent not in figures:
            add(parent)
    if not rows:
        return "<p>No span had ended.</p>"
    note = '<p class="note">The percentiles of a stage cover all of its runs, under any parent.</p>'
    titles = ["stage", "runs", "total", "p50", "p95", "p99", "longest", "errors"]
    return _table(titles, rows) + note


def _timeline(recording: Recording) -> str:
    # Waits and hand-offs are not what a thread did.
    spans = [row for row in dump.rows(recording) if row["kind"] in ("execution", "batch")]
    spans = sorted(spans, key=lambda row: row["end_ns"] or 1 << 62)[-_MOST_SPANS:]
    if not spans:
        return "<p>No span is in the recording.</p>"
    known = [row["end_ns"] for row in spans if row["end_ns"] is not None]
    begins = [row["begin_ns"] for row in spans]
    last = max(known + begins)
    # Open spans usually began long ago, so the timeline starts with the first finished span.
    first = min(
        (row["begin_ns"] for row in spans if row["end_ns"] is not None), default=min(begins)
    )
    if recording.state == "alive" and recording.read_ns is not None:
        last = max(last, recording.read_ns)
    length = max(last - first, 1)
    threads: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in spans:
        threads[row["thread"]].append(row)
    shapes: list[str] = []
    y = 0
    for thread, rows in sorted(threads.items()):
        name = rows[0]["thread_name"] or ""
        shapes.append(f'<text x="4" y="{y + 13}">{_text(f"{thread} {name}")}</text>')
        y += _ROW + 2
        shapes.extend(_bar(row, first, last, length, y) for row in rows)
        y += _ROW * (1 + max(min(row["depth"], _DEEPEST) for row in rows)) + 8
    drawn = f'<svg viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" role="img">'
    note = (
        f'<p class="note">{len(spans):,} spans over {duration(length)}; those with a red edge were '
        "open.</p>"
    )
    return f'<div class="timeline">{drawn}{"".join(shapes)}</svg></div>{note}'


def _bar(row: dict[str, Any], first: int, last: int, length: int, top: int) -> str:
    begin = max(row["begin_ns"], first)
    end = min(row["end_ns"] if row["end_ns"] is not None else last, last)
    x = (begin - first) / length * _WIDTH
    width = max((end - begin) / length * _WIDTH, 0.5)
    y = top + min(row["depth"], _DEEPEST) * _ROW
    hue = sum(row["stage"].encode("utf-8", "replace")) * 47 % 360
    is_open = row["end_ns"] is None
    time_ns = (last if is_open else row["end_ns"]) - row["begin_ns"]
    label = f"{row['stage']}, {'open for ' if is_open else ''}{duration(max(time_ns, 0))}"
    if row["request"]:
        label += f", request {row['request']}"
    name = f'<text x="{x + 2:.1f}" y="{y + 12}">{_text(row["stage"])}</text>'
    fits = width > 7 * len(row["stage"]) + 4
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 2}" '
        f'fill="hsl({hue} 60% 60% / 0.7)"{" class=open" if is_open else ""}>'
        f"<title>{_text(label)}</title></rect>{name if fits else ''}"
    )
