"""What a file shows counts more than a rule of thumb: steps, devices, operands, memory, names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import checked
from planted import Program

from stagespan.pages.result import Unavailable
from stagespan.trace import read_trace
from stagespan.trace.analyses import memory, stages, verdict
from stagespan.trace.analyses.memory import Memory
from stagespan.trace.analyses.stages import Stages
from stagespan.trace.analysis import analyze
from stagespan.trace.derived.kernel_kinds import COMMUNICATION, kind_of
from stagespan.trace.derived.step_ranges import step_ranges
from stagespan.trace.derived.trees import Tree
from stagespan.trace.rates.calls import CostUnknownError, call_of

US = 1_000


# --- Steps ---


def test_annotations_of_fsdp_are_not_steps(tmp_path: Path) -> None:
    program = Program()
    for layer in (0, 1, 2, 2, 1, 0):
        with program.within(f"FSDP::all_gather ({layer})", "user_annotation"):
            program.work(1_000)
        with program.within("aten::mm"):
            program.work(9_000)
    assert step_ranges(program.trace(tmp_path)) is None


@pytest.mark.parametrize("in_module", [False, True])
def test_repetitions_within_a_call_of_a_module_are_layers(in_module: bool, tmp_path: Path) -> None:
    # GIVEN blocks that exchange data with the host, as layers that ask for their routing do
    program = Program()
    begin = program.now
    for _ in range(6):
        for name in "abcdefgh":
            program.operator(f"aten::{name}")
        with program.within("aten::item"):
            program.launch("Memcpy DtoH", 5, cat="gpu_memcpy", call="cudaMemcpyAsync")
            program.wait()
    if in_module:
        program.event("nn.Module: Transformer_0", "python_function", begin, program.now)
    found = step_ranges(program.trace(tmp_path))
    assert (found is None) == in_module


@pytest.mark.parametrize(
    ("count", "us", "ended"), [(1, 15, True), (3, 15, False), (1, 5_000, False)]
)
def test_a_mark_without_work_may_be_a_cycle_that_only_began(
    count: int, us: int, ended: bool, tmp_path: Path
) -> None:
    program = Program()
    for number in range(count):
        with program.within(f"ProfilerStep#{number + 12}", "user_annotation"):
            program.work(us)
    found = verdict.analyze(program.trace(tmp_path))
    said = found.reason if isinstance(found, Unavailable) else found.sentence
    assert "other threads or processes" in said
    assert ("the loop ended when this cycle of the schedule began" in said) == ended
    assert ("on_trace_ready" in said) == ended


# --- Devices of merged ranks ---


@pytest.mark.parametrize(
    "process",
    [
        lambda rank, pid: f"[TP{rank:02d}-DP00] {pid}",
        lambda rank, pid: f"rank {rank}: process {pid}",
        lambda rank, pid: 100_000 * rank + pid,
    ],
)
def test_devices_of_merged_ranks_are_told_apart(
    process: Callable[[int, int], object], tmp_path: Path
) -> None:
    # GIVEN two ranks in one file, which have one device number, stream and correlations
    merged: list[dict[str, Any]] = []
    for rank in range(2):
        program = Program(1_000 + 40 * rank)
        for _ in range(10):
            program.operator(us=100 + 50 * rank)
            program.wait()
        merged += [each | {"pid": process(rank, each["pid"])} for each in program.events]
    path = tmp_path / "merged.json"
    path.write_text(json.dumps({"traceEvents": merged}))
    found = analyze(read_trace(path))
    devices = found.results["device_use"].to_dict()["per_device_us"]
    # THEN there are two devices, each with its own work, and all launches are known
    assert [each["busy"] for each in devices.values()] == [1_000, 1_500]
    assert not [each for each in found.notes() if "merged ranks" in each]
    assert found.results["verdict"].to_dict()["parts_us"].get("not_traced", 0) == 0


# --- Times ---


@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("far", [0.0, 9.5e14])
def test_most_events_at_time_0_or_years_away_are_left_out(
    share: float, far: float, tmp_path: Path
) -> None:
    program = Program(begin=4_655_697_728_424)
    for _ in range(100):
        program.operator(us=100)
        program.wait()
    first = int(len(program.events) * (1 - share))
    end = max(each["ts"] + each["dur"] for each in program.events[:first])
    for each in program.events[first:]:
        each |= {"ts": far + each["ts"] if far else 0, "dur": 0}
    found = analyze(program.trace(tmp_path))
    assert found.window_ns() == (end - 4_655_697_728_424) * US
    assert found.trace.left_out == {"event far outside of all others": len(program.events) - first}


def test_a_device_with_another_clock_is_not_called_unrecorded(tmp_path: Path) -> None:
    program = Program()
    for _ in range(10):
        program.operator(us=10, before=300)
    for each in program.events:
        if each["cat"] == "kernel":
            each["ts"] += 40 * 86_400e6
    found = analyze(program.trace(tmp_path))
    sentence = found.results["verdict"].to_dict()["sentence"]
    assert "its 10 events are left out, because their times are far" in sentence
    (finding,) = (f for f in found.findings() if f.code == "operators.device_not_recorded")
    assert "clocks of the host and the device differ" in finding.text
    assert "activities" not in finding.text


# --- Ranges that cross ---


def test_ranges_that_cross_are_siblings(tmp_path: Path) -> None:
    # GIVEN B and C within A, which cross, and D within C after the end of B
    begin, end = np.array([[0, 1, 2, 12], [30, 11, 22, 15]])
    tree = Tree(begin, end, np.zeros(4, dtype=np.int64))
    assert tree.crossing == 1
    assert tree.parent.tolist() == [-1, 0, 0, 2]
    # THEN at a time in both, the one that began last counts
    at = tree.at(np.zeros(5, dtype=np.int64), np.array([1, 5, 11, 13, 25]))
    assert at.tolist() == [1, 2, 2, 3, 0]
    program = Program(0)
    program.event("A", "user_annotation", 0, 30_000)
    program.event("B", "user_annotation", 1_000, 11_000)
    program.event("C", "user_annotation", 2_000, 22_000)
    for launched in (500, 5_000, 12_000, 23_000, 26_000):
        program.now = launched
        program.operator(us=1_000)
    trace = program.trace(tmp_path)
    (note,) = analyze(trace).notes()
    assert note.startswith("1 range of the program crossed another one")
    found = checked(stages.analyze(trace), Stages)
    device = {tuple(each.path): each.device_ns for each in found.stages}
    assert device == {("A",): 5_000 * US, ("A", "B"): 0, ("A", "C"): 2_000 * US}


def test_no_range_explains_more_than_its_length(tmp_path: Path) -> None:
    program = Program(0)
    program.event("C", "user_annotation", 2_000, 22_000)
    program.event("aten::mm", "cpu_op", 0, 100)
    program.event("aten::mm", "cpu_op", 29_900, 30_000)
    (finding,) = analyze(program.trace(tmp_path)).findings()
    assert "mostly in C (20.0 ms)" in finding.text
    assert (finding.evidence[0].time_ns, finding.evidence[0].figure) == (2_000 * US, 20_000 * US)


# --- Operands, memory, names ---


@pytest.mark.parametrize("strides", ["[[64, 1], [], [64, 1], [], []]", ""])
def test_a_tensor_without_strides_has_unknown_work(strides: str) -> None:
    dims = "[[4000, 64], [4000, 4000], [4000, 64], [], []]"
    types = '["float", "float", "float", "Scalar", "Scalar"]'
    call = call_of("aten::addmm", dims, types, strides, "")
    assert call is not None
    assert call.dims(0) == (4000, 64)
    if not strides:
        assert call.dims(1) == (4000, 4000)
        return
    with pytest.raises(CostUnknownError, match="how full argument 1 is"):
        call.dims(1)


@pytest.mark.parametrize("kind", [0, 1])
def test_the_total_of_a_cpu_is_not_used(kind: int, tmp_path: Path) -> None:
    # GIVEN the second window of a process: the total has 3 MB that were freed between the two
    program = Program()
    with program.within("aten::empty"):
        program.work(50)
    event = {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": 100,
        "ts": 1_010, "args": {
            "Total Allocated": 4_000_000, "Bytes": 1_000_000, "Device Id": kind - 1,
            "Device Type": kind, "Addr": 4096,
        },
    }  # fmt: skip
    path = tmp_path / "memory.json"
    path.write_text(json.dumps({"traceEvents": [*program.events, event]}))
    found = checked(memory.analyze(read_trace(path)), Memory)
    (device,) = found.to_dict()["devices"]
    assert device["peak_bytes"] == (4_000_000 if kind else 1_000_000)
    assert device["total_known"] == bool(kind)


@pytest.mark.parametrize(
    "name",
    [
        "kuserbuffers_pushrecv(int, int, int*, int*, int, unsigned long)",
        "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop(int, int)",
        "mscclKernel_Sum_hip_bfloat16_Simple_false(mscclWork*)",
        "void allgather_kernel<__nv_bfloat16>(AllGatherParams)",
        "pplx::all_to_all_internode_dispatch_kernel",
        "mccl::AllReduce_Kernel(int)",
        "void rocshmem::kernel_put<4>(void*)",
        "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(int)",
        "void mori::moe::EpCombineIntraNodeKernel<hip_bfloat16>(int)",
    ],
)
def test_kernels_of_communication_libraries(name: str) -> None:
    assert kind_of(name) == COMMUNICATION


def test_a_kernel_that_copies_steps_is_not_one_of_them() -> None:
    assert kind_of("void stepcombine_kernel(float*)") != COMMUNICATION
    assert kind_of("void gemm_reduce_scatter_kernel<bf16>(int)") != COMMUNICATION
    assert kind_of("fsdp::all_gather_copy_in") != COMMUNICATION
    assert kind_of("## reduce_scatter_base_bw (all_gather) ##") != COMMUNICATION
