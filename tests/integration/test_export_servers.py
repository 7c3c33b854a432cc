"""Tests of an exporter beside real servers whose workers are replaced, and beside torchrun."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from exporting import exporter, get, of, scraped

from running import ended, free_port, ready, start_command, until
from stagespan import recording

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

pytestmark = pytest.mark.slow

COUNT = "stagespan_stage_duration_seconds_count"
REQUESTS = "stagespan_request_duration_seconds_count"
UP = "stagespan_process_up"

APP = """
    import os
    import stagespan

    def handle():
        with stagespan.request(), stagespan.span("handle") as span:
            span.add(bytes=3)
        pid, count = os.getpid(), stagespan.stats()["handle"].count
        with open("handled", "ab", buffering=0) as file:
            file.write(f"{pid} {count}\\n".encode())
        return str(pid).encode()

    def wsgi(environ, start_response):
        body = handle()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    async def asgi(scope, receive, send):
        if scope["type"] != "http":
            return
        body = handle()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
"""
SERVERS = {
    "gunicorn": ("gunicorn", "app:wsgi", "--workers", "2", "--max-requests", "15", "--bind"),
    "gunicorn with preload": (
        *("gunicorn", "app:wsgi", "--preload", "--workers", "2", "--max-requests", "15", "--bind"),
    ),
    "uvicorn": ("uvicorn", "app:asgi", "--workers", "2", "--limit-max-requests", "15", "--port"),
}


@pytest.mark.parametrize("server", SERVERS)
def test_workers_that_a_server_replaces_are_counted(
    server: str, folder: Path, tmp_path: Path
) -> None:
    module, *arguments = SERVERS[server]
    pytest.importorskip(module, reason=f"runs the real {module}")
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))
    log = tmp_path / "handled"
    port = free_port()
    address = str(port) if module == "uvicorn" else f"127.0.0.1:{port}"
    received: Counter[int] = Counter()
    with exporter() as (_, metrics):
        process = start_command(
            [sys.executable, "-m", module, *arguments, address],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            STAGESPAN_JOB="svc",
        )

        def ask() -> int | None:
            """Send a request; return the worker, or None if it was being replaced."""
            try:
                pid = int(get(f"http://127.0.0.1:{port}/"))
            except (OSError, http.client.HTTPException):
                assert process.poll() is None
                return None
            received[pid] += 1
            return pid

        try:
            until(ask, 60)
            until(lambda: ask() is not None and len(received) >= 4, 60)
            os.kill(until(ask), signal.SIGKILL)
            before = len(received)
            until(lambda: ask() is not None and len(received) >= before + 2, 60)
            # THEN the sum is that of the statistics of all workers. A worker that is replaced may
            # have handled a request whose response was lost, so each worker writes its own count.
            handled = dict(map(int, line.split()) for line in log.read_text().splitlines())
            assert all(handled[pid] >= number for pid, number in received.items())
            expected = sum(handled.values())
            until(lambda: of(scraped(metrics), COUNT, stage="handle", service="svc") == expected)
            until(lambda: of(scraped(metrics), REQUESTS, status="ok") == expected)
            samples = scraped(metrics)
            assert of(samples, "stagespan_stage_work_total", unit="bytes") == 3 * expected
            # THEN there is one series, however many workers there were
            assert len(samples[COUNT]) == 1
            assert (of(samples, UP, service="svc") or 0) >= 1
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=60)
        # THEN nothing is missing when the server has ended
        until(lambda: of(scraped(metrics), UP, service="svc") == 0)
        samples = scraped(metrics)
        assert of(samples, COUNT, stage="handle", service="svc") == expected, errors
        assert set(samples["stagespan_lost_total"].values()) == {0}


RANK = """
    import json, os, sys, time
    import torch.distributed as dist
    import torch
    import stagespan

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for _ in range(10 + rank):
        with stagespan.span("step") as step:
            step.add(samples=4)
    with stagespan.span("reduce"):
        dist.all_reduce(torch.ones(1))
    # In one call, because both ranks write to the same pipe.
    os.write(1, json.dumps([rank, stagespan.stats()["step"].count]).encode() + b"\\n")
    dist.barrier()
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.1)
    dist.destroy_process_group()
"""


@pytest.mark.full
def test_the_ranks_of_torchrun_have_labels(folder: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: it has the real torchrun")
    (tmp_path / "train.py").write_text(textwrap.dedent(RANK))
    stop = tmp_path / "stop"
    with exporter() as (_, port):
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
            *("--rdzv-id", "train-7", str(tmp_path / "train.py"), str(stop)),
        ]
        process = start_command(command, OMP_NUM_THREADS="1")
        said = dict(json.loads(ready(process)) for _ in range(2))
        assert said == {0: 10, 1: 11}
        # THEN the job is torchrun's, and the service the program, which is the same in each run
        service = f"{Path(sys.executable).name} train.py"
        assert {one.job for one in recording.recordings() if one.rank is not None} == {"train-7"}
        for rank, count in said.items():
            labels = {"service": service, "rank": str(rank)}
            until(
                lambda c=count, of_rank=labels: (
                    of(scraped(port), COUNT, stage="step", **of_rank) == c
                )
            )
            assert of(scraped(port), COUNT, stage="reduce", **labels) == 1
            assert of(scraped(port), "stagespan_stage_work_total", **labels) == 4 * count
        assert of(scraped(port), UP, service=service) == 2
        stop.touch()
        ended(process, 0)
        until(lambda: of(scraped(port), UP, service=service) == 0)
        assert of(scraped(port), COUNT, stage="step") == 21
