"""Measures reading of traces, in MB/s of JSON and peak memory, compared with orjson, json and HTA.

    python -m benchmarks.traces [--quick] [--json FILE]
    python -m benchmarks.traces --analyze NAME [--gb SIZE]

Reads the real traces in the folder STAGESPAN_TRACES (else `../shared/traces`), both unpacked and
unchanged, and a trace of 1 GB that is created from one of them and deleted afterwards. A separate
process measures each figure. Speeds are by CPU time; the exit status is 1 if a budget is exceeded.
With `--analyze`, only `stagespan analyze` is measured, three times, on a file of `--gb` gigabytes
that consists of copies of the trace NAME.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.__main__ import ROOT, machine
from benchmarks.enlarge import enlarge

SPEED_MB_S, MEMORY_SHARE = 200.0, 1.0
_LARGE_BYTES = 1_000_000_000
_PEERS = ("orjson", "json", "HTA")
_NARROWEST = 100
_LONGEST_S = 1200


def folder() -> Path:
    """Return the folder of the real traces."""
    named = os.environ.get("STAGESPAN_TRACES")
    return Path(named) if named else ROOT.parent / "shared" / "traces"


def run(reader: str, path: Path, times: int) -> dict[str, Any]:
    """Return the figures of a reader, or the reason why there are none."""
    command = [sys.executable, "-m", "benchmarks.read_trace", reader, str(path), str(times)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=_LONGEST_S
        )
    except subprocess.TimeoutExpired:
        return {"skipped": f"not done after {_LONGEST_S:,} s"}
    if done.returncode != 0:
        return {"skipped": (done.stderr.strip().splitlines() or ["it failed"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def collect(traces: list[Path], large_bytes: int, times: int, console: Console) -> dict[str, Any]:
    """Measure every reader on every trace, and on one of `large_bytes` made from the largest."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        unpacked = Path(temporary, "trace.json")
        largest, largest_bytes = traces[0], 0
        for path in traces:
            console.print(f"reading {path.name}")
            unpacked.write_bytes(gzip.decompress(path.read_bytes()))
            if unpacked.stat().st_size > largest_bytes:
                largest, largest_bytes = path, unpacked.stat().st_size
            row = _row(path.name.split(".")[0], unpacked, times)
            row["packed"] = {name: run(name, path, times) for name in ("stagespan", "gunzip")}
            rows.append(row)
        console.print(f"making a trace of {large_bytes / 1e6:,.0f} MB of {largest.name}")
        copies = enlarge(largest, unpacked, large_bytes)
        large = _row(f"{copies} x {largest.name.split('.')[0]}", unpacked, 1)
        _check(rows, large, largest, copies)
        console.print("analysing it")
        large["analyze"] = run("analyze", unpacked, 1)
    return {"traces": rows, "large": large}


def _check(rows: list[dict[str, Any]], large: dict[str, Any], source: Path, copies: int) -> None:
    """Check that every reader has found every entry."""
    small = next(row for row in rows if row["name"] == source.name.split(".")[0])
    expected = small["readers"]["stagespan"]["entries"] * copies
    for reader in ("stagespan", "orjson", "json"):
        found = large["readers"][reader].get("entries", expected)
        if found != expected:
            sys.exit(f"{reader} has read {found:,} entries of the large trace, not {expected:,}.")


def _row(name: str, path: Path, times: int) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "bytes": path.stat().st_size}
    row["readers"] = {
        reader: run(reader, path, times if reader == "stagespan" else 1)
        for reader in ("stagespan", *_PEERS)
    }
    return row


def speed(row: dict[str, Any], reader: str) -> float | None:
    """Return MB of JSON per second of CPU time, the median of the turns; None if it did not run."""
    read = row["readers"][reader]
    if "skipped" in read:
        return None
    return float(row["bytes"] / statistics.median(read["cpu_s"]) / 1e6)


def share(row: dict[str, Any], reader: str) -> float | None:
    """Return the additional memory for reading, divided by the size of the JSON."""
    read = row["readers"][reader]
    if "skipped" in read:
        return None
    return float((read["peak_bytes"] - read["before_bytes"]) / row["bytes"])


def show(figures: dict[str, Any], console: Console) -> bool:
    """Print all figures, and return whether every budget is met."""
    is_within = True
    speeds = _table("MB/s of JSON, a core", "MB", "entries", "stagespan", *_PEERS, "gunzip")
    memory = _table("Memory, as a share of the JSON", "stagespan", *_PEERS)
    for row in [*figures["traces"], figures["large"]]:
        ours, taken = speed(row, "stagespan"), share(row, "stagespan")
        is_within = is_within and ours is not None and ours >= SPEED_MB_S
        is_within = is_within and taken is not None and taken <= MEMORY_SHARE
        readers = ("stagespan", *_PEERS)
        entries = row["readers"]["stagespan"].get("entries", 0)
        speeds.add_row(
            row["name"],
            f"{row['bytes'] / 1e6:,.0f}",
            f"{entries:,}",
            *(_cell(speed(row, reader), 0) for reader in readers),
            _packed(row),
        )
        memory.add_row(row["name"], *(_cell(share(row, reader), 2) for reader in readers))
    console.print(speeds)
    console.print(memory)
    console.print(f"Budgets: {SPEED_MB_S:.0f} MB/s, memory {MEMORY_SHARE:.1f} x the JSON.")
    console.print("gunzip: what reading the .gz takes, in times of unpacking it (wall time).")
    for reader in _PEERS:
        reasons = {row["readers"][reader].get("skipped") for row in [figures["large"]]} - {None}
        for reason in reasons:
            console.print(f"Skipped: {reader} on the large trace: {reason}")
    analyze = figures["large"]["analyze"]
    if "skipped" in analyze:
        console.print(f"stagespan analyze of the large trace failed: {analyze['skipped']}")
        return False
    console.print(
        f"stagespan analyze of the large trace: {analyze['cpu_s'][0]:.1f} s of CPU,"
        f" {analyze['peak_bytes'] / 1e9:.2f} GB at its peak, within 8 GB of address space."
    )
    machine_words = ", ".join(f"{key} {value}" for key, value in figures["machine"].items())
    console.print(f"Machine: {machine_words}", soft_wrap=True)
    return is_within


def _table(title: str, *headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    table.add_column("trace", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cell(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:,.{decimals}f}"


def _packed(row: dict[str, Any]) -> str:
    packed = row.get("packed")
    if packed is None or any("skipped" in each for each in packed.values()):
        return "-"
    return f"{min(packed['stagespan']['wall_s']) / min(packed['gunzip']['wall_s']):.2f} x"


def measure_analyze(name: str, size_bytes: int) -> int:
    """Measure `stagespan analyze` of copies of a trace, and return the exit status."""
    source = folder() / f"{name}.json.gz"
    if not source.is_file():
        print(f"There is no trace {source}: name one without .json.gz, or set STAGESPAN_TRACES.")
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        large = Path(temporary, "trace.json")
        copies = enlarge(source, large, size_bytes)
        for _ in range(3):
            figures = run("analyze", large, 1)
            if "skipped" in figures:
                print(f"stagespan analyze failed: {figures['skipped']}")
                return 1
            print(
                f"{copies} x {name}: {figures['entries']:,} entries, {figures['cpu_s'][0]:.1f} s of"
                f" CPU, {figures['peak_bytes'] / 1e9:.2f} GB at its peak",
                flush=True,
            )
    return 0


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.traces", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="seconds; the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures there")
    parser.add_argument("--analyze", metavar="NAME", help="only analyse copies of this trace")
    parser.add_argument(
        "--gb", type=float, default=1.0, help="the size of the file in GB, 1 by default"
    )
    options = parser.parse_args()
    if options.analyze is not None:
        return measure_analyze(options.analyze, int(options.gb * 1e9))
    load = os.getloadavg()[0]
    least = 0 if options.quick else 1_000_000
    traces = sorted(path for path in folder().glob("*.json.gz") if path.stat().st_size >= least)
    if options.quick:
        by_size = sorted(traces, key=lambda path: path.stat().st_size)
        traces = by_size[-2:-1] or by_size
    if not traces:
        print(f"There are no traces in {folder()}: set STAGESPAN_TRACES to a folder with some.")
        return 0
    large_bytes = 10_000_000 if options.quick else _LARGE_BYTES
    times = 1 if options.quick else 7
    figures = collect(traces, large_bytes, times, Console(stderr=True))
    figures["machine"] = machine(load)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    console = Console()
    if console.width < _NARROWEST:
        console = Console(width=_NARROWEST)
    is_within = show(figures, console)
    return 0 if is_within or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
