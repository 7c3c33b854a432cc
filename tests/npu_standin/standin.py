"""The stand-in for an accelerator: built against torch's headers, then known to torch by a name.

`build` makes its libraries, `Standin` loads them into this process, which no other test may share:
torch has room for one such device in a process, and cannot forget it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
LIBRARY, ASCEND = "NPU_STANDIN_LIBRARY", "NPU_STANDIN_ASCEND"
NAME = "NPU_STANDIN_NAME"


class Libraries(NamedTuple):
    device: Path
    ascend: Path


def missing() -> str | None:
    """Return the reason why the stand-in cannot be built here, or None."""
    if shutil.which("g++") is None:
        return "no C++ compiler (g++) on PATH"
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch is not installed"
    if not (Path(spec.origin).parent / "include/c10/core/impl/DeviceGuardImplInterface.h").exists():
        return "torch is installed without its C++ headers: install the wheel of PyPI"
    return None


def build(folder: Path) -> Libraries:
    """Build both libraries; raises RuntimeError with the compiler's output if that fails."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent
    made = Libraries(folder / "libnpu_standin.so", folder / "libascendcl.so")
    common = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-isystem", str(torch / "include")]
    device = [str(HERE / "npu_standin.cpp"), f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    ascend = [str(HERE / "ascendcl.cpp"), "-Wl,-soname,libascendcl.so"]
    for command in (
        [*common, *device, "-o", str(made.device)],
        [*common, *ascend, "-o", str(made.ascend)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
    return made


def environment(made: Libraries, *, name: str = "npu", with_ascend: bool = True) -> dict[str, str]:
    """Return the environment variables that `Standin.of_environment` needs."""
    return {
        **os.environ,
        LIBRARY: str(made.device),
        ASCEND: str(made.ascend) if with_ascend else "",
        NAME: name,
        "PYTHONPATH": os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", ""))),
    }


class Standin:
    """The device, as tests control it. Streams and events are torch's own."""

    COUNTS = ("records", "queries", "waits", "blocking_reads", "created", "destroyed", "handles")

    def __init__(self, library: str, ascend: str, name: str) -> None:
        import torch

        torch.ops.load_library(library)
        torch.utils.rename_privateuse1_backend(name)
        self._native = ctypes.CDLL(library)
        self._native.standin_kernel.argtypes = [ctypes.c_double]
        self._native.standin_count.restype = ctypes.c_long
        self._ascend = ctypes.CDLL(ascend) if ascend else None
        self.name = name
        self.is_initialized = False
        self.peak_bytes = 3 << 30
        self._left: list[Callable[[], None]] = []
        self._capturing = False
        torch._register_device_module(name, self._module(name))

    @staticmethod
    def of_environment() -> Standin:
        return Standin(os.environ[LIBRARY], os.environ[ASCEND], os.environ[NAME])

    def _module(self, name: str) -> types.ModuleType:
        """The part of ``torch.npu`` that is used."""
        module: Any = types.ModuleType(f"torch.{name}")
        module.device_count = lambda: 2
        module.is_available = lambda: True
        module.is_initialized = lambda: self.is_initialized
        module.init = self.set_up
        module.current_device = self._native.standin_current_device
        module.set_device = self._native.standin_set_device
        module.synchronize = lambda device=None: self._native.standin_synchronize()
        module.is_current_stream_capturing = lambda: self._capturing
        module.get_device_name = lambda device=None: "stand-in"
        module.memory_allocated = module.memory_reserved = lambda device=None: 1 << 30
        module.max_memory_allocated = module.max_memory_reserved = lambda device=None: (
            self.peak_bytes
        )
        module.reset_peak_memory_stats = lambda device=None: None
        if name == "npu":  # others do not notify when they are initialised
            module._lazy_call = self._lazy_call
        return module

    def _lazy_call(self, callback: Callable[[], None]) -> None:
        if self.is_initialized:
            callback()
        else:
            self._left.append(callback)

    def set_up(self) -> None:
        """What the first use of a device does."""
        if not self.is_initialized:
            for callback in self._left:
                callback()
            self.is_initialized = True

    def kernel(self, ms: float) -> None:
        """Queue a kernel that takes exactly this long on the current stream."""
        self._native.standin_kernel(ms)

    def hold(self, on: bool = True) -> None:
        """Block the current stream, so that what is queued now runs without gaps."""
        self._native.standin_hold(int(on))

    def capture(self, on: bool) -> None:
        self._capturing = on
        self._native.standin_capture(int(on))

    def fail(self, *, records: int = 0, queries: int = 0) -> None:
        """Make the next calls of a kind fail."""
        self._native.standin_fail_records(records)
        self._native.standin_fail_queries(queries)

    def synchronize(self) -> None:
        self._native.standin_synchronize()

    def counts(self) -> dict[str, int]:
        """Return how often torch's device interface was called since the start, by purpose."""
        return {what: int(self._native.standin_count(i)) for i, what in enumerate(self.COUNTS)}

    def ascend_calls(self) -> int:
        return 0 if self._ascend is None else int(self._ascend.standin_acl_calls())


if __name__ == "__main__":  # to build it by hand: python tests/npu_standin/standin.py FOLDER
    print(missing() or build(Path(sys.argv[1])))
