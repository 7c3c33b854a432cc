"""The exceptions that stagespan raises. Each message is one sentence that says what to do."""

from __future__ import annotations

from stagespan.escaping import one_line


class StagespanError(Exception):
    """Base class of stagespan's own exceptions.

    Its text is one line. Names that it quotes can come from a program or a file, so characters that
    end a line or control a terminal are escaped.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


class SettingsError(StagespanError, ValueError):
    """A setting or an argument has an invalid value."""


class SignatureError(StagespanError, ValueError):
    """A signature file, or an entry in it, cannot be read or replayed."""


class TraceError(StagespanError, ValueError):
    """A trace file cannot be read."""


class HarnessError(StagespanError, RuntimeError):
    """A stage cannot be replayed."""


class ReportError(StagespanError, ValueError):
    """A timing report cannot be read, written or compared."""
