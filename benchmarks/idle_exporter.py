"""Measures the CPU time of `stagespan export` beside processes that record nothing at the moment.

    python -m benchmarks.idle_exporter [--processes 1 50] [--seconds 20]

Each process has had as many requests as its recording has room for. The exporter serves metrics,
and in the second row also keeps requests, for which it reads their spans.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stagespan import _core
from stagespan.text.tables import Column, plain_table

_SETTLED_S = 12.0
"""After this time, the exporter has read all requests and has written them."""
_WORKER = """
import os, sys
import stagespan

for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        for n in range(int(sys.argv[2])):
            with stagespan.request(f"request {n}"), stagespan.span("generate") as span:
                span.add(tokens=n)
        print("ready", flush=True)
        sys.stdin.read()
        os._exit(0)
sys.stdin.read()
"""


@contextlib.contextmanager
def _processes(count: int, folder: Path) -> Iterator[dict[str, str]]:
    environment = {**os.environ, "STAGESPAN_RECORDING_DIR": str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(count), str(_core.REQUESTS_DEFAULT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for _ in range(count):
        process.stdout.readline()
    try:
        yield environment
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _cpu_ms_per_s(environment: dict[str, str], seconds: float, *options: str) -> float:
    command = [sys.executable, "-m", "stagespan", "export", "--prometheus", "0", *options]
    exporter = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        time.sleep(_SETTLED_S)
        began_s, before_s = time.monotonic(), _cpu_s(exporter.pid)
        time.sleep(seconds)
        return 1000 * (_cpu_s(exporter.pid) - before_s) / (time.monotonic() - began_s)
    finally:
        exporter.terminate()
        exporter.wait()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure the CPU time of an idle exporter.")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    rows: list[tuple[str, list[str]]] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        options = {"--prometheus": (), "--prometheus --keep": ("--keep", f"{shared}/kept")}
        for name, more in options.items():
            found = []
            for count in arguments.processes:
                with (
                    tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
                    _processes(count, Path(folder)) as environment,
                ):
                    cpu_ms = _cpu_ms_per_s(environment, arguments.seconds, *more)
                found.append(f"{cpu_ms:,.1f}")
            rows.append((name, found))
    columns = [Column("stagespan export", [name for name, _ in rows])]
    for i, count in enumerate(arguments.processes):
        title = f"CPU ms/s beside {count:,}"
        columns.append(Column(title, [found[i] for _, found in rows], is_number=True))
    print(plain_table(columns))


if __name__ == "__main__":
    main()
