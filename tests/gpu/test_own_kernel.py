"""A kernel of another library, built with nvcc, whose duration is known from the device's timer."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import stagespan
from device_spans import spans_of

SOURCE = Path(__file__).with_name("spin.cu")
LENGTHS_NS = (50_000, 1_000_000, 20_000_000)


def test_a_kernel_of_known_length(cuda: Any, tmp_path: Path, figures: Any) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not on the PATH")
    library = tmp_path / "spin.so"
    build = [nvcc, "-shared", "-Xcompiler", "-fPIC", "-arch=native", "-o", str(library)]
    subprocess.run([*build, str(SOURCE)], check=True, capture_output=True, timeout=80)
    launch = ctypes.CDLL(str(library)).launch_spin
    launch.argtypes = (ctypes.c_ulonglong, ctypes.c_void_p)
    stream = ctypes.c_void_p(cuda.current_stream().cuda_stream)
    assert launch(1000, stream) == 0
    cuda.synchronize()
    for length_ns in LENGTHS_NS:
        cuda._sleep(1_000_000)
        with stagespan.span(f"spin {length_ns}"):
            assert launch(length_ns, stream) == 0
    found = {n: float(spans_of(f"spin {n}")["device_elapsed_ns"][0]) for n in LENGTHS_NS}
    figures(found_ns={str(length): found[length] for length in LENGTHS_NS})
    # The device's timer has steps of up to 1 us, and a launch takes a few more.
    for length_ns, found_ns in found.items():
        assert length_ns - 2_000 <= found_ns <= 1.01 * length_ns + 20_000
