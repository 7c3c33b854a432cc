"""A process that does not get all the memory it asks for continues."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Python itself must be loaded before the limit, because the recorder is tested here.
LIMITED = """
import json, resource, sys, warnings
from pathlib import Path

def addresses():
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096

import numpy, msgspec, threading, logging, concurrent.futures
more = int(sys.argv[1]) << 20
resource.setrlimit(resource.RLIMIT_AS, (addresses() + more, -1))
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    import stagespan
    from stagespan import _core
with stagespan.span("outer"):
    for _ in range(300):
        with stagespan.span("inner"):
            pass
token = stagespan.begin("token")
stagespan.end(token)

@stagespan.span("function")
def function():
    return 7

assert function() == 7
print(json.dumps({
    "warnings": [str(warning.message) for warning in warned],
    "arena": _core.arena_info(),
    "counts": {name: stage.count for name, stage in stagespan.stats().items()},
    "spans": len(stagespan.spans()),
    "enabled": stagespan.is_enabled(),
    "clock": _core.clock_info()["source"],
}))
"""


def run(program: str, *arguments: str, **variables: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **variables},
        timeout=120,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("more_mib", [600, 300, 200, 120])
def test_with_little_address_space_it_uses_smaller_rings(more_mib: int) -> None:
    # GIVEN a process with this many MiB of address space left
    found = run(LIMITED, str(more_mib))

    # THEN only old spans are missing
    assert found["warnings"] == []
    assert found["enabled"]
    assert found["counts"] == {"outer": 1, "inner": 300, "token": 1, "function": 1}
    assert found["spans"] == min(303, found["arena"]["ring_spans"])
    # THEN what was reserved fits, and its size is reported
    assert found["arena"]["size_bytes"] <= more_mib << 20
    assert found["arena"]["frames_per_thread"] >= 256
    if more_mib >= 600:
        assert found["arena"]["ring_spans"] == 8192


def test_without_memory_for_a_recording_the_program_runs_and_a_warning_says_why() -> None:
    # GIVEN a process with almost no address space left
    found = run(LIMITED, "40")

    assert found["counts"] == {}
    assert found["arena"] == {}
    assert not found["enabled"]
    (sentence,) = found["warnings"]
    assert "MiB of address space" in sentence
    assert "ulimit -v" in sentence


# The thread is started before, and both wait with plain locks, because an Event allocates while it
# waits.
EXHAUSTED = """
import json, resource, threading, time
from pathlib import Path

import stagespan
from stagespan import _core

go, done, again, over = (threading.Lock() for _ in range(4))
for lock in (go, done, again, over):
    lock.acquire()
results = []

@stagespan.span("generator")
def generator():
    yield 1
    yield 2

def body():
    go.acquire()
    try:
        for _ in range(10):
            with stagespan.span("short"):
                pass
        with stagespan.ProfilingContext("logged"):
            pass
        stagespan.end(stagespan.begin("token"))
        results.append(sum(generator()))
    finally:
        done.release()
    again.acquire()
    with stagespan.span("later"):
        pass
    over.release()

thread = threading.Thread(target=body, daemon=True)  # an error of the main thread ends the program
thread.start()
with stagespan.span("known"):
    pass
for name in ("short", "logged", "token", "generator", "later"):
    stagespan.record(name, time.time_ns(), time.time_ns())
before = _core.lost()["memory"]
counts = {name: stage.count for name, stage in _core.snapshot().stages().items()}
# Python's own objects find a place here: every second small one is freed, and the large one later.
small = [bytes(size) for size in range(0, 480, 16) for _ in range(400)]
del small[::2]
large = bytearray(1 << 13)
used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
held = []
resource.setrlimit(resource.RLIMIT_AS, (used, -1))
size = 1 << 24
while size >= 1 << 14:
    try:
        held.append(bytearray(size))
    except MemoryError:
        size //= 2
del large
go.release()
done.acquire()
with stagespan.span("known"):
    pass
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
del held
lost = _core.lost()["memory"] - before
again.release()
over.acquire()
thread.join()
after = {name: stage.count for name, stage in _core.snapshot().stages().items()}
print(json.dumps({
    "lost": lost,
    "results": results,
    "new": {name: after[name] - counts.get(name, 0) for name in after},
}))
"""


def test_spans_without_memory_are_timed_or_counted_as_lost() -> None:
    found = run(EXHAUSTED, MALLOC_ARENA_MAX="1")

    assert found["results"] == [3]
    new = found["new"]
    assert (new["short"], new["generator"]) in ((0, 0), (10, 1))
    assert new["short"] == 10 or found["lost"] >= 12
    # THEN other threads continued, and so does this thread later
    assert new["known"] == 1
    assert new["later"] == 1


# Calls a function while the process gets no memory, neither from the system nor from Python's own
# allocator, except for blocks of one size that Python has freed before.
NO_MEMORY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

void* PyObject_Malloc(size_t size);
void PyObject_Free(void* block);
void* PyObject_CallNoArgs(void* function);

struct block { struct block* next; };

static void take(struct block** list, void* (*allocate)(size_t), size_t size) {
  struct block* taken;
  while ((taken = allocate(size)) != NULL) {
    taken->next = *list;
    *list = taken;
  }
}

static void give_back(struct block** list, void (*deallocate)(void*)) {
  while (*list) {
    struct block* first = *list;
    *list = first->next;
    deallocate(first);
  }
}

void* call_without_memory(void* function, size_t left_bytes) {
  struct rlimit before, now;
  struct block *of_system = NULL, *of_python = NULL;
  unsigned long pages = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%lu", &pages) != 1) abort();
  fclose(file);
  getrlimit(RLIMIT_AS, &before);
  now = before;
  now.rlim_cur = pages * 4096;
  setrlimit(RLIMIT_AS, &now);
  for (size_t size = 1 << 24; size >= 16; size -= size > 512 ? size / 2 : 16)
    take(&of_system, malloc, size);
  for (size_t size = 512; size >= 16; size -= 16)
    if (size != left_bytes) take(&of_python, PyObject_Malloc, size);
  void* result = PyObject_CallNoArgs(function);
  give_back(&of_python, PyObject_Free);
  give_back(&of_system, free);
  setrlimit(RLIMIT_AS, &before);
  return result;
}
"""

TASKS = """
import contextvars, ctypes, functools, json, os, sys
import stagespan
from stagespan import _core

call_without_memory = ctypes.PyDLL(sys.argv[1]).call_without_memory
call_without_memory.argtypes = [ctypes.py_object, ctypes.c_size_t]
call_without_memory.restype = ctypes.py_object

def entered(kind):
    # As in a task: the context is a copy, and the span stays open in it.
    context, span = contextvars.copy_context(), stagespan.span(kind)
    context.run(span.__enter__)
    return functools.partial(context.run, span.__exit__, None, None, None)

def short_of_memory(left_bytes):
    context, span = contextvars.copy_context(), stagespan.span("short")
    freed = [bytes(size) for size in range(0, 480, 16) for _ in range(100)]
    del freed[::2]
    try:
        call_without_memory(functools.partial(context.run, span.__enter__), left_bytes)
    except MemoryError:
        return  # Python could not enter the context
    context.run(span.__exit__, None, None, None)
    entered("later")()

left = {}
for is_reused in (False, True):
    for left_bytes in (0, *range(48, 145, 16)):
        child = os.fork()
        if child == 0:
            with stagespan.span("own"):  # prepares the thread
                pass
            if is_reused:
                entered("before")()  # what this allocates is kept for the next task
            short_of_memory(left_bytes)
            stages = stagespan.stats()
            done = [stages[name].count if name in stages else 0 for name in ("short", "later")]
            os._exit(0 if done == [1, 1] and not _core.open_spans() else 1)
        left[f"{is_reused} {left_bytes}"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps({"failed": {case: status for case, status in left.items() if status}}))
"""


def test_spans_of_tasks_are_timed_without_memory(tmp_path: Path) -> None:
    # GIVEN spans of tasks that open while Python gets no memory, or blocks of one size only
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc) on PATH")
    (tmp_path / "no_memory.c").write_text(NO_MEMORY)
    library = tmp_path / "no_memory.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, tmp_path / "no_memory.c"], check=True
    )

    found = run(TASKS, str(library))

    assert found["failed"] == {}
