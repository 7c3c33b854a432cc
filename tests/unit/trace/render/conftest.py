"""The browser that the tests of HTML pages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, program


@pytest.fixture(scope="session")
def started_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if program() is None:
        pytest.skip("no Chromium to open a page in: install chromium")
    with Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def browser(started_browser: Browser) -> Iterator[Browser]:
    """A tab without records. A test ends with no requests except for files."""
    started_browser.call("Page.navigate", url="about:blank")
    started_browser.evaluate("1")
    started_browser.requests.clear()
    started_browser.complaints.clear()
    started_browser.size(1280, 900)
    started_browser.media()
    yield started_browser
    asked = [url for url in started_browser.requests if not url.startswith(("file:", "data:"))]
    assert asked == []
