"""Result folders of torch_npu.profiler: their files, and the analyses of Ascend traces."""

from __future__ import annotations

from stagespan.trace.ascend.folder import (
    AscendFolder,
    find_ascend_folder,
    is_ascend_folder,
    read_ascend_folder,
    read_ascend_trace,
)

__all__ = [
    "AscendFolder",
    "find_ascend_folder",
    "is_ascend_folder",
    "read_ascend_folder",
    "read_ascend_trace",
]
