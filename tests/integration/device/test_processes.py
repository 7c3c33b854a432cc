"""When device time starts, and what happens to it in a fork and at the end of a process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from recording import printed

from running import PROGRAMS

ON_DEVICES = PROGRAMS / "on_devices.py"

Run = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.slow


def test_it_starts_when_the_application_initialises_its_device(run: Run) -> None:
    # GIVEN stagespan before torch, and only spans
    done = run((ON_DEVICES, "starts_with_the_device"), first=True, CUDA_DEVICE_MAX_CONNECTIONS="1")
    # THEN the device is not touched before, and the second span is timed
    assert printed(done) == [[False, False, 0], [True, True, 1]]
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in done.stderr


def test_a_later_import_of_torch_is_detected(run: Run) -> None:
    done = run((ON_DEVICES, "imports_torch_later"), first=True)
    assert printed(done) == [[False, []], [False, True], False]


def test_zero_turns_it_off(run: Run) -> None:
    done = run((ON_DEVICES, "turned_off"), STAGESPAN_DEVICE_EVERY="0")
    assert printed(done) == [[True, False, 0, None]]


@pytest.mark.parametrize(
    ("call", "variable"), [("", "10"), ("stagespan.enable(device_every=10)", "0")]
)
def test_the_sampling_is_set_by_the_variable_or_before_the_device_exists(
    run: Run, call: str, variable: str
) -> None:
    done = run(
        f"""
        import json, stagespan
        from standin import Standin
        from stagespan.device import times as wiring
        {call}
        device = Standin.of_environment()
        device.set_up()
        wiring.watch()
        for _ in range(30):
            with stagespan.span("stage"):
                device.kernel(0)
        stagespan.flush(20)
        print(json.dumps(stagespan.stats()["stage"].device_elapsed_ns.count))
        """,
        STAGESPAN_DEVICE_EVERY=variable,
    )
    assert printed(done) == [3]


def test_a_torch_without_events_gives_one_warning(run: Run) -> None:
    done = run((ON_DEVICES, "without_events"))
    assert printed(done) == [[False, 1]]
    assert done.stderr.count("device time is not complete") == 1
    assert "torch.Event" in done.stderr


def test_a_forked_child_has_host_time(run: Run) -> None:
    done = run((ON_DEVICES, "forks"))
    # THEN the child measures only host time and does not touch the device, and the parent continues
    assert printed(done) == [[True, 2, None, 0, False, False], 1]
    assert "Traceback" not in done.stderr


def test_the_end_waits_a_little_for_the_device(run: Run) -> None:
    done = run((ON_DEVICES, "ends_after_work"))
    # THEN its line contains the whole time
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("[Profile] last")]
    assert float(line.split()[3]) >= 0.2


def test_a_device_that_hangs_does_not_keep_a_process_from_ending(run: Run) -> None:
    done = run((ON_DEVICES, "ends_on_a_hanging_device"))
    # THEN host time is measured nevertheless
    (host_ns,) = printed(done)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("[Profile] stuck")]
    assert float(line.split()[3]) == pytest.approx(host_ns / 1e9, abs=2e-6)  # type: ignore[operator]
