"""Tests of `stagespan export --page` in a browser, on a wide and a narrow window."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exporting import exporting, get, until
from recorded_process import ready, start, started

from stagespan.export.node import Node
from stagespan.export.page import Live

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "trace"))
from browser import Browser, program

pytestmark = pytest.mark.slow

SERVICE = """
import stagespan, time
from itertools import count
print("ready", flush=True)
token = stagespan.begin("a stage with <b>a name</b> that is as long as names of stages can be")
for n in count():
    with stagespan.request(f"r{n}"), stagespan.span("decode"), stagespan.queued("replica"):
        time.sleep(0.01)
"""


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    """Return the address of the page of an exporter, beside a service that works."""
    started(SERVICE, STAGESPAN_JOB="svc")
    with exporting("--page", "0") as (_, line):
        found = re.search(r"http://\S+", line)
        assert found is not None
        yield found[0]


def data(address: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(f"{address}data.json"))
    return found


def test_the_page_has_the_figures_of_the_last_seconds(address: str) -> None:
    until(lambda: data(address)["requests"])
    until(lambda: [one for one in data(address)["stages"] if one["stage"] == "decode"])
    time.sleep(1)
    found = data(address)
    (decode,) = [one for one in found["stages"] if one["stage"] == "decode"]
    assert 0 < decode["per_second"] < 101
    assert decode["p50"] >= 0.009
    assert decode["service"] == "svc"
    assert {"service": "svc", "up": 1} in found["services"]
    times = [one["seconds"] for one in found["requests"]]
    assert times == sorted(times, reverse=True)


def test_a_stage_that_runs_in_batches_has_one_row(folder: Path) -> None:
    process = start(
        """
        import stagespan
        for _ in range(5):
            with stagespan.batch("forward", []):
                pass
        with stagespan.span("forward"):
            pass
        with stagespan.batch("forward", []):
            print("ready", flush=True)
            input()
        """
    )
    with contextlib.closing(Node()) as node:
        live = Live(node)
        ready(process)
        found = json.loads(live.data())
    # THEN its row has all of them, and the time that the figures cover
    (row,) = [one for one in found["stages"] if one["stage"] == "forward"]
    assert row["open"] == 1
    assert row["per_second"] == pytest.approx(6 / found["window_s"])
    assert found["window_s"] > 0


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
            until(lambda: "decode" in " ".join(browser.text("#stages td")), 60)
            until(lambda: browser.text("#requests a"), 60)
            # THEN it fits, shows names as they are, and is updated
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert any("<b>a name</b>" in text for text in browser.text("#stages td"))
            before = browser.text("#stages")
            until(lambda b=before: browser.text("#stages") != b)
            assert "Live processes svc: 1" in browser.text("#state")[0]
            browser.screenshot(tmp_path / f"{width}.png", whole=True)
        # THEN nothing else was loaded, and nothing went wrong
        assert all(url.startswith((address, "about:", "data:")) for url in browser.requests)
        assert browser.complaints == []
