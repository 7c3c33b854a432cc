"""The extension: hot objects written by hand against the C API, cold calls through pybind11.

Times are in nanoseconds; absolute ones are Unix time. Every function may be called from any thread.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from types import FunctionType, TracebackType
from typing import Any, Literal, TypeVar, final, overload

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

@final
class Span:
    """A timed context: `with`, `async with`, or a decorator.

    `span`, `ProfilingContext` and `ProfilingContext4Debug` make it. It may be entered again,
    recursively, and by several threads and tasks at the same time. `with` gives the span itself.
    """

    @property
    def name(self) -> str:
        """The stage's name."""
    @property
    def kind(self) -> Literal["span", "profiling", "debug"]:
        """Which function made it: "span", "profiling" (ProfilingContext) or "debug"."""
    @property
    def reset_peak_memory(self) -> bool:
        """Whether each run begins a new peak of the accelerator's memory."""
    @property
    def capture_memory(self) -> bool:
        """Whether the memory before and after each run is noted."""
    @property
    def compile_safe(self) -> bool:
        """Whether a decorated function stays a plain function on Python 3.10 and 3.11."""
    def add(self, **work: float) -> None:
        """Add to the stage's work counters.

        `stats` and reports show the sums, and the rates over the stage's time.

        Args:
            **work: Amounts by the counter's name. The unit is yours.

        Raises:
            TypeError: If an amount is not a number.

        Example:
            ```python
            with stagespan.span("decode") as decode:
                decode.add(tokens=230)
            ```
        """
    def inputs(self, **arguments: Any) -> None:
        """Give the inputs of a `with` block to the stage's signature.

        Does nothing outside debug mode. A decorated function does not need it: its arguments are
        known.

        Args:
            **arguments: The inputs by name.
        """
    def output(self, value: Any, /) -> None:
        """Give the output of a `with` block to the stage's signature.

        Does nothing outside debug mode. A decorated function does not need it: its result is known.

        Args:
            value: The output, of any type.
        """
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
    def __call__(self, function: _F, /) -> _F: ...

@final
class UnnamedSpan:
    """What `span()` and its siblings return without a name: a decorator only."""

    def __call__(self, function: _F, /) -> _F: ...

@final
class Token:
    """An open span that `begin` returned. `end` closes it, in any scope or thread.

    A token that is thrown away before `end` leaves no span; it is counted as lost ("abandoned").
    """

    @property
    def name(self) -> str:
        """The stage's name."""
    @property
    def id(self) -> int:
        """The span's id, as in `spans`; 0 if the span is not recorded."""

@overload
def span(name: str, *, compile_safe: bool = ...) -> Span:
    """Time a block or the calls of a function as a stage.

    With a name, the result is a context manager for `with` and `async with`, and a decorator for
    functions, methods, coroutine functions and generators. Without a name it is a decorator only,
    and the stage gets the function's qualified name (`__qualname__`).

    Spans are recorded unless `disable` was called. A span measures host time, and the device's time
    where an accelerator is in use. It never waits for a device.

    Args:
        name: Name of the stage; or, without parentheses (`@span`), the function to decorate. An
            empty name, or an object that is neither a string nor callable, is counted and replaced
            by "(invalid name)"; the program goes on.
        compile_safe: On Python 3.10 and 3.11, keep the decorated function a plain function, so that
            torch.compile with fullgraph=True accepts it. Each call then costs more. It makes no
            difference from Python 3.12 on.

    Raises:
        TypeError: If it decorates a class, a property or an object that cannot be called.

    Example:
        ```python
        with stagespan.span("decode") as decode:
            decode.add(tokens=230)

        @stagespan.span("tokenize")
        def tokenize(text): ...

        @stagespan.span  # the stage is called "Model.forward"
        def forward(self, x): ...
        ```
    """

@overload
def span(name: _F, *, compile_safe: bool = ...) -> _F: ...
@overload
def span(*, compile_safe: bool = ...) -> UnnamedSpan: ...
@overload
def ProfilingContext(
    name: str,
    reset_peak_memory: bool = ...,
    *,
    capture_memory: bool = ...,
    compile_safe: bool = ...,
) -> Span:
    """Time a stage as `span` does, and log the time and the peak memory of each run.

    The service thread writes the log line `[Profile] NAME cost S seconds`, and a line with the peak
    memory. Runs of stages that `enable_profiler_for_names` lists are recorded by torch.profiler.

    Args:
        name: Name of the stage. Without it, a decorated function's qualified name, as in `span`.
        reset_peak_memory: Begin a new peak of the accelerator's memory for each run. The peak of an
            outer context stays right.
        capture_memory: Also note the memory before and after each run.
        compile_safe: As in `span`.

    Raises:
        TypeError: If it decorates a class, a property or an object that cannot be called.

    Example:
        ```python
        @stagespan.ProfilingContext("denoise", reset_peak_memory=False)
        def denoise(latents): ...

        @stagespan.ProfilingContext
        def decode(latents): ...
        ```
    """

@overload
def ProfilingContext(
    name: _F,
    reset_peak_memory: bool = ...,
    *,
    capture_memory: bool = ...,
    compile_safe: bool = ...,
) -> _F: ...
@overload
def ProfilingContext(
    *, reset_peak_memory: bool = ..., capture_memory: bool = ..., compile_safe: bool = ...
) -> UnnamedSpan: ...
@overload
def ProfilingContext4Debug(
    name: str, reset_peak_memory: bool = ..., *, capture_memory: bool = ...
) -> Span:
    """Time a stage as `ProfilingContext` does, in debug mode only.

    In debug mode (`set_debug`, or STAGESPAN_DEBUG=true) the device is synchronised before and after
    each run, and the signatures of inputs and outputs are captured. Out of debug mode a decorated
    function costs nothing.

    Args:
        name: Name of the stage. Without it, a decorated function's qualified name, as in `span`.
        reset_peak_memory: Begin a new peak of the accelerator's memory for each run. The peak of an
            outer context stays right.
        capture_memory: Also note the memory before and after each run.

    Raises:
        TypeError: If it decorates a class, a property or an object that cannot be called.

    Example:
        ```python
        @stagespan.ProfilingContext4Debug("decode")
        def process(latents): ...

        with stagespan.ProfilingContext4Debug("layers") as layers:
            layers.inputs(hidden=hidden)
            hidden = model(hidden)
            layers.output(hidden)
        ```
    """

@overload
def ProfilingContext4Debug(
    name: _F, reset_peak_memory: bool = ..., *, capture_memory: bool = ...
) -> _F: ...
@overload
def ProfilingContext4Debug(
    *, reset_peak_memory: bool = ..., capture_memory: bool = ...
) -> UnnamedSpan: ...
def begin(name: str, /) -> Token:
    """Open a span that `end` closes, in any scope or thread.

    The span's parent is the innermost span that is open where `begin` is called. It does not become
    the parent of other spans.

    Args:
        name: Name of the stage.

    Returns:
        The token to pass to `end`.

    Example:
        ```python
        token = stagespan.begin("transfer")
        queue.put((data, token))  # another thread calls stagespan.end(token)
        ```
    """

def end(token: Token, *, error: bool = ...) -> None:
    """Close a span that `begin` opened.

    A second `end` of the same token does nothing and is counted as lost ("unmatched").

    Args:
        token: What `begin` returned.
        error: Whether the span failed. It then counts in the stage's `errors`.

    Raises:
        TypeError: If `token` is not a token.
    """

def record(name: str, begin_ns: int, end_ns: int, *, error: bool = ...) -> None:
    """Record a span that was timed elsewhere.

    Args:
        name: Name of the stage.
        begin_ns: Begin, in Unix nanoseconds, as `time.time_ns()` gives it.
        end_ns: End, in Unix nanoseconds.
        error: Whether the span failed. It then counts in the stage's `errors`.

    Raises:
        ValueError: If the span ends before it begins.

    Example:
        ```python
        begin_ns = time.time_ns()
        wait_for_reply()
        stagespan.record("reply", begin_ns, time.time_ns())
        ```
    """

# Decorated functions. `decorators` decides which of these a function gets.
@final
class TimedFunction:
    """A C callable that times the calls of another callable; a method where it is found in a
    class.
    """

    __name__: str
    __qualname__: str
    def __new__(cls, span: Span, function: Callable[..., Any], /) -> TimedFunction: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = ..., /) -> Any: ...

def timed_by(function: object, /) -> Span | None:
    """The context of a TimedFunction; None for anything else."""

if sys.version_info >= (3, 12):
    def time_function(function: FunctionType, spans: tuple[Span, ...], /) -> None:
        """Time the calls of `function` by `spans`, innermost first; () ends that.

        The function's own code runs with its own defaults, and nothing that it has changes. Nothing
        is kept that refers to the function: it is freed like any other.
        """

    def share_version(function: FunctionType, original: FunctionType, /) -> None:
        """Have a function that was made of another's code and defaults called as fast as it."""

def call_timed(
    span: Span, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], /
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
def is_enabled() -> bool:
    """Tell whether spans are recorded: True unless `disable` or STAGESPAN_ENABLED=false said no."""

def set_debug(on: bool) -> None: ...
def is_debug() -> bool:
    """Tell whether debug mode is on: by `set_debug` or STAGESPAN_DEBUG=true."""

def set_profiled_names(names: Sequence[str]) -> None:
    """Stages whose always-on contexts go through the hooks because a profiler wants them; `*` is
    all.
    """

def set_torch_callback(callback: Callable[[], None] | None) -> None:
    """Call back once, when a context first runs after torch has been imported."""

def set_service_start(start: Callable[[], bool] | None) -> None:
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

def request_number() -> int:
    """The number of the request that the calling code belongs to, or 0. It may be known where no
    context variable tells, as in a greenlet.
    """

# Threads
def inheritance() -> object:
    """The innermost open span and the request of the calling code, for `adopt`; None if there is
    neither.
    """

def adopt(inheritance: object, /) -> object:
    """Open spans of the calling code as children of what `inheritance` noted, in its request, until
    `give_up` is called with what this returns. None, and nothing changes, in a forked child.
    """

def give_up(adopted: object, /) -> None:
    """End what `adopt` began in this thread."""

# Reading
class Summary:
    """Distribution of a duration of at least one run; times in ns."""

    @property
    def count(self) -> int: ...
    @property
    def total_ns(self) -> int: ...
    @property
    def mean_ns(self) -> float: ...
    @property
    def min_ns(self) -> int: ...
    @property
    def max_ns(self) -> int: ...
    @property
    def p50_ns(self) -> float: ...
    @property
    def p95_ns(self) -> float: ...
    @property
    def p99_ns(self) -> float: ...
    def quantile_ns(self, q: float) -> float:
        """The duration that a share q of the runs, 0 to 1, does not exceed; within 3 %."""

class StageSummary:
    """One stage's figures of at least one run, host time in ns."""

    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def total_ns(self) -> int: ...
    @property
    def mean_ns(self) -> float: ...
    @property
    def min_ns(self) -> int: ...
    @property
    def max_ns(self) -> int: ...
    @property
    def p50_ns(self) -> float: ...
    @property
    def p95_ns(self) -> float: ...
    @property
    def p99_ns(self) -> float: ...
    def quantile_ns(self, q: float) -> float:
        """The duration that a share q of the runs, 0 to 1, does not exceed; within 3 %."""
    @property
    def errors(self) -> int: ...
    @property
    def suspended_ns(self) -> int: ...
    @property
    def children_ns(self) -> int:
        """Part of `total_ns` that is covered by child spans which ran in the span's own execution
        context.
        """
    @property
    def parents(self) -> dict[str | None, tuple[int, int]]:
        """(count, total_ns) by the parent stage's name; None is top level. "(several)" collects
        beyond the fourth.
        """
    @property
    def work(self) -> dict[str, float]: ...
    @property
    def device_elapsed_ns(self) -> Summary | None: ...
    @property
    def device_queue_ns(self) -> Summary | None: ...
    @property
    def device_tail_ns(self) -> Summary | None: ...

class Snapshot:
    """Cumulative statistics of all stages at one time; two can be subtracted."""

    @property
    def time_ns(self) -> int: ...
    def stages(self) -> dict[str, StageSummary]:
        """The stages that have run at least once, by name."""
    def since(self, earlier: Snapshot) -> Snapshot:
        """What happened between `earlier` and this; min and max are then bounds of histogram
        buckets.
        """

def snapshot() -> Snapshot: ...

@final
class SpanCursor:
    """How far a reader has come: `spans(since=cursor)` returns each span once.

    The first reading with a new cursor returns what the rings hold; with `from_now`, what ends
    after the cursor was made.
    """

    def __new__(cls, *, from_now: bool = ...) -> SpanCursor: ...
    @property
    def overwritten(self) -> int:
        """Spans that a ring lost before they could be read with this cursor."""

def spans(*, since: SpanCursor | None = ...) -> NDArray[np.void]:
    """The rings' spans by begin: stage, thread, begin_ns, end_ns, id, parent, request,
    suspended_ns, depth, flags, and as float64 device_elapsed_ns, device_queue_ns, device_tail_ns,
    which are NaN where they are not known. A span's times are the same in each reading.

    With a cursor, only spans that have ended since the last reading with that cursor.
    """

def open_spans() -> list[dict[str, Any]]:
    """What every thread is in right now, outermost first: thread, thread_name (the system's; None
    where detached), stage, id, parent, request (its number, or 0), depth, begin_ns, elapsed_ns,
    detached.
    """

def stage_names() -> list[str]:
    """Return the names of all stages; the `stage` column of `spans` is an index into this list.

    A stage keeps its index as long as the process lives. The first names stand for spans that have
    no usable name, and for those beyond the largest number of stages.
    """

def lost() -> dict[str, int]:
    """Return how much the recorder did not keep since the process began, by cause.

    All causes are in it, with 0 where nothing was lost. What each one means and what to do about it
    is in the documentation ("Run it in production").
    """

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
def drain_completions(
    everything: bool = ...,
) -> list[tuple[str, int, int, int, int, int, int, int]]:
    """Finished contexts: (stage, begin_ns, end_ns, thread_ident, native thread id,
    peak_rss_bytes or -1, flags, number of the request or 0).

    Each thread's are in order. ``end_ns`` is the later of the host's and the device's end: a
    context whose device time is pending is kept back, with those of its thread behind it, until
    it is resolved or ``everything`` is asked for.
    """

def drop_completions(everything: bool = ...) -> None:
    """The same where nobody reads lines: take them and forget them."""

def peak_rss_bytes() -> dict[str, int]:
    """Each stage's highest peak RSS in bytes since `forget_peak_rss` was called, also of runs whose
    lines are not written yet."""

def forget_peak_rss() -> None: ...
def never_free(object: object) -> None:
    """Keep an object until the process ends, also while the interpreter shuts down."""

def wait_for_work(timeout_s: float) -> bool:
    """Sleep, without the GIL, until a context has finished or the time is over; True if there is
    work. Resolves device spans meanwhile.
    """

def wake_service() -> None: ...

# Facts
def clock_info() -> dict[str, Any]:
    """source ("tsc", "cntvct", "monotonic"), ns_per_tick, bracket_ns (the clock's own
    uncertainty), resolution_ns (its smallest step; None if the system does not say)."""

def whole_number(text: str) -> int | None:
    """The number that an environment variable's text stands for; None if it is not one of up to 18
    digits."""

RING_SPANS_DEFAULT: int
RING_SPANS_LEAST: int
RING_SPANS_MOST: int

def now_ns() -> int:
    """Unix time on the recorder's clock."""

def arena_info() -> dict[str, int]:
    """size_bytes, ring_spans and frames_per_thread as they were reserved, which may be less than
    was asked for; stages, thread_slots and statistics_blocks in use. Empty if nothing could be
    reserved."""

def watch_termination(write: Callable[[], None]) -> bool:
    """Have `write` called in a thread of its own before SIGTERM ends the process. False if the
    program handles or ignores SIGTERM: then nothing is changed."""

def unwatch_termination() -> None:
    """Let SIGTERM end the process at once again."""

def await_termination() -> None:
    """If SIGTERM has been received, wait until it ends the process."""

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
