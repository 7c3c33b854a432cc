"""Measures what a span costs that is sent by OTLP, beside OpenTelemetry's SDK, and how many arrive.

    python -m benchmarks.otlp_spans [--seconds 8] [--rates 400 1500 6000]

A program of one thread has so many requests a second, each with six stages, whose spans are sent to
a receiver on this machine. With stagespan, `stagespan export` reads them from outside; with the
SDK, a `BatchSpanProcessor` sends them in the process. The CPU times are those of the sending alone:
of the side-car, and of the SDK's program less that of the same loop without spans. The ratios are
of one run. "lost" is the sum of `stagespan_lost_total`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import sink
from benchmarks.service import receiver
from stagespan.pages.tables import Column, plain_table

STAGES = 6
_PACED = """
import sys, time
rate, seconds, how = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
url = sys.argv[4]
if how == "stagespan":
    import stagespan
    stages = [stagespan.span(f"stage{i}") for i in range(6)]
    def serve():
        with stagespan.request("r"):
            for stage in stages:
                with stage:
                    pass
elif how == "sdk":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    provider = TracerProvider()
    exporter = OTLPSpanExporter(endpoint=f"{url}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=1 << 20))
    tracer = provider.get_tracer("app")
    def serve():
        with tracer.start_as_current_span("r"):
            for i in range(6):
                with tracer.start_as_current_span(f"stage{i}"):
                    pass
else:
    def serve():
        pass
for _ in range(200):
    serve()
    time.sleep(0.005)
print("ready", flush=True)
sys.stdin.readline()
cpu = time.process_time()
begin = time.perf_counter()
sent = 0
while (now := time.perf_counter() - begin) < seconds:
    while sent < rate * now:
        serve()
        sent += 1
    time.sleep(0.001)
if how == "sdk":
    provider.shutdown()
print(sent + 200, time.process_time() - cpu, flush=True)
sys.stdin.readline()
"""


class Sent(NamedTuple):
    """What a program has sent, and what that has cost."""

    requests: int
    program_s: float
    side_car_s: float
    arrived: int
    lost: float


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(how: str, rate: float, seconds: float, *, keep: bool = False) -> Sent:
    """Let a program send at a rate; with ``keep``, its side-car also keeps the requests."""
    with receiver() as (url, folder), tempfile.TemporaryDirectory(dir="/dev/shm") as recordings:
        address = f"{url}/{how}"
        variables = {**os.environ, "STAGESPAN_RECORDING_DIR": str(Path(recordings, "r"))}
        variables.pop("STAGESPAN_RING_SPANS", None)
        side_car = None
        if how == "stagespan":
            command = [sys.executable, "-m", "stagespan", "export", "--otlp", address]
            command += ["--prometheus", "127.0.0.1:0"]
            if keep:
                command += ["--keep", str(Path(recordings, "kept"))]
            side_car = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
            assert side_car.stdout is not None
            port = side_car.stdout.readline().rpartition(":")[2].partition("/")[0]
        command = [sys.executable, "-c", _PACED, str(rate), str(seconds), how, address]
        program = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdout.readline()
        time.sleep(3)  # what was sent first loads modules
        before_s = 0.0 if side_car is None else _cpu_s(side_car.pid)
        program.stdin.write("\n")
        program.stdin.flush()
        sent, program_s = program.stdout.readline().split()
        side_car_s = lost = 0.0
        if side_car is not None:
            time.sleep(3)
            side_car_s = _cpu_s(side_car.pid) - before_s
            lost = _lost(port)
        program.communicate("\n")
        if side_car is not None:
            side_car.terminate()
            side_car.wait()
        names = [name for name in sink.span_names(folder / how) if name.startswith("stage")]
        return Sent(int(sent), float(program_s), side_car_s, len(names), lost)


class Compared(NamedTuple):
    """What sending costs, beside OpenTelemetry's SDK, and what has arrived."""

    own_us: float
    """The CPU time of the side-car for a span."""
    peer_us: float
    """That of the SDK in the process."""
    node: float
    """The CPU time of the service and the side-car for a request, in times of the SDK's."""
    arrived: float
    """The share of the stages that were sent."""
    lost: float
    peer_arrived: float


def compared(rate: float, seconds: float) -> Compared:
    """Send that many requests a second with both, and in a loop that sends nothing."""
    bare = run("bare", rate, seconds)
    ours = run("stagespan", rate, seconds)
    peer = run("sdk", rate, seconds)
    peer_s = max(peer.program_s - bare.program_s, 1e-9)
    node_s = max(ours.program_s - bare.program_s, 0) + ours.side_car_s
    return Compared(
        ours.side_car_s / max(ours.requests * (STAGES + 1), 1) * 1e6,
        peer_s / max(peer.requests * (STAGES + 1), 1) * 1e6,
        node_s / max(ours.requests, 1) / (peer_s / max(peer.requests, 1)),
        ours.arrived / max(ours.requests * STAGES, 1),
        ours.lost,
        peer.arrived / max(peer.requests * STAGES, 1),
    )


def _lost(port: str) -> float:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    values = (one for one in lines if one.startswith("stagespan_lost_total{"))
    return sum(float(one.rpartition(" ")[2]) for one in values)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rates", type=float, nargs="+", default=[400, 1500, 6000])
    arguments = parser.parse_args()
    rows = []
    for rate in arguments.rates:
        of = compared(rate, arguments.seconds)
        rows.append(
            (
                f"{rate * STAGES:,.0f}",
                f"{of.own_us:.2f}",
                f"{of.peer_us:.2f}",
                f"{of.own_us / of.peer_us:.2f}",
                f"{of.node:.2f}",
                f"{of.arrived:.2%}",
                f"{of.lost:,.0f}",
                f"{of.peer_arrived:.2%}",
            )
        )
    titles = ["stages/s", "side-car, us a span", "SDK, us a span", "ratio", "node / SDK"]
    titles += ["arrived", "lost", "SDK arrived"]
    columns = [
        Column(title, [row[i] for row in rows], is_number=True) for i, title in enumerate(titles)
    ]
    print(plain_table(columns))
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
