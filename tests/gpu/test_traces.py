"""`stagespan analyze` of traces that are made here: the verdict is what was planted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import stagespan

_KEPT = os.environ.get("GPU_TEST_TRACES")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder for traces: one that is kept if GPU_TEST_TRACES names it."""
    return Path(_KEPT) if _KEPT else tmp_path


# The verdicts that say what was planted, and the codes of findings of which one must be there.
PLANTED: dict[str, tuple[set[str], set[str]]] = {
    "many_small_kernels": ({"launch-bound"}, {"idle.launch", "kernels.tiny", "stages.launch"}),
    "large_products": ({"device-busy"}, set()),
    "single_precision": ({"device-busy"}, {"kernels.single_precision", "rates.products"}),
    "item_in_a_loop": (
        {"launch-bound", "host-bound", "wait-bound"},
        {"idle.synchronisation", "idle.several", "idle.launch"},
    ),
    "copy_that_blocks": ({"copy-bound", "host-bound", "wait-bound"}, set()),
    "two_streams": ({"device-busy"}, set()),
    "compiled": ({"launch-bound", "device-busy", "host-bound"}, set()),
    "graph_replay": ({"launch-bound", "device-busy", "host-bound", "wait-bound"}, set()),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_verdict_is_what_was_planted(cuda: Any, name: str, folder: Path, figures: Any) -> None:
    import programs

    trace = programs.record(getattr(programs, name)("cuda"), folder / f"{name}.json.gz")
    analysis = stagespan.analyze(trace)
    found = analysis.to_dict()
    verdict = found["verdict"]["verdict"]
    codes = [finding.code for finding in analysis.findings()]
    figures(verdict=verdict, codes=codes, sentence=found["verdict"].get("sentence"))
    verdicts, expected = PLANTED[name]
    assert verdict in verdicts
    assert not expected or expected & set(codes)


def test_the_peaks_of_this_device_are_known(cuda: Any, folder: Path, figures: Any) -> None:
    import programs

    trace = programs.record(programs.large_products("cuda"), folder / "large_products.json.gz")
    rates = stagespan.analyze(trace).to_dict()["rates"]
    figures(device=cuda.get_device_name(), rates=str(rates)[:4000])
    assert "reason" not in rates, rates


def test_kernels_of_a_graph_get_operators_from_a_capture(
    cuda: Any, folder: Path, figures: Any
) -> None:
    import torch

    import programs

    captured = folder / "capture.json.gz"
    with torch.profiler.profile(record_shapes=True) as profiler:
        graph, _ = programs.capture("cuda")
        cuda.synchronize()
    profiler.export_chrome_trace(str(captured))
    replayed = programs.record(
        lambda: [graph.replay() for _ in range(5)], folder / "replay.json.gz"
    )
    analysis = stagespan.analyze(replayed, capture=captured).to_dict()
    found, operators = analysis["captures"], analysis["kernels"]["operators_by_device_time"]
    figures(captures=str(found)[:4000], operators=str(operators)[:4000])
    launches = 5 * programs.STEPS
    assert found["is_given"]
    assert found["launches"] == launches
    assert found["matched"] >= 0.9 * found["device_events"] > 0, found
    assert found["with_shapes"] == found["matched"], found
    calls = {each["operator"]: each["calls"] for each in operators}
    assert calls["aten::addmm"] == 2 * launches
    assert calls["aten::clamp_min"] == launches
