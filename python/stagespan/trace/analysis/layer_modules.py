"""A model's modules as the profiler recorded them: the tree of their classes, and their times."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.call_tree import (
    Paths,
    Rows,
    Tree,
    lanes_of,
    sums,
    tree_of,
    with_those_below,
)
from stagespan.trace.analysis.host_time import named
from stagespan.trace.analysis.launchers import launchers
from stagespan.trace.arrays import Numbers
from stagespan.trace.device import device_work
from stagespan.trace.intervals import exclusive
from stagespan.trace.model import Trace

_MODULE = re.compile(r"^nn\.Module: ")
_CLASS = re.compile(r"^nn\.Module: (.+?)(?:_\d+)?$")


@dataclass(frozen=True, slots=True)
class Module:
    """All calls of modules of one class at one place in the model; times in ns."""

    path: tuple[str, ...]
    """The classes of the modules around it, and its own."""
    instances: int
    """Different modules."""
    calls: int
    host_ns: int
    host_self_ns: int
    """Less the modules within it."""
    device_ns: int | None
    """Durations of what was launched in it and in what it holds; None without a device."""
    device_self_ns: int | None
    launched: int | None
    backward_ns: int | None
    """Of `device_ns` not a part: what the backward pass of its operators launched."""
    call_ns: tuple[int, int, int]
    """Of its instances, on the device if there is one and else on the host, the time of a call:
    least, median, most."""
    slowest: str
    """The instance with the most."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        least, median, most = (figure / 1000 for figure in self.call_ns)
        return {
            "path": list(self.path),
            "instances": self.instances,
            "calls": self.calls,
            "host_us": self.host_ns / 1000,
            "host_self_us": self.host_self_ns / 1000,
            "device_us": _us(self.device_ns),
            "device_self_us": _us(self.device_self_ns),
            "device_events": self.launched,
            "backward_device_us": _us(self.backward_ns),
            "call_of_an_instance_us": {"min": least, "median": median, "max": most},
            "slowest": self.slowest,
        }


@dataclass(frozen=True, slots=True)
class Modules:
    """The tree of modules; times in ns."""

    modules: list[Module]
    """Each behind the one around it, in the order of the first call."""
    outside: tuple[int, int]
    """Device events that no module launched, forward or backward, and their durations' sum."""
    device_ns: int | None


def modules_of(trace: Trace) -> Modules | None:
    """Sum up the modules' calls; None where the trace has none."""
    events = trace.events
    rows = np.flatnonzero(
        trace.rows_of(["python_function"]) & named(trace, _MODULE) & (events.dur_ns > 0)
    )
    if len(rows) == 0:
        return None
    tree, lanes, lane = tree_of(trace, rows)
    codes, instance = np.unique(events.name[rows], return_inverse=True)
    instance = instance.reshape(-1).astype(np.int64)
    classes = [_class(trace.names[code]) for code in codes]
    number = {name: at for at, name in enumerate(dict.fromkeys(classes))}
    word = np.array([number[name] for name in classes], dtype=np.int64)[instance]
    paths = Paths(tree.parent, word)
    device = device_work(trace).rows
    durations = events.dur_ns[device]
    forward, backward = np.full((2, len(device)), -1, dtype=np.intp)
    found_by = launchers(trace, device) if len(device) else None
    if found_by is not None:
        # A queue may launch from a thread of its own what an operator of another one asked for.
        for at in (found_by.calls, found_by.operator):
            forward = np.where(forward >= 0, forward, _at(trace, tree, lanes, events.begin_ns, at))
        of_forward = _at(trace, tree, lanes, events.begin_ns, found_by.forward)
        backward = np.where(forward < 0, of_forward, -1)
    on_device = len(device) > 0
    own = _by_node(paths, forward, durations)
    counts = paths.inclusive(_by_node(paths, forward, np.ones_like(durations)))
    behind = paths.inclusive(_by_node(paths, backward, durations))
    within = paths.inclusive(own)
    of_call = events.dur_ns[rows]
    if on_device:
        of_call = with_those_below(tree.parent, sums(forward, durations, len(rows)))
    # A module that lies too deep to be told apart is a part of the one around it.
    apart = ~paths.folded
    spread = _spread(paths.node[apart], instance[apart], of_call[apart], len(codes))
    host = paths.sums(np.where(apart, events.dur_ns[rows], 0))
    host_own = paths.sums(exclusive(events.begin_ns[rows], events.end_ns[rows], lane))
    counted = np.bincount(paths.node[apart], minlength=len(paths))
    words = list(number)
    named_so: list[tuple[str, ...]] = []
    found = []
    for node in range(len(paths)):
        above = int(paths.parent[node])
        named_so.append((*(named_so[above] if above >= 0 else ()), words[paths.word[node]]))
        instances, call_ns, slowest = spread[node]
        found.append(
            Module(
                path=named_so[node],
                instances=instances,
                calls=int(counted[node]),
                host_ns=int(host[node]),
                host_self_ns=int(host_own[node]),
                device_ns=int(within[node]) if on_device else None,
                device_self_ns=int(own[node]) if on_device else None,
                launched=int(counts[node]) if on_device else None,
                backward_ns=int(behind[node]) if on_device else None,
                call_ns=call_ns,
                slowest=trace.names[codes[slowest]][len("nn.Module: ") :],
            )
        )
    outside = (forward < 0) & (backward < 0)
    first = np.full(len(paths), np.iinfo(np.int64).max)
    np.minimum.at(first, paths.node, events.begin_ns[rows])
    return Modules(
        modules=[found[node] for node in _order(paths, first)],
        outside=(int(outside.sum()), int(durations[outside].sum())),
        device_ns=int(durations.sum()) if on_device else None,
    )


def _class(name: str) -> str:
    found = _CLASS.match(name)
    return found[1] if found else name


def _at(trace: Trace, tree: Tree, lanes: NDArray[np.int64], times: Numbers, rows: Rows) -> Rows:
    """The call of a module in which each event (-1 for none) begins, or -1."""
    found = np.full(len(rows), -1, dtype=np.intp)
    known = rows >= 0
    if known.any():
        found[known] = tree.at(lanes_of(lanes, trace, rows[known]), times[rows[known]])
    return found


def _by_node(paths: Paths, call: Rows, figure: Numbers) -> Numbers:
    return sums(np.where(call >= 0, paths.node[call], -1), figure, len(paths))


def _spread(
    node: Rows, instance: NDArray[np.int64], of_call: Numbers, count: int
) -> list[tuple[int, tuple[int, int, int], int]]:
    """By node: its instances; of their average calls the least, median, and most; whose it is."""
    cells, of = np.unique(node * count + instance, return_inverse=True)
    of = of.reshape(-1)
    mean = sums(of, of_call, len(cells)) // np.bincount(of)
    nodes = cells // count
    bounds = np.searchsorted(nodes, np.arange(int(node.max()) + 2))
    found = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        here = mean[low:high]
        most = int(np.argmax(here))
        figures = (int(here.min()), int(np.median(here)), int(here[most]))
        found.append((high - low, figures, int(cells[low + most] % count)))
    return found


def _order(paths: Paths, first: Numbers) -> list[int]:
    """Nodes with those below behind them, in the order of their first calls."""
    below: dict[int, list[int]] = {}
    for node in np.argsort(first, kind="stable").tolist():
        below.setdefault(int(paths.parent[node]), []).append(node)
    ordered: list[int] = []
    waiting = below.get(-1, [])[::-1]
    while waiting:
        node = waiting.pop()
        ordered.append(node)
        waiting += below.get(node, [])[::-1]
    return ordered


def _us(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1000
