"""Arranges the stages of a report as a tree, with a row for time outside of all children."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stagespan.report.reader import count_of, number
from stagespan.report.stages import SEVERAL

UNATTRIBUTED = "(unattributed)"
OVERLAP = "(children at the same time)"
ELSEWHERE = "(children listed elsewhere)"
_MOST_GUIDES = 30
"""Deeper stages are shown at this depth."""
# A smaller fraction of a parent is a rounding error and gets no row.
_LEAST_EXCESS = 1e-6


@dataclass(frozen=True)
class TreeRow:
    """One line of the tree."""

    label: str
    guide: str
    """Lines in front of the label, for example ``"│  └─ "``."""
    duration_ms: float
    share: float | None = None
    """Fraction of the parent row's time; None if unknown."""
    count: int | None = None
    stage: dict[str, Any] | None = None
    """The entry of the stage, if this row covers all of its runs."""
    is_sum: bool = False
    """Whether the row is the total of a stage that is also listed under its parents."""

    @property
    def depth(self) -> int:
        """How many rows above it contain it, up to the deepest guide."""
        return len(self.guide) // len("│  ")


def rows(report: Mapping[str, Any]) -> list[TreeRow]:
    """Return the tree of a report.

    A stage with children has a row for the time that they do not account for, so that child rows
    always add up to their parent. Children that ran at the same time can take more time than their
    parent; a row then subtracts the overlap. A stage with several parents is listed under each of
    them, without its children, and at the end with its total and its children.
    """
    stages: dict[str, dict[str, Any]] = report["stages"]
    places, place_counts = _places(stages)
    total = number(report.get("total_stages_ms")) or sum(place.ms for place in places[None])
    opened: set[str] = set()

    def children_of(
        parent: str | None, of_ms: float, guide: str
    ) -> Iterator[tuple[TreeRow, tuple[str, float, str] | None]]:
        """Yield each row directly below a stage, with the arguments for the rows below that row."""
        children = places.get(parent, [])
        extra = _left_over(stages[parent], children) if parent is not None else []
        last = len(children) + len(extra) - 1
        for i, place in enumerate(children):
            lead, follow = _guides(guide, i == last, parent is None)
            share = place.ms / of_ms if of_ms > 0 else None
            is_open = place_counts[place.stage] == 1 and place.stage not in opened
            whole = stages[place.stage] if is_open else None
            row = TreeRow(place.stage, lead, place.ms, share, place.count, whole)
            if whole is not None:
                opened.add(place.stage)
            yield row, None if whole is None else (place.stage, place.ms, follow)
        for i, (label, ms) in enumerate(extra, len(children)):
            lead, _ = _guides(guide, i == last, False)
            yield TreeRow(label, lead, ms, ms / of_ms if of_ms > 0 else None), None

    def below(parent: str | None, of_ms: float, guide: str) -> list[TreeRow]:
        below_rows = []
        # Not recursive, because a report can contain chains of thousands of stages.
        levels = [children_of(parent, of_ms, guide)]
        while levels:
            row, inner = next(levels[-1], (None, None))
            if row is None:
                levels.pop()
                continue
            below_rows.append(row)
            if inner is not None:
                levels.append(children_of(*inner))
        return below_rows

    tree_rows = below(None, total, "")
    for is_sum in (True, False):
        for name, entry in stages.items():
            # Other stages without a row are below these, or only inside each other.
            if name not in opened and (place_counts[name] != 1) is is_sum:
                opened.add(name)
                ms = entry["duration_ms"]
                tree_rows.append(TreeRow(name, "", ms, None, count_of(entry), entry, is_sum=True))
                tree_rows.extend(below(name, ms, ""))
    return tree_rows


@dataclass(frozen=True)
class _Place:
    """The figures of a stage under one parent."""

    stage: str
    ms: float
    count: int | None


def _places(
    stages: dict[str, dict[str, Any]],
) -> tuple[dict[str | None, list[_Place]], dict[str, int]]:
    """Return the places below each parent, longest first, and the number of places per stage."""
    places: dict[str | None, list[_Place]] = {None: []}
    place_counts = dict.fromkeys(stages, 0)
    for name, entry in stages.items():
        # Files of other programs have no parents.
        for place in entry.get("parents") or [{**entry, "parent": None}]:
            if place["parent"] == SEVERAL:
                place_counts[name] += 2  # at least two parents that are not named
                continue
            # A parent that is still running is not in the report yet.
            parent = place["parent"] if place["parent"] in stages else None
            places.setdefault(parent, []).append(
                _Place(name, place["duration_ms"], count_of(place))
            )
            place_counts[name] += 1
    for found in places.values():
        found.sort(key=lambda place: -place.ms)
    return places, place_counts


def _left_over(entry: dict[str, Any], children: list[_Place]) -> list[tuple[str, float]]:
    unattributed, duration = number(entry.get("unattributed_ms")), entry["duration_ms"]
    if not children or unattributed is None:
        return []
    rows = [(UNATTRIBUTED, unattributed)]
    excess = sum(place.ms for place in children) + unattributed - duration
    if abs(excess) > _LEAST_EXCESS * duration:
        rows.append((OVERLAP if excess > 0 else ELSEWHERE, -excess))
    return rows


def _guides(guide: str, is_last: bool, is_top: bool) -> tuple[str, str]:
    """Return the guides of a row, and of the rows below it."""
    if is_top:
        return "", ""
    follow = guide + ("   " if is_last else "│  ")
    is_deepest = len(follow) > _MOST_GUIDES * len("│  ")
    return guide + ("└─ " if is_last else "├─ "), guide if is_deepest else follow
