"""Prints the peaks of a small child of a large process, in MB, before and after the child grows."""

import subprocess
import sys
from typing import Any

if sys.argv[1:] == ["child"]:
    import stagespan

    def peak_mb() -> float:
        stagespan.reset_timing_registry()
        with stagespan.ProfilingContext("stage"):
            pass
        report: Any = stagespan.timing_report()
        return float(report["stages"]["stage"]["memory"]["peak_rss_mb"])

    first_mb = peak_mb()
    snapshot_mb = stagespan.memory_snapshot("now")["peak_rss_bytes"] / 2**20
    large = bytearray(500 << 20)
    del large
    print(first_mb, snapshot_mb, peak_mb())
else:
    large = bytearray(300 << 20)
    del large
    subprocess.run([sys.executable, __file__, "child"], check=True)
