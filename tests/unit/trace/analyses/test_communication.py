"""Collectives of one trace: planted calls whose latency, bandwidth and waiting are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import checked, fits
from planted import Program

from stagespan.pages.result import Finding, Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import communication
from stagespan.trace.analyses.communication import PER_CALL, VOLUME, WAITING, Communication
from stagespan.trace.json_schema import json_schema
from stagespan.trace.rates.collectives import algorithm_of, bus_bytes

US = 1_000
NOTE = "user_annotation"
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def all_reduce(program: Program, us: float, elements: int | None, ranks: int = 4) -> None:
    """A collective on its own stream, with the arguments that newer versions of torch write."""
    program.launch(KERNEL, us, stream=20, after=7)  # type: ignore[arg-type]
    if elements is not None:
        program.events[-1]["args"] |= {
            "Collective name": "allreduce",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "dtype": "Float",
            "Group size": ranks,
        }


def found_in(trace: Trace) -> Communication:
    found = checked(communication.analyze(trace), Communication)
    fits(found.to_dict(), json_schema()["properties"]["communication"])
    return found


def planted(
    folder: Path, calls: list[tuple[float, int | None]], gemm: int = 10, ranks: int = 4
) -> Communication:
    program = Program()
    for us, elements in calls:
        program.launch("gemm", gemm)
        all_reduce(program, us, elements, ranks)
        program.wait()
    return found_in(program.trace(folder))


def finding_of(found: Communication, code: str) -> Finding:
    (finding,) = [each for each in found.findings() if each.code == code]
    return finding


@pytest.mark.parametrize("backend", ["hccl", "nccl", "rccl"])
@pytest.mark.parametrize("with_barrier", [True, False])
def test_calls_on_a_device_that_shows_no_collective_are_told(
    backend: str, with_barrier: bool, tmp_path: Path
) -> None:
    # GIVEN a device whose events have no collective, and calls of some, of which one is waited for
    program = Program()
    begin = program.now
    for _ in range(3):
        program.operator("aten::mm", us=500)
        with program.within("c10d::allgather_"), program.within(f"{backend}:allgather", NOTE):
            program.work(20)
    program.event(f"{backend}:all_to_all", NOTE, begin, program.now)
    if with_barrier:
        with program.within("c10d::barrier"), program.within("gloo:barrier", NOTE):
            program.work(40)
    program.wait()
    trace = program.trace(tmp_path)
    if not with_barrier:
        found = communication.analyze(trace)
        assert isinstance(found, Unavailable)
        assert "4 calls of collectives on the device, and none of their runs" in found.reason
        return
    seen = found_in(trace)
    # THEN their times are not known, and not those of runs
    assert (seen.calls, seen.time_ns) == (1, 40 * US)
    assert seen.unseen_calls == {"all_gather": 3, "all_to_all": 1}
    assert "4 calls of collectives on the device" in seen.line()


def test_latency_and_bandwidth_follow_from_calls_of_several_sizes(tmp_path: Path) -> None:
    elements = (250_000, 500_000, 2_500_000)
    found = planted(tmp_path, [(50 + 4 * n / 1e5, n) for n in elements])
    (dependence,) = found.dependence
    assert dependence.per_call_ns == pytest.approx(50 * US, abs=2)
    # 100 KB per µs are 100 GB/s, of which each link carries 2 * 3 / 4
    assert dependence.bus_gb_per_s == pytest.approx(150, rel=1e-6)
    total = 3 * 50 * US + sum(elements) * 4 // 100
    assert sum(dependence.parts.values()) == total
    assert dependence.parts[WAITING] == 0
    assert dependence.parts[PER_CALL] == pytest.approx(150 * US, abs=10)


def test_a_call_that_is_longer_than_others_of_its_size_waited(tmp_path: Path) -> None:
    calls = [(100.0, 1_000_000), (900.0, 1_000_000), (200.0, 4_000_000), (700.0, 4_000_000)]
    found = planted(tmp_path, calls)
    # THEN the time beyond the shortest is waiting, and a change can win it
    finding = finding_of(found, "communication.waiting")
    assert found.dependence[0].parts[WAITING] == (800 + 500) * US
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == ((800 + 500) * US, True)


@pytest.mark.parametrize(
    "calls",
    [
        # 24 KB that take 1.9 ms longer than 4 KB: no link is so slow
        [(100.0, 1_000), (2_000.0, 6_000), (150.0, 1_000), (2_100.0, 6_000)],
        # the larger calls are shorter
        [(2_000.0, 1_000_000), (100.0, 4_000_000), (2_100.0, 1_000_000), (150.0, 4_000_000)],
    ],
)
def test_time_that_no_link_explains_is_waiting(
    calls: list[tuple[float, int | None]], tmp_path: Path
) -> None:
    found = planted(tmp_path, calls)
    assert found.dependence[0].parts == {WAITING: 3_950 * US, PER_CALL: 400 * US, VOLUME: 0}
    finding = finding_of(found, "communication.waiting")
    assert "the shortest call, whatever the size" in finding.text
    assert finding.gain is not None
    assert finding.gain.time_ns == 3_950 * US


def test_a_constant_time_above_what_a_call_costs_is_no_volume(tmp_path: Path) -> None:
    # GIVEN 17.6 MB in 8.7 ms and 5.7 MB in 6.7 ms
    found = planted(tmp_path, [(8_700, 4_400_000), (6_700, 1_425_000)] * 3)
    finding = finding_of(found, "communication.waiting")
    constant = 6_700 - 1_425 * (8_700 - 6_700) / (4_400 - 1_425)
    assert finding.numbers["per_call_ns"] == pytest.approx(constant * US, rel=1e-6)
    assert "does not depend on the size" in finding.text


def test_short_calls_that_differ_little_are_bound_by_latency(tmp_path: Path) -> None:
    found = planted(tmp_path, [(30.0, 1_000), (31.0, 100_000), (30.0, 1_000), (31.0, 100_000)])
    finding = finding_of(found, "communication.latency")
    assert "bucket_cap_mb" in finding.text
    # 30 µs of each call do not depend on its size; one of the four calls remains.
    constant = 31 * US - 1e5 * US / 99_000
    assert finding.gain is not None
    assert finding.gain.time_ns == pytest.approx(4 * constant * 3 / 4, abs=4)
    small = finding_of(found, "communication.small_calls")
    assert small.gain is not None
    # All four are small; one of them remains.
    assert small.gain.time_ns == pytest.approx(122 * US * 3 / 4, abs=2)


def test_volume_wins_half_with_half_of_the_bytes(tmp_path: Path) -> None:
    found = planted(tmp_path, [(1_000.0, 10_000_000), (2_000.0, 20_000_000)])
    finding = finding_of(found, "communication.volume")
    assert finding.gain is not None
    assert finding.gain.time_ns == pytest.approx(1_500 * US, rel=1e-6)
    assert found.dependence[0].parts[VOLUME] == pytest.approx(3_000 * US, abs=10)


def test_only_exposed_time_can_be_won_and_room_is_what_computes_alone(tmp_path: Path) -> None:
    program = Program()
    program.launch("gemm", 100)
    all_reduce(program, 300, 5_000_000)
    program.launch("gemm", 200)
    program.wait()
    trace = program.trace(tmp_path)
    found = found_in(trace)
    events = trace.events
    (row,) = [at for at, code in enumerate(events.name) if trace.names[code] == KERNEL]
    kernels = [at for at, code in enumerate(events.name) if trace.names[code] == "gemm"]
    begin, end = int(events.begin_ns[row]), int(events.end_ns[row])
    hidden = sum(
        max(0, min(end, int(events.end_ns[at])) - max(begin, int(events.begin_ns[at])))
        for at in kernels
    )
    assert 0 < hidden < 300 * US
    assert found.exposed_ns == 300 * US - hidden
    assert found.room_ns == 300 * US - hidden


@pytest.mark.parametrize("with_shapes", [True, False])
def test_sizes_of_older_traces_follow_from_shapes(with_shapes: bool, tmp_path: Path) -> None:
    program = Program()
    for _ in range(3):
        begin = program.now
        program.launch("gemm", 1)
        all_reduce(program, 100, None)
        shapes = {"Input Dims": [[1_000_000]], "Input type": ["float"]} if with_shapes else {}
        program.event("nccl:all_reduce", "user_annotation", begin, program.now, **shapes)
    info = {"pg_config": [{"pg_name": "0", "pg_size": 8}, {"pg_name": "1", "pg_size": 1}]}
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"traceEvents": program.events, "distributedInfo": info}))
    found = found_in(read_trace(path))
    (size,) = found.by_size
    assert (size.calls, size.ranks, size.algorithm) == (3, 8, "RING_LL")
    assert size.bytes == (4_000_000 if with_shapes else None)
    if with_shapes:
        assert size.bus_gb_per_s == pytest.approx(40 * 2 * 7 / 8)
    else:
        assert size.bus_gb_per_s is None


def test_a_collective_has_the_name_that_the_program_gave_it(tmp_path: Path) -> None:
    kernel = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long)"
    program = Program()
    for name in ("nccl:all_reduce", "nccl:all_to_all"):
        with program.within(name, "user_annotation"):
            program.launch(kernel, 100, stream=20)
    program.launch(kernel, 100, stream=20)
    found = found_in(program.trace(tmp_path))
    assert {(each.op, each.algorithm) for each in found.by_size} == {
        ("all_reduce", None),
        ("all_to_all", "RING_SIMPLE"),
        ("send_recv", "RING_SIMPLE"),
    }


def test_broadcasts_of_buffers_by_ddp_are_named(tmp_path: Path) -> None:
    program = Program()
    for _ in range(2):
        with program.within("DistributedDataParallel.forward", "user_annotation"):
            program.launch("ncclDevKernel_Broadcast_RING_LL(x)", 200, stream=20)
            program.wait()
            program.launch("gemm", 300)
            program.wait()
        program.launch("ncclDevKernel_Broadcast_RING_LL(x)", 50, stream=20)
        program.wait()
    finding = finding_of(found_in(program.trace(tmp_path)), "communication.buffers")
    assert finding.gain is not None
    assert finding.gain.time_ns == 2 * 200 * US
    assert finding.numbers["calls"] == 2


def test_calls_at_the_same_time_are_not_won_twice(tmp_path: Path) -> None:
    program = Program()
    begin = program.now
    with program.within("aten::mm"):
        program.work(100)
    arguments: dict[str, Any] = {"Input Dims": [[10]], "Input type": ["float"]}
    for thread in (300, 301):
        program.thread = thread
        program.event("gloo:all_reduce", "user_annotation", begin, begin + 500, **arguments)
    program.thread = 100
    program.now = begin + 500
    with program.within("aten::mm"):
        program.work(1)
    found = found_in(program.trace(tmp_path))
    assert found.exposed_ns == 400 * US
    assert sum(each.exposed_ns for each in found.by_size) == 400 * US


def test_a_trace_without_collectives_has_no_result(tmp_path: Path) -> None:
    program = Program()
    program.launch("gemm", 10)
    found = communication.analyze(program.trace(tmp_path))
    assert isinstance(found, Unavailable)
    assert found.code == "no_communication"


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "RING_LL"),
        ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclDevComm*)", "TREE_LL"),
        ("ncclKernel_AllReduce_TREE_LL128_Sum_float(ncclDevComm*)", "TREE_LL128"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "RING_SIMPLE"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", None),
        ("gloo:all_reduce", None),
    ],
)
def test_the_algorithm_is_in_names_of_kernels(name: str, algorithm: str | None) -> None:
    assert algorithm_of(name) == algorithm


@pytest.mark.parametrize(
    ("op", "factor"),
    [("all_reduce", 1.5), ("all_gather", 3.0), ("reduce_scatter", 0.75), ("broadcast", 1.0)],
)
def test_bus_bytes_are_counted_as_in_the_tests_of_nccl(op: str, factor: float) -> None:
    assert bus_bytes(op, 1_000, 4) == factor * 1_000
    assert bus_bytes(op, -1, 4) is None
    assert bus_bytes(op, 1_000, 1) is None


def test_a_small_call_that_waits_long_does_not_cost_that_much(tmp_path: Path) -> None:
    found = planted(tmp_path, [(60.0, 1_000)] * 6 + [(3_000.0, 1_000)] * 2)
    finding = finding_of(found, "communication.small_calls")
    assert finding.numbers["time_ns"] == (6 * 60 + 2 * 100) * US
    assert finding.gain is not None
    assert finding.gain.time_ns == (6 * 60 + 2 * 100) * US * 7 // 8
