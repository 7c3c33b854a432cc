"""`stagespan doctor` with a device: it is tested, and failures are reported."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.slow

DOCTOR = """
import sys
from standin import Standin
device = Standin.of_environment()
{before}
from stagespan.cli import command
command(["doctor", *{arguments}], prog_name="stagespan")
"""


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    page = json.loads(done.stdout)
    assert page["works"] is (done.returncode == 0)
    return {found["name"]: found for found in page["findings"]}


@pytest.mark.parametrize("name", ["npu", "fancy"])
def test_a_device_that_works(run: Run, name: str) -> None:
    done = run(DOCTOR.format(before="", arguments=["--json"]), name=name, with_ascend=name == "npu")
    found = findings(done)
    assert done.returncode == 0, done.stdout
    assert found["accelerator"]["text"] == f"{name}, 2 devices"
    assert found["timing"]["state"] == "works"
    assert found["timing"]["text"].startswith("3 spans resolved")
    assert "torch.Event" in found["backend"]["text"]


def test_one_page(run: Run) -> None:
    done = run(DOCTOR.format(before="", arguments=[]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) <= 60
    assert "Everything that should work here works." in done.stdout


def test_a_device_that_cannot_be_timed_is_a_failure(run: Run) -> None:
    done = run(DOCTOR.format(before="import torch; del torch.Event", arguments=["--json"]))
    # THEN a script can detect it, and the output says why
    found = findings(done)
    assert done.returncode == 1
    assert found["timing"]["state"] == "fails"
    assert "torch.Event" in found["timing"]["text"]


def test_a_device_that_fails_in_use(run: Run) -> None:
    done = run(DOCTOR.format(before="device.fail(records=1000)", arguments=[]))
    assert done.returncode == 1
    assert "Does not work: device time: timing." in done.stdout
    assert "device_failed" in done.stdout


def test_a_device_while_recording_is_off(run: Run) -> None:
    done = run(DOCTOR.format(before="", arguments=["--json"]), STAGESPAN_ENABLED="0")
    # THEN nothing could be timed, which is not a failure
    assert done.returncode == 0
    timing = findings(done)["timing"]
    assert timing["state"] == "note"
    assert "STAGESPAN_ENABLED" in timing["text"]


def test_a_device_that_is_not_tested(run: Run) -> None:
    done = run(DOCTOR.format(before="", arguments=["--json", "--no-device"]))
    assert done.returncode == 0
    timing = findings(done)["timing"]
    assert timing["state"] == "note"
    assert "--no-device" in timing["text"]
