"""Checks that a tag is that of the version, and that the commit, the changelog and the metadata are
ready.

python tools/release.py v0.1.0
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys

from common import ROOT

MOST_LINES = 60
"""The most lines of the changelog of a version: it is written for those who upgrade."""


def git(*arguments: str) -> str:
    """Return what a git command prints; nothing if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit_problems(tag: str) -> list[str]:
    """Return what is wrong with the commit that would get this tag, or has it."""
    commit = git("rev-parse", "--verify", "--quiet", "HEAD")
    if not commit:
        return [f"{ROOT} has no commit that could get the tag"]
    problems = []
    changed = [line.split(maxsplit=1)[1] for line in git("status", "--porcelain").splitlines()]
    if changed:
        problems.append(f"not committed: {', '.join(changed)}")
    tagged = git("rev-parse", "--verify", "--quiet", f"refs/tags/{tag}^{{commit}}")
    if tagged not in ("", commit):
        problems.append(f"the tag {tag} exists at another commit, {tagged[:8]}: raise the version")
    return problems


def date_problem(text: str) -> str | None:
    """Return what is wrong with the date of a release, or None."""
    try:
        date = datetime.date.fromisoformat(text)
    except ValueError:
        return f"the date in CHANGELOG.md does not exist: {text}"
    # Here as on the machine of the workflow, which checks it again.
    today = datetime.datetime.now(datetime.timezone.utc).date()
    if date > today:
        return f"the date in CHANGELOG.md is in the future: {text} (in UTC, today is {today})"
    return None


def problems_of(tag: str) -> list[str]:
    """Return what has to be done before this tag is published."""
    problems = commit_problems(tag)
    package = (ROOT / "python/stagespan/__init__.py").read_text()
    version = re.findall(r'^__version__ = "(.+)"$', package, re.MULTILINE)[0]
    if tag != f"v{version}":
        problems.append(f"the tag is {tag}, but the version of the package is {version}")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    lines = len(re.split(r"^## ", changelog, flags=re.MULTILINE)[1].splitlines())
    if lines > MOST_LINES:
        problems.append(
            f"the newest version has {lines} lines in CHANGELOG.md: shorten it to {MOST_LINES}"
        )
    newest = re.fullmatch(r"(\S+) \((\d{4}-\d\d-\d\d)\)", headings[0])
    if newest is None or newest[1] != version:
        problems.append(f"CHANGELOG.md begins with {headings[0]!r}: it needs '{version} (date)'")
    elif problem := date_problem(newest[2]):
        problems.append(problem)
    line = re.compile(rf'^ *version: "?{re.escape(version)}"?$', re.MULTILINE)
    problems += [
        f"{name} names another version than {version}"
        for name in ("CITATION.cff", "conda/recipe.yaml")
        if not line.search((ROOT / name).read_text())
    ]
    address = r"[\"']?https://[^\s\"']+[\"']?"
    for name, pattern in {
        "pyproject.toml": rf"^\[project\.urls\]\n.+ = {address}$",
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
    if not problems:
        print(f"{sys.argv[1]} can be published from this commit.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
