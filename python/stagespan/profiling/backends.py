"""One interface for torch.profiler and torch_npu.profiler: start, stop, write."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stagespan.device_table import Device
from stagespan.imports import importing
from stagespan.profiling.running import was_taken_over

LOGGER = logging.getLogger("stagespan")
_KINETO_LEVEL = "KINETO_LOG_LEVEL"
_ABOVE_MARKS = "6"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a window. Stacks and memory make traces many times larger."""

    activities: tuple[str, ...]
    """Names of `ProfilerActivity` members."""
    record_shapes: bool = False
    with_stack: bool = False
    profile_memory: bool = False
    npu_level: str = "1"
    """Level of torch_npu.profiler: ``none``, ``0``, ``1`` or ``2``."""
    npu_result_dir: Path | None = None
    """Folder in which torch_npu.profiler leaves its own result folder; None: it is not kept."""


class Backend(Protocol):
    """A profiler that has not been started yet."""

    missing: tuple[str, ...]
    """Requested activities that this profiler cannot record here."""
    profiler: Any
    """The profiler object of torch or torch_npu."""

    def start(self) -> None:
        """Start recording."""

    def stop(self) -> None:
        """Stop recording, after waiting for the device's work."""

    def write(self, path: Path) -> None:
        """Write the recorded events as an uncompressed Chrome trace."""


def make_backend(device: Device, options: Options) -> Backend:
    """Return the first profiler of a device's row that is installed here, and log which it is.

    On an NPU that is torch_npu.profiler, or else torch.profiler with PrivateUse1; on all other
    devices it is torch.profiler. Raises ImportError if none is installed.
    """
    refused: ImportError | None = None
    for name in device.profilers:
        try:
            backend = _KINDS[name](options)
        except ImportError as error:
            refused = refused or error
            continue
        recorded = [one for one in options.activities if one not in backend.missing]
        LOGGER.info("[Profiler] %s records %s", name, ", ".join(dict.fromkeys(recorded)))
        return backend
    raise refused or ImportError(f"no profiler is known for {device.name}")


class TorchProfiler:
    """torch.profiler, on CUDA, ROCm, XPU, other accelerators and the CPU."""

    def __init__(self, options: Options) -> None:
        with importing():
            import torch.autograd.profiler
            from torch import profiler

        chosen, self.missing = _members(
            profiler.ProfilerActivity, options.activities, profiler.supported_activities()
        )
        self._tracker = getattr(torch.autograd.profiler, "KinetoStepTracker", None)
        self._counted = _counts_steps(self._tracker)
        self.profiler: Any = profiler.profile(
            activities=chosen,
            record_shapes=options.record_shapes,
            with_stack=options.with_stack,
            profile_memory=options.profile_memory,
        )

    def start(self) -> None:
        """Start recording."""
        with _quiet_kineto():
            self.profiler.start()

    def stop(self) -> None:
        """Stop recording. torch waits for the device's work first.

        Raises RuntimeError if another profiler was started meanwhile. It takes over the session of
        this one, and torch crashes the process if a trace without a session is written.
        """
        if was_taken_over(self.profiler):
            raise RuntimeError("another torch.profiler was started in it: remove one of the two")
        self.profiler.stop()
        if self._tracker is not None and not self._counted:
            # Like leaving a `with` block. An application's own profiler keeps its count.
            self._tracker.erase_step_count("ProfilerStep")

    def write(self, path: Path) -> None:
        """Write the recorded events as an uncompressed Chrome trace."""
        self.profiler.export_chrome_trace(str(path))


class NpuProfiler:
    """torch_npu.profiler, which has its own classes."""

    def __init__(self, options: Options) -> None:
        with importing():
            import torch_npu.profiler as profiler

        names = tuple("NPU" if name == "PrivateUse1" else name for name in options.activities)
        chosen, self.missing = _members(profiler.ProfilerActivity, names, None)
        config = profiler._ExperimentalConfig(
            profiler_level=getattr(profiler.ProfilerLevel, _LEVELS[options.npu_level]),
            # Without this, the intermediate files are many times larger than the result.
            data_simplification=True,
        )
        self._result_dir = options.npu_result_dir
        handler = None
        if self._result_dir is not None:
            handler = profiler.tensorboard_trace_handler(str(self._result_dir))
        self.profiler: Any = profiler.profile(
            activities=chosen,
            on_trace_ready=handler,
            record_shapes=options.record_shapes,
            with_stack=options.with_stack,
            profile_memory=options.profile_memory,
            experimental_config=config,
        )
        self._before: set[Path] = set()

    def start(self) -> None:
        """Start recording."""
        self._before = self._results()
        self.profiler.start()

    def stop(self) -> None:
        """Wait for the device's work, because torch_npu does not, then stop recording."""
        import torch

        torch.npu.synchronize()
        self.profiler.stop()

    def write(self, path: Path) -> None:
        """Write the recorded events as an uncompressed Chrome trace.

        Raises OSError if torch_npu has written none: it only warns.
        """
        if self._result_dir is None:
            self.profiler.export_chrome_trace(str(path))
        else:
            for result in self._results() - self._before:
                shutil.copyfile(result / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", path)
                LOGGER.info("[Profiler] Result of torch_npu.profiler saved to: %s", result)
        if not path.exists():
            raise OSError("torch_npu.profiler has written no trace; its warnings say why")

    def _results(self) -> set[Path]:
        return set() if self._result_dir is None else set(self._result_dir.glob("*_ascend_pt"))


_LEVELS = {"none": "Level_none", "0": "Level0", "1": "Level1", "2": "Level2"}
_KINDS: dict[str, Callable[[Options], Backend]] = {
    "torch.profiler": TorchProfiler,
    "torch_npu.profiler": NpuProfiler,
}


@contextlib.contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Keep Kineto's start and stop messages off the terminal, unless its log level is set.

    Kineto reads the level at its first start in a process.
    """
    if _KINETO_LEVEL in os.environ:
        yield
        return
    os.environ[_KINETO_LEVEL] = _ABOVE_MARKS
    try:
        yield
    finally:
        os.environ.pop(_KINETO_LEVEL, None)


def _counts_steps(tracker: Any) -> bool:
    return "ProfilerStep" in getattr(tracker, "_step_dict", ())


def _members(
    kinds: Any, names: Iterable[str], supported: Iterable[Any] | None
) -> tuple[list[Any], tuple[str, ...]]:
    """Return members of an enumeration by name, and the missing or unsupported names."""
    allowed = None if supported is None else set(supported)
    chosen, missing = [], []
    for name in dict.fromkeys(names):
        member = getattr(kinds, name, None)
        if member is None or (allowed is not None and member not in allowed):
            missing.append(name)
        else:
            chosen.append(member)
    return chosen, tuple(missing)
