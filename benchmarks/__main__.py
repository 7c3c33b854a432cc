"""Measures every budget that needs only a CPU, and other tools, and prints one table.

    python -m benchmarks [--quick] [--json FILE]

Several processes measure one after another, each pinned to one core; in each, all cases run
alternately for short times. Ratios are computed within a process. The exit status is 1 if a budget
is exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

import stagespan
from benchmarks import native, startup, table

ROOT = Path(__file__).parent.parent


def collect(quick: bool) -> dict[str, Any]:
    """Run all measurements. Exits with a message if a span was lost."""
    console = Console(stderr=True)
    processes, turns, chunk_us = (1, 3, 50) if quick else (9, 101, 250)
    load = os.getloadavg()[0]
    cpp_skipped = ""
    try:
        programs = native.build()
    except native.SkipError as reason:
        programs, cpp_skipped = None, str(reason)
    measured: list[dict[str, Any]] = []
    for _ in track(range(processes), "measuring", console=console, disable=not console.is_terminal):
        command = [sys.executable, "-m", "benchmarks.measure", str(turns), str(chunk_us)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False, cwd=ROOT)
        if done.returncode != 0:
            sys.exit("A process of the benchmark failed; its output is above.")
        process = json.loads(done.stdout)
        if programs is not None:
            found = native.measure(programs, 3_000 if quick else 12_000, turns)
            process["ns"].update(found["ns"])
            process["spans"] += found["counted"]
        measured.append(process)
    return {
        "quick": quick,
        "processes": measured,
        "turns": turns,
        "spans": sum(process["spans"] for process in measured),
        "startup": startup.measure(3 if quick else 21),
        "cpp_skipped": cpp_skipped,
        "machine": machine(load),
        "versions": table.versions(),
    }


def machine(load: float) -> dict[str, Any]:
    """Return facts about the machine; `load` is that before the measurement."""
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    profile = "with" if "--enable-optimizations" in options else "without"
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": load,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "build": f"built {profile} profile-guided optimisation",
        "compiler": platform.python_compiler(),
        "clock": stagespan._core.clock_info()["source"],
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="seconds; the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures there")
    options = parser.parse_args()
    figures = collect(options.quick)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    is_within = table.show(figures)
    return 0 if is_within or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
