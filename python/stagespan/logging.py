"""Puts the request, the stage and the trace of the running code into log records."""

from __future__ import annotations

import logging

from stagespan import _core
from stagespan.contexts.requests import shown_id
from stagespan.pages.escaping import one_line


class RequestFilter(logging.Filter):
    """A filter that sets ``request``, ``stage`` and ``trace_id`` of each log record.

    ``request`` is the id of the current request, ``trace_id`` that of its trace, and ``stage`` the
    innermost open span of the code that logs. Each is ``-`` if there is none, so that a format
    string can name them. What would end the line or control a terminal is escaped. Add the filter
    to a handler: filters of loggers do not see the records of their children. A value that a record
    already has is not replaced.

    Example:
        ```python
        handler = logging.StreamHandler()
        handler.addFilter(stagespan.logging.RequestFilter())
        handler.setFormatter(logging.Formatter("%(request)s %(stage)s %(message)s"))
        ```
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the attributes; no record is left out."""
        current = _core.current_request()
        values = {
            "request": None if current is None else shown_id(current.id),
            "stage": _core.innermost_stage(),
            "trace_id": None if current is None else current.trace_id,
        }
        for name, value in values.items():
            if getattr(record, name, None) is None:
                # Clients choose ids: they must not end the line or control a terminal.
                setattr(record, name, "-" if value is None else one_line(value))
        return True
