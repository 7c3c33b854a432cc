"""`stagespan show` of recordings and of folders, and `compare` of folders."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from recorded_process import command_here, started
from recording import python

from running import PROGRAMS, end, ran

LIVE = PROGRAMS / "live.py"


def test_the_report_of_a_process(folder: Path, tmp_path: Path) -> None:
    process = started(LIVE, "five_steps")
    (file,) = folder.glob("*.stagespan")
    by_pid, by_file = (
        command_here("show", which, "--stages") for which in (str(process.pid), str(file))
    )
    to_page = command_here(
        "show", str(process.pid), "--stages", "--html", str(tmp_path / "page.html")
    )
    end(process)
    for found in (by_pid, by_file):
        assert found.returncode == 0, found.stderr
        lines = found.stdout.splitlines()
        assert lines[0].startswith(f"Process {process.pid} (live.py five_steps) is alive.")
        assert lines[1].startswith("Timing report, 2 stages, wall clock ")
        (step,) = (line.split() for line in lines if line.startswith("step "))
        assert step[4] == "5"
        assert any("forward" in line and not line.startswith("forward") for line in lines)
    assert to_page.returncode == 0, to_page.stderr
    gone = command_here("show", "4194304", "--stages")
    assert gone.returncode == 2
    assert "There is no process 4194304" in gone.stderr


RUN = """
    import stagespan, time
    from stagespan import ProfilingContext4Debug
    now = time.time_ns()
    for i in range(20):
        stagespan.record("augment", now, now + AUGMENT_MS * 1_000_000)
        stagespan.record("forward", now, now + 4_000_000)
    with ProfilingContext4Debug("once"):
        pass
"""


def reports(folder: Path, augment_ms: list[int], **variables: str) -> None:
    """Let a process for each number write a report with that mean time of a stage."""
    for rank, ms in enumerate(augment_ms):
        named = {name: value.format(rank=rank) for name, value in variables.items()}
        python(
            RUN.replace("AUGMENT_MS", str(ms)),
            folder,
            **{"STAGESPAN_OUTPUT_DIR": str(folder / "run"), **named},
        )


def test_the_reports_of_ranks_are_put_side_by_side(tmp_path: Path) -> None:
    reports(
        tmp_path,
        [2, 30, 2],
        STAGESPAN_TIMING_REPORT="run/timing.json",
        RANK="{rank}",
        WORLD_SIZE="3",
    )
    done = command_here("show", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    # THEN each has a row with its counts and times, and the slow one is named
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert [row[1] for row in rows] == ["0", "1", "2"]
    assert [" ".join(row[4:8]) for row in rows] == ["20 x 2.0 ms", "20 x 30 ms", "20 x 2.0 ms"]
    said = " ".join(done.stdout.split())
    assert "Rank 1 spent 15x as long in `augment` as the other ranks (a run took 30.0 ms" in said
    assert "in `forward`" not in said


def test_the_reports_of_workers_are_put_side_by_side(tmp_path: Path) -> None:
    reports(tmp_path, [2, 30], STAGESPAN_TIMING_REPORT="run/timing_{rank}.json")
    done = command_here("show", str(tmp_path / "run"))
    # THEN they have their process ids, and are not compared
    pids = [
        json.loads(path.read_text())["environment"]["pid"]
        for path in sorted((tmp_path / "run").glob("timing_?.json"))
    ]
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("pid ")]
    assert [int(row[1]) for row in rows] == pids
    assert "as long" not in done.stdout


# --- bench folders --------------------------------------------------------------------------------


def bench(stage: str, ms: float) -> dict[str, Any]:
    """Return a bench result."""
    times = [ms + 0.001 * i for i in range(20)]
    return {
        "schema_version": 1,
        "stage": stage,
        "adapter": "forward",
        "step": None,
        "times_ms": times,
        "timing_ms": {"median": ms},
    }


def test_folders_of_bench_results_are_compared(tmp_path: Path) -> None:
    for name, factor in (("before", 1), ("after", 2)):
        (tmp_path / name).mkdir()
        for stage, ms in (("encode", 5.0), ("decode", 7.0)):
            changed = ms * (factor if stage == "decode" else 1)
            file = tmp_path / name / f"{stage}_bench.json"
            file.write_text(json.dumps(bench(stage, changed)))
    done = command_here("compare", str(tmp_path / "before"), str(tmp_path / "after"))
    assert done.returncode == 1, done.stderr
    assert "1 slower, 1 unchanged" in " ".join(done.stdout.split())
    (tmp_path / "after" / "again_bench.json").write_text(json.dumps(bench("decode", 7.0)))
    done = command_here("compare", str(tmp_path / "before"), str(tmp_path / "after"))
    assert done.returncode == 2
    assert "contains several results of one stage" in done.stderr


@pytest.mark.parametrize("by_command", [False, True])
def test_the_time_of_a_program_begins_with_the_program(by_command: bool, tmp_path: Path) -> None:
    # GIVEN a program that notes how old its process is, after a slow start of the interpreter
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(1)")
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent("""
        import json, stagespan
        with stagespan.span("work"):
            pass
        wall_clock_s = stagespan.timing_report()["wall_clock_ms"] / 1e3
        up_s = float(open("/proc/uptime").read().split()[0])
        began_s = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) / 100
        print(json.dumps([wall_clock_s, up_s - began_s]))
        """)
    )
    command = ["-m", "stagespan", "run"] if by_command else []
    done = ran([sys.executable, *command, str(script)], status=0, PYTHONPATH=str(tmp_path))
    # THEN the start is not in the time of the report
    wall_clock_s, age_s = json.loads(done.stdout)
    assert 0 < wall_clock_s < age_s - 0.9
