"""Timed generators, and spans inside generators that take turns."""

from __future__ import annotations

import contextlib
import gc
import threading
import types
from collections.abc import Generator, Iterator

import pytest
from generating import numbers
from recording import count, lost, only, recorded

import stagespan
from stagespan import ProfilingContext4Debug, _core, span

pytestmark = pytest.mark.usefixtures("fresh")


# --- the protocol ---------------------------------------------------------------------------------


def test_a_result_that_is_a_tuple_or_an_exception() -> None:
    results = [(1, 2), KeyError("not raised"), None]

    @span("returns")
    def returns(i: int) -> Generator[int, None, object]:
        yield i
        return results[i]

    def collect() -> Generator[int, None, None]:
        for i in range(3):
            got.append((yield from returns(i)))  # noqa: PERF401

    got: list[object] = []
    assert list(collect()) == [0, 1, 2]
    assert got == results


def test_throw() -> None:
    @span("throws")
    def generate() -> Iterator[str]:
        try:
            yield "first"
        except KeyError:
            yield "handled"
        yield "last"

    handled, broken = generate(), generate()
    next(handled)
    assert handled.throw(KeyError()) == "handled"  # type: ignore[attr-defined]
    assert list(handled) == ["last"]
    error = ValueError("unchanged")
    next(broken)
    with pytest.raises(ValueError, match="unchanged") as caught:
        broken.throw(error)  # type: ignore[attr-defined]

    assert caught.value is error
    assert error.__context__ is None
    assert [span.failed for span in recorded("throws")] == [False, True]


def test_close() -> None:
    # GIVEN a generator that has begun, one that has not, and one that is at its end
    begun, new, done = numbers(5), numbers(5), numbers(1)
    next(begun)
    list(done)

    for generator in (begun, new, done):
        generator.close()
        generator.close()
        assert list(generator) == []
    # THEN a generator that never ran has no span, and closing it is not an error
    assert [span.failed for span in recorded("counts")] == [False, False]
    assert lost() == {}


def test_a_generator_that_ignores_its_close_continues() -> None:
    def generate() -> Iterator[int]:
        for i in range(4):
            with contextlib.suppress(GeneratorExit):
                yield i

    generator = _core.timed_generator(span("stubborn"), generate, (), {})
    next(generator)

    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        generator.close()
    assert [span["stage"] for span in _core.open_spans()] == ["stubborn"]
    assert list(generator) == [2, 3]
    assert not only("stubborn").failed


def test_errors_pass_unchanged() -> None:
    error = KeyError("unchanged")

    @span("fails")
    def generate() -> Iterator[int]:
        yield 1
        raise error

    with pytest.raises(KeyError) as caught:
        list(generate())

    assert caught.value is error
    assert error.__context__ is None
    assert only("fails").failed


def test_an_abandoned_generator_ends_when_it_is_freed() -> None:
    for value in numbers(10):
        if value == 3:
            break
    gc.collect()

    assert only("counts").flags == _core.FLAG_GENERATOR  # and no error
    assert _core.open_spans() == []


def test_a_value_sent_too_early_is_refused_and_nothing_is_lost() -> None:
    generator = numbers(2)

    with pytest.raises(TypeError, match="just-started"):
        generator.send("too early")

    assert list(generator) == [0, 1]
    assert [span.failed for span in recorded("counts")] == [False]


def test_a_generator_that_advances_itself_is_refused_and_continues() -> None:
    @span("asks itself")
    def generate() -> Iterator[str]:
        for ask in (lambda: next(generator), generator_close):
            try:
                ask()
            except ValueError as error:
                yield str(error)

    def generator_close() -> None:
        generator.close()  # type: ignore[attr-defined]

    generator = generate()
    assert list(generator) == ["generator already executing"] * 2
    asked = only("asks itself")
    assert not asked.failed
    assert asked.suspended_ns <= asked.duration_ns
    assert lost() == {}


def test_a_generator_that_two_threads_advance() -> None:
    busy, go_on = threading.Event(), threading.Event()

    @span("two threads")
    def generate() -> Iterator[int]:
        busy.set()
        go_on.wait()
        yield 1
        yield 2

    generator, got = generate(), []
    thread = threading.Thread(target=lambda: got.append(next(generator)))
    thread.start()
    busy.wait()
    with pytest.raises(ValueError, match="already executing"):
        next(generator)
    go_on.set()
    thread.join()
    got.extend(generator)

    assert got == [1, 2]
    assert [span.failed for span in recorded("two threads")] == [False]
    assert lost() == {}


def test_generators_that_can_be_awaited() -> None:
    @span("awaitable")
    @types.coroutine
    def awaitable() -> Generator[str, str, str]:
        return (yield "asks")

    async def main() -> str:
        return await awaitable()

    coroutine = main()
    assert coroutine.send(None) == "asks"
    with pytest.raises(StopIteration, match="answer"):
        coroutine.send("answer")

    assert count("awaitable") == 1


# --- the garbage collector ------------------------------------------------------------------------


class _Node:
    """Part of a cycle that resurrects itself when it is finalized."""

    saved: list[_Node] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.generator: Iterator[int] | None = None

    def __del__(self) -> None:
        _Node.saved.append(self)


def test_a_suspended_generator_in_a_cycle_is_collected() -> None:
    # GIVEN generators whose frames refer to themselves
    @span("in a cycle")
    def generate(myself: list[object]) -> Iterator[int]:
        yield 1
        yield len(myself)

    def make_one() -> None:
        myself: list[object] = []
        generator = generate(myself)
        myself.append(generator)
        next(generator)

    for _ in range(100):
        make_one()

    gc.collect()

    assert count("in a cycle") == 100
    assert _core.open_spans() == []


def test_a_generator_that_is_resurrected_by_the_collector() -> None:
    @span("comes back")
    def generate(node: _Node) -> Iterator[int]:
        yield 1
        yield 2

    node = _Node()
    node.generator = generate(node)
    next(node.generator)
    del node

    gc.collect()
    (back,) = _Node.saved
    # THEN it can still be used without harm, and the span has ended
    assert back.generator is not None
    repr(back.generator)
    isinstance(back.generator, types.GeneratorType)
    with contextlib.suppress(RuntimeError):
        list(back.generator)
    back.generator.close()  # type: ignore[attr-defined]
    _Node.saved.clear()
    assert count("comes back") == 1
    assert _core.open_spans() == []


def test_arguments_live_no_longer_than_without_a_span() -> None:
    stagespan.set_debug(True)

    class Argument:
        alive = 0

        def __init__(self) -> None:
            Argument.alive += 1

        def __del__(self) -> None:
            Argument.alive -= 1

    @ProfilingContext4Debug("drops its argument")
    def generate(argument: Argument) -> Iterator[int]:
        del argument
        yield 1
        yield 2

    generator = generate(Argument())
    assert next(generator) == 1
    next(generator)
    # THEN what the hooks keep is released when the run ends at the latest
    list(generator)
    gc.collect()
    assert Argument.alive == 0
