"""``telefuser.platforms.cuda``."""

from __future__ import annotations

from stagespan.compat.telefuser.platforms import BasePlatform, CudaPlatform

__all__ = ["BasePlatform", "CudaPlatform"]
