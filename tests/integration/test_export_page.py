"""Tests of `stagespan top --web` in a browser, on a wide and a narrow window."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exporting import exporting, get
from recorded_process import command_here, started

from running import PROGRAMS, end, until
from stagespan.export.node import Node
from stagespan.export.page import Live

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "trace"))
from browser import Browser, program

EXPORTED = PROGRAMS / "exported.py"

pytestmark = pytest.mark.slow


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    """Return the address of the page, beside a service that works."""
    started(EXPORTED, "service", STAGESPAN_JOB="svc", STAGESPAN_RING_SPANS="4096")
    with exporting("--web", "0", verb="top") as (_, line):
        found = re.search(r"http://\S+", line)
        assert found is not None
        yield found[0]


def data(address: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(f"{address}data.json"))
    return found


def test_the_page_has_the_figures_of_the_last_seconds(address: str) -> None:
    # GIVEN a page that nobody has looked at yet
    time.sleep(1)
    shown = data(address)
    # THEN it has the figures of the seconds before, as `stagespan top --json` prints them
    jsonschema = pytest.importorskip("jsonschema")
    page = shown.pop("page")
    jsonschema.validate(shown, json.loads(command_here("top", "--json-schema").stdout))
    (decode,) = [stage for stage in shown["stages"] if stage["name"] == "decode"]
    assert 0 < decode["per_s"] < 101
    assert decode["p50_ns"] >= 9e6
    assert decode["service"] == "svc"
    assert 0 < shown["window_ns"] <= 10.1e9
    assert page["state"] == "Live processes svc: 1."


def test_requests_are_shown_by_their_ids_with_their_parts(address: str) -> None:
    until(lambda: any(row["where"] for row in data(address)["slowest_requests"]))
    shown = data(address)
    slowest = shown["slowest_requests"]
    assert [row["total_ns"] for row in slowest] == sorted(
        (row["total_ns"] for row in slowest), reverse=True
    )
    for row in slowest:
        assert re.fullmatch(r"r\d+", row["request_id"])
        if row["where"] is not None:
            assert sum(part["ns"] for part in row["where"]) == row["total_ns"]
            assert ("execution", "decode") in [(of["kind"], of["name"]) for of in row["where"]]
    # THEN each has a link to its timeline
    row = slowest[0]
    assert shown["page"]["links"][row["request_id"]] == f"request/{row['trace_id']}"
    assert row["request_id"] in get(f"{address}request/{row['trace_id']}")


def test_hand_offs_open_requests_and_losses_are_shown(folder: Path) -> None:
    started(EXPORTED, "crossing")
    with contextlib.closing(Node()) as node:
        node.losses.append(lambda: {"keep": 3})
        shown = json.loads(Live(node).data())
    tables = {table["title"]: table["rows"] for table in shown["page"]["tables"]}
    assert [row["name"] for row in shown["hand_offs"]] == ["tasks"]
    assert tables["Hand-offs"][0][0] == "tasks"
    (request,) = [row for row in shown["open_requests"] if row["request_id"] == "oldest"]
    assert request["stages"] == ["outer", "inner"]
    (row,) = [row for row in tables["Oldest open requests"] if row[0] == "oldest"]
    assert row[2] == "outer > inner"
    assert shown["lost"]["keep"] == 3
    assert any("Lost since the start: keep 3" in text for text in shown["page"]["sentences"])


def test_a_stage_that_runs_in_batches_has_one_row(folder: Path) -> None:
    started(EXPORTED, "batches_and_spans")
    with contextlib.closing(Node()) as node:
        shown = json.loads(Live(node).data())
    # THEN its row has all of them, and the time that the figures cover
    (row,) = [stage for stage in shown["stages"] if stage["name"] == "forward"]
    assert row["running"] == 1
    assert row["per_s"] * shown["window_ns"] == pytest.approx(6e9)
    assert shown["window_ns"] > 0


def test_the_page_changes_nothing_and_stands_beside_an_exporter(folder: Path) -> None:
    process = started(EXPORTED, "service", STAGESPAN_JOB="svc")
    with exporting("--web", "0", verb="top") as (top, line), exporting("--page", "0") as (_, other):
        for address in (line.split()[-1], other.split()[-1]):
            until(lambda address=address: data(address)["slowest_requests"])  # type: ignore[misc]
        end(process)
        # THEN the exporter alone keeps the totals, and the page ends at once with status 0
        until(lambda: (folder / ".export-state.json").exists())
        top.send_signal(signal.SIGTERM)
        assert top.wait(20) == 0
        assert top.stderr.read() == ""
        assert data(other.split()[-1])["window_ns"] > 0


def test_a_page_leaves_no_file(folder: Path) -> None:
    started(EXPORTED, "service")
    # A file has a hidden name until all of it is written.
    before = until(lambda: sorted(path for path in folder.iterdir() if path.name[0] != "."))
    with exporting("--web", "0", verb="top") as (_, line):
        until(lambda: data(line.split()[-1])["stages"])
    assert sorted(folder.iterdir()) == before


def test_a_request_that_is_gone_gets_a_sentence(address: str) -> None:
    import urllib.error

    with pytest.raises(urllib.error.HTTPError) as error:
        get(f"{address}request/{'0' * 32}")
    assert error.value.code == 404
    assert "in no recording any more" in error.value.read().decode()


def test_the_page_is_readable_in_a_browser(address: str, tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("no Chromium to open a page in: install chromium")
    with Browser(tmp_path) as browser:
        for width, scheme in ((1280, "light"), (400, "dark")):
            browser.size(width, 900)
            browser.media(scheme=scheme)
            browser.call("Page.navigate", url=address)
            until(lambda: "decode" in " ".join(browser.text("td")), 60)
            until(lambda: browser.text("td a"), 60)
            # THEN it fits, shows names as they are, and is updated
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert any("<b>a name</b>" in text for text in browser.text("td"))
            before = browser.text("td")
            until(lambda b=before: browser.text("td") != b)
            # also in the order that the user has chosen
            browser.evaluate("document.querySelector('th button').click()")
            before = browser.text("td")
            until(lambda b=before: browser.text("td") != b)
            assert browser.evaluate("document.querySelector('th').ariaSort") == "ascending"
            assert "Live processes svc: 1" in browser.text("#state")[0]
            browser.screenshot(tmp_path / f"{width}.png", whole=True)
        # THEN nothing else was loaded, and nothing went wrong
        assert all(url.startswith((address, "about:", "data:")) for url in browser.requests)
        assert browser.complaints == []


def wait_for_change(browser: Browser) -> None:
    before = browser.text("td")
    until(lambda: browser.text("td") != before, 60)


def test_the_page_of_a_process_is_updated_in_a_browser(address: str, tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("no Chromium to open a page in: install chromium")
    # GIVEN the link to a process on the page of all of them
    ((name, href),) = data(address)["page"]["processes"]
    assert name.startswith("exported.py service ")
    with Browser(tmp_path) as browser:
        for width, scheme in ((1280, "light"), (400, "dark")):
            browser.size(width, 900)
            browser.media(scheme=scheme)
            browser.call("Page.navigate", url=address + href)
            until(lambda: browser.evaluate("document.documentElement?.dataset.ready") == "yes", 60)
            # THEN it is the page of a recording, which goes on with the process
            headings = browser.text("h3")
            assert {"p50 of each stage", "p95 of each stage", "Statistics"} <= set(headings)
            assert any(text.startswith("The 20 slowest of ") for text in headings), headings
            assert browser.evaluate("document.querySelectorAll('#timeline svg path').length") > 0
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            wait_for_change(browser)
            # AND the user's search and order stay
            search = "document.querySelector('#analysis-requests input')"
            browser.evaluate(f"{search}.focus()")
            browser.type("r1")
            browser.evaluate(f"{search}.blur()")
            wait_for_change(browser)
            assert browser.evaluate(f"{search}.value") == "r1"
            browser.screenshot(tmp_path / f"process-{width}.png", whole=True)
            # AND a zoom freezes it until the user wants to go on
            browser.evaluate("showTimes(0, DATA.window_ns / 2)")
            assert browser.text("#freeze") == ["Go on"]
            assert browser.evaluate("isInUse()") is True
            browser.evaluate("document.getElementById('freeze').click()")
            wait_for_change(browser)
        assert all(url.startswith((address, "about:", "data:")) for url in browser.requests)
        assert browser.complaints == []


def test_one_process_or_job_is_served_alone(folder: Path) -> None:
    process = started(EXPORTED, "service", STAGESPAN_JOB="svc")
    of_job = ("--job", "svc", "--web", "0")
    with (
        exporting(str(process.pid), "--web", "0", verb="top") as (top, line),
        exporting(*of_job, verb="top") as (_, line_of_job),
    ):
        assert line.startswith(f"Process {process.pid} (exported.py service): http://")
        address = line.split()[-1]
        shown = until(lambda: data(address) if data(address)["pictures"] else None)
        assert [one["name"] for one in shown["sections"]] == [
            *("process", "stages_over_time", "requests"),
        ]
        assert data(line_of_job.split()[-1])["title"] == "Job svc"
        # WHEN the process has ended, and its recording is gone
        process.terminate()
        process.wait(30)
        for path in folder.glob("*.stagespan"):
            path.unlink(missing_ok=True)
        # THEN its page stays, and says so
        ended = until(lambda: data(address) if data(address)["incomplete"] else None)
        assert ended["notes"][0] == "It has ended: this is its last known state."
        assert ended["pictures"]
        top.send_signal(signal.SIGTERM)
        assert top.wait(20) == 0
    assert "no process 999999" in command_here("top", "999999", "--web", "0").stderr
    assert "leave out --once" in command_here("top", "--once", "--web", "0").stderr
