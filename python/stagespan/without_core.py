"""Stands in for the extension where it cannot be imported: a program runs on, and nothing is timed.

`Nothing` is each span, token, batch and snapshot. Requests are current as usual. The rest are
values that a program needs. Other names, such as those that read traces and recordings, are refused
in one sentence.
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
    from collections.abc import Callable, Iterable, Iterator

_ADVICE = "install stagespan for this Python on a machine that it supports"
_reason = f"the extension cannot be imported (it is not installed): {_ADVICE}"


def install(error: Exception) -> None:
    """Use this module as `stagespan._core`, and log the reason and what to do."""
    global _reason
    problem, advice = str(error) if isinstance(error, ImportError) else repr(error), f": {_ADVICE}"
    if isinstance(error, ModuleNotFoundError) and "stagespan._core" not in sys.modules:
        where, what_to_do = _missing_file()
        problem, advice = f"{problem}: {where}", f": {what_to_do}"
    elif isinstance(error, ImportError) and error.name is None:
        advice = ""  # the extension has raised it, and says what to do
    _reason = f"the extension cannot be imported ({problem}){advice}"
    sys.modules["stagespan._core"] = sys.modules[__name__]
    setattr(sys.modules["stagespan"], "_core", sys.modules[__name__])  # noqa: B010
    logging.getLogger("stagespan").warning(
        "stagespan: nothing is timed, because %s (logged once).", reason()
    )


def _missing_file() -> tuple[str, str]:
    """Return what is wrong with the folder of the package, and what to do."""
    import sysconfig
    from importlib.machinery import EXTENSION_SUFFIXES
    from pathlib import Path

    folder = Path(__file__).parent
    if not folder.is_dir():
        return f"{folder} is in an archive", "unpack it, because Python cannot import it from there"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "free-threaded Python is not supported yet", "use a Python with the global lock"
    needed = f"_core{EXTENSION_SUFFIXES[0]}"
    others = sorted(path.name for path in folder.glob("_core.*.so") if path.name != needed)
    where = f"{folder} does not have {needed}"
    if others:
        where += f" but {others[0]}, which is for another Python or processor"
    sources = folder.parents[1]
    if (sources / "CMakeLists.txt").is_file():
        # These sources hide an installed package from Python.
        return where, f"run `pip install {sources}`, and do not import stagespan from its sources"
    return where, _ADVICE


def reason() -> str:
    """Return why nothing is timed, and what to do."""
    return _reason


class _NeedsExtension(StagespanError, AttributeError):
    """What was asked for needs the extension.

    It is an AttributeError too, because code such as pickle asks every module for its names.
    """


def __getattr__(name: str) -> Any:
    return end if _VERBS.fullmatch(name) else refuse()


def refuse() -> NoReturn:
    """Raise the StagespanError of everything that needs the extension."""
    raise _NeedsExtension(f"This needs stagespan's extension, and {reason()}.")


class Nothing:
    """A span, token, batch, cursor or snapshot of nothing, and a decorator that changes nothing."""

    id = overwritten = size_bytes = 0

    def __init__(self, name: Any = None, requests: Iterable[Any] = (), **options: Any) -> None:
        self.name, self.kind, self.requests = name, options.get("kind", "span"), tuple(requests)
        self.reset_peak_memory = options.get("reset_peak_memory", False)
        self.capture_memory = options.get("capture_memory", False)

    def __enter__(self) -> Nothing:
        return self

    async def __aenter__(self) -> Nothing:
        return self

    def __exit__(self, *error: object) -> None: ...
    async def __aexit__(self, *error: object) -> None: ...

    def __call__(self, function: Any) -> Any:
        return function

    add = inputs = output = end = lambda self, *args, **kwargs: None
    pack = unpack = since = lambda self, *args: self
    time_ns = property(lambda self: time.time_ns())

    def stages(self, kind: int = 0) -> dict[str, Any]:
        """Return an empty dict."""
        return {}


Span = Token = SpanCursor = Snapshot = PackedSnapshot = snapshot = queued = batch = Nothing


# torch.compile captures the next functions in place of those of the extension.


def _makes_nothing(kind: str, reset: bool) -> Any:
    def make(name: Any = None, reset_peak_memory: bool = reset, **options: Any) -> Any:
        if callable(name):  # a function that is decorated
            return name
        return Nothing(name, reset_peak_memory=reset_peak_memory, **{"kind": kind, **options})

    return make


span = begin = _makes_nothing("span", False)
ProfilingContext = _makes_nothing("profiling", True)
ProfilingContext4Debug = _makes_nothing("debug", True)


def end(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


def call_timed(span: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `function` with the other arguments."""
    return function(*args, **kwargs)


record, timed_coroutine = end, call_timed
timed_generator = timed_async_generator = lambda _, call, args, kwargs: call(*args, **kwargs)


# --- requests -----------------------------------------------------------------------------------

_request: contextvars.ContextVar[Any] = contextvars.ContextVar("stagespan_request", default=None)
current_request = _request.get
_numbers = itertools.count(1)


@contextlib.contextmanager
def request_adopted(inheritance: object, request: Any, /) -> Iterator[None]:
    """Make a request current in the block."""
    entered = _request.set(request)
    try:
        yield
    finally:
        # A token that was used already, or in another context, is refused.
        with contextlib.suppress(RuntimeError, ValueError):
            _request.reset(entered)


class Request:
    """A request that is current, passes on what was received, and is not recorded."""

    trace_id = pipeline = branch = queue = _counted_queue = _w3c = None
    attempt = 1
    chunk = set_status = _show = _serve_http = end
    _entered: Any = None
    _headers: dict[str, str] = {}  # noqa: RUF012

    def _initialise(
        self, request_id: object, traceparent: object, metadata: object, is_new: object = False
    ) -> None:
        self.number, self.metadata, self._is_new = next(_numbers), metadata, is_new
        self._given_id = str(request_id) if request_id else ""
        self.id = self._given_id or f"req_{self.number}"
        self._traceparent = traceparent if isinstance(traceparent, str) else None
        self._headers = {"traceparent": self._traceparent} if self._traceparent else {}

    def _receive(self, carrier: Any, request_id: str, trusted: bool, entry: Any) -> None:
        self._initialise(request_id, None, {})
        self._headers = _headers_in(carrier, is_trusted=bool(trusted))

    def _follow(self, first: Request) -> None:
        self.number, self.id, self.metadata = first.number, first.id, first.metadata
        self._headers = first._headers

    def _enter(self) -> None:
        if self._entered is not None:
            raise RuntimeError(f"the request {self.id!r} is already open")
        self._entered = request_adopted(None, self)
        self._entered.__enter__()

    def _leave(self, kind: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.__exit__(None, None, None)

    async def __aenter__(self) -> Any:
        self._enter()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._leave(None)

    _is_open = property(lambda self: self._entered is not None)

    def inject(self, carrier: Any = None, **options: Any) -> Any:
        """Pass on what was received."""
        carrier = {} if carrier is None else carrier
        for name in self._headers:  # not every carrier has update()
            carrier[name] = self._headers[name]
        return carrier


def inject(carrier: Any = None, **options: Any) -> Any:
    """Pass on what the current request has received."""
    return (current_request() or Request()).inject(carrier)


_PARENT = re.compile(r"[ \t]*[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?[ \t]*")
_MEMBER = re.compile(r"[ \t]*[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{1,256}")


def _headers_in(carrier: Any, *, is_trusted: bool) -> dict[str, str]:
    """Return the headers for the next process, whose extension checks them again."""
    headers: defaultdict[str, list[str]] = defaultdict(list)
    for pair in carrier.items() if hasattr(carrier, "items") else carrier or ():
        # Pairs may be anything.
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            name, values = pair
            name = _text(name)
            if isinstance(carrier, dict) and name.isupper():
                name = name.removeprefix("HTTP_")  # in a WSGI environ
            several = isinstance(values, (list, tuple))
            headers[name.lower()] += map(_text, values if several else [values])
    parent, key = (
        values[0] if len({*values}) == 1 and len(values[0]) <= 256 else ""
        for values in (headers["traceparent"], headers["stagespan"])
    )
    if not _PARENT.fullmatch(parent):
        return {}
    members = (text.strip(" \t") for text in ",".join(headers["tracestate"]).split(","))
    state = [text for text in members if _MEMBER.fullmatch(text)]
    ours = [text for text in state if text.startswith("stagespan=")]
    if not (is_trusted and len(ours) == 1 and re.fullmatch("stagespan=[0-9a-f]{16}", ours[0])):
        state = [text for text in state if text not in ours]  # a client may have written them
    texts = {"traceparent": parent, "tracestate": ",".join(state[:32])}
    if is_trusted and re.fullmatch("[!-~]+", key):
        texts["stagespan"] = key
    return {name: text for name, text in texts.items() if text}


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, (bytes, bytearray)) else str.__str__(value)


# --- what the package asks of the recorder --------------------------------------------------------

_VERBS = re.compile(r"(\w+_)?(add|describe|drop|forget|keep|never|reserve|set)(_\w+)?")
enable = disable = recording_end = recording_why_not_in = innermost_stage = segment_wait = end
request_inheritance = request_call_when_ended = termination_watch = termination_unwatch = end
termination_await = termination_watch_stops = termination_mark_stop = timed_by = end
termination_before_fork = termination_after_fork = end
is_enabled = is_debug = recording_is_cut_off = bool
segment_now = recording_boot = int
open_spans = stage_names = debug_stages = stage_kinds = requests_finished = list
arena_info = clock_info = memory_peak_rss_bytes = requests_known = dict
lost = Counter  # nothing of any cause
# Nothing is measured that an exception could spoil.
request_enter_method = request_exit_method = request_class = remote_class = lambda given: given
device_every = lambda every=0: every  # noqa: E731
device_drain_completions: Any = lambda is_last: []  # noqa: E731
request_record_field = lambda name, is_secret: True  # noqa: E731
request_known = lambda number: ("", None)  # noqa: E731
request_figures: Any = lambda requests: [([], True) for _ in requests]  # noqa: E731

_woken = threading.Event()
service_wait, service_wake = _woken.wait, _woken.set
now_ns = time.time_ns
MISSING: Any = object()
FLAG_ERROR = FLAG_RECORDED = FLAG_CAPTURED = FLAG_FIRST_OF_SHAPE = KIND_SHIFT = 0
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
