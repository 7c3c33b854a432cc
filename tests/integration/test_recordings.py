"""Recordings of processes that live, end, are killed or hang, or have no space for a file."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import gzip
import html.parser
import io
import json
import mmap
import os
import pty
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_process import (
    RING,
    command,
    command_here,
    copy_sparse,
    end,
    extents,
    ready,
    recordings_in,
    start,
)
from recording import eventually

import preloaded
from properties import examples
from stagespan import recording
from stagespan.errors import StagespanError
from stagespan.recording import dump

SEQUENCE = (1 << 40) - 1  # of an id: the rest distinguishes threads


# --- processes that are killed --------------------------------------------------------------------

WRITERS = """
    import mmap, sys, threading
    import stagespan

    file = open(sys.argv[1], "r+b")
    # One store writes a number, so the log is always whole. struct.pack_into writes zeros first.
    log = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def write(i):
        with stagespan.span(f"writer {i}"):  # so that the first ones are not compared
            pass
        n = 1
        log[3 * i + 1] = log[3 * i + 2] = n
        log[3 * i] = threading.get_native_id()
        while True:
            n += 1
            log[3 * i + 1] = n
            with stagespan.span(f"writer {i}"):
                pass
            log[3 * i + 2] = n

    with stagespan.request("the request"), stagespan.span("main"):
        for i in range(8):
            threading.Thread(target=write, args=(i,), daemon=True).start()
        print("ready", flush=True)
        threading.Event().wait()
"""


def test_a_killed_process_leaves_the_spans_that_had_ended(folder: Path, tmp_path: Path) -> None:
    chosen = random.Random(7)
    for _ in range(6):
        # GIVEN threads that write spans, and record separately which ones have ended
        path = tmp_path / "log"
        path.write_bytes(bytes(24 * 8))
        victim = start(WRITERS, str(path))
        ready(victim)
        # WHEN the process is killed at some moment
        time.sleep(chosen.random() * 0.2)
        end(victim)
        # THEN the recording says so, and is complete
        found = recording.open(victim.pid)
        assert found.state == "died"
        assert found.warnings() == []
        spans, counts = found.spans(), found.stats()
        open_spans = {span["thread"]: span for span in found.open_spans()}
        assert open_spans[victim.pid]["stage"] == "main"
        assert open_spans[victim.pid]["request"] == "the request"
        assert open_spans[victim.pid]["elapsed_ns"] is None
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as log:
            for i in range(8):
                thread, begun, ended = struct.unpack_from("qqq", log, 24 * i)
                if thread == 0:
                    continue
                name = f"writer {i}"
                # THEN the statistics have every span that had ended, and none that had not begun
                assert ended <= (counts[name].count if name in counts else 0) <= begun
                # THEN so does the ring, for the newest ones
                mine = spans[spans["thread"] == thread]
                assert len(mine) >= min(ended, RING) - 1
                if len(mine) == 0:  # killed before its first spans were recorded
                    continue
                names = {found.stage_names()[stage] for stage in mine["stage"].tolist()}
                assert names == {name}
                sequence = [number & SEQUENCE for number in mine["id"].tolist()]
                assert sequence == list(range(sequence[0], sequence[0] + len(mine)))
                assert ended <= sequence[-1] <= begun
                assert (mine["end_ns"] >= mine["begin_ns"]).all()
                assert (mine["begin_ns"][1:] >= mine["end_ns"][:-1]).all()
                if thread in open_spans:
                    assert open_spans[thread]["stage"] == name


ENDS = {
    "segmentation fault": "import faulthandler, ctypes; ctypes.string_at(0)",
    "abort": "os.abort()",
    "os._exit": "os._exit(3)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("way", list(ENDS))
def test_the_stages_of_a_dead_process_are_shown(way: str, folder: Path) -> None:
    # GIVEN a process in the middle of a stage
    program = f"""
        import os, signal, time
        import stagespan
        with stagespan.span("outer"):
            with stagespan.span("done"):
                pass
            with stagespan.span("inner"):
                print("ready", flush=True)
                {ENDS[way]}
    """
    # WHEN it dies
    process = start(program)
    process.communicate(timeout=60)
    assert process.returncode != 0
    # THEN its recording shows the stage
    found = recording.open(process.pid)
    assert found.state == "died"
    assert [span["stage"] for span in found.open_spans()] == ["outer", "inner"]
    assert {name: stage.count for name, stage in found.stats().items()} == {"done": 1}
    shown = command_here("recover", str(process.pid))
    assert shown.returncode == 0, shown.stderr
    assert "died without a clean exit" in shown.stdout
    assert "in inner (since" in shown.stdout


def test_tasks_that_take_turns_are_not_shown_inside_each_other(folder: Path) -> None:
    # GIVEN a process with two tasks that wait inside of their stages
    process = start(
        """
        import asyncio
        import stagespan
        async def serve():
            with stagespan.span("serve"):
                await asyncio.sleep(0)
                with stagespan.span("wait"):
                    await asyncio.sleep(60)
        async def main():
            tasks = [asyncio.create_task(serve()) for _ in range(2)]
            await asyncio.sleep(0.01)
            print("ready", flush=True)
            await tasks[0]
        asyncio.run(main())
        """
    )
    try:
        ready(process)
        # WHEN its stages are shown
        shown = command_here("recover", str(process.pid))
    finally:
        end(process)
    # THEN each stage is below the one that contains it
    lines = [line for line in shown.stdout.splitlines() if line.lstrip().startswith("in ")]
    assert [line.partition(" (")[0] for line in lines] == ["    in serve", "      in wait"] * 2


EATER = """
    import os, resource, sys, threading
    import stagespan

    working = threading.Event()
    def work():
        while True:
            with stagespan.span("work"):
                pass
            working.set()

    def limit_memory(how):
        if "/" in how:  # a control group
            with open(how, "w") as file:
                file.write(str(os.getpid()))
            return
        field = {"RLIMIT_AS": "VmSize:", "RLIMIT_DATA": "VmData:"}[how]
        lines = [line.split() for line in open("/proc/self/status")]
        (used_bytes,) = (int(line[1]) * 1024 for line in lines if line[0] == field)
        resource.setrlimit(getattr(resource, how), (used_bytes + (256 << 20),) * 2)

    threading.Thread(target=work, daemon=True).start()
    working.wait()
    with stagespan.request("large"), stagespan.span("serve"):
        for _ in range(100):
            with stagespan.span("step"):
                pass
        with stagespan.span("load"):
            limit_memory(sys.argv[1])
            kept = []
            try:
                for _ in range(256):
                    kept.append(bytes(range(256)) * (1 << 14))  # 4 MiB, in use
            except MemoryError:
                os.abort()  # as programs in C++ end
    os._exit(7)  # there was no limit
"""


def check_eater(process: subprocess.Popen[str]) -> None:
    """Compare the recording with what the program did."""
    found = recording.open(process.pid)
    assert found.state == "died"
    assert found.warnings() == []
    assert found.stats()["step"].count == 100
    main = [span for span in found.open_spans() if span["thread"] == process.pid]
    assert [(span["stage"], span["request"]) for span in main] == [
        ("serve", "large"),
        ("load", "large"),
    ]
    stage = found.stage_names().index("work")
    count = found.stats()["work"].count
    assert min(count, RING) - 1 <= (found.spans()["stage"] == stage).sum() <= RING


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_program_that_finds_no_memory_leaves_its_spans(limit: str, folder: Path) -> None:
    process = start(EATER, limit)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGABRT, errors
    check_eater(process)


def memory_group(limit_bytes: int) -> Path | None:
    """Create a control group with this memory limit; None if that is not possible."""
    for root, limit in (
        ("/sys/fs/cgroup", "memory.max"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ):
        if not Path(root, "cgroup.procs").exists():
            continue
        group = Path(root, f"stagespan-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                (group / limit).write_text(str(limit_bytes))
                return group
            except OSError:
                group.rmdir()
    return None


def test_a_process_that_is_killed_for_its_memory_leaves_its_spans(folder: Path) -> None:
    group = memory_group(256 << 20)
    if group is None:
        pytest.skip("cannot limit memory: run as root with control groups at /sys/fs/cgroup")
    try:
        process = start(EATER, str(group / "cgroup.procs"))
        _, errors = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()
    if process.returncode == 7:
        pytest.skip("the control group does not limit memory: enable its memory controller")
    assert process.returncode == -signal.SIGKILL, errors
    check_eater(process)


CLEAN = {
    "the end": "",
    "sys.exit": "sys.exit(3)",
    "an exception": "raise ValueError",
}


@pytest.mark.parametrize("way", list(CLEAN))
@pytest.mark.parametrize("keep", [False, True])
def test_after_a_clean_exit_the_file_is_there_if_it_was_asked_for(
    way: str, keep: bool, folder: Path
) -> None:
    program = f"""
        import sys
        import stagespan
        with stagespan.span("stage"):
            pass
        {CLEAN[way]}
    """
    process = start(program, STAGESPAN_RECORDING="keep" if keep else "on")
    process.communicate(timeout=60)
    files = list(folder.iterdir())
    assert len(files) == (1 if keep else 0)
    if keep:
        found = recording.open(files[0])
        assert found.state == "exited"
        assert found.end_ns is not None
        assert found.end_ns >= found.begin_ns
        assert found.stats()["stage"].count == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing_leave_no_file(
    method: str, folder: Path, tmp_path: Path
) -> None:
    # GIVEN workers that end without the interpreter's own exit
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, os
            import stagespan

            def work(_):
                with stagespan.span("work"):
                    return os.path.basename(stagespan._core.recording_place()["path"])

            if __name__ == "__main__":
                with stagespan.span("main"):
                    pass
                context = multiprocessing.get_context("{method}")
                worker = context.Process(target=work, args=(1,))
                worker.start()
                worker.join()
                with context.Pool(1) as pool:
                    print(pool.map(work, [1]))
                    pool.close()
                    pool.join()
            """
        )
    )
    # WHEN they and their parent end
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120
    )
    # THEN none of them looks as if it had died
    assert done.returncode == 0, done.stderr
    assert ".stagespan" in done.stdout
    assert list(folder.iterdir()) == []


def test_a_process_that_opens_no_span_makes_no_file(folder: Path) -> None:
    process = start(
        "import stagespan; print(list(__import__('os').scandir(__import__('sys').argv[1])))",
        str(folder),
    )
    out, errors = process.communicate(timeout=60)
    assert out.strip() == "[]", errors


SHORT_THREADS = """
    import threading
    import stagespan

    def work():
        for _ in range(20):
            with stagespan.span("work"):
                pass

    for _ in range(300):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    print("ready", flush=True)
    threading.Event().wait()
"""


def test_threads_that_end_share_a_few_rings(folder: Path) -> None:
    # GIVEN a program with 300 threads, one after the other
    program = start(SHORT_THREADS, STAGESPAN_RING_SPANS="8192")
    ready(program)
    # WHEN its file is measured
    size_bytes = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    found = recording.open(program.pid)
    spans, counts = found.spans(), found.stats()
    end(program)
    # THEN it has the rings of 32 threads that have ended and of one that runs, as the page of
    # documentation says
    assert size_bytes < (1.2 + 33 * 0.6) * 2**20
    # AND all spans are in it
    assert counts["work"].count == len(spans) == 300 * 20
    assert len(set(spans["thread"].tolist())) == 300


# --- processes that live --------------------------------------------------------------------------


def test_a_process_that_holds_the_interpreters_lock_is_read(folder: Path) -> None:
    # GIVEN a process that waits forever with Python's lock
    process = start("""
        import ctypes, time
        import stagespan
        with stagespan.span("request"):
            with stagespan.span("native call"):
                print("ready", flush=True)
                ctypes.PyDLL(None).pause()
    """)
    try:
        ready(process)
        time.sleep(0.6)
        # WHEN it is read from outside
        shown = command("ps", "--stalled", "0.5")
        # THEN it is found, with its stage
        assert shown.returncode == 1
        assert f"process {process.pid}" in shown.stdout
        assert "`native call`" in shown.stdout
        assert command_here("ps", "--stalled", "0.5", "--stage", "request").returncode == 1
        assert command_here("ps", "--stalled", "0.5", "--stage", "another").returncode == 0
        assert f"process {process.pid}" not in command_here("ps", "--stalled", "3600").stdout
        found = recording.open(process.pid)
        assert found.state == "alive"
        assert [span["stage"] for span in found.open_spans()] == ["request", "native call"]
    finally:
        end(process)


def test_threads_have_the_names_that_python_gave_them(folder: Path) -> None:
    # GIVEN threads with long names, one of which has ended, and one that Python did not start
    process = start("""
        import os, threading, time
        import stagespan

        def work(wait):
            with stagespan.span("work"):
                wait()

        ended = threading.Thread(target=work, args=(bool,), name="loader of the first shard")
        ended.start()
        ended.join()
        # Before Python 3.13, `join` returns before the system has ended the thread.
        while os.path.exists(f"/proc/self/task/{ended.native_id}"):
            time.sleep(0.001)
        working = threading.Event()
        def wait():
            working.set()
            time.sleep(60)
        threading.Thread(target=work, args=(wait,), name="\u00e9" * 100, daemon=True).start()
        working.wait()
        with stagespan.span("main"):
            print("ready", flush=True)
            time.sleep(60)
    """)
    try:
        ready(process)
        found = recording.open(process.pid)
        shown = command_here("recover", str(process.pid)).stdout
    finally:
        end(process)
    # THEN the recording has these names, and the longest is cut between two characters
    names = [thread["name"] for thread in found.threads()]
    assert names == ["loader of the first shard", "\u00e9" * 31, "MainThread"]
    by_stage = {span["stage"]: span["thread_name"] for span in found.open_spans()}
    assert by_stage == {"work": "\u00e9" * 31, "main": "MainThread"}
    assert "loader of the first shard, ended" in shown


def test_requests_have_the_ids_of_their_traces(folder: Path) -> None:
    # GIVEN a process with a request that belongs to a trace of a client, and one that does not
    process = start("""
        import time
        import stagespan
        header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        with stagespan.request("alone"), stagespan.span("first"):
            with stagespan.request("traced", traceparent=header), stagespan.span("second"):
                print("ready", flush=True)
                time.sleep(60)
    """)
    try:
        ready(process)
        found = recording.open(process.pid)
        shown = command_here("recover", str(process.pid)).stdout
        lines = command_here("dump", str(process.pid), "--format", "csv").stdout
        events = json.loads(command_here("dump", str(process.pid)).stdout)["traceEvents"]
    finally:
        end(process)
    # THEN everything that names the request has the id of its trace
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


RANK = """
    import os, sys, time
    import stagespan

    for step in range(int(sys.argv[1])):
        with stagespan.span("step"):
            with stagespan.span("forward"):
                pass
    with stagespan.span("step"):
        with stagespan.span(sys.argv[2]):
            print("ready", flush=True)
            time.sleep(60)
"""


def test_ranks_of_a_job_are_compared(folder: Path) -> None:
    # GIVEN four ranks, one of which is in another stage, one step behind, and stopped
    job = {"TORCHELASTIC_RUN_ID": "job-1", "WORLD_SIZE": "4"}
    places = [("17", "all_reduce"), ("17", "all_reduce"), ("17", "all_reduce"), ("16", "load")]
    processes = [start(RANK, *place, RANK=str(rank), **job) for rank, place in enumerate(places)]
    try:
        for process in processes:
            ready(process)
        processes[3].send_signal(signal.SIGSTOP)
        # WHEN they are compared
        shown = command("recover", "--job", "job-1")
        page = json.loads(command_here("ps", "--job", "job-1", "--json").stdout)
    finally:
        for process in processes:
            end(process)
    # THEN the output says which of them is behind, and where it is
    assert shown.returncode == 0, shown.stderr
    first = shown.stdout.splitlines()[0]
    assert first.startswith("rank 3 ")
    assert "`load`" in first
    assert page["counts"]["forward"] == {f"rank {i}": 17 if i < 3 else 16 for i in range(4)}
    assert page["counts"]["step"] == {f"rank {i}": 17 if i < 3 else 16 for i in range(4)}
    assert [rank["stage"] for rank in page["ranks"]] == ["all_reduce"] * 3 + ["load"]
    missing = command_here("recover", "--job", "job-2")
    assert missing.returncode == 2
    assert "the jobs are job-1" in missing.stderr


def test_the_rank_is_that_of_torch_distributed(folder: Path) -> None:
    pytest.importorskip("torch")
    # GIVEN a process whose rank is not in any variable
    process = start(
        """
        import os, time
        import torch.distributed as dist
        import stagespan
        with stagespan.span("before"):
            pass
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with stagespan.ProfilingContext("stage"):
            pass
        print(os.getpid(), flush=True)
        time.sleep(60)
    """,
        python=preloaded.python(),
    )
    pid = int(ready(process))
    try:
        # WHEN its service thread has run
        until = time.monotonic() + 20
        while recording.open(pid).rank is None and time.monotonic() < until:
            time.sleep(0.05)
        # THEN the recording has the rank
        found = recording.open(pid)
        assert (found.rank, found.world_size) == (0, 1)
    finally:
        os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=30)


def test_the_list_of_processes(folder: Path) -> None:
    # GIVEN one process that is alive, and one that was killed
    program = """
        import time
        import stagespan
        stagespan.set_pipeline_name("wan")
        with stagespan.span("serve"):
            print("ready", flush=True)
            while True:
                with stagespan.span("step"):
                    time.sleep(0.001)
    """
    alive, killed = start(program, RANK="2"), start(program)
    try:
        ready(alive), ready(killed)
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
        assert eventually(lambda: listed()[0]["spans_per_s"] > 0, 30)  # 0 while it gets no core
        assert {row["pid"]: row["state"] for row in everything} == {
            alive.pid: "alive",
            killed.pid: "died",
        }
        assert str(killed.pid) in page
        # THEN a running loop is not stalled, although its outer span has been open for longer
        opened_s = recording.open(alive.pid).open_spans()[0]["elapsed_ns"] / 1e9
        line = f"process {alive.pid}"
        stalled = ("ps", "--stalled", f"{opened_s}")
        assert eventually(lambda: line not in command_here(*stalled).stdout, 30)
    finally:
        end(alive)


def test_the_list_shows_when_a_killed_process_was_last_at_work(folder: Path) -> None:
    # GIVEN a process that ran spans for a while inside of another one, and was killed
    process = start(
        """
        import time
        import stagespan
        with stagespan.span("serve"):
            until_s = time.monotonic() + 0.5
            while time.monotonic() < until_s:
                with stagespan.span("request"):
                    time.sleep(0.01)
            print("ready", flush=True)
            time.sleep(60)
        """
    )
    try:
        ready(process)
    finally:
        end(process)
    # WHEN the processes are listed
    rows = json.loads(command_here("ps", "--all", "--json").stdout)["processes"]
    (row,) = (row for row in rows if row["pid"] == process.pid)
    # THEN the time is that of the last span, not of the one that is open
    assert row["state"] == "died"
    assert row["last_ns"] - row["begin_ns"] >= 0.49e9
    # AND it is not known if the spans are not read
    assert recording.open(process.pid, spans=False).last_ns is None


BUSY = """
    import threading, time
    import stagespan
    def work():
        while True:
            with stagespan.span("request"):
                with stagespan.span("decode"):
                    time.sleep(0.001)
    threading.Thread(target=work, daemon=True).start()
    with stagespan.span("main"):
        print("ready", flush=True)
        time.sleep(60)
"""


def test_the_live_page_in_a_terminal(folder: Path) -> None:
    # GIVEN a running process, and a terminal of 80 columns and 24 rows
    busy = start(BUSY)
    terminal, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}
    top = None
    try:
        ready(busy)
        top = subprocess.Popen(
            [sys.executable, "-m", "stagespan", "top", str(busy.pid), "--interval", "0.2"],
            stdin=other_end,
            stdout=other_end,
            stderr=subprocess.PIPE,
            env=environment,
        )
        # WHEN the page is shown, and keys are pressed
        seen = shown_by(terminal, "decode", "main", "runs/s")
        assert "Traceback" not in seen
        os.write(terminal, b"f")
        shown_by(terminal, "frozen")
        os.write(terminal, b"f/dec")
        shown_by(terminal, "/dec_")
        os.write(terminal, "\x1b/去噪".encode())
        shown_by(terminal, "/去噪_")
        os.write(terminal, b"\rsq")
        # THEN it ends at once
        assert top.wait(timeout=20) == 0
    finally:
        end(busy)
        os.close(terminal)
        os.close(other_end)
        if top is not None:
            top.kill()
            top.communicate(timeout=20)


def shown_by(terminal: int, *words: str) -> str:
    """Read a terminal until all words have been shown."""
    seen = ""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536).decode("utf-8", "replace")
        if all(word in seen for word in words):
            return seen
    pytest.fail(f"not all of {words} were shown: {seen[-2000:]}")


def test_the_live_page_is_printed_once(folder: Path) -> None:
    busy = start(BUSY)
    try:
        ready(busy)

        def lines_of_top() -> list[str]:
            shown = command_here("top", str(busy.pid), "--once", "--interval", "0.3")
            assert shown.returncode == 0, shown.stderr
            return shown.stdout.splitlines()

        def runs_per_s(lines: list[str]) -> float:
            (decode,) = (line.split() for line in lines if line.startswith(" decode "))
            return float(decode[1].replace(",", ""))

        lines = lines_of_top()
        assert lines[0].startswith(f"{busy.pid} python -c, alive")
        assert eventually(lambda: runs_per_s(lines_of_top()) > 0, 30)  # 0 while it gets no core
        assert any("main" in line and str(busy.pid) in line for line in lines[1:])
        none = command_here("top", "--job", "no such job", "--once")
        assert none.returncode == 2
        assert "no recording of the job" in none.stderr
    finally:
        end(busy)


def test_long_names_do_not_hide_figures(folder: Path) -> None:
    # GIVEN stages and a thread whose names are longer than a terminal is wide
    process = start(
        """
        import threading, time
        import stagespan
        has_run = threading.Event()
        def work():
            while True:
                with stagespan.span("inner " * 20):
                    time.sleep(0.001)
                has_run.set()
        threading.Thread(target=work, name="worker " * 9, daemon=True).start()
        with stagespan.span("first " * 20), stagespan.span("second " * 20):
            has_run.wait()
            print("ready", flush=True)
            time.sleep(60)
    """,
        RANK="0",
        TORCHELASTIC_RUN_ID="a job with a name of many characters",
    )
    try:
        ready(process)
        pages = [
            subprocess.run(
                [sys.executable, "-m", "stagespan", *arguments],
                env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
                capture_output=True,
                text=True,
                timeout=60,
            ).stdout
            for arguments in (
                ("top", str(process.pid), "--once"),
                ("ps",),
                ("ps", "--job", "a job with a name of many characters"),
            )
        ]
    finally:
        end(process)
    # THEN no line is longer than the terminal, and only names are cut
    top, processes, of_job = pages
    assert max(len(line) for page in (top, of_job) for line in page.splitlines()) <= 80
    (row,) = (line for line in top.splitlines() if line.lstrip().startswith("inner"))
    assert re.fullmatch(r" inner.*… +[\d,.]+ +[\d,]+(?: +[\d.,]+ \w+)* +\d+%", row), row
    (row,) = (line for line in processes.splitlines() if line.startswith(f" {process.pid} "))
    assert len(row) <= 80
    assert re.match(rf" {process.pid} +alive ", row)
    assert re.search(rf"^ 0 +{process.pid} +alive ", of_job, re.MULTILINE)
    # THEN the innermost of the open stages is shown
    assert "… > second" in top


def test_forks_while_threads_write(folder: Path) -> None:
    # GIVEN a process that forks while its threads write
    process = start("""
        import os, threading
        import stagespan
        from stagespan import _core

        over = threading.Event()
        def write():
            while not over.is_set():
                with stagespan.span("parent"):
                    pass
        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        for i in range(20):
            child = os.fork()
            if child == 0:
                for _ in range(i):
                    with stagespan.span("child"):
                        pass
                found = {name: stage.count for name, stage in stagespan.stats().items()}
                os._exit(0 if found == ({"child": i} if i else {}) else 1)
            assert os.waitpid(child, 0)[1] == 0
        over.set()
        for thread in threads:
            thread.join()
        print(stagespan.stats()["parent"].count, flush=True)
        os._exit(0)
    """)
    # WHEN all of them have died
    own = int(ready(process))
    process.communicate(timeout=30)
    # THEN each recording has the spans of its own process
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
    alive = start("""
        import stagespan, time
        with stagespan.span("alive"):
            print("ready", flush=True)
            time.sleep(60)
    """)
    try:
        ready(alive)
        for pid in range(1, 60):
            start_ticks = pid if knows_its_start else 0  # 0 from a process without /proc
            name = f"{2**22 + pid}-{start_ticks}.stagespan"
            (folder / name).write_bytes(b"\0" * 4096)
        (folder / "something else").write_text("stays")
        # WHEN another process begins to record
        other = start("import stagespan, os\nwith stagespan.span('x'): pass\nos._exit(1)")
        other.communicate(timeout=60)
        # THEN the newest are left, and so are files that are not leftovers
        names = {path.name for path in folder.iterdir()}
        assert len([name for name in names if name.endswith(".stagespan")]) == 16 + 2
        assert any(name.startswith(f"{alive.pid}-") for name in names)
        assert "something else" in names
    finally:
        end(alive)


def test_processes_of_another_container_are_recognised_by_their_lock(folder: Path) -> None:
    # GIVEN a process in its own pid namespace, where its pid is that of another process here
    program = """
        import os, sys, time
        import stagespan
        with stagespan.span("contained"):
            print(os.getpid(), flush=True)
            time.sleep(60)
    """
    inside = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c"]
    try:
        process = subprocess.Popen(
            [*inside, textwrap.dedent(program)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("unshare (util-linux) is not installed")
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        _, errors = process.communicate(timeout=30)
        pytest.skip(f"cannot create a namespace: run as root ({errors.strip()})")
    try:
        assert line == "1"
        (found,) = recordings_in(folder)
        # THEN it counts as alive while it lives, whichever process has that pid here
        assert (found.pid, found.state) == (1, "alive")
        other = start("import stagespan, os\nwith stagespan.span('x'): pass\nos._exit(1)")
        other.communicate(timeout=60)
        assert {one.state for one in recordings_in(folder)} == {"alive", "stopped"}
    finally:
        end(process)
    # THEN as dead afterwards
    until = time.monotonic() + 20
    while recording.open(found.path).state == "alive" and time.monotonic() < until:
        time.sleep(0.05)
    assert recording.open(found.path).state == "died"


def test_a_program_that_calls_exec_replaces_its_recording(folder: Path) -> None:
    # GIVEN a program that records, and then executes another one with the same pid
    process = start(
        """
        import os, sys
        import stagespan
        with stagespan.span("before"):
            if len(sys.argv) > 1:
                os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
    """,
        "import time; print('ready', flush=True); time.sleep(60)",
    )
    try:
        ready(process)
        # THEN its earlier recording is that of a dead program
        assert [(one.pid, one.state) for one in recordings_in(folder)] == [(process.pid, "died")]
    finally:
        end(process)
    again = start(
        """
        import os, sys
        import stagespan
        with stagespan.span(sys.argv[1]):
            if sys.argv[1] == "before":
                os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], "after", ""])
            print("ready", flush=True)
            __import__("time").sleep(60)
    """,
        "before",
        textwrap.dedent("""
        import sys, time
        import stagespan
        with stagespan.span("after"):
            print("ready", flush=True)
            time.sleep(60)
    """),
    )
    try:
        ready(again)
        found = recording.open(again.pid)
        assert found.state == "alive"
        assert [span["stage"] for span in found.open_spans()] == ["after"]
    finally:
        end(again)


# --- where there is no file -----------------------------------------------------------------------

PLACE = """
    import json, logging, sys, time
    logging.basicConfig()
    import stagespan
    from stagespan import _core
    with stagespan.span("outer"):
        for _ in range(50):
            with stagespan.span("inner"):
                pass
        place = _core.recording_place()
        print(json.dumps({**place, "count": stagespan.stats()["inner"].count}), flush=True)
        time.sleep(float(sys.argv[1]))
"""


def test_a_folder_on_a_disk_is_refused_and_the_memory_is_read_instead(tmp_path: Path) -> None:
    if os.statvfs(tmp_path).f_fsid == os.statvfs("/dev/shm").f_fsid:
        pytest.skip("the temporary folder is on a tmpfs: pass --basetemp with a folder on a disk")
    process = start(PLACE, "60", STAGESPAN_RECORDING_DIR=str(tmp_path))
    try:
        place = json.loads(ready(process))
        if "is not on a tmpfs" not in place["why"]:
            pytest.skip(f"pass --basetemp with a folder on a disk: {place['why']}")
        # THEN it records in memory that can be read while it is alive
        assert place["kind"] == "memfd"
        assert place["count"] == 50
        assert list(tmp_path.iterdir()) == []
        found = recording.open(process.pid)
        assert found.state == "alive"
        assert found.stats()["inner"].count == 50
        assert process.pid in {one.pid for one in recording.recordings()}
    finally:
        end(process)
    assert process.stderr is not None
    with pytest.raises(StagespanError, match="no process"):
        recording.open(process.pid)


def test_an_unusable_folder_gives_a_warning(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(folder)
    (folder / "file").write_text("")
    for name, words in (
        ("link", "links are not followed"),
        ("file", "is not a folder"),
        ("no/folder", "cannot be made"),
    ):
        process = start(PLACE, "0", STAGESPAN_RECORDING_DIR=str(folder / name))
        out, errors = process.communicate(timeout=60)
        assert json.loads(out)["kind"] == "memfd"
        assert json.loads(out)["count"] == 50
        assert words in errors, errors
        assert errors.count("STAGESPAN_RECORDING_DIR=") == 1


def test_the_name_of_the_folder_need_not_be_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a process whose recordings are in a folder with a byte that is not UTF-8
    inside = os.fsdecode(os.fsencode(folder) + b"/\xff")
    monkeypatch.setenv("STAGESPAN_RECORDING_DIR", inside)
    process = start(PLACE, "60")
    try:
        assert json.loads(ready(process))["kind"] == "file"
        # THEN they can be read and listed
        assert recording.open(process.pid).stats()["inner"].count == 50
        (found,) = (one for one in recording.recordings() if one.pid == process.pid)
        assert os.path.dirname(found.path) == inside
        assert f" {process.pid} " in command_here("ps").stdout
        for verb in (("ps",), ("recover", str(process.pid))):
            shown = command_here(*verb, "--json")
            assert shown.returncode == 0, shown.stderr
            assert r"\\udcff" in shown.stdout
    finally:
        end(process)


def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("cannot give a folder to another user: run as root")
    os.chown(folder, 12345, 12345)
    process = start(PLACE, "0")
    out, errors = process.communicate(timeout=60)
    assert json.loads(out)["kind"] == "memfd"
    assert "belongs to the user with the id 12345" in errors


def test_off_means_that_nothing_can_be_read(folder: Path) -> None:
    process = start(PLACE, "60", STAGESPAN_RECORDING="off")
    try:
        place = json.loads(ready(process))
        assert place["kind"] == "off"
        assert place["count"] == 50
        assert list(folder.iterdir()) == []
        with pytest.raises(StagespanError, match="STAGESPAN_RECORDING=off"):
            recording.open(process.pid)
    finally:
        end(process)


def test_a_full_tmpfs_loses_no_statistics_in_the_process(tmp_path: Path) -> None:
    # GIVEN a tmpfs of 4 MB
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: run as root ({mounted.stderr.strip()})")
    try:
        # WHEN more threads record in it than it has space for
        process = start(
            """
            import json, os, threading
            import stagespan
            from stagespan import _core
            gate = threading.Barrier(60)
            def work():
                gate.wait()
                for _ in range(500):
                    with stagespan.span("work"):
                        pass
                gate.wait()
            threads = [threading.Thread(target=work) for _ in range(60)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            place = _core.recording_place()
            print(json.dumps({**place, "count": stagespan.stats()["work"].count}), flush=True)
            os._exit(0)
            """,
            STAGESPAN_RECORDING_DIR=str(tmp_path),
            STAGESPAN_RING_SPANS="4096",
        )
        place = json.loads(ready(process))
        process.communicate(timeout=60)
        assert process.returncode == 0
        # THEN the process has all figures, and the file says that it does not
        assert place["kind"] == "file"
        assert place["count"] == 60 * 500
        assert place["refused_bytes"] > 0
        (path,) = tmp_path.glob("*.stagespan")
        found = recording.open(path)
        assert any("because the tmpfs was full" in warning for warning in found.warnings())
        assert 0 < len(found.spans()) < 60 * 500
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=False)


# --- files that are not as they should be ---------------------------------------------------------


@pytest.fixture(scope="module")
def real_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small recording of a real process."""
    folder = Path(tempfile.mkdtemp(prefix="stagespan-test-", dir="/dev/shm"))
    program = """
        import os
        import stagespan
        for _ in range(20):
            with stagespan.request("r"), stagespan.span("stage") as s:
                s.add(tokens=3)
        token = stagespan.begin("token")
        span = stagespan.span("open")
        span.__enter__()
        print(stagespan._core.recording_place()["path"], flush=True)
        os._exit(0)
    """
    process = start(program, STAGESPAN_RECORDING_DIR=str(folder), STAGESPAN_RING_SPANS="64")
    path = Path(ready(process))
    process.communicate(timeout=60)
    kept = tmp_path_factory.mktemp("real") / "real.stagespan"
    copy_sparse(path, kept)
    shutil.rmtree(folder)
    return kept


def read_all(path: Path) -> None:
    found = recording.open(path)
    found.spans(), found.open_spans(), found.requests(), found.threads(), found.lost()
    str(found.stats())
    found.warnings()
    command_pages(found)


def command_pages(found: recording.Recording) -> None:
    from stagespan.recording import html_page, summary

    summary.as_dict(found)
    html_page.page(found)
    for write in dump.FORMATS.values():
        write(found)


@settings(max_examples=examples(60))
@given(
    changes=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 30_000), st.integers(0, 1 << 21)),
            st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8), st.just(bytes(8))),
        ),
        min_size=1,
        max_size=6,
    ),
    length_bytes=st.one_of(st.none(), st.integers(0, 9_000_000)),
)
def test_a_damaged_file_is_read_or_refused_in_a_sentence(
    real_file: Path, changes: list[tuple[int, bytes]], length_bytes: int | None
) -> None:
    with tempfile.NamedTemporaryFile(suffix=".stagespan") as file:
        path = Path(file.name)
        copy_sparse(real_file, path)
        with path.open("r+b") as open_file:
            parts = extents(open_file.fileno())
            for offset, value in changes:
                # Only parts that are not holes.
                at = offset % sum(length for _, length in parts)
                for begin, length in parts:
                    if at < length:
                        os.pwrite(open_file.fileno(), value, begin + at)
                        break
                    at -= length
            if length_bytes is not None:
                open_file.truncate(length_bytes)
        with contextlib.suppress(StagespanError):
            read_all(path)


def test_what_is_not_a_recording_is_named(tmp_path: Path, real_file: Path) -> None:
    empty, text, link, pipe = (tmp_path / name for name in ("empty", "text", "link", "pipe"))
    empty.write_bytes(b"")
    text.write_text("x" * 100_000)
    link.symlink_to(real_file)
    os.mkfifo(pipe)
    with real_file.open("rb") as file:
        other = file.read(1 << 16)
    version, order = tmp_path / "version", tmp_path / "order"
    version.write_bytes(other[:8] + struct.pack("<I", 77) + other[12:])
    order.write_bytes(other[:8][::-1] + other[8:])
    for path, words in (
        (empty, "is empty"),
        (text, "is not a recording of stagespan"),
        (link, "is a link"),
        (pipe, "is not a file"),
        (tmp_path, "is not a file"),
        (tmp_path / "missing", "There is no file"),
        (version, "layout 77"),
        (order, "other byte order"),
    ):
        with pytest.raises(StagespanError, match=words):
            recording.open(path)
        shown = command_here("recover", str(path))
        assert shown.returncode == 2
        assert words in shown.stderr
        assert "Traceback" not in shown.stderr
    with pytest.raises(StagespanError, match="There is no process"):
        recording.open(2**22 + 5)


# --- other formats --------------------------------------------------------------------------------


def test_dumps_have_every_span(real_file: Path, tmp_path: Path) -> None:
    found = recording.open(real_file)
    total = len(found.spans()) + len(found.open_spans())
    # WHEN it is written for Perfetto
    done = command("dump", str(real_file), "-o", str(tmp_path / "trace.json"))
    assert done.returncode == 0, done.stderr
    trace = json.loads((tmp_path / "trace.json").read_text())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    # THEN there is a slice for each span, and every required number is a number
    assert len(slices) == total == 22
    assert {event["name"] for event in slices} == {"stage", "open", "token"}
    for event in slices:
        assert event["dur"] >= 0
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
    assert sum(event["args"].get("open", False) for event in slices) == 2
    # AND a name that ends with .gz gives a compressed file
    packed = tmp_path / "trace.json.gz"
    assert command_here("dump", str(real_file), "-o", str(packed)).returncode == 0
    # (with other times, because each process measures the distance of its clocks)
    unpacked = json.loads(gzip.decompress(packed.read_bytes()))["traceEvents"]
    unpacked_slices = [event for event in unpacked if event["ph"] == "X"]
    assert [event["args"] for event in unpacked_slices] == [event["args"] for event in slices]
    # THEN tables and JSON have as many rows
    table = list(
        csv.DictReader(io.StringIO(command_here("dump", str(real_file), "--format", "csv").stdout))
    )
    assert len(table) == total
    assert table[0]["stage"] == "stage"
    assert table[0]["request"] == "r"
    page = json.loads(command_here("dump", str(real_file), "--format", "json").stdout)
    assert len(page["spans"]) == total
    assert page["stages"]["stage"]["count"] == 20
    assert page["stages"]["stage"]["work"] == {"tokens": 60}
    # THEN traces can be read by this package too
    from stagespan.trace import read_trace

    assert len(read_trace(tmp_path / "trace.json").events.begin_ns) == total


def test_parquet_has_every_span_with_its_types(real_file: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    # WHEN one copy of a recording is written as Parquet and as CSV
    copy = recording.open(real_file)
    table = parquet.read_table(io.BytesIO(dump.as_parquet(copy)))
    # THEN both have the same rows and columns, and unknown values are null
    found = table.to_pylist()
    as_text = [{k: "" if v is None else str(v) for k, v in row.items()} for row in found]
    assert as_text == list(csv.DictReader(io.StringIO(dump.as_csv(copy))))
    assert sum(row["end_ns"] is None for row in found) == 2
    assert all(isinstance(row["begin_ns"], int) for row in found)
    # THEN it says which process the spans are from
    assert json.loads(table.schema.metadata[b"stagespan"])["state"] == "died"
    # THEN the command writes such a file
    file = tmp_path / "spans.parquet"
    done = command_here("dump", str(real_file), "--format", "parquet", "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert parquet.read_table(file).num_rows == table.num_rows == 22


def test_parquet_without_pyarrow_says_what_to_install(real_file: Path, tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['pyarrow'] = None; from stagespan.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "dump", str(real_file), "--format", "parquet"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "pip install pyarrow" in done.stderr
    assert "Traceback" not in done.stderr


class _Parsed(html.parser.HTMLParser):
    """The open elements of a page, and all attributes that refer to other resources."""

    VOID = frozenset(("meta", "br", "link", "img"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.bars = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.bars += tag == "rect"
        self.links += [value or "" for name, value in attributes if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_recording_as_one_page(real_file: Path, tmp_path: Path) -> None:
    # WHEN a recording is written as a page
    page = tmp_path / "page.html"
    done = command("report", str(real_file), "--html", str(page))
    assert done.returncode == 0, done.stderr
    # THEN the page is complete and self-contained, and has a bar for each span
    parsed = _Parsed()
    parsed.feed(page.read_text())
    assert parsed.open == []
    assert parsed.links == []
    assert parsed.bars == 22
    for words in ("died without a clean exit", "stage", "open", "token"):
        assert words in page.read_text()
    refused = command_here("report", str(page), "--html", "-")
    assert refused.returncode == 2
    assert "is not a recording" in refused.stderr


def test_the_page_of_a_long_chain_of_stages(folder: Path, tmp_path: Path) -> None:
    # GIVEN a process whose stages were nested deeper than Python's limit for recursion
    process = start(
        """
        import os
        import stagespan
        spans = [stagespan.span(f"stage {depth}") for depth in range(1500)]
        for span in spans:
            span.__enter__()
        for span in reversed(spans):
            span.__exit__(None, None, None)
        print(stagespan._core.recording_place()["path"], flush=True)
        os._exit(0)
        """
    )
    path = Path(ready(process))
    process.communicate(timeout=60)
    page = tmp_path / "page.html"
    # WHEN its recording is written as a page
    done = command_here("report", str(path), "--html", str(page))
    # THEN the page lists all of them
    assert done.returncode == 0, done.stderr
    rows = page.read_text().partition("<h2>Stages</h2>")[2].partition("</table>")[0]
    assert re.findall(r"<tr><td class=text>(?:&nbsp;)*(.*?)</td>", rows) == [
        f"stage {depth}" for depth in range(1500)
    ]


def test_the_page_of_a_process_in_its_first_stage(folder: Path, tmp_path: Path) -> None:
    # GIVEN a process whose outermost stage has not ended yet
    process = start(
        """
        import time
        import stagespan
        with stagespan.span("whole program"):
            for name in ("load", "serve"):
                with stagespan.span(name):
                    with stagespan.span(f"inside {name}"):
                        pass
            print("ready", flush=True)
            time.sleep(60)
        """
    )
    page = tmp_path / "page.html"
    try:
        ready(process)
        # WHEN its recording is written as a page
        done = command_here("report", str(process.pid), "--html", str(page))
    finally:
        end(process)
    # THEN the page has a row for each stage that has ended, with the inner ones below the others
    assert done.returncode == 0, done.stderr
    rows = page.read_text().partition("<h2>Stages</h2>")[2].partition("</table>")[0]
    names = re.findall(r"<tr><td class=text>(.*?)</td>", rows)
    indent = "&nbsp;" * 4
    assert sorted(names) == [f"{indent}inside load", f"{indent}inside serve", "load", "serve"]
    for name in ("load", "serve"):
        assert names.index(f"{indent}inside {name}") == names.index(name) + 1
