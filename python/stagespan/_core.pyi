"""The extension: hot objects written by hand against the C API, cold calls through pybind11.

Times are in nanoseconds; absolute ones are Unix time. Every function may be called from any thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from types import FunctionType, TracebackType
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

_F = TypeVar("_F", bound=Callable[..., Any])

# Bits of a record's `flags`.
FLAG_ERROR: int
FLAG_ASYNC: int
FLAG_GENERATOR: int
FLAG_CAPTURED: int
FLAG_FIRST_OF_SHAPE: int
FLAG_DEBUG: int
FLAG_RECORDED: int
COMPLETION_DEVICE_MEMORY: int
"""In a completion's flags: the peak is an accelerator's, not the process's."""

MISSING: object
"""Stands for "no result" where a block gave none or an exception passed."""

class Span:
    """A timed context: `with`, `async with`, or a decorator. Made by `span` and its siblings."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Literal["span", "profiling", "debug"]: ...
    @property
    def reset_peak_memory(self) -> bool: ...
    @property
    def capture_memory(self) -> bool: ...
    @property
    def compile_safe(self) -> bool: ...
    def add(self, **work: float) -> None:
        """Add to the stage's work counters, for example ``add(tokens=230)``."""
    def inputs(self, **arguments: Any) -> None:
        """In debug mode, give the inputs of a `with` block to the signature; else nothing."""
    def output(self, value: Any) -> None:
        """In debug mode, give the output of a `with` block to the signature; else nothing."""
    def __enter__(self) -> Span: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    async def __aenter__(self) -> Span: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def __call__(self, function: _F) -> _F: ...

class Token:
    """An open span that may be ended in another scope or thread."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> int: ...

def span(name: str, *, compile_safe: bool = ...) -> Span: ...
def ProfilingContext(
    name: str,
    reset_peak_memory: bool = ...,
    *,
    capture_memory: bool = ...,
    compile_safe: bool = ...,
) -> Span: ...
def ProfilingContext4Debug(
    name: str, reset_peak_memory: bool = ..., *, capture_memory: bool = ...
) -> Span: ...
def begin(name: str) -> Token:
    """Open a span that `end` closes, in any scope or thread."""

def end(token: Token, *, error: bool = ...) -> None:
    """Close a span that `begin` opened; a second `end` of the same token is counted and ignored."""

def record(name: str, begin_ns: int, end_ns: int, *, error: bool = ...) -> None:
    """Record a span that was timed elsewhere, in Unix nanoseconds. Raises ValueError if it ends
    before it begins.
    """

# Decorated functions. `decorators` decides which of these a function gets.
class TimedFunction:
    """A C callable that times the calls of another callable; a method where it is found in a
    class.
    """

    def __init__(self, span: Span, function: Callable[..., Any]) -> None: ...
    @property
    def __wrapped__(self) -> Callable[..., Any]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = ...) -> Any: ...

def time_function(function: FunctionType, spans: tuple[Span, ...]) -> None:
    """From Python 3.12: time the calls of `function` by `spans`, innermost first; () ends that.

    The function's own code runs with its own defaults, and nothing that it has changes. Nothing is
    kept that refers to the function: it is freed like any other.
    """

def share_version(function: FunctionType, original: FunctionType) -> None:
    """From Python 3.12: have a function that was made of another's code and defaults called as fast
    as that one.
    """

def call_timed(
    span: Span, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function under a span."""

def timed_coroutine(
    span: Span,
    function: Callable[..., Coroutine[Any, Any, Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Coroutine[Any, Any, Any]:
    """Call a coroutine function; what it returns is timed from its first step to its last."""

def timed_generator(
    span: Span,
    function: Callable[..., Generator[Any, Any, Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Generator[Any, Any, Any]:
    """Call a generator function; what it returns is timed from its first step to its last."""

def timed_async_generator(
    span: Span,
    function: Callable[..., AsyncGenerator[Any, Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> AsyncGenerator[Any, Any]:
    """Call an async generator function; what it returns is timed from its first step to its
    last.
    """

# Switches
def enable() -> None: ...
def disable() -> None: ...
def is_enabled() -> bool: ...
def set_debug(on: bool) -> None: ...
def is_debug() -> bool: ...
def set_profiled_names(names: Sequence[str]) -> None:
    """Stages whose always-on contexts go through the hooks because a profiler wants them; `*` is
    all.
    """

def set_torch_callback(callback: Callable[[], None] | None) -> None:
    """Call back once, when a context first runs after torch has been imported."""

def set_service_start(start: Callable[[], None] | None) -> None:
    """Call this once a process, when the first context has finished."""

def set_decorator(decorate: Callable[[Span, Any], Any] | None) -> None:
    """`decorate(span, function)` is what a span called with a function does."""

def set_memory_hook(on: bool) -> None:
    """Send every always-on context through the hooks, because an accelerator's memory must be
    read.
    """

def set_context_hooks(
    enter: Callable[[Span, Callable[..., Any] | None, tuple[Any, ...], dict[str, Any]], Any] | None,
    leave: Callable[[Any], None] | None,
    exit: Callable[[Any, Any, BaseException | None, int, int, int], int] | None,
) -> None:
    """The three calls of `context` around a run: enter(span, function, args, kwargs) -> call,
    leave(call),
    exit(call, result, error, span_id, begin_ns, end_ns) -> flags to set on the record.
    """

def raise_later(error: BaseException) -> None:
    """Raise `error` as soon as the program's own code goes on in this thread; in threads other than
    the main one, an exception of its type.
    """

# Requests
def request_enter(request: int) -> int:
    """Make `request` (a number above 0) current in this execution context; returns the one
    before.
    """

def request_exit(request: int, before: int) -> None:
    """End `request`, in whichever execution context of this thread it is current."""

def request_figures(
    request: int, since_ns: int
) -> tuple[list[tuple[str, int, int, int, bool]], bool]:
    """(stage, count, total_ns, errors, top_level) of what the rings hold of a request, and whether
    that is all of it: False when a ring has wrapped since `since_ns`.
    """

# Reading
class Summary:
    """Distribution of a duration. None of its figures exists while `count` is 0."""

    count: int
    total_ns: int
    mean_ns: float | None
    min_ns: int | None
    max_ns: int | None
    p50_ns: float | None
    p95_ns: float | None
    p99_ns: float | None
    def quantile_ns(self, q: float) -> float | None: ...

class StageSummary(Summary):
    """One stage's figures, host time."""

    name: str
    errors: int
    suspended_ns: int
    children_ns: int
    """Part of `total_ns` that is covered by child spans which ran in the span's own execution
    context.
    """
    parents: dict[str | None, tuple[int, int]]
    """(count, total_ns) by the parent stage's name; None is top level. "(several)" collects beyond
    the fourth."""
    work: dict[str, float]
    device_elapsed_ns: Summary | None
    device_queue_ns: Summary | None
    device_tail_ns: Summary | None

class Snapshot:
    """Cumulative statistics of all stages at one time; two can be subtracted."""

    time_ns: int
    def stages(self) -> dict[str, StageSummary]: ...
    def since(self, earlier: Snapshot) -> Snapshot:
        """What happened between `earlier` and this; min and max are then bounds of histogram
        buckets.
        """

def snapshot() -> Snapshot: ...
def spans() -> NDArray[np.void]:
    """The rings' spans by begin: stage, thread, begin_ns, end_ns, id, parent, request,
    suspended_ns, depth, flags, and as float64 device_elapsed_ns, device_queue_ns, device_tail_ns,
    which are NaN where they are not known.
    """

def open_spans() -> list[dict[str, Any]]:
    """What every thread is in right now, outermost first: thread, thread_name (the system's; None
    where detached), stage, id, parent, depth, begin_ns, elapsed_ns, detached.
    """

def stage_names() -> list[str]: ...
def lost() -> dict[str, int]:
    """What was not kept, by cause."""

def reset() -> None:
    """Start afresh: statistics, rings and losses back to nothing. For tests; not for a running
    service.
    """

def count_lost(cause: str, n: int = ...) -> None: ...

# Devices
def device_attach(kind: str) -> bool:
    """Time the device's part of all spans from now on; starts the service thread.

    ``kind`` is "cuda" or "rocm", which work through the driver, or the type of another accelerator
    of torch, such as "npu" or "xpu", which works through ``torch.Event``. Call it once torch has
    set the device up (``torch.cuda.is_initialized()``): nothing here creates a device context.
    False where it cannot be done; ``device_info()["reason"]`` says why, in one sentence. Attaching
    what is attached already changes nothing.
    """

def device_detach() -> None:
    """Time no device any more. Spans that are pending are still resolved."""

def device_info() -> dict[str, Any]:
    """What is known of device timing, for `doctor`.

    attached (bool), kind, backend ("driver", "torch.Event" or None), reason (why not, or None),
    symbols (name: found), pending (spans), resolved (spans), event_pairs, event_pairs_limit,
    threads, base_error_ns (uncertainty of a position on the host's timeline; None: unknown),
    base_age_s, device_every, is_forked, max_connections (``CUDA_DEVICE_MAX_CONNECTIONS`` as a
    number; None where it is not set, or no number), last_error (the driver's latest unexpected
    status, or None).
    """

def resolve_device(timeout_s: float = ...) -> int:
    """Resolve spans whose device work is done, waiting for the others up to ``timeout_s``; gives
    the number of spans that are still pending. Without the GIL, except where a backend needs it.
    """

def device_every(every: int | None = ...) -> int:
    """Time the device's part of every n-th span of a stage in a thread; 0 is none, 1 (the default)
    all. Gives the number in force, and changes it where one is given. Raises ValueError below 0.
    """

# Service
def drain_completions(everything: bool = ...) -> list[tuple[str, int, int, int, int, int, int]]:
    """Finished contexts: (stage, begin_ns, end_ns, thread_ident, native thread id,
    peak_rss_bytes or -1, flags).

    Each thread's are in order. ``end_ns`` is the later of the host's and the device's end: a
    context whose device time is pending is kept back, with those of its thread behind it, until
    it is resolved or ``everything`` is asked for.
    """

def drain_peaks(everything: bool = ...) -> dict[str, int]:
    """The same where nobody reads lines: of all that finished, each stage's highest peak RSS in
    bytes.
    """

def wait_for_work(timeout_s: float) -> bool:
    """Sleep, without the GIL, until a context has finished or the time is over; True if there is
    work. Resolves device spans meanwhile.
    """

def wake_service() -> None: ...

# Facts
def clock_info() -> dict[str, Any]:
    """source ("tsc", "cntvct", "monotonic"), ns_per_tick, bracket_ns (the clock's own
    uncertainty), resolution_ns (its smallest step; None if the system does not say)."""

def now_ns() -> int:
    """Unix time on the recorder's clock."""

def arena_info() -> dict[str, int]:
    """size_bytes, ring_spans and frames_per_thread as they were reserved, which may be less than
    was asked for; stages, thread_slots and statistics_blocks in use. Empty if nothing could be
    reserved."""

def require_main_interpreter() -> None:
    """Raise ImportError in a sub-interpreter: what is recorded belongs to the process."""

def c_api() -> object:
    """Capsule that other extensions attach to (`stagespan/python.h`)."""

# Traces of profilers
SCAN_MORE: int
SCAN_CLOSED: int
SCAN_ODD: int

class TraceColumn:
    """Values of one type, as a buffer that numpy takes over without a copy."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class TraceScanner:
    """Reads a trace's list of events, piece by piece, into columns; without the GIL."""

    def scan(self, buffer: bytes, start: int) -> tuple[int, int]:
        """Read whole entries from ``start``, a position within the list before an entry or a comma.

        (How far it came, a state): ``SCAN_MORE``, what follows is not a whole entry;
        ``SCAN_CLOSED``, the list has ended; ``SCAN_ODD``, an entry that is not JSON follows.
        """

    def leave_out(self, cause: str, count: int) -> None:
        """Count entries that are in no table."""

    def take(self) -> dict[str, Any]:
        """Everything that was read; the scanner is as a new one afterwards."""

    @property
    def total(self) -> int:
        """Entries so far, whatever became of them."""
    @property
    def looks_like_a_trace(self) -> bool:
        """Whether some entry was an event."""
