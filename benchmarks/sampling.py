"""Measures what `stagespan run` adds to a script without stages, beside other samplers.

    python -m benchmarks.sampling [--turns 7] [--epochs 30] [--json FILE]

Each turn runs the same training script under `stagespan run`, and under each sampler that is
installed (requirements-bench.txt), one after another, and each time the script alone beside it. A
figure is the CPU time of the process and its children, imports and the report at the end included,
over that of the run alone at the same time; the median over the turns is printed. On a virtual
machine, CPU time changes with what else its host does, but for both runs. The exit status is 1 if
`stagespan run` exceeds its budget. Needs torch, and two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
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


def cpu_s(*calls: list[str], folder: Path) -> list[float]:
    """Return the CPU times of commands that run at the same time, with those of their children.

    Ends this program if one of them fails.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "STAGESPAN_RECORDING_DIR": ""}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are compiled
    taken_s = []
    with contextlib.ExitStack() as outputs:
        started = []
        for call in calls:
            output = outputs.enter_context(tempfile.TemporaryFile("w+"))
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            started.append((subprocess.Popen(call, cwd=folder, env=environment, **streams), output))
        for process, output in started:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            text = output.read()
            if process.returncode != 0 or "loss" not in text:
                sys.exit(f"{process.args} failed: {text[-2000:]}")
            taken_s.append(used.ru_utime + used.ru_stime)
    return taken_s


def main() -> int:
    """Run in turns, and print the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=30, help="of the script: how long it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures there")
    options = parser.parse_args()
    taken_s: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        started = commands(Path(name))
        missing = [peer for peer in list(started)[2:] if importlib.util.find_spec(peer) is None]
        for peer in missing:
            del started[peer]
            print(f"skipped, because it is not installed: {peer}", file=sys.stderr)
        for command in started.values():
            cpu_s([*command, str(_SCRIPT), "1"], folder=Path(name))  # compiles what it imports
        for _ in range(options.turns):
            for sampler, command in started.items():
                calls = [
                    [*of, str(_SCRIPT), str(options.epochs)] for of in (command, started[ALONE])
                ]
                own_s, alone_s = cpu_s(*calls, folder=Path(name))
                taken_s.setdefault(sampler, []).append(own_s)
                ratios.setdefault(sampler, []).append(own_s / alone_s)
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
