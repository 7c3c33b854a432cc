"""Fixtures: an empty recorder, a folder of recordings, a system clock that is wrong."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recorded_process import copy_of

import stagespan
from running import PROGRAMS, ran
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, span

# CLOCK_MONOTONIC is set back by an hour when the program calls set_clock_back(), as after a process
# was restored on another machine, or it is stopped, as under tools that fake the time.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static volatile int is_set_back;

void set_clock_back(void) { is_set_back = 1; }

int clock_gettime(clockid_t id, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  static struct timespec first;
  static int is_read;
  if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(id, now);
  if (id != CLOCK_MONOTONIC) return result;
  if (!is_read) {
    is_read = 1;
    first = *now;
  }
  if (getenv("CLOCK_STANDS_STILL"))
    *now = first;
  else if (is_set_back)
    now->tv_sec -= 3600;
  return result;
}
"""


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Start and end with a torch.compile that has captured nothing."""
    # Imported here, because it takes seconds, and most workers run no test of it.
    dynamo = pytest.importorskip("torch._dynamo")
    dynamo.reset()
    yield
    stagespan.set_debug(False)
    dynamo.reset()


@pytest.fixture
def fresh() -> Iterator[None]:
    """Start with empty statistics, the recorder on and debug mode off; leave nothing open."""
    stagespan.enable()
    stagespan.set_debug(False)
    _core._reset()
    yield
    stagespan.enable()
    stagespan.set_debug(False)
    left = _core.open_spans()
    assert left == [], "a test left spans open"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on a tmpfs in which this process also looks for recordings."""
    try:
        made = Path(tempfile.mkdtemp(prefix="stagespan-test-", dir="/dev/shm"))
    except OSError as error:
        pytest.skip(f"/dev/shm is not writable ({error}): mount a tmpfs there")
    monkeypatch.setenv("STAGESPAN_RECORDING_DIR", str(made))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(params=[span, ProfilingContext, ProfilingContext4Debug])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[str], _core.Span]]:
    """Return each kind of context, while it is active."""
    stagespan.set_debug(request.param is ProfilingContext4Debug)
    yield request.param
    stagespan.set_debug(False)


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library that replaces the system's clock when it is preloaded."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc) on PATH")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    ran([compiler, "-shared", "-fPIC", "-o", "clock.so", "clock.c", "-ldl"], cwd=folder, status=0)
    return folder / "clock.so"


@pytest.fixture(scope="module")
def real_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small recording of a real process."""
    copy = tmp_path_factory.mktemp("real") / "real.stagespan"
    return copy_of(copy, PROGRAMS / "live.py", "left_open", STAGESPAN_RING_SPANS="64")
