"""SIGTERM: reports are written, then the process ends as SIGTERM would have ended it."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from running import PROGRAMS, ended, ready, start_command

TERMINATED = PROGRAMS / "terminated.py"
OFF = {"STAGESPAN_DEBUG": ""}


class Program:
    """A program that is signalled after it has printed that it is ready."""

    def __init__(self, cwd: Path, *command: str | Path, **variables: str) -> None:
        self.out = cwd / "out"
        settings = {"STAGESPAN_DEBUG": "true", "STAGESPAN_OUTPUT_DIR": str(self.out)}
        self.process = start_command(
            [sys.executable, *command], cwd=cwd, **{**settings, **variables}
        )
        while ready(self.process) != "ready":
            pass

    def send(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self, status: int = -signal.SIGTERM) -> tuple[str, str]:
        """Return what the program wrote after it was ready. ``status`` is the expected one."""
        return ended(self.process, status)

    def files(self) -> dict[str, Any]:
        if not self.out.exists():
            return {}
        return {path.name: json.loads(path.read_text()) for path in self.out.iterdir()}

    def counts(self) -> dict[str, int]:
        stages = self.files()["timing.json"]["stages"]
        return {name: stage["count"] for name, stage in stages.items()}


def test_debug_mode_writes_its_files_before_sigterm_ends_the_process(tmp_path: Path) -> None:
    program = Program(tmp_path, TERMINATED, "wait")

    program.send()
    _, errors = program.ended()
    assert sorted(program.files()) == ["timing.json", "timing_io_signature.json"]
    assert program.counts() == {"encode": 1}
    assert errors.splitlines()[-2:] == [
        f"[Profiler] Timing report saved to: {tmp_path}/out/timing.json",
        f"[Profiler] I/O signature saved to: {tmp_path}/out/timing_io_signature.json",
    ]


@pytest.mark.parametrize(
    ("command", "signals", "variables"),
    [
        (["switched_on_by_a_thread"], 1, OFF),
        (["finds_the_default_action", "debug"], 1, {}),
        (["never_runs_python_again"], 1, {}),
        (["wait"], 2, {}),  # from a launcher that signals the process and its group
        (["signals_within_a_log_handler"], 0, {}),
        (["signals_at_exit"], 0, {}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_the_files_are_written(
    command: list[str], signals: int, variables: dict[str, str], tmp_path: Path
) -> None:
    program = Program(tmp_path, TERMINATED, *command, **variables)
    for _ in range(signals):
        program.send()
    program.ended()
    assert program.counts() == {"encode": 1}


def test_without_debug_mode_nothing_changes(tmp_path: Path) -> None:
    program = Program(tmp_path, TERMINATED, "finds_the_default_action", **OFF)
    program.send()
    assert program.ended() == ("", "")
    assert program.files() == {}


HANDLERS = {
    "exits": 3,
    "raises the signal again": -signal.SIGTERM,
    "restores what was there and raises the signal again": -signal.SIGTERM,
    "ends a loop, after which the main thread returns": 1,
}


@pytest.mark.parametrize("when", ["before debug mode", "later"])
@pytest.mark.parametrize("what", HANDLERS)
def test_the_programs_own_handler_is_called_and_the_files_are_written(
    what: str, when: str, tmp_path: Path
) -> None:
    program = Program(tmp_path, TERMINATED, "own_handler", what, when, **OFF)

    program.send()

    program.ended(HANDLERS[what])
    assert program.counts() == {"encode": 1}


def test_a_handler_that_does_not_end_the_program_is_kept(tmp_path: Path) -> None:
    program = Program(tmp_path, TERMINATED, "two_signals")

    program.send()
    time.sleep(0.3)
    program.send()
    # THEN it continues until it ends by itself, and writes then
    output, _ = program.ended(0)
    assert output == "False\n"
    assert program.counts() == {"encode": 1}


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    program = Program(tmp_path, TERMINATED, "ignores", **OFF)
    program.send()
    time.sleep(0.3)
    assert program.process.poll() is None
    program.send(signal.SIGINT)
    program.ended(-signal.SIGINT)


def test_an_interpreter_whose_lock_is_never_released(tmp_path: Path) -> None:
    # GIVEN a main thread that holds the interpreter's lock forever: nothing can be written
    program = Program(tmp_path, TERMINATED, "never_releases_the_lock")
    program.send()
    program.ended()


def test_a_second_signal_ends_a_process_that_takes_too_long(tmp_path: Path) -> None:
    # GIVEN a log handler that blocks, so that writing takes a long time
    program = Program(tmp_path, TERMINATED, "blocks_while_writing")
    program.send()
    assert ready(program.process) == "writing"
    began = time.monotonic()

    while program.process.poll() is None and time.monotonic() - began < 60:
        time.sleep(0.3)
        program.send()
    # THEN both files were written before the handler was called
    program.ended()
    assert sorted(program.files()) == ["timing.json", "timing_io_signature.json"]


def test_forked_children_write_separate_files(tmp_path: Path) -> None:
    # GIVEN a pool whose workers are ended by SIGTERM
    program = Program(tmp_path, TERMINATED, "pool")
    program.ended(0)

    reports = {name: file for name, file in program.files().items() if "signature" not in name}
    assert reports.pop("timing.json")["stages"]["encode"]["count"] == 1
    assert sum(report["stages"]["encode"]["count"] for report in reports.values()) == 8
    for name, report in reports.items():
        assert name == f"timing_pid{report['environment']['pid']}.json"


@pytest.mark.parametrize("command", ["forks_without_python", "starts_a_program"])
def test_children_have_the_default_action(command: str, tmp_path: Path) -> None:
    Program(tmp_path, TERMINATED, command).ended(0)


@pytest.mark.parametrize("debug", [False, True])
def test_stagespan_run_prints_its_results(debug: bool, tmp_path: Path) -> None:
    command = ["-m", "stagespan", "run", "--stage", "__main__:encode", "--output", "out"]
    command += ["--debug"] if debug else []
    program = Program(tmp_path, *command, PROGRAMS / "plain_encoder.py", **OFF)

    program.send()
    _, errors = program.ended()
    assert "Timing report, 1 stage" in errors
    assert program.counts() == {"encode": 1}
    assert ("timing_io_signature.json" in program.files()) is debug


@pytest.mark.parametrize("when", ["from the start", "while it serves"])
def test_uvicorn_which_raises_the_signal_again(when: str, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="runs the real uvicorn")
    variables = OFF if when == "while it serves" else {}
    program = Program(tmp_path, TERMINATED, "serves", when, **variables)
    time.sleep(0.5)

    program.send()
    # THEN it shuts down as usual, and the files are there
    program.ended()
    assert program.counts() == {"encode": 1}
