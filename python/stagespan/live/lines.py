"""The log lines, written through the standard library's ``logging``."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

from stagespan import _core
from stagespan.pages import escaping

LOGGER = logging.getLogger("stagespan")
one_line = escaping.one_line
_GIGABYTE = 1 << 30


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the current ``sys.stderr``, which a test or a tool may have replaced."""

    def __init__(self) -> None:
        logging.Handler.__init__(self, logging.NOTSET)
        self.setFormatter(logging.Formatter("%(message)s"))
        self.addFilter(escaping.escape_arguments)

    @property
    def stream(self) -> object:
        return sys.stderr


_stderr = _Stderr()


def _handlers() -> Iterator[logging.Handler]:
    """Yield the handlers that receive the lines."""
    logger: logging.Logger | None = LOGGER
    while logger is not None:
        yield from logger.handlers.copy()
        logger = logger.parent if logger.propagate else None


def is_configured() -> bool:
    """Whether the program has configured a handler for these lines."""
    return any(not isinstance(handler, logging.NullHandler) for handler in _handlers())


def is_in_handler() -> bool:
    """Whether this thread is inside a log handler, interrupted by a signal handler or finalizer.

    It must not write a line, because the handler's file would raise an error. It must not wait for
    another thread that writes a line either, because that thread may be waiting for this one.
    """
    return any(is_mine(handler.lock) for handler in (*_handlers(), _stderr))


def is_mine(lock: object) -> bool:
    """Whether this thread holds a re-entrant lock."""
    is_owned = getattr(lock, "_is_owned", None)
    return is_owned is not None and bool(is_owned())


def renew_streams() -> None:
    """Reopen the streams of the handlers, with free locks, for the same files.

    This is for a child that was forked while another thread was writing a line. Logging renews its
    own locks, but the locks inside Python's file objects would stay taken in the child.
    """
    for handler in _handlers() if is_configured() else (_stderr,):
        stream = getattr(handler, "stream", None)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        try:
            fresh = open(  # noqa: SIM115
                stream.fileno(),
                "w",
                encoding=stream.encoding,
                errors=stream.errors,
                buffering=1 if stream.line_buffering else -1,
                closefd=False,
            )
        except (OSError, ValueError):  # it is closed, or not a file of the operating system
            continue
        # Closing or freeing the old stream would wait for its lock.
        _core.memory_never_free(stream)
        for name in ("stdout", "stderr"):
            if getattr(sys, name, None) is stream:
                setattr(sys, name, fresh)
        if isinstance(handler, logging.StreamHandler) and handler is not _stderr:
            handler.stream = fresh


def is_enabled() -> bool:
    """Whether a line at level INFO would be written anywhere."""
    if LOGGER.disabled:
        return False
    return LOGGER.isEnabledFor(logging.INFO) if is_configured() else _goes_to_stderr()


def _goes_to_stderr() -> bool:
    """Whether lines go to standard error in a program that has not configured logging.

    They do in debug mode, and on a terminal, but never in a notebook: there, they would stand under
    whatever cell runs when they are written.
    """
    if type(sys.stderr).__module__.startswith("ipykernel."):
        return False
    if _core.is_debug():
        return True
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except (AttributeError, OSError, ValueError):  # it is closed, or only has a method `write`
        return False


def emit(record: logging.LogRecord) -> None:
    """Pass a record to logging, or to stderr if the program has not configured logging.

    The library does not add a handler or set a level, so that the program can configure logging at
    any time.
    """
    if is_configured() or record.levelno >= logging.WARNING:
        if LOGGER.isEnabledFor(record.levelno):
            LOGGER.handle(record)
    elif _goes_to_stderr() and not LOGGER.disabled and sys.stderr is not None:
        _stderr.handle(record)


def warning_line(message: str) -> logging.LogRecord:
    """Return a record of level WARNING, which unconfigured logging prints to standard error."""
    return _record("%s", (message,), logging.WARNING)


def log_info(message: str, *args: object) -> None:
    """Write one line at level INFO. ``args`` are the arguments for ``message``, as in logging."""
    if is_enabled():
        record = _record(message, args)
        current = _core.current_request()
        record.request = None if current is None else current.id
        emit(record)


def duration_line(
    stage: str, begin_ns: int, end_ns: int, request: str | None = None
) -> logging.LogRecord:
    """Return the line ``[Profile] NAME cost S seconds``, with the time of the end of the run."""
    seconds = (end_ns - begin_ns) / 1e9
    record = _record("[Profile] %s cost %.6f seconds", (one_line(stage), seconds))
    record.stage, record.seconds, record.request = stage, seconds, request
    return record


def memory_line(
    stage: str, rank: int, kind: str, size: int, request: str | None = None
) -> logging.LogRecord:
    """Return the line ``Rank R - Function 'NAME' KIND: X GB``.

    The kind is ``Peak Memory`` or ``Peak RSS``.
    """
    gigabytes = size / _GIGABYTE
    record = _record(
        "Rank %d - Function '%s' %s: %.2f GB", (rank, one_line(stage), kind, gigabytes)
    )
    record.stage, record.request = stage, request
    return record


def date(record: logging.LogRecord, time_ns: int, thread: int, thread_name: str) -> None:
    """Set the time and the thread of a record to those of the run, not of the writer."""
    created = time_ns / 1e9
    record.relativeCreated += (created - record.created) * 1000
    record.created = created
    record.msecs = float(time_ns % 10**9 // 10**6)
    record.thread, record.threadName = thread, thread_name


def _record(message: str, args: tuple[object, ...], level: int = logging.INFO) -> logging.LogRecord:
    return LOGGER.makeRecord(LOGGER.name, level, "(stagespan)", 0, message, args, None)
