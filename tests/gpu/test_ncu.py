"""Nsight Compute on the top kernel of a breakdown, with the script that the harness wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stagespan

STAGE = """
import torch


class Denoise:
    def __init__(self):
        self.weight = torch.randn(2048, 2048, device="cuda")

    def process(self, x):
        return torch.relu(x @ self.weight)


def make():
    return Denoise()
"""


def test_the_top_kernel_of_a_breakdown(
    cuda: Any, tmp_path: Path, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if shutil.which("ncu") is None:
        pytest.skip("ncu is not on the PATH")
    # GIVEN a stage that was captured and replayed on the device
    (tmp_path / "ncu_stage.py").write_text(STAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import ncu_stage

    stage = ncu_stage.make()
    stagespan.set_debug(True)
    try:
        process = stagespan.ProfilingContext4Debug("multiply")(type(stage).process)
        process(stage, torch.randn(512, 2048, device="cuda"))
    finally:
        stagespan.set_debug(False)
    signatures = tmp_path / "timing_io_signature.json"
    stagespan.dump_io_signatures(signatures)
    harness = stagespan.StageBenchHarness.from_signature_file(
        signature_path=signatures,
        stage_name="multiply",
        stage_instance=stage,
        config=stagespan.HarnessConfig(output_dir=tmp_path),
    )
    harness.setup()
    harness.profile()
    breakdown = json.loads((tmp_path / "multiply_breakdown.json").read_text())
    top = breakdown["top_kernels"][0]
    assert top["cuda_ms"] > 0
    # WHEN ncu looks at its top kernel
    done = subprocess.run(
        [
            *(sys.executable, "-m", "stagespan", "bench", "multiply_breakdown.json", "--ncu"),
            *("--factory", "ncu_stage:make", "--top", "1"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=45,
    )
    figures(top=top, page=done.stdout[-6000:])
    # THEN the page names the kernel, or says in a sentence why the counters cannot be read
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        pytest.skip("this user may not read the counters (ERR_NVGPUCTRPERM)")
    assert done.returncode == 0, done.stdout + done.stderr
    assert top["name"][:20] in done.stdout
