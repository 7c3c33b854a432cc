"""The device that tests of this folder use: `torch.cuda`, or the stand-in of `tests/npu_standin`.

A test that uses nothing but this object also runs on the stand-in, if it has the marker `stand_in`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IS_STAND_IN = "NPU_STANDIN_LIBRARY" in os.environ
_CYCLES_PER_MS = 2_000_000.0


class StandInCuda:
    """The part of `torch.cuda` that times kernels, with the stand-in behind it."""

    def __init__(self) -> None:
        sys.path.insert(0, str(Path(__file__).parents[1] / "npu_standin"))
        import torch
        from standin import Standin

        self._device = Standin.of_environment()
        self._module = torch.get_device_module(self._device.name)
        self.device_count = self._module.device_count
        self.synchronize = self._module.synchronize

    def init(self) -> None:
        from stagespan.device import times as wiring

        self._device.set_up()
        wiring.watch()

    def _sleep(self, cycles: int) -> None:
        self._device.kernel(cycles / _CYCLES_PER_MS)

    def Event(self, *, enable_timing: bool) -> Any:
        import torch

        return torch.Event(self._device.name, enable_timing=enable_timing)

    def Stream(self) -> Any:
        import torch

        return torch.Stream(self._device.name)

    def stream(self, stream: Any) -> Any:
        return stream  # is a context manager

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        before = self._module.current_device()
        self._module.set_device(index)
        try:
            yield
        finally:
            self._module.set_device(before)


def gpu() -> Any:
    """Return the device; there is one object of the stand-in in a process."""
    if not IS_STAND_IN:
        import torch

        return torch.cuda
    if not _made:
        _made.append(StandInCuda())
    return _made[0]


_made: list[StandInCuda] = []
