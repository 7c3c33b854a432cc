"""Links from kernels to operators in public traces, against what the profiler itself recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stagespan.trace import read_trace
from stagespan.trace.derived import launch_sources as forward
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.launch_sources import launch_sources
from stagespan.trace.derived.threads import Nesting, ThreadIndex
from stagespan.trace.read.model import MISSING


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("cuda_h100_timesformer", 534),
        ("cuda_v100_train_ns", 6095),
        ("cuda_b200_vllm_eager", 927),
        ("old_v100_resnet_workers0", 9096),
        ("rocm_mi300_owlv2", 4340),
        ("rocm_mi300_vllm_piecewise", 62),
    ],
)
def test_operators_are_those_that_the_profiler_recorded(
    name: str, known: int, traces: Path
) -> None:
    # GIVEN a trace whose device events have the id of their operator
    trace = read_trace(traces / f"{name}.json.gz")
    events, rows = trace.events, device_work(trace).rows
    operators = np.flatnonzero(trace.rows_of(["cpu_op"]) & (events.external_id != MISSING))
    by_id = dict(zip(events.external_id[operators].tolist(), operators.tolist(), strict=True))
    # WHEN operators are found by the times of the launching calls
    found = launch_sources(trace, rows)
    assert found is not None
    # THEN they are the same ones, and there is none where the profiler has none
    recorded = [by_id.get(external, -1) for external in events.external_id[rows].tolist()]
    assert found.operator.tolist() == recorded
    assert int((found.operator >= 0).sum()) == known


@pytest.mark.parametrize(
    ("name", "nodes"),
    [("cuda_v100_train_ns", 905), ("rocm_mi300_ddp_resnet", 355), ("cpu_only", 55)],
)
def test_sequence_numbers_say_what_the_arrows_say(name: str, nodes: int, traces: Path) -> None:
    # GIVEN a trace of a training with arrows from forward to backward, and sequence numbers
    trace = read_trace(traces / f"{name}.json.gz")
    operators = np.flatnonzero(trace.rows_of(["cpu_op"]))
    lanes = ThreadIndex(trace, operators)
    forest = Nesting.of(trace, lanes.axis, operators, lanes.of[0])
    # WHEN backward operators are linked in both ways
    by_arrows = forward._forward_by_flows(trace, lanes, forest)
    by_sequence = forward._forward_by_sequence(trace, forest)
    assert by_arrows is not None
    assert by_sequence is not None
    # THEN all links agree: an arrow ends at the node, a number stands at what evaluates it, too
    arrows = dict(zip(*(part.tolist() for part in by_arrows), strict=True))
    numbers = dict(zip(*(part.tolist() for part in by_sequence), strict=True))
    assert len(arrows) == len(numbers) == nodes
    evaluates = {node: node if node in numbers else int(forest.parent[node]) for node in arrows}
    assert {evaluates[node]: source for node, source in arrows.items()} == numbers
