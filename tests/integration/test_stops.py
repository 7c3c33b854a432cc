"""How production ends processes: signals with and without handlers, servers, containers."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from recorded_process import (
    command_here,
    recordings_in,
    skip_unless_works,
    start,
    started,
    started_as_first,
)

from running import PROGRAMS, end, ended, ran, ready, start_command, until
from stagespan import recording

STOPPING = PROGRAMS / "stopping.py"

PROGRAM = """
    import os, signal, sys, time
    BEFORE
    import stagespan
    with stagespan.span("load"):
        pass
    found = [signal.getsignal(number) for number in (1, 2, 15)]
    AFTER
    with INSIDE:
        print("ready", flush=True)
        while True:
            time.sleep(0.01)
"""
RAISES_AGAIN = """
    def handler(number, frame):
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    signal.signal(signal.SIGTERM, handler)
"""
IN_A_SPAN = "stagespan.span('serve')"
BETWEEN_SPANS = "__import__('contextlib').nullcontext()"


def signalled(
    *, before: str = "", after: str = "", inside: str = IN_A_SPAN, **variables: str
) -> subprocess.Popen[str]:
    """Start a program with code before the import of stagespan and after its first span."""
    program = textwrap.dedent(PROGRAM)
    program = program.replace("BEFORE", textwrap.dedent(before))
    program = program.replace("AFTER", textwrap.dedent(after)).replace("INSIDE", inside)
    return started(program, **variables)


def stopped(process: subprocess.Popen[str], *numbers: int, status: int) -> recording.Recording:
    """Send signals to a program, wait for its end, and return what it leaves."""
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.2 if len(numbers) > 1 else 0)
    ended(process, status)
    return recording.open(process.pid)


def shown(found: recording.Recording) -> str:
    """Return the first line of `stagespan show`."""
    return command_here("show", found.path).stdout.splitlines()[0]


@pytest.mark.parametrize("inside", [IN_A_SPAN, BETWEEN_SPANS], ids=["in a span", "between spans"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_program_without_handlers(number: signal.Signals, inside: str, folder: Path) -> None:
    process = signalled(inside=inside)
    found = stopped(process, number, status=-number)
    assert (found.state, found.stop_signal) == ("stopped", number.name)
    assert f"stopped by {number.name}" in shown(found)
    assert found.end_ns is not None
    assert found.end_ns >= found.begin_ns
    assert [span["stage"] for span in found.open_spans()] == ["serve"] * (inside == IN_A_SPAN)
    # THEN it is known for how long the stage ran
    page = command_here("show", found.path).stdout
    assert (re.search(r"in serve \(since [^,]*, for [0-9]", page) is not None) == (
        inside == IN_A_SPAN
    )


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_that_restores_the_default_and_raises_again(when: str, folder: Path) -> None:
    process = signalled(**{when: RAISES_AGAIN})  # type: ignore[arg-type]
    found = stopped(process, signal.SIGTERM, status=-signal.SIGTERM)
    assert "was stopped by SIGTERM" in shown(found)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("status", [0, 3])
def test_a_handler_that_calls_os_exit(status: int, when: str, folder: Path) -> None:
    handler = f"signal.signal(signal.SIGTERM, lambda *_: os._exit({status}))"
    process = signalled(**{when: handler})  # type: ignore[arg-type]
    found = stopped(process, signal.SIGTERM, status=status)
    assert (found.state, found.stop_signal) == ("stopped", "SIGTERM")


def test_a_handler_that_needs_too_long(folder: Path) -> None:
    # GIVEN a program that is killed after its time to stop has passed
    process = signalled(after="signal.signal(signal.SIGTERM, lambda *_: None)")
    found = stopped(process, signal.SIGTERM, signal.SIGKILL, status=-signal.SIGKILL)
    assert (found.state, found.stop_signal) == ("stopped", "SIGTERM")


@pytest.mark.parametrize(
    ("number", "status", "name"),
    [(signal.SIGTERM, 3, "SIGTERM"), (signal.SIGINT, -signal.SIGINT, "SIGINT")],
)
def test_a_clean_exit_after_a_signal(
    number: signal.Signals, status: int, name: str, folder: Path
) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))"
    process = signalled(after=handler, STAGESPAN_RECORDING="keep")
    found = stopped(process, number, status=status)
    assert found.state == "exited"
    assert f"ended with a clean exit after {name}" in shown(found)
    process = signalled(after=handler)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert [one.pid for one in recordings_in(folder)] == [found.pid]


def test_signals_and_ends_that_are_not_known(folder: Path) -> None:
    between, inside = signalled(inside=BETWEEN_SPANS), signalled()
    for process in (between, inside):
        end(process)
    left = start("import os, stagespan\nwith stagespan.span('a'): pass\nos._exit(0)")
    left.communicate(timeout=60)
    for process in (between, left):
        found = recording.open(process.pid)
        assert (found.state, found.stop_signal) == ("stopped", None)
        assert "ended by a signal or os._exit, no span was open" in shown(found)
    assert recording.open(inside.pid).state == "died"
    assert "died without a clean exit" in shown(recording.open(inside.pid))


def test_the_program_finds_its_signals_as_without_stagespan(folder: Path) -> None:
    code = """
        assert found == [signal.SIG_DFL, signal.default_int_handler, signal.SIG_DFL], found
        handler = lambda *_: None
        assert signal.signal(signal.SIGTERM, handler) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is handler
        with stagespan.span("more"):
            pass
        assert signal.getsignal(signal.SIGTERM) is handler
        assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is handler
        assert signal.signal(signal.SIGHUP, signal.SIG_IGN) is signal.SIG_DFL
        with stagespan.span("more"):
            pass
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.signal(signal.SIGHUP, signal.SIG_DFL) is signal.SIG_IGN
    """
    process = signalled(after=code, inside=BETWEEN_SPANS)
    assert stopped(process, signal.SIGTERM, status=-signal.SIGTERM).stop_signal == "SIGTERM"


def test_forked_children_end_as_without_stagespan(folder: Path) -> None:
    code = """
        import subprocess
        def child(run):
            pid = os.fork()
            if pid == 0:
                run()
                print("child", flush=True)
                while True:
                    time.sleep(0.01)
            return pid
        def in_span():
            with stagespan.span("of child"):
                pass
        def with_handler():
            signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
            in_span()
        children = [child(run) for run in (lambda: None, in_span, with_handler)]
        time.sleep(0.5)
        for pid in children:
            os.kill(pid, signal.SIGTERM)
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        assert ends == [-15, -15, 5], ends
        program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        program.terminate()
        assert program.wait(60) == -15
        print("children", *children, flush=True)
    """
    process = start(
        textwrap.dedent(PROGRAM)
        .replace("BEFORE", "")
        .replace("AFTER", textwrap.dedent(code))
        .replace("INSIDE", BETWEEN_SPANS)
    )
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("children"):
        assert line, process.communicate(timeout=30)[1]
    end(process)
    _, silent, recorded, handled = (int(text) if text.isdigit() else 0 for text in line.split())
    # THEN those that recorded say so; the parent was not marked by signals to its children
    states = {one.pid: (one.state, one.stop_signal) for one in recordings_in(folder)}
    assert silent not in states
    assert states[recorded] == states[handled] == ("stopped", "SIGTERM")
    assert states[process.pid] == ("stopped", None)


def has_run(found: recording.Recording, steps: int) -> bool:
    return recording.open(found.path).stats()["step"].count >= steps


def test_the_first_process_of_a_container_ignores_the_signal(folder: Path) -> None:
    # GIVEN a process that the kernel protects from signals without a handler
    process = started_as_first(STOPPING, "serving")
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (found,) = recordings_in(folder)
    for _ in range(2):
        os.kill(int(child), signal.SIGTERM)
        time.sleep(0.2)
        later = recording.open(found.path).stats()["step"].count + 1
        until(functools.partial(has_run, found, later))
        assert recording.open(found.path).state == "alive"
    end(process)
    until(lambda: recording.open(found.path).state != "alive")
    assert "stopped by SIGTERM" in shown(recording.open(found.path))


def test_normal_stops_do_not_push_out_crashes(folder: Path) -> None:
    # GIVEN the files of some crashes, and of many later deployments that ended in each way
    crash = "import os, stagespan\nwith stagespan.span('crash'): os._exit(1)"
    crashes = [start(crash) for _ in range(3)]
    for process in crashes:
        process.communicate(timeout=60)
    originals = []
    for code in ("os.kill(os.getpid(), 15)", "os._exit(0)", ""):
        process = start(
            f"import os, stagespan\nwith stagespan.span('stop'): pass\n{code}",
            STAGESPAN_RECORDING="keep",
        )
        process.communicate(timeout=60)
        originals.append(Path(recording.open(process.pid).path))
    for number in range(30):
        source = originals[number % len(originals)]
        copy = folder / f"{2**22 + number}-{number + 1}.stagespan"
        ran(["cp", "--sparse=always", source, copy], status=0)
    start("import stagespan\nwith stagespan.span('x'): pass").communicate(timeout=60)
    left = recordings_in(folder)
    assert len(left) == 16
    assert {one.pid for one in left if one.state == "died"} == {one.pid for one in crashes}


# --- servers --------------------------------------------------------------------------------------

APP = """
    import os, sys, time
    import stagespan

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            with stagespan.span("start"):
                pass
            open(f"started.{os.getpid()}", "w").close()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})

    def wsgi(environ, start_response):
        start_response("204 No Content", [])
        return []

    if "gunicorn" in sys.argv[0] or "gunicorn" in sys.modules:
        with stagespan.span("start"):
            pass
        open(f"started.{os.getpid()}", "w").close()
"""
SERVERS = {
    "uvicorn": ("uvicorn", "app:app", "--port", "0", "--log-level", "error"),
    "uvicorn with workers": (
        *("uvicorn", "app:app", "--port", "0", "--workers", "2", "--log-level", "error"),
    ),
    "gunicorn": ("gunicorn", "app:wsgi", "--bind", "127.0.0.1:0", "--log-level", "error"),
    "gunicorn with preload": (
        *("gunicorn", "app:wsgi", "--bind", "127.0.0.1:0", "--preload", "--log-level", "error"),
    ),
}


@pytest.mark.parametrize(
    ("server", "number"),
    [*((server, signal.SIGTERM) for server in SERVERS), ("uvicorn", signal.SIGINT)],
)
def test_servers_stop_without_a_crash(
    server: str, number: signal.Signals, folder: Path, tmp_path: Path
) -> None:
    module, *arguments = SERVERS[server]
    pytest.importorskip(module, reason=f"runs the real {module}")
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))

    def status(kept: str) -> int:
        command = [sys.executable, "-m", module, *arguments]
        process = start_command(command, cwd=tmp_path, STAGESPAN_RECORDING=kept)
        workers = 2 if "workers" in server else 1
        until(lambda: len(list(tmp_path.glob("started.*"))) >= workers)
        time.sleep(0.3)
        process.send_signal(number)
        ended(process)
        for file in tmp_path.glob("started.*"):
            file.unlink()
        return process.returncode

    assert status("off") == status("keep")
    found = recordings_in(folder)
    assert found
    for one in found:
        assert one.state in ("stopped", "exited")
        assert one.stop_signal in (number.name, "SIGTERM", None)
        if one.state == "stopped":
            assert f"stopped by {one.stop_signal}" in shown(one)
    rows = json.loads(command_here("ps", "--all", "--json").stdout)["processes"]
    assert {row["state"] for row in rows if Path(row["path"]).parent == folder} <= {
        "stopped",
        "exited",
    }


# --- what readers say of causes -------------------------------------------------------------------

REFUSES_SHARED_MAPPINGS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void* mmap(void* at, size_t length, int protection, int flags, int file, off_t offset) {
  if ((flags & MAP_SHARED) && (flags & MAP_FIXED)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return (void*)syscall(SYS_mmap, at, length, protection, flags, file, offset);
}
"""


def test_a_system_that_refuses_to_map_the_file(folder: Path, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc) on PATH")
    (tmp_path / "refuse.c").write_text(REFUSES_SHARED_MAPPINGS)
    library = tmp_path / "refuse.so"
    ran([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "refuse.c"], status=0)
    process = start(STOPPING, "place", LD_PRELOAD=str(library))
    # THEN its own figures are complete, and it says why others cannot read them
    line = ready(process)
    assert line == "1 memory the system refuses to map the file of a recording"
    found = command_here("show", str(process.pid))
    assert found.returncode == 2
    assert "has no recording that can be read here" in found.stderr
    end(process)
    assert recordings_in(folder) == []


def test_a_daemon_that_has_closed_its_files(folder: Path) -> None:
    process = started(STOPPING, "daemon")
    (warning,) = recording.open(process.pid).warnings()
    end(process)
    # THEN the reader names that cause and no other
    assert "because the program had closed the file." in warning
    # THEN it does not claim that no span was open, because that is not known
    assert recording.open(process.pid).state == "died"


def test_without_proc_a_live_process_is_alive(folder: Path) -> None:
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    skip_unless_works(*hidden, "true")
    seen, unseen = (
        started(PROGRAMS / "live.py", "inside", "serve"),
        started(PROGRAMS / "live.py", "inside", "serve", python=[*hidden, sys.executable]),
    )
    reader = """if 1:
        from stagespan import recording
        for one in recording.recordings():
            print(one.path, one.state)
    """

    def states(python: list[str]) -> list[str]:
        done = ran([*python, "-c", reader])
        rows = map(str.split, done.stdout.splitlines())
        return [state for path, state in rows if Path(path).parent == folder]

    assert states([sys.executable]) == ["alive"] * 2
    assert states([*hidden, sys.executable]) == ["alive"] * 2
    end(seen), end(unseen)
    until(lambda: states([sys.executable]) == ["died"] * 2)
    assert states([*hidden, sys.executable]) == ["died"] * 2
