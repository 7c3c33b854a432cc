"""Fixtures that several files share."""

from hook_recorder import hooks
from without_settings import no_settings

__all__ = ["hooks", "no_settings"]
