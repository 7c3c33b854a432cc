"""``stagespan show`` with files that stagespan has not written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stagespan.cli import command


def lines_of(path: Path, stages: dict[str, Any]) -> list[str]:
    path.write_text(json.dumps({"schema_version": 1, "stages": stages}))
    done = CliRunner().invoke(command, ["show", str(path)])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_arguments_that_are_none_take_one_line(tmp_path: Path) -> None:
    nodes = {f"option{n}": None for n in range(22)} | {"steps": 50}
    lines = lines_of(tmp_path / "call.json", {"call": {"input_signatures": nodes}})

    assert sum("None" in line for line in lines) == 1
    assert any("None: 22 arguments" in line for line in lines)
    assert any("steps: 50" in line for line in lines)


@pytest.mark.parametrize(
    ("stages", "left_out"),
    [
        ({"s": {"input_signatures": {}, "variants": [{}] * 20_000}}, "19,936 more"),
        ({"s": {"input_signatures": {f"x{n}": n for n in range(20_000)}}}, "19,744 more"),
        ({f"s{n}": {} for n in range(20_000)}, "15,904 more"),
    ],
    ids=["variants", "inputs", "stages"],
)
def test_a_file_of_many_entries_is_listed_in_part(
    tmp_path: Path, stages: dict[str, Any], left_out: str
) -> None:
    lines = lines_of(tmp_path / "many_io_signature.json", stages)

    assert len(lines) < 10_000
    assert sum(left_out in line for line in lines) == 1
