"""The platform of this process: the public names of `stagespan.device.platforms`."""

from __future__ import annotations

from stagespan.device.platforms import *  # noqa: F403
