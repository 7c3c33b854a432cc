"""The HTML page of requests: its rows, tables and findings, and how it looks in a browser."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from html_pages import HOSTILE

import stagespan
from page_data import data_of, rows_of
from request_columns import check_columns
from stagespan import batch, extract, inject, queued, recording, request, span
from stagespan.pages.html import html_page
from stagespan.recording.requests_page import Requests, RequestsPage
from stagespan.recording.timelines import Timelines, timelines


def found_requests(names: tuple[str, ...]) -> Timelines:
    """Return requests with waits, a hop, a batch, and a hop that nobody received."""
    with span("first"):
        pass
    known = {one["segment"] for one in recording.open(os.getpid()).segments()}
    for name in names:
        with request(name):
            with span("parse") as parse, queued("replica"):
                parse.add(items=3)
            with extract(inject(queue="tasks")) as back, batch("forward", [back]):
                pass
    with request("lonely"):
        inject(queue="nowhere")
    found = timelines([recording.open(os.getpid())])
    check_columns(found)
    return found.selected(one.segments[0].segment["segment"] not in known for one in found)


def page_of(found: Timelines, lost: dict[str, int] | None = None) -> str:
    requests = Requests(found, list(found), lost or {}, len(found), in_detail=False)
    return html_page(RequestsPage(requests))


def tables_of(data: dict[str, Any]) -> dict[str, Any]:
    (section,) = data["sections"]
    return {table["title"]: table for table in section["tables"]}


def test_the_rows_of_a_request_are_its_parts() -> None:
    found = found_requests(("one", "two"))
    data = data_of(page_of(found, {"requests": 3, "links": 0}))
    assert data["verdict"]["word"] == "3 requests"
    rows = rows_of(data)
    for one in found[:2]:
        bars = rows[one.id]["bars"]
        times: Counter[str] = Counter()
        for begin, end, words, *_ in bars:
            times[words] += end - begin
        expected = {
            f"{'hand-off' if kind == 'handoff' else kind} {name}": ns
            for (kind, name), ns in one.where.items()
            if kind != "unattributed"
        }
        assert times == expected
        assert all(0 <= end <= one.total_ns for _, end, *_ in bars)
    tables = tables_of(data)
    requests, where = tables["Requests"], tables["Where the time of each of them went"]
    columns = [name for name, _ in requests["columns"]]
    for row, one in zip(requests["rows"], found, strict=True):
        cells = dict(zip(columns, row, strict=True))
        assert cells["total"] == one.total_ns
        parts = ("execution", "hand-off", "queue", "unattributed")
        assert sum(cells[part] for part in parts) == one.total_ns
    by_request = itertools.groupby(where["rows"], key=lambda row: row[0])
    sums = {name: sum(row[3] for row in rows_) for name, rows_ in by_request}
    assert sums == {one.id: one.total_ns for one in found}
    assert {row[0] for row in tables["Stages"]["rows"]} >= {"parse", "forward", "replica"}
    assert [row[:2] for row in tables["Hand-offs"]["rows"]] == [["tasks", 2]]
    sentences = {each["sentence"]: each for each in data["findings"]}
    incomplete = sentences["1 request is incomplete: message not received."]
    assert incomplete["code"] == "requests.incomplete"
    assert [event for event, *_ in incomplete["evidence"]] == ["lonely"]
    assert data["findings"][-1]["code"] == "requests.lost"


def test_a_request_of_one_process_has_one_row_and_no_columns_of_hops() -> None:
    with span("first"):
        pass
    for name in ("plain 1", "plain 2"):
        with request(name), span("handle"):
            pass
    found = timelines([recording.open(os.getpid())])
    found = found.selected("plain" in id_ for id_ in found.column("id"))[-2:]
    data = data_of(page_of(found))
    assert data["rows"] == ["plain 1", "plain 2"]
    tables = tables_of(data)
    assert "Hand-offs" not in tables
    columns = [name for name, _ in tables["Requests"]["columns"]]
    assert not {"hand-off", "queue", "incomplete"} & set(columns)
    assert {"request", "status", "total", "execution"} <= set(columns)
    assert not any("`" in table["note"] for table in tables.values())


def test_many_requests_have_a_limited_timeline() -> None:
    found = found_requests(tuple(f"r{i}" for i in range(80)))
    data = data_of(page_of(found))
    assert 0 < len(data["rows"]) <= 60
    assert len(data["sections"][0]["tables"][0]["rows"]) == 81
    left = 81 - sum(not row.startswith("> ") for row in data["rows"])
    assert data["notes"] == [f"{left} of the requests are not in the timeline."]


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_any_window_and_shows_hostile_ids_as_text(
    browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    found = found_requests(HOSTILE)
    page = tmp_path / "page.html"
    page.write_text(page_of(found))
    browser.size(width, 900)
    browser.media(scheme=scheme)
    browser.open(page)
    assert browser.complaints == []
    assert browser.evaluate("window.hostile") is None
    assert browser.text("h2") == [
        *("Summary", "Findings", "Timeline", "Requests"),
    ]
    overflow: Any = browser.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    assert overflow <= 0
    assert browser.evaluate("document.querySelectorAll('#timeline .boxes').length") > 0
    legend = browser.text("#timeline .legend li")
    assert {"hand-off", "queue", "parse", "forward"} <= set(legend)
    (dark,) = browser.text("#scheme")
    assert dark == ("Light" if scheme == "dark" else "Dark")


def test_a_page_of_real_requests_is_written_by_the_command(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from stagespan.cli import command

    found_requests(("of the command",))
    file = tmp_path / "page.html"
    pid = str(os.getpid())
    done = CliRunner().invoke(
        command, ["requests", pid, "--id", "of the command", "--html", str(file)]
    )
    assert done.exit_code == 0, done.output
    data = data_of(file.read_text())
    assert data["title"] == "of the command"
    assert stagespan.__version__ in data["made_by"]


def test_a_page_without_requests() -> None:
    data = data_of(page_of(timelines([])))
    assert data["summary"] == "0 requests in 0 processes, the first at unknown"
    assert data["rows"] == []
