"""Steps, stages, layers, memory and stacks of random traces: no traceback, and correct sums."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from stagespan.errors import TraceError
from stagespan.pages.markdown import markdown
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses.flame import Flame
from stagespan.trace.analyses.layers import Layers
from stagespan.trace.analyses.memory import Memory
from stagespan.trace.analyses.stages import Stages
from stagespan.trace.analyses.steps import Steps
from stagespan.trace.analysis import analyze

_NAMES = (
    "ProfilerStep#1", "ProfilerStep#2", "step", "load", "aten::mm", "aten::empty", "kernel",
    "cudaLaunchKernel", "cudaGraphLaunch", "ncclKernel", "Memcpy HtoD", "nn.Module: A_0",
    "nn.Module: A_1", "f.py(1): g", "Optimizer.step#SGD", "execute_context_1", "[memory]", "",
    "autograd::engine::evaluate_function: M", "a;b\nc", "enumerate(DataLoader)#x",
)  # fmt: skip
_CATEGORIES = (
    "user_annotation", "cpu_op", "python_function", "kernel", "gpu_memcpy", "cuda_runtime",
    "cuda_driver", "overhead", "", "Operator",
)  # fmt: skip
_MEMORY = ("Bytes", "Addr", "Total Allocated", "Total Reserved", "Device Type", "Device Id")
_HOSTILE = (0, -3, 1e18, 3.5, "7", None, 2**63 - 1, "x", 1e30, [1])


def entry(chance: random.Random, hostile: bool) -> dict[str, Any]:
    name = chance.choice(_NAMES)
    found: dict[str, Any] = {
        "ph": "i" if name == "[memory]" else chance.choice("XXXXXXisfBE"),
        "name": name,
        "cat": chance.choice(_CATEGORIES),
        "ts": chance.randrange(2_000),
        "dur": chance.choice((0, 1, chance.randrange(300), chance.randrange(50))),
        "pid": chance.choice((1, 1, 1, 2, "stagespan")),
        "tid": chance.choice((1, 1, 2, "t")),
    }
    arguments: dict[str, Any] = {"Call stack": chance.choice(("a;b", "", ";;", 3, None))}
    if chance.random() < 0.6:
        arguments["correlation"] = chance.randrange(12)
    if chance.random() < 0.3:
        arguments |= {"stream": chance.randrange(3), "device": chance.randrange(2)}
    for key in _MEMORY:
        value = chance.choice(_HOSTILE) if hostile else chance.randrange(-3, 9)
        arguments |= {key: value} if chance.random() < 0.7 else {}
    if hostile and chance.random() < 0.1:
        found[chance.choice(("ts", "dur"))] = chance.choice((10**16, -(10**15), 9e18, -5))
    if hostile and chance.random() < 0.1:
        found.pop(chance.choice(list(found)))
    if found.get("ph") in ("s", "f"):
        found |= {"id": chance.randrange(5), "cat": "fwdbwd"}
    return found | {"args": arguments}


def random_trace(seed: int, folder: Path) -> Trace | None:
    chance = random.Random(seed)
    hostile = seed % 2 == 1
    entries = [entry(chance, hostile) for _ in range(chance.choice((1, 2, 5, 20, 80)))]
    if seed % 3 == 0:
        # The parts that repeat.
        entries = [
            dict(each, ts=each["ts"] + 2_500 * number)
            for number in range(chance.randrange(2, 6))
            for each in entries
            if isinstance(each.get("ts"), int)
        ]
    path = folder / f"{seed}.json"
    path.write_text(json.dumps({"traceEvents": entries}))
    try:
        return read_trace(path)
    except TraceError:
        return None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("block", range(10))
def test_sums_of_figures_of_random_traces_are_correct(block: int, tmp_path: Path) -> None:
    for seed in range(block * 20, block * 20 + 20):
        trace = random_trace(seed, tmp_path)
        if trace is None:
            continue
        analysis = analyze(trace, ["steps", "stages", "layers", "memory", "flame"])
        json.dumps(analysis.to_dict(), allow_nan=False)
        markdown(analysis)
        for found in analysis.results.values():
            if isinstance(found, Steps):
                for step in found.steps:
                    assert sum(step.parts.values()) == step.dur_ns
                    assert min(step.parts.values()) >= 0
            elif isinstance(found, Stages) and found.on_device:
                own = sum(stage.device_self_ns or 0 for stage in found.stages)
                assert own + found.outside_ns == found.device_ns
            elif isinstance(found, Layers) and found.modules and found.modules.device_ns:
                roots = [each for each in found.modules.modules if len(each.path) == 1]
                held = sum((each.device_ns or 0) + (each.backward_ns or 0) for each in roots)
                assert held + found.modules.outside_ns == found.modules.device_ns
            elif isinstance(found, Memory):
                for device in found.devices:
                    assert device.peak_bytes == max(size for _, size in device.curve)
            elif isinstance(found, Flame):
                tree = found.tree
                roots_ns = [t for t, p in zip(tree.total_ns, tree.parent, strict=True) if p < 0]
                assert sum(roots_ns) == tree.self_ns.sum()
                assert found.folded().count("\n") <= len(tree.names)
