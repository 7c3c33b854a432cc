"""The one controller of torch.profiler and torch_npu.profiler windows: start, bound, export."""

from __future__ import annotations

from stagespan.profiling.annotation import annotate
from stagespan.profiling.controller import Window, profile_window
from stagespan.profiling.names import enable_profiler_for_names
from stagespan.profiling.steps import profile_steps

__all__ = ["Window", "annotate", "enable_profiler_for_names", "profile_steps", "profile_window"]
