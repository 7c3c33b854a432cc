"""No process overwrites a file of another one, whoever started it and with whatever method."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import preloaded
from running import PROGRAMS, ended, ran, ready, start_command

# The parent does not import stagespan, as launchers and servers do not.
PARENT = PROGRAMS / "starting_workers.py"
STAGES = """
    def work(i):
        import os, stagespan
        with stagespan.ProfilingContext4Debug("work"):
            pass
        @stagespan.ProfilingContext4Debug("call")
        def call(number):
            return number
        return call(i)
"""


def run(
    folder: Path,
    program: str | Path,
    *arguments: str,
    python: Sequence[str] = (sys.executable,),
    **variables: str,
) -> None:
    text = program.read_text() if isinstance(program, Path) else textwrap.dedent(program)
    (folder / "stages.py").write_text(textwrap.dedent(STAGES))
    (folder / "program.py").write_text(text)
    ran([*python, "program.py", *arguments], cwd=folder, status=0, STAGESPAN_DEBUG="1", **variables)


def reports(folder: Path) -> dict[str, Any]:
    """Return the timing reports below a folder, by name."""
    found = {path.name: json.loads(path.read_text()) for path in folder.rglob("timing*.json")}
    return {name: file for name, file in found.items() if not name.endswith("signature.json")}


@pytest.mark.parametrize(
    "way",
    [
        *("process-spawn", "process-forkserver", "process-fork"),
        *("executor-spawn", "executor-forkserver", "pool-spawn", "loky"),
    ],
)
def test_workers_of_a_program_without_stagespan_have_their_pid_in_their_names(
    way: str, tmp_path: Path
) -> None:
    if way == "loky":
        pytest.importorskip("joblib")
    run(tmp_path, PARENT, way)

    found = reports(tmp_path / "work_dirs")
    assert len(list((tmp_path / "work_dirs" / "profiler_output" / "default").iterdir())) == 1
    assert sum(file["stages"]["work"]["count"] for file in found.values()) == 2
    for name, file in found.items():
        assert name == f"timing_pid{file['environment']['pid']}.json"
        signatures = name.replace(".json", "_io_signature.json")
        assert len(list(tmp_path.rglob(signatures))) == 1


PROFILED = PROGRAMS / "profiled_workers.py"


def test_traces_and_breakdowns_of_workers_have_their_pid_in_their_names(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run(
        tmp_path,
        PROFILED,
        python=preloaded.python(),
        STAGESPAN_PROFILER_NAMES="work",
        STAGESPAN_PROFILER_RUNS="1",
        STAGESPAN_OUTPUT_DIR="out",
        OMP_NUM_THREADS="1",
    )
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    pids = [file["environment"]["pid"] for file in reports(tmp_path / "out").values()]
    kinds = ("work_pid{}_breakdown.json", "work_pid{}_trace.json.gz", "timing_pid{}.json")
    assert len(pids) == 2
    assert written == sorted(kind.format(pid) for kind in kinds for pid in pids)
    launches = [
        json.loads(path.read_text())["num_launches"] for path in tmp_path.rglob("*breakdown.json")
    ]
    assert len(set(launches)) == 2


MEETING = """
    import os, sys, stagespan
    from stages import work

    work(1)
    folder = stagespan.get_profiler_output_dir()
    from stagespan.process import run
    print("kept" if run.whose_file(folder) == "" else "added", flush=True)
    sys.stdin.readline()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    (folder / "stages.py").write_text(textwrap.dedent(STAGES))
    (folder / "program.py").write_text(textwrap.dedent(MEETING))
    variables = {"STAGESPAN_DEBUG": "1", "STAGESPAN_OUTPUT_DIR": "out"}
    return start_command([sys.executable, "program.py"], cwd=folder, **variables)


def test_programs_that_meet_in_one_folder(tmp_path: Path) -> None:
    first, second = start(tmp_path), start(tmp_path)
    names = {program.pid: ready(program) for program in (first, second)}
    # THEN one of them keeps the plain names, whichever ends first
    assert sorted(names.values()) == ["added", "kept"]
    for program in (first, second):
        ended(program, 0, input="\n")
    (second_pid,) = (pid for pid, name in names.items() if name == "added")
    stems = ("timing", f"timing_pid{second_pid}")
    expected = [f"{stem}{part}.json" for stem in stems for part in ("", "_io_signature")]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(expected)
    for name, file in reports(tmp_path / "out").items():
        assert ("_pid" in name) == (file["environment"]["pid"] == second_pid)
    third = start(tmp_path)
    third.communicate("\n", timeout=60)
    assert reports(tmp_path / "out")["timing.json"]["environment"]["pid"] == third.pid


def test_a_program_that_ended_meanwhile_keeps_its_files(tmp_path: Path) -> None:
    code = """
        import subprocess, sys
        from stages import work
        if len(sys.argv) < 2:
            subprocess.run([sys.executable, __file__, "inner"], check=True)
        work(1)
    """
    run(tmp_path, code, STAGESPAN_OUTPUT_DIR="out")
    # THEN the later writer has one suffix for all of its files
    found = reports(tmp_path / "out")
    (other,) = (name for name in found if name != "timing.json")
    assert other == f"timing_pid{found[other]['environment']['pid']}.json"
    assert (tmp_path / "out" / other.replace(".json", "_io_signature.json")).exists()
    assert len(list((tmp_path / "out").iterdir())) == 4


def test_runs_one_after_the_other_use_the_same_names(tmp_path: Path) -> None:
    # GIVEN programs of which each starts as soon as the one before has ended
    for _ in range(3):
        run(tmp_path, "from stages import work\nwork(1)", STAGESPAN_OUTPUT_DIR="out")
    assert list(reports(tmp_path / "out")) == ["timing.json"]


def test_a_program_whose_text_looks_like_a_worker_is_none(tmp_path: Path) -> None:
    code = "from multiprocessing.pool import ThreadPool\nfrom stages import work\nwork(1)"
    (tmp_path / "stages.py").write_text(textwrap.dedent(STAGES))
    ran(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        status=0,
        STAGESPAN_DEBUG="1",
        STAGESPAN_OUTPUT_DIR="out",
    )
    assert list(reports(tmp_path / "out")) == ["timing.json"]


RERUN = """
    import sys, time
    if len(sys.argv) > 2:
        time.time = lambda: float(sys.argv[2])  # its minute is the name of the folder
    import stagespan
    with stagespan.ProfilingContext4Debug(sys.argv[1]):
        pass
    @stagespan.ProfilingContext4Debug("call")
    def call(number):
        return number
    call(1)
"""


def test_runs_of_the_same_minute_overwrite_nothing(tmp_path: Path) -> None:
    # GIVEN a program that runs three times within a minute, in the default folder
    now_s = str(time.time())
    for stage in ("first", "second", "third"):
        run(tmp_path, RERUN, stage, now_s)

    (folder,) = (tmp_path / "work_dirs" / "profiler_output" / "default").iterdir()
    found = reports(folder)
    assert {name: stages["stages"].keys() - {"call"} for name, stages in found.items()} == {
        "timing.json": {"first"},
        "timing_2.json": {"second"},
        "timing_3.json": {"third"},
    }
    signatures = {path.name for path in folder.glob("*_io_signature.json")}
    assert signatures == {name.replace(".json", "_io_signature.json") for name in found}

    for stage in ("first", "second"):
        run(tmp_path, RERUN, stage, STAGESPAN_OUTPUT_DIR="named")
    # THEN a later run replaces the files of the earlier one
    assert list(reports(tmp_path / "named")) == ["timing.json"]
