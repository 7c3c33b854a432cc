"""What a trace lacks: a device's work, or the operators of its steps."""

from __future__ import annotations

import re

import numpy as np

from stagespan.pages.amounts import counted, quoted
from stagespan.pages.result import Unavailable, shortened
from stagespan.trace.derived.device import STARTS_WORK, device_work, launches
from stagespan.trace.derived.idle_causes import MARKS
from stagespan.trace.derived.step_ranges import PROFILER_STEP
from stagespan.trace.derived.threads import named
from stagespan.trace.read.groups import counts_of
from stagespan.trace.read.model import Trace
from stagespan.trace.read.other_tools import unknown_categories
from stagespan.trace.read.plausibility import FAR_DEVICES
from stagespan.trace.read.view import once

DAMAGED_TIMES = Unavailable(
    "The times in this trace are damaged: its timestamps span several years, so they are not"
    " valid.",
    "damaged_times",
)


# Operators that need a device.
_NEEDS_DEVICE = re.compile(
    r"^aten::(?:cudnn_(?!is_acceptable)|_cudnn|miopen_|_?pin_memory"
    r"|_flash_attention_(?:forward|backward)|_efficient_attention_"
    r"|_scaled_dot_product_(?:flash|efficient|cudnn)_attention"
    r"(?:_backward)?$)|^nccl:"
)
_CPU = 0
# Marks of steps that a loop opened, but did not run.
_FEW_MARKS, _SHORT_MARK_NS = 2, 1_000_000


@once
def unrecorded_device(trace: Trace) -> str | None:
    """Return what shows that the program used a device of which the trace has no events.

    This is a name, such as `cudaLaunchKernel`. None if the trace has device events, or if nothing
    shows that a device was used. The times of operators are then those of the host, which does not
    wait for most of their work.
    """
    if len(device_work(trace).rows):
        return None
    for rows, pattern in (
        (launches(trace), STARTS_WORK),
        (trace.rows_of(["cpu_op"]), _NEEDS_DEVICE),
    ):
        codes, counts = counts_of(trace.events.name[rows])
        for code in codes[np.argsort(-counts, kind="stable")].tolist():
            if pattern.search(trace.names[code]):
                return shortened(trace.names[code], 60)
    kind = trace.argument("Device Type", "instants")
    if kind is not None and kind.numbers is not None and (kind.numbers > _CPU).any():
        return "its memory"
    return None


def no_device_events(trace: Trace) -> str:
    """Return why the device's events are unknown, after `unrecorded_device`."""
    what = "the trace has no events of it"
    if left := trace.left_out.get(FAR_DEVICES):
        what = (
            f"its {counted(left, 'event')} {'is' if left == 1 else 'are'} left out, because their"
            " times are far from those of the host, as if of another clock"
        )
    return f"{what}, so what the device did is unknown and operators have the times of the host"


def steps_without_operators(trace: Trace) -> str | None:
    """Return a sentence if the profiler has marked steps, but recorded no work in them."""
    marks = named(trace, PROFILER_STEP) & trace.rows_of(["user_annotation", "cpu_op"])
    work = trace.rows_of(["cpu_op"]) & ~named(trace, MARKS)
    if not marks.any() or work.any() or launches(trace).any() or len(device_work(trace).rows):
        return None
    record = "stagespan.profile_steps(all_threads=True) records all threads of a process."
    longest = int(trace.events.dur_ns[marks].max())
    if np.count_nonzero(marks) > _FEW_MARKS or longest > _SHORT_MARK_NS:
        return (
            "The profiler's steps contain no operators: the work ran in other threads or"
            f" processes, which were not recorded. {record}"
        )
    return (
        "The profiler's steps contain no operators. Either the loop ended when this cycle of the"
        " schedule began: export in on_trace_ready, which is called for complete cycles. Or other"
        f" threads or processes did the work, and were not recorded: {record}"
    )


def not_of_torch(trace: Trace) -> str | None:
    """Return a sentence if another program than a profiler of torch has written the events."""
    categories = unknown_categories(trace)
    if not categories:
        return None
    if categories == [""]:
        return (
            "The events have no category (`cat`): another program than torch.profiler wrote them."
        )
    shown = quoted(shortened(name, 40) for name in categories)
    return f"The events have the categories {shown}, which torch.profiler does not write."


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
