"""torch_npu.profiler as a backend, with a module of the same interface instead of it."""

from __future__ import annotations

import enum
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stagespan import profile_window
from stagespan.device.table import NPU
from stagespan.errors import StagespanError
from stagespan.profiling import profile_steps
from stagespan.profiling.backends import Options, make_backend

torch = pytest.importorskip("torch")

EVENT = {"ph": "X", "name": "MatMul", "cat": "kernel", "pid": 1, "tid": 1, "ts": "1.5", "dur": 2}


class ProfilerActivity(enum.Enum):
    CPU = 0
    NPU = 1


class ProfilerLevel(enum.Enum):
    Level_none = -1
    Level0 = 0
    Level1 = 1
    Level2 = 2


class Profile:
    """The parts of torch_npu.profiler.profile that are used, with a trace of one event."""

    made: ClassVar[list[Profile]] = []
    writes = True

    def __init__(
        self, *, activities: Any, on_trace_ready: Any, experimental_config: Any, **more: Any
    ):
        self.activities, self.handler, self.config = activities, on_trace_ready, experimental_config
        Profile.made.append(self)

    def start(self) -> None:
        pass

    def stop(self) -> None:
        if self.handler is not None:
            self.handler(self)

    def export_chrome_trace(self, path: str) -> None:
        if Profile.writes:  # torch_npu only warns if it cannot
            Path(path).write_text(json.dumps([EVENT]))


def tensorboard_trace_handler(folder: str) -> Any:
    def write(profile: Profile) -> None:
        output = Path(folder, f"host_{len(Profile.made)}_ascend_pt", "ASCEND_PROFILER_OUTPUT")
        output.mkdir(parents=True)
        (output / "trace_view.json").write_text(json.dumps([EVENT]))

    return write


@pytest.fixture(autouse=True)
def npu(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("torch_npu.profiler")
    module.ProfilerActivity, module.ProfilerLevel = ProfilerActivity, ProfilerLevel
    module.profile, module.tensorboard_trace_handler = Profile, tensorboard_trace_handler
    module._ExperimentalConfig = lambda **options: types.SimpleNamespace(**options)
    package: Any = types.ModuleType("torch_npu")
    package.profiler = module
    monkeypatch.setitem(sys.modules, "torch_npu", package)
    monkeypatch.setitem(sys.modules, "torch_npu.profiler", module)
    monkeypatch.setattr(torch, "npu", types.SimpleNamespace(synchronize=int), raising=False)
    monkeypatch.setattr(Profile, "made", [])
    monkeypatch.setattr(
        "stagespan.profiling.controller.make_backend",
        lambda device, options: make_backend(NPU, options),
    )


@pytest.mark.parametrize(
    ("level", "member"),
    [("none", "Level_none"), ("0", "Level0"), (None, "Level1"), ("2", "Level2")],
)
def test_the_level_can_be_chosen(
    monkeypatch: pytest.MonkeyPatch, level: str | None, member: str
) -> None:
    if level is not None:
        monkeypatch.setenv("STAGESPAN_NPU_LEVEL", level)

    with profile_window("denoise", ("PrivateUse1",)):
        pass

    (profile,) = Profile.made
    assert profile.config.profiler_level.name == member
    assert profile.activities == [ProfilerActivity.CPU, ProfilerActivity.NPU]
    assert profile.handler is None


def test_the_result_folder_is_kept_on_request(
    monkeypatch: pytest.MonkeyPatch, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STAGESPAN_NPU_RESULT", "true")

    with profile_window("vae/decode", ("PrivateUse1",)) as window:
        pass
    with caplog.at_level(logging.INFO, "stagespan"):
        trace = window.export(folder / "trace.json.gz")

    (result,) = (folder / "npu").glob("*/*_ascend_pt")
    assert str(result) in caplog.text
    assert trace.exists()


def test_the_warm_up_of_a_schedule_leaves_no_result(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("STAGESPAN_NPU_RESULT", "true")

    with profile_steps(wait=0, warmup=1, active=1, repeat=2) as steps:
        for _ in range(4):
            steps.step()

    assert len(steps.traces) == 2
    assert [profile.handler is not None for profile in Profile.made] == [False, True] * 2


def test_a_trace_that_was_not_written_gives_a_warning(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(Profile, "writes", False)
    with profile_window("denoise", ("PrivateUse1",)) as window:
        pass

    with pytest.raises((OSError, StagespanError), match="has written no trace"):
        window.export(folder / "trace.json.gz")


def test_without_torch_npu_torchs_own_profiler_is_used_with_private_use(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    monkeypatch.setitem(sys.modules, "torch_npu.profiler", None)

    with caplog.at_level(logging.INFO, "stagespan"):
        backend = make_backend(NPU, Options(("CPU", "PrivateUse1")))

    # THEN it is torch's, and the log names it; this torch has no such device
    assert isinstance(backend.profiler, torch.profiler.profile)
    assert "torch.profiler records CPU" in caplog.text
    supported = torch.profiler.supported_activities()
    is_missing = torch.profiler.ProfilerActivity.PrivateUse1 not in supported
    assert ("PrivateUse1" in backend.missing) == is_missing
