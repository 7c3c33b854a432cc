"""``telefuser.platforms.npu``."""

from __future__ import annotations

from stagespan.compat.telefuser.platforms import BasePlatform, NPUPlatform

__all__ = ["BasePlatform", "NPUPlatform"]
