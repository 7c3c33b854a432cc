"""Collectives of one trace: size, bandwidth, what their time depends on, and room to hide them."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.pages.amounts import counted, in_percent, in_words
from stagespan.pages.figures import Count, CountedTime, Figures, Internal, Ns, first, one_of
from stagespan.pages.result import (
    Evidence,
    Finding,
    StructResult,
    Table,
    Thresholds,
    Unavailable,
    of_size,
    share,
)
from stagespan.trace.derived.device import device_work, launch_of
from stagespan.trace.derived.gains import gain_of_rows
from stagespan.trace.derived.host_work import host_work
from stagespan.trace.derived.threads import named
from stagespan.trace.derived.windows import BaseWindow, base_window
from stagespan.trace.evidence import evidence
from stagespan.trace.rates.collectives import (
    algorithm_of,
    bus_bytes,
    bytes_in,
    members,
    op_of,
    ops_of,
    unseen_calls,
    work_of,
)
from stagespan.trace.read.groups import by_group, distinct, median, numbered
from stagespan.trace.read.intervals import Cover, Mask, Numbers, Rows, merged
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

WAITING, PER_CALL, VOLUME = "waiting", "per_call", "volume"
PARTS = {
    WAITING: "longer than the shortest call of its size",
    PER_CALL: "the same for each call, whatever its size",
    VOLUME: "grows with the size",
}
"""The parts of the time of collectives whose sizes are known."""
_LONGER = "longer than the shortest call"
# Percent of the steps, or of the trace.
_SHARES = Thresholds(25.0, 10.0, 5.0)
_SMALL_SHARES = Thresholds(25.0, 10.0, 2.0)
SMALL_BYTES = 1 << 20
"""Calls with less data are small."""
SMALL_NS = 20_000
"""If sizes are unknown, shorter calls are small."""
# What a call of a library costs beside the data; a longer time is waiting for other ranks.
_CALL_NS = 100_000
# A time that grows faster with the size is not that of a link: Ethernet of 1 Gbit/s needs 8 ns.
_MOST_NS_PER_BYTE = 10.0
# Sizes must differ by this factor to show what the time depends on.
_LEAST_RANGE = 2.0
_SHOWN, _MOST_IN_JSON = 15, 200
_DDP_FORWARD = re.compile(r"^DistributedDataParallel\.forward$")


class CollectiveSize(Figures, frozen=True):
    """All calls of one operation with the same bytes; times in ns."""

    op: str
    algorithm: str | None
    """As in the names of the kernels, such as "RING_LL"; None if they do not contain it."""
    bytes: Count | None
    """The input of this rank; None if the trace does not contain it."""
    ranks: Count | None
    """In the process group; None if unknown."""
    calls: Count
    time_ns: Ns
    exposed_ns: Ns
    """The time in which nothing computed."""
    shortest_ns: Ns
    median_ns: Ns
    beyond_shortest_ns: Ns
    """How much longer all calls together took than if each were as short as the shortest."""
    bus_gb_per_s: float | None
    """Of the shortest call, counted as in NCCL's tests; None if size or group is unknown."""

    @property
    def name(self) -> str:
        """The operation and its algorithm."""
        return self.op if self.algorithm is None else f"{self.op} ({self.algorithm})"


class Dependence(Figures, frozen=True):
    """What the time of one operation depends on, from calls of several sizes; times in ns."""

    op: str
    per_call_ns: Ns
    """The time of a call without data, extrapolated from the shortest calls of each size."""
    bus_gb_per_s: float | None
    """How fast the time grows with the size; None if it does not grow, or the group is unknown."""
    parts: dict[Annotated[str, one_of(PARTS)], Ns] = msgspec.field(name="parts_us")
    """They sum to the time of all calls whose size is known."""
    grows: Internal[bool]
    """Whether larger calls take longer, by as much as a link needs for their data. If not, the
    time beyond the shortest call of any size is waiting."""


@once
def analyze(trace: Trace) -> Communication | Unavailable:
    """Look at the collectives of the steps, or of the trace if it has no steps."""
    every, computes = work_of(trace)
    base, events, unseen = base_window(trace), trace.events, unseen_calls(trace)
    if base is not None:
        every = every[base.contains(trace, every)]
        # Of these, it is known when they were called, and not when they ran.
        unseen = unseen[base.overlaps(trace, unseen)]
    if base is None or len(every) == 0:
        ran = "no collectives" if base is None or len(unseen) == 0 else _unseen_runs(len(unseen))
        return Unavailable(f"The trace has {ran}.", "no_communication")
    calls = _Calls.of(trace, every, computes)
    begin, end = events.begin_ns[every], np.minimum(events.end_ns[every], base.end_ns)
    communicates = Cover(begin, end)
    if not len(device_work(trace).rows):
        # As in the verdict: also the operators that call a collective or wait for it.
        communicates = host_work(trace).communicating
    limits = np.array([base.begin_ns]), np.array([base.end_ns])
    union = int(communicates.length(*limits)[0])
    computed = int(computes.length(*limits)[0])
    exposed = int((computes | communicates).length(*limits)[0]) - computed
    small = calls.is_small
    return Communication(
        on_device=bool(len(device_work(trace).rows)),
        calls=len(every),
        time_ns=union,
        exposed_ns=exposed,
        room_ns=computed - (union - exposed),
        small=CountedTime(int(small.sum()), int(calls.dur_ns[small].sum())),
        sizes_known=int((calls.bytes_in >= 0).sum()),
        unseen_calls=_counted(*ops_of(trace, unseen)),
        dependence=_dependences(calls),
        by_size=_by_size(calls),
        base=base,
        details=calls,
    )


def _unseen_runs(calls: int) -> str:
    return f"{counted(calls, 'call')} of collectives on the device, and none of their runs"


def _counted(ops: list[str], op: NDArray[np.int32]) -> dict[str, int]:
    """Return the number of calls of each operation, the most first."""
    counts = dict(zip(ops, np.bincount(op, minlength=len(ops)).tolist(), strict=True))
    return dict(sorted(counts.items(), key=lambda each: -each[1]))


class _Calls(msgspec.Struct, frozen=True, dict=True):
    """The collectives of the base; arrays have one element for each."""

    trace: Trace
    rows: Rows
    ops: list[str]
    op: NDArray[np.int64]
    """Index into `ops`."""
    bytes_in: Numbers
    """-1 if unknown."""
    members: Numbers
    """-1 if unknown."""
    dur_ns: Numbers
    exposed_ns: Numbers
    """The time of each in which nothing computed. Time of several calls at once is divided."""

    @classmethod
    def of(cls, trace: Trace, rows: Rows, computes: Cover) -> _Calls:
        """Collect the facts about some collectives."""
        events = trace.events
        ops, op = ops_of(trace, rows)
        begin, end = events.begin_ns[rows], events.end_ns[rows]
        return cls(
            trace=trace,
            rows=rows,
            ops=ops,
            op=op.astype(np.int64),
            bytes_in=bytes_in(trace, rows),
            members=members(trace, rows),
            dur_ns=events.dur_ns[rows],
            exposed_ns=_exposed_of(begin, end, computes),
        )

    @cached_property
    def is_small(self) -> Mask:
        """Which carry little data; by their time if the size is unknown."""
        small: Mask = np.where(
            self.bytes_in >= 0, self.bytes_in < SMALL_BYTES, self.dur_ns < SMALL_NS
        )
        return small

    @cached_property
    def groups(self) -> list[Rows]:
        """The indices of the calls of each operation, size and group."""
        _, which = distinct(self.op, self.bytes_in, self.members)
        return by_group(which, int(which.max()) + 1)

    @cached_property
    def shortest_ns(self) -> Numbers:
        """The shortest call of the same operation and size."""
        shortest = np.zeros(len(self.rows), dtype=np.int64)
        for same in self.groups:
            shortest[same] = self.dur_ns[same].min()
        return shortest

    def bus_bytes(self, at: int) -> float | None:
        """What each link carries for a call."""
        ranks, size = int(self.members[at]), int(self.bytes_in[at])
        return bus_bytes(self.ops[int(self.op[at])], size, ranks)


def _exposed_of(begin: Numbers, end: Numbers, computes: Cover) -> Numbers:
    """Return the time of each interval in which nothing computed, at most as long as the union."""
    exposed_ns = end - begin - computes.length(begin, end)
    starts, ends = merged(begin, end)
    union = int((ends - starts - computes.length(starts, ends)).sum())
    if exposed_ns.sum() > union:
        exposed_ns = (exposed_ns * (union / exposed_ns.sum())).astype(np.int64)
    result: Numbers = exposed_ns
    return result


def _by_size(calls: _Calls) -> list[CollectiveSize]:
    sizes = []
    for group in calls.groups:
        at = int(group[0])
        shortest = int(calls.dur_ns[group].min())
        carried = calls.bus_bytes(at)
        size, ranks = int(calls.bytes_in[at]), int(calls.members[at])
        op = calls.ops[int(calls.op[at])]
        kernel = calls.trace.names[int(calls.trace.events.name[calls.rows[at]])]
        # NCCL sends and receives for an all-to-all.
        is_own = op_of(kernel) in (op, "send_recv" if op == "all_to_all" else op)
        sizes.append(
            CollectiveSize(
                op=op,
                algorithm=algorithm_of(kernel) if is_own else None,
                bytes=size if size >= 0 else None,
                ranks=ranks if ranks >= 0 else None,
                calls=len(group),
                time_ns=int(calls.dur_ns[group].sum()),
                exposed_ns=int(calls.exposed_ns[group].sum()),
                shortest_ns=shortest,
                median_ns=int(median(calls.dur_ns[group])),
                beyond_shortest_ns=int((calls.dur_ns[group] - shortest).sum()),
                bus_gb_per_s=carried / shortest if carried and shortest else None,
            )
        )
    return sorted(sizes, key=lambda each: -each.time_ns)


def _dependences(calls: _Calls) -> list[Dependence]:
    """Return what the time of each operation depends on, the most time first."""
    dependences = []
    for number, op in enumerate(calls.ops):
        of_op = np.flatnonzero((calls.op == number) & (calls.bytes_in > 0))
        ranks = set(calls.members[of_op].tolist())
        if len(ranks) != 1 or (line := _line(calls, of_op)) is None:
            continue
        waiting = int((calls.dur_ns[of_op] - calls.shortest_ns[of_op]).sum())
        total = int(calls.dur_ns[of_op].sum())
        grows = line.ns_per_byte > 0
        if not grows:
            waiting = total - round(line.per_call_ns * len(of_op))
        per_call = min(round(line.per_call_ns * len(of_op)), total - waiting)
        parts = {WAITING: waiting, PER_CALL: per_call, VOLUME: total - waiting - per_call}
        carried = bus_bytes(op, 1_000_000, ranks.pop())
        rate = None
        if carried is not None and grows:
            rate = carried / (1_000_000 * line.ns_per_byte)
        dependences.append(Dependence(op, round(line.per_call_ns), rate, parts, grows))
    return sorted(dependences, key=lambda each: -sum(each.parts.values()))


class _Line(NamedTuple):
    per_call_ns: float
    ns_per_byte: float


def _line(calls: _Calls, chosen: Rows) -> _Line | None:
    """Return the line through the shortest calls of each size; None if the sizes are similar."""
    sizes, which = numbered(calls.bytes_in[chosen])
    if len(sizes) < 2 or sizes[-1] < _LEAST_RANGE * sizes[0]:
        return None
    shortest = np.full(len(sizes), np.iinfo(np.int64).max)
    np.minimum.at(shortest, which, calls.dur_ns[chosen])
    slope, constant = np.polyfit(sizes.astype(np.float64), shortest.astype(np.float64), 1)
    if not 0 < slope <= _MOST_NS_PER_BYTE:
        return _Line(float(shortest.min()), 0.0)
    if constant < 0:
        size = sizes.astype(np.float64)
        return _Line(0.0, float((size * shortest).sum() / (size * size).sum()))
    return _Line(float(constant), float(slope))


class Communication(StructResult, frozen=True):
    """The collectives of the steps, or of the trace if it has no steps; times in ns."""

    on_device: bool
    """Whether a device communicates; if not, the host does."""
    calls: Count
    time_ns: Ns
    """The time in which at least one of them ran."""
    exposed_ns: Ns
    """The part of it in which nothing computed."""
    room_ns: Ns
    """How long something computed and nothing communicated: at most so much more of
    `exposed_us` can be hidden."""
    small: CountedTime
    """Calls with less than 1 MiB, or shorter than 20 µs if the size is unknown."""
    sizes_known: Count
    """The number of calls whose size is known."""
    unseen_calls: dict[str, Count]
    """Further calls, of collectives on the device, by operation: no event shows their runs."""
    dependence: list[Dependence]
    """For operations with calls of several sizes."""
    by_size: Annotated[list[CollectiveSize], first(_MOST_IN_JSON)]
    base: Internal[BaseWindow]
    details: Internal[_Calls]

    def findings(self) -> list[Finding]:
        """What most of the exposed time depends on, small calls, and broadcasts of buffers."""
        found = [self._of_time(), self._of_small(), self._of_buffers()]
        return [each for each in found if each is not None]

    def line(self) -> str:
        """The exposed time, and how much of it computation could still hide."""
        exposed = share(self.exposed_ns, self.time_ns)
        return (
            f"{counted(self.calls, 'collective')}, {in_words(self.time_ns, 'ns')}, of which"
            f" {in_percent(exposed)} exposed; {in_words(self.room_ns, 'ns')} of computation could"
            f" run beside it{self._unseen()}"
        )

    def _unseen(self) -> str:
        """Return which collectives the program called on the device whose runs are not shown."""
        if not self.unseen_calls:
            return ""
        named = ", ".join(f"{calls:,} {op}" for op, calls in self.unseen_calls.items())
        return f"; also {_unseen_runs(sum(self.unseen_calls.values()))} ({named})"

    def tables(self) -> list[Table]:
        """By operation and size, and what the time depends on."""
        left = len(self.by_size) - _SHOWN
        unknown = self.calls - self.sizes_known
        notes = ["GB/s of the bus as NCCL's tests count it, of the shortest call."]
        if self.small.count:
            notes.append(
                f"{counted(self.small.count, 'call')} of {self.calls:,} carry less than 1 MiB or"
                f" take less than 20 µs ({in_words(self.small.time_ns, 'ns')})."
            )
        if unknown:
            notes.append(f"The size of {counted(unknown, 'call')} is unknown: record shapes.")
        if left > 0:
            notes.append(f"{left:,} more rows are not shown.")
        tables = [
            Table.of(
                "Collectives",
                self.by_size[:_SHOWN],
                ("name", "collective", ""),
                ("bytes", "input", "bytes"),
                ("ranks", "ranks", ""),
                ("calls", "calls", ""),
                ("time_ns", "time", "ns"),
                ("exposed_ns", "exposed", "ns"),
                ("shortest_ns", "shortest", "ns"),
                ("median_ns", "median", "ns"),
                ("bus_gb_per_s", "bus", "GB/s"),
                note=" ".join(notes),
            )
        ]
        if self.dependence:
            tables.append(
                Table.of(
                    "What the time of collectives depends on",
                    self.dependence,
                    ("op", "collective", ""),
                    *(
                        (lambda each, part=part: each.parts[part], PARTS[part], "ns")
                        for part in PARTS
                    ),
                    ("per_call_ns", "a call without data", "ns"),
                    ("bus_gb_per_s", "bus", "GB/s"),
                    note="From the shortest calls of each size.",
                )
            )
        return tables

    def _of_time(self) -> Finding | None:
        """Return a finding about the part on which most of the time depends."""
        if not self.dependence:
            return None
        worst, calls = self.dependence[0], self.details
        of_op = np.flatnonzero((calls.op == calls.ops.index(worst.op)) & (calls.bytes_in > 0))
        part = max(worst.parts, key=lambda name: worst.parts[name])
        exposed, total = calls.exposed_ns[of_op], sum(worst.parts.values())
        spared = _spared(part, worst, calls, of_op)
        lost = int(np.minimum(spared, exposed).sum())
        severity = _SHARES.severity(share(lost, self.base.whole_ns))
        if severity is None:
            return None
        percent = share(worst.parts[part], total)
        sizes = calls.bytes_in[of_op]
        what = (
            f"{counted(len(of_op), 'call')} of {worst.op} with"
            f" {in_words(int(sizes.min()), 'bytes')} to {in_words(int(sizes.max()), 'bytes')} took"
            f" {in_words(total, 'ns')}"
        )
        rate, more = "", dict[str, float]()
        if part != WAITING and worst.bus_gb_per_s is not None:
            rate = f" ({in_words(worst.bus_gb_per_s * 1e9, 'bytes/s')} of the bus)"
        if part == WAITING:
            which = " of its size" if worst.grows else ""
            code, how = "communication.waiting", f"each call is as short as the shortest{which}"
            beyond = "calls of the same size" if worst.grows else "call, whatever the size"
            text = (
                f", {in_percent(percent)} of which is beyond the shortest {beyond}: the calls"
                " waited for other ranks, or shared the link."
            )
            action = "The traces of all ranks in one folder show which rank was late."
        elif part == PER_CALL:
            more["per_call_ns"] = worst.per_call_ns
            code, how = "communication.latency", "one call a step carries the data of all"
            text = (
                f", and {in_percent(percent)} of it does not depend on the size: each call takes at"
                f" least {in_words(worst.per_call_ns, 'ns')}{rate}."
            )
            action = (
                "Fewer collectives with more data in each (for DDP, bucket_cap_mb) need less time."
            )
            if worst.per_call_ns >= _CALL_NS:
                code = "communication.waiting"
                how = "a call takes only the time that depends on size"
                text += (
                    " That is more than a call of a library costs: the ranks wait for each other in"
                    " each call, or the link needs this long to begin."
                )
                action = "The traces of all ranks in one folder show whether ranks wait."
        else:
            code, how = "communication.volume", "each call carries half of the bytes"
            text = f", and {in_percent(percent)} of it grows with the size{rate}."
            action = (
                "Less data (gradients in half precision, or of several steps together) or a faster"
                " link needs less time."
            )
        if code == "communication.latency":
            # One call of each step remains.
            kept = min(max(self.base.steps, 1), len(of_op))
            spared = spared * (len(of_op) - kept) // len(of_op)
        longest = int(of_op[np.argmax(calls.dur_ns[of_op])])
        return Finding(
            of_size(severity, lost),
            f"{what}{text}",
            (
                evidence(calls.trace, int(calls.rows[longest])),
                Evidence(
                    PARTS[part] if worst.grows or part != WAITING else _LONGER,
                    None,
                    worst.parts[part],
                    "ns",
                ),
            ),
            code,
            numbers={
                "time_ns": total,
                "percent": percent,
                "least_bytes": int(sizes.min()),
                "most_bytes": int(sizes.max()),
                "calls": len(of_op),
            }
            | more,
            action=action,
            gain=gain_of_rows(calls.trace, calls.rows[of_op], np.minimum(spared, exposed), how),
        )

    def _of_small(self) -> Finding | None:
        """Return a finding if small calls take much time in which nothing computes."""
        calls = self.details
        small = np.flatnonzero(calls.is_small)
        steps = max(self.base.steps, 1)
        # The rest of a long call is not the cost of a call: it waited.
        costs = np.minimum(calls.exposed_ns[small], _CALL_NS)
        cost = int(costs.sum())
        percent = share(cost, self.base.whole_ns)
        severity = _SMALL_SHARES.severity(percent)
        if severity is None or len(small) < 2 * steps:
            return None
        # One call of each step remains.
        spared = costs * (1 - steps / len(small))
        known = bool((calls.bytes_in[small] >= 0).all())
        what = "less than 1 MiB" if known else "so little data that they take less than 20 µs"
        return Finding(
            of_size(severity, cost),
            f"{len(small):,} of {counted(len(calls.rows), 'collective')} carry {what}. While"
            f" nothing computed, they took {in_words(cost, 'ns')} ({in_percent(percent)} of"
            f" {self.base.label}).",
            (
                evidence(calls.trace, int(calls.rows[small[np.argmax(calls.dur_ns[small])]])),
                Evidence("small collectives", None, len(small), "events"),
            ),
            "communication.small_calls",
            numbers={
                "time_ns": cost,
                "percent": percent,
                "calls": len(small),
                "of": len(calls.rows),
                "most_per_call_ns": _CALL_NS,
            },
            gain=gain_of_rows(
                calls.trace, calls.rows[small], spared, "one call a step carries all of their data"
            ),
            action="Join the tensors of small collectives into one call, for example with larger"
            " buckets, or by flattening.",
            details="A call costs about the same for a few bytes as for some 100 KB.",
            caveat=f"At most {in_words(_CALL_NS, 'ns')} of each count, because longer calls waited"
            " for other ranks.",
        )

    def _of_buffers(self) -> Finding | None:
        """Return a finding about DistributedDataParallel's broadcasts of buffers."""
        calls, events = self.details, self.details.trace.events
        if "broadcast" not in calls.ops:
            return None
        forward = named(calls.trace, _DDP_FORWARD)
        around = Cover(events.begin_ns[forward], events.end_ns[forward])
        broadcasts = np.flatnonzero(calls.op == calls.ops.index("broadcast"))
        launched = launch_of(calls.trace, calls.rows[broadcasts])
        at = np.where(launched >= 0, launched, calls.rows[broadcasts])
        broadcasts = broadcasts[around.length(events.begin_ns[at], events.begin_ns[at] + 1) > 0]
        exposed = int(calls.exposed_ns[broadcasts].sum())
        severity = _SMALL_SHARES.severity(share(exposed, self.base.whole_ns))
        if severity is None:
            return None
        return Finding(
            of_size(severity, exposed),
            f"DistributedDataParallel broadcasts the buffers of the model in each forward pass:"
            f" {counted(len(broadcasts), 'broadcast')}, {in_words(exposed, 'ns')}"
            f" ({in_percent(share(exposed, self.base.whole_ns))} of {self.base.label}) in which"
            " nothing computed.",
            (
                evidence(
                    calls.trace, int(calls.rows[broadcasts[np.argmax(calls.dur_ns[broadcasts])]])
                ),
                Evidence("broadcasts of buffers", None, len(broadcasts), "events"),
            ),
            "communication.buffers",
            numbers={
                "time_ns": exposed,
                "percent": share(exposed, self.base.whole_ns),
                "calls": len(broadcasts),
            },
            gain=gain_of_rows(
                calls.trace,
                calls.rows[broadcasts],
                calls.exposed_ns[broadcasts],
                "buffers are not broadcast",
            ),
            action="If the buffers (such as the statistics of BatchNorm) may differ between ranks,"
            " or do not change, broadcast_buffers=False avoids their broadcasts.",
        )


def _spared(part: str, of: Dependence, calls: _Calls, chosen: Rows) -> Numbers:
    """Return the time of each call that a change of a part of the time spares."""
    if part == WAITING:
        shortest = calls.shortest_ns[chosen] if of.grows else of.per_call_ns
        result: Numbers = calls.dur_ns[chosen] - shortest
    elif part == PER_CALL:
        result = np.minimum(np.full(len(chosen), of.per_call_ns), calls.dur_ns[chosen])
    else:
        moving = np.maximum(calls.shortest_ns[chosen] - of.per_call_ns, 0)
        result = moving // 2
    return result
