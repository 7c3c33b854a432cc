"""Requests: the spans of one unit of work, in all threads and tasks that it runs in."""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypedDict, TypeVar, cast

from stagespan import _core, settings
from stagespan.contexts.dynamo import compiling
from stagespan.process import forks, imports, run
from stagespan.process.imports import importing

if TYPE_CHECKING:
    from typing_extensions import Self

_MOST_NAME_BYTES = 32
P = ParamSpec("P")
R = TypeVar("R")
_F = TypeVar("_F", bound=Callable[..., Any])


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
    """None until they are settled."""


def finished_requests() -> list[FinishedRequest]:
    """Return the latest 1,024 requests that have ended, oldest first.

    The recorder keeps them, and makes these dicts only if they are read.
    """
    return cast(list[FinishedRequest], _core.requests_finished())


breakdowns: list[Callable[[_core.Request], dict[str, Any] | None]] = []
"""Set by what can read recordings."""
_waiting: list[Callable[[], object]] = []


def when_one_has_ended(callback: Callable[[], object]) -> None:
    """Call `callback` once, when the next request of this process has ended, in its thread."""
    _waiting.append(callback)
    _core.request_call_when_ended(_call_waiting)


def _call_waiting() -> None:
    while _waiting:
        try:
            _waiting.pop()()
        except Exception:
            _core.lost_add("hook_errors")


def settle_figures() -> None:
    """Read the figures of finished requests from the rings, in one pass.

    The end of a request does not read the rings, because that takes as long as they are full. The
    service thread does, before they have wrapped, and whoever asks for figures.
    """
    unsettled = [request for request in finished_requests() if request["figures"] is None]
    if not unsettled:
        return
    wanted = [(request["number"], request["begin_ns"]) for request in unsettled]
    for finished, found in zip(unsettled, _core.request_figures(wanted), strict=True):
        finished["figures"] = RequestFigures(*found)


def figures_of(finished: FinishedRequest) -> RequestFigures:
    """Return the figures of a finished request, from the rings if they are not settled."""
    if finished["figures"] is None:
        settle_figures()
    figures = finished["figures"]
    if figures is None:  # of one that is not kept any more
        (found,) = _core.request_figures([(finished["number"], finished["begin_ns"])])
        figures = finished["figures"] = RequestFigures(*found)
    return figures


# Looked up here, because the call of `compiling` is a tenth of what a request costs.
_DYNAMO = "torch._dynamo"
_modules = sys.modules


@_core.request_class
class request(_core.Request):
    """Group the spans of one unit of work: `with request("req-1", user="a"):`, also `async with`.

    Spans that open inside belong to it: in this thread, in tasks that are created inside, in
    threads that run in a copied context (`asyncio.to_thread`), and in functions that `bind`
    returned. A report takes its figures from the rings. The default id contains its number.
    It does nothing in a graph that torch.compile captures.

    ``trace_id`` is the id of the distributed trace that it belongs to: that of ``traceparent``, the
    header of W3C Trace Context, else that of the OpenTelemetry span that is current when it begins,
    else a new one. A malformed header is ignored, because a client may have sent it.

    Inside of another request of the same context, it is a child of that one while that one is
    open: it has the same trace and a row of its own, and metrics of requests count the outer one
    only. If the outer one has ended, as in a pool that was started inside of it, it is a root with
    a link to it. With ``new=True`` it is always a root of a new trace.

    As a decorator, `@request("nightly")` or `@request()`, it makes each call of a function or a
    coroutine function a separate request, with the same id and metadata.

    Raises TypeError if ``request_id`` is a function, as in a decorator without parentheses, and
    RuntimeError if the object is entered while it is open.
    """

    def __init__(
        self,
        request_id: str = "",
        *,
        traceparent: str | None = None,
        new: bool = False,
        **metadata: Any,
    ) -> None:
        if callable(request_id):
            raise TypeError('request was given a function: write @request() or @request("id").')
        # The recorder does the same without this function where the class itself is called.
        # A number taken during compilation would become part of the graph and its guards.
        if not (_DYNAMO in _modules and compiling()):
            self._initialise(request_id, traceparent, metadata, new)

    @_core.request_enter_method
    def __enter__(self) -> Self:
        if not (_DYNAMO in _modules and compiling()):
            self._enter()
        return self

    @_core.request_exit_method
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if not (_DYNAMO in _modules and compiling()):
            self._leave(kind)

    def breakdown(self) -> dict[str, Any] | None:
        """Return where the time of this request went, as far as this process has recorded it.

        It has the keys of a request in `stagespan requests --json`, such as ``total_ns``,
        ``queue_ns`` and ``first_chunk_ns``, also while the request is open. None if it is not
        recorded, or was displaced by later ones. It reads the recording of this process, which
        takes milliseconds if that is large.
        """
        from stagespan.contexts.context import need  # which imports this module

        need("breakdown")
        return next((found for hook in breakdowns if (found := hook(self)) is not None), None)

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
        is_new = self._is_new

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with request(given_id, traceparent=traceparent, new=is_new, **metadata):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def wait_for(*args: Any, **kwargs: Any) -> Any:
            async with request(given_id, traceparent=traceparent, new=is_new, **metadata):
                return await function(*args, **kwargs)

        return cast(_F, wait_for if inspect.iscoroutinefunction(function) else call)

    def __repr__(self) -> str:
        state = "open" if self._is_open else "not open"
        return f"<request {self.id!r}, number {self.number}, {state}>"


def shown_id(id_: str) -> str:
    """Return what files show of a request's id: the id, or its hash by STAGESPAN_REQUEST_IDS."""
    hash_ = _find_hash()
    return id_ if hash_ is None else hash_(id_)


@functools.lru_cache(1)
def _find_hash() -> Callable[[str], str] | None:
    return _hash if settings.get("STAGESPAN_REQUEST_IDS") == "hash" else None


def _hash(id_: str) -> str:
    with importing():
        import hashlib
    return hashlib.blake2b(id_.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def record_request_fields(*names: str) -> None:
    """Let metadata of requests leave the process: `stagespan requests` and exports show them.

    There are at most eight names of 32 bytes, with those of STAGESPAN_REQUEST_FIELDS. Numbers are
    recorded as they are, and texts cut at 64 bytes; other values are left out. The text of a secret
    is replaced, as STAGESPAN_REDACT says. They are read when a request begins, and when it ends.

    Raises:
        ValueError: If a name is empty or longer than 32 bytes, or if there are more than eight.

    Example:
        ```python
        stagespan.record_request_fields("steps", "model")
        with stagespan.request("r-1", steps=60, model="wan"):
            ...
        ```
    """
    redaction = imports.load("stagespan.pages.redaction")
    hides = redaction.hides_secrets()
    _core.request_set_details(_read_environment, redaction.REDACTED)
    for name in names:
        if not 0 < len(name.encode("utf-8", "backslashreplace")) <= _MOST_NAME_BYTES:
            raise ValueError(f"{name!r} is not the name of a field: pass 1 to 32 bytes.")
        if not _core.request_record_field(name, hides and redaction.is_secret(name)):
            raise ValueError(f"{name!r} is the ninth field of requests: at most eight are recorded")


def _read_environment() -> None:
    if names := settings.get("STAGESPAN_REQUEST_FIELDS"):
        try:
            record_request_fields(*names)
        except ValueError as error:
            warnings.warn(f"STAGESPAN_REQUEST_FIELDS: {error}", RuntimeWarning, stacklevel=2)
    _core.exceptions_keep_messages(settings.get("STAGESPAN_EXCEPTION_MESSAGES"))


def _opentelemetry_parent() -> tuple[int, int, int, int] | None:
    """The trace id, span id and flags of OpenTelemetry's current span, if the program uses it."""
    try:
        # Mostly nothing is current. Asking for the context takes a fifth of asking for the span.
        if not _modules["opentelemetry.context"].get_current():
            return None
        span = _modules["opentelemetry.trace"].get_current_span()
        context = span.get_span_context()
        # A request stands there (`contexts/opentelemetry.py`); it is found in another way.
        if not context.is_valid or getattr(span, "is_of_request", False):
            return None
        high, low = divmod(context.trace_id, 1 << 64)
        return high, low, context.span_id, int(context.trace_flags) & 0xFF
    except Exception:  # a provider of the program's own, or an import that is not complete
        _core.lost_add("hook_errors")
        return None


_core.request_set_functions(_opentelemetry_parent, _find_hash, run.pipeline_name, compiling)
_core.request_set_details(_read_environment, "")


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
        self._request = _core.current_request()
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
        with _core.request_adopted(self._inheritance, self._request):
            return function(*args, **kwargs)

    async def wait_for(
        self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Await a coroutine function with this request and this span."""
        self._end_wait()
        with _core.request_adopted(self._inheritance, self._request):
            return await function(*args, **kwargs)

    def _end_wait(self) -> None:
        """Record the wait from submit to start, at the first call."""
        queue, self._queue = self._queue, None
        if queue is not None and self._request is not None and self._process is _this_process:
            _core.segment_wait(self._request.number, queue, self._submitted_ticks)


# The parent reports its own requests.
forks.after_in_child(_core.requests_forget_finished)
forks.after_in_child(_waiting.clear)
