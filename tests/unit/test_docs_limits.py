"""Pages of use are short: few enough lines each, and few enough words together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
# Pages that answer a question of a user. docs/internals/ is about stagespan itself.
PAGES = sorted(DOCS.glob("*.md"))
MOST_LINES, MOST_WORDS = 250, 40_000
MOST_LINES_OF_BENCHMARKS = 150
pytestmark = pytest.mark.skipif(
    not PAGES, reason="docs/ is missing: run the tests in a clone of the repository"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_is_read_in_one_go(page: Path) -> None:
    # Every line counts, those of code blocks and tables too.
    assert len(page.read_text("utf-8").splitlines()) <= MOST_LINES, (
        "split the page by question, or move what only stagespan itself needs to docs/internals/"
    )


def test_the_pages_are_read_in_an_afternoon() -> None:
    # Code blocks do not count: examples and outputs are looked at, not read.
    texts = [
        re.sub(r"^( *)```.*?^\1```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for page in PAGES
    ]
    assert sum(len(text.split()) for text in texts) <= MOST_WORDS


def test_internals_are_out_of_the_navigation_and_linked_from_the_start() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text("utf-8").split("\nnav:\n", 1)[1]
    assert "internals/" not in navigation
    assert "(internals/index.md)" in (DOCS / "index.md").read_text("utf-8")
    listed = (DOCS / "internals" / "index.md").read_text("utf-8")
    pages = {page.name for page in (DOCS / "internals").glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"]({name})" not in listed} == set()


def test_the_benchmarks_are_one_page() -> None:
    page = (DOCS / "internals" / "benchmarks.md").read_text("utf-8")
    assert len(page.splitlines()) <= MOST_LINES_OF_BENCHMARKS


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_is_in_the_navigation(page: Path) -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text("utf-8").split("\nnav:\n", 1)[1]
    assert f": {page.name}\n" in navigation


def test_the_readme_shows_what_the_page_about_traces_shows() -> None:
    # GIVEN the output in README.md; that of the page is compared with a run of the command
    blocks = (DOCS.parent / "README.md").read_text("utf-8").split("```")
    (shown,) = [block for block in blocks if block.startswith("text\ntrace.json: ")]
    page = (DOCS / "analyze.md").read_text("utf-8").splitlines()
    lines = [line for line in shown.splitlines()[1:] if line.strip() not in ("", "...")]
    assert [line for line in lines if line not in page] == []
