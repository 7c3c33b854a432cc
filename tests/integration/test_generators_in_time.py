"""Timed generators: suspended time, and their parents."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from generating import numbers
from recording import assert_closed, count, lost, only, parents, recorded

import stagespan
from running import in_threads, until
from stagespan import _core, span

pytestmark = pytest.mark.usefixtures("fresh")

MS = 1_000_000


def test_time_between_turns_is_suspended() -> None:
    # GIVEN a generator that works for a short time in each turn, and a slower consumer
    @span("generates")
    def generate() -> Iterator[int]:
        for i in range(3):
            time.sleep(0.002)
            yield i

    with span("consumer"):
        for _ in generate():
            time.sleep(0.01)
    made = only("generates")
    assert made.suspended_ns >= 29 * MS
    assert made.duration_ns - made.suspended_ns >= 5 * MS
    consumer = _core.snapshot().stages()["consumer"]
    assert 5 * MS <= consumer.children_ns <= consumer.total_ns - 29 * MS
    assert parents()["generates"] == {"consumer"}
    assert_closed()


def test_a_generator_is_not_a_parent_between_its_turns() -> None:
    @span("generates")
    def generate() -> Iterator[int]:
        for i in range(2):
            with span("in turn"):
                pass
            yield i

    with span("consumer"):
        for _ in generate():
            with span("between turns"):
                pass

    assert parents() == {
        "consumer": {None},
        "generates": {"consumer"},
        "in turn": {"generates"},
        "between turns": {"consumer"},
    }
    assert [span.depth for span in recorded("between turns")] == [1, 1]


def test_spans_that_are_open_between_turns_stay_in_their_generator() -> None:
    @span("generates")
    def generate() -> Iterator[int]:
        with span("block"):
            with span("nested"):
                yield 1
            with span("after a turn"):
                yield 2
        with span("after the block"):
            pass

    with span("consumer"):
        for value in generate():
            with span(f"uses {value}"):
                pass

    assert parents() == {
        "consumer": {None},
        "generates": {"consumer"},
        "block": {"generates"},
        "nested": {"block"},
        "after a turn": {"block"},
        "after the block": {"generates"},
        "uses 1": {"consumer"},
        "uses 2": {"consumer"},
    }
    assert lost() == {}
    assert_closed()


def test_a_block_of_a_generator_that_the_consumer_ends() -> None:
    @span("generates")
    def generate() -> Iterator[_core.Span]:
        yield span("handed out").__enter__()
        yield span("second").__enter__()

    with span("consumer"):
        generator = generate()
        next(generator).__exit__(None, None, None)
        second = next(generator)
        assert list(generator) == []
        with span("uses"):
            pass
        second.__exit__(None, None, None)
        with span("afterwards"):
            pass

    assert parents()["handed out"] == {"generates"}
    assert parents()["second"] == {"generates"}
    assert parents()["afterwards"] == {"consumer"}
    assert lost() == {}
    assert_closed()


def test_blocks_of_a_generator_that_moves_to_another_thread() -> None:
    @span("moves")
    def generate() -> Iterator[int]:
        with span("first block"):
            yield 1
            with span("second block"):
                yield 2
            yield 3

    generator = generate()

    for _ in range(4):
        in_threads(lambda: next(generator, None))
        with span("here"):
            pass
    assert count("moves") == 1
    assert parents()["here"] == {None}
    until(lambda: _core.open_spans() == [])
    assert count("first block") + count("second block") + sum(lost().values()) >= 2


def test_interleaved_generators() -> None:
    # GIVEN many timed generators with blocks that are open between turns
    @span("generates")
    def generate(name: str, n: int) -> Iterator[int]:
        with span(name):
            for i in range(n):
                with span(f"step of {name}"):
                    yield i

    with span("consumer"):
        generators = [generate(f"g{n}", n) for n in range(1, 9)]
        turns = [
            [value for value in turn if value is not None]
            for turn in itertools.zip_longest(*generators)
        ]
    assert [len(turn) for turn in turns] == [8, 7, 6, 5, 4, 3, 2, 1]
    found = parents()
    assert found["generates"] == {"consumer"}
    for n in range(1, 9):
        assert found[f"g{n}"] == {"generates"}
        assert found[f"step of g{n}"] == {f"g{n}"}
    assert [count(f"step of g{n}") for n in range(1, 9)] == list(range(1, 9))
    assert [count(f"g{n}") for n in range(1, 9)] == [1] * 8
    assert lost() == {}
    assert _core.open_spans() == []
    assert_closed()


def test_blocks_of_interleaved_generators_end_their_own_spans() -> None:
    # GIVEN plain generators that each create their own span, and keep it open between their turns
    def generate(name: str, turns: int) -> Iterator[None]:
        with span(name):
            for _ in range(turns):
                yield
            time.sleep(0.001)

    begun = {name: generate(name, turns) for name, turns in (("a", 1), ("b", 2), ("c", 3))}
    with span("around"):
        for generator in begun.values():
            next(generator)
        for generator in begun.values():
            list(generator)
        with span("afterwards"):
            pass
    a, b, c = only("a"), only("b"), only("c")
    assert a.begin_ns < b.begin_ns < c.begin_ns < a.end_ns < b.end_ns < c.end_ns
    assert parents()["afterwards"] == {"around"}
    assert lost() == {}
    assert_closed()


def test_turns_that_another_span_drives() -> None:
    @span("driven")
    def generate() -> Iterator[int]:
        for i in range(20):
            time.sleep(0.0005)
            yield i

    with span("begins"):
        generator = generate()
        next(generator)
        with span("drives"):
            for _ in range(18):
                next(generator)
        list(generator)
    assert parents()["driven"] == {"begins"}
    assert_closed()
    stages = _core.snapshot().stages()
    # 18 turns in the other span, and two of at least half a millisecond outside of it.
    assert stages["begins"].children_ns >= only("drives").duration_ns + 1 * MS - 1000


def test_a_generator_moves_between_threads() -> None:
    generator = numbers(100)
    got: list[int] = []

    def advance() -> None:
        with span("advances"):
            got.append(next(generator))

    for _ in range(100):
        in_threads(advance)
    assert list(generator) == []

    assert got == list(range(100))
    assert count("counts") == 1
    assert lost() == {}
    assert_closed()


def test_switched_off_between_turns() -> None:
    # GIVEN a generator that begins while the recorder is on, and one that begins while it is off
    on = numbers(3)
    next(on)
    stagespan.disable()
    off = numbers(3)
    next(off)

    assert list(on) == [1, 2]
    stagespan.enable()
    assert list(off) == [1, 2]

    assert count("counts") == 1


def test_recursive_generators() -> None:
    @span("walks")
    def walk(depth: int) -> Iterator[int]:
        yield depth
        if depth:
            yield from walk(depth - 1)
            yield from walk(depth - 1)

    assert len(list(walk(6))) == 127

    spans = {span.id: span for span in recorded("walks")}
    assert len(spans) == 127
    for one in spans.values():
        assert one.depth == (0 if not one.parent else spans[one.parent].depth + 1)
    assert sorted(span.depth for span in spans.values()) == sorted(
        depth for depth in range(7) for _ in range(2**depth)
    )
    assert_closed()
