"""docs/production.md lists every cause of losses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stagespan

PAGE = Path(__file__).parents[2] / "docs" / "production.md"


@pytest.mark.skipif(
    not PAGE.exists(), reason="docs/ is missing: run the tests in a clone of the repository"
)
def test_each_cause_of_a_loss_has_a_row() -> None:
    section = PAGE.read_text().partition("## What is lost")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)

    assert sorted(listed) == sorted(stagespan.lost())
