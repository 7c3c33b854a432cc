"""Contexts on a real GPU: peak memory as torch counts it, and debug mode's synchronised spans."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import pytest

import stagespan

CYCLES = 20_000_000  # about 10 ms


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="stagespan")
    return caplog


def peak_gb(log: pytest.LogCaptureFixture, name: str) -> float:
    """Return the last peak in the log lines of a context."""
    stagespan.flush(10)
    line = rf"Function '{name}' Peak Memory: ([\d.]+) GB"
    peaks = [m[1] for r in log.records if (m := re.search(line, r.getMessage()))]
    assert peaks, log.text
    return float(peaks[-1])


@pytest.mark.parametrize("mib", [64, 700, 3000])
def test_the_peak_of_a_context(
    cuda: Any, log: pytest.LogCaptureFixture, mib: int, figures: Any
) -> None:
    import torch

    with stagespan.ProfilingContext("allocates"):
        x = torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
        del x
        torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    truth_gb = cuda.max_memory_allocated() / 2**30
    found_gb = peak_gb(log, "allocates")
    assert found_gb == pytest.approx(truth_gb, abs=0.0051)  # the line has two decimals
    figures(peak_gb=found_gb, torch_gb=truth_gb)


def test_an_outer_context_keeps_its_own_peak(cuda: Any, log: pytest.LogCaptureFixture) -> None:
    import torch

    with stagespan.ProfilingContext("outer"):
        x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        del x
        with stagespan.ProfilingContext("inner"):
            torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    assert peak_gb(log, "outer") >= 1.0
    assert peak_gb(log, "inner") < 0.9


def test_debug_contexts_wait_at_both_ends(cuda: Any, figures: Any) -> None:
    # GIVEN debug mode, and queued work
    stagespan.set_debug(True)
    try:
        cuda._sleep(10 * CYCLES)
        began = time.perf_counter_ns()
        with stagespan.ProfilingContext4Debug("debugged"):
            entered_ns = time.perf_counter_ns() - began
            cuda._sleep(5 * CYCLES)
        is_idle = cuda.current_stream().query()
    finally:
        stagespan.set_debug(False)
    # THEN the block began after that work, and ended after its own
    host_ns = stagespan.stats()["debugged"].total_ns
    assert entered_ns > 10e6
    assert is_idle
    assert stagespan.flush(10)
    device = stagespan.stats()["debugged"].device_elapsed_ns
    assert device is not None
    assert host_ns >= 0.99 * device.total_ns
    figures(waited_ns=entered_ns, host_ns=host_ns, device_ns=device.total_ns)
