"""Measures the cost of `import stagespan` in a new interpreter."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

_CODE = """
import json, sys, time
began = time.perf_counter()
import stagespan
took = time.perf_counter() - began
print(json.dumps([took, [name for name in ("torch", "numpy") if name in sys.modules]]))
"""


def _whole_ms(code: str) -> tuple[float, str]:
    # An installed package has its bytecode; a checkout gets it with the first import.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, env=environment
    )
    return (time.perf_counter() - began) * 1e3, done.stdout.decode()


def measure(times: int) -> dict[str, Any]:
    """Return the time of the import, the process's additional time, and the imported modules."""
    statement, whole, empty, heavy = [], [], [], set()
    _whole_ms(_CODE)
    for _ in range(times):
        empty.append(_whole_ms("pass")[0])
        ms, output = _whole_ms(_CODE)
        took, modules = json.loads(output)
        whole.append(ms)
        statement.append(took * 1e3)
        heavy.update(modules)
    return {
        "import_ms": statistics.median(statement),
        "import_spread_ms": (max(statement) - min(statement)) / 2,
        "process_ms": statistics.median(whole) - statistics.median(empty),
        "imported_too": sorted(heavy),
    }
