"""STAGESPAN_STALL_S: a span that stays open is logged once, with the stack of its thread."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

BEGIN = """
    import asyncio, os, threading, time
    import stagespan

    def until_logged(path="stderr.txt", lines=1):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with open(path) as file:
                if len(file.readlines()) >= lines:
                    return
            time.sleep(0.05)
"""


def stderr_of(code: str, folder: Path, **variables: str) -> list[str]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(BEGIN) + textwrap.dedent(code))
    with (folder / "stderr.txt").open("w") as stderr:
        subprocess.run(
            [sys.executable, "script.py"],
            env={**os.environ, "STAGESPAN_STALL_S": "1", **variables},
            cwd=folder,
            stderr=stderr,
            timeout=120,
            check=True,
        )
    return (folder / "stderr.txt").read_text().splitlines()


def test_the_line_shows_the_span_and_its_code(tmp_path: Path) -> None:
    # GIVEN a request whose innermost stage does not return
    code = """
    def waits_for_another_rank():
        until_logged()

    with stagespan.request("r-7"), stagespan.span("denoise"), stagespan.span("all_reduce"):
        waits_for_another_rank()
    """
    (line,) = stderr_of(code, tmp_path)
    assert line.startswith("[Profiler] 'all_reduce' in 'denoise' has been open for ")
    assert " for request r-7 in thread MainThread: " in line
    stack = re.search(
        r"script\.py:\d+ until_logged < \S+script\.py:\d+ waits_for_another_rank"
        r" < \S+script\.py:\d+ <module>$",
        line,
    )
    assert stack is not None, line


def test_forked_children_are_watched_too(tmp_path: Path) -> None:
    # GIVEN a process that has recorded, and a child whose first stage does not return
    code = """
    def waits_for_its_parent():
        until_logged()

    with stagespan.span("load"):
        pass
    pid = os.fork()
    if pid == 0:
        with stagespan.span("serve"):
            waits_for_its_parent()
        os._exit(0)
    os.waitpid(pid, 0)
    """
    # WHEN the child is watched THEN the stack of its thread is known
    (line,) = stderr_of(code, tmp_path)
    assert line.startswith("[Profiler] 'serve' has been open for ")
    assert re.search(r"script\.py:\d+ until_logged < \S+script\.py:\d+ waits_for_its_parent", line)


def test_a_span_that_began_later_than_the_one_around_it(tmp_path: Path) -> None:
    # GIVEN a stage that has been open for longer than the one in it, which is stalled soon
    code = """
    with stagespan.span("denoise"):
        time.sleep(0.45)
        with stagespan.span("all_reduce"):
            until_logged()
    """
    (line,) = stderr_of(code, tmp_path)
    assert line.startswith("[Profiler] 'all_reduce' in 'denoise' has been open for 1.")


def test_names_from_outside_cannot_begin_a_line(tmp_path: Path) -> None:
    code = """
    def serve():
        with stagespan.request("r-8\\nforged"), stagespan.span("decode"):
            until_logged()

    thread = threading.Thread(target=serve, name="worker\\n1")
    thread.start()
    thread.join()
    """
    (line,) = stderr_of(code, tmp_path)
    assert r" for request r-8\nforged in thread worker\n1: " in line


def test_spans_that_end_in_time_are_not_logged(tmp_path: Path) -> None:
    code = """
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        with stagespan.span("step"):
            time.sleep(0.01)
    with open("longest_ns", "w") as file:
        file.write(str(stagespan.stats()["step"].max_ns))
    """
    lines = stderr_of(code, tmp_path)
    # If the machine paused the program for a second, a line is right.
    assert lines == [] or int((tmp_path / "longest_ns").read_text()) > 10**9


def test_many_stalled_threads_get_one_line_a_minute(tmp_path: Path) -> None:
    # GIVEN eight threads that are stalled for longer than several checks
    code = """
    def stands():
        with stagespan.span("stands"):
            until_logged()
            time.sleep(2)

    threads = [threading.Thread(target=stands) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join(100)
    """
    assert len(stderr_of(code, tmp_path)) == 1


def test_a_coroutine_that_waits_is_in_no_thread(tmp_path: Path) -> None:
    code = """
    @stagespan.span("waits")
    async def waits(event):
        await event.wait()

    async def main():
        event = asyncio.Event()
        task = asyncio.ensure_future(waits(event))
        await asyncio.get_running_loop().run_in_executor(None, until_logged)
        event.set()
        await task

    asyncio.run(main())
    """
    (line,) = stderr_of(code, tmp_path)
    assert line.startswith("[Profiler] 'waits' has been open for ")
    assert line.endswith("; no thread runs it at the moment")


def test_off_by_default(tmp_path: Path) -> None:
    code = """
    with stagespan.span("stands"):
        time.sleep(2)
    """
    assert stderr_of(code, tmp_path, STAGESPAN_STALL_S="") == []
