"""Synthetic runs of stages, and the figures that a recorder would keep for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

SEVERAL = "(several)"


@dataclass
class Run:
    """One run of a stage: its own time, and the runs inside it, one after another."""

    stage: str
    own_ns: int
    children: list[Run] = field(default_factory=list)

    @property
    def total_ns(self) -> int:
        return self.own_ns + sum(child.total_ns for child in self.children)


def some_runs(names: str = "abcd") -> st.SearchStrategy[list[Run]]:
    """Strategy for lists of top-level runs, nested up to four deep, including recursion."""
    leaf = st.builds(Run, st.sampled_from(names), st.integers(0, 10**9))
    nested = leaf
    for _ in range(3):
        nested = st.builds(
            Run, st.sampled_from(names), st.integers(0, 10**9), st.lists(nested, max_size=3)
        )
    return st.lists(nested, max_size=4)


def figures_of(runs: Iterable[Run]) -> dict[str, Any]:
    """Return what `_core.snapshot().stages()` would return for these runs."""
    found: dict[str, Any] = {}

    def add(run: Run, parent: str | None) -> None:
        figures = found.setdefault(run.stage, a_stage())
        figures.count += 1
        figures.total_ns += run.total_ns
        figures.children_ns += sum(child.total_ns for child in run.children)
        others = len(figures.parents.keys() - {None, SEVERAL})
        named = parent is None or parent in figures.parents or others < 4
        slot = parent if named else SEVERAL
        count, total = figures.parents.get(slot, (0, 0))
        figures.parents[slot] = (count + 1, total + run.total_ns)
        for child in run.children:
            add(child, run.stage)

    for run in runs:
        add(run, None)
    return found


def a_stage(**figures: Any) -> Any:
    """Return a stage's figures, 0 or unknown unless given."""
    empty: dict[str, Any] = {
        "count": 0,
        "total_ns": 0,
        "children_ns": 0,
        "suspended_ns": 0,
        "cpu_total_ns": None,
        "cpu_count": 0,
        "errors": 0,
        **dict.fromkeys(("mean_ns", "min_ns", "max_ns", "p50_ns", "p95_ns", "p99_ns"), 0),
        **dict.fromkeys(("device_elapsed_ns", "device_queue_ns", "device_tail_ns")),
        "quantile_ns": lambda q: 0,
        "parents": {},
        "work": {},
    }
    return SimpleNamespace(**{**empty, **figures})
