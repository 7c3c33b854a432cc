"""Forks and worker processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recording import count, in_child, lost, python

from running import PROGRAMS
from stagespan import ProfilingContext, _core, begin, end, span

FORKS = PROGRAMS / "forks.py"

# From 3.12 on, Python itself warns about forks with threads.
FORK_WARNING = ("-W", "ignore::DeprecationWarning")

pytestmark = pytest.mark.usefixtures("fresh")


# --- fork -----------------------------------------------------------------------------------------


def test_a_child_records_its_own(tmp_path: Path) -> None:
    # GIVEN a program that forks inside spans, tokens, generators and requests
    lines = in_child((FORKS, "a_child_records_its_own"), tmp_path)
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
    lines = in_child((FORKS, "forks_while_threads_time_and_read"), tmp_path, *FORK_WARNING)
    # THEN no child hangs, or finds data of its parent
    assert lines == ["0"]


def test_children_of_children(tmp_path: Path) -> None:
    lines = in_child((FORKS, "children_of_children"), tmp_path)
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
    assert python((FORKS, "a_childs_open_spans_name_its_thread"), tmp_path).stdout == "decoder\n"


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
    lines = in_child((FORKS, "a_childs_end_writes_nothing_of_the_parents"), tmp_path, *FORK_WARNING)
    parent = lines[0].split()[0]
    for i in range(20):
        (line,) = [line for line in lines if f"[Profile] parent's {i} cost" in line]
        assert line.startswith(parent)
    (line,) = [line for line in lines if "[Profile] child's cost" in line]
    assert not line.startswith(parent)
