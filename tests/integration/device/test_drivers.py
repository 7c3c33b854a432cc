"""CUDA and ROCm from Python on fake drivers: from torch's first use of a device to the log line."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from recording import printed

from running import ran

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))

import fakes

Run = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.slow

BEGIN = """
import json, logging, threading, time
logging.basicConfig(level=logging.INFO, format="%(message)s")
import stagespan, fakes
from stagespan import _core
from stagespan.device import times as wiring
"""
# torch calls this after it has initialised its device.
SET_UP = """
fake = fakes.Fake({kind!r})
wiring._guarded_attach({kind!r})
stream = fake.use()
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = fakes.missing()
    if reason is not None:
        pytest.skip(reason)
    return fakes.build(tmp_path_factory.mktemp("fakes"))


@pytest.fixture
def run(folder: Path) -> Run:
    def run(*parts: str, **variables: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((str(fakes.HERE), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, fakes.FOLDER: str(folder), "PYTHONPATH": path, **variables}
        program = "".join(textwrap.dedent(part) for part in (BEGIN, *parts))
        return ran([sys.executable, "-c", program], env=environment)

    return run


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_spans_have_what_their_queue_ran(run: Run, kind: str) -> None:
    # GIVEN a context and a function with kernels of 20 ms and 5 ms, on a stream with queued work
    done = run(
        SET_UP.format(kind=kind),
        """
        @stagespan.span("function")
        def function():
            fake.launch(stream, 5)
        with stagespan.ProfilingContext("context"):
            fake.launch(stream, 20)
        function()
        assert stagespan.flush(20)
        stats = stagespan.stats()
        print(json.dumps([stats[n].device_elapsed_ns.mean_ns for n in ("context", "function")]))
        spans = {stagespan.stage_names()[s["stage"]]: s for s in stagespan.spans()}
        host_ns = [int(spans[n]["end_ns"] - spans[n]["begin_ns"]) for n in ("context", "function")]
        print(json.dumps([*host_ns, float(spans["context"]["device_tail_ns"])]))
        print(json.dumps([fake.counts()["synchronisations"], fake.counts()["other_context"],
                          sum(stagespan.lost().values()), _core.device_info()["backend"]]))
        """,
    )
    # THEN statistics, spans and the log line show this, and the device was never waited for
    (context_ns, function_ns), (host_ns, call_ns, tail_ns), rest = printed(done)  # type: ignore[misc]
    assert 20e6 <= context_ns < 20.2e6 + host_ns
    assert 5e6 <= function_ns < 5.2e6 + call_ns
    assert rest == [0, 0, 0, "driver"]
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("[Profile] context cost")]
    assert float(line.split()[3]) == pytest.approx((host_ns + tail_ns) / 1e9, abs=2e-6)


def test_lines_are_written_if_a_hook_takes_longer_than_the_device(run: Run) -> None:
    done = run(
        SET_UP.format(kind="cuda"),
        """
        from stagespan.contexts import context
        from stagespan.live import service
        service.SPACING_S = 3600  # the service thread wakes for work, or after a minute
        class Slow:
            name = "slow"
            wants = staticmethod(lambda call: True)
            enter = leave = staticmethod(lambda call: None)
            exit = staticmethod(lambda call: time.sleep(0.3))
        class Lines(logging.Handler):
            def emit(self, record):
                came.add(record.getMessage().split()[1])
        came = set()
        logging.getLogger().addHandler(Lines())
        context.register_hook(Slow())
        stagespan.set_debug(True)
        def end(make, name):
            with make(name):
                if name == "timed":
                    fake.launch(stream, 0.01)
            time.sleep(0.2)
        end(stagespan.ProfilingContext, "warm")
        stagespan.flush(20)
        # WHEN its context ends, and then one without a device
        end(stagespan.ProfilingContext4Debug, "timed")
        host = threading.Thread(target=end, args=(stagespan.ProfilingContext, "host"))
        host.start()
        host.join()
        # THEN both lines come by themselves, before the minute is over
        until = time.monotonic() + 30
        while not {"timed", "host"} <= came and time.monotonic() < until:
            time.sleep(0.01)
        print(json.dumps(["timed" in came, "host" in came]))
        """,
    )
    assert printed(done) == [[True, True]]


def test_threads_streams_and_devices(run: Run) -> None:
    done = run(
        SET_UP.format(kind="cuda"),
        """
        def work(i):
            mine = fake.use(i % 2)
            for _ in range(50):
                with stagespan.span(f"thread {i}"):
                    fake.launch(mine, 0.1 * (i + 1))
        def idle():
            with stagespan.span("idle"):
                pass
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        threads.append(threading.Thread(target=idle))
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert stagespan.flush(20)
        stats = stagespan.stats()
        for i in range(4):
            elapsed = stats[f"thread {i}"].device_elapsed_ns
            print(json.dumps([elapsed.count, elapsed.min_ns >= 1e5 * (i + 1) - 10]))
        print(json.dumps([stats["idle"].device_elapsed_ns, sum(stagespan.lost().values()),
                          fake.counts()["other_context"]]))
        """,
    )
    assert printed(done) == [*[[50, True]] * 4, [None, 0, 0]]


def test_a_capture_stays_valid_while_the_service_thread_polls(run: Run) -> None:
    done = run(
        SET_UP.format(kind="cuda"),
        """
        with stagespan.span("before"):
            fake.launch(stream, 30)
        captured = fake.use()
        fake.begin_capture(captured)
        with stagespan.span("inside"):
            fake.launch(captured, 1)
        assert stagespan.flush(20)  # resolves from this thread as well, in the midst of it
        print(json.dumps([fake.end_capture(captured), fake.counts()["queries_while_capturing"],
                          stagespan.stats()["before"].device_elapsed_ns.count,
                          stagespan.stats()["inside"].device_elapsed_ns,
                          stagespan.lost()["device_captured"]]))
        """,
    )
    assert printed(done) == [[True, 0, 1, None, 1]]


def test_a_driver_that_shuts_down_during_a_run(run: Run) -> None:
    done = run(
        SET_UP.format(kind="cuda"),
        """
        with stagespan.ProfilingContext("caught"):
            fake.launch(stream, 60_000)
        fake.fail(fakes.DEINITIALISED)
        for _ in range(100):
            with stagespan.ProfilingContext("after"):
                pass
        print(json.dumps([stagespan.flush(20), stagespan.stats()["after"].count,
                          stagespan.stats()["caught"].device_elapsed_ns,
                          stagespan.lost()["device_failed"] >= 1]))
        wiring.watch(); wiring.watch()
        print(json.dumps([_core.device_info()[key] for key in ("attached", "pending")]))
        caught = stagespan.spans()[0]
        print(int(caught["end_ns"] - caught["begin_ns"]))
        """,
    )
    *rest, host_ns = printed(done)
    assert rest == [[True, 100, None, True], [False, 0]]
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("[Profile] caught cost")]
    assert float(line.split()[3]) == pytest.approx(host_ns / 1e9, abs=2e-6)  # type: ignore[operator]
    assert done.stderr.count("[Profile] after") == 100
    assert done.stderr.count("device time is not complete") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        ("", "libcuda.so.1 is not loaded"),
        ("fakes.Fake(old=True)", "has no cuEventQuery"),
        ("fakes.Fake(with_torch=False)", "torch was built without this device"),
    ],
    ids=["no driver", "a driver without a symbol", "torch without the device"],
)
def test_missing_parts_are_reported_once(run: Run, fake: str, reason: str) -> None:
    done = run(
        f"""
        {fake}
        for _ in range(3):
            wiring._guarded_attach("cuda")
            wiring.watch()
            with stagespan.span("stage"):
                pass
        print(json.dumps([stagespan.flush(5), stagespan.stats()["stage"].count,
                          wiring.is_attached()]))
        """
    )
    assert printed(done) == [[True, 3, False]]
    assert done.stderr.count(reason) == 1
    assert len(done.stderr.splitlines()) == 1


def test_one_connection_gives_a_warning_and_is_reported_as_a_number(run: Run) -> None:
    done = run(
        SET_UP.format(kind="cuda"),
        "print(json.dumps(_core.device_info()['max_connections']))",
        CUDA_DEVICE_MAX_CONNECTIONS="1",
    )
    assert printed(done) == [1]
    assert done.stderr.count("CUDA_DEVICE_MAX_CONNECTIONS=1") == 1
    assert done.stderr.count("STAGESPAN_DEVICE_EVERY") == 1


def test_a_process_ends_while_its_driver_shuts_down(run: Run) -> None:
    done = run(
        SET_UP.format(kind="cuda"),
        """
        for _ in range(100):
            with stagespan.ProfilingContext("last"):
                fake.launch(stream, 60_000)
        fake.fail(fakes.DEINITIALISED)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("[Profile] last") == 100
