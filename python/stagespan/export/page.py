"""A page of the live processes of a machine, which the browser updates every second."""

from __future__ import annotations

import json
import operator
import re
import threading
import time
from collections import deque
from collections.abc import Iterable
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

from stagespan.errors import StagespanError
from stagespan.export.families import AGES, FAMILIES, HISTOGRAMS
from stagespan.export.figures import BOUNDS_NS, NOTHING, Counts, Histogram
from stagespan.export.node import Node
from stagespan.export.serving import Answer, HttpServer, text

_WINDOW_S = 10.0
_INTERVAL_S = 1.0
_MOST_REQUESTS = 10
_PAGE = Path(__file__).with_name("page.html")


class _Rows(NamedTuple):
    """The rows of a kind of stages: what is open, and which families they are from."""

    kind: str
    durations: tuple[str, ...]
    gauge: str
    ages: tuple[str, ...]


def _rows(kind: str, gauge: str) -> _Rows:
    kinds = FAMILIES[gauge].open_kinds
    ages = tuple(family.key for family in AGES if set(family.open_kinds) & set(kinds))
    durations = tuple(family.key for family in HISTOGRAMS if family.kind in kinds)
    return _Rows(kind, durations, gauge, ages)


_ROWS = (_rows("", "running"), _rows("queue", "waiting"))


def quantile_s(histogram: Histogram, q: float) -> float | None:
    """Return a quantile in seconds, as PromQL's histogram_quantile does; None without runs."""
    count = histogram.below[-1]
    if count <= 0:
        return None
    rank = q * count
    lower_ns, lower = 0, 0
    for bound, below in zip(BOUNDS_NS, histogram.below, strict=False):
        if below >= rank and below > lower:
            return (lower_ns + (bound - lower_ns) * (rank - lower) / (below - lower)) / 1e9
        lower_ns, lower = bound, below
    return BOUNDS_NS[-1] / 1e9


def _together(families: Iterable[dict[str, Histogram]]) -> dict[str, Histogram]:
    """Return the durations of each stage in all families."""
    by_stage: dict[str, Histogram] = {}
    for durations in families:
        for stage, histogram in durations.items():
            known = by_stage.get(stage)
            by_stage[stage] = histogram.combined(known, operator.add) if known else histogram
    return by_stage


class Live:
    """The figures of the last seconds."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        node.read()  # so that the first answer has figures of a time
        self._past = deque([(time.monotonic(), node.totals())])
        self._latest = ""

    def data(self) -> str:
        """Return what the page shows as JSON. All that ask within a second get the same."""
        with self._lock:
            if not self._latest or time.monotonic() - self._past[-1][0] >= _INTERVAL_S:
                self._latest = json.dumps(self._data())
            return self._latest

    def _data(self) -> dict[str, Any]:
        self._node.read()
        now, totals = time.monotonic(), self._node.totals()
        self._past.append((now, totals))
        while len(self._past) > 2 and now - self._past[1][0] >= _WINDOW_S:
            self._past.popleft()
        began, earlier = self._past[0]
        gauges = self._node.gauges()
        window_s = max(now - began, 1e-9)
        stages = []
        for group, figures in totals.items():
            recent = figures.without(earlier.get(group, Counts({}, {})))
            errors = recent.amounts.get("errors", {})
            for rows in _ROWS:
                recent_by_stage = _together(recent.durations.get(key, {}) for key in rows.durations)
                counts = gauges.series[rows.gauge]
                # A stage that is open may have never ended.
                is_open = [name for name, *of in counts if tuple(of) == group]
                for stage in dict.fromkeys([*recent_by_stage, *is_open]):
                    histogram = recent_by_stage.get(stage, NOTHING)
                    labels = (stage, *group)
                    stages.append(
                        {
                            **group._asdict(),
                            "stage": stage,
                            "kind": rows.kind,
                            "per_second": histogram.below[-1] / window_s,
                            "seconds": histogram.sum_ns / 1e9,
                            "p50": quantile_s(histogram, 0.5),
                            "p95": quantile_s(histogram, 0.95),
                            "p99": quantile_s(histogram, 0.99),
                            "open": counts.get(labels, 0),
                            "oldest": max(gauges.series[key].get(labels, 0) for key in rows.ages)
                            or None,
                            "errors": 0 if rows.kind else errors.get(stage, {}).get("", 0),
                        }
                    )
        return {
            "window_s": min(window_s, _WINDOW_S),
            "services": [
                {"service": name, "up": up} for (name,), up in gauges.series["up"].items() if up
            ],
            "stages": sorted(stages, key=lambda one: -one["seconds"]),
            "requests": self._requests(),
        }

    def _requests(self) -> list[dict[str, Any]]:
        requests = [
            (
                exemplar.duration_ns,
                exemplar.trace_id,
                FAMILIES["request"].values(label)[-1],
                group.service,
            )
            for (group, family, label), buckets in self._node.exemplars().items()
            if family == "request"
            for exemplar in buckets.values()
        ]
        return [
            {"seconds": ns / 1e9, "trace_id": trace, "status": status, "service": service}
            for ns, trace, status, service in sorted(requests, reverse=True)[:_MOST_REQUESTS]
        ]


def _timeline(node: Node, trace_id: str) -> str:
    """Return the page of a request. Raises StagespanError if it is in no recording any more."""
    from stagespan.pages.html import html_page
    from stagespan.recording import requests_page
    from stagespan.recording.timelines import timelines

    of_trace = [one for one in timelines(node.recordings_of(trace_id)) if one.trace_id == trace_id]
    if not of_trace:
        raise StagespanError(f"The request of the trace {trace_id} is in no recording any more.")
    requests = requests_page.Requests(of_trace, of_trace, {}, len(of_trace), in_detail=True)
    return html_page(requests_page.RequestsPage(requests))


class PageServer:
    """Serves the page until `close`."""

    def __init__(self, node: Node, host: str, port: int) -> None:
        """Open the port. Raises StagespanError if that is not possible."""
        self._node = node
        self._live = Live(node)
        self._reading = threading.Lock()
        self._server = HttpServer(
            host, port, self._answer, what="The page", option="--page 127.0.0.1:9466"
        )
        self.port: int = self._server.port
        """The port; a free one if 0 was asked for."""

    def _answer(self, path: str, _: Message) -> Answer:
        """Return the page, its data, or the timeline of a request."""
        if path == "/":
            return text(200, "text/html", _PAGE.read_text("utf-8"))
        if path == "/data.json":
            return text(200, "application/json", self._live.data())
        trace = re.fullmatch(r"/request/([0-9a-f]{32})", path)
        if trace is None:
            return text(404, "text/plain", "There is no such page.\n")
        try:
            with self._reading:
                return text(200, "text/html", _timeline(self._node, trace[1]))
        except StagespanError as error:
            return text(404, "text/plain", f"{error}\n")

    def close(self) -> None:
        """Close the port."""
        self._server.close()
