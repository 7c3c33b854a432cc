"""Launches of synthetic programs: their delay, the depth of the queue, and device graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import checked
from device_programs import US, use_of
from planted import CALL, LATENCY, Program

from stagespan.trace import read_trace
from stagespan.trace.analyses import launches
from stagespan.trace.analyses.idle import Idle
from stagespan.trace.analyses.launches import Launches, Percentiles, QueueDepth
from stagespan.trace.analysis import analyze
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.device import launch_of


def test_processes_with_the_same_correlations_do_not_get_each_others_launches(
    tmp_path: Path,
) -> None:
    # GIVEN two processes in one file that both count their launches from 1; one counts further
    path = tmp_path / "processes.json"
    entries: list[dict[str, Any]] = []
    for pid, device, count in ((100, 0, 1), (200, 1, 2)):
        for number in range(1, count + 1):
            begin = 1_000 * number + pid
            args = {"correlation": number}
            call = {"ph": "X", "name": "cudaLaunchKernel", "cat": "cuda_runtime", "pid": pid}
            entries.append(call | {"tid": pid, "ts": begin, "dur": device + 5, "args": args})
            kernel = {"ph": "X", "name": "gemm", "cat": "kernel", "pid": device, "tid": 7}
            args = args | {"device": device, "stream": 7}
            entries.append(kernel | {"ts": begin + 20, "dur": 50, "args": args})
    path.write_text(json.dumps(entries))
    trace = read_trace(path)
    kernels = [row for row, entry in enumerate(entries) if entry["cat"] == "kernel"]
    found = launch_of(trace, np.array(kernels))
    assert found.tolist() == [-1, -1, 4]
    assert use_of(trace).without_launch == 2
    # THEN if none is left, all are unknown
    path.write_text(json.dumps(entries[:4]))
    assert launch_of(read_trace(path), np.array(kernels[:2])).tolist() == [-1, -1]


def test_a_queue_that_grows(tmp_path: Path) -> None:
    # GIVEN ten kernels of 100 µs, launched 5 µs apart
    program = Program()
    for _ in range(10):
        program.launch("gemm", 100)
    found = launches.analyze(program.trace(tmp_path))
    # THEN delay and depth are those of the queue: the n-th kernel waits for n others
    assert isinstance(found, Launches)
    delays = [LATENCY + n * (100 - CALL) for n in range(10)]
    assert found.delay_ns is not None
    assert found.delay_ns.max == delays[-1] * US
    assert found.delay_ns.median == (delays[4] + delays[5]) * US // 2
    # When the second is launched, the first has not begun; when the third is launched, it has.
    assert found.depth == QueueDepth((0 + 1 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8) / 10, 8)
    assert found.found_empty == 1


@pytest.mark.parametrize(
    "call", ["hipMemcpyAsync", "cudaLaunchKernelExC", "cuLaunchKernel", "urEnqueueKernelLaunch"]
)
def test_a_copy_in_two_parts_is_not_a_graph(call: str, tmp_path: Path) -> None:
    # GIVEN a call that the device runs in two parts of 30 µs, 4 µs apart, without other work
    program = Program()
    program.launch("Memcpy HtoD", 30, cat="gpu_memcpy", call=call)
    first = program.events[-1]
    program.events.append(first | {"ts": first["ts"] + 34})
    trace = program.trace(tmp_path)
    found = analyze(trace, ["launches", "idle"]).results
    # THEN there is no graph, and the gap does not belong to one
    assert isinstance(found["launches"], Launches)
    assert (found["launches"].graphs, found["launches"].launched) == ([], 2)
    assert isinstance(found["idle"], Idle)
    assert found["idle"].by_cause == {causes.QUEUED: 4 * US}


def test_an_unknown_call_of_one_kernel_is_not_a_graph(tmp_path: Path) -> None:
    program = Program()
    for _ in range(3):
        program.launch("gemm", 30, call="vendorSubmit")
    program.events.append(program.events[-1] | {"ts": program.free[7] + 4})
    found = checked(launches.analyze(program.trace(tmp_path)), Launches)
    assert [(each.calls, each.count) for each in found.graphs] == [(1, 2)]


def test_an_operator_of_several_kernels_is_not_a_graph_on_ascend(traces: Path) -> None:
    # GIVEN a real rank, whose operators are compiled as they run: 5 calls, 10 kernels
    folder = traces / "ascend_level1" / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    trace = read_trace(folder / "trace_view.json.gz")
    found = checked(launches.analyze(trace), Launches)
    assert found.graphs == []


def test_a_starved_device_is_found_empty(tmp_path: Path) -> None:
    # GIVEN kernels that are finished before the next one is launched
    program = Program()
    for _ in range(10):
        program.launch("gemm", 2)
        program.work(100)
    found = checked(launches.analyze(program.trace(tmp_path)), Launches)
    assert (found.found_empty, found.depth) == (10, QueueDepth(0.0, 0))
    assert found.delay_ns == Percentiles(*(LATENCY * US,) * 3)
    assert found.call_ns == Percentiles(*(CALL * US,) * 3)
