"""Writes log lines with loguru if the program uses it, as TeleFuser does, or with logging."""

from __future__ import annotations

import logging
import sys
from typing import Any

from stagespan.live import lines

_log = logging.getLogger("stagespan")


def loguru_logger() -> Any:
    """Return loguru's logger if the program has imported loguru, else None."""
    return getattr(sys.modules.get("loguru"), "logger", None)


def info(message: str) -> None:
    """Write one line at level INFO."""
    _write("INFO", message)


def warning(message: str) -> None:
    """Write one line at level WARNING."""
    _write("WARNING", message)


def _write(level: str, message: str) -> None:
    follow_loguru()
    logger = loguru_logger()
    if logger is not None:
        # Sinks show the caller of this function's caller as the origin.
        logger.opt(depth=2).log(level, "{}", message)
    elif level == "INFO":
        lines.log_info(message)
    else:
        _log.warning(message)


class _ToLoguru(logging.Handler):
    """Passes stagespan's own lines to loguru."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = loguru_logger()
        if logger is None:
            return
        level = record.levelname if record.levelname in _LEVELS else record.levelno
        logger.opt(exception=record.exc_info).log(level, "{}", record.getMessage())


_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_handler: _ToLoguru | None = None


def follow_loguru() -> None:
    """Send the lines of the logger ``stagespan`` to loguru, if the program has imported it."""
    global _handler
    if _handler is not None or loguru_logger() is None:
        return
    _handler = _ToLoguru()
    _log.addHandler(_handler)
    _log.propagate = False
    if _log.level == logging.NOTSET:
        _log.setLevel(logging.INFO)
