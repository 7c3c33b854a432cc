"""What a trace lacks: a device's work, or the operators of its steps."""

from __future__ import annotations

from stagespan.trace.derived.device import device_work, launches
from stagespan.trace.derived.idle_causes import MARKS
from stagespan.trace.derived.step_ranges import PROFILER_STEP
from stagespan.trace.derived.threads import named
from stagespan.trace.read.model import Trace
from stagespan.trace.result import Unavailable

DAMAGED_TIMES = Unavailable(
    "The times in this trace are damaged: its timestamps span several years, so they are not"
    " valid.",
    "damaged_times",
)


def steps_without_operators(trace: Trace) -> str | None:
    """Return a sentence if the profiler has marked steps, but recorded no work in them."""
    marks = named(trace, PROFILER_STEP) & trace.rows_of(["user_annotation", "cpu_op"])
    work = trace.rows_of(["cpu_op"]) & ~named(trace, MARKS)
    if not marks.any() or work.any() or launches(trace).any() or len(device_work(trace).rows):
        return None
    return (
        "The profiler's steps contain no operators: the work ran in other threads or processes,"
        " which were not recorded. stagespan.profile_steps(all_threads=True) records all threads of"
        " a process."
    )


def may_have_device(trace: Trace) -> bool:
    """Whether the machine may have a device; a trace without operators does not show it."""
    described = trace.metadata.get("deviceProperties")
    host = trace.rows_of(["cpu_op"]).any() or steps_without_operators(trace) is not None
    return bool(described) or bool(launches(trace).any()) or not host


def needs_device(trace: Trace) -> tuple[str, str] | None:
    """Return how to record device events (see `Unavailable.needs`); None without a device."""
    return ("device events", "record the device's activity") if may_have_device(trace) else None


def needs_operators(trace: Trace) -> tuple[str, str]:
    """Return how to record operators and kernels (see `Unavailable.needs`)."""
    if steps_without_operators(trace) is not None:
        return "operators", "the work ran in other threads; see above"
    what = "operators and kernels" if may_have_device(trace) else "operators"
    return what, "record the CPU's activity"
