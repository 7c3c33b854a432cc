"""Records how the times of an unchanged stage differ between processes, on a calm or busy machine.

    python -m benchmarks.gate_samples calm=alone shared=0 busy=2 --sessions 40 \\
        --output tests/unit/report/gate_samples.json.gz

Each session is a process of its own that measures two stages as `stage_bench` does. ``NAME=N``
records a series while N more processes keep cores busy. ``NAME=alone`` records one on a core that
no other program uses meanwhile (with real-time priority, which needs root). The series alternate,
so that they meet the same machine. tests/unit/report/test_gate_samples.py resamples the file, which
was recorded on a virtual machine of two cores, on which six other programs were busy.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_MOST_RUNS = 60
_DIGITS = 4
_TIMEOUT_S = 300
_BURN = "while True: pass"


def tokenize() -> None:
    """Run Python code only: the speed of the processor decides its time."""
    table: dict[str, int] = {}
    for number in range(400):
        for word in ("alpha", "beta", "gamma", "delta") * 4:
            table[word] = table.get(word, 0) + len(word) * number


def encode() -> None:
    """Multiply matrices with NumPy, whose library uses threads of its own."""
    import numpy as np

    weights = np.random.default_rng(0).standard_normal((160, 160)).astype("float32")
    x = np.ones((64, 160), "float32")
    for _ in range(30):
        x = np.tanh(x @ weights * np.float32(0.05))


def session(alone: bool) -> dict[str, Any]:
    """Measure both stages in this process. Returns the figures by stage."""
    if alone:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    from stagespan.report.measure import measure

    samples = {}
    for stage in (tokenize, encode):
        times = measure(stage, most_seconds=1.0)
        samples[stage.__name__] = {
            "samples_ms": _spread(times.samples_ms),
            "relative": _spread(times.relative),
            # Other programs may have used the other cores, but not this one.
            "disturbed": False if alone else times.disturbed,
            "fixed_ns": times.fixed_ns,
        }
    return samples


def _spread(values: tuple[float, ...]) -> list[float]:
    """Return at most `_MOST_RUNS` rounded values, spread evenly over the measurement."""
    count = min(len(values), _MOST_RUNS)
    return [round(values[place * len(values) // count], _DIGITS) for place in range(count)]


def recorded(condition: str) -> dict[str, Any]:
    """Return the figures of a session in a new process: ``alone``, or beside N busy processes."""
    others = 0 if condition == "alone" else int(condition)
    busy = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(others)]
    options = ["--one", *(["--alone"] if condition == "alone" else [])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gate_samples", *options],
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_S,
        )
    finally:
        for process in busy:
            process.kill()
            process.wait()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Record the series and write them."""
    from stagespan.device.environment import machine

    parser = argparse.ArgumentParser(description="Record sessions of unchanged stages.")
    parser.add_argument("series", nargs="*", metavar="NAME=N", help="N busy processes, or alone")
    parser.add_argument("--sessions", type=int, default=40, help="sessions of each series")
    parser.add_argument("--output", type=Path, help="the file, .json.gz")
    parser.add_argument("--one", action="store_true", help="print one session of this process")
    parser.add_argument("--alone", action="store_true", help="with --one: on its own core")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(session(given.alone)))
        return
    if not given.series or given.output is None:
        parser.error("name the series and the file: calm=alone busy=2 --output samples.json.gz")
    conditions = dict(text.split("=", 1) for text in given.series)
    series: dict[str, list[dict[str, Any]]] = {name: [] for name in conditions}
    for number in range(given.sessions):
        for name, condition in conditions.items():
            series[name].append(recorded(condition))
        print(f"{number + 1} of {given.sessions}", flush=True)
    content = {"environment": machine(), "series": series}
    with gzip.GzipFile(given.output, "wb", mtime=0) as file:
        file.write(json.dumps(content, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
