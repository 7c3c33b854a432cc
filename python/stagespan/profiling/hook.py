"""Importing this registers the hook that profiles named stages; `context` does so when needed."""

from __future__ import annotations

from stagespan import context
from stagespan.profiling.profiled import ProfiledHook

context.register_hook(ProfiledHook())
