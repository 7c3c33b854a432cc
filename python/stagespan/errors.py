"""The exceptions that stagespan raises. Each message is one sentence that says what to do."""

from __future__ import annotations


class StagespanError(Exception):
    """Base class of stagespan's own exceptions."""


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
