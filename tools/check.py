"""Runs checks, and prints their times, what was skipped and why, and pytest's figures.

    python tools/check.py [--all]

Two runs of nox share the cores: one has the Python tests in `.venv`, which take the longest, the
other has the rest. The output of the second is printed when it has ended.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import STATE

# The session of each part. Sessions with the tag "all" run with `--all` only.
PYTHON, REST = "tests", ("lint", "cpp", "demo", "docs")
PYTHON_ALL = "tests-all"
REST_ALL = (*REST, "cpp-tsan", "cpp-fuzz", "python", "fresh-machine")


def main() -> int:
    """Run the checks and print the summary; returns 1 if a check failed or no test ran."""
    begin_s = time.monotonic()
    everything = "--all" in sys.argv
    shutil.rmtree(STATE / "pytest", ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        reports = [Path(folder) / "rest.json", Path(folder) / "python.json"]
        rest = start(reports[0], *(REST_ALL if everything else REST), stdout=log, stderr=log)
        try:
            start(reports[1], PYTHON_ALL if everything else PYTHON).wait()
            rest.wait()
        finally:
            rest.terminate()  # stops it after an interrupt; otherwise does nothing
            rest.wait()
        log.seek(0)
        print(log.read(), flush=True)
        return summarise([read(report) for report in reports], time.monotonic() - begin_s)


def start(report: Path, *sessions: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start nox with some sessions."""
    command = [sys.executable, "-m", "nox", "--report", str(report), "-s", *sessions]
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
    print("\nTime of each check:")
    for check in checks:
        print(f"  {check['name']:24}{check['result']:9}{check['duration']:7.1f} s")
    print(f"  {'all':33}{seconds:7.1f} s")
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
    print("\nSkipped:")
    print("\n".join(skipped) or "  nothing")
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in totals.items()))
    failed = any(report["result"] != 1 for report in reports)
    return 1 if failed or totals["passed"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
