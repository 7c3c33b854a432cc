"""Another program truncates the file of a recording while the process runs."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from recording import in_child

from running import ran

START = """
    import asyncio, contextlib, os, signal, sys, threading
    import stagespan as s
    from stagespan import _core

    with s.span("before"):
        pass
    place = _core.recording_place()
    if place["kind"] != "file":
        print("no file")
        sys.exit()
    path = place["path"]

    def cut(size):
        os.truncate(path, size)

    def use():
        # All kinds of spans, requests and readers.
        for i in range(3000):
            with s.span("with"), s.ProfilingContext("context"):
                pass
        @s.span("decorated")
        def decorated(depth):
            return depth and decorated(depth - 1)
        decorated(50)
        def generate():
            with s.request(), s.span("generator"):
                yield 1
                yield 2
        for value in generate():
            pass
        held = [generate() for _ in range(10)]
        for one in held:
            next(one)
        @s.span("coroutine")
        async def job():
            with s.request(), s.span("task"):
                await asyncio.sleep(0)
        async def main():
            await asyncio.gather(*(job() for _ in range(100)))
        thread = threading.Thread(target=asyncio.run, args=(main(),))
        thread.start()
        thread.join()
        del held
        s.end(s.begin("token"))
        s.record("record", 10**18, 10**18 + 5)
        for _ in range(20):
            thread = threading.Thread(target=lambda: decorated(5))
            thread.start()
            thread.join()
        s.stats(), s.spans(), s.open_spans(), s.lost(), s.flush()
"""


def run(code: str, tmp_path: Path, *, start: str = START) -> list[str]:
    """Run a program after the common start; skip the test if it has no file."""
    lines = in_child(textwrap.dedent(start) + textwrap.dedent(code), tmp_path)
    if lines == ["no file"]:
        pytest.skip("recordings are not in a file on this machine")
    return lines


@pytest.mark.parametrize("size", [0, 1, 4096, 100_000, 1_000_000])
def test_a_program_continues(size: int, tmp_path: Path) -> None:
    found = run(
        f"""
        cut({size})
        use()
        print(s.is_enabled(), _core.recording_place()["kind"])
        print(_core.recording_place()["why"])
        """,
        tmp_path,
    )
    enabled, kind = found[0].split()
    assert enabled == "False"
    assert kind == "memory"
    assert "truncated" in found[1]
    assert "STAGESPAN_RECORDING=memfd" in found[1]


def test_in_the_middle_of_spans_tasks_and_requests(tmp_path: Path) -> None:
    found = run(
        """
        @s.span("around")
        def around():
            with contextlib.ExitStack() as stack:
                for i in range(40):
                    stack.enter_context(s.span(f"level {i}"))
                    stack.enter_context(s.request(f"level {i}"))
                cut(0)
                use()
            use()

        async def waits(event):
            async with s.request("task") as own:
                with s.span("waits"), s.ProfilingContext("waits in a context"):
                    await event.wait()
                    use_little()
                    assert s.current_request() is own

        def use_little():
            with s.span("little"):
                pass

        @s.span("decorated")
        async def decorated(event):
            with s.span("inside"):
                await event.wait()
                with s.span("inside later"):
                    await asyncio.sleep(0)

        def generate():
            with s.span("generator"):
                yield 1
                yield 2

        async def main():
            event = asyncio.Event()
            tasks = [
                asyncio.create_task(work(event)) for _ in range(200) for work in (waits, decorated)
            ]
            await asyncio.sleep(0.01)
            around()
            event.set()
            await asyncio.gather(*tasks)
            assert s.current_request() is None

        held = [generate() for _ in range(5)]
        for one in held:
            next(one)
        token = s.begin("token")
        asyncio.run(main())
        del held
        s.end(token)
        use()
        print("survived", s.current_request())
        """,
        tmp_path,
    )
    assert found == ["survived None"]


def test_while_threads_record(tmp_path: Path) -> None:
    found = run(
        """
        stop = threading.Event()
        counts = []

        def work():
            done = 0
            while not stop.is_set():
                with s.span("outer"):
                    for _ in range(10):
                        with s.span("inner"):
                            done += 1
            counts.append(done)

        sys.setswitchinterval(1e-4)
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        cut(0)
        for _ in range(200):
            with s.span("main"):
                pass
            s.stats()
        stop.set()
        for thread in threads:
            thread.join()
        print(len(counts))
        """,
        tmp_path,
    )
    assert found == ["6"]


def test_a_forked_child_records(tmp_path: Path) -> None:
    found = run(
        """
        cut(0)
        with s.span("after"):
            pass
        child = os.fork()
        if child == 0:
            for _ in range(7):
                with s.span("in the child"):
                    pass
            place = _core.recording_place()
            print(s.is_enabled(), place["kind"], s.stats()["in the child"].count, flush=True)
            os.truncate(place["path"], 0)
            use()
            print(s.is_enabled(), flush=True)
            os._exit(0)
        print(os.waitpid(child, 0)[1], s.is_enabled())
        """,
        tmp_path,
    )
    assert found == ["True file 7", "False", "0 False"]


HANDLED = """
    import ctypes, faulthandler, mmap, os, signal, sys
    {before}
    import stagespan as s
    with s.span("before"):
        pass
    print(signal.getsignal(signal.SIGBUS) is signal.SIG_DFL, flush=True)
    {then}
"""
ELSEWHERE = """
    with open("file", "wb+") as file:
        file.truncate(4096)
        pages = mmap.mmap(file.fileno(), 4096)
        file.truncate(0)
    pages[0]
"""


@pytest.mark.parametrize(
    ("then", "returncode"),
    [
        (ELSEWHERE, -7),
        ("os.kill(os.getpid(), signal.SIGBUS)", -7),
        ("signal.raise_signal(signal.SIGBUS)", -7),
        ("signal.signal(signal.SIGBUS, signal.SIG_IGN); os.kill(os.getpid(), signal.SIGBUS)", 0),
    ],
)
@pytest.mark.parametrize("before", ["", "faulthandler.enable()"])
def test_other_faults_have_their_usual_effect(
    then: str, returncode: int, before: str, tmp_path: Path
) -> None:
    code = HANDLED.format(before=before, then=textwrap.dedent(then).replace("\n", "\n    "))
    done = ran([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (returncode, "True\n"), done.stderr
    assert ("Bus error" in done.stderr) == bool(before and returncode)


def test_a_handler_that_was_there_before_still_survives(tmp_path: Path) -> None:
    enabled = "import faulthandler\nfaulthandler.enable()\n"
    code = "cut(0)\nuse()\nprint('survived')"
    assert run(code, tmp_path, start=enabled + textwrap.dedent(START)) == ["survived"]


def test_a_memfd_cannot_be_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESPAN_RECORDING", "memfd")
    found = in_child(
        """
        import os, pathlib
        import stagespan as s
        from stagespan import _core, recording
        with s.span("a"):
            pass
        place = _core.recording_place()
        print(place["kind"], place["path"], place["why"])
        links = list(pathlib.Path("/proc/self/fd").iterdir())
        (link,) = [one for one in links if one.exists() or one.is_symlink()
                   if "memfd:stagespan" in os.readlink(one)]
        try:
            os.truncate(link, 0)
        except PermissionError:
            print("refused")
        with s.span("a"):
            pass
        print(recording.open(os.getpid()).stats()["a"].count)
        """,
        tmp_path,
    )
    assert found == ["memfd None None", "refused", "2"]
