"""The lengths of critical paths of public traces, compared with those that HTA computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stagespan.trace import Trace
from stagespan.trace.analyses import critical_path
from stagespan.trace.analyses.critical_path import CriticalPath

pytestmark = pytest.mark.slow

# What `critical_path_analysis` of HolisticTraceAnalysis 0.5.0 returns for a step: the sum of the
# weights of the edges on the path, in µs. It drops the last step of a trace.
HTA = {
    "cuda_v100_train_ns": {
        "ProfilerStep#102": 95_735, "ProfilerStep#103": 95_569, "ProfilerStep#104": 95_662,
    },
    "cuda_v100_trace_diff": {"ProfilerStep#1010": 117_122},
    "cuda_a100_cudagraph_triton_nccl": {"ProfilerStep#551": 215_565},
    "rocm_mi300_vllm_piecewise": {"execute_8192": 156_466},
}  # fmt: skip


@pytest.mark.parametrize("name", HTA)
def test_lengths_agree_with_those_of_hta(name: str, real: Callable[[str], Trace]) -> None:
    # GIVEN steps whose length the device determines, as HTA measures them in whole microseconds
    trace = real(name)
    found = critical_path.analyze(trace)
    # THEN the lengths differ by less than 1 %
    assert isinstance(found, CriticalPath)
    for step_name, theirs in HTA[name].items():
        (ours,) = [each.whole_ns for each in found.steps if each.name.startswith(step_name)]
        assert ours / 1000 == pytest.approx(theirs, rel=0.01)
