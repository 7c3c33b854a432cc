"""The owners of subjects that docs/internals/design.md names exist."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

DESIGN = Path(__file__).resolve().parents[2] / "docs" / "internals" / "design.md"


def owners() -> list[str]:
    section = DESIGN.read_text().split("## Who decides what", 1)[1].split("\n## ", 1)[0]
    return [name for row in section.splitlines() for name in re.findall(r"`(stagespan\.\S+)`", row)]


def test_each_row_names_an_owner() -> None:
    section = DESIGN.read_text().split("## Who decides what", 1)[1].split("\n## ", 1)[0]
    rows = [row for row in section.splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 10
    assert [row for row in rows if row[2] != "-" and "`stagespan." not in row] == []


@pytest.mark.parametrize("name", owners())
def test_an_owner_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert callable(getattr(import_module(module), attribute))
