"""Sentences about a trace: which file it is, and which of its entries were not used."""

from __future__ import annotations

from pathlib import Path

from stagespan.pages.amounts import counted, in_words
from stagespan.trace.ascend.folder import TRACE
from stagespan.trace.derived.device import shared_correlations
from stagespan.trace.derived.launch_sources import stage_calls
from stagespan.trace.read.model import Settled, Trace
from stagespan.trace.read.plausibility import (
    ABSENT,
    CUT,
    ENDS_FAR,
    FAR,
    FAR_DEVICES,
    NEGATIVE,
    RANGE_CUT,
)


def name_of(path: Path) -> str:
    """Return the name of the file, or of an Ascend folder, in which all traces have one name."""
    folders = [each.name for each in path.parents if each.name.endswith("_ascend_pt")]
    return folders[0] if path.name.startswith(TRACE) and folders else path.name


# Entries of which a part of the duration, or all of it, was not used.
_CUT = {ABSENT, NEGATIVE, CUT, ENDS_FAR, RANGE_CUT}


def ignored(trace: Trace) -> list[str]:
    """Return sentences about entries that were not used, or not as they are in the file."""
    remarks = []
    listed = [_not_used(trace, cause, count) for cause, count in trace.left_out.items()]
    cut = {cause: count for cause, count in trace.adjusted.items() if cause in _CUT}
    listed += [_not_used(trace, cause, count) for cause, count in cut.items()]
    if listed:
        remarks.append(f"Ignored: {', '.join(listed)}.")
    if len(trace.doubtful):
        remarks.append(
            "Findings that rest on the times of these device events are one grade less severe."
        )
    remarks += map(_settled, trace.settled)
    changed = {cause: count for cause, count in trace.adjusted.items() if cause not in cut}
    if changed:
        listed = [f"{cause} ({count:,})" for cause, count in changed.items()]
        remarks.append(f"Read with a change: {', '.join(listed)}.")
    ranges = stage_calls(trace) if len(trace.events) else None
    crossing = 0 if ranges is None else ranges.tree.crossing
    if crossing:
        remarks.append(
            f"{counted(crossing, 'range')} of the program crossed another one of the thread, as"
            " those of asyncio tasks do: they are not inside each other, and what is launched while"
            " both are open counts for the one that began last."
        )
    shared = shared_correlations(trace)
    if shared:
        remarks.append(
            f"The launch of {counted(shared, 'device event')} is unknown, because calls of several"
            " processes have the same correlation, as in a file of merged ranks. Analyse the trace"
            " of each rank on its own."
        )
    return remarks


def _settled(time: Settled) -> str:
    """Return what two sources state, and which is used."""
    device = f"The device {time.device}" if time.device else "The device"
    used = f"{time.source} is used, because it contains more"
    if time.beside_ns:
        used += f", and {in_words(time.beside_ns, 'ns')} of {time.other} beside it"
    return (
        f"{device} {time.what} for {in_words(time.time_ns, 'ns')} by {time.source}, and for"
        f" {in_words(time.other_ns, 'ns')} by {time.other}: {used}."
    )


def _not_used(trace: Trace, cause: str, count: int) -> str:
    """Return how many entries, and how much of their time, were not used for a cause."""
    time = trace.ignored_ns.get(cause)
    if time is None:
        return f"{cause} ({count:,})"
    length = in_words(time, "ns")
    far = cause in (FAR, FAR_DEVICES)
    return f"{cause} ({count:,}, {f'up to {length} away' if far else length})"
