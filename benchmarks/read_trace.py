"""Measures one reader and one file in one process, for `benchmarks.traces`.

Run as `python -m benchmarks.read_trace READER PATH TIMES`; prints JSON. The readers:

    stagespan    the file into columns
    analyze      the whole of `stagespan analyze PATH`, within 8 GB of address space
    orjson       the file into Python objects, as a tool needs them
    json         the same by Python's own module
    HTA          HolisticTraceAnalysis: the file into a DataFrame
    gunzip       the file's bytes through zlib, and nothing else
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import resource
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

_EIGHT_GB = 8_000_000_000


def _stagespan() -> Callable[[Path], int]:
    from stagespan.trace import read_trace

    return lambda path: read_trace(path).total


def _analyze() -> Callable[[Path], int]:
    from stagespan.cli import command

    def analyze(path: Path) -> int:
        # The memory of a machine with 8 GB.
        resource.setrlimit(resource.RLIMIT_AS, (_EIGHT_GB, _EIGHT_GB))
        page = io.StringIO()
        with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
            command(["analyze", str(path), "--json", "-"], prog_name="stagespan")
        return int(json.loads(page.getvalue())["trace"]["entries"])

    return analyze


def _orjson() -> Callable[[Path], int]:
    import orjson

    return lambda path: _entries(orjson.loads(path.read_bytes()))


def _json() -> Callable[[Path], int]:
    return lambda path: _entries(json.loads(path.read_bytes()))


def _entries(value: Any) -> int:
    return len(value if isinstance(value, list) else value["traceEvents"])


def _hta() -> Callable[[Path], int]:
    logging.disable()
    from hta.common.trace import Trace

    def read(path: Path) -> int:
        with contextlib.redirect_stdout(io.StringIO()):
            trace = Trace(trace_files={0: str(path)}, trace_dir=str(path.parent))
            trace.parse_traces(max_ranks=1, use_multiprocessing=False)
        return len(trace.get_trace(0))

    return read


def _gunzip() -> Callable[[Path], int]:
    def read(path: Path) -> int:
        inflater, total = zlib.decompressobj(wbits=31), 0
        with path.open("rb", buffering=0) as file:
            while data := file.read(256 << 10):
                total += len(inflater.decompress(data))
        return total

    return read


READERS = {
    "stagespan": _stagespan,
    "analyze": _analyze,
    "orjson": _orjson,
    "json": _json,
    "HTA": _hta,
    "gunzip": _gunzip,
}


def peak_bytes() -> int:
    """Return the peak of the memory of this process."""
    # Not ru_maxrss, because it includes the memory of the parent when it started this process.
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main(reader: str, path: Path, times: int) -> dict[str, Any]:
    """Read the file `times` times. Prints CPU and wall seconds, and the process's peak memory."""
    try:
        read = READERS[reader]()
    except ImportError as error:
        return {"skipped": str(error)}
    used: dict[str, Any] = {"cpu_s": [], "wall_s": [], "before_bytes": peak_bytes()}
    for turn in range(times):
        wall, cpu = time.perf_counter(), time.process_time()
        used["entries"] = read(path)
        used["cpu_s"].append(time.process_time() - cpu)
        used["wall_s"].append(time.perf_counter() - wall)
        if turn == 0:
            used["peak_bytes"] = peak_bytes()
    return used


if __name__ == "__main__":
    json.dump(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])), sys.stdout)
