"""Device time in processes that begin, fork and end; no call that waits or initialises."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# Driver functions that wait for the device, or that initialise it.
_WAITS = "Synchronize"
_STARTS = ("cuInit", "cuDevicePrimaryCtxRetain", "cuCtxCreate")


def run(program: str, tmp_path: Path, **variables: str) -> dict[str, Any]:
    """Run a program, which prints JSON in its last line, in a new process."""
    import os

    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_an_import_initialises_nothing(tmp_path: Path) -> None:
    found = run(
        """
        import json, os
        import torch
        import stagespan
        from stagespan import span
        with span("host"):
            pass
        stagespan.flush()
        print(json.dumps({
            "initialised": torch.cuda.is_initialized(),
            "devices": [fd for fd in os.listdir("/proc/self/fd")
                        if os.path.exists(f"/proc/self/fd/{fd}")
                        and os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia")],
        }))
        """,
        tmp_path,
    )
    assert found == {"initialised": False, "devices": []}


@pytest.mark.parametrize("way", ["plain", "many streams", "decorator", "context"])
def test_spans_call_no_function_that_waits(way: str, tmp_path: Path, figures: Any) -> None:
    # GIVEN a program that counts the driver's calls of all its threads
    found = run(
        f"""
        import json, time
        import torch
        import stagespan
        from driver_calls import DriverCalls

        torch.cuda.init()
        x = torch.ones(1 << 20, device="cuda")
        streams = [torch.cuda.Stream() for _ in range(8)]
        with stagespan.span("warm up"):
            x += 1
        torch.cuda.synchronize()
        stagespan.flush(10)

        @stagespan.span("decorated")
        def add():
            global x
            x += 1

        calls = DriverCalls({_WAITS!r}, *{_STARTS!r})
        if calls.why is not None:
            print(json.dumps({{"why": calls.why}}))
            raise SystemExit
        way = {way!r}
        for i in range(1000):
            if way == "decorator":
                add()
            elif way == "context":
                with stagespan.ProfilingContext("context"):
                    x += 1
            elif way == "many streams":
                with torch.cuda.stream(streams[i % 8]), stagespan.span("stream"):
                    x += 1
            else:
                with stagespan.span("plain"):
                    x += 1
        time.sleep(1)  # the resolver reads the events meanwhile
        counted = calls.end()
        # The hook works, if it counts a call that waits.
        calls = DriverCalls({_WAITS!r})
        torch.cuda.synchronize()
        print(json.dumps({{"calls": counted, "control": calls.end(), "why": None}}))
        """,
        tmp_path,
    )
    if found["why"] is not None:
        pytest.skip(found["why"])
    assert found["control"], "the hook counts nothing"
    assert found["calls"] == {}
    figures(spans=1000, synchronisations=0)


@pytest.mark.stand_in
def test_spans_that_are_pending_at_exit(tmp_path: Path, figures: Any) -> None:
    # GIVEN a program that ends while the device still works for its spans
    found = run(
        """
        import atexit, json

        def report():  # after stagespan, which has been imported later, has waited for the device
            timed = stagespan.stats()["pending"].device_elapsed_ns
            print(json.dumps({
                "pending": pending,
                "timed": None if timed is None else timed.count,
                "total_ns": None if timed is None else timed.total_ns,
                "lost": {cause: n for cause, n in stagespan.lost().items() if n},
            }), flush=True)

        atexit.register(report)
        import stagespan
        from gpu_device import gpu

        device = gpu()
        device.init()
        device._sleep(1000)
        device.synchronize()
        device._sleep(200_000_000)  # about 100 ms
        for _ in range(100):
            with stagespan.span("pending"):
                device._sleep(1_000_000)
        timed = stagespan.stats()["pending"].device_elapsed_ns
        pending = 100 - (0 if timed is None else timed.count)
        """,
        tmp_path,
    )
    assert found["pending"] > 0, "the device was done before the program ended"
    assert found["timed"] == 100, found
    figures(**found)


@pytest.mark.stand_in
def test_after_a_fork(tmp_path: Path) -> None:
    found = run(
        """
        import json, os
        import stagespan
        from gpu_device import gpu

        device = gpu()
        device.init()
        for _ in range(10):
            with stagespan.span("before"):
                device._sleep(100_000)
        device.synchronize()
        stagespan.flush(10)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            with stagespan.span("in child"):
                pass
            stagespan.flush(10)
            summary = stagespan.stats()["in child"]
            os.write(write, json.dumps([summary.count, summary.device_elapsed_ns is None]).encode())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        with stagespan.span("after"):
            device._sleep(100_000)
        device.synchronize()
        stagespan.flush(10)
        timed = stagespan.stats()["after"].device_elapsed_ns
        print(json.dumps({
            "status": status, "child": json.loads(os.read(read, 100)),
            "after": None if timed is None else timed.count,
        }))
        """,
        tmp_path,
    )
    # The child has host times only, and the parent goes on as before.
    assert found == {"status": 0, "child": [1, True], "after": 1}
