"""Scopes of another extension's C++ code have device time as well."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import standin

import stagespan
from running import ran

pytestmark = pytest.mark.slow


def test_scopes_of_cpp(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    # GIVEN an extension that opens scopes around device work, one of them without the lock
    headers = sysconfig.get_path("include")
    if not (Path(headers) / "Python.h").exists():
        pytest.skip("Python.h is not installed: install python3-dev")
    made = tmp_path / f"cpp_scopes{sysconfig.get_config_var('EXT_SUFFIX')}"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{headers}"]
    command += [f"-I{stagespan.get_include()}", str(standin.HERE / "cpp_scopes.cpp"), "-o"]
    ran([*command, str(made)], status=0)
    done = run(f"""
        import ctypes, json, sys, stagespan
        sys.path.insert(0, {str(tmp_path)!r})
        from standin import Standin
        from stagespan.device import times as wiring
        device = Standin.of_environment()
        device.set_up()
        wiring.watch()
        import cpp_scopes
        launcher = ctypes.cast(device._native.standin_kernel, ctypes.c_void_p).value
        device.hold()
        cpp_scopes.run(launcher, 3.0)
        cpp_scopes.hand_over(100)
        with stagespan.span("after"):
            device.kernel(1.0)
        device.hold(False)
        assert stagespan.flush(20)
        stats = stagespan.stats()
        times = {{n: s.device_elapsed_ns and s.device_elapsed_ns.mean_ns for n, s in stats.items()}}
        print(json.dumps([times, stats["cpp handed"].count, stagespan.lost()]))
    """)
    # THEN they have the device's time; without the lock torch cannot be called, so only host time
    assert done.returncode == 0, done.stderr
    times, handed, lost = json.loads(done.stdout)
    assert times["cpp outer"] == pytest.approx(9e6, rel=0.001)
    assert times["cpp inner"] == pytest.approx(6e6, rel=0.001)
    assert times["cpp unlocked"] is None
    # AND what ends without the lock is counted, but not as a failure of the device
    assert (handed, times["cpp handed"]) == (100, None)
    assert (lost["device_elsewhere"], lost["device_failed"]) == (100, 0)
    assert times["after"] == pytest.approx(1e6, rel=0.001)
