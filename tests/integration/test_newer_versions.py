"""Files from newer versions of stagespan are refused by every reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recording import python

from stagespan.cli.ncu import read_breakdown
from stagespan.errors import StagespanError
from stagespan.harness.live import live_runs
from stagespan.report.baseline import read_baseline
from stagespan.report.changes import compare_files
from stagespan.report.reader import read_timing_report
from stagespan.signature.model import SignatureFile


@pytest.mark.parametrize("version", [2, 99, "1", 1.5, True])
@pytest.mark.parametrize("kind", ["timing", "signatures", "breakdown", "bench", "baseline"])
def test_a_file_of_a_newer_version_is_refused(kind: str, version: object, tmp_path: Path) -> None:
    contents: dict[str, dict[str, Any]] = {
        "timing": {"stages": {"a": {"duration_ms": 1.0, "count": 1}}},
        "signatures": {"stages": {}},
        "breakdown": {"top_kernels": [{"name": "k", "cuda_ms": 1.0, "ms": 1.0, "count": 1}]},
        "bench": {"stage": "a", "times_ms": [1.0, 1.1, 1.2]},
        "baseline": {"kind": "stagespan baseline", "stages": {"a": {"samples_ms": [1.0]}}},
    }
    file = tmp_path / "file.json"
    readers: list[Any] = {
        "timing": [read_timing_report, lambda path: compare_files(path, path)],
        "signatures": [SignatureFile.read],
        "breakdown": [read_breakdown, lambda path: compare_files(path, path)],
        "bench": [lambda path: compare_files(path, path)],
        "baseline": [read_baseline],
    }[kind]
    file.write_text(json.dumps({**contents[kind], "schema_version": 1}))
    for read in readers:
        read(file)
    file.write_text(json.dumps({**contents[kind], "schema_version": version}))
    for read in readers:
        with pytest.raises(StagespanError, match="update stagespan") as refused:
            read(file)
        assert repr(version) in str(refused.value)


def test_live_times_of_a_newer_version_are_not_used(tmp_path: Path) -> None:
    python(
        """
        import logging
        from stagespan import ProfilingContext4Debug, set_debug
        logging.basicConfig(level="ERROR")
        set_debug(True)
        for i in range(5):
            with ProfilingContext4Debug("stage") as span:
                span.inputs(x=1)
        """,
        tmp_path,
        STAGESPAN_OUTPUT_DIR=str(tmp_path / "run"),
        STAGESPAN_TIMING_REPORT="run/timing.json",
    )
    path = tmp_path / "run" / "timing_io_signature.json"
    stage = SignatureFile.read(path).stages["stage"]
    assert live_runs(path, stage)["count"] == 5
    timing = tmp_path / "run" / "timing.json"
    timing.write_text(json.dumps({**json.loads(timing.read_text()), "schema_version": 2}))
    assert (
        live_runs(path, stage)["missing"] == f"{str(timing)!r} is of a newer version of stagespan"
    )
