"""`stagespan doctor` on a machine without an accelerator."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import preloaded
from running import ran
from stagespan.cli import command, examine


def test_one_page_and_a_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # GIVEN a separate process, which has torch if it is installed
    python = preloaded.python() if importlib.util.find_spec("torch") else [sys.executable]
    monkeypatch.chdir(tmp_path)
    done = ran([*python, "-m", "stagespan", "doctor"])
    # THEN the page fits on one screen, says what works, and changes nothing
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 60
    assert [line for line in lines if line != line.rstrip()] == []
    assert lines[-1] == "Everything that should work here works."
    for what in ("clock", "torch.profiler", "ncu", "perf events", "output folder"):
        assert any(what in line for line in lines), what
    assert list(tmp_path.iterdir()) == []


def test_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, ["doctor", "--json", "--no-device"])
    page = json.loads(done.output)
    assert done.exit_code == 0
    assert page["schema_version"] == 1
    assert page["works"] is True
    assert {found["state"] for found in page["findings"]} <= {"works", "absent", "note", "fails"}
    assert {"area", "name", "state", "text"} == set(page["findings"][0])


@pytest.mark.parametrize("text", ["5000", " 4096 ", "-1"])
def test_the_size_of_the_rings_is_the_actual_one(text: str, tmp_path: Path) -> None:
    # GIVEN a size that is rounded up, one with white space around it, and one that is refused
    code = (
        "import logging, sys; logging.disable()\n"
        "sys.modules['torch'] = None  # it takes seconds to import, and rings need none of it\n"
        "from stagespan import _core; from stagespan.cli import examine as doctor\n"
        "print(_core.arena_info()['ring_spans'])\n"
        "print(*(f.text for f in doctor.examine(use_device=False) if f.name == 'memory'))"
    )

    done = ran([sys.executable, "-c", code], cwd=tmp_path, STAGESPAN_RING_SPANS=text)

    real, told = done.stdout.splitlines()
    assert told.startswith(f"the latest {int(real):,} spans of each thread; "), done.stderr
    assert "address space" in told


@pytest.mark.parametrize("value", [None, "1"])
def test_no_color_turns_colours_off(
    value: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    variables = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": value}
    done = CliRunner(env=variables).invoke(command, ["doctor", "--no-device"])
    # THEN it has colours unless the variable is set
    assert bool(re.search("\x1b\\[[0-9;]*3[0-9]", done.output)) == (value is None)


def test_what_fails_gives_a_status_and_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # GIVEN an output folder that cannot be created, because a file has its name
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STAGESPAN_OUTPUT_DIR", str(tmp_path / "file" / "traces"))
    done = CliRunner().invoke(command, ["doctor", "--no-device"])
    assert done.exit_code == 1
    assert "Does not work: tools: output folder." in done.output


def test_a_check_that_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> examine._Rows:
        raise OSError("no such thing")
        yield

    monkeypatch.setattr(examine, "_tools", broken)
    found = examine.examine(use_device=False)
    assert found[-1] == examine.Check("tools", "-", "fails", "OSError: no such thing")
    assert not examine.Checks(found).works
