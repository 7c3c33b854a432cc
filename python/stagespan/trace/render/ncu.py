"""The report on kernels for the terminal, as Markdown, as SVG and as an HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from stagespan.console import trimmed
from stagespan.trace.ncu.command import base_name
from stagespan.trace.ncu.limits import (
    BALANCED,
    CANNOT_TELL,
    COMPUTE_BOUND,
    LATENCY_BOUND,
    MEMORY_BOUND,
    Roofs,
)
from stagespan.trace.ncu.report import NcuReport, Placed, summary
from stagespan.trace.render.html import filled
from stagespan.trace.render.html.data import written_finding, written_table
from stagespan.trace.render.markdown import escaped, listed_findings, markdown_table
from stagespan.trace.render.terminal import finding_block, screen
from stagespan.trace.result import Cell, in_cell, in_words, printable, shortened

if TYPE_CHECKING:
    from rich.console import Console


def show(report: NcuReport, console: Console | None = None) -> None:
    """Print a line for each kernel and the findings, by default on standard output."""
    console = screen(console)
    with trimmed(console):
        _show(report, console)


def _show(report: NcuReport, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(Text(_head(report), "bold"))
    for note in _notes(report):
        console.print(Text(note, "yellow"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("kernel", "bound"):
        table.add_column(heading, no_wrap=True)
    for heading in ("of stage", "one launch", "computing", "memory", "occupancy"):
        table.add_column(heading, justify="right")
    for row in report.tables()[0].rows:
        kernel, bound, percent, _, time, computing, memory, occupancy, _ = row
        shares = [_percent(cell) for cell in (computing, memory, occupancy)]
        table.add_row(
            Text(shortened(base_name(str(kernel)), 34)),
            Text(str(bound)),
            _percent(percent),
            in_cell(time, "ns"),
            *shares,
        )
    console.print(table)
    for finding in report.findings():
        console.print(finding_block(finding, 0), highlight=False)
    for reason in _missing_reasons(report):
        console.print(Text(reason, "dim"))


def markdown(report: NcuReport) -> str:
    """Return the whole report as Markdown."""
    lines = ["# Kernels by Nsight Compute", "", f"{escaped(_head(report))}.", ""]
    lines += [line for note in _notes(report) for line in (escaped(note), "")]
    lines += listed_findings(report.findings())
    for table in report.tables():
        lines += [*markdown_table(table), ""]
    lines += [line for reason in _missing_reasons(report) for line in (escaped(reason), "")]
    return "\n".join(lines).rstrip() + "\n"


def roofline(report: NcuReport) -> str:
    """Return the roofline as SVG."""
    stage = f"Roofline of {report.top.stage}" if report.top is not None else "Roofline"
    return _svg(shortened(stage, 80), report.placed(), report.roofs)


def html(report: NcuReport) -> str:
    """Return a page that needs no network. Raises StagespanError if plotly is not installed."""
    placed = report.placed()
    picture = {
        "analysis": "kernels",
        "kind": "roofline",
        "bandwidth": report.roofs.bandwidth,
        "rates": sorted(report.roofs.rates.items()),
        "points": [
            (shortened(each.name, 200), each.bound, each.point.intensity, each.point.rate)
            for each in placed
        ],
        "colours": _COLOURS,
    }
    title = report.top.stage if report.top is not None else "kernels"
    data: dict[str, Any] = {
        "title": shortened(f"{title}: kernels by Nsight Compute", 120),
        "summary": summary(report),
        "made_by": f"stagespan {metadata.version('stagespan')}",
        "incomplete": False,
        "notes": [*_notes(report), *_missing_reasons(report)],
        "verdict": None,
        "device": [],
        "findings": [written_finding(each) for each in report.findings()],
        "no_findings": "No findings: no kernel has enough metrics for a verdict.",
        "window_ns": 0,
        "lanes": [],
        "pictures": [picture] if placed else [],
        "sections": [
            {
                "name": "kernels",
                "heading": "Kernels",
                "unknown": None,
                "tables": [written_table(table) for table in report.tables()],
            }
        ],
    }
    return filled(data)


def _percent(cell: Cell) -> str:
    return "-" if cell is None else in_cell(cell, "%")


def _head(report: NcuReport) -> str:
    stage = f"{report.top.stage}: " if report.top is not None else ""
    return printable(f"{stage}{summary(report)}")


_SKIPPED = {
    "line that is no row of the table": "line that is not a row of the table",
    "value that is no number": "value that is not a number",
}


def _notes(report: NcuReport) -> list[str]:
    notes = [printable(report.reading.incomplete)] if report.reading.incomplete else []
    left_out = report.reading.left_out
    if left_out:
        listed = [f"{_SKIPPED.get(what, what)} ({count:,})" for what, count in left_out.items()]
        notes.append(f"Skipped: {', '.join(listed)}.")
    if report.missing:
        names = ", ".join(shortened(kernel.name, 60) for kernel in report.missing)
        time = in_words(sum(kernel.ms for kernel in report.missing) * 1e6, "ns")
        notes.append(f"Requested, but not measured ({time} in the trace): {names}.")
    return notes


def _missing_reasons(report: NcuReport) -> list[str]:
    """Return the reasons why some kernels have no verdict, each once."""
    reasons: dict[str, int] = {}
    for each in report.judged:
        if each.judgement.bound == CANNOT_TELL:
            text = "; ".join(each.judgement.reasons)
            reasons[text] = reasons.get(text, 0) + 1
    return [f"No verdict on {number:,} kernels: {reason}." for reason, number in reasons.items()]


# --- The picture of the roofline ---


_COLOURS = {
    MEMORY_BOUND: "#2f7fd6",
    COMPUTE_BOUND: "#2f9e63",
    LATENCY_BOUND: "#e2674a",
    BALANCED: "#a44cc4",
    CANNOT_TELL: "#868d97",
}
_SVG_WIDTH, _SVG_HEIGHT = 900, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 56, 60
_LONGEST_LABEL = 48
_OPEN = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SVG_WIDTH} {_SVG_HEIGHT}"'
    ' font-family="sans-serif" font-size="12" role="img">'
)


def _svg(title: str, kernels: Sequence[Placed], roofs: Roofs) -> str:
    """Return the roofline as SVG. If there are no points, it contains a sentence."""
    axes = _Axes(kernels, roofs)
    parts = [
        _OPEN,
        f"<title>{_text(title)}</title>",
        f'<rect width="{_SVG_WIDTH}" height="{_SVG_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="600">{_text(title)}</text>',
        _legend(),
    ]
    if not kernels:
        parts.append(
            f'<text x="{_LEFT}" y="{_SVG_HEIGHT // 2}">No kernel has counted operations and bytes.'
            "</text>"
        )
    else:
        parts += [*axes.grid(), *_roofs(axes, roofs), *_points(axes, kernels)]
    return "\n".join([*parts, "</svg>", ""])


class _Axes:
    """Two logarithmic axes."""

    def __init__(self, kernels: Sequence[Placed], roofs: Roofs) -> None:
        across = [each.point.intensity for each in kernels] + list(roofs.ridges.values())
        up = [each.point.rate for each in kernels] + list(roofs.rates.values())
        self.across, self.up = _decades(across or [1.0]), _decades(up or [1e12])

    def x(self, value: float) -> float:
        low, high = self.across
        part = (math.log10(value) - low) / (high - low)
        return _LEFT + part * (_SVG_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.up
        part = (math.log10(value) - low) / (high - low)
        return _SVG_HEIGHT - _BOTTOM - part * (_SVG_HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> list[str]:
        bottom, parts = _SVG_HEIGHT - _BOTTOM, []
        for power in range(self.across[0], self.across[1] + 1):
            x = self.x(10.0**power)
            parts.append(_line(x, _TOP, x, bottom, "#e3e6ea"))
            parts.append(_label(x, bottom + 18, f"{10.0**power:g}", "middle"))
        for power in range(self.up[0], self.up[1] + 1):
            y = self.y(10.0**power)
            parts.append(_line(_LEFT, y, _SVG_WIDTH - _RIGHT, y, "#e3e6ea"))
            parts.append(_label(_LEFT - 8, y + 4, _with_prefix(10.0**power, 0), "end"))
        middle = (_LEFT + _SVG_WIDTH - _RIGHT) / 2
        parts.append(
            _label(middle, _SVG_HEIGHT - 16, "operations per byte of device memory", "middle")
        )
        across = (_TOP + bottom) / 2
        parts.append(
            f'<text transform="translate(18 {across:.1f}) rotate(-90)" text-anchor="middle">'
            "operations per second</text>"
        )
        return parts


def _with_prefix(value: float, digits: int = 2) -> str:
    """Return operations or bytes per second as text: 1.5e12 is "1.50 T"."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size * 0.9999:
            return f"{value / size:.{digits}f} {letter}"
    return f"{value:.{digits}f}"


def _roofs(axes: _Axes, roofs: Roofs) -> list[str]:
    if not roofs.bandwidth:
        return []
    parts = []
    left, right = 10.0 ** axes.across[0], 10.0 ** axes.across[1]
    for precision, rate in roofs.rates.items():
        ridge = rate / roofs.bandwidth
        parts.append(_line(axes.x(ridge), axes.y(rate), axes.x(right), axes.y(rate), "#1b1f24", 2))
        words = f"{_with_prefix(rate)}FLOP/s, {precision} precision"
        parts.append(_label(_SVG_WIDTH - _RIGHT - 4, axes.y(rate) - 6, words, "end"))
    end = max(roofs.ridges.values(), default=right)
    begin = max(left, 10.0 ** axes.up[0] / roofs.bandwidth)
    if begin < end:
        top = end * roofs.bandwidth
        parts.append(
            _line(axes.x(begin), axes.y(begin * roofs.bandwidth), axes.x(end), axes.y(top),
                  "#1b1f24", 2)
        )  # fmt: skip
        words = f"{_with_prefix(roofs.bandwidth)}B/s device memory"
        x0, y0 = axes.x(begin), axes.y(begin * roofs.bandwidth)
        x1, y1 = axes.x(end), axes.y(top)
        angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
        place = f"translate({(x0 + x1) / 2:.1f} {(y0 + y1) / 2 - 8:.1f}) rotate({angle:.1f})"
        parts.append(f'<text transform="{place}" text-anchor="middle">{_text(words)}</text>')
    return parts


def _points(axes: _Axes, kernels: Sequence[Placed]) -> list[str]:
    parts: list[str] = []
    taken: list[float] = []
    for each in sorted(kernels, key=lambda placed: placed.point.rate, reverse=True):
        x, y = axes.x(each.point.intensity), axes.y(each.point.rate)
        title = (
            f"{shortened(each.name, 400)}: {each.bound}, {_with_prefix(each.point.rate)}FLOP/s,"
            f" {each.point.intensity:.2f} operations per byte"
        )
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{_COLOURS[each.bound]}"'
            f' fill-opacity="0.85" stroke="#ffffff"><title>{_text(title)}</title></circle>'
        )
        # Names are listed one below the other, as the roofs are above.
        at = y + 16
        while any(abs(at - other) < 13 for other in taken):
            at += 13
        taken.append(at)
        name = shortened(each.name, _LONGEST_LABEL)
        if x < _SVG_WIDTH / 2:
            parts.append(_label(x + 6, at, name))
        else:
            parts.append(_label(x - 6, at, name, "end"))
    return parts


def _legend() -> str:
    parts, x = [], _LEFT
    for bound, colour in _COLOURS.items():
        parts.append(f'<circle cx="{x + 5}" cy="40" r="5" fill="{colour}"/>')
        parts.append(_label(x + 15, 44, bound))
        x += 130
    return "".join(parts)


def _decades(values: list[float]) -> tuple[int, int]:
    """Return powers of ten around positive values, at least one decade."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _line(x0: float, y0: float, x1: float, y1: float, colour: str, width: float = 1) -> str:
    return (
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}"'
        f' stroke-width="{width}"/>'
    )


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(text)}</text>'


def _text(text: str) -> str:
    return escape("".join(c if c.isprintable() else "?" for c in text))
