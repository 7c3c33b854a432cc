"""The messages of exceptions of other packages, as parts of our sentences."""

from __future__ import annotations


def message_of(error: Exception) -> str:
    """Return the message of an exception, or its class, in one line without a full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
