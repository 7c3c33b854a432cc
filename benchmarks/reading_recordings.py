"""Measures the CPU time of reading recordings: `analyze`, `requests`, and a scrape of processes.

    python -m benchmarks.reading_recordings [--against PYTHON] [--turns N] [--quick]

With ``--against``, the interpreter of another checkout reads the same recordings, in turns with
this one. A scrape of processes is one reading of an exporter. The processes have as many requests
as a recording has room for, and each has had 20 more since the reading before; in the scrape of
nearly empty processes of `benchmarks.page`, each has one request, and one more. A scrape of stages
is what Prometheus gets of one process, each of whose stages has run since the scrape before; a line
of it is compared with one that prometheus_client writes of its own histograms. `requests DIR` reads
what an exporter has kept, and is compared with a process that only decodes the same files.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks.used import used

SPANS, REQUESTS, PROCESSES, STAGES = 180_000, 20_000, 200, 1_000
_READINGS = 5
_OWN = "-m", "benchmarks.reading_recordings"
_KEPT = 4_096
"""How many requests a recording has room for."""
_RING = {"STAGESPAN_RING_SPANS": "262144", "STAGESPAN_REQUESTS": "32768"}


def record_spans(count: int) -> None:
    """Record spans in this process."""
    import stagespan

    outer, inner = stagespan.span("outer"), stagespan.span("inner")
    for _ in range(count // 4):
        with outer:
            for _ in range(3):
                with inner:
                    pass


def record_requests(count: int) -> None:
    """Record requests in this process, each with three stages and a wait."""
    import stagespan

    decode, forward, encode = (stagespan.span(name) for name in ("decode", "forward", "encode"))
    for number in range(count):
        with stagespan.request(f"request {number}"):
            with decode:
                pass
            with forward, encode:
                pass
            with stagespan.queued("wait"):
                pass


def scrape(count: int, requests: int = _KEPT, more: int = 20) -> float:
    """Return the median of the CPU seconds of a reading of some forked processes.

    Each has recorded some requests, and `more` since the reading before.
    """
    from stagespan.export.node import Node

    ends = []
    with ExitStack() as stack:
        for _ in range(count):
            (asked, ask), (told, tell) = os.pipe(), os.pipe()
            pid = os.fork()
            if not pid:
                record_requests(requests)
                while os.read(asked, 1):
                    record_requests(more)
                    os.write(tell, b"1")
                os._exit(0)
            stack.callback(os.waitpid, pid, 0)
            stack.callback(os.kill, pid, signal.SIGKILL)
            ends.append((ask, told))
        taken_s = []
        node = stack.enter_context(closing(Node()))
        for _ in range(_READINGS + 1):
            for ask, told in ends:
                os.write(ask, b"1")
                os.read(told, 1)
            begin_s = time.process_time()
            node.read()
            node.totals()
            taken_s.append(time.process_time() - begin_s)
    return statistics.median(taken_s[1:])


def scrape_stages(count: int) -> tuple[float, float]:
    """Return the medians of the CPU seconds of a scrape, and of a line in lines of the client."""
    from prometheus_client import CollectorRegistry, Histogram, generate_latest

    import stagespan
    from stagespan.export.node import Node
    from stagespan.export.prometheus import Server

    registry = CollectorRegistry()
    bounds = [number / 100 for number in range(20)]
    histogram = Histogram("stage", "A stage.", ["stage"], registry=registry, buckets=bounds)
    taken_s, ratios = [], []
    with ExitStack() as stack:
        node = stack.enter_context(closing(Node()))
        server = stack.enter_context(closing(Server(node, "127.0.0.1", 0)))
        for _ in range(_READINGS + 1):
            for number in range(count):
                with stagespan.span(f"stage {number}"):
                    pass
                histogram.labels(f"stage {number}").observe(0.1)
            begin_s = time.process_time()
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
                text = answer.read()
            between_s = time.process_time()
            alone = generate_latest(registry)
            end_s = time.process_time()
            taken_s.append(between_s - begin_s)
            line_s = (end_s - between_s) / alone.count(b"\n")
            ratios.append((between_s - begin_s) / text.count(b"\n") / line_s)
    return statistics.median(taken_s[1:]), statistics.median(ratios[1:])


def recording_of(
    what: str, count: int, folder: str, module: Sequence[str] = (sys.executable, *_OWN)
) -> Path:
    """Return the recording of a process that has recorded and was killed.

    ``module`` is the command that runs this module.
    """
    here = Path(folder, what)
    here.mkdir(mode=0o700, parents=True)
    process = subprocess.Popen(
        [*module, "--make", what, str(count)],
        cwd=Path(__file__).parents[1],
        env=os.environ | _RING | {"STAGESPAN_RECORDING_DIR": str(here)},
    )
    process.wait()
    (found,) = here.glob("*.stagespan")
    return found


def cpu_s(python: str, *command: str) -> float:
    """Return the CPU seconds of a command of stagespan."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, "-m", "stagespan", *command], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


DECODE = """
import gzip, pathlib, sys, msgspec
decode = msgspec.json.Decoder().decode
lines = [decode(line) for path in pathlib.Path(sys.argv[1]).iterdir() for line in gzip.open(path)]
"""


def keep(folder: Path, count: int) -> None:
    """Write requests as an exporter keeps them, each in one process."""
    from benchmarks import kept_requests

    drawn = random.Random(1)
    of = kept_requests.Resource("svc", "wan", "", 100, "machine", "serve.py", "identity")
    keeper = kept_requests.kept.Keeper(folder, 1 << 40)
    for number in range(1, count + 1):
        trace = f"{drawn.getrandbits(128):032x}"
        keeper.put([[kept_requests.part(of, number, trace, drawn, None)]])
    keeper.write()


def scraped(module: list[str], what: str, count: int) -> list[float]:
    """Return what `scrape` or `scrape_stages` measures with a command that runs this module."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        done = subprocess.run(
            [*module, "--make", what, str(count)],
            cwd=Path(__file__).parents[1],
            env=os.environ | {"STAGESPAN_RECORDING_DIR": folder},
            capture_output=True,
            check=True,
        )
    return [float(number) for number in done.stdout.split()]


def main() -> int:
    """Record, measure in turns, and print the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading_recordings")
    parser.add_argument("--against", metavar="PYTHON", help="an interpreter with another stagespan")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="little; the figures mean nothing")
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        what, count = options.make[0], int(options.make[1])
        if what in ("scrape", "empty"):
            print(scrape(count) if what == "scrape" else scrape(count, 1, 1))
            return 0
        if what == "stages":
            print(*scrape_stages(count))
            return 0
        (record_spans if what == "spans" else record_requests)(count)
        os.kill(os.getpid(), signal.SIGKILL)
    part = 100 if options.quick else 1
    pythons = [sys.executable] + ([options.against] if options.against else [])
    taken_s: dict[tuple[str, str], list[float]] = {}
    lines: dict[str, list[float]] = {python: [] for python in pythons}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        spans = str(recording_of("spans", SPANS // part, folder))
        requests = str(recording_of("requests", REQUESTS // part, folder))
        kept = Path(folder, "kept")
        keep(kept, REQUESTS // part)
        used_kept: list[tuple[float, float]] = []
        for _ in range(options.turns):
            decoded_s, decoded_mb = used([sys.executable, "-c", DECODE, str(kept)])
            shown_s, shown_mb = used([sys.executable, "-m", "stagespan", "requests", str(kept)])
            used_kept.append((shown_s / decoded_s, shown_mb / decoded_mb))
            for python in pythons:
                of_stages_s, line = scraped([python, *_OWN], "stages", STAGES // part)
                lines[python].append(line)
                for what, measured_s in (
                    (f"analyze, {SPANS // part:,} spans", cpu_s(python, "analyze", spans)),
                    (
                        f"requests, {REQUESTS // part:,} requests",
                        cpu_s(python, "requests", requests, "--json"),
                    ),
                    (
                        f"scrape, {PROCESSES // part:,} processes",
                        scraped([python, *_OWN], "scrape", PROCESSES // part)[0],
                    ),
                    (f"scrape, {STAGES // part:,} stages", of_stages_s),
                ):
                    taken_s.setdefault((what, python), []).append(measured_s)
    for what in dict.fromkeys(what for what, _ in taken_s):
        medians_s = [statistics.median(taken_s[what, python]) for python in pythons]
        row = f"{what:>28}: {medians_s[0]:6.2f} s of CPU"
        if options.against:
            row += f", {medians_s[0] / medians_s[1]:.2f} x the {medians_s[1]:.2f} s of the other"
        print(row, flush=True)
    ratios = ", ".join(f"{statistics.median(of):.2f} x" for of in lines.values())
    print(f"a line of the last scrape, in lines of prometheus_client: {ratios}")
    of_cpu, of_memory = (statistics.median(of) for of in zip(*used_kept, strict=True))
    print(
        f"requests DIR, {REQUESTS // part:,} kept: {of_cpu:.2f} x the CPU of gunzip and msgspec, "
        f"{of_memory:.2f} x their memory"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
