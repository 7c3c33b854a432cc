"""A page as one HTML file that needs no network.

The page consists of `page.html`, the style sheet and scripts of this folder, findings and tables as
JSON in a block that browsers do not run, and plotly's JavaScript, compressed, for the charts. Its
content security policy allows only these scripts, by their hashes, and no connections.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import importlib.util
import json
import re
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from stagespan.errors import StagespanError
from stagespan.pages.html.data import page_data
from stagespan.pages.page import Page

_SLOT = re.compile(r"\{\{ (\w+) \}\}")


def html_page(page: Page) -> str:
    """Return the page. Raises StagespanError if plotly is not installed."""
    return filled(page_data(page))


def filled(shown: dict[str, Any]) -> str:
    """Return the page with the data of `page_data`."""
    charts, charts_hash = _plotly()
    script = "".join(map(_file, ("table.js", "charts.js", "timeline.js", "page.js")))
    hashes = f"'sha256-{_sha256(script)}' 'sha256-{charts_hash}'"
    parts = {
        "policy": (
            f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline';"
            " img-src data: blob:; base-uri 'none'; form-action 'none'"
        ),
        "style": _file("page.css"),
        "data": _json(shown),
        "charts": charts,
        "charts_hash": charts_hash,
        "script": script,
        "title": escape(shown["words"]["page"]),
        "as_text": escape(shown["words"]["as_text"]),
    }
    # In one pass, so that inserted text is not searched again.
    return _SLOT.sub(lambda found: parts[found[1]], _file("page.html"))


def _json(shown: dict[str, Any]) -> str:
    """Return ASCII JSON that cannot end the script block that contains it."""
    return json.dumps(shown, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _file(name: str) -> str:
    folder = resources.files("stagespan.pages.html")
    return (folder / name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _plotly() -> tuple[str, str]:
    """Return plotly's JavaScript, compressed as text, and the hash of the decompressed script."""
    # plotly is located but not imported, because its Python code is not needed.
    found = importlib.util.find_spec("plotly")
    folders = list(found.submodule_search_locations or []) if found else []
    for folder in folders:
        file = Path(folder, "package_data", "plotly.min.js")
        if file.is_file():
            # Browsers remove carriage returns from scripts in a page.
            text = file.read_text(encoding="utf-8").replace("\r\n", "\n")
            packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
            return base64.b64encode(packed).decode(), _sha256(text)
    raise StagespanError(
        "An HTML page needs the charts of plotly (the extra 'html'): install it with"
        " `pip install plotly`, or write --markdown."
    )
