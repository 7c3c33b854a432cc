"""Forks and worker processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recording import count, in_child, lost, python

from stagespan import ProfilingContext, _core, begin, end, span

# From 3.12 on, Python itself warns about forks with threads.
FORK_WARNING = ("-W", "ignore::DeprecationWarning")

pytestmark = pytest.mark.usefixtures("fresh")


# --- fork -----------------------------------------------------------------------------------------


def test_a_child_records_its_own(tmp_path: Path) -> None:
    # GIVEN a program that forks inside spans, tokens, generators and requests
    lines = in_child(
        """
        import os, stagespan
        from stagespan import ProfilingContext, begin, end, request, span, _core

        def show(who):
            for name, stage in sorted(_core.snapshot().stages().items()):
                print(who, name, stage.count, *sorted(map(str, stage.parents)))
            lost = {cause: n for cause, n in _core.lost().items() if n}
            opened = [one["stage"] for one in _core.open_spans()]
            print(who, "ends with", lost, opened, len(stagespan.spans()), flush=True)

        @span("generator")
        def generate():
            with span("in generator"):
                yield 1
            yield 2

        @span("function")
        def function():
            return os.fork()

        token, generator, reused = begin("token"), generate(), span("reused")
        next(generator)
        with span("before"):
            pass
        with request("r"), reused, ProfilingContext("profiling"), span("outer"):
            pid = function()
            if pid == 0:
                show("new child")
                with span("child's"), reused:
                    pass
        end(token)
        list(generator)
        del token, generator
        with reused:
            pass
        if pid == 0:
            show("child")
            os._exit(0)
        os.waitpid(pid, 0)
        show("parent")
        """,
        tmp_path,
    )
    # THEN the child starts empty, and neither process sees anything of the other
    assert lines == [
        "new child ends with {} [] 0",
        "child child's 1 None",
        "child reused 2 None child's",
        "child ends with {} [] 3",
        "parent before 1 None",
        "parent function 1 outer",
        "parent generator 1 None",
        "parent in generator 1 generator",
        "parent outer 1 profiling",
        "parent profiling 1 reused",
        "parent reused 2 None",
        "parent token 1 None",
        "parent ends with {} [] 9",
    ]


def test_forks_here_leave_this_process_as_it_was() -> None:
    token = begin("token")
    with span("outer"), ProfilingContext("inner"):
        pid = os.fork()
        if pid == 0:
            os._exit(len(_core.open_spans()) + len(_core.spans()))
        _, status = os.waitpid(pid, 0)
    end(token)

    assert os.waitstatus_to_exitcode(status) == 0
    assert (count("outer"), count("inner"), count("token")) == (1, 1, 1)
    assert lost() == {}


def test_forks_while_threads_time_and_read(tmp_path: Path) -> None:
    # GIVEN threads that open spans, create stages, start, end and read, while others fork
    lines = in_child(
        """
        import os, threading, time, stagespan
        from stagespan import ProfilingContext, span, _core

        stagespan.spans()  # imports numpy, which a fork must not interrupt
        stop = threading.Event()

        def short(name):
            thread = threading.Thread(target=lambda: span(name)(lambda: None)())
            thread.start()
            thread.join()

        def times(i):
            n = 0
            while not stop.is_set():
                with span(f"t{i} {n % 100}"), ProfilingContext("profiling"):
                    n += 1

        def reads():
            while not stop.is_set():
                _core.snapshot(), stagespan.spans(), _core.open_spans(), _core.clock_info()

        def comes_and_goes():
            while not stop.is_set():
                short("short")

        works = [lambda: times(0), lambda: times(1), reads, comes_and_goes]
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        failed = 0
        for _ in range(60):
            pid = os.fork()
            if pid == 0:
                # All that can be done in the child works at once.
                with span("child"), ProfilingContext("in child"):
                    short("thread")
                counts = {n: s.count for n, s in _core.snapshot().stages().items()}
                right = counts == {"child": 1, "in child": 1, "thread": 1}
                stagespan.flush()
                os._exit(0 if right and len(stagespan.spans()) == 3 else 1)
            failed += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
        stop.set()
        for thread in threads:
            thread.join()
        print(failed)
        """,
        tmp_path,
        *FORK_WARNING,
    )
    # THEN no child hangs, or finds data of its parent
    assert lines == ["0"]


def test_children_of_children(tmp_path: Path) -> None:
    lines = in_child(
        """
        import os, sys
        from stagespan import span, _core
        depth = 0
        with span("open"):
            for depth in range(1, 5):
                pid = os.fork()
                if pid:
                    os.waitpid(pid, 0)
                    depth -= 1
                    break
                with span(f"level {depth}"):
                    pass
        print(depth, {n: s.count for n, s in _core.snapshot().stages().items()}, flush=True)
        os._exit(0)
        """,
        tmp_path,
    )
    assert lines == [
        "4 {'level 4': 1}",
        "3 {'level 3': 1}",
        "2 {'level 2': 1}",
        "1 {'level 1': 1}",
        "0 {'open': 1}",
    ]


def test_ids_of_a_child_are_its_own() -> None:
    read, write = os.pipe()
    with span("parent's"):
        pid = os.fork()
        if pid == 0:
            ids = []
            for _ in range(3):
                with span("child's"):
                    ids.append(_core.open_spans()[0]["id"])
            os.write(write, repr(ids).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        own = [one["id"] for one in _core.open_spans()]

    childs = eval(os.read(read, 1000))
    os.close(read)
    os.close(write)
    assert not set(childs) & set(own)


def test_a_childs_open_spans_name_its_thread(tmp_path: Path) -> None:
    code = """
    import os, threading
    import stagespan

    threading.current_thread().name = "decoder"
    with stagespan.span("load"):
        pass
    if os.fork() == 0:
        with stagespan.span("decode"):
            print(stagespan.open_spans()[0]["thread_name"], flush=True)
        os._exit(0)
    os.wait()
    """
    assert python(code, tmp_path).stdout == "decoder\n"


# --- multiprocessing ------------------------------------------------------------------------------

WORKER = """
import logging, multiprocessing, sys
import stagespan
from stagespan import ProfilingContext, span

def work(i):
    with span("worker"), ProfilingContext("logged"):
        pass
    stats = stagespan.stats()
    return {name: stage.count for name, stage in stats.items()}

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    context = multiprocessing.get_context(METHOD)
    with span("main"), context.Pool(2, maxtasksperchild=1) as pool:
        results = pool.map(work, range(4), chunksize=1)
        pool.close()
        pool.join()
    stagespan.flush()
    print(results == [{"worker": 1, "logged": 1}] * 4, sorted(stagespan.stats()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers(method: str, tmp_path: Path) -> None:
    # GIVEN a pool of workers that time, log and end
    code = WORKER.replace("METHOD", repr(method))
    lines = python(code, tmp_path, *FORK_WARNING).stdout.splitlines()
    # THEN each has its own figures, writes its own lines, and has nothing of its parent
    assert lines[-1] == "True ['main']"
    if method == "fork":  # the others have not configured logging
        assert sum(line.startswith("[Profile] logged cost ") for line in lines) == 4
    assert not any("main" in line for line in lines[:-1])


def test_a_childs_end_writes_nothing_of_the_parents(tmp_path: Path) -> None:
    lines = in_child(
        """
        import logging, os, sys
        logging.basicConfig(level=logging.INFO, format="%(process)d %(message)s", stream=sys.stdout)
        from stagespan import ProfilingContext
        print(os.getpid(), "is the parent", flush=True)
        for i in range(20):
            with ProfilingContext(f"parent's {i}"):
                pass
        pid = os.fork()
        if pid == 0:
            with ProfilingContext("child's"):
                pass
            sys.exit(0)
        os.waitpid(pid, 0)
        """,
        tmp_path,
        *FORK_WARNING,
    )
    parent = lines[0].split()[0]
    for i in range(20):
        (line,) = [line for line in lines if f"[Profile] parent's {i} cost" in line]
        assert line.startswith(parent)
    (line,) = [line for line in lines if "[Profile] child's cost" in line]
    assert not line.startswith(parent)
