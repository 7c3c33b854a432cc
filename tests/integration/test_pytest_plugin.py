"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TEST = """
    import json, pathlib
    import pytest

    @pytest.mark.stage_limit(ms={ms}, regress={regress!r})
    def test_decode(stage_bench):
        times = stage_bench.check(json.loads(pathlib.Path("samples.json").read_text()))
        assert times.count == 60

    def test_measured(stage_bench):
        times = stage_bench(sum, range(1000), most_seconds=0.2)
        assert times.count >= 20 and times.median_ms > 0
"""


class Project:
    """A folder with one test file, and what it is given to check."""

    def __init__(self, folder: Path, ms: float | None = None, regress: Any = "5%") -> None:
        self.folder = folder
        self.baseline = folder / "baseline.json"
        text = textwrap.dedent(TEST).format(ms=ms, regress=regress)
        (folder / "test_stage.py").write_text(text)

    def run(self, slowdown: float, *arguments: str) -> tuple[int, str]:
        random = np.random.default_rng(round(slowdown * 100))
        times = 10 * slowdown * np.exp(np.abs(random.normal(0, 0.06, 60)))
        (self.folder / "samples.json").write_text(json.dumps(list(times)))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr

    def write(self, *arguments: str) -> str:
        status, output = self.run(
            1.0, f"--stage-baseline={self.baseline}", "--stage-baseline-write", *arguments
        )
        assert status == 0, output
        return output


def test_a_slower_stage_fails_and_an_unchanged_one_passes(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert "baseline.json: 2" in project.write()
    assert project.run(1.001, f"--stage-baseline={project.baseline}")[0] == 0
    status, output = project.run(1.1, f"--stage-baseline={project.baseline}")
    assert status == 1
    assert "test_stage.py::test_decode takes 11." in output
    assert "against the baseline's 10." in output
    # AND the reason is that of a change beyond both: neither tolerated, nor noise
    assert re.search(r"\+(9|10|11)\.\d% against .*: .*\btolerance\b.*\bnoise\b", output)


def test_the_baseline_names_its_version_and_machine(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write()
    content = json.loads(project.baseline.read_text())
    assert (content["schema_version"], content["kind"]) == (1, "stagespan baseline")
    assert {"cpu", "cpu_count", "platform", "torch"} <= content["environment"].keys()
    assert "hostname" not in content["environment"]
    assert len(content["stages"]["test_stage.py::test_decode"]["samples_ms"]) == 60


def test_a_baseline_of_another_machine_is_warned_of_and_replaced(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write()
    content = json.loads(project.baseline.read_text())
    content["environment"]["cpu"] = "another one"
    content["stages"]["gone"] = {"samples_ms": [1.0]}
    project.baseline.write_text(json.dumps(content))
    status, output = project.run(1.0, f"--stage-baseline={project.baseline}")
    assert status == 0
    assert "The machines differ, so the times do not compare: cpu another one before" in output
    assert "of another machine and were left out" in project.write()
    assert "gone" not in json.loads(project.baseline.read_text())["stages"]


def test_a_limit_in_milliseconds_needs_no_baseline(tmp_path: Path) -> None:
    assert Project(tmp_path, ms=11.0).run(1.0)[0] == 0
    status, output = Project(tmp_path, ms=9.0).run(1.0)
    assert status == 1
    assert "9.000 ms" in output


def test_without_a_baseline_the_comparison_is_left_out_with_a_warning(tmp_path: Path) -> None:
    status, output = Project(tmp_path).run(1.0)
    assert status == 0
    assert "was not compared: pass --stage-baseline=FILE." in output


def test_a_stage_that_the_baseline_lacks_fails(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("-k", "measured")
    status, output = project.run(1.0, f"--stage-baseline={project.baseline}")
    assert status == 1
    assert "is not in the baseline" in output


@pytest.mark.parametrize(
    "content", ["", "{}", '{"kind": "stagespan baseline"}', '{"stages": {"a": {"samples_ms": []}}}']
)
def test_an_empty_baseline_fails_in_a_sentence_and_is_written_over(
    content: str, tmp_path: Path
) -> None:
    project = Project(tmp_path)
    project.baseline.write_text(content)
    status, output = project.run(1.0, f"--stage-baseline={project.baseline}")
    assert status == 1
    assert re.search(r"baseline\.json is (empty|a baseline without times): write it again", output)
    assert "Traceback" not in output
    assert "Error" not in output
    assert "baseline.json: 2" in project.write()


def test_another_file_is_not_written_over(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.baseline.write_text('{"answer": 42}')
    status, output = project.run(
        1.0, f"--stage-baseline={project.baseline}", "--stage-baseline-write"
    )
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "no measurements were written" in output
    assert project.baseline.read_text() == '{"answer": 42}'


def test_wrong_limits_are_refused(tmp_path: Path) -> None:
    status, output = Project(tmp_path, regress="much").run(1.0)
    assert status == 1
    assert "stage_limit: 'much' is not a share: write 5% or 0.05." in output


def test_workers_of_xdist_write_one_baseline(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("-n", "2")
    assert len(json.loads(project.baseline.read_text())["stages"]) == 2
