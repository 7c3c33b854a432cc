"""``stagespan bench --ncu``: its commands, running them, and one sentence for failures."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from ncu_files import KERNELS, wide_file

from click_runner import cli_runner
from stagespan.cli import command
from stagespan.cli.ncu import read_breakdown
from stagespan.harness import HarnessConfig
from stagespan.harness.bundle import replay_module
from stagespan.harness.output import write_script
from stagespan.harness.script import script_and_module
from stagespan.signature import StageSignature
from stagespan.trace.nsight import Top, TopKernels, measuring

ROWS = [
    {"name": "void at::native::copy<float, 4>(float*, float*)", "ms": 60.0, "cuda_ms": 60.0,
     "device_ms": 60.0, "cpu_ms": 0.5, "count": 12},
    {"name": "sm90_xmma_gemm", "ms": 25.0, "cuda_ms": 25.0, "cpu_ms": None, "count": 4},
    {"name": "void at::copy<half>(half*)", "ms": 5.0, "cuda_ms": 5.0, "cpu_ms": 0.1, "count": 8},
]  # fmt: skip

# A stand-in for ncu, which needs a device: it records its arguments and writes what ncu writes.
STAND_IN = """
import json, os, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
how = os.environ.get("STAND_IN", "")
if "--import" in words:
    sys.stdout.write(open({table!r}).read())
elif how == "permission":
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
          "Performance Counters on the target device 0.")
    sys.exit(1)
elif how == "crash":
    print("Segmentation fault")
    sys.exit(139)
elif how == "none":
    print("==WARNING== No kernels were profiled.")
else:
    print("==PROF== Profiling")
    open(words[words.index("--export") + 1], "wb").write(b"NVR\\0")
"""


def run(*arguments: object) -> tuple[int, str, str]:
    result = cli_runner().invoke(command, ["bench", *map(str, arguments), "--ncu"])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def breakdown(tmp_path: Path) -> Path:
    """The files that the harness writes for a stage."""
    path = tmp_path / "denoise_breakdown.json"
    path.write_text(
        json.dumps({
            "name": "denoise", "total_kernel_time_ms": 100.0, "num_kernels": 3,
            "num_launches": 24, "top_kernels": ROWS, "profile_steps": 2,
        })
    )  # fmt: skip
    (tmp_path / "profile_denoise.py").write_text("")
    return path


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stand-in for ncu on PATH; return the file that lists its calls."""
    folder, log, table = tmp_path / "bin", tmp_path / "calls", tmp_path / "table.csv"
    folder.mkdir()
    table.write_text(wide_file(KERNELS))
    program = folder / "ncu"
    code = tmp_path / "ncu.py"
    code.write_text(STAND_IN.format(log=str(log), table=str(table)))
    # A shell starts it, because the path of an interpreter after "#!" must not contain blanks.
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(code)])} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return log


@pytest.fixture
def no_ncu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


@pytest.mark.usefixtures("no_ncu")
def test_without_ncu_the_commands_are_printed(breakdown: Path) -> None:
    # GIVEN a machine without ncu
    # WHEN the two top kernels are requested
    status, out, error = run(breakdown, "--factory", "my.pipe line:get", "--top", 2)
    # THEN it says so, and prints the commands to run elsewhere, quoted for a shell
    assert status == 0
    assert error == "ncu is not installed here: run this where Nsight Compute is.\n"
    measure, export, read = out.splitlines()
    words = shlex.split(measure)
    assert words[0] == "ncu"
    assert after(words, "--target-processes") == "all"
    assert after(words, "--kernel-name-base") == "function"
    assert after(words, "--kernel-name") == "regex:(^|::)(copy|sm90_xmma_gemm)$"
    # Two iterations had 24 launches of functions with these names: 12 per step, of which the
    # warm-up's are skipped.
    assert after(words, "--launch-skip") == "12"
    assert after(words, "--launch-count") == "12"
    sections = [words[at + 1] for at, word in enumerate(words) if word == "--section"]
    assert {"SpeedOfLight", "Occupancy", "WarpStateStats", "SchedulerStats"} <= set(sections)
    folder = breakdown.parent
    assert after(words, "--export") == str(folder / "denoise_ncu.ncu-rep")
    assert words[words.index(sys.executable) :] == [
        sys.executable, str(folder / "profile_denoise.py"), "--factory", "my.pipe line:get",
        "--warmup", "1", "--timing-steps", "1", "--steps", "0",
    ]  # fmt: skip
    assert shlex.split(export) == [
        "ncu", "--import", str(folder / "denoise_ncu.ncu-rep"), "--csv", "--page", "raw", ">",
        str(folder / "denoise_ncu.csv"),
    ]  # fmt: skip
    assert shlex.split(read)[:4] == ["stagespan", "bench", str(breakdown), "--ncu"]


def test_options_reach_ncu(breakdown: Path, ncu: Path, tmp_path: Path) -> None:
    status, out, _ = run(
        breakdown, "--factory", "m:f", "--dry-run",
        "--warmup", 4, "--output", tmp_path / "out", "--step", "m:s",
    )  # fmt: skip
    words = shlex.split(out.splitlines()[0])
    assert status == 0
    assert (after(words, "--launch-skip"), after(words, "--launch-count")) == ("48", "12")
    assert after(words, "--export") == str(tmp_path / "out" / "denoise_ncu.ncu-rep")
    assert after(words, "--step") == "m:s"
    assert not ncu.exists()


def test_the_script_can_be_elsewhere(breakdown: Path, tmp_path: Path) -> None:
    # GIVEN a folder without the stage's script
    script = tmp_path / "mine.py"
    breakdown.with_name("profile_denoise.py").rename(script)
    status, out, _ = run(breakdown, "--factory", "m:f", "--dry-run", "--script", script)
    # THEN ncu measures it
    assert status == 0
    assert str(script) in shlex.split(out.splitlines()[0])


@pytest.mark.usefixtures("no_ncu")
def test_the_module_of_the_script_is_named(breakdown: Path) -> None:
    # GIVEN a script and the module that it imports
    script = breakdown.with_name("profile_denoise.py")
    text = script_and_module(StageSignature("denoise"), None, HarnessConfig(), stem="denoise")[0]
    module = replay_module(text)
    write_script(script, text, module)
    # WHEN the commands for another machine are printed
    status, _, error = run(breakdown, "--factory", "m:f", "--dry-run")
    # THEN a sentence names both files
    assert status == 0
    assert error == f"profile_denoise.py needs {module.file_name} in its folder: copy both.\n"


def test_ncu_is_run_and_read(
    breakdown: Path, ncu: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a machine with ncu WHEN the stage's kernels are measured
    status, out, error = run(breakdown, "--factory", "m:f", "--json")
    # THEN it ran twice: to measure, and to convert the report to CSV
    assert status == 0, error
    calls = [json.loads(line) for line in ncu.read_text().splitlines()]
    assert ["--import" in call for call in calls] == [False, True]
    assert (tmp_path / "denoise_ncu.csv").read_text() == wide_file(KERNELS)
    # AND the figures have the bound of each kernel
    assert "==PROF== Profiling" in capfd.readouterr().err
    found = json.loads(out)
    assert found["stage"] == "denoise"
    assert [each["bound"] for each in found["kernels"]][:2] == ["memory-bound", "compute-bound"]
    # A short name could match two kernels, the full name matches one.
    assert found["kernels"][0]["traced_percent"] == 60.0


def test_a_report_is_read_through_ncu(ncu: Path, tmp_path: Path) -> None:
    (tmp_path / "x.ncu-rep").write_bytes(b"NVR\0")
    (tmp_path / "x.csv").write_text("somebody's")
    status, out, _ = run("--report", tmp_path / "x.ncu-rep")
    assert status == 0
    assert (tmp_path / "x.csv").read_text() == "somebody's"
    assert "sm90_xmma_gemm" in out
    assert len(ncu.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("permission", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("none", "status 0 and wrote no report"),
        ("crash", "ended with status 139"),
    ],
)
def test_failures_of_ncu_are_one_sentence(
    how: str, says: str, breakdown: Path, ncu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", how)
    status, out, error = run(breakdown, "--factory", "m:f")
    assert (status, out) == (2, "")
    sentence = error.splitlines()[-1]
    assert sentence.startswith("Error: ncu")
    assert says in sentence
    assert ncu.exists()


def test_bad_input_is_one_sentence(breakdown: Path, tmp_path: Path) -> None:
    no_kernels = tmp_path / "cpu_breakdown.json"
    no_kernels.write_text('{"top_kernels": [{"name": "aten::mm", "ms": 1.0, "cuda_ms": 0.0}]}')
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "odd.json").write_text('{"top_kernels": [1]}')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    lonely = tmp_path / "lonely_breakdown.json"
    lonely.write_text(breakdown.read_text())
    for arguments, says in (
        ((), "Pass a {stage}_breakdown.json"),
        ((tmp_path / "none.json",), "does not exist"),
        ((tmp_path / "text.json",), "is not valid JSON"),
        ((tmp_path / "deep.json",), "is not valid JSON"),
        ((tmp_path / "list.json",), "is not a stage's breakdown.json"),
        ((tmp_path / "odd.json",), "is not a stage's breakdown.json"),
        ((no_kernels, "--factory", "m:f"), "no device kernels"),
        ((lonely, "--factory", "m:f"), "profile_lonely.py does not exist"),
        ((breakdown,), "--factory MODULE:CALLABLE"),
        ((breakdown, "--factory", "m:f", "--top", "0"), "'--top'"),
        (("--csv", tmp_path / "none.csv"), "cannot be read"),
        (("--report", tmp_path / "none.ncu-rep"), "none.ncu-rep"),
        (("--csv", tmp_path / "text.json"), "contains no kernels"),
    ):
        status, out, error = run(*arguments)
        assert (status, out) == (2, ""), arguments
        assert says in error, arguments
        assert len([line for line in error.splitlines() if line.startswith("Error: ")]) == 1


def test_names_in_a_filter_are_escaped() -> None:
    # GIVEN names with characters that have a meaning in patterns
    names = ["void a::f.g<int>(int)", "k[1]", "k$+", "x(y)"]
    top = TopKernels([Top(name) for name in names])
    found = after(measuring(top, len(names), 1, Path("r"), []), "--kernel-name")
    # THEN each matches only itself, with and without its namespace
    pattern = re.compile(found.removeprefix("regex:"))
    for name in ("f.g", "a::f.g", "k[1]", "k$+", "x"):
        assert pattern.search(name), name
    for name in ("fxg", "k1", "k", "xx", "f.gg"):
        assert not pattern.search(name), name


def test_breakdowns_of_older_versions(tmp_path: Path) -> None:
    # GIVEN an older file, which has neither counts nor steps
    path = tmp_path / "b.json"
    rows = [{"name": "k", "ms": 75.0, "cuda_ms": 75.0, "cpu_ms": 0.5}]
    content: dict[str, Any] = {"name": "s", "total_kernel_time_ms": 150.0, "top_kernels": rows}
    path.write_text(json.dumps(content))
    # WHEN the command is made THEN one launch of one iteration is measured
    top = read_breakdown(path)
    words = measuring(top, 1, 1, tmp_path / "r", ["script.py"])
    assert (after(words, "--launch-skip"), after(words, "--launch-count")) == ("1", "1")


def test_every_kind_of_output(tmp_path: Path) -> None:
    table = tmp_path / "ncu.csv"
    table.write_text(wide_file(KERNELS))
    status, out, _ = run("--csv", table)
    assert status == 0
    assert "4 launches of 4 kernels measured" in out
    _, as_json, _ = run("--csv", table, "--json")
    assert len(json.loads(as_json)["kernels"]) == 4
    _, as_markdown, _ = run("--csv", table, "--markdown")
    assert "| sm90_xmma_gemm | compute-bound |" in as_markdown
    file = tmp_path / "out.md"
    assert run("--csv", table, "--markdown", "-o", file)[:2] == (0, "")
    assert file.read_text() == as_markdown == run("--csv", table, "--markdown", "-")[1]
