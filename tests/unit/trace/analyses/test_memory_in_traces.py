"""Memory of synthetic programs: peaks, holders, and memory that steps keep."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from commands import checked
from planted import HOST, MAIN, Program
from real_traces import read_real

from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import memory
from stagespan.trace.analyses.memory import DeviceMemoryUse, Memory, StepMemory

US = 1_000
MIB = 1 << 20
NOTE = "user_annotation"


class Allocating(Program):
    """A program whose allocator is recorded by the profiler; sizes in MiB."""

    def __init__(self, before: int = 0) -> None:
        super().__init__()
        self.total, self.reserved, self._address = before, before, 0
        self.with_totals = self.with_addresses = True

    def allocate(self, size: int, kind: int = 1) -> tuple[int, int]:
        """Of a size; returns what `release` takes."""
        self._address += 1
        self.total += size
        self.reserved = max(self.reserved, self.total)
        self._write(self._address, size, kind)
        return self._address, size

    def release(self, block: tuple[int, int], kind: int = 1) -> None:
        self.total -= block[1]
        self._write(block[0], -block[1], kind)

    def _write(self, address: int, size: int, kind: int) -> None:
        args: dict[str, Any] = {"Bytes": size * MIB, "Device Type": kind, "Device Id": kind - 1}
        if self.with_totals:
            args |= {"Total Allocated": self.total * MIB, "Total Reserved": self.reserved * MIB}
        if self.with_addresses:
            args["Addr"] = address
        entry = {"ph": "i", "s": "t", "name": "[memory]", "cat": "cpu_instant_event"}
        place = {"pid": HOST, "tid": self.thread, "ts": self.now}
        self.events.append(entry | place | {"args": args})
        self.now += 1


def memory_of(trace: Trace) -> Memory:
    found = checked(memory.analyze(trace), Memory)
    json.dumps(found.to_dict())
    for device in found.devices:
        if device.before_bytes is not None:
            held = sum(holder.at_peak or 0 for holder in device.holders)
            assert held + device.before_bytes == device.peak_bytes
        assert device.peak_bytes == max(size for _, size in device.curve)
    return found


def only(found: Memory) -> DeviceMemoryUse:
    (device,) = found.devices
    return device


def peaks(program: Allocating) -> int:
    """Two stages and operators; returns the time of the peak, in us from the window's start."""
    with program.within("ProfilerStep#1", NOTE):
        with program.within("aten::arange"):
            program.work(1)
            program.release(program.allocate(30))
            program.work(1)
        with program.within("attention", NOTE), program.within("aten::bmm"):
            program.work(3)
            scores = program.allocate(100)
            program.work(3)
        with program.within("aten::softmax"), program.within("aten::empty"):
            program.work(1)
            other = program.allocate(60)
            at = program.now - 1 - 1_000
            program.work(1)
        program.release(scores)
        with program.within("aten::add"):
            last = program.allocate(20)
        program.release(other)
    program.release(last)
    return at


def test_the_peak_and_its_holders(tmp_path: Path) -> None:
    # GIVEN a program with 500 MiB from before, which reaches 660
    program = Allocating(before=500)
    at = peaks(program)
    found = only(memory_of(program.trace(tmp_path)))
    assert (found.device, found.peak_bytes, found.before_bytes) == ("cuda:0", 660 * MIB, 500 * MIB)
    assert (found.peak_ns, found.step) == (at * US, "ProfilerStep#1")
    # THEN its cause: an operator that only allocates does so for its caller
    assert found.holder is not None
    assert (found.holder.operator, found.holder.stage) == ("aten::softmax", None)
    held = {(h.operator, h.stage): (h.at_peak, h.allocated) for h in found.holders}
    assert held == {
        ("aten::bmm", "attention"): (100 * MIB, 100 * MIB),
        ("aten::softmax", None): (60 * MIB, 60 * MIB),
        ("aten::add", None): (0, 20 * MIB),
        ("aten::arange", None): (0, 30 * MIB),
    }
    # AND other memory of the allocator, here none
    assert (found.reserved_bytes, found.most_reserved_bytes) == (660 * MIB, 660 * MIB)
    assert (found.first_bytes, found.last_bytes) == (530 * MIB, 500 * MIB)


def test_the_peak_is_before_the_first_event(tmp_path: Path) -> None:
    # GIVEN steps that first free memory from before, and then allocate less
    program = Allocating(before=500)
    for number in range(2):
        with program.within(f"ProfilerStep#{number}", NOTE), program.within("aten::mul"):
            program.work(2)
            if number == 0:
                program.release((99, 100))
            program.release(program.allocate(30))
    found = only(memory_of(program.trace(tmp_path)))
    assert found.growth is not None
    assert (found.peak_bytes, found.before_bytes) == (500 * MIB, 500 * MIB)
    assert found.growth.steps[0] == StepMemory("ProfilerStep#0", 500 * MIB, 400 * MIB)
    assert (found.peak_ns, found.step, found.holder) == (2 * US, "ProfilerStep#0", None)
    assert (found.first_bytes, found.reserved_bytes, found.unused_bytes) == (400 * MIB, None, None)
    assert found.curve[:2] == [(2 * US, 500 * MIB), (2 * US, 400 * MIB)]


def test_memory_that_is_only_freed(tmp_path: Path) -> None:
    program = Allocating()
    program.with_totals = program.with_addresses = False
    with program.within("aten::mul"):
        program.release((1, 100))
        program.release((2, 60))
    found = only(memory_of(program.trace(tmp_path)))
    assert (found.is_total, found.peak_bytes, found.last_bytes) == (False, 0, -160 * MIB)


def test_a_peak_after_an_event_that_frees_has_no_operator(tmp_path: Path) -> None:
    # GIVEN totals that rise between two events, because an allocation is not in the trace
    program = Allocating()
    with program.within("aten::mul"):
        block = program.allocate(30)
        program.total += 200
        program.release(block)
    found = only(memory_of(program.trace(tmp_path)))
    assert (found.peak_bytes, found.holder) == (200 * MIB, None)


def test_each_thread_allocates_in_its_own_span(tmp_path: Path) -> None:
    program = Allocating()
    begin = program.now
    for number, (name, size) in enumerate((("denoise", 40), ("decode", 30))):
        program.now, program.thread = begin + number, 10 + number
        with program.within("aten::empty"):
            program.allocate(size)
            program.work(5)
        program.event(name, NOTE, begin, program.now)
        program.events[-1].update(pid="stagespan", tid=program.thread)
    found = only(memory_of(program.trace(tmp_path)))
    assert {(each.stage, each.at_peak) for each in found.holders} == {
        ("denoise", 40 * MIB), ("decode", 30 * MIB),
    }  # fmt: skip


def test_without_totals_figures_are_above_the_begin(tmp_path: Path) -> None:
    program = Allocating(before=500)
    program.with_totals = program.with_addresses = False
    peaks(program)
    found = memory_of(program.trace(tmp_path))
    # THEN memory from before and the holders are not reported
    device = only(found)
    assert (device.is_total, device.peak_bytes, device.last_bytes) == (False, 160 * MIB, 0)
    assert (device.before_bytes, device.reserved_bytes) == (None, None)
    assert {holder.at_peak for holder in device.holders} == {None}
    assert found.tables()[0].note != ""


def test_devices_are_separate(tmp_path: Path) -> None:
    program = Allocating()
    program.with_totals = False
    with program.within("aten::copy_"):
        program.allocate(3, kind=0)
        program.allocate(5)
    found = memory_of(program.trace(tmp_path))
    assert [(d.device, d.peak_bytes) for d in found.devices] == [
        ("cuda:0", 5 * MIB),
        ("cpu", 3 * MIB),
    ]


def test_the_curve_of_many_events_keeps_the_peak(tmp_path: Path) -> None:
    program = Allocating()
    for number in range(3_000):
        program.release(program.allocate(9 if number == 1_234 else 2))
    device = only(memory_of(program.trace(tmp_path)))
    assert len(device.curve) <= 402
    assert (device.peak_bytes, device.peak_ns) == (9 * MIB, 2 * 1_234 * US)


def leaking(program: Allocating, steps: int, leaks: set[int]) -> None:
    for number in range(steps):
        with program.within(f"ProfilerStep#{number}", NOTE):
            with program.within("aten::mm"):
                block = program.allocate(100)
            if number in leaks:
                with program.within("aten::clone"):
                    program.allocate(7)
            program.release(block)


def test_a_leak_is_found_with_its_operator(tmp_path: Path) -> None:
    # GIVEN eight steps, each of which except the first two keeps 7 MiB
    program = Allocating(before=10)
    leaking(program, 8, {2, 3, 4, 5, 6, 7})
    found = memory_of(program.trace(tmp_path))
    growth = only(found).growth
    assert growth is not None
    assert (growth.growing, growth.left_bytes) == (6, 42 * MIB)
    assert [step.end_bytes // MIB for step in growth.steps] == [10, 10, 17, 24, 31, 38, 45, 52]
    assert growth.steps[-1].peak_bytes // MIB == 152
    (finding,) = found.findings()
    assert (finding.code, finding.severity) == ("memory.growth", "high")
    assert (growth.by, growth.by_bytes) == ("aten::clone", 42 * MIB)
    assert finding.numbers == {"steps": 6, "left_bytes": 42 * MIB, "by_bytes": 42 * MIB}
    assert growth.since_ns == finding.evidence[1].time_ns


@pytest.mark.parametrize(
    "leaks", [set(), {0, 1}, {0, 1, 2, 3, 4, 5, 6}, {5, 6, 7}, {0, 2, 4, 6}, {7}]
)
def test_growth_that_is_not_a_leak(leaks: set[int], tmp_path: Path) -> None:
    # GIVEN steps that warm up, or keep memory occasionally
    program = Allocating()
    leaking(program, 8, leaks)
    assert memory_of(program.trace(tmp_path)).findings() == []


def test_hostile_arguments(tmp_path: Path) -> None:
    # GIVEN events without sizes, with words for sizes, and without arguments
    program = Allocating()
    place = {"pid": HOST, "tid": MAIN, "ts": 1_000, "name": "[memory]"}
    program.operator()
    program.events.append(place | {"ph": "i"})
    assert isinstance(memory.analyze(program.trace(tmp_path)), Unavailable)
    program.events.append(place | {"ph": "i", "args": {"Bytes": "many"}})
    assert isinstance(memory.analyze(program.trace(tmp_path)), Unavailable)
    program.events = []
    found = memory.analyze(program.trace(tmp_path))
    assert isinstance(found, Unavailable)
    assert "profile_memory=True" in found.reason


@pytest.mark.parametrize("size", [None, 2**63, 1e300, -(2**60), "many", "NaN"])
def test_impossible_sizes_are_left_out_and_counted(size: object, tmp_path: Path) -> None:
    program = Allocating()
    program.allocate(1)
    program.allocate(2)
    broken = dict(program.events[-1])
    broken["args"] = dict(broken["args"], Bytes=size)
    program.events.append(broken)
    found = memory_of(program.trace(tmp_path))
    assert (only(found).events, found.left_out) == (2, 1)
    assert f" {found.left_out:,} " in found.tables()[0].note


@pytest.mark.parametrize(
    ("base", "step"),
    [(0xFF00000000200000 - 2**64, 512), (0xFF00000000200000, 512), (2**63 - 4, 1), (2**53, 1)],
)
def test_addresses_of_64_bits_are_distinguished(base: int, step: int, tmp_path: Path) -> None:
    # GIVEN 1,000 MiB, then 500, the first freed, then 2,000, at addresses beyond 2**52 (as XPU's)
    program = Allocating(before=70)
    with program.within("aten::a"):
        first = program.allocate(1_000)
    with program.within("aten::b"):
        program.allocate(500)
    program.release(first)
    with program.within("aten::c"):
        program.allocate(2_000)
    for event in program.events:
        if event["name"] == "[memory]":
            event["args"]["Addr"] = base + step * event["args"]["Addr"]
    found = only(memory_of(program.trace(tmp_path)))
    held = {holder.operator: holder.at_peak for holder in found.holders}
    assert held == {"aten::a": 0, "aten::b": 500 * MIB, "aten::c": 2_000 * MIB}
    assert (found.peak_bytes, found.before_bytes) == (2_570 * MIB, 70 * MIB)


@pytest.mark.parametrize("address", [None, "nowhere", 2**64, 1.5])
def test_an_event_without_an_address(address: object, tmp_path: Path) -> None:
    program = Allocating()
    program.release(program.allocate(3))
    program.allocate(2)
    program.events[1]["args"]["Addr"] = address
    found = only(memory_of(program.trace(tmp_path)))
    assert (found.peak_bytes, found.before_bytes) == (3 * MIB, None)
    assert [holder.at_peak for holder in found.holders] == [None]
    program.events[1]["args"] |= {"Addr": 1, "Bytes": -3 * MIB}
    program.events.append(dict(program.events[1], args={"Bytes": 0, "Addr": address}))
    program.events[-1]["args"] |= {"Device Type": 1, "Device Id": 0, "Total Allocated": 2 * MIB}
    assert only(memory_of(program.trace(tmp_path))).before_bytes == 0


def test_an_event_that_does_not_say_what_is_reserved(tmp_path: Path) -> None:
    program = Allocating()
    program.allocate(3)
    program.release(program.allocate(2))
    del program.events[1]["args"]["Total Reserved"]
    # THEN it is unknown there, and known elsewhere
    found = only(memory_of(program.trace(tmp_path)))
    assert (found.peak_bytes, found.reserved_bytes, found.most_reserved_bytes) == (
        5 * MIB,
        None,
        5 * MIB,
    )
    assert found.to_dict()["reserved_unused_at_peak_bytes"] is None


def test_only_memory_events(tmp_path: Path) -> None:
    program = Allocating()
    program.allocate(1)
    program.allocate(2)
    found = only(memory_of(program.trace(tmp_path)))
    assert found.peak_bytes == 3 * MIB
    assert [(h.operator, h.allocations) for h in found.holders] == [(None, 2)]
    assert found.growth is None


def test_real_traces(traces: Path) -> None:
    said = {}
    for path in sorted(traces.glob("*.json.gz")):
        found = memory.analyze(read_real(path))
        if not isinstance(found, Unavailable):
            said[path.name.split(".")[0]] = found
            assert found.findings() == []
    assert len(said) == 8
    times = said["cuda_h100_timesformer"].devices[0]
    with gzip.open(traces / "cuda_h100_timesformer.json.gz") as file:
        entries = json.load(file)["traceEvents"]
    totals = [
        entry["args"]["Total Allocated"]
        for entry in entries
        if entry["name"] == "[memory]" and entry["args"]["Device Type"] == 1
    ]
    assert (times.events, times.peak_bytes) == (len(totals), max(totals))
    assert times.step == "ProfilerStep#6"
    assert {holder.operator for holder in times.holders[:2]} == {"aten::bmm", "aten::mul"}
    resnet = said["old_v100_resnet_workers0"].devices[0]
    assert resnet.growth is not None
    assert (resnet.is_total, resnet.growth.growing) == (False, 0)


@pytest.mark.parametrize(("keeps", "left"), [("tensors", 5 * 4_000_000), ("losses", 5 * 4)])
def test_a_program_profiled_by_torch(keeps: str, left: int, tmp_path: Path) -> None:
    # GIVEN six steps of a real program that keeps 4 MB each, or one number each
    torch = pytest.importorskip("torch")
    kept = []
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        profile_memory=True,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=6, repeat=1),
    ) as profile:
        profile.step()
        for _ in range(6):
            value = torch.ones(1000, 1000)
            kept.append(value.clone() if keeps == "tensors" else value.sum())
            del value
            profile.step()
    path = tmp_path / "torch.json"
    profile.export_chrome_trace(str(path))
    found = memory_of(read_trace(path))
    growth = only(found).growth
    assert growth is not None
    operator = "aten::clone" if keeps == "tensors" else "aten::sum"
    assert (growth.left_bytes, growth.by) == (left, operator)
    # THEN only significant growth is a finding
    assert len(found.findings()) == (keeps == "tensors")
