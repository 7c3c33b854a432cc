"""``telefuser.platforms.cpu``."""

from __future__ import annotations

from stagespan.compat.telefuser.platforms import BasePlatform, CpuPlatform

__all__ = ["BasePlatform", "CpuPlatform"]
