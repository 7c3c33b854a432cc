"""The data in an HTML page."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any


def data_of(page: str) -> dict[str, Any]:
    """Return the page's data block, as a browser reads it."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def rows_of(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the page's rows by name: begin, end and words of each bar, decoded."""
    found = json.loads(gzip.decompress(base64.b64decode(data["timeline"])))
    for row in found["rows"]:
        at, bars = 0, []
        for bar, (gap, length, key, name) in enumerate(
            zip(row["gaps"], row["lengths"], row["keys"], row["names"], strict=True)
        ):
            begin, at = at + gap, at + gap + length
            words = found["names"][name] if name < len(found["names"]) else ""
            several = row["several"].get(str(bar))
            parts = (
                [(key, length)]
                if several is None
                else zip(several[1::2], several[2::2], strict=True)
            )
            busy = {found["keys"][kind][0]: time for kind, time in parts}
            bars.append((begin, at, words, busy, 1 if several is None else several[0]))
        row["bars"] = bars
    return {row["name"]: row for row in found["rows"]}
