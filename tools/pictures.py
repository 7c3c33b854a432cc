"""Builds the pictures of the documentation from the pages that they show, in headless Chromium.

Each picture contains a fingerprint of its page. A picture is built again if its page has changed,
so that it is never older than the text beside it. `--check` only says which ones are old.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
IMAGES = DOCS / "images"
KEY = b"stagespan-page"
_PNG_HEAD = 8
_TERMINAL = """<!DOCTYPE html><html data-ready="1"><meta charset="utf-8"><style>
body {{ margin: 0; padding: 16px; background: #1a1b20; color: #e3e3e3; }}
pre {{ margin: 0; font: 14px/19px "DejaVu Sans Mono", monospace; }}
.dim {{ color: #85868c; }}
</style><pre>{text}</pre></html>
"""
_NOTEBOOK = """<!DOCTYPE html><html data-ready="1"><meta charset="utf-8"><style>
body {{ margin: 16px; background: #fff; color: #212121; }}
body {{ font: 14px/20px "DejaVu Sans", sans-serif; }}
body > pre {{ margin: 12px 0 8px; padding: 8px; background: #f5f5f5; border: 1px solid #e0e0e0; }}
pre {{ font: 13px/18px "DejaVu Sans Mono", monospace; }}
p {{ margin: 4px 0; }}
caption {{ text-align: left; font-size: 12px; }}
table {{ border-collapse: collapse; font-size: 12px; margin: 6px 0; }}
td, th {{ padding: 2px 10px 2px 0; }}
</style>{cells}</html>
"""


class Picture(NamedTuple):
    """A picture, and the page that it shows."""

    name: str
    page: str
    width: int
    height: int
    """The size of the window in pixels."""

    @property
    def path(self) -> Path:
        return IMAGES / self.name

    @property
    def fingerprint(self) -> str:
        """A hash of what the page shows. Scripts are left out."""
        shown = re.sub(r"(?s)<script.*?</script>", "", self.page)
        return hashlib.sha256(shown.encode()).hexdigest()

    @property
    def is_old(self) -> bool:
        """Whether the picture is missing, or was built from another page."""
        return not self.path.is_file() or fingerprint_in(self.path.read_bytes()) != self.fingerprint


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the type and the content of each chunk of a PNG file."""
    at = _PNG_HEAD
    while at + 8 <= len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += length + 12


def fingerprint_in(png: bytes) -> str | None:
    """Return the fingerprint that a picture contains, or None."""
    for kind, content in chunks(png):
        if kind == b"tEXt" and content.startswith(KEY + b"\0"):
            return content[len(KEY) + 1 :].decode("ascii", "replace")
    return None


def with_fingerprint(png: bytes, fingerprint: str) -> bytes:
    """Return a picture with a fingerprint in front of its last chunk."""
    content = b"tEXt" + KEY + b"\0" + fingerprint.encode()
    length, checksum = struct.pack(">I", len(content) - 4), struct.pack(">I", zlib.crc32(content))
    end = png.rindex(b"\0\0\0\0IEND")
    return png[:end] + length + content + checksum + png[end:]


def block_after(document: str, mark: str) -> str:
    """Return the text of the fenced block of a document that contains or follows a mark."""
    at = document.index(mark)
    begin = document.rindex("```", 0, at) if mark.startswith("$ ") else document.index("```", at)
    begin = document.index("\n", begin) + 1
    return document[begin : document.index("\n```", begin)]


def trace_page() -> str:
    """Return the page of the trace that docs/analyze.md makes."""
    program = block_after((DOCS / "analyze.md").read_text("utf-8"), "<!-- run: file make_trace.py")
    with tempfile.TemporaryDirectory() as folder:
        for command in (
            ["-c", program],
            ["-m", "stagespan", "analyze", "trace.json", "--html", "page.html"],
        ):
            subprocess.run(
                [sys.executable, *command], cwd=folder, check=True, stdout=subprocess.DEVNULL
            )
        return (Path(folder) / "page.html").read_text("utf-8")


def terminal_page() -> str:
    """Return a page that shows the output of `stagespan report` in docs/slow_stage.md."""
    document = (DOCS / "slow_stage.md").read_text("utf-8")
    command = "$ stagespan report out/timing.json"
    text = block_after(document, command)
    lines = [html.escape(line) for line in text[text.index(command) :].splitlines()]
    for number, line in enumerate(lines):
        if line.startswith(("$ ", " stage ")):
            lines[number] = f"<b>{line}</b>"
        elif "(unattributed)" in line:
            lines[number] = f'<span class="dim">{line}</span>'
    return _TERMINAL.format(text="\n".join(lines))


def live_page() -> str:
    """Return the page of `stagespan export --page` with the figures of an example."""
    page = (ROOT / "python/stagespan/export/page.html").read_text("utf-8")
    rows = (
        ("denoise", "", 22.1, 9.4, (0.412, 0.585, 0.61), 8, 0),
        ("decode", "", 22.0, 1.9, (0.083, 0.121, 0.14), 2, 1),
        ("replica", "queue", 22.1, 1.1, (0.031, 0.18, 0.242), 3, 0),
        ("encode", "", 22.2, 0.4, (0.017, 0.024, 0.03), 1, 0),
    )
    traces = (
        ("4f1aa1cb153fb9fa438c1bab227dd156", 1.84),
        ("0b73f8780b3aa31fe5d18b6665b8df80", 1.52),
    )
    group = {"service": "wan", "pipeline": "default", "rank": ""}
    names = ("stage", "kind", "per_second", "seconds", "quantiles", "open", "errors")
    stages = []
    for row in rows:
        stage = {**dict(zip(names, row, strict=True)), **group}
        stages.append({**stage, **dict(zip(("p50", "p95", "p99"), row[4], strict=True))})
    data = {
        "window_s": 10,
        "services": [{"service": "wan", "up": 4}],
        "stages": stages,
        "requests": [
            {"trace_id": trace, "seconds": seconds, "status": "ok", "service": "wan"}
            for trace, seconds in traces
        ],
    }
    shown = f"show({json.dumps(data)}); document.documentElement.dataset.ready = 1;"
    return page.replace("\nupdate();\n", f"\n{shown}\n")


def notebook_page() -> str:
    """Return a page with the cells of examples/slow_cell.ipynb, which is stored with its outputs.

    `jupyter execute --inplace examples/slow_cell.ipynb` runs it again.
    """
    notebook = json.loads((ROOT / "examples/slow_cell.ipynb").read_text("utf-8"))
    shown = []
    for cell in notebook["cells"][1:]:
        shown.append(f"<pre>{html.escape(cell['source'])}</pre>")
        shown += [output["data"]["text/html"] for output in cell["outputs"]]
    return _NOTEBOOK.format(cells="\n".join(shown))


def pictures() -> list[Picture]:
    """Return all pictures with their current pages."""
    return [
        Picture("analyze_page.png", trace_page(), 1200, 788),
        Picture("report_terminal.png", terminal_page(), 940, 204),
        Picture("live_page.png", live_page(), 900, 480),
        Picture("notebook.png", notebook_page(), 800, 562),
    ]


def build(wanted: list[Picture]) -> None:
    """Build pictures."""
    sys.path[:0] = [str(ROOT / "tests" / "unit" / "trace"), str(ROOT / "tests")]
    from browser import Browser, program

    if program() is None:
        names = ", ".join(picture.name for picture in wanted)
        sys.exit(f"no Chromium to build the pictures {names}: install chromium")
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder)) as browser:
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        for picture in wanted:
            page, shot = Path(folder) / "source.html", Path(folder) / "shot.png"
            page.write_text(picture.page, "utf-8")
            browser.size(picture.width, picture.height)
            browser.media()
            browser.open(page)
            browser.screenshot(shot)
            picture.path.write_bytes(with_fingerprint(shot.read_bytes(), picture.fingerprint))


def main() -> int:
    """Build the pictures that are old, or with `--check` list them."""
    old = [picture for picture in pictures() if picture.is_old]
    only_check = "--check" in sys.argv[1:]
    if old and not only_check:
        build(old)
    for picture in old:
        print(f"docs/images/{picture.name}", "is old" if only_check else "was built")
    return int(bool(old) and only_check)


if __name__ == "__main__":
    sys.exit(main())
