"""A page of the live processes of a machine, which the browser updates every second."""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time
from collections import Counter
from email.message import Message
from typing import Any

from stagespan.errors import StagespanError
from stagespan.export.node import Node
from stagespan.export.serving import Answer, HttpServer, text
from stagespan.pages.html import live_page
from stagespan.pages.html.data import written_table
from stagespan.recording.activity import Activity, Observer
from stagespan.recording.reading import Recording

_INTERVAL_S = 1.0


class Live:
    """What the live processes of a node do."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        node.read()  # later ones are those of the exporter
        self._observer = Observer()
        self._read_s = -math.inf
        self._latest = ""

    def data(self) -> str:
        """Return what the page shows as JSON. All that ask within a second get the same."""
        with self._lock:
            if time.monotonic() - self._read_s >= _INTERVAL_S:
                self._observer.take(self._copies())
                self._read_s = time.monotonic()
                activity = Activity(self._observer.activity(self._node.lost()))
                self._latest = json.dumps(self._data(activity))
            return self._latest

    def _copies(self) -> list[Recording]:
        """Return new copies, because those of the node may be older than the latest of these."""
        copies = []
        for path in self._node.live_paths():
            with contextlib.suppress(StagespanError):  # it has been removed
                copies.append(Recording(path, everything=self._observer.needs_spans(path)))
        return [copy for copy in copies if not copy.has_gone]

    def _data(self, activity: Activity) -> dict[str, Any]:
        """Return the figures, as `stagespan top --json` prints them, and the tables of the page."""
        live = Counter(copy.service for copy in self._observer.recordings)
        processes = ", ".join(f"{service}: {count:,}" for service, count in sorted(live.items()))
        requests = [(one.request_id, one.trace_id) for one in activity.of.open_requests]
        requests += [(one.request_id, one.trace_id) for one in activity.of.slowest_requests]
        return {
            **activity.page("Live processes", processes).to_dict(),
            "page": {
                "state": f"Live processes {processes or 'none'}.",
                "sentences": activity.sentences(),
                "tables": [written_table(table) for table in activity.tables()],
                "links": {id_: f"request/{trace}" for id_, trace in requests if trace is not None},
            },
        }


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
            host, port, self._answer, what="The page", option="--web 127.0.0.1:9466"
        )
        self.port: int = self._server.port
        """The port; a free one if 0 was asked for."""

    def _answer(self, path: str, _: Message) -> Answer:
        """Return the page, its data, or the timeline of a request."""
        if path == "/":
            return text(200, "text/html", live_page("Live processes"))
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
