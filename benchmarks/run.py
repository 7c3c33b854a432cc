"""Measures every budget that runs on a CPU, beside its peers, and prints one table.

    python benchmarks/run.py [--quick] [--json FILE]

Several processes measure one after another, each pinned to one core, each taking all cases in
turns; a figure is the median over the processes. Ratios are taken within a process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import cases
import stagespan

HERE = Path(__file__).parent
ROOT = HERE.parent


def cpp_figures(quick: bool) -> dict[str, Any]:
    """Build and run the C++ part; says why when there is no compiler."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        return {"skipped": "C++ spans (no C++ compiler)"}
    folder = ROOT / "build" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "span_cost"
    sources = [HERE / "cpp" / "span_cost.cpp", *sorted((ROOT / "csrc" / "stagespan").glob("*.cpp"))]
    subprocess.run(
        [compiler, "-std=c++20", "-O2", "-pthread", f"-I{ROOT / 'csrc'}"]
        + [str(source) for source in sources]
        + ["-o", str(program), "-ldl"],
        check=True,
    )
    # A process each, as with the Python cases: where memory comes to lie differs between them.
    runs = []
    for _ in range(1 if quick else 7):
        command = [str(program), "10000" if quick else "500000", "3" if quick else "9"]
        runs.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    return {"runs": runs}


def import_ms(statement: str, times: int) -> float:
    """Wall time of `statement` in a fresh interpreter, in ms: the median of several."""
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    found = []
    for _ in range(times):
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
        found.append(float(done.stdout) * 1e3)
    return statistics.median(found)


def collect(quick: bool) -> dict[str, Any]:
    """Run all measurements."""
    console = Console(stderr=True)
    cpp = cpp_figures(quick)
    processes, rounds, scale = (1, 2, 0.05) if quick else (7, 7, 1.0)
    runs = []
    for number in range(processes):
        if console.is_terminal:
            console.print(f"process {number + 1} of {processes} ...", style="dim")
        done = subprocess.run(
            [sys.executable, str(HERE / "measure.py"), str(rounds), str(scale)],
            stdout=subprocess.PIPE,
            check=True,
            cwd=HERE,
        )
        run = json.loads(done.stdout)
        runs.append(run)
    for index, run in enumerate(cpp.get("runs", [])):
        target = runs[index % len(runs)]["ns"]
        target["cpp floor"], target["cpp on"] = run["floor_ns"], run["on_ns"]
        target["cpp depth 3"], target["cpp off"] = run["depth3_ns"], run["off_ns"]
    for index, run in enumerate(runs):
        if run["timed"] != run["counted"]:
            raise SystemExit(
                f"process {index}: {run['timed']} spans were timed, stats() counts {run['counted']}"
            )
    skipped = [*runs[0]["skipped"], *([cpp["skipped"]] if "skipped" in cpp else [])]
    return {
        "runs": runs,
        "skipped": skipped,
        "import_ms": import_ms("import stagespan", 3 if quick else 15),
        "spans": sum(run["counted"] for run in runs)
        + sum(run["counted"] for run in cpp.get("runs", [])),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "system": platform.platform(),
            "python": platform.python_version(),
            "optimised_build": "--enable-optimizations"
            in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
            "clock": stagespan._core.clock_info()["source"],
        },
    }


def _cpu() -> str:
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def _median(runs: list[dict[str, Any]], name: str) -> float | None:
    values = [run["ns"][name] for run in runs if name in run["ns"]]
    return statistics.median(values) if values else None


def _spread(values: list[float]) -> str:
    return f"{min(values):,.1f} - {max(values):,.1f}"


def budget_row(budget: cases.Budget, runs: list[dict[str, Any]]) -> list[str] | None:
    """One line of the table: figure, spread over the processes, what it stands beside, verdict."""
    own = [
        run["ns"][budget.case] - (run["ns"][budget.less] if budget.less else 0.0)
        for run in runs
        if budget.case in run["ns"]
    ]
    if not own:
        return None
    median = statistics.median(own)
    row = [budget.what, f"{median:,.1f}", _spread(own)]
    if budget.factor:
        ratios = [
            run["ns"][budget.case] / run["ns"][budget.beside]
            for run in runs
            if budget.case in run["ns"] and budget.beside in run["ns"]
        ]
        ratio = statistics.median(ratios)
        beside = _median(runs, budget.beside)
        limit = f"{budget.factor:g} x" + (f", {budget.aim}" if budget.aim else "")
        verdict = "within" if ratio <= budget.factor else "OVER"
        return [*row, f"{budget.beside} {beside:,.1f}", f"{ratio:.2f} x", limit, verdict]
    if budget.most_ns:
        verdict = "within" if median <= budget.most_ns else "OVER"
        return [*row, budget.less, "", f"{budget.most_ns:g} ns", verdict]
    if budget.less:
        # 0 within noise: a difference of medians, beside how far they differ between processes.
        bare = [run["ns"][budget.less] for run in runs]
        noise = max(max(bare) - min(bare), 1.0)
        verdict = "within" if median <= noise else "OVER"
        return [*row, budget.less, "", f"0 +- {noise:.1f} ns", verdict]
    return [*row, "", "", "", ""]


def show(found: dict[str, Any]) -> bool:
    """Print the table; returns whether every budget holds."""
    runs = found["runs"]
    table = Table(
        title="What a span costs, ns; medians of interleaved repeats", title_justify="left"
    )
    for column in ("what", "median", "over processes", "beside", "ratio", "budget", ""):
        is_text = column in ("what", "beside", "budget")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    rows = [row for budget in cases.BUDGETS if (row := budget_row(budget, runs)) is not None]
    growth = [run["growth_bytes"] for run in runs]
    rows.append(
        [
            "memory, bytes a span",
            f"{statistics.median(growth):.3f}",
            _spread(growth),
            "",
            "",
            "0",
            "within" if statistics.median(growth) < 0.01 else "OVER",
        ]
    )
    rows.append(
        [
            "import stagespan, ms",
            f"{found['import_ms']:.1f}",
            "",
            "",
            "",
            "50 ms",
            "within" if found["import_ms"] < 50 else "OVER",
        ]
    )
    for row in rows:
        table.add_row(*row)
    table.add_section()
    new = _median(runs, "with span, new") or 1.0
    for name in cases.PEERS:
        median = _median(runs, name)
        if median is not None:
            values = [run["ns"][name] for run in runs]
            table.add_row(
                name,
                f"{median:,.1f}",
                _spread(values),
                "with span, new",
                f"{median / new:.1f} x",
                "",
                "peer",
            )
    console = Console(width=max(140, Console().width) if not sys.stdout.isatty() else None)
    console.print(table)
    for skipped in found["skipped"]:
        console.print(f"skipped: {skipped} is not installed", highlight=False)
    machine = found["machine"]
    build = "with" if machine["optimised_build"] else "without"
    console.print(
        f"{found['spans']:,} spans were timed, and stats() counts every one of them. "
        f"Python {machine['python']} ({build} profile-guided optimisation), {machine['cpu']}, "
        f"{machine['cores']} cores, load {machine['load']:.1f}, clock {machine['clock']}.",
        highlight=False,
    )
    return all(row[-1] != "OVER" for row in rows)


def main() -> int:
    """Measure, print, write; the exit status is 1 when a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="seconds; its figures mean nothing")
    parser.add_argument("--json", type=Path, help="write the raw figures to this file")
    options = parser.parse_args()
    found = collect(options.quick)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))
    within = show(found)
    return 0 if within or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
