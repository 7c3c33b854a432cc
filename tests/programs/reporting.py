"""Programs in debug mode, which write reports when they end."""

from __future__ import annotations

import os
import sys

import stagespan


def folder_and_reset() -> None:
    stagespan.set_profiler_output_dir("here")
    with stagespan.span("before"):
        pass
    stagespan.reset_timing_registry("req_1", {"seed": 7})
    with stagespan.span("after"):
        pass
    os.mkdir("elsewhere")
    os.chdir("elsewhere")


def own_dump() -> None:
    with stagespan.ProfilingContext4Debug("first"):
        pass
    folder = stagespan.get_profiler_output_dir()
    stagespan.dump_timing_report(folder / "timing.json")
    stagespan.dump_io_signatures(folder / "timing_io_signature.json")
    with stagespan.ProfilingContext4Debug("second"):
        pass


def earlier_dump() -> None:
    with stagespan.span("first"):
        pass
    stagespan.dump_timing_report(stagespan.get_profiler_output_dir() / "timing.json")
    stagespan.reset_timing_registry()
    with stagespan.span("second"):
        pass


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
