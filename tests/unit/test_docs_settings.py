"""docs/settings.md lists every variable as in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stagespan.settings import VARIABLES, Variable

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "settings.md"


def row(variable: Variable) -> list[str]:
    """Return the expected row of a variable in the table."""
    values = {
        "switch": "`true` or `false`",
        "text": "text",
        "names": "names, separated by commas",
        "count": f"{variable.least:,} to {variable.most:,}",
        "choice": ", ".join(f"`{choice}`" for choice in variable.choices),
    }[variable.kind]
    default = variable.default
    shown = "" if default in (None, ()) else f"`{str(default).lower()}`"
    also = ", ".join(f"`{alias}`" for alias in variable.aliases)
    return [f"`{variable.name}`", also, values, shown, variable.meaning]


def table() -> list[list[str]]:
    """Return the rows of the page's first table."""
    found = re.search(
        r"^\| variable \| also .*\n\|[-| ]+\|\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE
    )
    assert found, "the table of variables is missing"
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in found[1].splitlines()]


@pytest.mark.skipif(
    not PAGE.exists(), reason="docs/ is missing: run the tests in a clone of the repository"
)
def test_the_page_has_the_variables_of_the_code() -> None:
    expected = [row(variable) for variable in VARIABLES]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in expected)
    assert table() == expected, f"write these rows into {PAGE.name}:\n{lines}"


@pytest.mark.skipif(
    not PAGE.exists(), reason="docs/ is missing: run the tests in a clone of the repository"
)
def test_every_variable_in_the_sources_is_on_the_page() -> None:
    sources = [
        path
        for folder, kinds in (("python", (".py",)), ("csrc", (".cpp", ".h")))
        for path in (ROOT / folder).rglob("*")
        if path.suffix in kinds
    ]
    named = {
        name
        for path in sources
        for name in re.findall(r"\"(STAGESPAN_[A-Z_]+|TELEFUSER_[A-Z_]+)\"", path.read_text())
    }

    text = PAGE.read_text()

    assert sources
    assert {name for name in named if name not in text} == set()
