"""Links between README.md and the pages in docs/ have existing targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOUND = (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")))
PAGES = [path for path in FOUND if path.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_existing_files(page: Path) -> None:
    # GIVEN a page's links, except those in code blocks
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text)

    missing = [
        target for target in targets if "://" not in target and not (page.parent / target).exists()
    ]
    assert missing == []
