"""Stands in for the extension where it cannot be imported: a program runs on, and nothing is timed.

`Nothing` is each span, token, batch and snapshot. Requests are current as usual. Functions that
only tell the recorder something do nothing, and all other names are refused in one sentence.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import logging
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NoReturn

from stagespan.errors import StagespanError

if TYPE_CHECKING:
    from collections.abc import Iterable

reason = "the extension cannot be imported"
"""Why nothing is timed, and what to do."""


def install(error: Exception) -> None:
    """Use this module as `stagespan._core`, and log the reason and what to do."""
    global reason
    reason = f"{reason} {_explained(error)}"
    sys.modules["stagespan._core"] = sys.modules[__name__]
    logging.getLogger("stagespan").warning(
        "stagespan: nothing is timed, because %s (logged once).", reason
    )


def _explained(error: Exception) -> str:
    if isinstance(error, ImportError) and error.name is None:
        return f"({error})"  # the extension has raised it, and says what to do
    what = str(error) if isinstance(error, ImportError) else repr(error)
    what_to_do = "install stagespan for this Python on a machine that it supports"
    if isinstance(error, ModuleNotFoundError) and "stagespan._core" not in sys.modules:
        from importlib.machinery import EXTENSION_SUFFIXES
        from pathlib import Path

        folder = Path(__file__).parent
        what = f"{error}: {folder} does not have _core{EXTENSION_SUFFIXES[0]}"
        for other in sorted(path.name for path in folder.glob("_core.*.so"))[:1]:
            what += f" but {other}, which is for another Python or processor"
        if not folder.is_dir():
            what = f"{error}: {folder} is in an archive"
            what_to_do = "unpack it, because Python cannot import it from there"
        root = folder.parents[1]
        if (root / "CMakeLists.txt").is_file():  # sources hide an installed package from Python
            what_to_do = f"run `pip install {root}`, and do not import stagespan from its sources"
    return f"({what}): {what_to_do}"


class _NeedsExtension(StagespanError, AttributeError):
    """What was asked for needs the extension.

    It is an AttributeError too, because code such as pickle asks every module for its names.
    """


_TOLD = re.compile(
    r"(?!trace_)(\w+_)?(add|after|await|before|boot|describe|disable|drop|enable|end|every|forget"
    r"|inheritance|innermost|is_cut|keep|mark|never|now|record|set|start|stop|timed_by|unwatch|wait"
    r"|wake|watch|when|why)(_\w+)?"
)
"""The words in the names of functions that do nothing."""


def __getattr__(name: str) -> Any:
    return end if _TOLD.fullmatch(name) else refuse()


def refuse() -> NoReturn:
    """Raise the StagespanError of everything that needs the extension."""
    raise _NeedsExtension(f"This needs stagespan's extension, and {reason}.")


def end(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


class Nothing:
    """A span, token, batch, cursor or snapshot of nothing, and a decorator that changes nothing."""

    id = overwritten = size_bytes = 0

    def __init__(self, name: Any = None, requests: Iterable[Any] = (), **options: Any) -> None:
        self.name, self.kind, self.requests = name, options.get("kind", "span"), tuple(requests)
        self.reset_peak_memory = options.get("reset_peak_memory", False)
        self.capture_memory = options.get("capture_memory", False)

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *error: object) -> None: ...
    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)

    def __call__(self, function: Any) -> Any:
        return function

    add = inputs = output = end = lambda self, *args, **kwargs: None
    pack = unpack = since = lambda self, *args: self
    stages = amounts = lambda self, kind=0: dict[str, Any]()
    time_ns = property(lambda self: time.time_ns())


Span = Token = SpanCursor = Snapshot = PackedSnapshot = snapshot = queued = batch = Nothing


# torch.compile captures the next functions in place of those of the extension.


def _makes_nothing(kind: str) -> Any:
    def make(name: Any = None, reset_peak_memory: bool = kind != "span", **options: Any) -> Any:
        if callable(name):  # a function that is decorated
            return name
        return Nothing(name, reset_peak_memory=reset_peak_memory, **{"kind": kind, **options})

    return make


span = begin = _makes_nothing("span")
ProfilingContext = _makes_nothing("profiling")
ProfilingContext4Debug = _makes_nothing("debug")
call_timed = timed_coroutine = lambda _, call, /, *args, **kwargs: call(*args, **kwargs)
timed_generator = timed_async_generator = lambda _, call, args, kwargs: call(*args, **kwargs)


# --- requests -----------------------------------------------------------------------------------

_open: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("requests", default=())
_numbers = itertools.count(1)


def current_request() -> Any:
    """Return the innermost request that is open in this context."""
    return next(reversed(_open.get()), None)


class Request:
    """A request that is current, passes on what was received, and is not recorded."""

    trace_id = pipeline = branch = queue = _counted_queue = _w3c = None
    attempt = 1
    chunk = set_status = _show = _serve_http = end
    _headers: dict[str, str] = {}  # noqa: RUF012
    _is_open = property(lambda self: self in _open.get())
    __aenter__, __aexit__ = Nothing.__aenter__, Nothing.__aexit__

    def _initialise(
        self, request_id: object, traceparent: object, metadata: object, is_new: object = False
    ) -> None:
        self.number, self.metadata, self._is_new = next(_numbers), metadata, is_new
        self._given_id = str(request_id) if request_id else ""
        self.id = self._given_id or f"req_{self.number}"
        self._traceparent = traceparent
        self._headers = _headers_in({"traceparent": traceparent}, is_trusted=False)

    def _receive(self, carrier: Any, request_id: str, trusted: bool, entry: Any) -> None:
        self._initialise(request_id, None, {})
        self._headers = _headers_in(carrier, is_trusted=bool(trusted))

    def _follow(self, first: Request) -> None:
        self.__dict__ |= first.__dict__

    def _enter(self) -> None:
        _open.set((*_open.get(), self))

    def _leave(self, kind: object) -> None:
        _open.set(_open.get()[:-1])

    def inject(self, carrier: Any = None, **options: Any) -> Any:
        """Pass on what was received."""
        carrier = {} if carrier is None else carrier
        for name, text in self._headers.items():  # not every carrier has update()
            carrier[name] = text
        return carrier


def inject(carrier: Any = None, **options: Any) -> Any:
    """Pass on what the current request has received."""
    return (current_request() or Request()).inject(carrier)


_HEADERS = {
    "traceparent": re.compile(
        r"(?=.{,256}\Z)[ \t]*[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?[ \t]*"
    ),
    "stagespan": re.compile("[!-~]{1,256}"),
}
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{1,256}")


def _headers_in(carrier: Any, *, is_trusted: bool) -> dict[str, str]:
    """Return the headers for the next process, whose extension checks them again."""
    given: defaultdict[str, list[str]] = defaultdict(list)
    for pair in carrier.items() if hasattr(carrier, "items") else carrier or ():
        # Pairs may be anything.
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            name, values = pair
            name = _text(name)
            if isinstance(carrier, dict) and name.isupper():
                name = name.removeprefix("HTTP_")  # in a WSGI environ
            several = values if isinstance(values, list | tuple) else [values]
            given[name.lower()] += map(_text, several)
    headers = {
        name: text
        for name, pattern in _HEADERS.items()
        for text in {*given[name]}
        if len({*given[name]}) == 1 and pattern.fullmatch(text)
    }
    if "traceparent" not in headers:
        return {}
    members = (text.strip(" \t") for text in ",".join(given["tracestate"]).split(","))
    state = [text for text in members if _MEMBER.fullmatch(text)]
    ours = [text for text in state if text.startswith("stagespan=")]
    # A client may have written ours.
    if not (is_trusted and len(ours) == 1 and re.fullmatch("stagespan=[0-9a-f]{16}", ours[0])):
        state = [text for text in state if text not in ours]
    if state:
        headers["tracestate"] = ",".join(state[:32])
    if not is_trusted:
        headers.pop("stagespan", None)
    return headers


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, (bytes, bytearray)) else str.__str__(value)


# --- what the package asks of the recorder --------------------------------------------------------

is_enabled = is_debug = bool
open_spans = stage_names = debug_stages = requests_finished = list
clock_info = memory_peak_rss_bytes = requests_known = dict
lost = Counter  # nothing of any cause
# Nothing is measured that an exception could spoil.
request_enter_method = request_exit_method = request_class = remote_class = lambda given: given
request_adopted = lambda _, request: request or contextlib.nullcontext()  # noqa: E731
device_drain_completions: Any = lambda is_last: ()  # noqa: E731
request_record_field = lambda name, is_secret: True  # noqa: E731
service_wait = threading.Event().wait
now_ns = time.time_ns
MISSING: Any = object()
FLAG_ERROR = FLAG_RECORDED = FLAG_CAPTURED = KIND_SHIFT = 0
# Nothing is reserved, so each value of these settings is valid.
RING_SPANS_DEFAULT = RING_SPANS_LEAST = REQUESTS_DEFAULT = REQUESTS_LEAST = 0
RING_SPANS_MOST = REQUESTS_MOST = 10**9


def spans(*, since: Nothing | None = None) -> Any:
    """Return no spans, with the fields that spans have."""
    import numpy as np

    fields = "stage:u4 thread:u4 begin_ns:i8 end_ns:i8 id:u8 parent:u8 request:u8 suspended_ns:i8 "
    fields += (
        "depth:u2 flags:u2 device_elapsed_ns:f8 device_queue_ns:f8 device_tail_ns:f8 cpu_ns:f8"
    )
    return np.empty(0, np.dtype([tuple(field.split(":")) for field in fields.split()], align=True))
