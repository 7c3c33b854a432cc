"""A page as one HTML file that needs no network.

The page consists of `page.html`, the style sheet and scripts of this folder, findings and tables as
JSON in a block that browsers do not run. Its content security policy allows only these scripts, by
their hash, and no connections.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from importlib import resources
from typing import Any

from stagespan.pages.html.data import page_data
from stagespan.pages.page import Page
from stagespan.pages.result import STATES

_SLOT = re.compile(r"\{\{ (\w+) \}\}")


def html_page(page: Page) -> str:
    """Return the page."""
    return filled(page_data(page))


def filled(shown: dict[str, Any]) -> str:
    """Return the page with the data of `page_data`."""
    script = "".join(map(_file, ("table.js", "plot.js", "charts.js", "timeline.js", "page.js")))
    parts = {
        "policy": (
            f"default-src 'none'; script-src 'sha256-{_sha256(script)}'; style-src 'unsafe-inline';"
            " img-src data: blob:; base-uri 'none'; form-action 'none'"
        ),
        "style": _file("page.css"),
        "data": _json({**shown, "states": STATES}),
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
