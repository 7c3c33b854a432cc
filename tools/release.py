"""Checks that a tag is that of the version, and that the changelog and the metadata are ready.

python tools/release.py v0.1.0
"""

from __future__ import annotations

import datetime
import re
import sys

from common import ROOT


def problems_of(tag: str) -> list[str]:
    """Return what has to be done before this tag is published."""
    problems = []
    package = (ROOT / "python/stagespan/__init__.py").read_text()
    version = re.findall(r'^__version__ = "(.+)"$', package, re.MULTILINE)[0]
    if tag != f"v{version}":
        problems.append(f"the tag is {tag}, but the version of the package is {version}")
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    newest = re.fullmatch(r"(\S+) \((\d{4}-\d\d-\d\d)\)", headings[0])
    if newest is None or newest[1] != version:
        problems.append(f"CHANGELOG.md begins with {headings[0]!r}: it needs '{version} (date)'")
    elif datetime.date.fromisoformat(newest[2]) > datetime.date.today():
        problems.append(f"the date in CHANGELOG.md is in the future: {newest[2]}")
    line = re.compile(rf'^ *version: "?{re.escape(version)}"?$', re.MULTILINE)
    problems += [
        f"{name} names another version than {version}"
        for name in ("CITATION.cff", "conda/recipe.yaml")
        if not line.search((ROOT / name).read_text())
    ]
    address = r"https://[^\s\"']+"
    for name, pattern in {
        "pyproject.toml": rf'^\[project\.urls\]\n[\w-]+ = "{address}"$',
        "mkdocs.yml": rf"^repo_url: {address}$",
        "CITATION.cff": rf"^repository-code: {address}$",
    }.items():
        if not re.search(pattern, (ROOT / name).read_text(), re.MULTILINE):
            problems.append(f"{name} does not have the address of the repository")
    # Links and pictures of Markdown, also those of references, and of HTML.
    link = r"""(?:\]\(|^\[[^\]]+\]:\s*|\b(?:src|href)=["'])(?!https://|#)([^)\s"']+)"""
    relative = re.findall(link, (ROOT / "README.md").read_text(), re.MULTILINE)
    if relative:
        problems.append(
            f"README.md links to {relative[0]}, which the package index does not have "
            f"({len(relative)} such links): make them absolute"
        )
    return problems


def main() -> int:
    """Print the problems; returns 1 if there are any, and 2 without a tag."""
    if len(sys.argv) != 2:
        print("error: pass one tag, such as v0.1.0")
        return 2
    problems = problems_of(sys.argv[1])
    for problem in problems:
        print(f"error: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
