"""The rows of the table: the compared figures with their budgets."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks import cases


@dataclass(frozen=True)
class Line:
    """A figure minus `less`, compared with `reference`: at most `cases.MOST` times it."""

    what: str
    case: str
    less: str = ""
    reference: str = ""
    aim: float = 0.0
    most_ns: float = 0.0
    nothing: bool = False
    """The promise is 0 ns within noise."""
    indent: bool = False
    both_less: bool = False
    """`less` is subtracted from the reference, too."""
    divided_by: int = 1
    """The figure is the cost of one of so many."""


@dataclass(frozen=True)
class Row:
    """A line with its figures in ns; `verdict` is "" if there is no budget."""

    what: str
    ns: float
    spread_ns: float
    reference: str
    ratio: float | None
    budget: str
    verdict: str


_HAND = "hand-written pair"
# On Python 3.11, a decorated function runs one more Python frame.
_DECORATED_CALL = (
    Line("decorated call", "decorated call", "bare call", "timed C callable", both_less=True)
    if sys.version_info[:2] == (3, 11)
    else Line("decorated call", "decorated call", "bare call", most_ns=45)
)

SECTIONS = (
    (
        "Budgets",
        (
            Line("C++ span, on", "cpp on", reference="cpp floor", aim=1.3),
            Line("C++ span, off", "cpp off", most_ns=1.0),
            Line("with span, reused", "with span, reused", "", "with threading.Lock"),
            Line("with span, new", "with span, new", "", _HAND, aim=0.85),
            Line("with ProfilingContext, new", "with ProfilingContext, new", most_ns=1500),
            _DECORATED_CALL,
            Line("  debug context, off", "decorated call, debug off", "bare call", nothing=True),
            Line(
                "with debug context off, new",
                "with debug context off, new",
                "",
                "with nullcontext, new",
            ),
        ),
    ),
    (
        "The same spans elsewhere",
        (
            Line("C++ span at depth 3", "cpp at depth 3", reference="cpp floor"),
            Line(f"  over {cases.STAGES} stages", "cpp over 200 stages", reference="cpp floor"),
            Line("  on a worker thread", "cpp on a worker thread", reference="cpp floor"),
            Line("with span, new, at depth 3", "at depth 3", "", _HAND),
            Line("  in a request", "in a request", "", _HAND),
            Line("  on a worker thread", "on a worker thread", "", _HAND),
            Line(
                f"  over {cases.STAGES} stages", f"over {cases.STAGES} stages", "next name", _HAND
            ),
            Line("  in an asyncio task", "in an asyncio task", "", _HAND),
        ),
    ),
    (
        "Device time, on a fake driver that answers at once",
        (
            Line(
                "C++ span, timed on the device", "cpp device span", "cpp two records", most_ns=200
            ),
            Line("  not in the sample", "cpp device span, not in the sample", "cpp no device"),
            Line("two bare event records", "cpp two records"),
        ),
    ),
    (
        "Requests across processes",
        (
            Line("inject()", "inject()", "", _HAND),
            Line("extract() and with", "extract() and with", "", _HAND),
            Line("with request()", "with request()", "", _HAND),
            Line(
                "  OpenTelemetry is told of it",
                "with request(), OpenTelemetry told",
                "with request()",
            ),
            Line("with batch of 1 request", "with batch of 1", "", _HAND),
            Line(
                "  each further request",
                "with batch of 101",
                "with batch of 1",
                most_ns=30,
                divided_by=100,
            ),
            Line("chunk()", "chunk()", "", _HAND),
            Line("with queued()", "with queued()", "", _HAND),
        ),
    ),
    (
        "The rest of stagespan",
        (
            Line("async with span, reused", "async with span, reused"),
            Line("  an empty class", "async with an empty Python class"),
            Line("decorated coroutine, a call", "decorated coroutine", "bare coroutine"),
            Line(
                "decorated generator, a turn",
                "decorated generator, a turn",
                "bare generator, a turn",
            ),
            Line("begin and end", "begin and end"),
            Line("record()", "record"),
            Line("s.add(tokens=1)", "s.add(tokens=1)"),
            Line("with span, recorder off", "with span, recorder off"),
            Line("decorated call, recorder off", "decorated call, recorder off", "bare call"),
            Line("timed C callable", "timed C callable", "bare call"),
            Line("ProfilingContext, lines written", "ProfilingContext, lines written"),
        ),
    ),
    (
        "What Python costs",
        tuple(
            Line(name, name, reference="with span, new")
            for name in (
                "bare call",
                "with an empty Python class",
                "with threading.Lock",
                "with nullcontext, new",
                _HAND,
            )
        ),
    ),
    ("Other tools", tuple(Line(name, name, reference="with span, new") for name in cases.PEERS)),
)

_SHORT = {
    "cpp floor": "2 clock reads",
    "cpp two records": "over 2 records",
    "cpp no device": "over no device",
    "timed C callable": "C callable",
    "with threading.Lock": "Lock",
    "with nullcontext, new": "nullcontext",
    _HAND: "hand-written",
    "with span, new": "span",
    "bare call": "over bare call",
    "bare coroutine": "over bare one",
    "bare generator, a turn": "over bare one",
    "next name": "hand-written",
    "with batch of 1": "over batch of 1",
    "with request()": "over request()",
}

Runs = list[dict[str, float]]
"""Of each process, the median in ns by case."""


def medians(processes: list[dict[str, Any]]) -> Runs:
    """Sum each process's turns up."""
    return [
        {name: statistics.median(turns) for name, turns in process["ns"].items()}
        for process in processes
    ]


def noise_ns(runs: Runs) -> float:
    """Return the difference of equal bare calls in one process; the median over processes."""
    differences = []
    for run in runs:
        copies = [ns for name, ns in run.items() if name.startswith("bare call")]
        differences.append(max(copies) - min(copies))
    return statistics.median(differences)


def row_of(line: Line, runs: Runs) -> Row | None:
    """Return one line with its figures; None if a case was skipped."""
    needed = [name for name in (line.case, line.less, line.reference) if name]
    runs = [run for run in runs if all(name in run for name in needed)]
    if not runs:
        return None
    differences_ns = [
        (run[line.case] - (run[line.less] if line.less else 0.0)) / line.divided_by for run in runs
    ]
    ns = statistics.median(differences_ns)
    ratio = None
    if line.reference:
        ratio = statistics.median(
            value / (run[line.reference] - (run[line.less] if line.both_less else 0.0))
            for value, run in zip(differences_ns, runs, strict=True)
        )
    budget, fits = "", True
    most = cases.MOST.get(line.case)
    if ratio is not None and most is not None:
        budget = f"{most:g} x" + (f" ({line.aim:g})" if line.aim else "")
        fits = ratio <= most
    elif line.most_ns:
        budget, fits = f"{line.most_ns:,g} ns", ns <= line.most_ns
    elif line.nothing:
        noise = max(noise_ns(runs), 0.5)
        budget, fits = f"0 +-{noise:.1f} ns", abs(ns) <= noise
    verdict = ("within" if fits else "OVER") if budget else ""
    reference = _SHORT[line.reference or line.less] if line.reference or line.less else ""
    return Row(
        line.what,
        ns,
        (max(differences_ns) - min(differences_ns)) / 2,
        reference,
        ratio,
        budget,
        verdict,
    )
