"""How long a replay measures, and how it handles the cache and the clock of a device."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stagespan.device import table  # noqa: E402
from stagespan.harness.standalone import machine, replay  # noqa: E402
from stagespan.harness.standalone.figures import Run, clock_change, summary  # noqa: E402
from stagespan.harness.standalone.replay import Replay  # noqa: E402


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An accelerator of torch whose memory is the host's."""
    properties = SimpleNamespace(L2_cache_size=1 << 20)
    made = SimpleNamespace(
        get_device_properties=lambda device: properties, clock_rate=lambda device: 1500
    )
    made.properties = properties
    monkeypatch.setattr(torch, "pretended", made, raising=False)
    monkeypatch.setattr(torch, "device", lambda name: name)
    allocate = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, device="cpu", **more: allocate(*size, **more))
    return made


def replay_of(seen: list[Any], device: str, numel: int = 8) -> Replay:
    def make_step(inputs: dict[str, Any]) -> Any:
        return lambda: seen.append(inputs["x"].data_ptr())

    return Replay(lambda: {"x": torch.zeros(numel)}, make_step, device=device)


def test_iterations_whose_times_differ_are_timed_for_a_second() -> None:
    turns = itertools.count()  # every other run computes three times as much
    step = lambda: sum(range(50_000 + 100_000 * (next(turns) // 2 % 2)))  # noqa: E731
    began = time.perf_counter()
    assert len(Replay(dict, lambda inputs: step).measure()) >= replay.USUALLY_TIMED
    assert time.perf_counter() - began >= replay.USUAL_SECONDS


def test_the_cache_is_overwritten_before_each_run(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    run = replay_of(seen, "pretended:0")
    flush = replay.DeviceCache.flush

    def noted(cache: Any) -> None:
        flush(cache)
        seen.append(cache._buffer.numel())

    monkeypatch.setattr(replay.DeviceCache, "flush", noted)

    run.measure(3)
    run.run_between(2, lambda: None, lambda: None)

    # THEN twice the cache's size is written before each run, and once before the profile
    where = run.inputs["x"].data_ptr()
    assert seen == [2 << 20, where] * 4 + [where]


def test_small_inputs_are_rotated_if_the_size_of_the_cache_is_unknown(device: Any) -> None:
    del device.properties.L2_cache_size
    seen: list[Any] = []

    replay_of(seen, "pretended:0").measure(4)

    assert seen[0] == seen[2] != seen[1] == seen[3]


def test_the_cache_is_not_overwritten_on_a_cpu() -> None:
    seen: list[Any] = []
    run = replay_of(seen, "cpu")

    runs = run.measure(3)

    assert len(set(seen)) == 1
    assert run.clocks_mhz == [None, None]
    assert summary(runs, "cpu", run.clocks_mhz)["clocks_mhz"] is None


def test_a_clock_that_changes_is_reported(device: Any) -> None:
    # GIVEN a device that slows down when it gets warm
    clocks = iter((1500, 1200))
    device.clock_rate = lambda device: next(clocks)
    run = replay_of([], "pretended:0")

    timing = summary(run.measure(3), "pretended:0", run.clocks_mhz)

    assert timing["clocks_mhz"] == [1500, 1200]
    assert "from 1,500 to 1,200 MHz" in str(clock_change(timing))
    assert clock_change({"clocks_mhz": [1500, 1490]}) is None


def test_a_clock_that_cannot_be_read_is_unknown(device: Any) -> None:
    def refuse(device: Any) -> int:
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    device.clock_rate = refuse
    run = replay_of([], "pretended:0")
    run.measure(3)

    assert run.clocks_mhz == [None, None]


def run_of(fixed_ns: int, waited_ms: float = 0.0) -> Run:
    return Run(wall_ms=10, cpu_ms=10, waited_ms=waited_ms, before_ms=0, fixed_ns=fixed_ns)


@pytest.mark.parametrize(
    ("times_ns", "slowdown", "is_busy"),
    [
        ([100, 104], 1.02, False),
        ([150, 150, 150], 1.5, True),
        ([100] * 15 + [200] * 5, 1.2, True),
        ([100] * 38 + [900] * 2, 1.0, False),
    ],
)
def test_a_processor_that_is_slowed_down_is_reported(
    times_ns: list[int], slowdown: float, is_busy: bool
) -> None:
    timing = summary([run_of(time_ns) for time_ns in times_ns], fastest_fixed_ns=100)

    assert timing["slowdown"] == pytest.approx(slowdown, abs=0.05)
    assert (timing["busy"] is not None) == is_busy


def test_a_processor_that_was_faster_in_an_earlier_replay_is_reported() -> None:
    timing = summary([run_of(150)] * 9, fastest_fixed_ns=149, fastest_in_process_ns=100)

    assert timing["slowdown"] == pytest.approx(1.5)
    assert "took 1.50 x its fastest time in this process" in timing["busy"]
    assert timing["fixed_ns"] == 149


def test_replays_share_the_fastest_time_of_their_process() -> None:
    first, second = replay_of([], "cpu"), replay_of([], "cpu")
    for each in (first, second):
        each.warm_up(2)
    fastest = min(first.fastest_fixed_ns or 0, second.fastest_fixed_ns or 0)
    assert first.fastest_in_process_ns == second.fastest_in_process_ns
    assert (first.fastest_in_process_ns or 0) <= fastest


def test_waiting_for_a_core_is_reported_first() -> None:
    timing = summary([run_of(200, waited_ms=5.0)], fastest_fixed_ns=100)
    assert "waited for one 50% of the time" in timing["busy"]


def test_the_fixed_computation_runs_before_each_run() -> None:
    run = replay_of([], "cpu")
    first = run.warm_up(2)
    runs = [*first, *run.measure(3)]
    # A clock with coarse ticks can count none during a computation.
    assert all(each.fixed_ns is not None and each.fixed_ns >= 0 for each in runs)
    assert run.fastest_fixed_ns is not None
    assert run.fastest_fixed_ns <= min(each.fixed_ns or 0 for each in runs)


def test_scripts_know_the_devices_of_the_table() -> None:
    assert machine.DEVICE_TYPES == table.DEVICE_TYPES
