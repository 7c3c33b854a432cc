"""Recordings of processes that live: what the commands show of them while they run."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from recorded_process import command, command_here, recordings_in, start, started, started_as_first
from rich.console import Console

import preloaded
from running import PROGRAMS, end, ended, ran, ready, start_command, until
from stagespan import recording
from stagespan.recording.live_page import LivePage

LIVE = PROGRAMS / "live.py"


def test_a_process_that_holds_the_interpreters_lock_is_read(folder: Path) -> None:
    process = started(LIVE, "native_call")
    time.sleep(0.6)
    shown = command("ps", "--stalled", "0.5")
    assert shown.returncode == 1
    assert f"process {process.pid}" in shown.stdout
    assert "`native call`" in shown.stdout
    assert command_here("ps", "--stalled", "0.5", "--stage", "request").returncode == 1
    assert command_here("ps", "--stalled", "0.5", "--stage", "another").returncode == 0
    assert f"process {process.pid}" not in command_here("ps", "--stalled", "3600").stdout
    found = recording.open(process.pid)
    assert found.state == "alive"
    assert [span["stage"] for span in found.open_spans()] == ["request", "native call"]


def test_threads_have_the_names_that_python_gave_them(folder: Path) -> None:
    process = started(LIVE, "named_threads")
    found = recording.open(process.pid)
    shown = command_here("show", str(process.pid)).stdout
    end(process)
    # THEN the recording has these names, and the longest is cut between two characters
    names = [thread["name"] for thread in found.threads()]
    assert names == ["loader of the first shard", "\u00e9" * 31, "MainThread"]
    by_stage = {span["stage"]: span["thread_name"] for span in found.open_spans()}
    assert by_stage == {"work": "\u00e9" * 31, "main": "MainThread"}
    assert "loader of the first shard, ended" in shown


def test_requests_have_the_ids_of_their_traces(folder: Path) -> None:
    process = started(LIVE, "traced_requests")
    found = recording.open(process.pid)
    shown = command_here("show", str(process.pid)).stdout
    lines = command_here("dump", str(process.pid), "--format", "csv").stdout
    events = json.loads(command_here("dump", str(process.pid)).stdout)["traceEvents"]
    end(process)
    trace = "0af7651916cd43dd8448eb211c80319c"
    traces = {one["id"]: one["trace_id"] for one in found.requests()}
    own = traces["alone"]
    assert traces == {"alone": own, "traced": trace}
    assert own not in (None, trace)
    assert [span["trace_id"] for span in found.open_spans()] == [own, trace]
    assert f", trace {trace})" in shown
    assert f", trace {own})" in shown
    rows = {row["stage"]: row["trace_id"] for row in csv.DictReader(io.StringIO(lines))}
    assert rows == {"first": own, "second": trace}
    arguments = {event["name"]: event["args"] for event in events if event["ph"] == "X"}
    assert arguments["second"]["trace_id"] == trace
    assert arguments["first"]["trace_id"] == own


def test_ranks_of_a_job_are_compared(folder: Path) -> None:
    # GIVEN four ranks, one of which is in another stage, one step behind, and stopped
    job = {"TORCHELASTIC_RUN_ID": "job-1", "WORLD_SIZE": "4"}
    places = [("17", "all_reduce"), ("17", "all_reduce"), ("17", "all_reduce"), ("16", "load")]
    processes = [
        started(LIVE, "rank", *place, RANK=str(rank), **job) for rank, place in enumerate(places)
    ]
    processes[3].send_signal(signal.SIGSTOP)
    shown = command("show", "--job", "job-1")
    page = json.loads(command_here("ps", "--job", "job-1", "--json").stdout)
    for process in processes:
        end(process)
    assert shown.returncode == 0, shown.stderr
    first = shown.stdout.splitlines()[1]
    assert first.startswith("rank 3 ")
    assert "`load`" in first
    assert page["counts"]["forward"] == {f"rank {i}": 17 if i < 3 else 16 for i in range(4)}
    assert page["counts"]["step"] == {f"rank {i}": 17 if i < 3 else 16 for i in range(4)}
    assert [rank["stage"] for rank in page["ranks"]] == ["all_reduce"] * 3 + ["load"]
    missing = command_here("show", "--job", "job-2")
    assert missing.returncode == 2
    assert "the jobs are job-1" in missing.stderr


def test_the_rank_is_that_of_torch_distributed(folder: Path) -> None:
    pytest.importorskip("torch")
    process = start(LIVE, "rank_of_torch", python=preloaded.python())
    pid = int(ready(process))
    until(lambda: recording.open(pid).rank is not None)
    found = recording.open(pid)
    assert (found.rank, found.world_size) == (0, 1)


def test_the_list_of_processes(folder: Path) -> None:
    alive, killed = (
        started(LIVE, "stepping", RANK="2"),
        started(LIVE, "stepping"),
    )
    end(killed)

    def listed(*options: str) -> list[Any]:
        # Other processes of this machine are left out.
        rows = json.loads(command_here("ps", *options, "--json").stdout)["processes"]
        return [row for row in rows if Path(row["path"]).parent == folder]

    shown, everything = listed(), listed("--all")
    page = command("ps", "--all").stdout
    # THEN the first is shown with its rate, the second only on request
    assert [(row["pid"], row["state"]) for row in shown] == [(alive.pid, "alive")]
    assert shown[0]["rank"] == 2
    assert shown[0]["pipeline"] == "wan"
    assert shown[0]["stages"][0] == "serve"
    until(lambda: listed()[0]["spans_per_s"] > 0, 30)  # 0 while it gets no core
    assert {row["pid"]: row["state"] for row in everything} == {
        alive.pid: "alive",
        killed.pid: "died",
    }
    assert str(killed.pid) in page
    # THEN a running loop is not stalled, although its outer span has been open for longer
    opened_s = recording.open(alive.pid).open_spans()[0]["elapsed_ns"] / 1e9
    line = f"process {alive.pid}"
    stalled = ("ps", "--stalled", f"{opened_s}")
    until(lambda: line not in command_here(*stalled).stdout, 30)


def test_the_list_shows_when_a_killed_process_was_last_at_work(folder: Path) -> None:
    process = started(LIVE, "idle_after_requests")
    end(process)
    rows = json.loads(command_here("ps", "--all", "--json").stdout)["processes"]
    (row,) = (row for row in rows if row["pid"] == process.pid)
    # THEN the time is that of the last span, not of the one that is open
    assert row["state"] == "died"
    assert row["last_ns"] - row["begin_ns"] >= 0.49e9
    # AND it is not known if the spans are not read
    assert recording.open(process.pid, spans=False).last_ns is None


def test_the_live_page_in_a_terminal(folder: Path) -> None:
    busy = start(LIVE, "busy")
    terminal, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    variables = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}
    try:
        ready(busy)
        command = [sys.executable, "-m", "stagespan", "top", str(busy.pid), "--interval", "0.2"]
        top = start_command(command, stdin=other_end, stdout=other_end, **variables)
        seen = shown_by(terminal, "decode", "main", "runs/s")
        assert "Traceback" not in seen
        os.write(terminal, b"f")
        shown_by(terminal, "frozen")
        os.write(terminal, b"f/dec")
        shown_by(terminal, "/dec_")
        os.write(terminal, "\x1b/去噪".encode())
        shown_by(terminal, "/去噪_")
        os.write(terminal, b"\rsq")
        ended(top, 0)
    finally:
        os.close(terminal)
        os.close(other_end)


def shown_by(terminal: int, *words: str) -> str:
    """Read a terminal until all words have been shown."""
    seen = ""
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s:
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536).decode("utf-8", "replace")
        if all(word in seen for word in words):
            return seen
    pytest.fail(f"not all of {words} were shown: {seen[-2000:]}")


def test_the_live_page_is_printed_once(folder: Path) -> None:
    busy = started(LIVE, "busy")

    def lines_of_top() -> list[str]:
        shown = command_here("top", str(busy.pid), "--once", "--interval", "0.3")
        assert shown.returncode == 0, shown.stderr
        return shown.stdout.splitlines()

    def runs_per_s(lines: list[str]) -> float:
        (decode,) = (line.split() for line in lines if line.startswith("decode "))
        return float(decode[1].replace(",", ""))

    lines = lines_of_top()
    assert lines[0].startswith(f"{busy.pid} live.py busy: alive")
    until(lambda: runs_per_s(lines_of_top()) > 0, 30)  # 0 while it gets no core
    assert any("main" in line and str(busy.pid) in line for line in lines[1:])
    none = command_here("top", "--job", "no such job", "--once")
    assert none.returncode == 2
    assert "no recording of the job" in none.stderr


def test_long_names_do_not_hide_figures(folder: Path) -> None:
    process = started(
        LIVE, "long_names", RANK="0", TORCHELASTIC_RUN_ID="a job with a name of many characters"
    )
    pages = [
        ran([sys.executable, "-m", "stagespan", *arguments], COLUMNS="80", NO_COLOR="1").stdout
        for arguments in (
            ("top", str(process.pid), "--once"),
            ("ps",),
            ("ps", "--job", "a job with a name of many characters"),
        )
    ]
    top, processes, of_job = pages
    assert max(len(line) for page in (top, of_job) for line in page.splitlines()) <= 80
    row = next(line for line in top.splitlines() if line.startswith("inner"))
    figures = r"[\d,.]+(?: +[\d.,]+ [^\W\d]+)+(?: +\d+(?:\.\d)? %)?"
    assert re.fullmatch(rf"inner[ iner]+ +{figures}", row), row
    (row,) = (line for line in processes.splitlines() if line.startswith(f"{process.pid} "))
    assert len(row) <= 80
    assert re.match(rf"{process.pid} +alive ", row)
    assert re.search(rf"^0 +{process.pid} +alive ", of_job, re.MULTILINE)
    # THEN the innermost of the open stages is shown, also in one line
    assert "second second" in " ".join(top.split())
    page = LivePage(str(process.pid), None)
    page.read()
    end(process)
    shown = io.StringIO()
    Console(file=shown, width=80).print(*page.render(80, 24))
    assert "… > second" in shown.getvalue()
    assert max(map(len, shown.getvalue().splitlines())) <= 80


def test_forks_while_threads_write(folder: Path) -> None:
    process = start(LIVE, "forks")
    own = int(ready(process))
    process.communicate(timeout=30)
    counts = sorted(
        tuple((name, stage.count) for name, stage in found.stats().items())
        for found in recordings_in(folder)
        if found.pid != process.pid
    )
    assert all(names in ((), (("child", dict(names).get("child")),)) for names in counts)
    assert len(counts) == 17  # the 16 leftovers from when the last child began, and its own
    parent = {name: stage.count for name, stage in recording.open(process.pid).stats().items()}
    assert parent == {"parent": own}


@pytest.mark.parametrize("knows_its_start", [True, False])
def test_no_more_leftovers_than_a_few_are_kept(folder: Path, knows_its_start: bool) -> None:
    # GIVEN a live process, and many files of dead ones
    alive = started(LIVE, "inside", "alive")
    for pid in range(1, 60):
        start_ticks = pid if knows_its_start else 0  # 0 from a process without /proc
        name = f"{2**22 + pid}-{start_ticks}.stagespan"
        (folder / name).write_bytes(b"\0" * 4096)
    (folder / "something else").write_text("stays")
    other = start("import stagespan, os\nwith stagespan.span('x'): pass\nos._exit(1)")
    other.communicate(timeout=60)
    names = {path.name for path in folder.iterdir()}
    assert len([name for name in names if name.endswith(".stagespan")]) == 16 + 2
    assert any(name.startswith(f"{alive.pid}-") for name in names)
    assert "something else" in names


def test_processes_of_another_container_are_recognised_by_their_lock(folder: Path) -> None:
    process = started_as_first(LIVE, "inside", "contained")
    (found,) = recordings_in(folder)
    assert (found.pid, found.state) == (1, "alive")
    other = start("import stagespan, os\nwith stagespan.span('x'): pass\nos._exit(1)")
    other.communicate(timeout=60)
    assert {one.state for one in recordings_in(folder)} == {"alive", "stopped"}
    end(process)
    until(lambda: recording.open(found.path).state == "died")


def test_recordings_are_kept_when_a_process_calls_exec(folder: Path) -> None:
    program = """
        import os, sys
        import stagespan
        left = int(sys.argv[1])
        with stagespan.span(f"program {left}"):
            pass
        if left:
            arguments = ["-c", sys.argv[2], str(left - 1), sys.argv[2]]
            os.execv(sys.executable, [sys.executable, *arguments])
        print("ready", flush=True)
        input()
    """
    process = started(program, "2", textwrap.dedent(program), STAGESPAN_RECORDING="keep")
    states = [(one.pid, one.state) for one in recordings_in(folder)]
    assert sorted(states) == [(process.pid, state) for state in ("alive", "stopped", "stopped")]
    assert stages_of(recording.open(process.pid)) == {"program 0"}
    end(process)
    found = recordings_in(folder)
    assert sorted(stages_of(one).pop() for one in found) == [f"program {left}" for left in range(3)]


def stages_of(one: recording.Recording) -> set[str]:
    """Return the stages that have run."""
    return {name for name, stage in one.stats().items() if stage.count}


def test_a_program_that_calls_exec_replaces_its_recording(folder: Path) -> None:
    process = started(LIVE, "calls_exec", "import time; print('ready', flush=True); time.sleep(60)")
    assert [(one.pid, one.state) for one in recordings_in(folder)] == [(process.pid, "died")]
    end(process)
    again = started(
        LIVE,
        "calls_exec_once",
        "before",
        textwrap.dedent("""
        import sys, time
        import stagespan
        with stagespan.span("after"):
            print("ready", flush=True)
            time.sleep(60)
    """),
    )
    found = recording.open(again.pid)
    assert found.state == "alive"
    assert [span["stage"] for span in found.open_spans()] == ["after"]
