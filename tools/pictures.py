"""Builds the pictures of the documentation from the pages that they show, in headless Chromium.

A file beside the pictures has a fingerprint of the page of each. A picture is built again if its
page has changed, so that it is never older than the text beside it. `--check` only says which ones
are old.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
IMAGES = DOCS / "images"
FINGERPRINTS = "fingerprints.json"
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
    measured: Callable[[], str] | None = None
    """Makes the page by a run, which gives other figures each time; ``page`` is then what it
    depends on."""

    @property
    def path(self) -> Path:
        return IMAGES / self.name

    @property
    def fingerprint(self) -> str:
        """A hash of what the page shows: its text and data, not its scripts."""
        shown = re.sub(r"(?s)<script>.*?</script>", "", self.page)
        return hashlib.sha256(shown.encode()).hexdigest()

    @property
    def is_old(self) -> bool:
        """Whether the picture is missing, or was built from another page."""
        return not self.path.is_file() or fingerprints().get(self.name) != self.fingerprint


def fingerprints() -> dict[str, str]:
    """Return the fingerprints of the pages from which the pictures were built, by their names."""
    built: dict[str, str] = json.loads((IMAGES / FINGERPRINTS).read_text("utf-8"))
    return built


def remember(built: list[Picture]) -> None:
    """Write the fingerprints of pictures that were built."""
    known = fingerprints() | {picture.name: picture.fingerprint for picture in built}
    (IMAGES / FINGERPRINTS).write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", "utf-8")


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
    """Return a page that shows the output of `stagespan show` in docs/debug.md."""
    document = (DOCS / "debug.md").read_text("utf-8")
    command = "$ stagespan show out/timing.json"
    text = block_after(document, command)
    lines = [html.escape(line) for line in text[text.index(command) :].splitlines()]
    for number, line in enumerate(lines):
        if line.startswith(("$ ", " stage ")):
            lines[number] = f"<b>{line}</b>"
        elif "(unattributed)" in line:
            lines[number] = f'<span class="dim">{line}</span>'
    return _TERMINAL.format(text="\n".join(lines))


def live_page() -> str:
    """Return the page of `stagespan top --web` with the figures of an example."""
    import msgspec

    from stagespan.pages import html as pages
    from stagespan.pages.html.data import written_table
    from stagespan.recording.activity import Activity, ActivityFigures, Observer

    of_service = {"service": "wan", "pipeline": "default", "per_s": 22.1}
    recent = {**of_service, "name": "replica", "count": 9417}
    stage = {**of_service, "cpu_ns": None, "device_ns": None}
    columns = ("name", "share", "p50_ns", "running", "errors", "count")
    stages = [
        {**stage, **dict(zip(columns, row, strict=True))}
        for row in (
            ("denoise", 80.3, 412_000_000, 8, 0, 9412),
            ("decode", 16.2, 83_000_000, 2, 1, 9404),
            ("encode", 3.5, 17_000_000, 1, 0, 9414),
        )
    ]
    for row in stages:
        p50, errors = row["p50_ns"], row["errors"]
        row |= {"p95_ns": 1.4 * p50, "p99_ns": 1.5 * p50, "longest_ns": p50}
        row["errors_per_s"] = errors / 10
    places = (("execution", "denoise"), ("queue", "replica"), ("handoff", "replica"))
    requests = [
        {
            "request_id": id_,
            "trace_id": "0" * 31 + id_[-1],
            "status": "ok",
            "total_ns": sum(parts),
            "where": [
                {"kind": kind, "name": name, "ns": ns}
                for (kind, name), ns in zip(places, parts, strict=True)
            ],
        }
        for id_, parts in (
            ("clip-1841", (1_402_000_000, 431_000_000, 3_100_000)),
            ("clip-1836", (1_377_000_000, 140_000_000, 2_800_000)),
        )
    ]
    open_request = {"request_id": "clip-1842", "trace_id": "0" * 31 + "2", "age_ns": 1_210_000_000}
    open_request |= {"process": "worker.py 4711", "stages": ["denoise"], "queue": None}
    queue = {"p50_ns": 31e6, "p95_ns": 180e6, "p99_ns": 242e6, "longest_ns": 96_000_000}
    figures = msgspec.to_builtins(Observer().activity())
    figures["load"] |= {"open_requests": 14, "oldest_request_ns": 1_210_000_000}
    figures |= {
        "stages": stages,
        "queues": [{**recent, **queue, "waiting": 3}],
        "hand_offs": [{**recent, "p50_ns": 1e6, "p95_ns": 2.2e6, "p99_ns": 242e6}],
        "slowest_requests": requests,
        "open_requests": [open_request],
    }
    activity = Activity(msgspec.convert(figures, ActivityFigures))
    data = {
        "state": "Live processes wan: 4.",
        "processes": [(f"worker.py {pid}", f"process/{pid}/") for pid in range(4711, 4715)],
        "sentences": activity.sentences(),
        "tables": [written_table(table) for table in activity.tables()],
        "links": {one["request_id"]: "request" for one in requests},
    }
    script = f"show({json.dumps({'page': data})}); document.documentElement.dataset.ready = 1;"
    # Without the policy, which allows only the script as it is.
    page = re.sub(r"<meta http-equiv.*\n", "", pages.live_page("Live processes"))
    return page.replace("\nupdate();\n", f"\n{script}\n")


RECORDED = ROOT / "tests/programs/served_requests.py"


def recording_sources() -> str:
    """Return what the look of the page of a recording depends on."""
    folder = ROOT / "python/stagespan/pages/html"
    result = ROOT / "python/stagespan/recording/process_page.py"
    sources = [RECORDED, result, *(folder / name for name in ("page.css", "page.html"))]
    return "\n".join(path.read_text("utf-8") for path in sources)


def recording_page() -> str:
    """Run a program, and return the page of its recording."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        environment = os.environ | {"STAGESPAN_RECORDING_DIR": folder}
        subprocess.run([sys.executable, RECORDED.name], env=environment, cwd=RECORDED.parent)
        (recording,) = Path(folder).glob("*.stagespan")
        page = Path(folder) / "page.html"
        show = ["-m", "stagespan", "show", str(recording), "--html", str(page)]
        subprocess.run([sys.executable, *show], check=True, stdout=subprocess.DEVNULL)
        return page.read_text("utf-8")


def notebook_page() -> str:
    """Return a page with the cells of examples/slow_cell.ipynb, which is stored with its outputs.

    `jupyter execute --inplace examples/slow_cell.ipynb` runs it again.
    """
    notebook = json.loads((ROOT / "examples/slow_cell.ipynb").read_text("utf-8"))
    cells = []
    for cell in notebook["cells"][1:]:
        cells.append(f"<pre>{html.escape(cell['source'])}</pre>")
        cells += [output["data"]["text/html"] for output in cell["outputs"]]
    return _NOTEBOOK.format(cells="\n".join(cells))


def pictures() -> list[Picture]:
    """Return all pictures with their current pages."""
    return [
        Picture("analyze_page.png", trace_page(), 1200, 788),
        Picture("report_terminal.png", terminal_page(), 940, 204),
        Picture("live_page.png", live_page(), 900, 850),
        Picture("notebook.png", notebook_page(), 800, 562),
        Picture("recording_page.png", recording_sources(), 1200, 815, recording_page),
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
            page = Path(folder) / "source.html"
            page.write_text(picture.measured() if picture.measured else picture.page, "utf-8")
            browser.size(picture.width, picture.height)
            browser.media()
            browser.open(page)
            browser.screenshot(picture.path)
    remember(wanted)


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
