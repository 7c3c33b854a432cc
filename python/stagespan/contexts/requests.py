"""Requests: the spans of one unit of work, in all threads and tasks that it runs in."""

from __future__ import annotations

import contextvars
import functools
import itertools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypedDict, TypeVar, cast

from stagespan import _core, settings
from stagespan.contexts.dynamo import compiling
from stagespan.process import forks, run
from stagespan.process.imports import importing, load

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
R = TypeVar("R")
_F = TypeVar("_F", bound=Callable[..., Any])


Status = Literal["ok", "error", "cancelled", "discarded", "abandoned"]
"""How a request ended. ``abandoned``: its process ended before the request did."""

STATUSES: tuple[str, ...] = (
    *("open", "ok", "error", "cancelled", "discarded", "abandoned", "unused"),
)
"""By the number that the recording uses."""
_SETTABLE = STATUSES[1:6]


class RequestFigures(NamedTuple):
    """The spans of a finished request in the rings: (stage, count, total_ns, errors, top_level).

    Not complete if a ring has wrapped since the request began.
    """

    stages: list[tuple[str, int, int, int, bool]]
    complete: bool


class FinishedRequest(TypedDict):
    """A request that has ended."""

    id: str
    number: int
    trace_id: str | None
    metadata: dict[str, Any]
    begin_ns: int
    end_ns: int
    status: str
    figures: RequestFigures | None
    """None until `figures_of` is asked."""


MOST_FINISHED_REQUESTS = 1024
finished_requests: deque[FinishedRequest] = deque(maxlen=MOST_FINISHED_REQUESTS)
"""The latest requests that have ended, oldest first."""


def figures_of(finished: FinishedRequest) -> RequestFigures:
    """Return the figures of a finished request, from the rings when they are first asked for.

    The end of a request does not read the rings, because that takes as long as they are full.
    """
    figures = finished["figures"]
    if figures is None:
        stages, complete = _core.request_figures(finished["number"], finished["begin_ns"])
        figures = finished["figures"] = RequestFigures(stages, complete)
    return figures


MOST_REQUEST_IDS = 16_384
_HALF = (1 << 64) - 1
_NEW_TRACE_FLAGS = 3
"""Sampled, and with a random trace id."""
_numbers = itertools.count(1)
# Numbers, ids and trace ids. Each dict is used as a ring, and copied in one call without a lock.
_begun_ids: dict[int, tuple[int, str, str | None]] = {}
_ended_ids: dict[int, tuple[int, str, str | None]] = {}
_ends = itertools.count()
_alive: weakref.WeakValueDictionary[int, request] = weakref.WeakValueDictionary()
open_roots: weakref.WeakValueDictionary[str, request] = weakref.WeakValueDictionary()
"""The open requests that began in this process, by trace id."""
_current: contextvars.ContextVar[request | None] = _core.request_variable()


class request:
    """Group the spans of one unit of work: `with request("req-1", user="a"):`, also `async with`.

    Spans that open inside belong to it: in this thread, in tasks that are created inside, in
    threads that run in a copied context (`asyncio.to_thread`), and in functions that `bind`
    returned. A report takes its figures from the rings. The default id contains its number.
    It does nothing in a graph that torch.compile captures.

    ``trace_id`` is the id of the distributed trace that it belongs to: that of ``traceparent``, the
    header of W3C Trace Context, else that of the OpenTelemetry span that is current when it begins,
    else a new one. A malformed header is ignored, because a client may have sent it.

    As a decorator, `@request("nightly")` or `@request()`, it makes each call of a function or a
    coroutine function a separate request, with the same id and metadata.

    Raises TypeError if ``request_id`` is a function, as in a decorator without parentheses, and
    RuntimeError if the object is entered while it is open.
    """

    def __init__(
        self, request_id: str = "", *, traceparent: str | None = None, **metadata: Any
    ) -> None:
        if callable(request_id):
            raise TypeError('request was given a function: write @request() or @request("id").')
        # A number taken during compilation would become part of the graph and its guards.
        self.number = 0 if compiling() else next(_numbers)
        self._given_id = str(request_id) if request_id else ""
        self.id = self._given_id or f"req_{self.number}"
        self.metadata: dict[str, Any] = metadata
        self._traceparent = traceparent
        parent = None if traceparent is None else _carriers().parent_in(traceparent)
        self.trace_id: str | None = None if parent is None else parent.trace_id
        """Id of the trace: 32 hexadecimal digits, or None before it has one."""
        self._parent_hop = 0 if parent is None else parent.hop
        self._trace_flags = _NEW_TRACE_FLAGS if parent is None else parent.flags
        self._trace_state = ""
        self.pipeline: str | None = None
        """The name of the figures of its chunks, if it is not that of the process's pipeline."""
        self._segment = 0
        self._entered: object = None
        self._shown = -1
        self._begin_ns = 0
        self._status = 0

    def __enter__(self) -> Self:
        if compiling():
            return self
        if self._entered is not None:
            raise RuntimeError(
                f"the request {self.id!r} is already open: create a new one for each unit of work."
            )
        _alive[self.number] = self
        if _core.is_enabled():
            self._begin()
        else:
            self._begin_ns = 0
        _begun_ids[self.number % MOST_REQUEST_IDS] = (self.number, self.id, self.trace_id)
        self._entered = _core.request_enter(self.number, self)
        return self

    def _begin(self) -> None:
        self._begin_ns = _core.now_ns()
        self._status = 0
        if self.trace_id is None:
            self._join_trace()
        trace = int(self.trace_id or "0", 16)
        self._segment = _core.segment_random_id()
        self._shown = _core.segment_begin(
            *(self.number, shown_id(self.id), trace >> 64, trace & _HALF),
            *(self._segment, self._parent_hop, self._trace_flags),
        )
        if self.trace_id is not None:
            open_roots[self.trace_id] = self

    def _join_trace(self) -> None:
        parent = _opentelemetry_parent()
        if parent is not None:
            self.trace_id, self._parent_hop, self._trace_flags = parent
        else:
            high, low = _core.segment_random_id(), _core.segment_random_id()
            self.trace_id = f"{high:016x}{low:016x}"

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if self._entered is None:
            return
        entered, self._entered = self._entered, None
        _core.request_leave(entered, self)
        self._end(status_of(kind))

    def _end(self, status: int) -> None:
        ended = (self.number, self.id, self.trace_id)
        _ended_ids[next(_ends) % MOST_FINISHED_REQUESTS] = ended
        if self.trace_id is not None and open_roots.get(self.trace_id) is self:
            open_roots.pop(self.trace_id, None)
        if self._begin_ns == 0:
            return
        status = self._status or status
        _core.segment_end(self.number, self._shown, status)
        finished_requests.append(
            {
                "id": self.id,
                "number": self.number,
                "trace_id": self.trace_id,
                "metadata": self.metadata,
                "begin_ns": self._begin_ns,
                "end_ns": _core.now_ns(),
                "status": STATUSES[status],
                "figures": None,
            }
        )

    def set_status(self, status: Status) -> None:
        """Say how the request ends: ``"cancelled"``, ``"discarded"``, and so on.

        Without it, the status is ``ok``; ``cancelled`` after asyncio.CancelledError or
        GeneratorExit; ``error`` after another exception. ``discarded`` means that the result is not
        used, such as that of the slower one of two branches. Raises ValueError for another text.
        """
        if status not in _SETTABLE:
            raise ValueError(
                f"{status!r} is not a status of a request: pass one of {', '.join(_SETTABLE)}"
            )
        self._status = STATUSES.index(status)
        if self._shown >= 0:
            _core.segment_set_status(self.number, self._shown, self._status)

    def chunk(self, tokens: int = 1) -> None:
        """Record one output of a stream, such as a token or a frame.

        The request's row shows the time to the first chunk, the number of chunks and the sum of
        ``tokens``. ``stats(kind="first_chunk")``, ``"between_chunks"`` and ``"per_token"`` show the
        distributions over all requests of a pipeline. No span is recorded. Before the request is
        entered, and if the recorder was off then, nothing is recorded.

        Raises ValueError if ``tokens`` is negative or does not fit into 64 bits, and TypeError if
        it is not an integer.
        """
        if self._shown < 0:
            return
        pipeline = self.pipeline or run.stable_pipeline_name()
        try:
            _core.segment_chunk(self.number, self._shown, pipeline, tokens)
        except OverflowError:
            raise ValueError(f"tokens is {tokens!r}: pass a number from 0 to 2**64 - 1") from None

    def inject(
        self,
        carrier: dict[str, str] | None = None,
        *,
        queue: str | None = None,
        attempt: int = 1,
        branch: str | None = None,
    ) -> dict[str, str]:
        """Write this request to a carrier; see `stagespan.inject`."""
        carrier = {} if carrier is None else carrier
        if self.trace_id is None or self._shown < 0 or not _core.is_enabled():
            return self._forward(carrier)
        carriers = _carriers()
        if not 1 <= attempt <= carriers.MOST_ATTEMPT:
            raise ValueError(f"attempt is {attempt!r}: pass a number from 1 to 65,535")
        monotonic_ns, unix_ns = _core.segment_send(self.number, self._shown)
        hop = _core.segment_random_id()
        carrier["traceparent"] = f"00-{self.trace_id}-{hop:016x}-{self._trace_flags:02x}"
        if self._trace_state:
            carrier["tracestate"] = self._trace_state
        carrier["stagespan"] = carriers.own_text(
            carriers.Sent(
                self.id,
                monotonic_ns,
                unix_ns,
                _core.segment_clock(),
                self._segment,
                queue or "",
                attempt,
                branch or "",
            )
        )
        return carrier

    def _forward(self, carrier: dict[str, str]) -> dict[str, str]:
        """Pass on what this process has received, unchanged."""
        if self._parent_hop and self._traceparent is not None:
            carrier["traceparent"] = self._traceparent
        return carrier

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: _F) -> _F:
        """Decorate a function: each call is a separate request."""
        with importing():
            import inspect  # its import takes long, and few programs need it

        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} is a generator function, which request cannot decorate: "
                f"put `with request():` inside it, or around the loop that consumes it."
            )
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"request decorates {function!r}, but only a function can be decorated")
        given_id, traceparent, metadata = self._given_id, self._traceparent, self.metadata

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with request(given_id, traceparent=traceparent, **metadata):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def wait_for(*args: Any, **kwargs: Any) -> Any:
            async with request(given_id, traceparent=traceparent, **metadata):
                return await function(*args, **kwargs)

        return cast(_F, wait_for if inspect.iscoroutinefunction(function) else call)

    def __repr__(self) -> str:
        state = "not open" if self._entered is None else "open"
        return f"<request {self.id!r}, number {self.number}, {state}>"


def status_of(kind: type[BaseException] | None) -> int:
    """Return the number of the status of a request that an exception of this type has left."""
    if kind is None:
        return 1
    cancelled: list[type[BaseException]] = [GeneratorExit]
    for module in ("asyncio.exceptions", "concurrent.futures"):
        found = getattr(sys.modules.get(module), "CancelledError", None)
        if found is not None:
            cancelled.append(found)
    return 3 if issubclass(kind, tuple(cancelled)) else 2


def shown_id(id_: str) -> str:
    """Return what files show of a request's id: the id, or its hash by STAGESPAN_REQUEST_IDS."""
    if _hashes_ids() != "hash":
        return id_
    with importing():
        import hashlib
    return hashlib.blake2b(id_.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


@functools.lru_cache(1)
def _carriers() -> Any:
    """The module of carriers, which programs of one process do not need."""
    return load("stagespan.contexts.carriers")


@functools.lru_cache(1)
def _hashes_ids() -> str:
    return str(settings.get("STAGESPAN_REQUEST_IDS"))


def _opentelemetry_parent() -> tuple[str, int, int] | None:
    """The trace id, span id and flags of OpenTelemetry's current span, if the program uses it."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    try:
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        return f"{context.trace_id:032x}", context.span_id, int(context.trace_flags) & 0xFF
    except Exception:  # a provider of the program's own, or an import that is not complete
        _core.lost_add("hook_errors")
        return None


def current_request() -> request | None:
    """Return the request that the calling code belongs to, or None."""
    found = _current.get()
    if found is None:
        # A greenlet belongs to its creator's request, but does not have its context variables.
        number = _core.request_number()
        if number:
            found = _alive.get(number)
    return found


def known_requests() -> dict[int, tuple[str, str | None]]:
    """Return the ids and trace ids of requests by number.

    These are all open requests, the latest 16,384 that have begun, and the latest 1,024 that have
    ended.
    """
    alive = [reference() for reference in _alive.valuerefs()]
    found = [(one.number, one.id, one.trace_id) for one in alive if one is not None]
    found += _ended_ids.copy().values()
    found += _begun_ids.copy().values()
    return {number: (id_, trace_id) for number, id_, trace_id in found}


def known_request(number: int) -> tuple[str, str | None]:
    """Return the id and the trace id of a request; an empty id if its number is not known."""
    begun = _begun_ids.get(number % MOST_REQUEST_IDS)
    if begun is not None and begun[0] == number:
        return begun[1:]
    alive = _alive.get(number)
    if alive is not None:
        return alive.id, alive.trace_id
    ended = (one[1:] for one in _ended_ids.copy().values() if one[0] == number)
    return next(ended, ("", None))


_this_process = object()
"""Another object in a forked child, in which the requests of its parent do not go on."""


def _renew_process() -> None:
    global _this_process
    _this_process = object()


forks.after_in_child(_renew_process)


class UnboundThread(threading.Thread):
    """A thread that `propagate_to_threads` does not bind."""


class Carried:
    """The request and the innermost span of the code that creates it, for another thread.

    Several threads can use the same object at the same time.
    """

    __slots__ = ("_inheritance", "_process", "_queue", "_request", "_submitted_ticks")

    def __init__(self, queue: str | None = None) -> None:
        self._inheritance = _core.request_inheritance()
        self._request = current_request()
        # The wait of what is submitted to a pool. Only requests have waits.
        self._queue = None if self._request is None else queue
        self._process = _this_process
        self._submitted_ticks = _core.segment_now() if self._queue is not None else 0

    def is_empty(self) -> bool:
        """Return whether there was neither an open span nor a request."""
        return self._inheritance is None and self._request is None

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function with this request and this span."""
        self._end_wait()
        adopted = self.enter()
        try:
            return function(*args, **kwargs)
        finally:
            self.leave(adopted)

    async def wait_for(
        self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Await a coroutine function with this request and this span."""
        self._end_wait()
        adopted = self.enter()
        try:
            return await function(*args, **kwargs)
        finally:
            self.leave(adopted)

    def _end_wait(self) -> None:
        """Record the wait from submit to start, at the first call."""
        queue, self._queue = self._queue, None
        if queue is not None and self._request is not None and self._process is _this_process:
            _core.segment_wait(self._request.number, queue, self._submitted_ticks)

    def enter(self) -> object:
        """Make the request and the span current; pass the result to `leave`."""
        return _core.request_adopt(self._inheritance, self._request)

    def leave(self, adopted: object) -> None:
        """Restore what was current before `enter`."""
        _core.request_leave(adopted, self._request)


# The parent reports its own requests, and hops to a child do not come back to the root there.
forks.after_in_child(finished_requests.clear)
forks.after_in_child(open_roots.clear)
