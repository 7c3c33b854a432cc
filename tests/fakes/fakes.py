"""Fake drivers for tests in Python, loaded instead of real ones."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = "STAGESPAN_TEST_FAKES"
RECORD_FAILS, QUERY_FAILS, NO_EVENTS, DEINITIALISED, NEVER_DONE = range(1, 6)


class Counts(ctypes.Structure):
    """The struct `FakeCounts` of fake_driver.h."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "synchronisations",
            "records",
            "queries",
            "queries_while_capturing",
            "events",
            "other_context",
            "queries_in_capture",
            "contexts_made",
        )
    ]


def missing() -> str | None:
    """Return the reason why the fakes cannot be built here, or None."""
    return None if shutil.which("g++") else "no C++ compiler (g++) on PATH"


def build(folder: Path) -> Path:
    """Build all of them; raises RuntimeError with the compiler's output if that fails."""
    common = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC"]
    (folder / "old").mkdir()
    for source, name, options in (
        ("fake_driver.cpp", "libcuda.so.1", []),
        ("fake_driver.cpp", "old/libcuda.so.1", ["-DFAKE_WITHOUT_QUERY"]),
        ("fake_driver.cpp", "libamdhip64.so", ["-DFAKE_HIP=1"]),
        ("fake_torch.cpp", "libtorch_cuda.so", ["-l:libcuda.so.1"]),
        ("fake_torch.cpp", "libtorch_hip.so", ["-l:libamdhip64.so"]),
    ):
        soname = f"-Wl,-soname,{Path(name).name}"
        command = [*common, str(HERE / source), f"-L{folder}", *options, soname]
        done = subprocess.run(
            [*command, f"-Wl,-rpath,{folder}", "-o", str(folder / name)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
    return folder


class Fake:
    """A driver and the torch that belongs to it, loaded permanently into this process."""

    def __init__(self, kind: str = "cuda", *, old: bool = False, with_torch: bool = True) -> None:
        folder = Path(os.environ[FOLDER])
        driver, torch = {
            "cuda": ("old/libcuda.so.1" if old else "libcuda.so.1", "libtorch_cuda.so"),
            "rocm": ("libamdhip64.so", "libtorch_hip.so"),
        }[kind]
        self._native = ctypes.CDLL(str(folder / driver))
        self._torch = ctypes.CDLL(str(folder / torch)) if with_torch else None
        self._native.fake_make_stream.restype = ctypes.c_void_p
        self._native.fake_launch.argtypes = [ctypes.c_void_p, ctypes.c_double]
        self._native.fake_use_stream.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self._native.fake_begin_capture.argtypes = [ctypes.c_void_p]
        self._native.fake_end_capture.argtypes = [ctypes.c_void_p]

    def use(self, device: int = 0) -> int:
        """Switch the calling thread to a new stream of a device; return the stream."""
        self._native.fake_use_device(device)
        stream = int(self._native.fake_make_stream(device))
        self._native.fake_use_stream(device, stream)
        return stream

    def launch(self, stream: int, ms: float) -> None:
        """Queue a kernel that takes exactly this long."""
        self._native.fake_launch(stream, ms * 1e6)

    def begin_capture(self, stream: int) -> None:
        self._native.fake_begin_capture(stream)

    def end_capture(self, stream: int) -> bool:
        """End the capture; return whether it stayed valid."""
        return bool(self._native.fake_end_capture(stream))

    def fail(self, fault: int) -> None:
        self._native.fake_set_fault(fault)

    def counts(self) -> dict[str, int]:
        counts = Counts()
        self._native.fake_get_counts(ctypes.byref(counts))
        return {name: int(getattr(counts, name)) for name, _ in Counts._fields_}
