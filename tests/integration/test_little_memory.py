"""A process that does not get all the memory it asks for continues."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from running import PROGRAMS, ran

PROGRAM = PROGRAMS / "little_memory.py"


def run(*arguments: str, **variables: str) -> dict[str, Any]:
    done = ran(
        [sys.executable, PROGRAM, *arguments], env={"PATH": "/usr/bin:/bin", **variables}, status=0
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# From 3.12 on, Python itself takes more for the import.
LEAST_MIB = 120 if sys.version_info < (3, 12) else 122


@pytest.mark.parametrize("more_mib", [600, 300, 200, LEAST_MIB])
def test_with_little_address_space_it_uses_smaller_rings(more_mib: int) -> None:
    # GIVEN a process with this many MiB of address space left
    found = run("limited", str(more_mib))

    # THEN only old spans are missing
    assert found["warnings"] == []
    assert found["enabled"]
    once = ("outer", "token", "recorded", "context", "function", "task")
    assert found["counts"] == {"inner": 300, **dict.fromkeys(once, 1)}
    assert found["spans"] == min(306, found["arena"]["ring_spans"])
    # THEN what was reserved fits, and its size is reported
    assert found["arena"]["size_bytes"] <= more_mib << 20
    assert found["arena"]["frames_per_thread"] >= 256
    if more_mib >= 600:
        assert found["arena"]["ring_spans"] == 8192


def test_without_memory_for_a_recording_the_program_runs_and_a_warning_says_why() -> None:
    # GIVEN a process with almost no address space left
    found = run("limited", "40")

    assert found["counts"] == found["arena"] == {}
    assert not found["enabled"]
    assert found["spans"] == found["open"] == 0
    (sentence,) = found["warnings"]
    assert "MiB of address space" in sentence
    assert "ulimit -v" in sentence


def test_spans_without_memory_are_timed_or_counted_as_lost() -> None:
    found = run("exhausted", MALLOC_ARENA_MAX="1")

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


def test_spans_of_tasks_are_timed_without_memory(tmp_path: Path) -> None:
    # GIVEN spans of tasks that open while Python gets no memory, or blocks of one size only
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc) on PATH")
    (tmp_path / "no_memory.c").write_text(NO_MEMORY)
    library = tmp_path / "no_memory.so"
    ran([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "no_memory.c"], status=0)

    found = run("spans_of_tasks", str(library))

    assert found["failed"] == {}
