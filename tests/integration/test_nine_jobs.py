"""Nine jobs of users, who type only what the docs say: an answer soon, and the right one.

Programs, commands and cells are read from the pages themselves. Of a program, those lines count
that are there for stagespan, and of the commands, those of stagespan.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_readme import ROOT, Block, Runner, blocks_of, commands_of, preloaded_programs
from test_sampling import rows_of

pytestmark = pytest.mark.slow
PROGRAMS = ROOT / "tests" / "programs"
MOST_COMMANDS, MOST_LINES = 2, 8
FOR_STAGESPAN = re.compile(r"stagespan|STAGESPAN|RequestMiddleware\(|Middleware,|\.add\(|\.chunk\(")


@dataclass
class Job:
    """What a user types of a page, and what the last command has to say."""

    page: str
    commands: list[str]
    """A part of each command, in order; the text is that of the page."""
    answer: str
    """A regular expression: what took the time, as it was planted."""
    needs: tuple[str, ...] = ()
    most_lines: int = MOST_LINES


JOBS = {
    "service": Job(
        "fastapi.md",
        ["uvicorn service:app", "--slowest 1", "--id r-31"],
        r"execution denoise .* \d\d\.\d %\n[\s\S]*denoise, steps 400 .* x its median",
        ("fastapi", "uvicorn"),
    ),
    "training of several ranks": Job(
        "training.md",
        ["stagespan show run"],
        r"Rank 1 spent .* as long in `augment`[\s\S]* wait about .* for it in `backward`",
        ("torch",),
    ),
    "C++": Job(
        "cpp.md",
        ["sh build.sh", "stagespan run"],
        r"├─ work +\d.*\n│  ├─ sleep +\d",
    ),
    "engine": Job(
        "engine.md",
        ["python engine.py", "--id r11"],
        r"where the time went .*\nqueue waiting ",
        most_lines=12,
    ),
    "trace of a colleague": Job(
        "analyze.md",
        ["python make_trace.py", "stagespan analyze trace.json"],
        r"\nhigh +Gain: at most [\s\S]* after a wait for the device[\s\S]* mostly at aten::item",
    ),
}


def blocks_on(page: str) -> list[Block]:
    return blocks_of((ROOT / "docs" / page).read_text("utf-8"))


def commands_on(page: str) -> list[tuple[str, bool]]:
    """Return the commands of a page, and whether they need torch."""
    return [
        (command, block.directive("torch") is not None)
        for block in blocks_on(page)
        if block.language == "console"
        for command, _ in commands_of(block.text)
    ]


def lines_for_stagespan(blocks: list[Block]) -> int:
    programs = [block.text for block in blocks if block.language in ("python", "cpp")]
    return sum(1 for text in programs for line in text.splitlines() if FOR_STAGESPAN.search(line))


def skip_without(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


@pytest.fixture
def typed(tmp_path: Path, folder: Path) -> Runner:
    return Runner("a job", tmp_path, lambda _: None, str(folder))


def output_of(runner: Runner, command: str, needs_torch: bool = False) -> str:
    programs = preloaded_programs() if needs_torch else None
    command = runner.with_free_ports(command)
    done = runner.execute(["/bin/sh", "-c", command], {}, True, programs)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("job", JOBS.values(), ids=list(JOBS))
def test_a_page_leads_to_the_answer(job: Job, typed: Runner) -> None:
    skip_without(*job.needs)
    if job.page == "cpp.md" and shutil.which("c++") is None:
        pytest.skip("no C++ compiler (c++) on PATH")
    # GIVEN the programs of the page
    files = [block for block in blocks_on(job.page) if block.directive("file") is not None]
    assert lines_for_stagespan(files) <= job.most_lines
    for block in files:
        typed.write(block)
    # WHEN its commands are typed
    on_page = commands_on(job.page)
    chosen = [next(one for one in on_page if part in one[0]) for part in job.commands]
    assert sum(command.count("stagespan ") for command, _ in chosen) <= MOST_COMMANDS
    outputs = [output_of(typed, command, needs_torch) for command, needs_torch in chosen]
    # THEN the last one names what took the time
    assert re.search(job.answer, outputs[-1]), outputs[-1]


@pytest.mark.parametrize(
    ("program", "needs", "answers"),
    [
        ("newcomer.py", "torch", ["Adam.__init__", "import torch._dynamo"]),
        pytest.param(
            *("collecting_diffusers.py", "diffusers", ["garbage collection"]),
            marks=pytest.mark.full,
        ),
        pytest.param(
            *("tokenizing_transformers.py", "transformers"),
            ["prompt > PreTrainedTokenizerBase.encode"],
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_script_without_names_needs_one_command(
    program: str, needs: str, answers: list[str], typed: Runner
) -> None:
    skip_without(needs)
    # GIVEN a script that knows nothing of stagespan, and the first command of the page
    shutil.copy(PROGRAMS / program, typed.folder / "script.py")
    command, _ = commands_on("slow_script.md")[0]
    assert command == "stagespan run reviews.py"
    # WHEN it is typed for this script
    printed = output_of(typed, command.replace("reviews.py", "script.py"))
    # THEN the first three rows below the imports name what takes the time
    rows = rows_of(printed)
    assert all(any(answer in row for row in rows[:3]) for answer in answers), printed


def test_a_cell_of_a_notebook_needs_one_magic(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    pytest.importorskip("nbclient")
    from test_cells import BUSY, executed, texts_of

    # GIVEN the first two cells of the page
    cells = [block.text for block in blocks_on("notebook.md") if block.language == "ipython"]
    load, cell = cells[:2]
    assert (load, cell) == ("%load_ext stagespan\n", "%%stagespan\nmain()\n")
    # WHEN they are typed in a notebook whose `main` calls `busy`
    *_, shown = executed(BUSY, cell, folder=tmp_path)
    # THEN the table below the cell names it
    assert re.search(r"busy +\d", "\n".join(texts_of(shown)))


def test_a_program_of_telefuser_changes_its_import(typed: Runner) -> None:
    # GIVEN the path from which the page imports
    (line,) = {
        line.split(" import")[0]
        for block in blocks_on("telefuser.md")
        for line in block.text.splitlines()
        if line.startswith("from stagespan.compat.telefuser.profiler import")
    }
    program = f"""
        {line} import ProfilingContext4Debug, get_timing_report
        import time

        @ProfilingContext4Debug("encode")
        def encode():
            time.sleep(0.01)

        @ProfilingContext4Debug("decode")
        def decode():
            time.sleep(0.1)

        for _ in range(3):
            encode()
            decode()
        stages = get_timing_report()["stages"]
        print(max(stages, key=lambda name: stages[name]["duration_ms"]))
    """
    (typed.folder / "job.py").write_text(textwrap.dedent(program))
    # WHEN it runs in TeleFuser's debug mode THEN the report names the slow stage
    printed = output_of(typed, f"TELEFUSER_PROFILE_DEBUG=true {sys.executable} job.py 2> /dev/null")
    assert printed.split() == ["decode"]
