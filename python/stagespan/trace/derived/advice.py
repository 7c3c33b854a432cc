"""Advice on lost time: sentences, each with the facts that a trace must show for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property

import msgspec
import numpy as np

from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.compile_events import runs_compiled
from stagespan.trace.derived.device import COPY, device_work
from stagespan.trace.derived.gaps import NAMES, Gaps, IdleParts, graph_calls
from stagespan.trace.derived.recording_cost import StackCost, stack_cost
from stagespan.trace.derived.threads import named
from stagespan.trace.read.groups import values_of
from stagespan.trace.read.intervals import Cover, Numbers
from stagespan.trace.read.model import Trace

_REGION = re.compile(r"^Torch-Compiled Region")
_GENERATED = re.compile(r"torchinductor_|^## Call CompiledFxGraph")
_ONE_PROCESS = re.compile(r"_SingleProcessDataLoaderIter")
_WORKERS = re.compile(r"_MultiProcessingDataLoaderIter")
STARTS_LOADER = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __iter__$")
"""The frame of Python in which a loader starts its workers."""
_PAGEABLE = re.compile(r"Pageable", re.IGNORECASE)
_OF_HOST = re.compile(r"Host", re.IGNORECASE)
_FREES = re.compile(r"Free|Release|Unmap", re.IGNORECASE)
# The number of longest calls that are not regarded as representative.
_ONCE = 3
_MANY = 50
# The least percentage of the device's span for copies of pageable memory.
_LEAST_PAGEABLE = 1.0


class Facts:
    """The facts about a trace on which advice depends; each is computed at its first use."""

    def __init__(
        self, trace: Trace, gaps: Gaps | None = None, parts: IdleParts | None = None
    ) -> None:
        """Without gaps (a trace of only the host), all facts about the device are False."""
        self._trace, self._gaps, self._parts = trace, gaps, parts

    @cached_property
    def compiled(self) -> bool:
        """Whether compiled code ran."""
        return runs_compiled(self._trace)

    @cached_property
    def generated(self) -> bool:
        """Whether code that Inductor generated launched the work after most of the idle time."""
        if self._gaps is None:
            return False
        events, gaps = self._trace.events, self._gaps
        rows = np.flatnonzero(named(self._trace, _GENERATED))
        has_origin = gaps.first_origin >= 0
        at = events.begin_ns[gaps.first_origin[has_origin]]
        inside = Cover(events.begin_ns[rows], events.end_ns[rows]).length(at, at + 1) > 0
        time = gaps.dur_ns[has_origin]
        return 2 * int(time[inside].sum()) > int(time.sum())

    @cached_property
    def graphs(self) -> bool:
        """Whether device graphs were launched."""
        return self._gaps is not None and bool(graph_calls(self._trace, self._gaps.calls).any())

    @cached_property
    def stacks(self) -> bool:
        """Whether the profiler recorded Python's stacks."""
        return bool(self._trace.rows_of(["python_function"]).any())

    def stack_cost_in(self, blamed: Sequence[str]) -> tuple[StackCost, int, int] | None:
        """Return the cost of recorded stacks, its time in these causes, and the causes' time."""
        cost = stack_cost(self._trace)
        if cost is None or self._gaps is None or self._parts is None:
            return None
        time = self._parts.parts[:, [NAMES.index(cause) for cause in blamed]].sum(axis=1)
        took = np.minimum(cost.recorded_ns(self._gaps.begin_ns, self._gaps.end_ns), time)
        return cost, int(took.sum()), int(time.sum())

    def region_in(self, blamed: Sequence[str]) -> tuple[str, int, int] | None:
        """Return the compiled region in which most of these causes' time is, or None.

        It is its name, the number of its calls, and the time in it in ns.
        """
        if self._gaps is None or self._parts is None:
            return None
        events, gaps = self._trace.events, self._gaps
        time = self._parts.parts[:, [NAMES.index(cause) for cause in blamed]].sum(axis=1)
        has_origin = (gaps.first_origin >= 0) & (time > 0)
        at, time = events.begin_ns[gaps.first_origin[has_origin]], time[has_origin]
        rows = np.flatnonzero(named(self._trace, _REGION))
        best: tuple[str, int, int] | None = None
        for code in values_of(events.name[rows]).tolist():
            of_name = rows[events.name[rows] == code]
            inside = Cover(events.begin_ns[of_name], events.end_ns[of_name]).length(at, at + 1) > 0
            spent = int(time[inside].sum())
            if best is None or spent > best[2]:
                best = self._trace.names[code], len(of_name), spent
        return best if best is not None and 2 * best[2] > int(time.sum()) else None

    @cached_property
    def loads_in_main_process(self) -> bool:
        """Whether a torch data loader without workers ran, and none with workers."""
        single = any(_ONE_PROCESS.search(name) for name in self._trace.names)
        return single and not self.has_workers

    @cached_property
    def has_workers(self) -> bool:
        """Whether a torch data loader with workers ran."""
        return any(_WORKERS.search(name) for name in self._trace.names)

    @cached_property
    def loader_starts(self) -> int:
        """The number of times that a data loader began a new pass over its data."""
        return int(named(self._trace, STARTS_LOADER).sum())

    @cached_property
    def pageable_copies(self) -> bool:
        """Whether copies of pageable memory took a relevant part of the device's time."""
        if self._gaps is None:
            return False
        trace, rows = self._trace, self._gaps.rows
        copies = rows[device_work(trace).kind[rows] == COPY]
        pageable = copies[named(trace, _PAGEABLE, copies)]
        span = int(trace.events.end_ns[rows].max() - trace.events.begin_ns[rows].min())
        return 100 * int(trace.events.dur_ns[pageable].sum()) > _LEAST_PAGEABLE * span

    @cached_property
    def allocations(self) -> tuple[int, int]:
        """The numbers of calls that allocated and that freed device memory."""
        if self._parts is None:
            return 0, 0
        calls = np.flatnonzero(self._parts.allocates)
        rows = calls[~named(self._trace, _OF_HOST, calls)]
        frees = int(named(self._trace, _FREES, rows).sum())
        return len(rows) - frees, frees

    @cached_property
    def allocates_steadily(self) -> bool:
        """Whether calls that allocate or free memory cost idle time repeatedly."""
        parts = self._parts
        if parts is None:
            return False
        return steadily(parts.call_idle_ns[parts.allocates[parts.calls]])

    @cached_property
    def first_uses(self) -> bool:
        """Whether a few long calls of the runtime took most of the time of such calls."""
        if self._parts is None:
            return False
        return not steadily(self._parts.parts[:, NAMES.index(causes.RUNTIME_CALL)])

    @cached_property
    def gives_back_steadily(self) -> bool:
        """Whether device memory is allocated repeatedly, and freed about as often."""
        taken, given = self.allocations
        return self.allocates_steadily and taken >= _MANY and 2 * given >= taken


class Advice(msgspec.Struct, frozen=True):
    """A sentence that follows a finding, and its condition."""

    name: str
    text: str
    """The sentence. It can contain `{taken}` and `{given}`, the counts of `Facts.allocations`."""
    applies: Callable[[Facts], bool]


def _always(facts: Facts) -> bool:
    return True


_LAUNCH = (
    Advice(
        "launch.graph_of_compiled",
        "torch.compile(mode='reduce-overhead') runs compiled code as a device graph, and"
        " torch._inductor.config.cpp_wrapper launches its kernels without Python.",
        lambda facts: facts.generated and not facts.graphs,
    ),
    Advice(
        "launch.compile_or_graph",
        "Fewer and larger kernels, torch.compile or a device graph would help.",
        lambda facts: not facts.compiled and not facts.graphs,
    ),
    Advice(
        "launch.graph",
        "Fewer and larger kernels or a device graph would help.",
        lambda facts: not facts.graphs,
    ),
    Advice("launch.larger", "Fewer and larger kernels would help.", _always),
)
_HOST_STACKS = Advice(
    "operators.stacks",
    "Python stacks were recorded, which slows the host down between operators.",
    lambda facts: facts.stacks,
)
_UNSEEN = (
    Advice(
        "unseen.stacks",
        "Record Python stacks (with_stack=True), or annotate the program, to see what the host"
        " did.",
        lambda facts: not facts.stacks,
    ),
    Advice("unseen.annotate", "Annotate the program to see what the host did.", _always),
)
_DATA = (
    Advice(
        "loader.workers",
        "The loader works in the main process: workers (num_workers) load the next batches while"
        " the device works.",
        lambda facts: facts.loads_in_main_process,
    ),
    Advice(
        "loader.more_workers",
        "More workers, or a larger prefetch_factor, would help.",
        lambda facts: facts.has_workers,
    ),
    Advice(
        "loader.ahead",
        "Loading the next batch while the device works would help.",
        _always,
    ),
)
_PIN = Advice(
    "loader.pin",
    "Pinned memory (pin_memory=True) makes the copies to the device faster.",
    lambda facts: facts.pageable_copies,
)
_MEMORY = (
    Advice(
        "memory.caching",
        "{taken:,} calls allocated device memory and {given:,} freed it: the caching allocator is "
        "switched off, bypassed, or at the limit of the memory. With enough memory,"
        " it would reuse it.",
        lambda facts: facts.gives_back_steadily,
    ),
    Advice(
        "memory.growing",
        "{taken:,} calls allocated device memory and {given:,} freed it. Running the largest batch "
        "first would allocate the memory only once.",
        lambda facts: facts.allocates_steadily and facts.allocations[0] > _ONCE,
    ),
    Advice(
        "memory.once",
        "A trace recorded later shows whether the few long calls that took most of the time occur"
        " again.",
        lambda facts: not facts.allocates_steadily,
    ),
)
_OF: dict[str, tuple[tuple[Advice, ...], ...]] = {
    causes.LAUNCH: (_LAUNCH,),
    causes.SYNCHRONISATION: (
        (
            Advice(
                "wait.later",
                "Waiting later, less often, or not at all lets the host run ahead.",
                _always,
            ),
        ),
    ),
    causes.BETWEEN_STEPS: (
        (Advice("steps.overlap", "Work between steps can overlap with the device's.", _always),),
    ),
    causes.DATA_LOADING: (_DATA, (_PIN,)),
    causes.MEMORY_ALLOCATION: (_MEMORY,),
    causes.QUEUED: (
        (
            Advice(
                "queue.compile_or_graph",
                "Fewer and larger kernels have fewer gaps between them; torch.compile fuses some,"
                " and a device graph shortens the gaps.",
                lambda facts: not facts.compiled and not facts.graphs,
            ),
            Advice(
                "queue.larger", "Fewer and larger kernels have fewer gaps between them.", _always
            ),
        ),
    ),
    causes.RUNTIME_CALL: (
        (
            Advice(
                "runtime_call.first_use",
                "A trace recorded later shows whether the few calls that took most of the time"
                " occur again, as they do not after the first use of a kernel.",
                lambda facts: facts.first_uses,
            ),
        ),
    ),
    causes.HOST_UNSEEN: (_UNSEEN,),
    "host.data_loading": (_DATA,),
    "host.loader_start": (
        (
            Advice(
                "loader.persistent",
                "persistent_workers=True keeps the workers from one epoch to the next.",
                lambda facts: facts.has_workers and facts.loader_starts > 1,
            ),
        ),
    ),
    "host.unseen": (_UNSEEN,),
    "host.between_operators": (
        (
            Advice(
                "operators.compile",
                "Fewer and larger operators, or torch.compile, would help.",
                lambda facts: not facts.compiled,
            ),
            Advice("operators.larger", "Fewer and larger operators would help.", _always),
        ),
        (_HOST_STACKS,),
    ),
    causes.EARLIER_WORK: (
        (
            Advice(
                "earlier_work.synchronise",
                "Synchronise the device before the trace begins: then the program waits before it.",
                _always,
            ),
        ),
    ),
    causes.PROFILER: (
        (
            Advice(
                "profiler.cost",
                "This time is lost only under the profiler.",
                _always,
            ),
        ),
    ),
}
START_UP = Advice(
    "start_up.warm_up",
    "Begin the trace after a warm-up: this time is lost only once.",
    _always,
)
EVERY: tuple[Advice, ...] = (
    *(advice for choices in _OF.values() for group in choices for advice in group),
    START_UP,
)
"""All advice on the time of an idle device, and of a host alone."""


def advice_on(cause: str, facts: Facts) -> str:
    """Return advice on a cause of idle time, or on a part of the host's time.

    Contains the first advice of each group that the trace supports; "" if there is none.
    """
    sentences = []
    for group in _OF.get(cause, ()):
        chosen = next((advice for advice in group if advice.applies(facts)), None)
        if chosen is not None:
            taken, given = facts.allocations if "{" in chosen.text else (0, 0)
            sentences.append(chosen.text.format(taken=taken, given=given))
    return " ".join(sentences)


def steadily(times: Numbers, most: int = _ONCE) -> bool:
    """Whether the `most` longest times take at most half of the total time."""
    if len(times) <= most:
        return False
    total, longest = int(times.sum()), int(times.max())
    # Sorting many times takes long, and is rarely needed.
    if 2 * most * longest <= total or 2 * longest > total:
        return 2 * longest <= total
    return 2 * int(np.partition(times, -most)[-most:].sum()) <= total
