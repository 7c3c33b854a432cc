"""A page as one HTML file that needs no network.

The page consists of `page.html`, the style sheet and scripts of this folder, findings and tables as
JSON in a block that browsers do not run. Its content security policy allows only these scripts, by
their hash, and no connections; that of a live page allows those to the server of the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from stagespan.pages.html.data import page_data
from stagespan.pages.page import Page
from stagespan.pages.result import STATES

_CONNECTS = "connect-src 'self'; "
_SLOT = re.compile(r"\{\{ (\w+) \}\}")


def html_page(page: Page) -> str:
    """Return the page."""
    return filled(page_data(page))


def filled(content: dict[str, Any]) -> str:
    """Return the page with the data of `page_data`."""
    return _drawn(content, "cannot connect to anything")


def updated(content: dict[str, Any]) -> str:
    """Return the page, which replaces its data by ``data.json`` beside it every second."""
    return _drawn({**content, "live": True}, "connect only to the server of the page", _CONNECTS)


def _drawn(page: dict[str, Any], connects: str, more_policy: str = "") -> str:
    words = page["words"]
    scripts = ("plot.js", "charts.js", "timeline.js", "page.js")
    texts = {"title": escape(words["page"]), "as_text": escape(words["as_text"])}
    texts["connects"] = connects
    return _assembled("page.html", scripts, {**page, "states": STATES}, texts, more_policy)


def live_page(title: str) -> str:
    """Return a page that shows the tables of ``data.json`` beside it, and reads it every second."""
    texts = {"title": escape(title)}
    return _assembled("live.html", ("live.js",), {"states": STATES}, texts, _CONNECTS)


def _assembled(
    file: str,
    scripts: Sequence[str],
    data: dict[str, Any],
    texts: dict[str, str],
    more_policy: str = "",
) -> str:
    script = "".join(map(_file, ("table.js", *scripts)))
    parts = {
        "policy": (
            f"default-src 'none'; script-src 'sha256-{_sha256(script)}'; style-src 'unsafe-inline';"
            f" img-src data: blob:; {more_policy}base-uri 'none'; form-action 'none'"
        ),
        "style": _file("page.css"),
        # ASCII that cannot end the script block.
        "data": json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        "script": script,
        **texts,
    }
    # In one pass, so that inserted text is not searched again.
    return _SLOT.sub(lambda slot: parts[slot[1]], _file(file))


def _file(name: str) -> str:
    folder = resources.files("stagespan.pages.html")
    return (folder / name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
