"""Public traces: the analyses find what is visible on the timelines."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import read_real

from stagespan.trace.analyses.device_use import Use
from stagespan.trace.analyses.idle import Idle
from stagespan.trace.analyses.idle_findings import CODES
from stagespan.trace.analyses.steps import Steps
from stagespan.trace.analyses.verdict import Verdict
from stagespan.trace.analysis import Analysis, analyze
from stagespan.trace.derived import idle_causes as causes
from stagespan.trace.derived.step_times import COMMUNICATING

_SEEN: dict[str, Analysis] = {}


def analysis_of(name: str, traces: Path) -> tuple[Idle, Verdict]:
    if name not in _SEEN:
        trace = read_real(traces / f"{name}.json.gz")
        _SEEN[name] = analyze(trace, ["idle", "verdict", "device_use"])
    idle, verdict = _SEEN[name].results["idle"], _SEEN[name].results["verdict"]
    assert isinstance(idle, Idle)
    assert isinstance(verdict, Verdict)
    return idle, verdict


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        # 60 kernels of 5 µs, each launched some 60 µs after the previous one ended.
        ("cuda_h100_bert", "launch-bound"),
        ("cuda_h100_vit", "launch-bound"),
        # Eager vLLM: kernels of 6 µs, launches 80 µs apart.
        ("cuda_b200_vllm_eager", "launch-bound"),
        # Most of the step prepares a video, before the device gets its first work.
        ("cuda_h100_timesformer", "host-bound"),
        # The device is never idle for more than a few µs after it has started.
        ("cuda_v100_train_ns", "device-busy"),
        ("rocm_mi300_triton_compile", "device-busy"),
        ("rocm_mi300_vllm_piecewise", "device-busy"),
        # Every convolution allocates and frees its workspace: 1,360 hipFree of 2 ms.
        ("rocm_mi300_ddp_resnet", "host-bound"),
        # The loader resizes images between the batches.
        ("rocm_mi300_owlv2", "host-bound"),
        # cudnn's first use: cudaMalloc, cudaFree and calls of seconds.
        ("cuda_a100_alexnet", "host-bound"),
        # The loader prepares the batches in the main process: 27 % of the steps.
        ("old_v100_resnet_workers0", "host-bound"),
        # Decoding by one graph, 463 ms after earlier work, which the trace does not contain.
        ("rocm_mi300_sglang_decode", "device-busy"),
        # In each step, work that was launched in time begins 64 ms late.
        ("cuda_a100_cudagraph_triton_nccl", "wait-bound"),
    ],
)
def test_verdicts(name: str, verdict: str, traces: Path) -> None:
    _, found = analysis_of(name, traces)
    assert found.verdict == verdict


def test_more_workers_removed_the_time_of_loading(traces: Path) -> None:
    # GIVEN two runs of one training, without and with four workers that load data
    slow, _ = analysis_of("old_v100_resnet_workers0", traces)
    fast, _ = analysis_of("old_v100_resnet_workers4", traces)
    # THEN waiting for the loader took a fifth of the steps, and is gone
    assert 280e6 < slow.by_cause[causes.DATA_LOADING] < 290e6
    assert fast.by_cause[causes.DATA_LOADING] < 3e6
    assert [f.severity for f in slow.findings() if f.code == "idle.data_loader"] == ["high"]
    assert "idle.data_loader" not in {f.code for f in fast.findings()}


def test_waits_are_named_by_operator_and_line(traces: Path) -> None:
    bert, _ = analysis_of("cuda_h100_bert", traces)
    resnet, _ = analysis_of("rocm_mi300_ddp_resnet", traces)
    waits = [group for group in resnet.groups if group.cause == causes.SYNCHRONISATION]
    assert bert.groups[0].label == (
        "aten::is_nonzero (cudaStreamSynchronize), transformers/modeling_attn_mask_utils.py(429):"
        " _prepare_4d_attention_mask_for_sdpa"
    )
    assert (waits[0].operator, waits[0].line) == ("aten::item", "train_single_gpu.py(41): main")
    assert waits[0].calls == 5
    assert resnet.groups[0].call == "hipFree"


def test_traces_without_a_fault_have_no_finding_about_idle_time(traces: Path) -> None:
    # GIVEN traces in which the device is always busy
    for name in ("cuda_h100_timesformer", "rocm_mi300_triton_compile", "cuda_v100_train_ns"):
        found, _ = analysis_of(name, traces)
        assert found.findings() == [], name


def test_no_launch_gap_is_invented_within_graphs(traces: Path) -> None:
    # GIVEN a decoding in which one launch of a graph runs 544 kernels
    found, _ = analysis_of("rocm_mi300_sglang_decode", traces)
    assert found.gaps_by_cause[causes.GRAPH] > 500
    assert found.gaps_by_cause.get(causes.LAUNCH, 0) < 10


def test_findings_and_verdict_agree_on_idle_time(traces: Path) -> None:
    """In every trace, a figure has the same share in the verdict and in findings."""
    seen = 0
    for path in sorted(traces.glob("*.json.gz")):
        results = analyze(read_real(path), ["idle", "verdict"]).results
        idle, verdict = results["idle"], results["verdict"]
        if not isinstance(idle, Idle) or not isinstance(verdict, Verdict):
            continue
        shown = {each.code: each.numbers["percent"] for each in idle.findings()}
        together = {
            each.code: [
                name
                for name, row in causes.ROWS.items()
                if row.is_pace and f"{name}_ns" in each.numbers
            ]
            for each in idle.findings()
        }
        for cause, code in CODES.items():
            # Idle time during the start of the program has its own finding.
            if code in shown and "idle.start_up" not in shown:
                # One finding can be about several causes of one kind.
                mine = together[code] or [cause]
                part = sum(verdict.parts_ns[each] for each in mine) / verdict.whole_ns
                assert shown[code] == pytest.approx(100 * part), (path.name, code)
                seen += 1
        for each in idle.findings():
            assert each.numbers["whole_ns"] == verdict.base.whole_ns, (path.name, each.code)
        if "idle.start_up" in shown:
            several = (
                sum(shown.values())
                - shown.get("idle.preparation", 0.0)
                - 100
                * sum(time for cause, time in verdict.parts_ns.items() if cause in CODES)
                / verdict.whole_ns
            )
            assert several < 0.001, path.name
    assert seen >= 10


def test_all_analyses_have_one_definition_of_communication(traces: Path) -> None:
    # GIVEN a step with all-reduce kernels of an inference server
    trace = read_real(traces / "cuda_b200_vllm_eager.json.gz")
    results = analyze(trace, ["verdict", "steps", "device_use"]).results
    verdict, steps, use = (results[name] for name in ("verdict", "steps", "device_use"))
    assert isinstance(verdict, Verdict)
    assert isinstance(steps, Steps)
    assert isinstance(use, Use)
    assert use.custom_comm_ns > 0
    assert steps.parts[COMMUNICATING] == verdict.parts_ns["communicating"]
    assert use.exposed_communication_ns == verdict.parts_ns["communicating"]
    # THEN the figures of collective libraries alone do not contain them
    assert use.nccl_ns == use.communication_ns - use.custom_comm_ns
