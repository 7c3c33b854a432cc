"""Trees of events, compared with a slow search."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from stagespan.trace.derived.trees import Paths, Tree, levels

_rows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12), st.integers(0, 2)),
    max_size=25,
)


def columns(rows: list[tuple[int, int, int, int]]) -> tuple[np.ndarray, ...]:  # type: ignore[type-arg]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    thread, begin, length, word = table.T
    return thread, begin, begin + length, word


@settings(max_examples=examples(200))
@given(_rows, st.integers(0, 45), st.integers(0, 2))
def test_the_innermost_event_at_a_time(
    rows: list[tuple[int, int, int, int]], time: int, asked: int
) -> None:
    thread, begin, end, _ = columns(rows)
    tree = Tree(begin, end, thread)
    (found,) = tree.at(np.array([asked]), np.array([time]))
    # THEN it is the enclosing one that began last; of those that began together, the shortest
    around = [n for n in range(len(rows)) if thread[n] == asked and begin[n] <= time < end[n]]
    if not around:
        assert found == -1
    else:
        last = max((begin[n], -end[n]) for n in around)
        assert (begin[found], -end[found], thread[found]) == (*last, asked)


@settings(max_examples=examples(200))
@given(_rows)
def test_parents_levels_and_paths(rows: list[tuple[int, int, int, int]]) -> None:
    thread, begin, end, word = columns(rows)
    tree = Tree(begin, end, thread)
    parent = tree.parent.tolist()

    def way(at: int) -> list[int]:
        return [] if at < 0 else [*way(parent[at]), int(word[at])]

    level, paths = levels(tree.parent), Paths(tree.parent, word)
    own = np.arange(1, len(rows) + 1)
    total = paths.inclusive(paths.sums(own))
    for at, above in enumerate(parent):
        assert level[at] == len(way(at)) - 1
        if above >= 0:
            assert begin[above] <= begin[at] < end[above]
            assert thread[above] == thread[at]
    ways = {tuple(way(at)) for at in range(len(rows))}
    assert len(paths) == len(ways) == len(set(paths.node.tolist()))
    for at, node in enumerate(paths.node.tolist()):
        start = way(at)
        below = [n for n in range(len(rows)) if way(n)[: len(start)] == start]
        assert total[node] == own[below].sum()
