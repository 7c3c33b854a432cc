"""Checks that no package has more lines than sizes.toml allows.

python tools/sizes.py
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from common import ROOT

SUFFIXES = {".py", ".pyi", ".c", ".cpp", ".cu", ".h", ".js", ".jsx", ".css", ".html", ".sh"}


def lines(names: set[str]) -> Counter[str]:
    """Return the lines of sources by the innermost of these folders and files."""
    counts: Counter[str] = Counter(dict.fromkeys(names, 0))
    outermost = {Path(name).parts[0] for name in names}
    for path in (path for name in outermost for path in (ROOT / name, *(ROOT / name).rglob("*"))):
        relative = path.relative_to(ROOT)
        places = [str(place) for place in (relative, *relative.parents) if str(place) in names]
        if places and path.is_file() and (path.suffix in SUFFIXES or str(relative) in names):
            counts[places[0]] += len(path.read_bytes().splitlines())
    return counts


def problems() -> list[str]:
    """Return a sentence for each folder or file that has too many lines."""
    rows = re.findall(r'^"(.+)" = ([\d_]+)$', (ROOT / "sizes.toml").read_text(), re.MULTILINE)
    most = {name: int(number) for name, number in rows}
    return [
        f"{name} has {count:,} lines, but sizes.toml allows {most[name]:,}: remove lines, or raise "
        "the number and give the reason in the commit message."
        for name, count in sorted(lines(set(most)).items())
        if count > most[name]
    ]


if __name__ == "__main__":
    sys.exit("\n".join(problems()) or None)
