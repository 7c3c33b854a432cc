"""``telefuser.platforms.interface``."""

from __future__ import annotations

from stagespan.compat.telefuser.platforms import BasePlatform

__all__ = ["BasePlatform"]
