"""The files that debug mode writes at exit: which and where; processes do not overwrite others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from recording import script_of

import preloaded
from running import PROGRAMS, ended, ran, start_command

REPORTING = PROGRAMS / "reporting.py"

ONE_STAGE = """
    import stagespan

    @stagespan.ProfilingContext4Debug("encode")
    def encode(text, scale=2):
        return len(text) * scale

    encode("ab", scale=3)
"""


def python(
    code: str | Sequence[str | Path],
    cwd: Path,
    *arguments: str,
    start: Sequence[str] = (sys.executable,),
    status: int = 0,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    command = [*start, *arguments, *script_of(code, cwd)]
    return ran(command, cwd=cwd, timeout_s=180, status=status, **variables)


def written(folder: Path) -> dict[str, Any]:
    """Read every file below a folder, by name."""
    return {p.name: json.loads(p.read_text()) for p in folder.rglob("*") if p.is_file()}


def test_debug_mode_writes_the_report_and_the_signatures(tmp_path: Path) -> None:
    done = python(
        ONE_STAGE, tmp_path, TELEFUSER_PROFILE_DEBUG="true", TELEFUSER_PIPELINE_NAME="wan"
    )
    (folder,) = (tmp_path / "work_dirs" / "profiler_output" / "wan").iterdir()
    assert re.fullmatch(r"\d{8}_\d{4}", folder.name)
    files = written(folder)
    assert sorted(files) == ["timing.json", "timing_io_signature.json"]
    assert files["timing.json"]["stages"]["encode"]["count"] == 1
    (signature,) = files["timing.json"]["stages"]["encode"]["signatures"]
    assert signature["count"] == 1
    inputs = files["timing_io_signature.json"]["stages"]["encode"]["input_signatures"]
    assert inputs["scale"] == 3
    # and with the names that the user knows
    place = folder.relative_to(tmp_path)
    assert done.stderr.splitlines()[-2:] == [
        f"[Profiler] Timing report saved to: {place}/timing.json",
        f"[Profiler] I/O signature saved to: {place}/timing_io_signature.json",
    ]


def test_debug_mode_imports_nothing_for_profiles(tmp_path: Path) -> None:
    # GIVEN a program that looks at the end, after the reports were written, what was imported
    code = """
        import atexit, sys

        @atexit.register
        def last():
            print([name for name in ("numpy", "stagespan.trace", "torch") if name in sys.modules])
    """
    done = python(textwrap.dedent(code) + textwrap.dedent(ONE_STAGE), tmp_path, STAGESPAN_DEBUG="1")
    assert "I/O signature saved" in done.stderr
    assert done.stdout == "[]\n"


def test_without_debug_mode_nothing_is_written(tmp_path: Path) -> None:
    done = python(ONE_STAGE, tmp_path)
    assert (done.stdout, done.stderr) == ("", "")
    assert [p.name for p in tmp_path.iterdir()] == ["script.py"]


def test_the_variable_names_the_file_also_without_debug_mode(tmp_path: Path) -> None:
    code = "import stagespan\nwith stagespan.span('s'):\n    pass"
    python(code, tmp_path, STAGESPAN_TIMING_REPORT="reports/mine.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["reports", "script.py"]
    files = written(tmp_path / "reports")
    assert list(files) == ["mine.json"]
    assert list(files["mine.json"]["stages"]) == ["s"]


def test_debug_mode_without_stages_writes_nothing(tmp_path: Path) -> None:
    python("import stagespan", tmp_path, STAGESPAN_DEBUG="1")
    assert [p.name for p in tmp_path.iterdir()] == ["script.py"]


def test_plain_spans_are_enough(tmp_path: Path) -> None:
    code = "import stagespan\nwith stagespan.span('s'):\n    pass"
    python(code, tmp_path, STAGESPAN_DEBUG="1", STAGESPAN_OUTPUT_DIR="out")
    files = written(tmp_path / "out")
    assert list(files) == ["timing.json"]
    assert list(files["timing.json"]["stages"]) == ["s"]


def test_debug_mode_that_is_switched_on_at_run_time(tmp_path: Path) -> None:
    code = ONE_STAGE.replace('encode("ab"', 'stagespan.set_debug(True)\n    encode("ab"')
    python(code, tmp_path, STAGESPAN_OUTPUT_DIR="out")
    assert sorted(written(tmp_path / "out")) == ["timing.json", "timing_io_signature.json"]


@pytest.mark.parametrize("ending", ["raise ValueError('broken')", "import sys; sys.exit(1)"])
def test_a_script_that_fails_still_gets_its_report(ending: str, tmp_path: Path) -> None:
    code = textwrap.dedent(ONE_STAGE) + ending
    python(code, tmp_path, status=1, STAGESPAN_DEBUG="1", STAGESPAN_OUTPUT_DIR="out")
    assert "timing.json" in written(tmp_path / "out")


def test_the_folder_that_the_program_sets_and_a_reset_hold(tmp_path: Path) -> None:
    python((REPORTING, "folder_and_reset"), tmp_path, STAGESPAN_DEBUG="1")
    (report,) = written(tmp_path / "here").values()
    assert (report["request_id"], report["metadata"]) == ("req_1", {"seed": 7})
    assert list(report["stages"]) == ["after"]


# --- several processes ----------------------------------------------------------------------------

WORKERS = """
    import multiprocessing, stagespan

    def work(name):
        with stagespan.span(name):
            pass

    if __name__ == "__main__":
        with stagespan.ProfilingContext4Debug("parent"):
            pass
        context = multiprocessing.get_context("METHOD")
        workers = [context.Process(target=work, args=(f"worker{i}",)) for i in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_write_separate_files(method: str, tmp_path: Path) -> None:
    python(
        WORKERS.replace("METHOD", method),
        tmp_path,
        STAGESPAN_DEBUG="1",
        STAGESPAN_PIPELINE_NAME="p",
    )
    (folder,) = (tmp_path / "work_dirs" / "profiler_output" / "p").iterdir()
    files = {n: f for n, f in written(folder).items() if "signature" not in n}
    assert list(files["timing.json"]["stages"]) == ["parent"]
    others = {name: file for name, file in files.items() if name != "timing.json"}
    assert sorted(next(iter(f["stages"])) for f in others.values()) == ["worker0", "worker1"]
    for name, file in others.items():
        assert name == f"timing_pid{file['environment']['pid']}.json"


def test_a_pool_that_is_closed_writes_too(tmp_path: Path) -> None:
    code = """
        import multiprocessing, stagespan

        def work(x):
            with stagespan.span("square"):
                return x * x

        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(work, range(20), chunksize=1) == [x * x for x in range(20)]
                pool.close()
                pool.join()
    """
    python(code, tmp_path, STAGESPAN_DEBUG="1", STAGESPAN_OUTPUT_DIR="out")
    reports = written(tmp_path / "out").values()
    assert sum(r["stages"]["square"]["count"] for r in reports) == 20


def test_ranks_have_their_number_in_their_names(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(ONE_STAGE))
    common = {"STAGESPAN_DEBUG": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    command = [sys.executable, "script.py"]
    ranks = [start_command(command, cwd=tmp_path, RANK=str(n), **common) for n in range(2)]
    errors = [ended(process)[1] for process in ranks]

    files = written(tmp_path / "work_dirs")
    assert sorted(files) == [
        *("timing_rank0.json", "timing_rank0_io_signature.json"),
        *("timing_rank1.json", "timing_rank1_io_signature.json"),
    ]
    assert [files[f"timing_rank{r}.json"]["rank"] for r in range(2)] == [0, 1]
    assert "Rank 1 - Function 'encode' Peak RSS" in errors[1]
    assert len(list((tmp_path / "work_dirs" / "profiler_output" / "default").iterdir())) == 1


def test_torchrun_itself(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="runs the real torchrun")
    python(
        ONE_STAGE,
        tmp_path,
        *("-m", "torch.distributed.run", "--nproc-per-node", "2"),
        start=preloaded.python(),
        STAGESPAN_DEBUG="1",
        OMP_NUM_THREADS="1",
    )
    files = written(tmp_path / "work_dirs")
    assert [name for name in sorted(files) if "signature" not in name] == [
        *("timing_rank0.json", "timing_rank1.json"),
    ]


def test_a_program_does_not_overwrite_files_of_another(tmp_path: Path) -> None:
    code = """
        import subprocess, sys, stagespan
        if len(sys.argv) < 2:
            subprocess.run([sys.executable, __file__, "inner"], check=True)
        with stagespan.span("inner" if len(sys.argv) > 1 else "outer"):
            pass
    """

    python(code, tmp_path, STAGESPAN_DEBUG="1", STAGESPAN_OUTPUT_DIR="out")
    files = written(tmp_path / "out")
    assert sorted(next(iter(f["stages"])) for f in files.values()) == ["inner", "outer"]
    # THEN its own name is free, whatever an earlier run left there
    (tmp_path / "out" / "timing.json").write_text("{}")
    os.utime(tmp_path / "out" / "timing.json", (0, 0))
    python(
        "import stagespan\nwith stagespan.span('again'): pass",
        tmp_path,
        STAGESPAN_DEBUG="1",
        STAGESPAN_OUTPUT_DIR="out",
    )
    assert list(written(tmp_path / "out")["timing.json"]["stages"]) == ["again"]


def test_the_report_at_exit_takes_the_place_of_the_programs_own_dump(tmp_path: Path) -> None:

    python((REPORTING, "own_dump"), tmp_path, STAGESPAN_DEBUG="1", STAGESPAN_OUTPUT_DIR="out")
    files = written(tmp_path / "out")
    assert sorted(files) == ["timing.json", "timing_io_signature.json"]
    assert sorted(files["timing.json"]["stages"]) == ["first", "second"]


def test_the_report_at_exit_leaves_a_dump_of_an_earlier_report(tmp_path: Path) -> None:

    python((REPORTING, "earlier_dump"), tmp_path, STAGESPAN_DEBUG="1", STAGESPAN_OUTPUT_DIR="out")
    reports = written(tmp_path / "out")
    assert list(reports.pop("timing.json")["stages"]) == ["first"]
    assert [list(report["stages"]) for report in reports.values()] == [["second"]]


def test_a_dump_that_another_process_replaced_is_not_overwritten(tmp_path: Path) -> None:
    code = """
        import subprocess, sys, time, stagespan
        inner = len(sys.argv) > 1
        with stagespan.span("inner" if inner else "outer"):
            pass
        if not inner:
            stagespan.dump_timing_report("out/timing.json")
            time.sleep(0.05)  # the inner program begins in a later tick of the system
            subprocess.run([sys.executable, __file__, "inner"], check=True)
            import json, os
            (name,) = (n for n in os.listdir("out") if n != "timing.json")
            os.replace(f"out/{name}", "out/timing.json")
    """
    python(code, tmp_path, STAGESPAN_DEBUG="1", STAGESPAN_OUTPUT_DIR="out")
    files = written(tmp_path / "out")
    assert sorted(next(iter(f["stages"])) for f in files.values()) == ["inner", "outer"]


# --- what cannot be written -----------------------------------------------------------------------


def test_a_folder_that_cannot_be_created_gives_a_warning_per_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")

    done = python(ONE_STAGE, tmp_path, STAGESPAN_DEBUG="1", STAGESPAN_OUTPUT_DIR="taken")
    # THEN the program ended normally, one sentence per file says why, and nothing was changed
    warnings = [line for line in done.stderr.splitlines() if "not saved" in line]
    assert len(warnings) == 2
    assert "taken" in warnings[0]
    assert (tmp_path / "taken").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["script.py", "taken"]
