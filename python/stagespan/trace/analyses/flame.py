"""A flame graph of the host's time by line of Python, if the trace has stacks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, partial
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.errors import TraceError
from stagespan.pages.escaping import one_line
from stagespan.pages.figures import Count, Figures, Ns, one_of
from stagespan.pages.result import (
    LONGEST_NAME,
    Chart,
    Result,
    Table,
    Unavailable,
    share,
    shortened,
)
from stagespan.trace.derived.device import launches
from stagespan.trace.derived.idle_causes import MARKS
from stagespan.trace.derived.missing import DAMAGED_TIMES
from stagespan.trace.derived.step_ranges import PROFILER_STEP
from stagespan.trace.derived.threads import Axis, ThreadIndex, named
from stagespan.trace.derived.trees import Nesting, Paths, levels, with_those_below
from stagespan.trace.evidence import window_of
from stagespan.trace.read.groups import numbered, sums, values_of
from stagespan.trace.read.intervals import Mask, Numbers, Rows, exclusive
from stagespan.trace.read.model import Trace

_MOST_IN_JSON = 1_500
_DEEPEST = 250
# A folded stack contains the names of all its frames.
_DEEPEST_STACK = _DEEPEST
_SHOWN = 15
_LINE = re.compile(r"\.py\(\d+\): |^<[^>]+>\(\d+\): ")
# Lines of Python that only forward a call.
_WRAPPER = re.compile(
    r": (?:__torch_function__|_(?:wrapped_)?call_impl)$|(?:^|/)torch/_ops\.py\(\d+\): __call__$"
    r"|(?:^|/)(?:contextlib|functools)\.py\(|(?:^|/)torch/autograd/profiler\.py\(\d+\): __enter__$"
)
_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages/")
_WIDTH = 58


def analyze(trace: Trace) -> Flame | Unavailable:
    """Build the tree; Unavailable if the trace has no stacks."""
    if bool(trace.rows_of(["python_function"]).any()):
        return _of_frames(trace)
    found = _of_stacks(trace)
    if found is not None:
        return found
    return Unavailable(
        "The trace has no Python stacks, so nothing is known about lines of code: record it"
        " with stacks (with_stack=True).",
        "no_stacks",
        needs=("Python stacks", "with_stack=True"),
    )


class FlameTree(msgspec.Struct, frozen=True):
    """Frames; all lists have one element for each one, and parents come before children."""

    names: list[str]
    parent: list[int]
    """The caller of each frame, or -1 for threads."""
    self_ns: Numbers
    """The time in each frame, without the frames that it called."""
    total_ns: Numbers
    works: NDArray[np.bool_]
    """Whether each is an operator or a call of the runtime."""


class Flame(Result, msgspec.Struct, frozen=True, dict=True):
    """A tree of frames, which is built when it is used: pages for the terminal do not need it."""

    source: str
    """"frames": events of Python's functions; "call_stack": an argument of operators."""
    build: Callable[[], FlameTree]

    @cached_property
    def tree(self) -> FlameTree:
        """The tree of frames."""
        return self.build()

    def figures(self) -> FlameFigures:
        """Nested frames; short frames of one caller are combined."""
        return FlameFigures(
            source=self.source,
            frames=len(self.tree.names),
            total_ns=int(self.tree.self_ns.sum()),
            tree=_nested(self.tree, self._kept()),
        )

    def tables(self) -> list[Table]:
        """The lines of Python with the most own time, including the operators called there."""
        self_ns = self.tree.self_ns.tolist()
        works = self._threads_that_work()
        time: dict[str, int] = {}
        is_line = {
            name: _LINE.search(name) is not None and not _WRAPPER.search(name)
            for name in set(self.tree.names)
        }
        # Operators and wrappers count towards the line that called them, if there is one.
        works_there = works.tolist()
        for frame in range(len(self_ns) - 1, -1, -1):
            if self.tree.parent[frame] < 0 or not works_there[frame]:
                continue
            name = self.tree.names[frame]
            if is_line[name]:
                time[name] = time.get(name, 0) + self_ns[frame]
            else:
                self_ns[self.tree.parent[frame]] += self_ns[frame]
        whole = int(self.tree.self_ns[works].sum())
        longest = sorted(time.items(), key=lambda item: -item[1])[:_SHOWN]
        rows = [(_short(name), spent, share(spent, whole)) for name, spent in longest if spent]
        note = "Own time including the operators called there, for threads that call operators."
        columns = (("line", ""), ("time", "ns"), ("of all", "%"))
        return [Table("Lines of Python", columns, rows, note)]

    def number_of_tables(self) -> int:
        """Return 1, without building the tree."""
        return 1

    def _threads_that_work(self) -> NDArray[np.bool_]:
        """Return which frames are in threads that also run operators."""
        roots: list[int] = []
        for frame, parent in enumerate(self.tree.parent):
            roots.append(roots[parent] if parent >= 0 else frame)
        root = np.array(roots, dtype=np.intp)
        calls = np.zeros(len(self.tree.names), dtype=np.bool_)
        calls[root[self.tree.works]] = True
        return calls[root] if calls.any() else np.ones(len(self.tree.names), dtype=np.bool_)

    def chart(self) -> Chart | None:
        """The tree of frames as columns, with callers before the frames that they call."""
        names: list[str] = []
        parents: list[int] = []
        self_ns: list[int] = []
        deepest = 0
        left = [(_nested(self.tree, self._kept()), -1, 1)]
        while left:
            node, parent, depth = left.pop()
            deepest = max(deepest, depth)
            number = len(names)
            names.append(shortened(node.name, LONGEST_NAME))
            parents.append(parent)
            self_ns.append(node.self_ns)
            left += [(child, number, depth + 1) for child in reversed(node.children)]
        if not any(self_ns):
            return None
        frames = len(self.tree.names)
        note = f"{len(names):,} frames"
        note += f" of {frames:,} are drawn" if frames > len(names) else ""
        return {
            "kind": "flame",
            "names": names,
            "parents": parents,
            "self_ns": self_ns,
            "depth": deepest,
            "note": f"{note}; short ones of one caller are shown as one.",
        }

    def folded(self) -> str:
        """Return one line for each stack: `thread;caller;called 123`, own time in microseconds."""
        stacks: list[str] = []
        lines: list[str] = []
        times = ((self.tree.self_ns + 500) // 1000).tolist()
        for name, parent, time in zip(self.tree.names, self.tree.parent, times, strict=True):
            # Names must not contain the separators of frames and lines.
            word = one_line(name).replace(";", ",")
            stacks.append(f"{stacks[parent]};{word}" if parent >= 0 else word)
            if time:
                lines.append(f"{stacks[-1]} {time}\n")
        return "".join(lines)

    def _kept(self) -> list[bool]:
        """Which frames the nested form contains, limited in number and depth for JSON readers."""
        kept = levels(np.array(self.tree.parent, dtype=np.intp)) < _DEEPEST
        # If times are equal, choose the first frames, so that every frame has its caller.
        kept[np.argsort(-self.tree.total_ns, kind="stable")[_MOST_IN_JSON:]] = False
        result: list[bool] = kept.tolist()
        return result


class FlameFrame(Figures, frozen=True):
    """All calls of a frame by the same callers."""

    name: str
    self_ns: Ns
    """The time without the frames that it called."""
    total_ns: Ns
    children: list[FlameFrame]


# Apart from `Flame`, whose columns have one element for each frame: these nest the longest frames,
# which only the JSON needs.
class FlameFigures(Figures, frozen=True):
    """The tree of frames."""

    source: Annotated[str, one_of(("frames", "call_stack"))]
    frames: Count
    total_ns: Ns
    tree: FlameFrame


def folded_of(flame: Result | Unavailable | None) -> str:
    """The folded stacks of a result. Raises TraceError with the reason if it has none."""
    if isinstance(flame, Flame):
        return flame.folded()
    reason = "--flame works for one trace only: pass one file."
    raise TraceError(flame.reason if isinstance(flame, Unavailable) else reason)


def _of_frames(trace: Trace) -> Flame | Unavailable:
    """Nest events of Python functions, with operators and runtime calls in them."""
    window = window_of(trace)
    # There are no more threads than events, so most traces need no look at the threads.
    if window is None or not Axis(*window, len(trace.events)).fits:
        rows, _, _ = _rows_of_stacks(trace)
        if not ThreadIndex(trace, rows).fits:
            return DAMAGED_TIMES
    return Flame("frames", partial(_tree_of_frames, trace))


def _tree_of_frames(trace: Trace) -> FlameTree:
    forest, threads, with_frames = _forest_of_frames(trace)
    events = trace.events
    parents, own_ns = forest.parents_and_own_ns()
    parents = np.concatenate((np.full(len(with_frames), -1), _below(forest, parents, with_frames)))
    own_ns = np.concatenate((np.zeros(len(with_frames), dtype=np.int64), own_ns))
    word: Numbers = np.concatenate((len(trace.names) + with_frames, events.name[forest.rows]))
    is_work = ~trace.rows_of(["python_function"])[forest.rows]
    names_of_work = values_of(events.name[forest.rows[is_work]])
    # The paths take much memory.
    del forest, is_work
    paths = Paths(parents, word, _DEEPEST_STACK)
    words = [_thread(trace, pid, tid) for pid, tid in threads.tolist()]
    names = [
        words[word - len(trace.names)] if word >= len(trace.names) else trace.names[word]
        for word in paths.word.tolist()
    ]
    self_ns = paths.sums(own_ns)
    works = np.isin(paths.word, names_of_work)
    total = paths.inclusive(self_ns)
    return FlameTree(names, paths.parent.tolist(), self_ns, total, works)


def _rows_of_stacks(trace: Trace) -> tuple[Rows, Mask, Mask]:
    """Return the events of stacks, and which events are frames, and which are operators."""
    frames = trace.rows_of(["python_function"])
    operators = trace.rows_of(["cpu_op"]) & ~named(trace, MARKS)
    return np.flatnonzero(frames | operators | launches(trace)), frames, operators


def _forest_of_frames(trace: Trace) -> tuple[Nesting, NDArray[np.int64], Numbers]:
    """The events of threads with frames; all threads, and the numbers of those with frames."""
    events = trace.events
    rows, frames, operators = _rows_of_stacks(trace)
    # Threads without a frame have no stacks.
    index = ThreadIndex(trace, rows)
    thread = index.of[0]
    with_frames = values_of(thread[frames[rows]])
    if len(with_frames) < len(index.threads):
        inside = np.isin(thread, with_frames)
        rows, thread = rows[inside], thread[inside]
    # If events begin and end together, the caller comes first.
    is_frame = frames[rows]
    rank = np.where(is_frame, 0, np.where(operators[rows], 1, 2)).astype(np.int8)
    order = np.where(is_frame, events.python_id[rows], 0)
    return Nesting.of(trace, index.axis, rows, thread, rank, order), index.threads, with_frames


def _below(forest: Nesting, parents: Rows, threads: Numbers) -> Rows:
    """Return the parents after the threads have been added in front as roots."""
    result: Rows = parents + len(threads)
    outermost = np.flatnonzero(parents < 0)
    thread = forest.begin[outermost] // forest.axis.stride
    result[outermost] = np.searchsorted(threads, thread)
    return result


def _of_stacks(trace: Trace) -> Flame | None:
    """Build the tree from the stacks that older profilers wrote as arguments of operators."""
    written = trace.argument("Call stack") if len(trace.events) else None
    if written is None or written.numbers is not None:
        return None
    events = trace.events
    operators = np.flatnonzero(trace.rows_of(["cpu_op"]) & ~named(trace, PROFILER_STEP))
    of_operators = ThreadIndex(trace, operators)
    own_ns = np.zeros(len(events), dtype=np.int64)
    own_ns[operators] = exclusive(
        events.begin_ns[operators], events.end_ns[operators], of_operators.of[0]
    )
    cell = written.codes.astype(np.int64) * len(trace.names) + events.name[written.rows]
    cells, of = numbered(cell)
    times = sums(of, own_ns[written.rows], len(cells)).tolist()
    index: dict[tuple[int, str], int] = {}
    names: list[str] = []
    parents: list[int] = []
    self_times: list[int] = []
    for number, time in zip(cells.tolist(), times, strict=True):
        stack, name = divmod(number, len(trace.names))
        frames = [frame.strip() for frame in written.texts[stack].split(";")]
        at = -1
        for frame in [*(frame for frame in frames[::-1] if frame), trace.names[name]]:
            if (at, frame) not in index:
                index[at, frame] = len(names)
                names.append(frame)
                parents.append(at)
                self_times.append(0)
            at = index[at, frame]
        self_times[at] += time
    self_ns = np.array(self_times, dtype=np.int64)
    total_ns = with_those_below(np.array(parents, dtype=np.intp), self_ns)
    return Flame("call_stack", partial(FlameTree, names, parents, self_ns, total_ns, self_ns > 0))


def _nested(flame: FlameTree, kept: list[bool]) -> FlameFrame:
    """Return nested frames below one root frame, the longest first."""
    self_ns, total = flame.self_ns.tolist(), flame.total_ns.tolist()
    root = FlameFrame("all", 0, sum(self_ns), [])
    made: dict[int, FlameFrame] = {-1: root}
    short: dict[int, list[int]] = {}
    for frame, parent in enumerate(flame.parent):
        if kept[frame]:
            made[frame] = FlameFrame(flame.names[frame], self_ns[frame], total[frame], [])
            made[parent].children.append(made[frame])
        elif parent in made:
            short.setdefault(parent, []).append(frame)
    for parent, frames in short.items():
        time = sum(total[frame] for frame in frames)
        made[parent].children.append(FlameFrame(f"({len(frames)} more)", time, time, []))
    for node in made.values():
        if len(node.children) > 1:
            node.children.sort(key=lambda child: -child.total_ns)
    return root


def _short(name: str) -> str:
    """Return a line without the path of its package, or with only the end of a long path."""
    name = _PACKAGES.sub("", name)
    return name if len(name) <= _WIDTH else f"...{name[3 - _WIDTH :]}"


def _thread(trace: Trace, pid: int, tid: int) -> str:
    name = trace.thread_names.get((pid, tid))
    return f"thread {trace.named_ids.get(tid, tid)}" if name is None else name
