"""The end of torch's profiler, and its trace, without the interpreter's lock."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from running import ran
from stagespan import _core
from stagespan.profiling import unlocked

torch = pytest.importorskip("torch")
autograd: Any = pytest.importorskip("torch.autograd.profiler")

pytestmark = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="torch before 2.13 cannot record what a trace needs alone",
)
_MANY = 20_000
_LONGEST_S = 60


def started(operators: int) -> Any:
    """A profiler that has recorded a number of operators, and that still records."""
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        experimental_config=torch.profiler._ExperimentalConfig(trace_only=True),
    )
    profiler.start()
    values = torch.zeros(4)
    for _ in range(operators):
        torch.neg(values)
    return profiler


def stopped(operators: int) -> Any:
    """What a profiler has recorded that was ended without the lock."""
    profiler = started(operators)
    with unlocked.ending(autograd):
        profiler.stop()
    results = profiler.profiler.kineto_results
    assert type(results) is _core.TorchProfile
    return results


@contextmanager
def counting() -> Iterator[list[int]]:
    """A thread that counts, and that gets the lock only if another thread gives it up."""
    counted, is_over = [0], threading.Event()

    def count() -> None:
        while not is_over.is_set():
            counted[0] += 1
            time.sleep(0)  # gives the lock up

    interval_s = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    thread.start()
    sys.setswitchinterval(1_000)
    try:
        yield counted
    finally:
        is_over.set()
        sys.setswitchinterval(interval_s)
        thread.join()


def others_run(act: Callable[[], object]) -> bool:
    """Whether another thread runs during a call."""
    with counting() as counted:
        before = counted[0]
        act()
        return counted[0] > before


def others_run_while_it_stops(profiler: Any) -> bool:
    ran: list[bool] = []

    def end() -> object:
        results: list[object] = []
        ran.append(others_run(lambda: results.append(_core.TorchProfile())))
        return results[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autograd, "_disable_profiler", end)
        profiler.stop()
    return ran[0]


# The other thread needs a processor in some milliseconds, so it may miss one of them.


def test_other_threads_run_while_the_profiler_stops() -> None:
    assert any(others_run_while_it_stops(started(_MANY)) for _ in range(5))


def test_other_threads_run_while_the_trace_is_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert any(others_run(partial(stopped(_MANY).save, str(path))) for _ in range(5))
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(event.get("name") == "aten::neg" for event in events) == _MANY


def profile() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        pass


def fork() -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize("act", [profile, fork])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_would_disturb_the_end_waits_for_it(act: Callable[[], None]) -> None:
    act()  # the first profiler of a process imports modules for a second
    is_over = threading.Event()

    def act_here() -> None:
        act()
        is_over.set()

    thread = threading.Thread(target=act_here)
    with unlocked.ending(autograd):
        thread.start()
        assert not is_over.wait(0.5)
    assert is_over.wait(_LONGEST_S)
    thread.join()


def test_torch_has_its_functions_again_afterwards() -> None:
    names = ("_disable_profiler", "_prepare_profiler", "_enable_profiler")
    before = [getattr(autograd, name) for name in names]
    stopped(1)
    with pytest.raises(KeyError), unlocked.ending(autograd):
        raise KeyError
    assert [getattr(autograd, name) for name in names] == before


def test_an_error_of_torch_is_an_exception(tmp_path: Path) -> None:
    # In a process of its own, because the first exception of libtorch is the one that matters.
    program = f"""
import torch
from torch.autograd import profiler as autograd
from stagespan.profiling import unlocked
with torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU],
    experimental_config=torch.profiler._ExperimentalConfig(trace_only=True),
) as profiler:
    torch.zeros(4).neg()
    with unlocked.ending(autograd):
        profiler.profiler.__exit__(None, None, None)
    profiler.profiler.enabled = False
results = profiler.profiler.kineto_results
results.save({str(tmp_path / "first.json")!r})
try:
    results.save({str(tmp_path / "second.json")!r})
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""
    done = ran([sys.executable, "-c", program])
    assert done.stdout.splitlines() == ["Trace is already saved."], done.stderr


def test_without_torch_nothing_can_be_ended() -> None:
    program = """
from stagespan import _core
print(_core.can_end_torch_profile())
try:
    _core.TorchProfile()
except RuntimeError as error:
    print(error)
"""
    done = ran([sys.executable, "-c", program])
    refused = "this torch cannot end its profiler without the interpreter's lock"
    assert done.stdout.splitlines() == ["False", refused], done.stderr
