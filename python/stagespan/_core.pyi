"""The extension. Objects of the hot path use the C API, other functions use pybind11.

Times are in nanoseconds; absolute times are Unix time. You can call every function in any thread.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    MutableMapping,
    Sequence,
)
from types import CellType, FunctionType, TracebackType
from typing import Any, Literal, Protocol, TypeVar, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, disjoint_base

_F = TypeVar("_F", bound=Callable[..., Any])
_R = TypeVar("_R")

# Bits of a record's `flags`.
FLAG_ERROR: int
FLAG_ASYNC: int
FLAG_GENERATOR: int
FLAG_CAPTURED: int
FLAG_FIRST_OF_SHAPE: int
FLAG_DEBUG: int
FLAG_RECORDED: int
KIND_SHIFT: int
"""The bits of a record's `flags` from this one on are the kind of its stage."""
NO_NAME: int
ORIGINS: tuple[str, ...]
STATUSES: tuple[str, ...]
TRAIT_HTTP: int
TRAIT_ROUTE: int
RING_ENOUGH_S: float
"""What a reading leaves until a ring is full, in seconds, in case it is late."""
UNKNOWN_NS: int
COMPLETION_DEVICE_MEMORY: int
"""In the flags of a completion: the peak is that of an accelerator, not of the process."""

MISSING: object
"""The value of "no result", if a block has none or an exception was raised."""

class _Context:
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

@final
class Span(_Context):
    """A timed context: `with`, `async with`, or a decorator.

    `span`, `ProfilingContext` and `ProfilingContext4Debug` return it. You can enter it several
    times, recursively, and in several threads and tasks at the same time. `with` returns the span
    itself.
    """

    @property
    def name(self) -> str:
        """The stage's name."""
    @property
    def kind(self) -> Literal["span", "profiling", "debug"]:
        """Which function returned it: "span", "profiling" (ProfilingContext) or "debug"."""
    @property
    def reset_peak_memory(self) -> bool:
        """Whether each run resets the peak of the accelerator's memory."""
    @property
    def capture_memory(self) -> bool:
        """Whether the memory before and after each run is recorded."""
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
        """Record the inputs of a `with` block in the stage's signature.

        Does nothing outside debug mode. A decorated function does not need it: its arguments are
        known.

        Args:
            **arguments: The inputs by name.
        """
    def output(self, value: Any, /) -> None:
        """Record the output of a `with` block in the stage's signature.

        Does nothing outside debug mode. A decorated function does not need it: its result is known.

        Args:
            value: The output, of any type.
        """
    def __call__(self, function: _F, /) -> _F: ...

@final
class UnnamedSpan:
    """A decorator, which `span()` and its siblings return if you pass no name."""

    def __call__(self, function: _F, /) -> _F: ...

@final
class Token:
    """An open span that `begin` returned. `end` closes it, in any scope or thread.

    If a token is freed before `end`, no span is recorded, and it is counted as lost ("abandoned").
    """

    @property
    def name(self) -> str:
        """The stage's name."""
    @property
    def id(self) -> int:
        """The span's id, as in `spans`; 0 if the span is not recorded."""
    def end(self, *, error: bool = False) -> None:
        """Close the span, as `stagespan.end` does.

        Args:
            error: Whether the span failed. It then counts in the stage's `errors`.
        """

@disjoint_base
class Request:
    """A request of this process: what `current_request` returns."""

    @property
    def number(self) -> int:
        """Its number in this process, as in `spans`."""
    @property
    def id(self) -> str:
        """Its id, the same in all processes."""
    metadata: dict[str, Any]
    """What the program says about it."""
    pipeline: str | None
    """The pipeline whose figures it is in, if that is not the one of the process.

    Setting something else than None or a text that is not empty raises TypeError."""
    @property
    def trace_id(self) -> str | None:
        """Id of the trace: 32 hexadecimal digits, or None before it has one."""
    @property
    def attempt(self) -> int:
        """1 for the first attempt, 2 for the first retry."""
    @property
    def branch(self) -> str | None:
        """The name of the branch that it belongs to, or None."""
    @property
    def queue(self) -> str | None:
        """What the wait from received to entered is called; None if it began in this process."""
    @property
    def _is_new(self) -> bool: ...
    @property
    def _w3c(self) -> tuple[int, int, int, int] | None: ...
    def _serve_http(self, route: str | None) -> None: ...
    def chunk(self, tokens: int = 1) -> None:
        """Record one output of a stream, such as a token or a frame.

        The request's row shows the number of chunks, the sum of ``tokens``, and the time to the
        first chunk, since the request began and since its part in this process was entered.
        ``stats(kind="first_chunk")``, ``"part_first_chunk"``, ``"between_chunks"`` and
        ``"per_token"`` show the distributions over all requests of a pipeline. When the request
        began is not known if it came from another clock, or from an unknown sender. No span is
        recorded. Before the request is entered, and if the recorder was off then, nothing is
        recorded.

        Raises ValueError if ``tokens`` is negative or does not fit into 64 bits, and TypeError if
        it is not an integer.
        """
    def inject(
        self,
        carrier: MutableMapping[str, str] | None = None,
        *,
        queue: str | None = None,
        attempt: int = 1,
        branch: str | None = None,
    ) -> dict[str, str]:
        """Write this request to a carrier; see `stagespan.inject`.

        A request that was received and not entered is passed on unchanged.
        """
    def set_status(
        self, status: Literal["ok", "error", "cancelled", "discarded", "abandoned"], /
    ) -> None:
        """Say how the request ends: ``"cancelled"``, ``"discarded"``, and so on.

        Without it, the status is ``ok``; ``cancelled`` after asyncio.CancelledError or
        GeneratorExit; ``error`` after another exception. ``discarded`` means that the result is not
        used, such as that of the slower one of two branches. Raises ValueError for another text.
        """
    @property
    def _is_open(self) -> bool: ...
    @property
    def _counted_queue(self) -> str | None: ...
    @property
    def _given_id(self) -> str: ...
    @property
    def _traceparent(self) -> str | None: ...
    def _initialise(
        self, request_id: object, traceparent: object, metadata: object, is_new: object, /
    ) -> None: ...
    def _receive(
        self, carrier: object, request_id: str, trusted: bool, entry: str | None, /
    ) -> None: ...
    def _follow(self, request: Request, /) -> None: ...
    def _show(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *error: object) -> None: ...
    def _enter(self) -> None: ...
    def _leave(self, kind: type[BaseException] | None, /) -> None: ...

@final
class batch(_Context):
    """One execution that serves several requests: ``with batch("forward", requests) as b:``.

    It is one span of kind batch, which `stats(kind="batch")` counts once, with a link to each
    request. ``b`` is the span, so ``b.add(tokens=512)`` counts work. Requests that were received
    and wait are entered. Raises TypeError if ``requests`` contains anything but requests.
    """

    def __new__(cls, name: str, requests: Iterable[Request], /) -> batch: ...
    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests that it serves."""

@overload
def span(name: str, *, cpu: bool = False) -> Span:
    """Time a block or the calls of a function as a stage.

    With a name, the result is a context manager for `with` and `async with`, and a decorator for
    functions, methods, coroutine functions and generators. Without a name it is a decorator only,
    and the stage gets the function's qualified name (`__qualname__`).

    Spans are recorded unless `disable` was called. A span measures host time, and device time if an
    accelerator is in use. It never waits for a device.

    Args:
        name: Name of the stage; or, without parentheses (`@span`), the function to decorate. An
            empty name, or an object that is neither a string nor callable, is counted and replaced
            by "(invalid name)"; the program continues.
        cpu: Whether each run measures the CPU time of its thread beside its duration, by two system
            calls. The time is unknown in runs during which other code of the thread could run:
            in decorated coroutine functions and generators, in a `with` block in the body of a
            generator, and in one that awaits something. STAGESPAN_CPU_TIME=true measures it for
            all stages.

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
def span(name: _F) -> _F: ...
@overload
def span(*, cpu: bool = False) -> UnnamedSpan: ...
def queued(name: str, /) -> Span:
    """Time a wait inside this process: `with queued("replica"):`.

    Use it for a wait for a free replica, a semaphore, or a turn in a scheduler's list, as often as
    it happens. The wait is a span of kind queue: it is in ``stats(kind="queue")``, and not in the
    executions of `stats`. For a wait that begins and ends in different functions, use
    ``begin(name, kind="queue")`` and `end`.

    Args:
        name: Name of the queue. A stage may have the same name.

    Example:
        ```python
        with stagespan.queued("replica"):
            replica = replicas.get()
        ```
    """

def current_request() -> Request | None:
    """Return the request that the calling code belongs to, or None."""

def inject(
    carrier: MutableMapping[str, str] | None = None,
    *,
    queue: str | None = None,
    attempt: int = 1,
    branch: str | None = None,
) -> dict[str, str]:
    """Write the current request to a carrier, immediately before it is sent to another process.

    The carrier is a dict of short ASCII texts, which can be HTTP headers, gRPC metadata, or part of
    an object that is pickled. The receiver passes it to `extract`. Call this once for each message:
    each hop has its own id. Outside of requests, and while the recorder is off, nothing is written,
    except that what was received is passed on unchanged.

    Args:
        carrier: A dict to write to, such as the headers of an HTTP request; a new one by default.
        queue: What the receiver calls the wait from received to entered; by default its pipeline's
            name.
        attempt: 2 for the first retry, and so on.
        branch: The name of one of several ways that are tried at once.

    Returns:
        The carrier.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If ``attempt`` is not from 1 to 65,535.

    Example:
        ```python
        with stagespan.request("req-1"):
            tasks.put((prompt, stagespan.inject(queue="decode")))
        ```
    """

@overload
def ProfilingContext(
    name: str, reset_peak_memory: bool = True, *, capture_memory: bool = False
) -> Span:
    """Time a stage as `span` does, and log the time and the peak memory of each run.

    The background thread writes the log line `[Profile] NAME cost S seconds`, and a line with the
    peak memory. Runs of stages that `enable_profiler_for_names` lists are recorded by
    torch.profiler.

    Args:
        name: Name of the stage. Without it, a decorated function's qualified name, as in `span`.
        reset_peak_memory: Reset the peak of the accelerator's memory for each run. An outer context
            still reports its own peak.
        capture_memory: Also record the memory before and after each run.

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
    name: _F, reset_peak_memory: bool = True, *, capture_memory: bool = False
) -> _F: ...
@overload
def ProfilingContext(
    *, reset_peak_memory: bool = True, capture_memory: bool = False
) -> UnnamedSpan: ...
@overload
def ProfilingContext4Debug(
    name: str, reset_peak_memory: bool = True, *, capture_memory: bool = False
) -> Span:
    """Time a stage as `ProfilingContext` does, in debug mode only.

    In debug mode (`set_debug`, or STAGESPAN_DEBUG=true) the device is synchronised before and after
    each run, and the signatures of inputs and outputs are captured. Outside debug mode, a decorated
    function costs nothing.

    Args:
        name: Name of the stage. Without it, a decorated function's qualified name, as in `span`.
        reset_peak_memory: Reset the peak of the accelerator's memory for each run. An outer context
            still reports its own peak.
        capture_memory: Also record the memory before and after each run.

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
    name: _F, reset_peak_memory: bool = True, *, capture_memory: bool = False
) -> _F: ...
@overload
def ProfilingContext4Debug(
    *, reset_peak_memory: bool = True, capture_memory: bool = False
) -> UnnamedSpan: ...
def begin(name: str, /, *, kind: str = "execution") -> Token:
    """Open a span that `end` closes, in any scope or thread.

    The parent is the innermost span that is open when you call `begin`. The new span does not
    become the parent of other spans.

    Args:
        name: Name of the stage.
        kind: ``"queue"`` for a wait inside this process, such as one in a scheduler's list.

    Returns:
        The token to pass to `end`.

    Raises:
        ValueError: If ``kind`` is another text.

    Example:
        ```python
        token = stagespan.begin("transfer")
        queue.put((data, token))  # another thread calls stagespan.end(token)
        ```
    """

def end(token: Token, *, error: bool = False) -> None:
    """Close a span that `begin` opened.

    A second `end` of the same token does nothing and is counted as lost ("unmatched").

    Args:
        token: The result of `begin`.
        error: Whether the span failed. It then counts in the stage's `errors`.

    Raises:
        TypeError: If `token` is not a token.
    """

def record(name: str, begin_ns: int, end_ns: int, *, error: bool = False) -> None:
    """Record a span that you have timed yourself.

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
    """A C callable that times the calls of a callable that is not a plain function.

    It is bound to an object, and pickled, in the same way as the callable.
    """

    __name__: str
    __qualname__: str
    def __new__(cls, span: Span, function: Callable[..., Any], /) -> TimedFunction: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = ..., /) -> Any: ...

def timed_by(function: object, /) -> Span | None:
    """The context of a TimedFunction; None for anything else."""

if sys.version_info < (3, 11) or sys.version_info >= (3, 12):
    def time_function(
        function: FunctionType, spans: tuple[Span, ...], inner: CellType = ..., /
    ) -> None:
        """Time the calls of `function` with `spans`, innermost first; () stops timing.

        The function does not change: its own code runs with its own defaults. Nothing refers to
        the function, so it is freed like any other. `inner` is the cell of a wrapper with the
        function that it times: calls that pass all parameters by position go directly to it.
        """

if sys.version_info >= (3, 12):
    def share_version(function: FunctionType, original: FunctionType, /) -> None:
        """Make the calls of a copy of a function as fast as those of the original."""

def call_timed(span: Span, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `function` with the other arguments as one run of the stage of `span`."""

def timed_coroutine(
    span: Span,
    function: Callable[..., Coroutine[Any, Any, Any]],
    /,
    *args: Any,
    **kwargs: Any,
) -> Coroutine[Any, Any, Any]:
    """Call a coroutine function. The coroutine is timed from its first step to its last."""

def timed_generator(
    span: Span,
    function: Callable[..., Generator[Any, Any, Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Generator[Any, Any, Any]:
    """Call a generator function. The generator is timed from its first step to its last."""

def timed_async_generator(
    span: Span,
    function: Callable[..., AsyncGenerator[Any, Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> AsyncGenerator[Any, Any]:
    """Call an async generator function. The generator is timed from its first step to its
    last.
    """

# Switches
def enable() -> None: ...
def disable() -> None: ...
def is_enabled() -> bool:
    """Return whether spans are recorded: True unless `disable` or STAGESPAN_ENABLED=false."""

def set_debug(on: bool) -> None: ...
def is_debug() -> bool:
    """Return whether debug mode is on, by `set_debug` or STAGESPAN_DEBUG=true."""

def profiler_set_names(names: Sequence[str]) -> None:
    """Send the always-on contexts of these stages through the hooks, for the profiler; `*`
    means all.
    """

def profiler_set_annotated_names(names: Sequence[str]) -> None:
    """Send plain spans of these stages through the hooks if they are made from now on; `*` means
    all.
    """

def cpu_time_set(on: bool) -> None:
    """Set whether spans and contexts that are made from now on measure CPU time."""

def system_counts_set(on: bool) -> None:
    """Set whether spans that measure CPU time also count page faults, context switches and the time
    in the kernel as work.
    """

def hooks_set_torch_callback(callback: Callable[[], None] | None) -> None:
    """Call back once, when a context first runs after torch has been imported."""

def service_set_start(start: Callable[[], bool] | None) -> None:
    """Set the function that is called once per process, when the first context has finished."""

def hooks_set_decorator(decorate: Callable[[Span, Any], Any] | None) -> None:
    """Set the function `decorate(span, function)` that runs when a span is used as decorator."""

def memory_set_hook(on: bool) -> None:
    """Send every always-on context through the hooks, because an accelerator's memory must be
    read.
    """

def hooks_set_contexts(
    enter: Callable[[Span, Callable[..., Any] | None, tuple[Any, ...], dict[str, Any]], Any] | None,
    leave: Callable[[Any], None] | None,
    exit: Callable[[Any, Any, BaseException | None, int, int, int], int] | None,
) -> None:
    """The three calls of `context` around a run: enter(span, function, args, kwargs) -> call,
    leave(call),
    exit(call, result, error, span_id, begin_ns, end_ns) -> flags to set on the record.
    """

def calls_set_descriptions(
    describe: Callable[[str, Any, tuple[Any, ...], dict[str, Any]], object] | None,
    keep: Callable[[int, Any], object] | None,
) -> None:
    """Set the functions that describe the arguments of calls in requests; None to end it:
    describe(stage, function, args, kwargs) -> description, and keep(span_id, description) unless
    it is None.
    """

def hooks_raise_later(error: BaseException) -> None:
    """Raise `error` as soon as the program's own code continues in this thread; in threads other
    than the main one, an exception of its type.
    """

# Requests
def request_set_details(read_environment: Callable[[], None], redacted: str, /) -> None:
    """Set the function that is called before fields or exceptions are first recorded, and what
    replaces the texts of secret fields."""

def request_record_field(name: str, is_secret: bool, /) -> bool:
    """Record a field of requests from now on. Returns False if there are eight others."""

def request_set_context(
    enter: Callable[[Request], object] | None, leave: Callable[[Request, Any], None] | None, /
) -> None:
    """Set the functions that tell another tracer of a request that is entered, and left."""

def exceptions_keep_messages(are_kept: bool, /) -> None:
    """Set whether the messages of exceptions are recorded beside their types."""

def request_set_functions(
    parent: Callable[[], tuple[int, int, int, int] | None],
    hash: Callable[[], Callable[[str], str] | None],
    pipeline: Callable[[], str],
    captured: Callable[[], bool],
    /,
) -> None:
    """Set the functions that requests need from Python. The first returns the two halves of the
    trace id, the span id and the flags of OpenTelemetry's current span; the second one the function
    that hashes ids in files; the third one the name of the pipeline; the fourth one whether
    torch.compile captures the calling code.
    """

def request_call_when_ended(function: Callable[[], object], /) -> None:
    """Set the function that is called once, when the next request of this process has ended."""

def request_class(class_: type[_R], /) -> type[_R]:
    """Make calls of a subclass of `Request` do in C what its `__init__` does: that of `request`.
    Its subclasses are called in the usual way. Raises TypeError for a second class.
    """

def remote_class(class_: type[_R], /) -> type[_R]:
    """The same for the class whose `__init__` is that of `Remote`."""

def request_enter_method(function: _F, /) -> _F:
    """Return an attribute for `__enter__` of a subclass of `Request`. Bound to an object, it is C
    code that an exception of a signal handler cannot interrupt; as an attribute of the class, and
    in a graph that torch.compile captures, it is ``function``, which must do the same.
    """

def request_exit_method(function: _F, /) -> _F:
    """The same for `__exit__`."""

def request_set_pipeline(name: str, /) -> None:
    """Set the name of the pipeline."""

def request_known(number: int, /) -> tuple[str, str | None]:
    """Return the id and the trace id of a request; an empty id if its number is not known."""

def requests_known() -> dict[int, tuple[str, str | None]]:
    """Return the ids and trace ids of requests by number: of all open ones, the latest 16,384 that
    have begun, and the latest 1,024 that have ended.
    """

def requests_finished() -> list[dict[str, Any]]:
    """Return what is known of the latest 1,024 requests that have ended, oldest first, in the same
    dict each time. Their figures are None until somebody sets them.
    """

def requests_forget_finished() -> None:
    """Empty that list."""

def innermost_stage() -> str | None:
    """Return the stage of the innermost open span of the calling code, or None."""

def segment_now() -> int:
    """Return the recorder's clock in ticks; 0 while the recorder is off."""

def segment_wait(number: int, queue: str, begin_ticks: int, /) -> None:
    """Record a wait of a request that began at ``begin_ticks`` and ends now."""

def request_figures(
    requests: Sequence[tuple[int, int]],
) -> list[tuple[list[tuple[str, int, int, int, bool]], bool]]:
    """Return for each request, given as (number, begin_ns), the (stage, count, total_ns, errors,
    top_level) of its spans in the rings, and whether they are complete: False if a ring has wrapped
    since its start.
    """

# Threads
def request_inheritance() -> object:
    """Return the innermost open span and the request of the calling code, for `request_adopted`;
    None if there is neither.
    """

def request_adopted(
    inheritance: object, request: Any, /
) -> contextlib.AbstractContextManager[None, None]:
    """Return a context in which spans are children of the span in `request_inheritance`, in its
    request. It may be left in any context and thread: what was current before is then current again
    where it was entered, unless something else has been entered there since. In a forked child, it
    does nothing.
    """

# Reading
class _Durations(Protocol):
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
        """Return the q quantile, with q from 0 to 1 and an error of at most 3 %. Raises ValueError
        for another q.
        """
    def buckets_ns(self) -> list[tuple[float, int]]:
        """Return the middle of each bucket of the histogram in ns, ascending, and how many runs are
        in it."""

class Summary(_Durations):
    """Distribution of a duration of at least one run; times in ns."""

    def cumulative(self, groups: bytes, size: int) -> list[int]:
        """Return how many runs are in the groups of buckets up to each of ``size`` groups.

        ``groups`` has the group of each bucket, ascending. Raises ValueError if it has not.
        """

class AmountSummary:
    """The distribution of at least one amount, in the unit of the amounts. Its quantiles are within
    3.1 % of the exact ones, and exact for whole numbers up to 32.
    """

    @property
    def count(self) -> int: ...
    @property
    def total(self) -> float: ...
    @property
    def mean(self) -> float: ...
    @property
    def min(self) -> float: ...
    @property
    def max(self) -> float: ...
    @property
    def p50(self) -> float: ...
    @property
    def p95(self) -> float: ...
    @property
    def p99(self) -> float: ...
    def quantile(self, q: float) -> float:
        """Raises ValueError if `q` is not from 0 to 1."""
    def buckets(self) -> list[tuple[float, int]]:
        """Amounts, ascending, and how many there are of each."""
    def cumulative(self, groups: bytes, size: int) -> list[int]:
        """Return how many are in the groups of buckets up to each one.

        `groups` has the group of each bucket, ascending.
        """

@final
class StageSummary(Summary):
    """One stage's figures of at least one run, host time in ns."""

    @property
    def name(self) -> str: ...
    @property
    def errors(self) -> int: ...
    @property
    def suspended_ns(self) -> int: ...
    @property
    def cpu_total_ns(self) -> int | None: ...
    @property
    def cpu_count(self) -> int: ...
    @property
    def children_ns(self) -> int:
        """The part of `total_ns` during which child spans ran in the same execution context."""
    @property
    def parents(self) -> dict[str | None, tuple[int, int]]:
        """(count, total_ns) by the name of the parent stage. None is top level. "(several)"
        stands for parents beyond the fourth.
        """
    @property
    def work(self) -> dict[str, float]: ...
    @property
    def amounts(self) -> dict[str, AmountSummary]:
        """The amounts that single runs have added, by unit."""
    @property
    def batch_size(self) -> AmountSummary | None:
        """The numbers of requests that batches have served; None if there was no batch."""
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
    @property
    def ns_per_tick(self) -> float:
        """The unit of the histograms of host times."""
    @property
    def resets(self) -> int:
        """How often the figures had been set to zero."""
    def stages(self, kind: int = 0) -> dict[str, StageSummary]:
        """The stages of a kind that have run at least once, by name."""
    def amounts(self, kind: int) -> dict[str, dict[str | None, AmountSummary]]:
        """The amounts that single runs of the stages of a kind, or requests, have added, by name
        and unit.

        Those of requests have the kind of the status ok, whatever their status. None stands for the
        numbers of requests that batches have served.
        """
    def since(self, earlier: Snapshot) -> Snapshot:
        """Return the figures between `earlier` and this snapshot. Minimum and maximum are then
        bounds of histogram buckets. Raises ValueError if `earlier` is the later snapshot.
        """
    def pack(self) -> PackedSnapshot:
        """Return the same figures in about a tenth of the memory, to be kept. Not for snapshots of
        other processes, whose stage names are left out.
        """

@final
class PackedSnapshot:
    """A snapshot in little memory."""

    @property
    def time_ns(self) -> int: ...
    @property
    def size_bytes(self) -> int:
        """Memory that it uses."""
    def unpack(self) -> Snapshot: ...

def snapshot() -> Snapshot: ...
def amount_bounds() -> list[float]:
    """The largest amount in each bucket of an `AmountSummary`; infinite for the last one."""

def histogram_bounds() -> list[int]:
    """Return the lowest duration of each bucket, in ticks, and the end of the last one."""

@final
class SpanCursor:
    """The position of a reader: `spans(since=cursor)` returns each span once.

    The first call with a new cursor returns all spans in the rings; with `from_now`, only spans
    that end after the cursor was created.
    """

    def __new__(cls, *, from_now: bool = False) -> SpanCursor: ...
    @property
    def overwritten(self) -> int:
        """Spans that a ring lost before they could be read with this cursor."""

def spans(*, since: SpanCursor | None = None) -> NDArray[np.void]:
    """Return the spans in the rings, ordered by begin: stage, thread, begin_ns, end_ns, id, parent,
    request, suspended_ns, depth, flags, and as float64 device_elapsed_ns, device_queue_ns,
    device_tail_ns, cpu_ns, which are NaN if unknown. The times of a span are the same in each call.

    With a cursor, return only spans that have ended since the last call with that cursor.
    """

def open_spans() -> list[dict[str, Any]]:
    """Return the open spans of every thread, outermost first: thread, thread_name (the system's;
    None if detached), stage, id, parent, request (its number, or 0), depth, begin_ns, active_ns
    (when it, or a span inside of it, last began or ended), elapsed_ns, detached, suspended.
    """

def stage_names() -> list[str]:
    """Return the names of all stages; the `stage` column of `spans` is an index into this list.

    A stage keeps its index while the process lives. The first names are those of spans without a
    valid name, and of spans beyond the largest number of stages.
    """

def debug_stages() -> list[str]:
    """Return the stages of which a `ProfilingContext4Debug` was made, in debug mode or not."""

def lost() -> dict[str, int]:
    """Return how much the recorder has lost since the process began, by cause.

    The result contains all causes, including those with 0. The page "Run it in production" of the
    documentation describes them.
    """

def _reset() -> None:
    """Clear statistics, rings and losses. For tests, not for a running
    service.
    """

def lost_add(cause: str, n: int = ...) -> None:
    """Count `n` losses of a cause. Raises ValueError if `cause` is not a key of `lost`."""

# Devices
def device_attach(kind: str) -> bool:
    """Measure the device time of all spans from now on. Starts the background thread.

    ``kind`` is "cuda" or "rocm", which work through the driver, or the type of another accelerator
    of torch, such as "npu" or "xpu", which works through ``torch.Event``. Call it once torch has
    initialised the device (``torch.cuda.is_initialized()``): this never creates a device context.
    Returns False if it is not possible; ``device_info()["reason"]`` says why. A second call for the
    same device does nothing.
    """

def device_info() -> dict[str, Any]:
    """Return the state of device timing, for `doctor`.

    attached (bool), kind, backend ("driver", "torch.Event" or None), reason (why not, or None),
    symbols (name: found), pending (spans), resolved (spans), event_pairs, event_pairs_limit,
    threads, base_error_ns (uncertainty of a position on the host's timeline; None: unknown),
    base_age_s, device_every, is_forked, max_connections (``CUDA_DEVICE_MAX_CONNECTIONS`` as a
    number; None if it is not set or not a number), last_error (the driver's latest unexpected
    status, or None).
    """

def device_resolve(timeout_s: float = ...) -> int:
    """Resolve spans whose device work is done, and wait up to ``timeout_s`` for the others. Returns
    the number of pending spans. Runs without the GIL, unless a backend needs it.
    """

def device_every(every: int | None = ...) -> int:
    """Measure the device time of every n-th span of a stage in a thread; 0 for no spans, 1 (the
    default) for all. Returns the current number; sets it if one is passed. Raises ValueError for
    numbers below 0 or above 2**32 - 1.
    """

# Service
def device_drain_completions(
    everything: bool = ...,
) -> list[tuple[str, int, int, int, int, int, int, int]]:
    """Return the finished contexts: (stage, begin_ns, end_ns, thread_ident, native thread id,
    peak_rss_bytes or -1, flags, number of the request or 0).

    Those of one thread are in order. ``end_ns`` is the later of the host's and the device's end. A
    context whose device time is pending, and later ones of its thread, are returned when it is
    resolved or if ``everything`` is True.
    """

def device_drop_completions(everything: bool = ...) -> None:
    """Remove the finished contexts without returning them."""

def memory_peak_rss_bytes() -> dict[str, int]:
    """Return the highest peak RSS of each stage in bytes since `memory_forget_peak_rss`, including
    runs whose lines are not written yet."""

def memory_forget_peak_rss() -> None: ...
def memory_never_free(object: object) -> None:
    """Keep an object alive until the process ends, even while the interpreter shuts down."""

def service_wait(timeout_s: float) -> bool:
    """Sleep without the GIL until a context has finished or the time is over. Returns whether there
    is work. Resolves device spans meanwhile.
    """

def service_wake() -> None: ...

# Facts
def gauge_set(name: str, value: float) -> None: ...
def clock_info() -> dict[str, Any]:
    """source ("tsc", "cntvct", "monotonic"), ns_per_tick, bracket_ns (the clock's own
    uncertainty), resolution_ns (its smallest step; None if unknown)."""

def is_context_map_known() -> bool:
    """Whether spans in asyncio tasks change their context variable in place, which takes about a
    quarter of the time of ContextVar.set. False if this Python's layout of contexts is not known.
    """

RING_SPANS_DEFAULT: int
RING_SPANS_LEAST: int
RING_SPANS_MOST: int
REQUESTS_DEFAULT: int
REQUESTS_LEAST: int
REQUESTS_MOST: int

def now_ns() -> int:
    """Return the Unix time of the recorder's clock."""

def arena_info() -> dict[str, int]:
    """size_bytes, ring_spans and frames_per_thread as they were reserved, which can be less than
    requested; stages, thread_slots and statistics_blocks in use. Empty if nothing could be
    reserved."""

# Recordings
def recording_is_cut_off() -> bool:
    """Return whether another program truncated the recording, so that nothing is recorded any
    more.
    """

def recording_place() -> dict[str, Any]:
    """Where this process's recording lies: kind ("not yet", "off", "file", "memfd", "memory"),
    path (of a file), why (it is not a file), is_fault (it should have been a file, or it is where
    the exporter of the folder does not look), reserved_bytes and refused_bytes (so far)."""

def recording_set_tell_fault(tell: Callable[[], object]) -> None:
    """Set what the main thread calls once a recording has begun whose place has ``is_fault``."""

def recording_reserve_for_marks(fd: int) -> bool:
    """Reserve space behind the end of an exporter's file, to which processes write the names of
    recordings that it cannot read; return False if there is none."""

def recording_hide() -> None:
    """Hide the recording of this process from other processes, exporters among them. Has no effect
    once the process has opened a span."""

def recording_describe_program(version: str, arguments: bytes) -> None:
    """Write to the recording the versions of stagespan and Python, and the name of the program from
    the arguments with which it was started, each of which ends with a zero byte; see
    `recording_program_name`. No arguments: the name stays."""

def recording_describe_process(rank: int = ..., world_size: int = ...) -> None:
    """Write rank, world size, job and pipeline to the recording: those of the environment, else
    those given here."""

def recording_describe_worker(rank: int | None) -> None:
    """Write to the recording that this process is a worker, and how it is called. If its rank is
    ``rank``, that of the process that started it, the recording says that it shares the rank. Call
    it again in forked children."""

def recording_program_name(arguments: bytes) -> str:
    """Return the name of a program, from the arguments with which it was started, each of which
    ends with a zero byte: of an interpreter with its script or module, of a server with its
    application. Leaves out other arguments."""

def recording_end() -> None:
    """Record a clean exit, and remove the recording's file."""

def recording_why_not_in(folder: str | bytes) -> str | None:
    """Return why recordings cannot lie in a folder, as a sentence; None if they can. Creates the
    folder if it does not exist.
    """

def recording_default_folder() -> str: ...
def recording_boot() -> int:
    """A number that is another one each time the machine starts; 0 if it is not known."""

class RecordingCopy:
    """A copy of a recording, in which every number has been checked."""

    def info(self) -> dict[str, Any]: ...
    def stage_names(self) -> list[str]: ...
    def stage_kinds(self) -> list[int]: ...
    def snapshot(self) -> Snapshot: ...
    def spans(self) -> NDArray[np.void]: ...
    def drop_spans(self) -> None: ...
    def open_spans(self) -> list[dict[str, Any]]: ...
    def segment_keys(self, only_open: bool = ...) -> list[int]: ...
    def segment_ends(self) -> NDArray[np.void]:
        """When each entry has ended: its key, the Unix time or 0, and the halves of its trace."""
    def latest_requests(self, since_ns: int) -> list[int]:
        """The keys of requests that began here and have ended since a time: the latest one of each
        pipeline, status and bucket of `export.figures.BOUNDS_NS`."""
    def segments(self, keys: list[int] | None = ..., has_ended: bool = ...) -> NDArray[np.void]:
        """The entries with these keys as a structured array; if the process has ended, what was
        open was abandoned."""
    def segment_dicts(
        self, keys: list[int] | None = ..., has_ended: bool = ...
    ) -> list[dict[str, Any]]:
        """The same as dicts, for commands that do without numpy."""
    def fields(self, numbers: list[int]) -> dict[int, dict[str, int | float | str]]: ...
    def records(self, ring: str) -> NDArray[np.void]: ...
    def sent(self) -> list[tuple[int, int, str, int, int]]: ...
    def received(self) -> set[int]: ...
    def failures(self, of_requests: bool = ...) -> dict[int, tuple[str, str | None]]:
        """The types and messages of exceptions, by ids of spans or numbers of requests."""
    def gauges(self) -> dict[str, float]: ...
    def amounts(self, spans: set[int] | None = None) -> dict[int, dict[str, int | float]]: ...
    def threads(self) -> list[dict[str, Any]]: ...
    def lost(self) -> dict[str, int]: ...

def are_in(numbers: NDArray[Any], among: NDArray[Any]) -> bytes:
    """Return a byte for each integer of 64 bits: 1 if it is among others."""

def spans_of_requests(
    arrays: list[NDArray[np.void]], requests: NDArray[Any] | None = ...
) -> NDArray[np.void]:
    """Return the executions and waits in queues of requests, or of those with these numbers, from
    rows of `spans`, ordered by number."""

def segment_type() -> np.dtype[np.void]:
    """Return the type of the rows of `RecordingCopy.segments`."""

def segment_dicts(
    rows: NDArray[np.void],
    names: list[str],
    fields: dict[int, dict[str, int | float | str]],
    failures: dict[int, tuple[str, str | None]],
) -> list[dict[str, Any]]:
    """Return rows of `RecordingCopy.segments` as dicts; fields and failures are by number."""

def recording_heads(fd: int) -> list[int]:
    """Return how many spans each thread has recorded, without reading the rest of an open file.
    Empty if the file is not a recording that can be read."""

def recording_wait(
    signal_fd: int,
    seconds: float,
    recordings: Sequence[tuple[int, Sequence[int], int]],
    folders: Sequence[str],
) -> bool:
    """Wait until a ring has to be read, and return whether that is so. ``recordings`` are open
    files, with the latest result of `recording_heads` and the size of a ring. The wait also ends
    after ``seconds``, if ``signal_fd`` can be read, and soon if there are other files in a folder.
    """

def recording_marks(fd: int) -> bytes:
    """Return bytes that change whenever something is recorded in an open file, or a span opens.
    Empty if the file is not a recording that can be read."""

def recording_read(fd: int, what: str | bytes, everything: bool = ...) -> RecordingCopy:
    """Copy the recording in an open file. Raises ValueError, with what was wrong in one sentence
    that begins with `what`."""

def command_write(fd: int, number: int, text: bytes) -> None:
    """Write a command to the file of a recording, and wake the thread of its process that waits for
    commands. Raises OSError."""

def command_ask_threads(fd: int, recording: RecordingCopy) -> None:
    """Let the next span of each thread notice the command. The copy of the recording was made after
    the command was written. Raises OSError."""

def command_cancel(fd: int, number: int) -> None:
    """Ask a process to end a command. Raises OSError."""

def command_state(fd: int) -> tuple[int, int, int, int, bytes]:
    """Return the number of the latest command of a recording, who listens (0: the next thread that
    opens a span, 1: a thread that waits, 2: nobody), the number of the command that was noticed,
    that of the latest answer, and the answer. Raises OSError."""

def termination_watch(write: Callable[[], None]) -> bool:
    """Call `write` in a separate thread before SIGTERM ends the process. Returns False, and does
    nothing, if the program handles or ignores SIGTERM."""

def termination_unwatch() -> None:
    """Let SIGTERM end the process at once."""

def termination_watch_stops(number: int) -> None:
    """To be called when signal.signal has set the action of the signal `number`: if SIGTERM, SIGHUP
    or SIGINT stops the process later, the recording says so."""

def termination_mark_stop(number: int) -> None:
    """Say in the recording that the process ends because of the signal `number`."""

def termination_before_fork() -> None:
    """End the thread that waits for SIGTERM, until `termination_after_fork` is called."""

def termination_after_fork(in_child: bool, /) -> None:
    """After a fork, wait for SIGTERM again in the parent; a child calls `termination_watch`."""

def termination_await() -> None:
    """If SIGTERM has been received, wait until it ends the process."""

def termination_end_after(fd: int, milliseconds: int) -> None:
    """Start a thread that waits until a file descriptor can be read, and ends the process with
    status 0 that many milliseconds later, whatever its other threads do."""

def sampler_start(
    folder: bytes,
    role: str,
    interval_us: int,
    is_read_by_others: bool,
    callback: Callable[[str], bool] | None,
    /,
) -> None:
    """Take the frames of all threads at intervals, in a thread of its own, and write them to a file
    in a folder; if another process reads it, every second. After 2 s, then twice as late each time,
    the thread calls `callback` with the text of the file, until that returns True.
    See `process/sampler.py`."""

def sampler_stop() -> None:
    """End the thread, and write the file. Has no effect if nothing is sampled."""

def sampler_text() -> str | None:
    """Return what the file would contain now; None if nothing is sampled."""

def sampler_before_fork() -> None:
    """End the thread until `sampler_after_fork` is called."""

def sampler_after_fork(in_child: bool, /) -> None:
    """Start the thread again. A child begins a file of its own."""

def sampler_collection(phase: str, info: dict[str, int], /) -> None:
    """Take the time of a garbage collection: for `gc.callbacks`."""

def listener_start() -> None:
    """Create the recording, and have a thread wait for commands of other programs until the process
    ends. Without this call, a command starts the thread when a span opens, and it ends 60 s after
    the last command. It calls `turn` of `process/commands.py`."""

def listener_stop() -> None:
    """End the thread, and start no other one."""

def listener_before_fork() -> None:
    """End the thread until `listener_after_fork` is called, or wait for it for a second."""

def listener_after_fork(in_child: bool, /) -> None:
    """Start the thread again if there was one; in a child only if `listener_start` was called."""

def command_read() -> tuple[int, int, bytes]:
    """Return the number of the latest command of another program, the number of the one that is to
    end, and the text of the latest one."""

def command_answer(number: int, text: bytes, /) -> bool:
    """Answer a command. Returns False if the text is too long."""

def call_in_child(function: Callable[[Any], object], argument: object, /) -> tuple[int, int]:
    """Call a function that is written in C in a forked child, and end the child. Python's fork
    handlers are not called, and the child blocks all signals.

    Returns the child's process id, and a descriptor from which one byte can be read once the
    function has returned. Without that byte, the child has ended in another way. The caller closes
    the descriptor and waits for the child. Raises TypeError for a function of Python, and OSError
    if the system cannot fork."""

def can_end_torch_profile() -> bool:
    """Return whether a torch is loaded whose profiler `TorchProfile` can end."""

class TorchProfile:
    """What torch's profiler has recorded. The constructor ends the profiler of the calling thread,
    as `torch.autograd._disable_profiler` does, but leaves the interpreter's lock to other threads
    meanwhile. No profiler may be started in the process before it returns, and the profiler must
    not record stacks of Python, because these need the lock.

    Raises RuntimeError if `can_end_torch_profile` returns False, or with torch's reason."""

    def __init__(self) -> None: ...
    def save(self, path: str) -> None:
        """Write the Chrome trace, without the interpreter's lock. Raises RuntimeError with torch's
        reason, for example the second time."""

def c_api() -> object:
    """Return the capsule that other extensions attach to (`stagespan/python.h`)."""

# Traces of profilers
SCAN_MORE: int
SCAN_CLOSED: int
SCAN_ODD: int

class TraceColumn:
    """Values of one type, as a buffer that numpy uses without a copy."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class TraceScanner:
    """Reads the list of events of a trace, piece by piece, into columns, without the GIL."""

    def scan(self, buffer: bytes, start: int) -> tuple[int, int]:
        """Read whole entries from ``start``, a position within the list before an entry or a comma.

        Returns the new position and a state: ``SCAN_MORE``, the next entry is incomplete;
        ``SCAN_CLOSED``, the list has ended; ``SCAN_ODD``, the next entry is not JSON.
        """

    def leave_out(self, cause: str, count: int) -> None:
        """Count entries that are not in any table."""

    def take(self) -> dict[str, Any]:
        """Return everything that was read, and reset the scanner."""

    @property
    def total(self) -> int:
        """The number of entries so far."""
    @property
    def looks_like_a_trace(self) -> bool:
        """Whether any entry was an event."""

# Passes over a trace's events. All arrays are contiguous and of the types shown; the last ones are
# filled.
# Raises TypeError for other arrays, and ValueError if their lengths differ.
def trace_nest(
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    thread: NDArray[np.int64],
    parent: NDArray[np.int32],
    longer: NDArray[np.int32],
    own: NDArray[np.int64],
) -> None:
    """Find what each interval is in. They are sorted by thread and start, outer before inner.

    ``parent`` is the index of the one that is open and began last, or -1; ``longer`` is the next
    one around it that ends later, or -1. ``own`` is the time while no later one of the thread is
    open. An interval ends after its start.
    """

def trace_open_at(
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    longer: NDArray[np.int32],
    place: NDArray[np.int64],
    owner: NDArray[np.int64],
) -> None:
    """Find the interval that is open at each place and began last, or -1.

    The begins ascend, and ``longer`` is that of `trace_nest`. Raises ValueError if they do not, or
    if ``longer`` is not an earlier interval or -1.
    """

def trace_add_those_below(parent: NDArray[np.int64], figure: NDArray[np.int64]) -> None:
    """Add to the figure of each element of a forest those of all elements below it.

    ``parent`` is an index or -1. Raises ValueError if a parent does not exist.
    """

def trace_begun_around(
    is_begin: NDArray[np.bool_], asked: NDArray[np.int64], around: NDArray[np.int64]
) -> None:
    """Find the begin of the call around some begins, or -1, all as edges in the order of time.

    ``asked`` ascends. Raises ValueError if it does not, or if an edge does not exist.
    """

def trace_first_around(
    parent: NDArray[np.int32], chosen: NDArray[np.bool_], around: NDArray[np.int32]
) -> None:
    """Find the first chosen element from each one of a forest up to its root, or -1.

    ``parent`` is an index or -1, and ``chosen`` a contiguous array of bool. Raises ValueError if a
    parent does not exist.
    """

def trace_merge(begin: NDArray[np.int64], end: NDArray[np.int64], merged: NDArray[np.int64]) -> int:
    """Write the union of intervals into the two rows of ``merged``, and return its length.

    It is ascending and disjoint.
    """

def trace_paths(
    parent: NDArray[np.int64],
    word: NDArray[np.int64],
    deepest: int,
    node: NDArray[np.int64],
    folded: NDArray[np.bool_],
) -> tuple[bytearray, bytearray]:
    """Find the nodes of a forest in which all elements with the same path of words are one.

    Returns the parent of each node, or -1, and its last word, as int64: parents come first, and the
    nodes of a level are sorted by both. ``node`` gets the node of each element, and ``folded``
    whether its path has more than ``deepest`` elements. Raises ValueError if a parent does not
    exist.
    """

def trace_unite(
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    other_begin: NDArray[np.int64],
    other_end: NDArray[np.int64],
    united: NDArray[np.int64],
) -> int:
    """Write the union of two such sets into the rows of ``united``, and return its length."""

def trace_covered_until(
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    before: NDArray[np.int64],
    place: NDArray[np.int64],
    covered: NDArray[np.int64],
) -> None:
    """Compute how much of the time before each place disjoint, ascending intervals cover.

    ``before`` is the covered length before each of the intervals.
    """

def trace_earliest(
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    lags: NDArray[np.int64],
    cases: int,
    times: NDArray[np.int64],
) -> None:
    """Compute when each point comes at the earliest, with a lag after each source.

    ``times`` has a row for each point and a column for each case, with the times that no point can
    be before, and ``lags`` a row for each edge. Edges into a point precede those out of it. Raises
    ValueError if an edge has a point that does not exist.
    """

def trace_latest(
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    lags: NDArray[np.int64],
    times: NDArray[np.int64],
) -> None:
    """Compute when each point must come at the latest, from the times that ``times`` contains."""

def trace_topological_ranks(
    source: NDArray[np.int64], target: NDArray[np.int64], ranks: NDArray[np.int64]
) -> None:
    """Compute the position of each point in a topological order of the graph."""

def trace_number(
    column: NDArray[np.int64] | NDArray[np.int32], index: NDArray[np.int64] | None = None
) -> bytearray | None:
    """Return the different values of a column, ascending, as int64.

    ``index`` gets the index of each element's value. None if the values are many and far apart.
    """

def trace_number_pairs(
    first: NDArray[np.int64], second: NDArray[np.int64], index: NDArray[np.int64]
) -> bytearray | None:
    """Return the different pairs of two columns, ascending; None if they are many."""

def trace_look_up(
    table: NDArray[np.bool_], code: NDArray[np.signedinteger[Any]], result: NDArray[np.bool_]
) -> None:
    """Write the element of a table for each code. Raises IndexError if a code has none."""

def trace_mark(
    code: NDArray[np.signedinteger[Any]], chosen: NDArray[np.bool_], table: NDArray[np.bool_]
) -> None:
    """Mark the codes of the chosen rows in a table. Raises IndexError if a code has no place."""

def trace_spread(
    table: NDArray[np.bool_],
    code: NDArray[np.signedinteger[Any]],
    value: NDArray[np.int64] | NDArray[np.int32],
    missing: int,
    result: NDArray[np.int64],
) -> None:
    """Write the next of the values for each row whose code is marked, else ``missing``.

    Raises IndexError if a code has no place in the table, and ValueError if there are more or fewer
    values than such rows.
    """

def trace_place_events(
    thread: NDArray[np.int32],
    begin: NDArray[np.int64],
    duration: NDArray[np.int64],
    axis: tuple[int, int, int],
    row: NDArray[np.int32],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
) -> int:
    """Place events that touch a window on the axis of their threads. Returns their number.

    ``thread`` is the number of each event's thread on the axis, or -1, and ``axis`` is the begin
    and the end of the window, and the length of a thread's part of the axis. ``row``, ``first``
    and ``last``, which have an element for each event, get the events, begins and ends.
    """

def divide_requests(
    parts: NDArray[np.int64],
    requests: NDArray[np.int64],
    owned: NDArray[np.int64],
    outside: NDArray[np.int64],
) -> None:
    """Divide the time of requests among what was open in them.

    ``parts`` has 8 rows: request (ascending), kind, depth, level, since, owner, begin and end, with
    a column for each part. Of those that are open at once, the lowest kind gets the time, then the
    largest depth, level and since. ``requests`` has two rows: begin and end. The time of each owner
    is added to ``owned``; ``outside`` gets three rows: what belongs to no part, and of that what is
    before the first and after the last one.
    """

class PartColumns:
    """Parts of requests as columns, which are encoded many at once."""

    def __init__(
        self,
        segments: NDArray[np.void],
        begins_ns: NDArray[np.int64],
        ends_ns: NDArray[np.int64],
        is_whole: NDArray[np.bool_],
        spans: NDArray[np.void],
        bounds: NDArray[np.int64],
        returns: NDArray[np.void],
        return_bounds: NDArray[np.int64],
        names: list[str],
        kinds: tuple[str, ...],
        fields: dict[int, dict[str, int | float | str]],
        request_failures: dict[int, tuple[str, str | None]],
        work: dict[int, dict[str, int | float]],
        failures: dict[int, tuple[str, str | None]],
        amounts_since_ns: int,
    ) -> None:
        """Take the segments, and the times of their parts. ``bounds`` are where the spans of each
        part begin, and where the last ones end; ``return_bounds`` where the hops of each part begin
        and end. Raises TypeError or ValueError if the columns do not belong together."""
    def otlp(
        self,
        parts: Sequence[int],
        attributes: dict[int, dict[str, Any]],
        others: dict[int, list[Any]],
    ) -> tuple[list[tuple[bytes, int, int]], int]:
        """Encode parts as parts of messages of OTLP of the type ScopeSpans.

        Each message comes with the number of its spans, and of the parts that are complete with it.
        The spans become children of their segment or of each other. A part can have more
        ``attributes``, and ``others``: spans as tuples (name, trace id, id, parent or None, whether
        the parent is remote, kind, begin and end in Unix ns, attributes, links as pairs of ids,
        status, its message or None); numbers are those of OTLP. Also returns how many spans OTLP
        cannot express: they are left out.
        """
    def kept(
        self,
        parts: Sequence[int],
        head: bytes,
        batches: dict[int, bytes],
        slowness: dict[int, bytes],
        least_ns: int = ...,
    ) -> list[bytes]:
        """Encode parts as objects of JSON that begin with ``head``, up to ``"is_whole":``. The
        batches and the slowness of each part are values of JSON. Spans that are shorter than
        ``least_ns`` are left out. Raises ValueError if a text is not valid."""

def encode_resource_spans(
    attributes: dict[str, Any], schema_url: str, scope: str, scope_version: str, spans: list[bytes]
) -> bytes:
    """Encode what `PartColumns.otlp` has returned as a part of an ExportTraceServiceRequest."""
