"""Measures the analysis of many ranks: CPU time and peak memory for a growing number of ranks.

    python -m benchmarks.ranks [--quick]

Writes made traces of a job, each with the same number of kernels and collectives, and analyses
folders of 10 to 1,000 of them in one process. A separate process measures each folder. The exit
status is 1 if the memory for each further rank is more than 30 KB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.__main__ import ROOT
from benchmarks.read_trace import peak_bytes

_COUNTS = (10, 100, 1_000)
_KERNELS, _COLLECTIVES = 5_000, 200
_MOST_BYTES = 30_000


def write_rank(folder: Path, rank: int, ranks: int) -> None:
    """Write the trace of one rank, which arrives a little later than the one before it."""
    events: list[dict[str, Any]] = []
    device = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7}
    for number in range(_KERNELS):
        args = {"device": 0, "stream": 7}
        events.append(device | {"name": "gemm", "ts": 4 * number, "dur": 3, "args": args})
    step = 4 * _KERNELS // _COLLECTIVES
    for number in range(_COLLECTIVES):
        begin = number * step + rank % 7
        args = {"device": 0, "stream": 20, "Collective name": "allreduce"}
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
        end = number * step + 20
        events.append(
            device | {"name": name, "tid": 20, "ts": begin, "dur": end - begin, "args": args}
        )
    content = {
        "distributedInfo": {"rank": rank, "world_size": ranks, "backend": "nccl"},
        "traceEvents": events,
    }
    text = json.dumps(content).encode()
    (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(text, 1))


def analyse(folder: Path) -> dict[str, float]:
    """Analyse a folder in this process. Returns CPU seconds and the peak of the memory."""
    import stagespan

    cpu = time.process_time()
    found = stagespan.analyze(folder, jobs=1).to_dict()["ranks"]["found"]
    peak = peak_bytes()
    return {"ranks": len(found), "cpu_s": time.process_time() - cpu, "peak_bytes": peak}


def main() -> int:
    """Write the traces, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks")
    parser.add_argument("--quick", action="store_true", help="few ranks; the figures mean nothing")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        print(json.dumps(analyse(options.folder)))
        return 0
    rows = []
    for ranks in (2, 4, 8) if options.quick else _COUNTS:
        with tempfile.TemporaryDirectory() as temporary:
            for rank in range(ranks):
                write_rank(Path(temporary), rank, ranks)
            command = [sys.executable, "-m", "benchmarks.ranks", "--folder", temporary]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        row = json.loads(done.stdout)
        rows.append(row)
        print(
            f"{row['ranks']:>6,} ranks: {row['cpu_s']:6.1f} s of CPU,"
            f" {row['peak_bytes'] / 1e6:6.0f} MB at the peak",
            flush=True,
        )
    first, last = rows[0], rows[-1]
    each = (last["peak_bytes"] - first["peak_bytes"]) / (last["ranks"] - first["ranks"])
    print(f"Each further rank: {each / 1e3:.1f} KB.")
    return 0 if options.quick or each <= _MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
