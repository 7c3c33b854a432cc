"""Pages in files and pipes: their width, their lines, and the command's answers to mistakes."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from running import ran
from stagespan.cli import command


def stagespan(
    *arguments: str, cwd: Path, without: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    how = ["-m", "stagespan"]
    if without:  # as if the package were not installed
        hidden = f"import sys; sys.modules[{without!r}] = None"
        code = (
            "import importlib.util as u, sys\n"
            f"{hidden}\n"
            "real = u.find_spec\n"
            f"u.find_spec = lambda n, p=None: None if n == {without!r} else real(n, p)\n"
            "from stagespan.cli import main; main()"
        )
        how = ["-c", code]
    return ran([sys.executable, *how, *arguments], cwd=cwd, env={**environment, **variables})


def shown(
    page: str, columns: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Return the lines of a page that this process writes into a pipe."""
    monkeypatch.chdir(folder)
    done = CliRunner(env={"COLUMNS": columns}).invoke(command, PAGES[page])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def trace_of(kernels: int) -> dict[str, Any]:
    """Return a trace with idle time and kernels with long names."""
    events = []
    for i in range(kernels):
        name = (
            f"void some::very::long::name::of_a_kernel<{i % 5}, float, (int){i % 5}>(float const*)"
        )
        common = {"pid": 0, "tid": 7, "args": {"stream": 7, "device": 0, "correlation": i}}
        events.append(
            {"ph": "X", "cat": "kernel", "name": name, "ts": 100 * i, "dur": 20, **common}
        )
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        events.append({**launch, "ts": 100 * i - 10, "dur": 5, "args": {"correlation": i}})
    return {"traceEvents": events, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with a trace, and with the files of a run in debug mode."""
    tmp_path = tmp_path_factory.mktemp("pages")
    (tmp_path / "trace.json").write_text(json.dumps(trace_of(50)))
    (tmp_path / "run").mkdir()
    code = "import stagespan\nwith stagespan.ProfilingContext4Debug('a stage'):\n    pass\n"
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "STAGESPAN_DEBUG": "1", "STAGESPAN_OUTPUT_DIR": "run"},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return tmp_path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy of those files."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


PAGES = {
    "analyze": ("analyze", "trace.json"),
    "report": ("show", "run/timing.json"),
    "stages": ("show", "run/timing_io_signature.json"),
    "doctor": ("doctor", "--no-device"),
}


@pytest.mark.parametrize("page", ["analyze", "report", "stages"])
def test_a_page_in_a_pipe_has_no_trailing_spaces(page: str, folder: Path) -> None:
    done = stagespan(*PAGES[page], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3
    assert [line for line in done.stdout.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("width", [60, 133])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_in_a_pipe_has_the_width_of_columns(
    page: str, width: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert max(map(len, shown(page, str(width), folder, monkeypatch)[:-1])) <= width


def test_pages_are_100_wide_without_a_width(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = shown("analyze", None, folder, monkeypatch)
    assert 80 < max(map(len, wide)) <= 100
    assert shown("analyze", "wide", folder, monkeypatch) == wide


@pytest.mark.parametrize(
    ("word", "meant"),
    [("analyse", "analyze"), ("reports", "show"), ("Doctor", "doctor"), ("shw", "show")],
)
def test_a_misspelt_verb_is_answered_with_the_nearest_one(
    word: str, meant: str, tmp_path: Path
) -> None:
    done = stagespan(word, "x", cwd=tmp_path)
    assert done.returncode == 2
    assert f"No such command {word!r}; did you mean {meant!r}?" in done.stderr


def test_an_unknown_verb_is_answered_with_all_verbs(tmp_path: Path) -> None:
    done = stagespan("zzz", cwd=tmp_path)
    assert done.returncode == 2
    assert "the commands are run, show, top, ps, requests, bench" in done.stderr


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "cut.json"])
def test_a_trace_as_timing_report_is_refused_with_the_right_command(
    name: str, folder: Path
) -> None:
    # GIVEN a trace: plain, compressed, and truncated
    text = json.dumps(trace_of(50)).encode()
    (folder / "trace.json.gz").write_bytes(gzip.compress(text))
    (folder / "cut.json").write_bytes(text[:500])

    done = stagespan("compare", "run/timing.json", name, cwd=folder)

    assert done.returncode == 2
    assert f"{name} is a trace, not a timing report: use `stagespan analyze {name}`" in done.stderr
    assert f"`stagespan compare BEFORE {name}` for two traces" in done.stderr


def test_a_folder_can_be_given_for_the_only_report_in_it(folder: Path) -> None:
    assert stagespan("show", "run", cwd=folder).stdout.startswith("Timing report, 1 stage")
    against = stagespan("compare", "run", "run", cwd=folder).stdout
    assert against.startswith("run against run: 1 not known\n")
    # THEN a comparison needs the path of one
    report = (folder / "run" / "timing.json").read_text()
    (folder / "run" / "timing.json").unlink()
    for rank in range(2):
        (folder / "run" / f"timing_rank{rank}.json").write_text(report)
    done = stagespan("compare", "run", "run", cwd=folder)
    assert done.returncode == 2
    assert "run contains 2 timing reports: pass one of timing_rank0.json, timing_rank1.json" in (
        done.stderr
    )
    # AND if there is none, the page says so
    (folder / "empty").mkdir()
    done = stagespan("compare", "empty", "empty", cwd=folder)
    assert "empty contains no traces" in done.stderr


def test_jobs_without_joblib_are_refused(folder: Path) -> None:
    done = stagespan("analyze", "trace.json", "--jobs", "2", cwd=folder, without="joblib")
    assert done.returncode == 2
    assert "needs joblib (the extra 'ranks'): install it with `pip install joblib`" in done.stderr
    done = stagespan("analyze", "trace.json", "--jobs", "1", cwd=folder, without="joblib")
    assert done.returncode == 0
