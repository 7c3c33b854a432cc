"""Measures how often the gate detects a slow-down, and how often it fails an unchanged stage.

    python -m benchmarks.gate [--slower 20] [--unchanged 50] [--sessions 5] [--compare]

Each round is a separate test run with ``stage_bench`` and ``stage_limit(regress="5%")`` against one
baseline of several sessions. With ``--compare``, each round writes a baseline of its own instead,
and ``stagespan compare --tolerance 5%`` compares it with the first one. The exit status is 1 if
more than 1 of 60 unchanged stages fails, or if a slow-down counts as unchanged.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_TIMEOUT_S = 120
VERDICTS = ("slower", "faster", "unchanged", "not known")
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


def run(folder: Path, slowdown: float, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Python in the folder."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "SLOWDOWN": str(slowdown)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )


def run_test(folder: Path, slowdown: float, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the test."""
    return run(folder, slowdown, "pytest", "-q", "-p", "no:cacheprovider", *options)


def write_baseline(folder: Path, slowdown: float, name: str) -> None:
    """Run the test and write its baseline. Exits if the test fails."""
    done = run_test(folder, slowdown, f"--stage-baseline={name}", "--stage-baseline-write")
    if done.returncode != 0:
        sys.exit(f"The test failed while it wrote {name}:\n{done.stdout}{done.stderr}")


def verdict(folder: Path, slowdown: float, by_compare: bool) -> str:
    """Return the verdict of the plugin or of ``stagespan compare``."""
    if by_compare:
        write_baseline(folder, slowdown, "round.json")
        files = ("baseline.json", "round.json")
        done = run(folder, slowdown, "stagespan", "compare", *files, "--tolerance", "5%")
        (folder / "round.json").unlink()
    else:
        done = run_test(folder, slowdown, "--stage-baseline=baseline.json")
    if done.returncode not in (0, 1):
        sys.exit(f"The round could not be judged:\n{done.stdout}{done.stderr}")
    lines = done.stdout.splitlines()
    word = next((word for word in VERDICTS if any(f"1 {word}" in line for line in lines)), "?")
    reasons = [line for line in lines if " takes " in line or " hides " in line]
    print(f"{slowdown:+.0%}: {word}", *reasons[:1])
    sys.stdout.flush()
    return word


def main() -> int:
    """Run the rounds and print how many were right."""
    parser = argparse.ArgumentParser(description="How often the gate is right.")
    parser.add_argument("--slower", type=int, default=20, help="rounds with a slow-down")
    parser.add_argument("--unchanged", type=int, default=50, help="rounds without a change")
    parser.add_argument("--slowdown", type=float, default=0.10, help="the slow-down, 0.10 is 10 %%")
    parser.add_argument("--sessions", type=int, default=5, help="sessions of the baseline")
    parser.add_argument("--compare", action="store_true", help="judge by stagespan compare")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_stage.py").write_text(_TEST)
        for _ in range(given.sessions):
            write_baseline(folder, 0.0, "baseline.json")
        verdicts_of = {
            slowdown: [verdict(folder, slowdown, given.compare) for _ in range(rounds)]
            for slowdown, rounds in ((given.slowdown, given.slower), (0.0, given.unchanged))
        }
    for slowdown, verdicts in verdicts_of.items():
        counts = ", ".join(f"{verdicts.count(word)} {word}" for word in VERDICTS)
        print(f"{slowdown:+.0%}, {len(verdicts)} test runs: {counts}")
    false_alarms = verdicts_of[0.0].count("slower")
    is_hidden = "unchanged" in verdicts_of[given.slowdown]
    return int(60 * false_alarms > given.unchanged or is_hidden)


if __name__ == "__main__":
    sys.exit(main())
