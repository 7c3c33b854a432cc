"""Signatures captured by real debug contexts around every kind of callable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import preloaded
from running import PROGRAMS, ran

pytest.importorskip("torch")

PROGRAM = PROGRAMS / "debugged.py"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("debug")
    done = ran(
        [*preloaded.python(), PROGRAM],
        cwd=folder,
        status=0,
        STAGESPAN_DEBUG="true",
        STAGESPAN_OUTPUT_DIR=str(folder),
    )
    return {**json.loads(done.stdout.splitlines()[-1]), "folder": folder}


NODE = {"shape": [5, 40], "dtype": "float32", "device": "cpu"}


def test_no_hook_failed(seen: Any) -> None:
    # GIVEN / WHEN every kind of callable has run
    assert seen["errors"] == 0


@pytest.mark.parametrize(
    ("stage", "inputs", "output"),
    [
        ("method", {"x": NODE, "steps": 3, "scale": 5.0, "cache": None}, {"x": NODE}),
        ("inference", {"x": NODE, "steps": 3}, NODE),
        ("class", {"x": NODE}, NODE),
        ("static", {"x": NODE}, NODE),
        ("coroutine", {"x": NODE}, {"$type": "tuple", "items": [NODE, 1]}),
        ("failing", {"x": NODE}, None),
        ("closure2", {"value": 4, "times": 2}, 16),
        ("closure3", {"value": 4, "times": 2}, 24),
        ("block", None, [NODE]),
    ],
)
def test_every_kind_of_callable_is_captured_by_name(
    seen: Any, stage: str, inputs: Any, output: Any
) -> None:
    # GIVEN a stage that ran in debug mode
    entry = seen["signatures"][stage]

    # THEN its arguments are there by name, its instance is not, and its result is
    if inputs is not None:
        assert entry["input_signatures"] == inputs
    assert entry["output_signature"] == output


def test_inputs_of_generators_modules_and_blocks_are_captured(seen: Any) -> None:
    entries = {name: entry["input_signatures"] for name, entry in seen["signatures"].items()}

    assert entries["generator"] == {"x": NODE}
    assert entries["module"] == {"input": NODE}
    assert entries["block"]["ids"]["value_range"] == [0, 99]
    assert entries["block"]["mode"] == "fast"
    assert "always" not in entries


def test_one_signature_however_the_arguments_were_passed(seen: Any) -> None:
    assert seen["signatures"]["method"]["count"] == 2
    assert seen["first"].count("method") == 1


def test_the_file_is_written_at_exit(seen: Any) -> None:
    # GIVEN a run in debug mode with an output folder
    path = Path(seen["folder"]) / "timing_io_signature.json"

    assert json.loads(path.read_text())["stages"]["method"]["count"] == 2
