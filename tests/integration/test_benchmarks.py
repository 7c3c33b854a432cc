"""The benchmark runs and finds every span that it timed; what it measures is not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_quick_benchmark_prints_a_row_for_every_budget_and_loses_no_span(
    tmp_path: Path,
) -> None:
    pytest.importorskip("rich")
    # GIVEN the benchmark
    target = tmp_path / "figures.json"

    # WHEN it runs for a few seconds, its figures left aside
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "run.py", "--quick", "--json", target],
        capture_output=True,
        text=True,
        timeout=280,
    )

    # THEN it has printed all rows, and stats() had counted each span (it fails otherwise)
    assert done.returncode == 0, done.stderr
    for row in ("with span, reused", "decorated call", "memory, bytes a span", "import stagespan"):
        assert row in done.stdout
    found = json.loads(target.read_text())
    assert found["spans"] > 10_000
    assert all(run["timed"] == run["counted"] for run in found["runs"])
