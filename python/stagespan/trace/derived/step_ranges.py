"""Finds the steps of a program by the profiler's marks, or else by repeated events.

A repeated pattern counts as steps only if it cannot be the layers of a model: its block must
contain an exchange with the host, an optimizer step, or a forward and a backward pass. If a trace
contains nothing else, shapes can also show that a block does not use the result of the one before.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stagespan.pages.amounts import counted
from stagespan.pages.result import shortened
from stagespan.trace.derived.chains import passes_nothing_on
from stagespan.trace.derived.device import COMPUTE, device_work, launch_of, launches, streams
from stagespan.trace.derived.idle_causes import (
    CAPTURE_BEGINS,
    GRAPH_LAUNCHES,
    MARKS,
    STEP_MARKS,
)
from stagespan.trace.derived.kernel_kinds import COLLECTIVE
from stagespan.trace.derived.threads import among, named, outermost, threads
from stagespan.trace.derived.trees import tree_of
from stagespan.trace.read.groups import by_group, counts_of, numbered, values_of
from stagespan.trace.read.intervals import Mask, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

# A node of a backward pass that sums gradients, for example, can be followed by one operator.
_LEAST_FORWARD = 3
# The number of block lengths that are tried, the most frequent distances first.
_CANDIDATES = 96


class Repeat(msgspec.Struct, frozen=True):
    """A block of `length` elements that occurs `times` times in a row, the first at `begin`."""

    begin: int
    length: int
    times: int

    @property
    def end(self) -> int:
        """The index after the last complete block."""
        return self.begin + self.length * self.times


def longest_repeat(codes: Numbers, least_times: int = 3, least_length: int = 1) -> Repeat | None:
    """Return the repetition that covers most of a sequence; of equal ones, the shortest block.

    None if no block of at least `least_length` is repeated at least `least_times` times.
    """
    best: Repeat | None = None
    for length in _lengths(codes, least_times, least_length):
        same = codes[:-length] == codes[length:]
        for begin, run in _runs(same, (least_times - 1) * length):
            times = (run + length) // length
            if best is not None and length * times <= best.length * best.times:
                break
            if not _is_shorter(codes[begin : begin + length], least_length):
                best = Repeat(begin, length, times)
                break
    return best


def all_repeats(codes: Numbers, least_times: int, least_length: int, most: int) -> list[Repeat]:
    """Return repetitions that do not overlap, in order, preferring those that cover most."""
    repeats: list[Repeat] = []
    pieces = [(0, len(codes))]
    while pieces and len(repeats) < most:
        begin, end = pieces.pop(int(np.argmax([stop - start for start, stop in pieces])))
        repeat = longest_repeat(codes[begin:end], least_times, least_length)
        if repeat is None:
            continue
        repeat = Repeat(begin + repeat.begin, repeat.length, repeat.times)
        repeats.append(repeat)
        pieces += [(begin, repeat.begin), (repeat.end, end)]
    return sorted(repeats, key=lambda repeat: repeat.begin)


def _lengths(codes: Numbers, least_times: int, least_length: int) -> list[int]:
    """Return the lengths that a repeated block can have.

    If there are many possible lengths, these are the distances from an element to its next
    occurrence: if a block contains some element only once, its length is such a distance.
    """
    most = len(codes) // least_times
    if most - least_length < _CANDIDATES:
        return list(range(least_length, most + 1))
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    distance = np.diff(order)[ordered[1:] == ordered[:-1]]
    distance = distance[(distance >= least_length) & (distance * least_times <= len(codes))]
    lengths, counts = counts_of(distance)
    # A longer block occurs less often.
    weight = counts * lengths
    chosen = lengths[np.argsort(-weight, kind="stable")[:_CANDIDATES]]
    return sorted(int(length) for length in chosen)


def _is_shorter(block: Numbers, least_length: int) -> bool:
    """Whether a block is itself a repetition of a block that is too short."""
    lengths = (length for length in range(1, least_length) if len(block) % length == 0)
    return any(bool(np.all(block[:-length] == block[length:])) for length in lengths)


def same_block(first: Numbers, second: Numbers) -> bool:
    """Whether one block is a rotation of the other."""
    if len(first) != len(second):
        return False
    turns = np.flatnonzero(second == first[0])
    return any(bool(np.all(np.roll(second, -int(turn)) == first)) for turn in turns)


def _runs(same: NDArray[np.bool_], least: int) -> list[tuple[int, int]]:
    """Return begins and lengths of runs of at least this many True, the longest first."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    begins, lengths = edges[::2], edges[1::2] - edges[::2]
    long = np.flatnonzero(lengths >= max(least, 1))
    long = long[np.argsort(-lengths[long], kind="stable")]
    return list(zip(begins[long].tolist(), lengths[long].tolist(), strict=True))


# --- Steps ---


Source = Literal["profiler", "annotation", "optimizer", "operators", "kernels"]
PROFILER_STEP = STEP_MARKS
# The annotations of steps in vLLM and SGLang.
_SERVER_STEP = re.compile(r"^execute_(?:\d+_)?(?:context|generation)_\d+|^step\[")
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
# Annotations of the framework, which are parts of steps.
FRAMEWORK = re.compile(
    rf"^{COLLECTIVE}|^FSDP::|^## Call Compiled|^Optimizer\.|compile_id="
    r"|^enumerate\(DataLoader\)|\(dynamo_timed\)$|^PyTorch Profiler"
    r"|^(?:FullySharded|Distributed)?DataParallel\b|^Torch-Compiled Region|^TORCHDYNAMO$"
    r"|^(?:TorchDynamo|AOTDispatcher|Pregraph) "
)
_DIGITS = re.compile(r"\d+")
_EXCHANGES = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost", re.IGNORECASE)
_ENDS_STEP = re.compile(r"^aten::(?:item|_local_scalar_dense|is_nonzero)$|^Optimizer\.step")
_LEAST = 3
# A shorter block of operators or kernels is a loop within a step.
_LEAST_BLOCK = 8
# The least fraction of the range that contains all work.
_LEAST_SHARE = 0.5


class StepRanges(msgspec.Struct, frozen=True):
    """Steps in the order of time, which do not overlap."""

    names: list[str]
    begin_ns: Numbers
    end_ns: Numbers
    """The host's time; for steps that were found from kernels, the device's time."""
    source: Source
    how: str
    """A sentence on how the steps were found."""
    marks: Rows = msgspec.field(default_factory=lambda: np.empty(0, dtype=np.intp))
    """The events that only mark steps; empty if the steps were found in another way."""
    overlapping: int = 0
    """The number of marks that are not steps, because they overlap an earlier step."""

    @property
    def inferred(self) -> bool:
        """Whether the steps are inferred, because the trace does not mark them."""
        return self.source not in ("profiler", "annotation")

    @property
    def on_host(self) -> bool:
        """Whether the ranges are times of the host."""
        return self.source != "kernels"

    def __len__(self) -> int:
        return len(self.begin_ns)

    def at(self, time_ns: Numbers) -> Numbers:
        """Return the step that contains each time, or -1."""
        found = np.searchsorted(self.begin_ns, time_ns, side="right") - 1
        inside = (found >= 0) & (time_ns < self.end_ns[np.maximum(found, 0)])
        result: Numbers = np.where(inside, found, -1).astype(np.int64)
        return result


@once
def step_ranges(trace: Trace) -> StepRanges | None:
    """Return the steps of a trace, or None if unknown."""
    for search in (
        _of_profiler,
        _of_server,
        _of_annotations,
        _of_optimizer,
        _of_operators,
        _of_kernels,
        _of_calls,
    ):
        found = search(trace)
        if found is not None and not (found.inferred and _within_a_module(trace, found)):
            return found
    return None


_MODULE = re.compile(r"^nn\.Module: ")


def _within_a_module(trace: Trace, ranges: StepRanges) -> bool:
    """Whether all steps are within one call of a module, so that they are parts of it."""
    events = trace.events
    rows = np.flatnonzero(trace.rows_of(["python_function"]) & named(trace, _MODULE))
    begin, end = int(ranges.begin_ns[0]), int(ranges.end_ns[-1])
    if not ranges.on_host:
        device = device_work(trace).rows
        inside = (events.begin_ns[device] >= begin) & (events.begin_ns[device] < end)
        calls = launch_of(trace, device[inside])
        calls = calls[calls >= 0]
        if len(calls) == 0:
            return False
        begin, end = int(events.begin_ns[calls].min()), int(events.begin_ns[calls].max())
    around = (events.begin_ns[rows] <= begin) & (events.end_ns[rows] >= end)
    return bool(around.any())


@once
def step_begins(trace: Trace) -> Numbers:
    """Return the begins of steps on the host in ns, ascending; empty if unknown."""
    found = step_ranges(trace)
    return found.begin_ns if found is not None and found.on_host else np.empty(0, dtype=np.int64)


@once
def ran_before(trace: Trace) -> bool:
    """Whether the program ran before the trace: it did steps, or captured a graph that it launches.

    The profiler counts all steps, also those that it does not record.
    """
    calls = launches(trace)
    if among(calls, trace, GRAPH_LAUNCHES).any() and not among(calls, trace, CAPTURE_BEGINS).any():
        return True
    marks = trace.rows_of(["user_annotation", "cpu_op"]) & named(trace, PROFILER_STEP)
    names = (trace.names[code] for code in values_of(trace.events.name[marks]).tolist())
    numbers = [int(last) for name in names if (last := name.rpartition("#")[2]).isdigit()]
    return min(numbers, default=0) > 0


def _of_profiler(trace: Trace) -> StepRanges | None:
    events = trace.events
    marks = trace.rows_of(["user_annotation", "cpu_op"]) & named(trace, PROFILER_STEP)
    every = np.flatnonzero(marks)
    rows = _without_overlaps(trace, every)
    overlapping = len(every) - len(rows)
    how = "The profiler marked the steps."
    # The profiler opens a step that the program may never begin. If no step contains work, the work
    # ran in other threads.
    has_work = (_has_work(trace, row) for row in rows[:-1].tolist())
    if len(rows) > 1 and not _has_work(trace, int(rows[-1])) and any(has_work):
        rows = rows[:-1]
        how = "The profiler marked the steps. Its last mark contains no work and is skipped."
    if len(rows) == 0:
        return None
    names = [trace.names[code] for code in events.name[rows]]
    begin, end = events.begin_ns[rows], events.end_ns[rows]
    how += _about_overlaps(overlapping)
    return StepRanges(names, begin, end, "profiler", how, every, overlapping)


def _of_server(trace: Trace) -> StepRanges | None:
    events = trace.events
    marks = trace.rows_of(["user_annotation"]) & named(trace, _SERVER_STEP)
    every = np.flatnonzero(marks)
    rows = _without_overlaps(trace, every)
    if len(rows) == 0:
        return None
    names = [trace.names[code] for code in events.name[rows]]
    overlapping = len(every) - len(rows)
    how = "The annotations of an inference server mark its steps." + _about_overlaps(overlapping)
    begin, end = events.begin_ns[rows], events.end_ns[rows]
    return StepRanges(names, begin, end, "annotation", how, every, overlapping)


def _of_annotations(trace: Trace) -> StepRanges | None:
    events = trace.events
    marks = trace.rows_of(["user_annotation"])
    marks = marks & ~among(marks, trace, FRAMEWORK)
    all_rows = np.flatnonzero(marks & (events.dur_ns > 0))
    words = {code: _DIGITS.sub("#", trace.names[code]) for code in values_of(events.name[all_rows])}
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words.values()))}
    least = _LEAST_SHARE * _length_on_host(trace)
    best: tuple[int, StepRanges] | None = None
    tree, threads, thread = tree_of(trace, all_rows)
    level = tree.levels()
    begins, ends = events.begin_ns[all_rows], events.end_ns[all_rows]
    for of_thread in by_group(thread, len(threads)):
        if ends[of_thread].max() - begins[of_thread].min() < least:
            continue
        for depth in range(3):
            here = of_thread[level[of_thread] == depth]
            rows = all_rows[here[np.argsort(events.begin_ns[all_rows[here]], kind="stable")]]
            codes = np.array([numbers[words[c]] for c in events.name[rows]], dtype=np.int64)
            repeat = longest_repeat(codes, _LEAST) if len(codes) else None
            steps = (
                _blocks(trace, rows, repeat, codes) if repeat else _most_time(trace, rows, codes)
            )
            if steps is None:
                continue
            length = int(steps.end_ns[-1] - steps.begin_ns[0])
            covered = int((steps.end_ns - steps.begin_ns).sum())
            if length < least:
                continue
            if best is None or covered > best[0]:
                best = (covered, steps)
            break
    return None if best is None or _overlaps(trace, all_rows, best[1]) else best[1]


def _blocks(trace: Trace, rows: Rows, repeat: Repeat, codes: Numbers) -> StepRanges:
    """Return steps from repeated annotations."""
    events = trace.events
    firsts = rows[repeat.begin : repeat.end : repeat.length]
    lasts = rows[repeat.begin + repeat.length - 1 : repeat.end : repeat.length]
    first, last = (trace.names[events.name[each[0]]] for each in (firsts, lasts))
    names = [trace.names[code] for code in events.name[firsts]]
    if repeat.length == 1:
        how = f"The annotation {shortened(first)} repeats and is taken as the step."
    else:
        how = (
            f"{repeat.length} annotations repeat, from {shortened(first)} to {shortened(last)};"
            " one repetition is taken as a step."
        )
    if len(set(names)) < len(names):
        names = _numbered("step", len(names))
    # If several annotations repeat, they are parts of steps and do not mark them.
    marks = rows[(codes == codes[repeat.begin]) & (repeat.length == 1)]
    begin, end = events.begin_ns[firsts], events.end_ns[lasts]
    return StepRanges(names, begin, end, "annotation", how, marks)


def _most_time(trace: Trace, rows: Rows, codes: Numbers) -> StepRanges | None:
    """Return the annotation with at least half of all their time, if it occurs often enough."""
    if len(rows) == 0:
        return None
    durations = trace.events.dur_ns[rows]
    times = np.bincount(codes, weights=durations)
    code = int(np.argmax(times))
    every = rows[codes == code]
    apart = _without_overlaps(trace, every)
    if len(apart) < _LEAST or times[code] < _LEAST_SHARE * durations.sum():
        return None
    steps = _blocks(trace, apart, Repeat(0, 1, len(apart)), np.full(len(apart), code))
    overlapping = len(every) - len(apart)
    return structs.replace(
        steps, how=steps.how + _about_overlaps(overlapping), overlapping=overlapping
    )


def _overlaps(trace: Trace, rows: Rows, steps: StepRanges) -> bool:
    """Whether several threads are in the same annotations at the same time, as in a server."""
    events = trace.events
    codes = {
        _DIGITS.sub("#", trace.names[events.name[row]])
        for row in rows[np.isin(events.begin_ns[rows], steps.begin_ns[:_LEAST])]
    }
    same = np.array([_DIGITS.sub("#", name) in codes for name in trace.names])
    of_kind = rows[same[events.name[rows]]]
    _, thread = threads(trace, of_kind)
    order = np.argsort(events.begin_ns[of_kind], kind="stable")
    of_kind, thread = of_kind[order], thread[order]
    crossed = events.begin_ns[of_kind][1:] < events.end_ns[of_kind][:-1]
    return bool(np.any(crossed & (thread[1:] != thread[:-1])))


def _of_optimizer(trace: Trace) -> StepRanges | None:
    """Return steps from the end of an optimizer's step to the end of the next."""
    events = trace.events
    marks = among(trace.rows_of(["user_annotation", "cpu_op"]), trace, OPTIMIZER_STEP)
    rows = np.flatnonzero(marks)
    if len(rows) == 0:
        return None
    codes, counts = counts_of(events.name[rows])
    every = rows[events.name[rows] == codes[np.argmax(counts)]]
    rows = _without_overlaps(trace, every)
    overlapping = len(every) - len(rows)
    if len(rows) < _LEAST:
        return None
    ends = events.end_ns[rows]
    how = (
        f"Steps are not marked. A step is taken from the end of one"
        f" {shortened(trace.names[events.name[rows[0]]])} to the end of the next."
        f"{_about_overlaps(overlapping)}"
    )
    names = _numbered("step", len(rows) - 1)
    return StepRanges(names, ends[:-1], ends[1:], "optimizer", how, overlapping=overlapping)


def _of_operators(trace: Trace) -> StepRanges | None:
    """Return steps from a repeated sequence of operators on the thread that launches the most."""
    events = trace.events
    work = device_work(trace)
    rows = _main_operators(trace)
    if len(rows) == 0:
        return None
    outer = outermost(trace, rows)
    repeat = longest_repeat(events.name[outer].astype(np.int64), _LEAST, _LEAST_BLOCK)
    if repeat is None:
        return None
    ends_step = named(trace, _ENDS_STEP)
    repeat = _turned(repeat, ends_step[outer])
    begin = events.begin_ns[outer[repeat.begin : repeat.end : repeat.length]]
    end = events.end_ns[outer[repeat.end - 1 : repeat.end]]
    if end[0] - begin[0] < _LEAST_SHARE * _length_on_host(trace):
        return None
    edges = np.concatenate((begin, end))
    copies = launch_of(trace, work.rows[named(trace, _EXCHANGES, work.rows)])
    kernels = launch_of(trace, work.rows[work.kind[work.rows] == COMPUTE])
    waits = rows[ends_step[rows]]
    exchanges = events.begin_ns[np.concatenate((copies[copies >= 0], waits))]
    computes = events.begin_ns[kernels[kernels >= 0]]
    on_device = len(work.rows) > 0
    ends = _in_each(exchanges, edges) or trains(trace, outer[repeat.begin : repeat.end], repeat)
    if not ends or (on_device and not _in_each(computes, edges)):
        return None
    return _repetitions(trace, outer, repeat)


def _of_calls(trace: Trace) -> StepRanges | None:
    """Return the calls of a model on a host, if a trace consists of nothing else."""
    rows = _main_operators(trace)
    if len(rows) == 0 or len(device_work(trace).rows):
        return None
    outer = outermost(trace, rows)
    repeat = longest_repeat(trace.events.name[outer].astype(np.int64), _LEAST)
    if repeat is None or repeat.length * repeat.times < len(outer):
        return None
    if not passes_nothing_on(trace, outer[: repeat.length]):
        return None
    return _repetitions(trace, outer, repeat)


def _repetitions(trace: Trace, outer: Rows, repeat: Repeat) -> StepRanges:
    """Return a step for each repetition, until the next one begins."""
    events = trace.events
    begin = events.begin_ns[outer[repeat.begin : repeat.end : repeat.length]]
    edges = np.concatenate((begin, events.end_ns[outer[repeat.end - 1 : repeat.end]]))
    how = (
        f"Steps are not marked. {repeat.length:,} operators, starting with"
        f" {shortened(trace.names[events.name[outer[repeat.begin]]])}, repeat; one repetition is"
        " taken as a step."
    )
    names = _numbered("step", repeat.times)
    return StepRanges(names, edges[:-1], edges[1:], "operators", how)


_BACKWARD = re.compile(r"^autograd::engine::evaluate_function: ")


def trains(trace: Trace, rows: Rows, repeat: Repeat) -> bool:
    """Whether a repeated block of operators has a forward and a backward pass.

    A layer has only one of them: operators that checkpointing runs again are inside the nodes of
    the backward pass. `rows` are those of all repetitions.
    """
    backward = named(trace, _BACKWARD, rows[: repeat.length])
    return bool(backward.any() and (~backward).sum() >= _LEAST_FORWARD)


@once
def _main_operators(trace: Trace) -> Rows:
    """Return the operators of the thread with the most launches, or operators, by begin."""
    events = trace.events
    calls = launch_of(trace, device_work(trace).rows)
    calls = calls[calls >= 0]
    rows = np.flatnonzero(trace.rows_of(["cpu_op"]) & ~named(trace, MARKS) & (events.dur_ns > 0))
    if len(rows) == 0:
        return rows
    _, thread = threads(trace, np.concatenate((calls, rows)))
    counted = thread[: len(calls)] if len(calls) else thread
    rows = rows[thread[len(calls) :] == np.argmax(np.bincount(counted))]
    ordered: Rows = rows[np.lexsort((-events.end_ns[rows], events.begin_ns[rows]))]
    return ordered


def _turned(repeat: Repeat, ends_step: Mask) -> Repeat:
    """Return the repetition from the event after the last end of a step in its first block.

    It is unchanged if it begins there, if it has no end of a step, or if it has few blocks.
    """
    ends = np.flatnonzero(ends_step[repeat.begin : repeat.begin + repeat.length])
    if len(ends) == 0 or ends[-1] == repeat.length - 1 or repeat.times <= _LEAST:
        return repeat
    return Repeat(repeat.begin + int(ends[-1]) + 1, repeat.length, repeat.times - 1)


def _of_kernels(trace: Trace) -> StepRanges | None:
    """Return steps from a repeated sequence of kernels and copies on the busiest stream."""
    events = trace.events
    rows = device_work(trace).rows
    if len(rows) == 0:
        return None
    device, stream = streams(trace, rows)
    of_stream = numbered(device)[1]
    names, of = numbered(stream)
    of_stream = of_stream * len(names) + of
    rows = rows[of_stream == np.argmax(np.bincount(of_stream))]
    rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    repeat = longest_repeat(events.name[rows].astype(np.int64), _LEAST, _LEAST_BLOCK)
    if repeat is None:
        return None
    begin = events.begin_ns[rows[repeat.begin : repeat.end : repeat.length]]
    end = events.end_ns[rows[repeat.end - 1 : repeat.end]]
    edges = np.concatenate((begin, end))
    copies = rows[named(trace, _EXCHANGES, rows)]
    kernels = rows[device_work(trace).kind[rows] == COMPUTE]
    if not all(_in_each(events.begin_ns[each], edges) for each in (copies, kernels)):
        return None
    if edges[-1] - edges[0] < _LEAST_SHARE * length_of_work(trace):
        return None
    how = (
        f"Steps are not marked. {repeat.length:,} kernels and copies of a stream, starting with"
        f" {shortened(trace.names[events.name[rows[repeat.begin]]])}, repeat; one repetition is"
        " taken as a step."
    )
    return StepRanges(_numbered("step", repeat.times), edges[:-1], edges[1:], "kernels", how)


def _about_overlaps(count: int) -> str:
    if count == 0:
        return ""
    return f" {counted(count, 'mark')} {'overlaps an' if count == 1 else 'overlap'} earlier " + (
        "one and is skipped." if count == 1 else "ones and are skipped."
    )


def _without_overlaps(trace: Trace, rows: Rows) -> Rows:
    """Return marks by time; of overlapping marks, only the first."""
    begin, dur = trace.events.begin_ns[rows], trace.events.dur_ns[rows]
    order = np.lexsort((-dur, begin))
    kept: list[int] = []
    last = None
    for at, start, length in zip(
        order.tolist(), begin[order].tolist(), dur[order].tolist(), strict=True
    ):
        if last is None or start >= last:
            kept.append(at)
            last = start + length
    return rows[np.array(kept, dtype=np.intp)]


def _has_work(trace: Trace, row: int) -> bool:
    events = trace.events
    work = (trace.rows_of(["cpu_op"]) & ~named(trace, MARKS)) | launches(trace)
    inside = (events.begin_ns >= events.begin_ns[row]) & (events.begin_ns < events.end_ns[row])
    return bool(np.any(work & inside))


@once
def length_of_work(trace: Trace) -> int:
    """Return the time from the first operator or device event to the end of the last, in ns."""
    return _extent(trace, device_work(trace).kind.astype(np.bool_) | trace.rows_of(["cpu_op"]))


def _length_on_host(trace: Trace) -> int:
    """Return the same for operators, or for device events if the trace has no operators."""
    return _extent(trace, trace.rows_of(["cpu_op"])) or length_of_work(trace)


def _extent(trace: Trace, which: Mask) -> int:
    events = trace.events
    if not which.any():
        return 0
    return int(events.end_ns[which].max() - events.begin_ns[which].min())


def _in_each(times: Numbers, edges: Numbers) -> bool:
    """Whether each interval between two edges contains one of the times."""
    counts = np.diff(np.searchsorted(np.sort(times), edges))
    return bool(np.all(counts > 0))


def _numbered(word: str, count: int) -> list[str]:
    return [f"{word} {number}" for number in range(1, count + 1)]
