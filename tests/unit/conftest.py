"""Fixtures that several files share."""

from hook_recorder import hooks

__all__ = ["hooks"]
