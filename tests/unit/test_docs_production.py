"""docs/losses.md lists every cause of losses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stagespan

PAGE = Path(__file__).parents[2] / "docs" / "losses.md"


@pytest.mark.skipif(
    not PAGE.exists(), reason="docs/ is missing: run the tests in a clone of the repository"
)
def test_each_cause_of_a_loss_has_a_row() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(stagespan.lost())
