"""`--factory` finds the captured stage in the pipeline that the factory returns."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import preloaded
from running import PROGRAMS, ran
from stagespan.cli import command
from stagespan.signature import SignatureFile, StageSignature, capture

torch = pytest.importorskip("torch")

PIPELINES = PROGRAMS / "refining.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    shutil.copy(PIPELINES, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # GIVEN a method that was captured in a program that ran as a script
    target = {"module": "__main__", "qualname": "Refine.process", "of": "__main__:Refine"}
    stage = StageSignature("refine", {"x": capture(torch.zeros(8, 4))}, target=target)
    SignatureFile({"refine": stage}).write("timing_io_signature.json")
    yield tmp_path
    sys.modules.pop("refining", None)


def bench(factory: str) -> Any:
    arguments = ["bench", ".", "--factory", f"refining:{factory}", "--json"]
    arguments += ["--warmup", "1", "--timing-steps", "1", "--output", "out"]
    return CliRunner().invoke(command, arguments, prog_name="stagespan")


@pytest.mark.parametrize(
    "factory", ["get_one", "get_one.held.stages.all.0", "get_two.held.stages.all.1"]
)
def test_the_stage_is_found_by_its_class_or_named(folder: Path, factory: str) -> None:
    done = bench(factory)
    assert done.exit_code == 0, done.output
    blocked = "import runpy, sys; sys.modules['stagespan'] = None; sys.path.append('.'); "
    program = f"{blocked}runpy.run_path('out/profile_refine.py', run_name='__main__')"
    options = ["--factory", f"refining:{factory}", "--timing-steps", "1", "--no-profile"]
    script = ran([*preloaded.python(), "-c", program, *options], timeout_s=300)

    assert json.loads(done.stdout)["iteration"].startswith("one whole call of Refine.process")
    assert script.returncode == 0, script.stderr
    assert "Refine.process" in script.stdout


def test_several_stages_of_the_class_are_listed(folder: Path) -> None:
    done = bench("get_two")

    # THEN the sentence names both, as --factory takes them
    assert done.exit_code == 2
    for number in (0, 1):
        assert f"refining:get_two.held.stages.all.{number}" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_pipeline_without_such_a_stage_is_refused(folder: Path) -> None:
    done = bench("get_none")
    assert done.exit_code == 2
    assert "was captured from 'Refine.process'" in done.stderr
