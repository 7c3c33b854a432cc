"""``telefuser.platforms.rocm``."""

from __future__ import annotations

from stagespan.compat.telefuser.platforms import BasePlatform, RocmPlatform

__all__ = ["BasePlatform", "RocmPlatform"]
