"""Measures the CPU time of an exporter beside processes that record nothing at the moment.

    python -m benchmarks.idle_exporter [--processes 1 50] [--readings 20]

Each process has had as many requests as its recording has room for. `stagespan export` reads all
recordings twice a second, or once a second if it sends or keeps requests. The program does the same
in its own process, and prints the CPU time of a reading: the first one, which takes everything that
was recorded, and the mean of later ones, with the state that is written every 5 s.
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
from stagespan.export.node import Node
from stagespan.export.parts import by_reading
from stagespan.export.traces import Rules
from stagespan.pages.tables import Column, plain_table

_PAUSE_S = 0.5
_SETTLED = 4
"""Readings after which all requests have been taken, and have been kept."""
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
def _processes(count: int) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(count), str(_core.REQUESTS_DEFAULT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for _ in range(count):
        process.stdout.readline()
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def _reading_ms(node: Node) -> float:
    began_s = time.process_time()
    node.poll()
    for of, indices in by_reading([part for parts in node.complete() for part in parts]):
        of.await_only(indices, 0)
    return 1000 * (time.process_time() - began_s)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure the CPU time of an idle exporter.")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--readings", type=int, default=20)
    arguments = parser.parse_args()
    rows = []
    for count in arguments.processes:
        for name, rules in (("figures", None), ("figures and requests", Rules())):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                os.environ["STAGESPAN_RECORDING_DIR"] = str(Path(folder, "recordings"))
                with _processes(count):
                    node = Node(rules=rules)
                    times = []
                    for _ in range(_SETTLED + arguments.readings):
                        time.sleep(_PAUSE_S)
                        times.append(_reading_ms(node))
                    node.close()
            later = times[_SETTLED:]
            rows.append((f"{count:,}", name, f"{times[0]:,.1f}", f"{sum(later) / len(later):,.2f}"))
    titles = [("processes", True), ("reads", False)]
    titles += [(f"{which}, CPU ms", True) for which in ("first", "idle")]
    columns = [
        Column(title, [row[i] for row in rows], is_number=is_number)
        for i, (title, is_number) in enumerate(titles)
    ]
    print(plain_table(columns))


if __name__ == "__main__":
    main()
