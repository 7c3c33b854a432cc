"""Tests of ``stagespan capture``, which captures runs of a stage of another process."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from recorded_process import command, command_here, start, started

import preloaded
from running import ready, start_command
from stagespan.errors import StagespanError
from stagespan.recording.asking import Asker

jsonschema = pytest.importorskip("jsonschema")
torch = pytest.importorskip("torch")

SERVICE = """
    import os, sys, threading, time
    import stagespan, torch

    def serve():
        model, values = torch.nn.Linear(8, 8), torch.randn(2, 8)
        while True:
            with stagespan.request(), stagespan.span("denoise"):
                for _ in range(10):
                    model(values)
            time.sleep(0.005)

    with stagespan.span("first"):
        threading.Thread(target=serve, daemon=True).start()
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


def service(**options: Any) -> int:
    """Start the service, and return its process id."""
    return int(ready(start(SERVICE, python=preloaded.python(), **options)))


def captured(pid: int, *options: str) -> dict[str, Any]:
    """Return the figures of a capture."""
    done = command_here("capture", str(pid), "--stage", "denoise", "--json", *options)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(figures, json.loads(command_here("capture", "--json-schema").stdout))
    return figures


def events_in(path: Path) -> list[str]:
    """Return the names of the events in a trace."""
    with gzip.open(path, "rt") as file:
        return [str(event.get("name")) for event in json.load(file)["traceEvents"]]


def linears(path: Path) -> int:
    """Return how many calls of the model a trace has."""
    return events_in(path).count("aten::linear")


def test_exactly_n_runs_are_captured_from_outside(folder: Path, tmp_path: Path) -> None:
    pid = service(cwd=tmp_path)
    trace = tmp_path / "two.json.gz"
    shown = command(*("capture", str(pid), "--stage", "denoise", "--runs", "2", "-o", str(trace)))
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"bound told before +[\d.]+", shown.stdout), shown.stdout
    assert "2 runs of stage 'denoise'" in shown.stdout
    assert linears(trace) == 20
    figures = captured(pid, "--runs", "3", "--no-probe")
    assert figures["runs"] == 3
    assert Path(figures["path"]).is_absolute()
    assert linears(Path(figures["path"])) == 30
    assert figures["longest_pause_ns"] > 0
    assert figures["requests_delayed"] is not None
    steps = captured(pid, "--steps", "2", "-o", str(tmp_path / "steps.json.gz"))
    assert (steps["unit"], steps["runs"]) == ("step", 2)


def test_the_bound_of_the_pause_is_told_before_the_capture(folder: Path) -> None:
    # GIVEN a process that runs the stage once for each line
    program = SERVICE.replace("while True:", "for _ in sys.stdin:").replace("daemon=True", "")
    process = start(program.replace("    sys.stdin.read()\n", ""), python=preloaded.python())
    pid = int(ready(process))
    assert process.stdin is not None
    # WHEN a capture of many more runs than are made is asked for
    words = ("-m", "stagespan", "capture", str(pid), "--stage", "denoise", "--runs", "1000")
    capture = start_command([sys.executable, *words])
    is_told = threading.Event()
    reader = threading.Thread(target=wait_for_bound, args=(capture, is_told))
    reader.start()
    runs = 0
    while not is_told.wait(0.1) and capture.poll() is None:
        process.stdin.write("\n")
        process.stdin.flush()
        runs += 1
    # THEN the bound is told long before the last run
    assert capture.poll() is None
    assert runs < 1000
    capture.send_signal(signal.SIGINT)
    capture.wait(60)
    reader.join()


def wait_for_bound(capture: subprocess.Popen[str], is_told: threading.Event) -> None:
    """Read what a capture writes to its end; the event is set when it has told the bound."""
    assert capture.stderr is not None
    for line in capture.stderr:
        if "The pause at its end is at most" in line:
            is_told.set()


def refused(pid: int, *options: str) -> str:
    """Return the sentence with which a capture is refused."""
    done = command_here("capture", str(pid), "--stage", "never", *options)
    assert done.returncode == 2, done.stdout
    return done.stderr


class Waiting:
    """A capture of a stage that never runs, which waits for it."""

    def __init__(self, pid: int) -> None:
        self.ended: list[str] = []
        """The sentence with which it has ended."""
        self._waits = threading.Event()
        # Not by a command in this process: its output would mix with that of the test's commands.
        self._thread = threading.Thread(target=self._ask, args=(pid,))
        self._thread.start()
        assert self._waits.wait(120), self.ended

    def _ask(self, pid: int) -> None:
        try:
            with Asker(pid) as asker:
                asker.ask("capture", stage="never", probe=False)
                asker.wait(self._progress)
        except StagespanError as error:
            self.ended.append(str(error))

    def _progress(self, answer: Mapping[str, Any]) -> None:
        if "waits for a run" in answer.get("doing", ""):
            self._waits.set()

    def end(self) -> str:
        """Wait until it has ended, and return the sentence."""
        self._thread.join(120)
        return self.ended[0]


def test_refusals_are_sentences(folder: Path) -> None:
    pid = service()
    why = refused(pid, "--max-seconds", "0.5")
    assert "Stage 'never' did not run within 0.5 s" in why
    first = Waiting(pid)
    why = refused(pid)
    assert "Another program is asking" in why
    assert "s left at the most" in why
    done = command_here("capture", str(pid), "--cancel")
    assert done.returncode == 0, done.stderr
    assert "cancelled" in first.end()
    assert "No capture is in progress" in command_here("capture", str(pid), "--cancel").stderr
    os.kill(pid, signal.SIGSTOP)
    assert "is stopped" in refused(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_process_that_dies_during_a_capture_is_told(folder: Path) -> None:
    pid = service()
    assert "has ended" in ended_while_waiting(pid, lambda: os.kill(pid, signal.SIGKILL))


def ended_while_waiting(pid: int, end: Callable[[], object]) -> str:
    """End a process while a capture waits for a run, and return the sentence that is shown."""
    first = Waiting(pid)
    end()
    return first.end()


def test_a_process_that_is_stopped_during_a_capture_is_told(folder: Path) -> None:
    pid = service()
    assert "is stopped" in ended_while_waiting(pid, lambda: os.kill(pid, signal.SIGSTOP))
    os.kill(pid, signal.SIGKILL)


def test_a_process_that_calls_exec_during_a_capture_is_told(folder: Path) -> None:
    program = SERVICE.replace(
        "sys.stdin.read()",
        "sys.stdin.readline()\n    os.execv(sys.executable, [sys.executable, '-c', 'input()'])",
    )
    process = start(program, python=preloaded.python())
    pid = int(ready(process))
    assert process.stdin is not None
    process.stdin.write("exec\n")
    assert "has ended" in ended_while_waiting(pid, process.stdin.flush)


def test_without_torch_a_capture_is_refused(folder: Path) -> None:
    process = started(
        """
        import sys
        from stagespan import span
        while True:
            with span("stage"):
                sum(range(1000))
            if "told" not in globals():
                told = print("ready", flush=True)
        """
    )
    assert "has not imported torch" in refused(process.pid)


def rank(number: int, program: str = SERVICE) -> int:
    """Start a rank of a job, and return its process id."""
    of_rank = {"RANK": str(number), "WORLD_SIZE": "2", "STAGESPAN_JOB": "train-7"}
    return int(ready(start(program, python=preloaded.python(), **of_rank)))


def steps_in(path: Path) -> set[str]:
    """Return the names of the steps in a trace."""
    return {name for name in events_in(path) if name.startswith("ProfilerStep#")}


def test_all_ranks_of_a_job_capture_the_same_steps(folder: Path, tmp_path: Path) -> None:
    for number in range(2):
        rank(number)
    done = command_here(
        *("capture", "--job", "train-7", "--stage", "denoise", "--steps", "2", "--json"),
        *("-o", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["captures"]
    assert [one["runs"] for one in figures] == [2, 2]
    traces = [tmp_path / f"denoise_rank{number}_trace.json.gz" for number in range(2)]
    assert [one["path"] for one in figures] == list(map(str, traces))
    first, second = map(steps_in, traces)
    assert len(first) == 2
    assert first == second


def test_if_one_rank_refuses_none_begins(folder: Path, tmp_path: Path) -> None:
    rank(0)
    without_torch = SERVICE.replace("model(values)", "sum(range(99))").replace(
        "model, values = torch.nn.Linear(8, 8), torch.randn(2, 8)", ""
    )
    rank(1, without_torch.replace("stagespan, torch", "stagespan; sys.modules.pop('torch', 0)"))
    options = ("--stage", "denoise", "--no-probe", "-o", str(tmp_path))
    done = command_here("capture", "--job", "train-7", *options)
    assert done.returncode == 2, done.stdout
    assert "rank 1: " in done.stderr
    assert "has not imported torch" in done.stderr
    assert list(tmp_path.iterdir()) == []
    alone = command_here("capture", "--job", "train-7", "--rank", "0", *options[:3], "--json")
    assert alone.returncode == 0, alone.stderr
    assert json.loads(alone.stdout)["runs"] == 1


SERVED = """
    import asyncio, os, socket, sys, threading
    import torch, uvicorn
    from stagespan import span
    from stagespan.asgi import RequestMiddleware

    model, values = torch.nn.Linear(8, 8), torch.randn(2, 8)

    async def app(scope, receive, send):
        for stage in ("encode", "denoise", "decode"):
            with span(stage):
                for _ in range(10):
                    model(values)
            await asyncio.sleep(0.001)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    bound.listen()
    with span("first"):
        pass
    print(os.getpid(), bound.getsockname()[1], flush=True)
    config = uvicorn.Config(RequestMiddleware(app), lifespan="off", log_level="error")
    uvicorn.Server(config).run(sockets=[bound])
"""


def test_a_service_under_load_answers_all_requests(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    process = start(SERVED, python=preloaded.python())
    pid, port = map(int, ready(process).split())
    is_over = threading.Event()
    statuses: list[int] = []

    def load() -> None:
        while not is_over.is_set():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
                statuses.append(answer.status)

    clients = [threading.Thread(target=load) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        for runs in (1, 2, 5):
            trace = tmp_path / f"{runs}.json.gz"
            figures = captured(pid, "--runs", str(runs), "-o", str(trace))
            assert figures["runs"] == runs
            assert figures["pause_bound_ns"] is not None
            assert events_in(trace).count("denoise") == runs
            assert linears(trace) >= 10 * runs
    finally:
        is_over.set()
        for client in clients:
            client.join(60)
        os.kill(pid, signal.SIGKILL)
    assert len(statuses) > 10
    assert set(statuses) == {200}
