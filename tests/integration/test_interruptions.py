"""Signal handlers and finalizers in the middle of stagespan's own code, and concurrent readers."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording import python

from running import PROGRAMS

INTERRUPTED = PROGRAMS / "interrupted.py"


def run(tmp_path: Path, *program: str, **variables: str) -> str:
    """Run a program; output on stderr, such as the stacks of a hang, is a failure."""
    variables["STAGESPAN_OUTPUT_DIR"] = str(tmp_path)
    return python((INTERRUPTED, *program), tmp_path, timeout_s=300, **variables).stdout


# --- signal handlers ------------------------------------------------------------------------------

TAKES_SECONDS = (
    *("a stage", "a first signature", "a dump of signatures", "a report", "a dump of the report"),
    *("a flush", "a decorator"),
)
WORK = (
    *("signatures", "a new report", "statistics", "a window", "memory", "memory of a context"),
    *("profiled names", "a switch", "open spans"),
)


@pytest.mark.parametrize(
    "work",
    [
        *WORK,
        *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.full]) for name in TAKES_SECONDS),
    ],
)
def test_a_signal_handler_may_do_anything_at_any_line(work: str, tmp_path: Path) -> None:
    run(tmp_path, "at_each_line", work)


@pytest.mark.parametrize(
    "call",
    [
        *(["stats"], ["timing_report"], ["flush"], ["get_io_signatures"], ["set_debug"]),
        ["memory_snapshot", "x"],
    ],
    ids=lambda call: call[0],
)
def test_a_signal_handler_may_interrupt_the_first_call(call: list[str], tmp_path: Path) -> None:
    run(tmp_path, "first_call", *call)


@pytest.mark.parametrize(
    "block",
    [
        "with stagespan.request('r'): pass",
        "with stagespan.extract({}): pass",
        "with remote: pass",
        "with stagespan.request('r'), stagespan.span('s'), stagespan.extract({}): pass",
        "asynchronous().send(None)",
        "bound()",
        "decorated()",
    ],
)
def test_an_exception_of_a_signal_handler_leaves_no_request_current(
    block: str, tmp_path: Path
) -> None:
    # On Python 3.10, the handler may also run between the call and `send`.
    run(tmp_path, "exceptions", block)


def test_an_exception_of_a_signal_handler_is_raised_from_the_first_request(tmp_path: Path) -> None:
    run(tmp_path, "first_request", STAGESPAN_REQUEST_FIELDS="steps")


def test_a_report_in_a_signal_handler_does_not_wait_for_a_log_handler(tmp_path: Path) -> None:
    lines = run(tmp_path, "log_handler_with_a_lock").splitlines()
    assert lines == ["1", "True False True"]


# --- finalizers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "work",
    [
        pytest.param("debug_mode", marks=pytest.mark.full),
        "context_variables",
        "tasks",
    ],
)
def test_finalizers_run_stages_in_the_middle(work: str, tmp_path: Path) -> None:
    # GIVEN collections anywhere in the code, if Python allows that
    run(tmp_path, f"finalizers_in_{work}")


@pytest.mark.parametrize("kind", ["debug", "function", "generator", "coroutine", "async"])
def test_a_finalizer_runs_a_timed_function_at_the_end(kind: str, tmp_path: Path) -> None:
    # GIVEN an object that lives until the modules are cleared
    assert run(tmp_path, "finalizer_at_the_end", kind) == "released\n"


# --- readers --------------------------------------------------------------------------------------


def test_a_window_and_a_snapshot_that_is_taken_at_the_same_time(tmp_path: Path) -> None:
    # GIVEN rings that have wrapped
    run(tmp_path, "window_and_snapshot", STAGESPAN_RING_SPANS="64")


# get_io_signatures() itself imports the module.
@pytest.mark.parametrize("call", ["timing_report", "reset_timing_registry", "stats"])
def test_reading_while_debug_mode_is_first_switched_on(call: str, tmp_path: Path) -> None:
    run(tmp_path, "first_debug_mode", call)
