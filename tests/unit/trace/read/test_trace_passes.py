"""The passes of the extension over a trace's events, compared with a search at each moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stagespan import _core
from stagespan.trace.derived.trees import Paths, first_around, with_those_below
from stagespan.trace.read.intervals import Cover, looked_up, merged, nested, used_codes


def integers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_each_moment_of_a_thread_belongs_to_the_interval_that_began_last() -> None:
    # GIVEN many small sets of intervals of three threads that nest, touch, cross or coincide
    source = random.Random(5)
    for _ in range(300):
        drawn = [
            (source.randint(0, 2), begin := source.randint(0, 12), -begin - source.randint(1, 8))
            for _ in range(source.randint(0, 12))
        ]
        thread, begin, end = np.array(sorted(drawn), dtype=np.int64).reshape(-1, 3).T
        end = -end
        parent, longer, own = nested(begin, end, thread)
        expected = np.zeros(len(begin), dtype=np.int64)
        for number in range(3):
            for moment in range(21):
                is_open = (thread == number) & (begin <= moment) & (moment < end)
                if is_open.any():
                    expected[np.flatnonzero(is_open)[-1]] += 1
        assert own.tolist() == expected.tolist()
        for at in range(len(begin)):
            earlier = np.flatnonzero(thread[:at] == thread[at])
            is_open = earlier[end[earlier] > begin[at]]
            assert parent[at] == (is_open[-1] if len(is_open) else -1)
            around = earlier[end[earlier] > end[at]]
            assert longer[at] == (around[-1] if len(around) else -1)


def test_the_union_of_intervals_moment_by_moment() -> None:
    source = random.Random(7)
    for _ in range(300):
        # GIVEN intervals in any order that overlap, touch, are empty or end before they begin
        drawn = [
            (begin := source.randint(0, 30), begin + source.randint(-2, 6))
            for _ in range(source.randint(0, 12))
        ]
        begin, end = np.array(drawn, dtype=np.int64).reshape(-1, 2).T
        cover = Cover(begin, end)
        is_covered = np.array([bool(((begin <= at) & (at < end)).any()) for at in range(40)])
        # THEN each moment is covered, or not, and the intervals are the longest ones
        found = np.zeros(40, dtype=np.bool_)
        for first, last in zip(cover.begin, cover.end, strict=True):
            found[first:last] = True
        assert found.tolist() == is_covered.tolist()
        assert (cover.end[:-1] < cover.begin[1:]).all()
        places = integers(*(source.randint(-3, 43) for _ in range(20)))
        before = [is_covered[: max(place, 0)].sum() for place in places]
        assert cover.until(places).tolist() == before
        assert cover.until(np.sort(places)).tolist() == sorted(before)


def test_the_union_of_intervals_in_any_order_is_the_same() -> None:
    begin, end = integers(5, 1, 9, 1), integers(7, 3, 9, 5)
    for order in (slice(None), np.argsort(begin), [2, 0, 3, 1]):
        union = merged(begin[order], end[order])
        assert [each.tolist() for each in union] == [[1, 9], [7, 9]]


def test_the_union_of_intervals_of_several_threads_in_turns() -> None:
    source = random.Random(11)
    for threads in (1, 3, 40, 200):
        # GIVEN threads of which each has intervals that ascend, overlap or contain earlier ones
        drawn = []
        at = [0] * threads
        for _ in range(600):
            thread = source.randrange(threads)
            at[thread] += source.randint(0, 4)
            begin = 1_000 * thread + at[thread] - source.choice((0, 0, 0, 3))
            drawn.append((begin, begin + source.randint(0, 5)))
        begin, end = np.array(drawn, dtype=np.int64).T
        order = np.argsort(begin, kind="stable")
        # THEN their union is the same as if they were sorted
        union, expected = merged(begin, end), merged(begin[order], end[order])
        assert [each.tolist() for each in union] == [each.tolist() for each in expected]
        assert (union[0][1:] > union[1][:-1]).all()


def forest(source: random.Random, count: int) -> Any:
    """Return the parents of elements, which are not always before their children; -1 for roots."""
    points = list(range(count))
    source.shuffle(points)
    parent = np.full(count, -1, dtype=np.int64)
    for at in range(1, count):
        parent[points[at]] = points[source.randrange(at)] if source.random() < 0.8 else -1
    return parent


def test_nodes_of_the_paths_of_words() -> None:
    source = random.Random(12)
    for _ in range(300):
        count, deepest = source.randint(0, 14), source.randint(1, 4)
        parent = forest(source, count)
        word = integers(*(source.randint(0, 2) for _ in range(count)))
        found = Paths(parent, word, deepest)
        paths = [path_to(at, parent, word) for at in range(count)]
        # THEN elements with the same first words have one node
        kept = [path[:deepest] for path in paths]
        nodes = sorted(set(kept), key=lambda path: (len(path), path))
        assert len(found) == len(nodes)
        assert [nodes[at] for at in found.node.tolist()] == kept
        assert found.folded.tolist() == [len(path) > deepest for path in paths]
        # THEN nodes have the node above them, which comes first
        above = [nodes.index(path[:-1]) if len(path) > 1 else -1 for path in nodes]
        assert found.parent.tolist() == above
        assert found.word.tolist() == [path[-1] for path in nodes]


def path_to(at: int, parent: np.ndarray, word: np.ndarray) -> tuple[int, ...]:
    """The words from a root to an element."""
    path: list[int] = []
    while at >= 0:
        path.append(int(word[at]))
        at = int(parent[at])
    return tuple(path[::-1])


def test_elements_that_are_around_each_other_have_paths() -> None:
    node, folded = np.empty(3, dtype=np.int64), np.empty(3, dtype=np.bool_)
    _core.trace_paths(integers(1, 0, 1), integers(5, 6, 7), 9, node, folded)
    assert len(set(node.tolist())) == 3


def test_the_interval_that_is_open_at_a_place() -> None:
    source = random.Random(14)
    for _ in range(300):
        # GIVEN intervals that nest, touch, cross or coincide, and places in any order
        drawn = [
            (begin := source.randint(0, 12), -begin - source.randint(1, 8))
            for _ in range(source.randint(0, 12))
        ]
        begin, end = np.array(sorted(drawn), dtype=np.int64).reshape(-1, 2).T.copy()
        end = -end
        _, longer, _ = nested(begin, end, np.zeros(len(begin), dtype=np.int64))
        places = integers(*(source.randint(-2, 22) for _ in range(source.randint(0, 12))))
        for asked in (places, np.sort(places)):
            owner = np.empty(len(asked), dtype=np.int64)
            _core.trace_open_at(begin, end, longer, asked, owner)
            is_open = [np.flatnonzero((begin <= at) & (at < end)).tolist() for at in asked]
            assert owner.tolist() == [each[-1] if each else -1 for each in is_open]


def test_figures_with_those_below() -> None:
    source = random.Random(15)
    for _ in range(300):
        count = source.randint(0, 12)
        parent = forest(source, count)
        own = integers(*(source.randint(-9, 9) for _ in range(count)))
        expected = [0] * count
        for at, figure in enumerate(own.tolist()):
            while at >= 0:
                expected[at] += figure
                at = int(parent[at])
        assert with_those_below(parent, own).tolist() == expected


def test_elements_that_are_around_each_other_keep_their_figures() -> None:
    parent, own = integers(1, 2, 0, 0, 3), integers(1, 2, 4, 8, 16)
    assert with_those_below(parent, own).tolist() == [25, 2, 4, 24, 16]


def test_the_call_around_some_begins_of_nested_calls() -> None:
    source = random.Random(13)
    for _ in range(200):
        # GIVEN the begins and ends of calls that nest, and the begins of all that are open
        is_begin, open_, around, asked = [], [], [], []
        for at in range(source.randint(0, 20)):
            if open_ and source.random() < 0.5:
                open_.pop()
                is_begin.append(False)
                continue
            if source.random() < 0.5:
                asked.append(at)
                around.append(open_[-1] if open_ else -1)
            open_.append(at)
            is_begin.append(True)
        found = np.empty(len(asked), dtype=np.int64)
        _core.trace_begun_around(np.array(is_begin, dtype=np.bool_), integers(*asked), found)
        assert found.tolist() == around


def test_the_union_of_two_unions_is_that_of_all_their_intervals() -> None:
    source = random.Random(9)
    for _ in range(300):
        sets = []
        for _ in range(2):
            begin = integers(*(source.randint(0, 30) for _ in range(source.randint(0, 8))))
            sets.append((begin, begin + integers(*(source.randint(0, 6) for _ in begin))))
        one, other = (Cover(*each) for each in sets)
        both = Cover(*map(np.concatenate, zip(*sets, strict=True)))
        united = one | other
        assert united.begin.tolist() == both.begin.tolist()
        assert united.end.tolist() == both.end.tolist()
        places = np.arange(40)
        assert united.until(places).tolist() == both.until(places).tolist()


def test_columns_by_code() -> None:
    table, codes = np.array([False, True, True]), narrow(1, 0, 2, 1)
    assert looked_up(table, codes).tolist() == [True, False, True, True]
    assert used_codes(codes, np.array([True, False, False, True]), 3).tolist() == [
        *(False, True, False),
    ]
    for values in (integers(7, 8, 9), narrow(7, 8, 9)):
        column = np.empty(4, dtype=np.int64)
        _core.trace_spread(table, codes, values, -5, column)
        assert column.tolist() == [7, -5, 8, 9]


def test_events_of_some_threads_on_one_axis() -> None:
    source = random.Random(10)
    for _ in range(300):
        # GIVEN events of two threads with a part of the axis from 10 to 20, and of others
        count = source.randint(0, 12)
        begin, duration = (
            integers(*(source.randint(0, most) for _ in range(count))) for most in (30, 9)
        )
        thread = narrow(*(source.randint(-1, 1) for _ in range(count)))
        row, (first, last) = narrow(*range(count)), np.empty((2, count), dtype=np.int64)
        found = _core.trace_place_events(thread, begin, duration, (10, 20, 12), row, first, last)
        # THEN those that touch the window are cut at its edges
        expected = []
        for at, (number, start) in enumerate(zip(thread.tolist(), begin.tolist(), strict=True)):
            end = start + int(duration[at])
            if number >= 0 and end >= 10 and start <= 20:
                part = number * 12 - 10
                expected.append((at, part + max(start, 10), part + min(end, 20)))
        columns = (row[:found], first[:found], last[:found])
        assert list(zip(*(each.tolist() for each in columns), strict=True)) == expected


def test_the_first_chosen_element_around_each_one() -> None:
    source = random.Random(8)
    for _ in range(300):
        count = source.randint(0, 12)
        parent = forest(source, count)
        chosen = np.array([source.random() < 0.3 for _ in range(count)], dtype=np.bool_)
        expected = []
        for at in range(count):
            while at >= 0 and not chosen[at]:
                at = parent[at]
            expected.append(at)
        assert first_around(parent, chosen).tolist() == expected


def test_elements_that_are_around_each_other_end_the_search() -> None:
    chosen = np.array([False, False, False, True])
    assert first_around(np.array([1, 2, 0, 0]), chosen).tolist() == [-1, -1, -1, 3]


def test_the_times_of_points_against_all_paths() -> None:
    source = random.Random(6)
    for _ in range(200):
        # GIVEN edges between points whose names are not in their order
        count = source.randint(1, 8)
        points = list(range(count))
        source.shuffle(points)
        edges = [
            (points[low], points[high], source.randint(-3, 9))
            for low in range(count)
            for high in range(low + 1, count)
            if source.random() < 0.4
        ]
        begin, end, lag = np.array(edges, dtype=np.int64).reshape(-1, 3).T.copy()
        ranks = np.empty(count, dtype=np.int64)
        _core.trace_topological_ranks(begin, end, ranks)
        assert sorted(ranks.tolist()) == list(range(count))
        assert (ranks[begin] < ranks[end]).all()
        order = np.argsort(ranks[begin], kind="stable")
        begin, end, lag = begin[order], end[order], lag[order]
        # WHEN there are two cases, the second with other lags
        lags = np.stack((lag, 2 * lag), axis=1)
        times = np.full((count, 2), 100)
        _core.trace_earliest(begin, end, lags, 2, times)
        last = np.full(count, 1_000)
        _core.trace_latest(begin, end, lag, last)
        # THEN each is the longest of all paths
        for factor in (1, 2):
            for point in range(count):
                longest = 100 + max(lengths_to(point, edges, factor))
                assert times[point, factor - 1] == longest
        reverse = [(target, begin_, lag_) for begin_, target, lag_ in edges]
        assert last.tolist() == [1_000 - max(lengths_to(at, reverse, 1)) for at in range(count)]


def lengths_to(point: int, edges: list[tuple[int, int, int]], factor: int) -> list[int]:
    """The lengths of all paths that end at a point; from each point, time may be lost first."""
    found = [0]
    for begin, end, lag in edges:
        if end == point:
            found += [length + factor * lag for length in lengths_to(begin, edges, factor)]
    return found


def narrow(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


ONE, TWO, PAIR, MASK = integers(0), integers(0, 0), narrow(0, 0), np.array([False, True])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: _core.trace_nest(TWO, TWO, TWO, narrow(0), PAIR, TWO), ValueError),
        (lambda: _core.trace_nest(TWO, TWO, TWO, TWO, PAIR, TWO), TypeError),
        (lambda: _core.trace_nest(TWO, TWO, integers(0, 1, 2, 3)[::2], PAIR, PAIR, TWO), TypeError),
        (lambda: _core.trace_first_around(PAIR, np.array([True]), PAIR), ValueError),
        (lambda: _core.trace_first_around(PAIR, TWO, PAIR), TypeError),
        (lambda: _core.trace_first_around(narrow(0), np.array([1], np.int8), narrow(0)), TypeError),
        (lambda: _core.trace_first_around(narrow(1), np.array([False]), narrow(0)), ValueError),
        (lambda: _core.trace_open_at(TWO, TWO, narrow(-1, 0), TWO, ONE), ValueError),
        (lambda: _core.trace_open_at(TWO, TWO, narrow(0), TWO, TWO.copy()), ValueError),
        (lambda: _core.trace_open_at(TWO, TWO, narrow(-1, 1), TWO, TWO.copy()), ValueError),
        (lambda: _core.trace_open_at(integers(1, 0), TWO, PAIR - 1, TWO, TWO.copy()), ValueError),
        (lambda: _core.trace_add_those_below(integers(2, 0), TWO.copy()), ValueError),
        (lambda: _core.trace_add_those_below(TWO, ONE.copy()), ValueError),
        (lambda: _core.trace_begun_around(MASK, TWO, ONE), ValueError),
        (lambda: _core.trace_begun_around(MASK, integers(1, 0), TWO.copy()), ValueError),
        (lambda: _core.trace_begun_around(MASK, integers(2), ONE.copy()), ValueError),
        (lambda: _core.trace_begun_around(MASK, integers(-1), ONE.copy()), ValueError),
        (lambda: _core.trace_paths(TWO, ONE, 1, TWO.copy(), MASK.copy()), ValueError),
        (lambda: _core.trace_paths(TWO, TWO, 0, TWO.copy(), MASK.copy()), ValueError),
        (lambda: _core.trace_paths(integers(2, 0), TWO, 1, TWO.copy(), MASK.copy()), ValueError),
        (lambda: _core.trace_merge(TWO, TWO, TWO), ValueError),
        (lambda: _core.trace_merge(TWO, ONE, TWO), ValueError),
        (lambda: _core.trace_unite(TWO, TWO, ONE, TWO, TWO), ValueError),
        (lambda: _core.trace_unite(TWO, TWO, ONE, ONE, TWO), ValueError),
        (lambda: _core.trace_number(TWO, ONE), ValueError),
        (lambda: _core.trace_number(TWO.astype(np.float64)), TypeError),
        (lambda: _core.trace_number_pairs(TWO, ONE, TWO), ValueError),
        (lambda: _core.trace_look_up(MASK, narrow(2), MASK[:1].copy()), IndexError),
        (lambda: _core.trace_look_up(MASK, narrow(-1), MASK[:1].copy()), IndexError),
        (lambda: _core.trace_look_up(MASK, narrow(0), MASK.copy()), ValueError),
        (lambda: _core.trace_mark(narrow(2), MASK[:1], MASK.copy()), IndexError),
        (lambda: _core.trace_mark(narrow(1), MASK, MASK.copy()), ValueError),
        (lambda: _core.trace_spread(MASK, narrow(2), ONE, 0, ONE.copy()), IndexError),
        (lambda: _core.trace_spread(MASK, narrow(1), TWO, 0, ONE.copy()), ValueError),
        (lambda: _core.trace_spread(MASK, narrow(1, 1), ONE, 0, TWO.copy()), ValueError),
        (
            lambda: _core.trace_place_events(narrow(0), ONE, ONE, (0, 1, 3), narrow(0), ONE, TWO),
            ValueError,
        ),
        (
            lambda: _core.trace_place_events(narrow(0), ONE, TWO, (0, 1, 3), narrow(0), ONE, ONE),
            ValueError,
        ),
        (lambda: _core.trace_covered_until(TWO, ONE, TWO, ONE, ONE), ValueError),
        (lambda: _core.trace_covered_until(TWO, TWO, ONE, ONE, ONE), ValueError),
        (lambda: _core.trace_covered_until(ONE, ONE, ONE, TWO, ONE), ValueError),
        (lambda: _core.trace_earliest(ONE, integers(1), ONE, 1, integers(5)), ValueError),
        (lambda: _core.trace_earliest(integers(-1), ONE, ONE, 1, integers(5)), ValueError),
        (lambda: _core.trace_earliest(ONE, ONE, ONE, 0, integers(5)), ValueError),
        (lambda: _core.trace_earliest(ONE, ONE, ONE, 2, integers(5, 5)), ValueError),
        (lambda: _core.trace_latest(ONE, TWO, ONE, integers(5)), ValueError),
        (lambda: _core.trace_topological_ranks(ONE, integers(7), integers(5)), ValueError),
    ],
)
def test_other_arrays_are_refused(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_an_array_that_is_read_only_is_not_filled() -> None:
    fixed = narrow(1, 2)
    fixed.setflags(write=False)
    with pytest.raises((BufferError, ValueError)):
        _core.trace_nest(TWO, TWO, TWO, fixed, PAIR.copy(), TWO.copy())
