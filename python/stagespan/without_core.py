"""Stands in for the extension where it cannot be imported: a program runs on, and nothing is timed.

`Nothing` is each span, token, batch and snapshot, and `_ANSWERS` contains what functions return.
The rest are values that a program needs. Other names, such as those that read traces and
recordings, are refused in one sentence.
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
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from stagespan.errors import StagespanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_F = TypeVar("_F")
_reason = "it is not installed"
_advice = "install stagespan for this Python on a machine that it supports"


def install(error: Exception) -> None:
    """Use this module as `stagespan._core`, and log the reason and what to do."""
    global _advice, _reason
    _reason = str(error) if isinstance(error, ImportError) else repr(error)
    if isinstance(error, ModuleNotFoundError) and "stagespan._core" not in sys.modules:
        where, advice = _missing_file()
        _reason += f": {where}"
        _advice = advice or _advice
    elif isinstance(error, ImportError) and error.name is None:
        _advice = ""  # the extension has raised it, and says what to do
    sys.modules["stagespan._core"] = sys.modules[__name__]
    setattr(sys.modules["stagespan"], "_core", sys.modules[__name__])  # noqa: B010
    logging.getLogger("stagespan").warning(
        "stagespan: nothing is timed, because %s (logged once).", reason()
    )


def _missing_file() -> tuple[str, str]:
    """Return what is wrong with the folder of the package, and what to do if that is special."""
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
    return where, ""


def reason() -> str:
    """Return why nothing is timed, and what to do."""
    return f"the extension cannot be imported ({_reason}){_advice and f': {_advice}'}"


class _NeedsExtension(StagespanError, AttributeError):
    """What was asked for needs the extension.

    It is an AttributeError too, because code such as pickle asks every module for its names.
    """


def __getattr__(name: str) -> NoReturn:
    refuse()


def refuse() -> NoReturn:
    """Raise the StagespanError of everything that needs the extension."""
    raise _NeedsExtension(f"This needs stagespan's extension, and {reason()}.")


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


class Nothing:
    """A span, token, batch, cursor or snapshot of nothing, with their members."""

    id = overwritten = size_bytes = 0

    def __init__(
        self,
        name: Any = None,
        kind: str = "span",
        *,
        reset_peak_memory: bool = False,
        capture_memory: bool = False,
        **options: Any,
    ) -> None:
        self.name = name
        self.kind = kind
        self.reset_peak_memory = reset_peak_memory
        self.capture_memory = capture_memory

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    async def __aenter__(self) -> Nothing:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    def __call__(self, function: _F) -> _F:
        """Return the function that is decorated."""
        return function

    add = inputs = output = end = _nothing
    pack = unpack = since = lambda self, *args: self

    def stages(self, kind: int = 0) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    time_ns = property(lambda self: time.time_ns())


class batch(Nothing):
    """A batch that measures nothing."""

    def __init__(self, name: str, requests: Any) -> None:
        super().__init__(name)
        self.requests = tuple(requests)


Span = Token = SpanCursor = Snapshot = PackedSnapshot = snapshot = queued = Nothing


def span(name: Any = None, *, cpu: bool = False) -> Any:
    """Return a context that measures nothing, or the function that it decorates."""
    return name if callable(name) else Nothing(name)


def ProfilingContext(
    name: Any = None, reset_peak_memory: bool = True, *, kind: str = "profiling", **options: Any
) -> Any:
    """Return a context that measures nothing, or the function that it decorates."""
    if callable(name):
        return name
    return Nothing(name, kind, reset_peak_memory=reset_peak_memory, **options)


def ProfilingContext4Debug(name: Any = None, reset_peak_memory: bool = True, **options: Any) -> Any:
    """Return a context that measures nothing, or the function that it decorates."""
    return ProfilingContext(name, reset_peak_memory, kind="debug", **options)


def begin(name: str, /, *, kind: str = "execution") -> Nothing:
    """Return the token of a span that is not recorded."""
    return Nothing(name)


def call_timed(span: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `function` with the other arguments."""
    return function(*args, **kwargs)


timed_coroutine = call_timed
end = record = _nothing


# --- requests, which are current as usual -------------------------------------------------------

_request: contextvars.ContextVar[Any] = contextvars.ContextVar("stagespan_request", default=None)


current_request = _request.get


@contextlib.contextmanager
def request_adopted(inheritance: object, request: Any, /) -> Iterator[None]:
    """Make a request current in the block."""
    entered = _request.set(request)
    try:
        yield
    finally:
        _reset(entered)


def _reset(entered: contextvars.Token[Any]) -> None:
    # A token that was used already, or in another context, is refused.
    with contextlib.suppress(RuntimeError, ValueError):
        _request.reset(entered)


# Nothing is measured that an exception could spoil.
request_enter_method = request_exit_method = lambda function: function
request_class = remote_class = lambda class_: class_


_numbers = itertools.count(1)


class Request:
    """A request that is current, passes on what was received, and is not recorded."""

    trace_id = pipeline = branch = queue = _counted_queue = _w3c = None
    _is_new = False
    attempt = 1
    chunk = set_status = _show = _serve_http = _nothing
    _entered: Any = None
    _traceparent: str | None = None
    _texts: dict[str, str] = {}  # noqa: RUF012

    def _initialise(
        self, request_id: object, traceparent: object, metadata: object, is_new: object = False
    ) -> None:
        self.number = next(_numbers)
        self._given_id = str(request_id) if request_id else ""
        self.id = self._given_id or f"req_{self.number}"
        self.metadata = metadata
        if isinstance(traceparent, str):
            self._traceparent, self._texts = traceparent, {"traceparent": traceparent}

    def _receive(self, carrier: Any, request_id: str, trusted: bool, entry: Any) -> None:
        self._initialise(request_id, None, {})
        self._texts = _texts_in(carrier, is_trusted=bool(trusted))

    def _follow(self, first: Request) -> None:
        self.number, self.id, self.metadata = first.number, first.id, first.metadata
        self._traceparent, self._texts = first._traceparent, first._texts

    def _enter(self) -> None:
        if self._entered is not None:
            raise RuntimeError(f"the request {self.id!r} is already open")
        self._entered = _request.set(self)

    def _leave(self, kind: type[BaseException] | None) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            _reset(entered)

    async def __aenter__(self) -> Any:
        self._enter()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._leave(None)

    @property
    def _is_open(self) -> bool:
        return self._entered is not None

    def inject(self, carrier: Any = None, **options: Any) -> dict[str, str]:
        """Pass on what was received."""
        found: dict[str, str] = {} if carrier is None else carrier
        for name in self._texts:  # not every carrier has update()
            found[name] = self._texts[name]
        return found


_PARENT = re.compile(r"[ \t]*[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?[ \t]*")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{1,256}")
_OWN = re.compile(r"[!-~]{1,256}")
_OWN_MEMBER = re.compile(r"stagespan=[0-9a-f]{16}")
_MOST_MEMBERS, _MOST_CHARACTERS = 32, 512


def _texts_in(carrier: Any, *, is_trusted: bool) -> dict[str, str]:
    """Return what can be passed on, as the extension does. All else that comes in is ignored."""
    names = ("traceparent", "tracestate", "stagespan")[: 3 if is_trusted else 2]
    received: dict[str, list[str]] = {}
    for pair in carrier.items() if hasattr(carrier, "items") else carrier or ():
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            name, value = pair
            name = _text(name)
            if isinstance(carrier, dict) and name.isupper():
                name = name.removeprefix("HTTP_")  # in a WSGI environ
            values = value if isinstance(value, (list, tuple)) else [value]
            received.setdefault(name.lower(), []).extend(map(_text, values))
    texts = {name: received[name][0] for name in names if len(set(received.get(name, ()))) == 1}
    parent = texts.get("traceparent", "")
    if len(parent) > 256 or not _PARENT.fullmatch(parent):
        return {}
    members = [text.strip(" \t") for text in ",".join(received.get("tracestate", ())).split(",")]
    own = [text for text in members if text.startswith("stagespan=")]
    is_believed = is_trusted and len(own) == 1 and _OWN_MEMBER.fullmatch(own[0]) is not None
    if not is_believed:
        members = [text for text in members if text not in own]
    members = [text for text in members if _MEMBER.fullmatch(text)][:_MOST_MEMBERS]
    most = _MOST_CHARACTERS + (len(own[0]) + 1 if is_believed and own[0] in members else 0)
    while len(state := ",".join(members)) > most:
        members.pop()
    texts["tracestate"] = state
    if not _OWN.fullmatch(texts.get("stagespan", "")):
        texts.pop("stagespan", None)
    return {name: text for name, text in texts.items() if text}


def _text(value: Any) -> str:
    if not isinstance(value, (str, bytes, bytearray)):
        raise TypeError
    return value if isinstance(value, str) else value.decode("latin-1")


def inject(carrier: Any = None, **options: Any) -> dict[str, str]:
    """Pass on what the current request has received."""
    current: Request = _request.get() or Request()
    return current.inject(carrier)


# --- what the package asks of the recorder --------------------------------------------------------

_woken = threading.Event()
_ANSWERS: dict[str, Callable[[], Any]] = {
    "enable disable set_debug lost_add hooks_set_contexts hooks_set_decorator "
    "hooks_set_torch_callback memory_set_hook memory_forget_peak_rss memory_never_free "
    "profiler_set_names profiler_set_annotated_names service_set_start device_drop_completions "
    "recording_describe_program recording_describe_process recording_describe_worker recording_end "
    "recording_set_tell_fault recording_reserve_for_marks recording_why_not_in innermost_stage "
    "request_inheritance request_set_functions request_call_when_ended request_set_pipeline "
    "request_set_details request_set_context requests_forget_finished exceptions_keep_messages "
    "gauge_set segment_wait timed_by termination_unwatch termination_await termination_watch_stops "
    "termination_mark_stop termination_before_fork termination_after_fork "
    "cpu_time_set system_counts_set calls_set_descriptions": lambda: None,
    "is_enabled is_debug recording_is_cut_off termination_watch": bool,
    "request_record_field": lambda: True,
    "segment_now recording_boot": int,
    "open_spans stage_names debug_stages stage_kinds requests_finished "
    "device_drain_completions": list,
    "arena_info clock_info memory_peak_rss_bytes requests_known": dict,
    "lost": Counter,  # nothing of any cause
    "request_known": lambda: ("", None),
    "service_wake": _woken.set,
}
"""What functions return, whatever they get, by their names."""


def _answering(answer: Callable[[], Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer()


for _names, _answer in _ANSWERS.items():
    globals().update(dict.fromkeys(_names.split(), _answering(_answer)))

MISSING: Any = object()
now_ns = time.time_ns
service_wait = _woken.wait
FLAG_ERROR = FLAG_RECORDED = FLAG_CAPTURED = FLAG_FIRST_OF_SHAPE = KIND_SHIFT = 0
# Nothing is reserved, so each value of these settings is valid.
RING_SPANS_DEFAULT = RING_SPANS_LEAST = REQUESTS_DEFAULT = REQUESTS_LEAST = 0
RING_SPANS_MOST = REQUESTS_MOST = 10**9


def spans(*, since: Nothing | None = None) -> Any:
    """Return no spans, with the fields that spans have."""
    import numpy as np

    names = ("begin_ns", "end_ns", "id", "parent", "request", "suspended_ns", "depth", "flags")
    types = ("i8", "i8", "u8", "u8", "u8", "i8", "u2", "u2")
    fields = [("stage", "u4"), ("thread", "u4"), *zip(names, types, strict=True)]
    times = *(f"device_{time}_ns" for time in ("elapsed", "queue", "tail")), "cpu_ns"
    fields += [(time, "f8") for time in times]
    return np.empty(0, np.dtype(fields, align=True))


def request_figures(requests: list[tuple[int, int]]) -> list[tuple[list[Any], bool]]:
    """Return no figures, which are complete."""
    return [([], True) for _ in requests]


def settings_whole_number(text: str) -> int | None:
    """Return the number in a text of up to 18 digits, by the rules of the extension."""
    digits = text.strip(" \t\n\r\f\v").removeprefix("+")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 18
    return int(digits) if is_number else None


def device_every(every: int = 0) -> int:
    """Return the number that is passed."""
    return every
