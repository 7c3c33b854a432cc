"""Measures how often the gate detects a slow-down, and how often it fails an unchanged stage.

    python -m benchmarks.gate [--slower 20] [--unchanged 50] [--slowdown 0.10]

Each round is a separate test run with ``stage_bench`` and ``stage_limit(regress="5%")`` against
one baseline. The exit status is 1 if fewer than 95 % of the slow-downs are caught, or if any
unchanged stage fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_TIMEOUT_S = 120
_TEST = """
import os
import pytest

WORK = round(20_000 * (1 + float(os.environ["SLOWDOWN"])))

def stage():
    total = 0
    for number in range(WORK):
        total += number * number

@pytest.mark.stage_limit(regress="5%")
def test_stage(stage_bench):
    stage_bench(stage)
"""


def passes(folder: Path, slowdown: float, *arguments: str) -> bool:
    """Run the test, and return whether it passed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(f"--stage-baseline={folder / 'baseline.json'}", *arguments),
        ],
        cwd=folder,
        env={**os.environ, "SLOWDOWN": str(slowdown)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    found = [line for line in done.stdout.splitlines() if " takes " in line]
    print(f"{slowdown:+.0%}:", *(found[:1] or ["passed" if done.returncode == 0 else done.stdout]))
    sys.stdout.flush()
    return done.returncode == 0


def main() -> int:
    """Run the rounds and print how many were right."""
    parser = argparse.ArgumentParser(description="How often the gate is right.")
    parser.add_argument("--slower", type=int, default=20, help="rounds with a slow-down")
    parser.add_argument("--unchanged", type=int, default=50, help="rounds without a change")
    parser.add_argument("--slowdown", type=float, default=0.10, help="the slow-down, 0.10 is 10 %%")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_stage.py").write_text(_TEST)
        passes(folder, 0.0, "--stage-baseline-write")
        caught = sum(not passes(folder, given.slowdown) for _ in range(given.slower))
        passed = sum(passes(folder, 0.0) for _ in range(given.unchanged))
    print(f"caught {caught} of {given.slower}, passed {passed} of {given.unchanged}")
    return int(caught < 0.95 * given.slower or passed < given.unchanged)


if __name__ == "__main__":
    sys.exit(main())
