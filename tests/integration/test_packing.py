"""A program packed by PyInstaller, which finds what it needs by the package's hook."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import stagespan
from running import ran
from stagespan import _core

PROGRAM = """
import sys
import stagespan
from stagespan import cli

with stagespan.span("decode"):
    pass
stagespan.print_timing_summary()
sys.argv[1:] = ["analyze", "trace.json"]
cli.main()
"""


@pytest.mark.slow
@pytest.mark.wheel
def test_a_packed_program_times_and_analyses(tmp_path: Path) -> None:
    # GIVEN an installed wheel (PyInstaller does not see the files of an editable installation)
    pytest.importorskip("PyInstaller", reason="PyInstaller is not installed")
    if Path(_core.__file__).parent != Path(stagespan.__file__).parent:
        pytest.skip("an editable installation: `nox -s python wheels` run it with a wheel")
    (tmp_path / "program.py").write_text(PROGRAM)
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 9}
    (tmp_path / "trace.json").write_text(f'{{"traceEvents": [{event}]}}'.replace("'", '"'))

    packing = ["--log-level", "ERROR", "--exclude-module", "torch", "program.py"]
    ran([sys.executable, "-m", "PyInstaller", *packing], cwd=tmp_path, timeout_s=600, status=0)
    done = ran([tmp_path / "dist/program/program"], cwd=tmp_path, env={}, status=0)

    # THEN it has timed its stage, and has found the modules that are imported by name
    assert "Timing report, 1 stage" in done.stdout
    assert "matrix products 100 %" in done.stdout
