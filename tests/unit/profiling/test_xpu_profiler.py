"""torch.profiler on an XPU, with a device and a profiler of the same interfaces instead of them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stagespan import profile_window
from stagespan.device import platforms
from stagespan.device.platforms import current_platform
from stagespan.device.table import XPU

torch = pytest.importorskip("torch")

ProfilerActivity = torch.profiler.ProfilerActivity
if not hasattr(ProfilerActivity, "XPU"):
    pytest.skip("this torch has no activity for an XPU", allow_module_level=True)


class Profile:
    """The parts of torch.profiler.profile that are used; records nothing."""

    def __init__(self, *, activities: Any, **more: Any) -> None:
        self.activities = list(activities)

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


@pytest.fixture(autouse=True)
def xpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose only accelerator is an XPU, which torch has not initialised."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 1)
    monkeypatch.setattr(torch.profiler, "profile", Profile)
    monkeypatch.setattr(platforms, "_cached", None)


@pytest.mark.parametrize(
    ("supported", "recorded"),
    [(["CPU", "XPU"], ["CPU", "XPU"]), (["CPU"], ["CPU"])],
    ids=["a torch for XPU", "a torch for the CPU alone"],
)
def test_the_activity_of_the_xpu_is_chosen_if_torch_can_record_it(
    supported: list[str],
    recorded: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    members = {getattr(ProfilerActivity, name) for name in supported}
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: members)

    with caplog.at_level(logging.INFO, "stagespan"), profile_window("denoise") as window:
        pass

    assert current_platform.device is XPU
    assert window.recorded
    profiler: Any = window.profiler
    assert [activity.name for activity in profiler.activities] == recorded
    assert f"[Profiler] torch.profiler records {', '.join(recorded)}" in caplog.messages
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [XPU.advice in record.getMessage() for record in warnings] == [True] * (
        len(recorded) < 2
    )
