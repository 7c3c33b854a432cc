"""Tests of what other programs ask of a live process, through its recording."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from recorded_process import command, command_here, start, started
from rich.console import Console

from running import PROGRAMS, ran, ready, tell, until
from stagespan.errors import StagespanError
from stagespan.recording.asking import Asker
from stagespan.recording.live_page import LivePage

ANSWERING = PROGRAMS / "answering.py"

IDLE = """
    import sys, time
    import stagespan

    def wait_for_work():
        print("ready", flush=True)
        sys.stdin.readline()

    {first}
    wait_for_work()
"""


def functions(tree: list[dict[str, Any]]) -> set[str]:
    """Return the names in a tree of samples."""
    return {node["name"] for node in tree} | {
        name for node in tree for name in functions(node["children"])
    }


def sampled(pid: int, seconds: float = 0.5) -> dict[str, Any]:
    """Return what a process has sampled of itself."""
    shown = command_here("show", str(pid), "--sample", str(seconds), "--json")
    assert shown.returncode == 0, shown.stderr
    answer: dict[str, Any] = json.loads(shown.stdout)
    return answer


def refused(pid: int, seconds: float = 0.5) -> str:
    """Return the sentence with which a sample is refused."""
    shown = command_here("show", str(pid), "--sample", str(seconds))
    assert shown.returncode == 2, shown.stdout
    return shown.stderr


def test_a_busy_process_samples_itself(folder: Path) -> None:
    process = started(ANSWERING, "busy")
    shown = command("show", str(process.pid), "--sample", "1")
    assert shown.returncode == 0, shown.stderr
    assert "Where the time went" in shown.stdout
    assert "work" in shown.stdout
    assert list(folder.glob(".*.answer")) == []
    again = sampled(process.pid)
    assert again["samples"] > 5
    assert {"serve", "work"} <= functions(again["roles"][0]["tree"])


def test_a_process_that_hangs_answers_if_it_listens(folder: Path) -> None:
    process = started(IDLE.format(first=""), STAGESPAN_LISTEN="true")
    answer = sampled(process.pid)
    assert "wait_for_work" in functions(answer["roles"][0]["tree"])
    assert command_here("show", str(process.pid), "--stages").returncode == 0


def test_a_process_without_spans_says_that_it_does_not_listen(folder: Path) -> None:
    process = started(IDLE.format(first="stagespan.span('first').__enter__()"))
    assert "STAGESPAN_LISTEN=true" in refused(process.pid)


def test_a_process_without_a_recording_is_told(folder: Path) -> None:
    process = started("import sys; print('ready', flush=True); sys.stdin.read()")
    why = refused(process.pid)
    assert "has no recording" in why
    assert "STAGESPAN_LISTEN=true" in why


def test_top_samples_a_process_that_has_no_stages(folder: Path) -> None:
    # GIVEN a process that listens, and has opened no span
    process = started(IDLE.format(first=""), STAGESPAN_LISTEN="true")
    # WHEN it is shown THEN its page has the function that it is in
    shown = command_here("top", str(process.pid), "--once", "--interval", "0.3")
    assert "Samples of the main process\n" in shown.stdout, shown.stderr
    assert re.search(r"^wait_for_work +100 %", shown.stdout, re.MULTILINE)
    (role,) = json.loads(
        command_here("top", str(process.pid), "--json", "--interval", "0.3").stdout
    )["samples"]["roles"]
    assert "wait_for_work" in functions(role["tree"])
    assert list(folder.glob(".*.answer")) == []


def test_top_samples_only_a_process_that_has_no_stages_or_listens(folder: Path) -> None:
    busy = started(ANSWERING, "busy")
    idle = started(IDLE.format(first="stagespan.request('first').__enter__()"))
    listening = started(ANSWERING, "busy", STAGESPAN_LISTEN="true")

    def shown(pid: int) -> str:
        return command_here("top", str(pid), "--once", "--interval", "0.3").stdout

    # THEN one that has stages is not disturbed, unless it listens anyway
    assert "amples" not in shown(busy.pid)
    assert "Samples of the main process" in shown(listening.pid)
    # AND if no answer comes, a sentence says why
    assert "No samples: The process" in (text := shown(idle.pid))
    assert "STAGESPAN_LISTEN=true" in text


def test_top_in_a_terminal_goes_on_with_its_samples(folder: Path) -> None:
    process = started(IDLE.format(first=""), STAGESPAN_LISTEN="true")
    with contextlib.closing(LivePage(str(process.pid), None, sampled_s=0.2)) as page:
        page.read()
        page.wait(0.2)
        page.read()
        drawn = io.StringIO()
        Console(file=drawn, width=80).print(*page.render(80, 24))
        assert "wait_for_work" in drawn.getvalue()
        # THEN another program can ask between two rounds
        assert sampled(process.pid)["samples"] > 0
        process.kill()
        process.wait(30)
        page.read()
        assert not page.page().summary().startswith("alive")


def test_a_process_that_holds_the_lock_in_c_is_told(folder: Path) -> None:
    process = started(ANSWERING, "locked", STAGESPAN_LISTEN="true")
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    show = ("show", str(process.pid))
    until(lambda: "inside C" in command_here(*show).stdout.partition("Stages")[0])
    why = refused(process.pid)
    assert "the interpreter's lock" in why
    assert "'inside C'" in why


def test_a_process_that_waits_for_a_cpu_has_more_time(folder: Path) -> None:
    process = start(ANSWERING, "starved")
    hog = int(ready(process))
    # At less than 1 % of a CPU, the process does not come to the end of its span before this.
    threading.Timer(5, os.kill, (hog, signal.SIGKILL)).start()
    with Asker(process.pid) as asker:
        time.sleep(0.5)
        asker.ask("unknown")
        with pytest.raises(StagespanError, match="does not know"):
            asker.wait()


def test_a_thread_that_begins_after_the_recording_was_read_is_asked(folder: Path) -> None:
    process = started(ANSWERING, "later_thread")
    with Asker(process.pid) as asker:
        assert tell(process) == "serves"
        asker.ask("unknown")
        with pytest.raises(StagespanError, match="does not know"):
            asker.wait()


def test_a_stopped_and_a_killed_process_are_told(folder: Path) -> None:
    process = started(ANSWERING, "busy")
    os.kill(process.pid, signal.SIGSTOP)
    assert "is stopped" in refused(process.pid)
    os.kill(process.pid, signal.SIGCONT)
    errors: list[str] = []

    def ask() -> None:
        try:
            with Asker(process.pid) as asker:
                asker.ask("sample", seconds=60, interval_ms=10)
                asker.wait(lambda _: started_sampling.set())
        except StagespanError as error:
            errors.append(str(error))

    started_sampling = threading.Event()
    thread = threading.Thread(target=ask)
    thread.start()
    assert started_sampling.wait(30)
    with Asker(process.pid) as second, pytest.raises(StagespanError, match="Another program"):
        second.ask("sample", seconds=1, interval_ms=10)
    process.kill()
    process.wait(30)
    thread.join(30)
    assert len(errors) == 1
    assert "has ended (died)" in errors[0]


def test_a_command_of_another_asker_is_never_answered_twice(folder: Path) -> None:
    process = started(ANSWERING, "busy")
    for number in range(20):
        with Asker(process.pid) as asker:
            asker.ask(f"unknown{number}")
            with pytest.raises(StagespanError, match="does not know"):
                asker.wait()
    with Asker(process.pid) as asker:
        asker.ask("sample", seconds=30, interval_ms=10)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            asker.wait()
    assert sampled(process.pid)["wall_ms"] < 5_000


def test_parent_and_child_of_a_fork_answer(folder: Path) -> None:
    process = started(
        ANSWERING, "forks", python=(sys.executable, "-W", "error"), STAGESPAN_LISTEN="true"
    )
    assert sampled(process.pid)["samples"] > 5
    child = int(tell(process))
    try:
        for pid, name in ((process.pid, "parent"), (child, "child")):
            assert name in functions(sampled(pid)["roles"][0]["tree"])
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_process_that_calls_exec_is_asked_as_its_new_program(folder: Path) -> None:
    again = f"""
        import os, sys
        from stagespan import span
        with span("before"):
            pass
        print("ready", flush=True)
        sys.stdin.readline()
        os.execv(sys.executable, [sys.executable, "-c", {textwrap.dedent(IDLE.format(first=""))!r}])
    """
    process = started(again, STAGESPAN_LISTEN="true")
    assert tell(process) == "ready"
    answer = sampled(process.pid)
    assert "wait_for_work" in functions(answer["roles"][0]["tree"])


def test_under_run_the_samples_of_the_command_go_on(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\n"
        "def work():\n"
        "    end = time.monotonic() + 3\n"
        "    while time.monotonic() < end:\n"
        "        sum(range(1000))\n"
        "print('ready', flush=True)\n"
        "work()\n"
    )
    process = start(Path("-m"), "stagespan", "run", str(script))
    assert ready(process) == "ready"
    answer = sampled(process.pid)
    assert "work" in functions(answer["roles"][0]["tree"])
    _, errors = process.communicate(timeout=60)
    assert "work" in errors
    assert "Where the time went" in errors


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(folder: Path) -> None:
    process = started(ANSWERING, "busy")
    path = next(folder.glob("*.stagespan"))
    os.chmod(folder, 0o755)
    os.chmod(path, 0o644)
    code = (
        "import os, sys; from stagespan.recording.asking import Asker; os.setuid(65534)\n"
        f"Asker({str(path)!r})"
    )
    done = ran([sys.executable, "-c", code])
    assert "can only be asked by its own user" in done.stderr
    assert process.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_that_may_not_start_threads_says_so(folder: Path) -> None:
    os.chown(folder, 65534, 65534)
    program = """
        import os, resource, sys, time
        from stagespan import span
        os.setgid(65534)
        os.setuid(65534)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        while True:
            with span("serve"):
                sum(range(1000))
            if "ready" not in globals():
                ready = print("ready", flush=True)
    """
    process = started(program)
    assert "could not start a thread" in refused(process.pid)
    assert process.poll() is None
