"""Measures what `stagespan run` adds to a script without stages, beside other samplers.

    python -m benchmarks.sampling [--turns 7] [--epochs 30] [--json FILE]

Each turn runs the same training script alone, under `stagespan run`, and under each sampler that is
installed (requirements-bench.txt), one after another. A figure is the CPU time of the process and
its children, imports and the report at the end included, over that of the run alone in the same
turn; the median over the turns is printed. CPU time depends little on other load. The exit status
is 1 if `stagespan run` exceeds its budget. Needs torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from stagespan.pages.tables import Column, plain_table

MOST = 1.03
"""The budget of `stagespan run`, in runs of the script alone."""
ALONE, OWN = "the script alone", "stagespan run"
_SCRIPT = Path(__file__).parent / "trained.py"


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the beginnings of the commands that run a script, by what samples it."""
    python = sys.executable
    return {
        ALONE: [python],
        OWN: [python, "-m", "stagespan", "run"],
        "pyinstrument": [python, "-m", "pyinstrument", "-o", str(folder / "pyinstrument.txt")],
        "scalene": [
            *(python, "-m", "scalene", "run", "--cpu-only"),
            *("-o", str(folder / "scalene.json")),
        ],
    }


def cpu_s(command: list[str], folder: Path) -> float:
    """Return the CPU time of a command and its children. Ends this program if the command fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "STAGESPAN_RECORDING_DIR": ""}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are compiled
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or "loss" not in done.stdout:
        sys.exit(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Run in turns, and print the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=30, help="of the script: how long it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures there")
    options = parser.parse_args()
    taken_s: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        started = commands(Path(name))
        missing = [peer for peer in list(started)[2:] if importlib.util.find_spec(peer) is None]
        for peer in missing:
            del started[peer]
            print(f"skipped, because it is not installed: {peer}", file=sys.stderr)
        for command in started.values():
            cpu_s([*command, str(_SCRIPT), "1"], Path(name))  # compiles what it imports
        for _ in range(options.turns):
            for sampler, command in started.items():
                call = [*command, str(_SCRIPT), str(options.epochs)]
                taken_s.setdefault(sampler, []).append(cpu_s(call, Path(name)))
    ratios = {
        sampler: [time / alone for time, alone in zip(times, taken_s[ALONE], strict=True)]
        for sampler, times in taken_s.items()
    }
    medians = {sampler: statistics.median(of) for sampler, of in ratios.items()}
    columns = [
        Column("run", list(medians)),
        Column("CPU s", [f"{statistics.median(of):.2f}" for of in taken_s.values()], True),
        Column("x alone", [f"{ratio:.3f}" for ratio in medians.values()], True),
        Column("from", [f"{min(of):.3f}" for of in ratios.values()], True),
        Column("to", [f"{max(of):.3f}" for of in ratios.values()], True),
    ]
    print(plain_table(columns))
    if options.json is not None:
        options.json.write_text(json.dumps({"cpu_s": taken_s, "ratios": ratios}, indent=1))
    return 0 if medians[OWN] <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
