"""Prints what the checks did: their times, what was skipped and why, and pytest's last figures.

python tools/summary.py REPORT      the file that `nox --report` wrote
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from common import STATE, say


def main() -> int:
    """Print the summary; returns 1 if a check failed or none ran."""
    report = json.loads(Path(sys.argv[1]).read_text())
    say("\nTime of each check:")
    for check in report["sessions"]:
        say(f"  {check['name']:24}{check['result']:9}{check['duration']:7.1f} s")
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
        f"  {check['name']}: {check['reason']}"
        for check in report["sessions"]
        if check["result"] == "skipped"
    ]
    say("\nSkipped:")
    say("\n".join(skipped) or "  nothing")
    say("\n" + ", ".join(f"{count} {outcome}" for outcome, count in totals.items()))
    return 1 if report["result"] != 1 or totals["passed"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
