"""Runs every check, and prints their times, what was skipped and why, and pytest's figures.

python tools/check.py

Two runs of nox share the cores: one has the Python tests in `.venv`, which take the longest, the
other has all other checks. The output of the second is printed when it has ended.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import LOGS, STATE, Timer, say

# Expressions for nox's option -k. The second negates the first, so no session is left out.
PARTS = {"background": "not tests", "python": "tests"}


def main() -> int:
    """Run the checks and print the summary; returns 1 if a check failed or none ran."""
    timer = Timer()
    shutil.rmtree(STATE / "pytest", ignore_errors=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    reports = {name: STATE / f"nox-{name}.json" for name in PARTS}
    for report in reports.values():
        report.unlink(missing_ok=True)
    log = LOGS / "checks-background.log"
    say(f"While the Python tests run, the output of the other checks goes to {log}.")
    with log.open("w") as file:
        background = start(
            "background", reports["background"], stdout=file, stderr=subprocess.STDOUT
        )
        try:
            start("python", reports["python"]).wait()
            background.wait()
        finally:
            background.terminate()  # stops it after an interrupt; otherwise does nothing
            background.wait()
    say(log.read_text(errors="replace"))
    return summarise([read(report) for report in reports.values()], timer.seconds())


def start(part: str, report: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start nox with the sessions of a part."""
    command = [sys.executable, "-m", "nox", "-k", PARTS[part], "--report", str(report)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)


def read(report: Path) -> dict[str, Any]:
    """Read the report of nox. If it is missing, return a failed report."""
    if not report.is_file():
        return {"result": 0, "sessions": []}
    content = json.loads(report.read_text())
    assert isinstance(content, dict)
    return content


def summarise(reports: list[dict[str, Any]], seconds: float) -> int:
    """Print the figures of all reports; returns 1 if a check failed or no test passed."""
    checks = [check for report in reports for check in report["sessions"]]
    say("\nTime of each check:")
    for check in checks:
        say(f"  {check['name']:24}{check['result']:9}{check['duration']:7.1f} s")
    say(f"  {'all':33}{seconds:7.1f} s")
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    skipped = []
    for path in sorted((STATE / "pytest").glob("*.json")):
        run = json.loads(path.read_text())
        for outcome in totals:
            totals[outcome] += run[outcome]
        for reason, count in sorted(run["reasons"].items()):
            times = f"{count} x " if count > 1 else ""
            skipped.append(f"  {path.stem}: {times}{reason}")
    skipped += [
        f"  {check['name']}: {check['reason']}" for check in checks if check["result"] == "skipped"
    ]
    say("\nSkipped:")
    say("\n".join(skipped) or "  nothing")
    say("\n" + ", ".join(f"{count} {outcome}" for outcome, count in totals.items()))
    failed = any(report["result"] != 1 for report in reports)
    return 1 if failed or totals["passed"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
