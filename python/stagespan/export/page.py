"""Pages of live processes, which the browser updates every second.

One shows what all processes of a machine do, and leads to the page of each of them. Or the page of
one process or job is served alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from email.message import Message
from typing import Any

from stagespan.errors import StagespanError
from stagespan.export.node import Node
from stagespan.export.serving import Answer, HttpServer, text
from stagespan.pages.html import live_page, updated
from stagespan.pages.html.data import page_data, written_table
from stagespan.pages.page import Page
from stagespan.recording.activity import Activity, Observer
from stagespan.recording.process_page import ProcessPage
from stagespan.recording.reading import Recording

_INTERVAL_S = 1.0
_MOST_SHARE = 0.05
"""Of a core, for the page of one process."""
_MOST_PAGES = 16
"""Pages of single processes that are kept for the next answer."""
_ENDED = "It has ended: this is its last known state."


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

    def path_of(self, identity: str) -> str | None:
        """Return the recording of a process that was shown last; None without one."""
        with self._lock:
            recordings = self._observer.recordings
        return next((copy.path for copy in recordings if copy.identity == identity), None)

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
        of_processes = [
            (f"{copy.name} {copy.pid}", f"process/{copy.identity}/")
            for copy in self._observer.recordings
        ]
        requests = [(one.request_id, one.trace_id) for one in activity.of.open_requests]
        requests += [(one.request_id, one.trace_id) for one in activity.of.slowest_requests]
        return {
            **activity.page("Live processes", processes).to_dict(),
            "page": {
                "state": f"Live processes {processes or 'none'}.",
                "processes": of_processes,
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

    requests = timelines(node.recordings_of(trace_id))
    of_trace = requests.selected(one.trace_id == trace_id for one in requests)
    if not of_trace:
        raise StagespanError(f"The request of the trace {trace_id} is in no recording any more.")
    found = requests_page.Requests(of_trace, list(of_trace), {}, len(of_trace), in_detail=True)
    return html_page(requests_page.RequestsPage(found))


class ServedPage:
    """A page that is made again if it is asked for, at most every second."""

    def __init__(self, make: Callable[[], Page]) -> None:
        """``make`` raises StagespanError if what the page shows is gone."""
        self._make = make
        self._lock = threading.Lock()
        self._due_s = -math.inf
        self._latest: dict[str, Any] = {}

    def answer(self, path: str) -> Answer:
        """Return the page for "", and its data for "data.json"."""
        if path not in ("", "data.json"):
            return text(404, "text/plain", "There is no such page.\n")
        try:
            data = self.data()
        except StagespanError as error:
            return text(404, "text/plain", f"{error}\n")
        if path == "":
            return text(200, "text/html", updated(data))
        return text(200, "application/json", json.dumps(data, allow_nan=False))

    def data(self) -> dict[str, Any]:
        """Return the data of the page. Raises StagespanError if there was never any."""
        with self._lock:
            if time.monotonic() < self._due_s:
                return self._latest
            began_s = time.thread_time()
            try:
                self._latest = page_data(self._make())
            except StagespanError:
                if not self._latest:
                    raise
                if not self._latest["incomplete"]:
                    notes = [_ENDED, *self._latest["notes"]]
                    self._latest = {**self._latest, "notes": notes, "incomplete": True}
            pause_s = max(_INTERVAL_S, (time.thread_time() - began_s) / _MOST_SHARE)
            self._due_s = time.monotonic() + pause_s
            return self._latest


def serve_page(make: Callable[[], Page], host: str, port: int) -> HttpServer:
    """Serve one page until the server is closed. Raises StagespanError if that is not possible."""
    page = ServedPage(make)
    page.data()
    return _server(host, port, lambda path, _: page.answer(path.removeprefix("/")))


def _server(host: str, port: int, answer: Callable[[str, Message], Answer]) -> HttpServer:
    return HttpServer(host, port, answer, what="The page", option="--web 127.0.0.1:9466")


class PageServer:
    """Serves the page of all processes, and those of each of them, until `close`."""

    def __init__(self, node: Node, host: str, port: int) -> None:
        """Open the port. Raises StagespanError if that is not possible."""
        self._node = node
        self._live = Live(node)
        self._pages: dict[str, ServedPage] = {}
        """By the identity of a process, the one that was asked for last at the end."""
        self._reading = threading.Lock()
        self._server = _server(host, port, self._answer)
        self.port: int = self._server.port
        """The port; a free one if 0 was asked for."""

    def _answer(self, path: str, _: Message) -> Answer:
        """Return the page, its data, the page of a process, or the timeline of a request."""
        if path == "/":
            return text(200, "text/html", live_page("Live processes"))
        if path == "/data.json":
            return text(200, "application/json", self._live.data())
        if process := re.fullmatch(r"/process/([0-9a-f-]{1,100})/(.*)", path):
            return self._page(process[1]).answer(process[2])
        trace = re.fullmatch(r"/request/([0-9a-f]{32})", path)
        if trace is None:
            return text(404, "text/plain", "There is no such page.\n")
        try:
            with self._reading:
                return text(200, "text/html", _timeline(self._node, trace[1]))
        except StagespanError as error:
            return text(404, "text/plain", f"{error}\n")

    def _page(self, identity: str) -> ServedPage:
        def make() -> Page:
            path = self._live.path_of(identity)
            if path is None:
                raise StagespanError("This process is not alive any more.")
            return ProcessPage(Recording(path))

        with self._reading:
            page = self._pages.pop(identity, None) or ServedPage(make)
            self._pages[identity] = page
            for earlier in list(self._pages)[:-_MOST_PAGES]:
                del self._pages[earlier]
        return page

    def close(self) -> None:
        """Close the port."""
        self._server.close()
