"""Links from kernels to operators in public traces, compared with the profiler's own records."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from stagespan.trace import read_trace
from stagespan.trace.derived.device import device_work
from stagespan.trace.derived.launch_sources import EVALUATES, forward_operators, launch_sources
from stagespan.trace.derived.threads import (
    ThreadIndex,
)
from stagespan.trace.derived.trees import Nesting
from stagespan.trace.read.model import MISSING, Flows, Trace


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
    trace = read_trace(traces / f"{name}.json.gz")
    events, rows = trace.events, device_work(trace).rows
    operators = np.flatnonzero(trace.rows_of(["cpu_op"]) & (events.external_id != MISSING))
    by_id = dict(zip(events.external_id[operators].tolist(), operators.tolist(), strict=True))
    found = launch_sources(trace, rows)
    assert found is not None
    recorded = [by_id.get(external, -1) for external in events.external_id[rows].tolist()]
    assert found.operator.tolist() == recorded
    assert int((found.operator >= 0).sum()) == known


def without_arrows(trace: Trace) -> Trace:
    """Return the trace without the flows from forward to backward."""
    flows = trace.flows
    others = ~np.isin(flows.category, trace.category_codes(["fwdbwd"]))
    assert not others.all()
    return replace(
        trace, flows=Flows(*(getattr(flows, each.name)[others] for each in fields(Flows)))
    )


@pytest.mark.parametrize(
    ("name", "nodes"),
    [("cuda_v100_train_ns", 905), ("rocm_mi300_ddp_resnet", 355), ("cpu_only", 55)],
)
def test_sequence_numbers_agree_with_the_flows(name: str, nodes: int, traces: Path) -> None:
    trace = read_trace(traces / f"{name}.json.gz")
    operators = np.flatnonzero(trace.rows_of(["cpu_op"]))
    threads = ThreadIndex(trace, operators)
    forest = Nesting.of(trace, threads.axis, operators, threads.of[0])
    by_arrows = forward_operators(trace, threads, forest)
    by_numbers = forward_operators(without_arrows(trace), threads, forest)
    # THEN all links agree: a flow ends at the node, and the operators inside it have its number too
    linked = by_arrows >= 0
    assert by_numbers[linked].tolist() == by_arrows[linked].tolist()
    around = forest.parent
    assert int((linked & ~((around >= 0) & linked[around])).sum()) == nodes
    evaluates = [trace.names[code].startswith(EVALUATES) for code in trace.events.name[forest.rows]]
    assert int((by_numbers[evaluates] >= 0).sum()) == nodes
