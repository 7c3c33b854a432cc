"""The exceptions that stagespan raises. Each message is one sentence that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagespan.pages.escaping import one_line

if TYPE_CHECKING:
    from typing_extensions import Self


class StagespanError(Exception):
    """Base class of stagespan's own exceptions.

    Its text is one line. Names that it quotes can come from a program or a file, so characters that
    end a line or control a terminal are escaped.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())

    def with_note(self, note: str) -> Self:
        """Add text that commands, and tracebacks of Python 3.11 and later, show below the message.

        Returns the exception.
        """
        self.__notes__ = [*getattr(self, "__notes__", ()), note]
        return self


class ShortageError(StagespanError):
    """This process lacks descriptors or memory. It says nothing about what was to be read."""


class TooLargeError(ShortageError):
    """This process lacks memory for one file."""


class SettingsError(StagespanError, ValueError):
    """A setting or an argument has an invalid value."""


class SignatureError(StagespanError, ValueError):
    """A signature file, or an entry in it, cannot be read or replayed."""


class TraceError(StagespanError, ValueError):
    """A trace file cannot be read."""


class NotJsonError(TraceError):
    """A file that is read as a trace is a text that is not JSON."""


class HarnessError(StagespanError, RuntimeError):
    """A stage cannot be replayed."""


class ReportError(StagespanError, ValueError):
    """A timing report cannot be read, written or compared."""
