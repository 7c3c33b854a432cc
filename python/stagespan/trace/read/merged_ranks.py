"""Tells the devices and launches of ranks apart whose traces were merged into one file."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from stagespan.trace.read.groups import pairs, values_of
from stagespan.trace.read.intervals import Numbers
from stagespan.trace.read.model import MISSING, IdColumn, Trace
from stagespan.trace.read.plausibility import LAUNCH_SUFFIXES

# SGLang writes the rank in front of each process: "[TP00-DP00-PP00-EP00] 0". Others name it.
_RANK = re.compile(r"^\[([^\]]+)\]\s|\brank[ _:-]?(\d+)\b", re.IGNORECASE)
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def separated(trace: Trace) -> Trace:
    """Return the trace with a number of its own for each device, and each rank's launches.

    A profiler shows a device as one process. If several processes have one device's number, these
    are devices of different ranks: each rank sees its own as the first. The trace itself is
    returned if each number has one process.
    """
    events = trace.events
    rows = np.flatnonzero(trace.rows_of(_ON_DEVICE) & events.device.exist())
    pid, number = events.pid[rows], events.device[rows]
    # One device, or processes with the numbers of their devices, as torch writes them.
    if len(rows) == 0 or (pid == pid[0]).all() or (pid == number).all():
        return trace
    owners, of = pairs(number, pid)
    numbers = owners[:, 0]
    if len(values_of(numbers)) == len(numbers):
        return trace
    ranks = _by_name(trace) or _by_number(trace, values_of(owners[:, 1]))
    device = events.device.all().copy()
    # Of several with one number, the first rank keeps it.
    taken = set(numbers.tolist())
    seen: set[int] = set()
    chosen = np.empty(len(numbers), dtype=device.dtype)
    order = sorted(range(len(owners)), key=lambda at: (ranks.get(owners[at, 1], ""), *owners[at]))
    for at in order:
        old = int(numbers[at])
        new = old if old not in seen else min(set(range(len(taken) + 1)) - taken)
        seen.add(old)
        taken.add(new)
        chosen[at] = new
    device[rows] = chosen[of]
    events = replace(events, device=IdColumn(device))
    if ranks:
        # The launches of ranks have the same numbers too.
        rank_of = {name: at for at, name in enumerate(sorted(set(ranks.values())))}
        correlation = events.correlation.all().copy()
        step = int(correlation.max()) + 1
        for process, name in ranks.items():
            mine = events.pid.having([process]) & (correlation != MISSING)
            correlation[mine] += rank_of[name] * step
        events = replace(events, correlation=IdColumn(correlation))
    return replace(trace, events=events)


def _by_name(trace: Trace) -> dict[int, str]:
    """Return the rank of each process whose name, or number, contains it."""
    texts = {pid: str(name) for pid, name in trace.named_ids.items()}
    for pid, name in trace.process_names.items():
        texts.setdefault(pid, name)
    found = {pid: match for pid, text in texts.items() if (match := _RANK.search(text))}
    return {pid: match[1] or match[2] for pid, match in found.items()}


def _by_number(trace: Trace, devices: Numbers) -> dict[int, str]:
    """Return the rank of each process if the numbers of each rank's are moved by the same amount.

    The processes that launch are then as far apart as those of the devices.
    """
    events = trace.events
    launches = [name.endswith(LAUNCH_SUFFIXES) for name in [*trace.categories, ""]]
    calls = np.array(launches)[events.category] & events.correlation.exist()
    hosts = values_of(events.pid[calls])
    if len(hosts) != len(devices) or not np.array_equal(np.diff(hosts), np.diff(devices)):
        return {}
    pairs_of = enumerate(zip(hosts.tolist(), devices.tolist(), strict=True))
    return {pid: str(rank) for rank, both in pairs_of for pid in both}
