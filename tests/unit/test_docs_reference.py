"""Tests that docs/reference.md lists every public name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stagespan

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"


@pytest.mark.skipif(
    not PAGE.exists(), reason="docs/ is missing: run the tests in a clone of the repository"
)
def test_each_public_name_is_in_the_reference() -> None:
    listed = re.findall(r"^::: stagespan\.(\w+)$", PAGE.read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(stagespan.__all__)
