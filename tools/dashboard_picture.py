"""Builds the picture of the dashboard with the components of Grafana, in headless Chromium.

A service runs for some minutes beside an exporter and a Prometheus. What Prometheus answers to the
expressions of the dashboard is drawn by the packages that Grafana publishes, which npm installs.
They also check that the dashboard is what Grafana expects. Needs prometheus, npm and chromium.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pictures import IMAGES, ROOT

sys.path += [str(ROOT / "tests" / "unit" / "trace"), str(ROOT / "tests" / "integration")]

from browser import Browser
from exporting import Prometheus, exporter, free_port

from stagespan.export import dashboard

PARTS = ROOT / "tools" / "dashboard_picture"
SECONDS = 600
STEP_S = 5
WIDTH_PX, HEIGHT_PX = 1200, 1042
SHOWN_ROWS = 27
"""The rows of the dashboard that are in the picture."""
_PAGE = """<!DOCTYPE html><html><meta charset="utf-8"><style>{style}</style><div id="root"></div>
<script>window.shown = {shown};</script><script>{script}</script></html>
"""
_TYPED = 'import type {{ Dashboard }} from "@grafana/schema";\nexport const made: Dashboard = {};\n'


def answered(prometheus: Prometheus, shown: dict[str, Any]) -> dict[str, Any]:
    """Return what Prometheus answers to each expression of a dashboard."""
    to_s = int(time.time()) // STEP_S * STEP_S
    values = {"__rate_interval": f"{4 * STEP_S}s"}
    answers = {}
    for target in (one for panel in shown["panels"] for one in panel["targets"]):
        asked = re.sub(r"\$(\w+)", lambda name: values.get(name[1], ".*"), target["expr"])
        answers[target["expr"]] = prometheus.matrix(asked, to_s - SECONDS, to_s, STEP_S)
    if not any(answers.values()):
        sys.exit("Prometheus has no data of the service")
    times = {"fromMs": (to_s - SECONDS) * 1000, "toMs": to_s * 1000, "stepMs": STEP_S * 1000}
    return {"answers": answers, **times}


def run_service(folder: Path, shown: dict[str, Any]) -> dict[str, Any]:
    """Run the service beside an exporter and a Prometheus, and return the answers of that one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        return _run_service(folder, shown, {"STAGESPAN_RECORDING_DIR": shared})


def _run_service(folder: Path, shown: dict[str, Any], variables: dict[str, str]) -> dict[str, Any]:
    program = shutil.which("prometheus") or sys.exit("no prometheus on PATH: install it")
    service = [sys.executable, str(PARTS / "service.py"), str(SECONDS)]
    variables = {**variables, "STAGESPAN_JOB": "wan"}
    with exporter(**variables) as (_, port):
        prometheus = Prometheus(program, folder, port, free_port(), interval=f"{STEP_S}s")
        try:
            subprocess.run(service, env={**os.environ, **variables}, check=True)
            return answered(prometheus, shown)
        finally:
            prometheus.close()


def build_script(folder: Path, shown: dict[str, Any]) -> tuple[str, str]:
    """Install Grafana's packages, check the dashboard with their types, return script and CSS."""
    parts = folder / "parts"
    shutil.copytree(PARTS, parts)
    (parts / "made.ts").write_text(_TYPED.format(json.dumps(shown)))
    for command in (
        ("npm", "install", "--no-audit", "--no-fund", "--no-package-lock"),
        ("npx", "tsc"),
        ("npx", "vite", "build", "--logLevel", "error"),
    ):
        subprocess.run(command, cwd=parts, check=True, stdout=sys.stderr)
    script, *style = (parts / "dist" / "panels.js", *(parts / "dist").glob("*.css"))
    return script.read_text("utf-8"), "".join(path.read_text("utf-8") for path in style)


def main() -> int:
    """Write the picture."""
    shown = json.loads(json.dumps(dashboard.dashboard()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, style = build_script(folder, shown)
        data = run_service(folder, shown)
        first = [one for one in shown["panels"] if one["gridPos"]["y"] < SHOWN_ROWS]
        with Browser(folder) as browser:
            browser.call("Emulation.setScrollbarsHidden", hidden=True)
            browser.size(WIDTH_PX, HEIGHT_PX)
            values = {"dashboard": {**shown, "panels": first}, "data": data, "mode": "dark"}
            page = folder / "source.html"
            text = json.dumps({**values, "widthPx": WIDTH_PX}).replace("</", "<\\/")
            page.write_text(_PAGE.format(style=style, shown=text, script=script), "utf-8")
            browser.open(page)
            browser.screenshot(IMAGES / "dashboard.png")
    print("docs/images/dashboard.png was built")
    return 0


if __name__ == "__main__":
    sys.exit(main())
