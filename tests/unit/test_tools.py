"""The scripts behind the Makefile: what they repair, and what they hash."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module(name)


def fake_venv(folder: Path, answer: str, status: int = 0) -> Path:
    """Create a folder whose interpreter gives the same answer to every question."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{answer}'\nexit {status}\n")
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("answer", "status", "problem"),
    [
        ("", 1, "does not run"),
        ("3.1.4 {venv}", 0, "made with Python 3.1.4"),
        ("{own} /somewhere/else", 0, "moved here"),
        ("{own} {venv}", 0, None),
    ],
)
def test_venv_problems_are_named(
    answer: str, status: int, problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a .venv whose interpreter gives this answer
    bootstrap = load("bootstrap", monkeypatch)
    venv = tmp_path / "venv"
    said = answer.format(own=platform.python_version(), venv=venv)
    monkeypatch.setattr(bootstrap, "VENV", venv)
    monkeypatch.setattr(bootstrap, "VENV_PYTHON", fake_venv(venv, said, status))

    # WHEN it is checked
    found = bootstrap.venv_problem()

    # THEN its problem is reported, and none for a good one
    assert (found is None) if problem is None else (problem in found)


@pytest.mark.slow
def test_incomplete_venv_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a .venv of which only the folder was created
    bootstrap = load("bootstrap", monkeypatch)
    venv = tmp_path / "venv"
    (venv / "lib").mkdir(parents=True)
    (venv / "lib" / "left").write_text("over")
    monkeypatch.setattr(bootstrap, "VENV", venv)
    monkeypatch.setattr(bootstrap, "VENV_PYTHON", venv / "bin" / "python")
    monkeypatch.setattr("common.LOGS", tmp_path / "logs")

    # WHEN it is set up
    bootstrap.make_venv()

    # THEN it works, and nothing of the old one is left
    assert bootstrap.venv_problem() is None
    assert not (venv / "lib" / "left").exists()


def test_stamp_of_another_venv_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a stamp that was written for one .venv
    bootstrap = load("bootstrap", monkeypatch)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "STATE", tmp_path)
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / "stamp.json")
    (tmp_path / "pyvenv.cfg").write_text("one")
    bootstrap.write_stamp({"requirements": "abc"})
    assert bootstrap.read_stamp()["requirements"] == "abc"

    # WHEN another one is in its place
    (tmp_path / "other.cfg").write_text("two")
    os.replace(tmp_path / "other.cfg", tmp_path / "pyvenv.cfg")

    # THEN the stamp does not count
    assert bootstrap.read_stamp() == {}


def test_fingerprint_follows_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a folder with a source and a compiled file
    common = load("common", monkeypatch)
    monkeypatch.setattr(common, "ROOT", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cpp").write_text("1")
    first = common.fingerprint(["src", "missing.md"])

    # WHEN a compiled file is added, a source changes, and a source is renamed
    (tmp_path / "src" / "a.so").write_text("built")
    with_compiled = common.fingerprint(["src", "missing.md"])
    (tmp_path / "src" / "a.cpp").write_text("2")
    changed = common.fingerprint(["src", "missing.md"])
    (tmp_path / "src" / "a.cpp").rename(tmp_path / "src" / "b.cpp")
    renamed = common.fingerprint(["src", "missing.md"])

    # THEN only the sources count, by name and content
    assert first == with_compiled
    assert len({first, changed, renamed}) == 3


def test_find_python_says_what_is_wrong_with_a_choice() -> None:
    # GIVEN an invalid PYTHON
    environment = {**os.environ, "PYTHON": "/no/such/python"}

    # WHEN the interpreter is searched
    done = subprocess.run(
        [str(TOOLS / "find_python.sh")], env=environment, capture_output=True, text=True
    )

    # THEN it is named in the error, and no other one is chosen
    assert done.returncode != 0
    assert done.stdout == ""
    assert "/no/such/python" in done.stderr


def test_find_python_returns_the_given_one() -> None:
    # GIVEN this interpreter as PYTHON
    environment = {**os.environ, "PYTHON": sys.executable}

    # WHEN the interpreter is searched
    done = subprocess.run(
        [str(TOOLS / "find_python.sh")], env=environment, capture_output=True, text=True
    )

    # THEN it is chosen
    assert done.stdout.strip() == sys.executable


def test_everything_but_torch_is_installed_without_a_version_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a machine without a version of torch: pip fails on every file that contains it
    bootstrap = load("bootstrap", monkeypatch)
    installed: list[str] = []

    def pip(command: list[Any], log: str, **_: Any) -> int:
        if "install" not in command:
            return 0
        wanted = Path(command[-1]).read_text()
        installed.append(wanted)
        return 1 if "torch==" in wanted else 0

    monkeypatch.setattr(bootstrap, "run", pip)
    monkeypatch.setattr(bootstrap, "STATE", tmp_path)
    monkeypatch.setattr(bootstrap, "log_text", lambda _: "ERROR: No matching distribution\n")
    monkeypatch.setattr(bootstrap, "write_stamp", lambda _: None)
    stamp: dict[str, Any] = {}

    # WHEN the development packages are installed
    bootstrap.install_requirements(stamp)

    # THEN all others are installed, and pip's own message about the missing one is kept
    assert "ruff==" in installed[-1]
    assert not any(name in installed[-1] for name in ("torch==", "diffusers==", "transformers=="))
    assert stamp["without_torch"].startswith("torch==")
    assert "No matching distribution" in stamp["without_torch"]
