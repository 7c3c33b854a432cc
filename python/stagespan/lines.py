"""The lines that a user reads, written through the standard library's ``logging``."""

from __future__ import annotations

import logging
import sys

from stagespan import _core
from stagespan.requests import current_request

LOGGER = logging.getLogger("stagespan")
_GIGABYTE = 1 << 30


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Standard error as it is when the line is written; a test or a tool may have replaced it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self, logging.NOTSET)
        self.setFormatter(logging.Formatter("%(message)s"))

    @property
    def stream(self) -> object:
        return sys.stderr


_stderr = _Stderr()


def is_configured() -> bool:
    """Whether somebody has told logging where these lines go."""
    logger: logging.Logger | None = LOGGER
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def is_wanted() -> bool:
    """Whether a line at INFO would be seen by anybody."""
    if LOGGER.disabled:
        return False
    return LOGGER.isEnabledFor(logging.INFO) if is_configured() else _core.is_debug()


def emit(record: logging.LogRecord) -> None:
    """Hand a record to logging; where nobody configured it, debug mode shows it on stderr.

    The library adds no handler and sets no level, so that configuring logging later changes all.
    """
    if is_configured():
        if LOGGER.isEnabledFor(record.levelno):
            LOGGER.handle(record)
    elif _core.is_debug() and not LOGGER.disabled and sys.stderr is not None:
        _stderr.handle(record)


def say(message: str, *args: object) -> None:
    """Write one line at INFO, as the ``[Profiler]`` lines are; ``args`` as logging takes them."""
    if is_wanted():
        record = _record(message, args)
        current = current_request()
        record.request = None if current is None else current.id
        emit(record)


def duration_line(
    stage: str, begin_ns: int, end_ns: int, request: str | None = None
) -> logging.LogRecord:
    """``[Profile] NAME cost S seconds``, dated to the end of the run."""
    seconds = (end_ns - begin_ns) / 1e9
    record = _record("[Profile] %s cost %.6f seconds", (one_line(stage), seconds))
    record.stage, record.seconds, record.request = stage, seconds, request
    return record


def memory_line(
    stage: str, rank: int, kind: str, size: int, request: str | None = None
) -> logging.LogRecord:
    """``Rank R - Function 'NAME' KIND: X GB``; the kind is ``Peak Memory`` or ``Peak RSS``."""
    gigabytes = size / _GIGABYTE
    record = _record(
        "Rank %d - Function '%s' %s: %.2f GB", (rank, one_line(stage), kind, gigabytes)
    )
    record.stage, record.request = stage, request
    return record


def date(record: logging.LogRecord, time_ns: int, thread: int, thread_name: str) -> None:
    """Give a record the time and the thread of what it tells, instead of the writer's."""
    created = time_ns / 1e9
    record.relativeCreated += (created - record.created) * 1000
    record.created = created
    record.msecs = float(time_ns % 10**9 // 10**6)
    record.thread, record.threadName = thread, thread_name


def one_line(name: str) -> str:
    """A name that can neither end its line nor steer a terminal."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def _record(message: str, args: tuple[object, ...]) -> logging.LogRecord:
    return LOGGER.makeRecord(LOGGER.name, logging.INFO, "(stagespan)", 0, message, args, None)
