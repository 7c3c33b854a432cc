"""The service thread: its lines, their times and threads, and that none is lost at the end."""

from __future__ import annotations

import functools
import logging
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from running import PROGRAMS, in_threads, ran, until
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, set_debug
from stagespan.device import platforms
from stagespan.live import service

COST = re.compile(r"\[Profile\] (.+) cost (\d+\.\d{6}) seconds")
PEAK = re.compile(r"Rank (\d+) - Function '(.+)' Peak (RSS|Memory): (\d+\.\d\d) GB")


@pytest.fixture(autouse=True)
def nothing_pending(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    assert service.flush()
    caplog.set_level(logging.INFO, logger="stagespan")
    caplog.clear()
    yield
    service.flush()


def python(code: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` as a separate script, so that workers can import it."""
    script = cwd / "script.py"
    script.write_text(textwrap.dedent(code))
    return ran([sys.executable, str(script)], cwd=cwd, status=0, **variables)


# --- lines ----------------------------------------------------------------------------------------


def test_the_two_lines_of_a_run(caplog: pytest.LogCaptureFixture) -> None:
    began_s = time.perf_counter()
    with ProfilingContext("my_operation"):
        time.sleep(0.02)
    took_s = time.perf_counter() - began_s
    assert service.flush()

    cost, peak = caplog.records
    found = COST.fullmatch(cost.getMessage())
    assert found is not None
    assert found[1] == "my_operation"
    assert 0.02 <= float(found[2]) <= took_s + 0.001
    found = PEAK.fullmatch(peak.getMessage())
    assert found is not None
    assert found.group(1, 2, 3) == ("0", "my_operation", "RSS")
    assert float(found[4]) == pytest.approx(platforms.peak_resident_bytes() / 2**30, abs=0.02)
    assert {cost.name, peak.name} == {"stagespan"}
    assert {cost.levelno, peak.levelno} == {logging.INFO}


def test_the_rank_is_in_the_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    with ProfilingContext("op"):
        pass
    service.flush()
    assert caplog.records[1].getMessage().startswith("Rank 3 - Function 'op'")


def test_records_carry_the_time_and_the_thread_of_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # GIVEN a run in a named thread, which ends long before its line is written
    assert service._service.pause(10)
    done, goes_on = threading.Event(), threading.Event()
    around_s: list[float] = []

    def work() -> None:
        around_s.append(time.time())
        with ProfilingContext("op"):
            pass
        around_s.append(time.time())
        done.set()
        goes_on.wait(30)

    thread = threading.Thread(target=work, name="worker-7")
    thread.start()
    done.wait(30)
    time.sleep(0.2)

    service._service.resume()
    service.flush()

    for record in caplog.records:
        assert around_s[0] - 0.01 <= record.created <= around_s[1] + 0.01
        assert record.msecs == pytest.approx(record.created % 1 * 1000, abs=1.5)
        fresh = logging.makeLogRecord({})
        assert fresh.relativeCreated - record.relativeCreated == pytest.approx(
            (fresh.created - record.created) * 1000, abs=5
        )
        assert record.thread == thread.ident
        assert record.threadName == "worker-7"
    goes_on.set()
    thread.join()
    assert caplog.records[0].stage == "op"  # type: ignore[attr-defined]


def test_each_thread_keeps_its_order(caplog: pytest.LogCaptureFixture) -> None:
    def work(name: str) -> None:
        for i in range(200):
            with ProfilingContext(f"{name}.{i}"):
                pass

    in_threads(*(functools.partial(work, f"t{t}") for t in range(4)))
    service.flush()

    seen: dict[str, list[int]] = {}
    for record in caplog.records:
        found = COST.fullmatch(record.getMessage())
        if found:
            name, _, number = found[1].partition(".")
            seen.setdefault(name, []).append(int(number))
    assert seen == {f"t{t}": list(range(200)) for t in range(4)}


def test_an_outer_run_comes_after_its_inner_one(caplog: pytest.LogCaptureFixture) -> None:
    with ProfilingContext("outer"), ProfilingContext("inner"):
        pass
    service.flush()
    costs = [found[1] for r in caplog.records if (found := COST.fullmatch(r.getMessage()))]
    assert costs == ["inner", "outer"]


def test_a_name_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    with ProfilingContext("a\nERROR forged\x1b[31m %s"):
        pass
    service.flush()
    for record in caplog.records:
        assert "a\\nERROR forged\\x1b[31m %s" in record.getMessage()
        assert "\n" not in record.getMessage()


def test_the_thread_writes_without_being_asked(caplog: pytest.LogCaptureFixture) -> None:
    with ProfilingContext("op"):
        pass
    until(lambda: len(caplog.records) == 2)


# --- handlers -------------------------------------------------------------------------------------


class Awkward(logging.Handler):
    """A handler that blocks or raises."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.raises = False
        self.seen: list[str] = []

    def handle(self, record: logging.LogRecord) -> bool:  # type: ignore[override]
        self.gate.wait(30)
        if self.raises:
            raise OSError("no space left")
        self.seen.append(record.getMessage())
        return True


@pytest.fixture
def awkward() -> Iterator[Awkward]:
    handler = Awkward()
    logging.getLogger("stagespan").addHandler(handler)
    yield handler
    handler.gate.set()
    logging.getLogger("stagespan").removeHandler(handler)


def test_flush_says_when_it_took_too_long(awkward: Awkward) -> None:
    awkward.gate.clear()
    with ProfilingContext("slow"):
        pass
    stuck = threading.Thread(target=service.flush)
    stuck.start()

    until(_is_draining)
    assert service.flush(0.05) is False
    awkward.gate.set()
    stuck.join()
    assert service.flush(10) is True
    assert any("slow" in line for line in awkward.seen)


def _is_draining() -> bool:
    free = []

    def probe() -> None:
        if service._service.pause(0):
            service._service.resume()
            free.append(True)

    in_threads(probe)
    return not free


def test_a_handler_that_raises_is_counted(awkward: Awkward) -> None:
    before = _core.lost()["hook_errors"]
    awkward.raises = True
    with ProfilingContext("first"):
        pass
    assert service.flush()
    assert _core.lost()["hook_errors"] == before + 2
    awkward.raises = False
    with ProfilingContext("second"):
        pass
    assert service.flush()
    assert len(awkward.seen) == 2


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_only_wanted_lines_can_be_lost(level: int, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("stagespan").setLevel(level)
    context, before = ProfilingContext("many"), _core.lost()["log_lines"]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # the thread that writes lines gets at most the turn it waits for
    for _ in range(30_000):  # more than twice as many as can wait
        with context:
            pass
    sys.setswitchinterval(interval_s)
    assert service.flush()
    # THEN each run has its two lines, or they are counted as lost
    lost = _core.lost()["log_lines"] - before
    written = 2 * (30_000 - lost) if level == logging.INFO else 0
    assert (lost > 0, len(caplog.records)) == (level == logging.INFO, written)


# --- where lines go -------------------------------------------------------------------------------

LINES = """
    from stagespan import ProfilingContext, set_debug
    {setup}
    with ProfilingContext("op"):
        pass
"""


@pytest.mark.parametrize(
    ("setup", "variables", "expected"),
    [
        ("", {}, 0),
        ("", {"STAGESPAN_DEBUG": "true"}, 2),
        ("", {"TELEFUSER_PROFILE_DEBUG": "1"}, 2),
        ("set_debug(True)", {}, 2),
        ("import logging; logging.basicConfig(level='INFO')", {}, 2),
        ("import logging; logging.basicConfig(level='INFO'); set_debug(True)", {}, 2),
        ("import logging; logging.basicConfig(level='WARNING'); set_debug(True)", {}, 0),
        ("import logging; logging.getLogger('stagespan').addHandler(logging.NullHandler())", {}, 0),
    ],
)
def test_lines_go_where_logging_says_or_to_stderr_in_debug_mode(
    setup: str, variables: dict[str, str], expected: int, tmp_path: Path
) -> None:
    done = python(LINES.format(setup=setup), tmp_path, **variables)

    text = done.stderr
    assert len(COST.findall(text)) + len(PEAK.findall(text)) == expected, text
    assert done.stdout == ""


def test_the_library_adds_no_handler_and_sets_no_level() -> None:
    logger = logging.getLogger("stagespan")
    assert logger.handlers == []
    assert logger.propagate


# --- the end --------------------------------------------------------------------------------------


def test_everything_is_written_when_the_process_ends(tmp_path: Path) -> None:
    # GIVEN a process that ends in the middle of a thousand lines, with its own handler
    done = python(
        """
        import logging
        from stagespan import ProfilingContext
        logging.basicConfig(level="INFO", filename="log.txt", format="%(threadName)s %(message)s")
        for i in range(1000):
            with ProfilingContext(f"s{i}"):
                pass
        """,
        tmp_path,
    )

    found = COST.findall((tmp_path / "log.txt").read_text())
    assert [name for name, _ in found] == [f"s{i}" for i in range(1000)]
    assert done.stderr == ""


WORKERS = PROGRAMS / "logging_workers.py"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_write_their_own_lines_before_they_end(method: str, tmp_path: Path) -> None:
    done = ran([sys.executable, WORKERS, method], cwd=tmp_path, status=0)
    lines = [line for line in done.stdout.splitlines() if "[Profile]" in line]
    pids = {line.split()[2]: line.split()[0] for line in lines}
    assert sorted(pids) == ["after", "before", "work0", "work1", "work2"]
    assert len(lines) == 5
    assert len(set(pids.values())) == 4
    assert pids["before"] == pids["after"]


def test_a_forked_child_has_no_thread_until_it_needs_one(tmp_path: Path) -> None:
    done = python(
        """
        import logging, os, sys, threading
        from stagespan.live import service
        from stagespan import ProfilingContext
        logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
        with ProfilingContext("parent"):
            pass
        service.flush()
        assert "stagespan" in [t.name for t in threading.enumerate()]
        sys.stdout.flush()
        if os.fork() == 0:
            assert [t.name for t in threading.enumerate()] == ["MainThread"]
            with ProfilingContext("child"):
                pass
            assert "stagespan" in [t.name for t in threading.enumerate()]
            assert service.flush()
            sys.stdout.flush()
            os._exit(0)
        _, status = os.wait()
        assert status == 0, status
        """,
        tmp_path,
    )
    assert [name for name, _ in COST.findall(done.stdout)] == ["parent", "child"]


def test_a_fork_while_the_thread_is_busy_does_not_hang(tmp_path: Path) -> None:
    done = python(
        """
        import logging, os, sys
        from stagespan.live import service
        from stagespan import ProfilingContext
        logging.basicConfig(level="INFO", filename=os.devnull)
        for i in range(30):
            for _ in range(50):
                with ProfilingContext("busy"):
                    pass
            pid = os.fork()
            if pid == 0:
                with ProfilingContext("child"):
                    pass
                os._exit(0 if service.flush(20) else 1)
            assert os.waitpid(pid, 0)[1] == 0
        print("done")
        """,
        tmp_path,
    )
    assert done.stdout == "done\n"


# --- callbacks and snapshots ----------------------------------------------------------------------


def test_snapshots_are_kept_while_spans_happen() -> None:
    with ProfilingContext("op"):
        pass
    service.ensure_running()
    until(lambda: len(service.history()) > 0)
    found = service.history().nearest(_core.now_ns())
    assert found is not None
    assert found.time_ns <= _core.now_ns()


def test_exit_callbacks_run_once_after_the_last_line(tmp_path: Path) -> None:
    done = python(
        """
        import logging, sys
        from stagespan.live import service
        from stagespan import ProfilingContext
        logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
        service.on_exit(lambda: print("callback"))
        service.on_exit(lambda: 1 / 0)
        service.on_exit(lambda: logging.getLogger("stagespan").info("logging still works"))
        with ProfilingContext("op"):
            pass
        """,
        tmp_path,
    )
    lines = done.stdout.splitlines()
    assert lines[2:] == ["callback", "logging still works"]
    assert done.stderr == ""


def test_debug_contexts_have_lines_only_in_debug_mode(caplog: pytest.LogCaptureFixture) -> None:
    context = ProfilingContext4Debug("debug_op")
    with context:
        pass
    service.flush()
    assert caplog.records == []
    set_debug(True)
    try:
        with context:
            pass
        service.flush()
    finally:
        set_debug(False)
    assert [found[1] for r in caplog.records if (found := COST.fullmatch(r.getMessage()))] == [
        "debug_op"
    ]
