"""`with`, `async with` and their helpers: what is timed, without effect on the code inside."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest
from recording import assert_closed, count, counts, lost, only, parents, recorded

from running import in_threads
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, span

pytestmark = pytest.mark.usefixtures("fresh")

Make = Callable[[str], _core.Span]


# --- every way in and out -------------------------------------------------------------------------


def test_with(make: Make) -> None:
    context = make("with")
    with context as given:
        inside = _core.open_spans()
    # THEN it is open in the block and recorded after it, and `as` binds the context itself
    assert given is context
    assert [span["stage"] for span in inside] == ["with"]
    assert count("with") == 1
    assert not only("with").failed


def test_async_with(make: Make) -> None:
    async def main() -> object:
        async with make("async with") as given:
            await asyncio.sleep(0)
            return given

    given = asyncio.run(main())

    assert isinstance(given, _core.Span)
    assert count("async with") == 1


def test_exit_stacks(make: Make) -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(make("sync in async stack"))
            await stack.enter_async_context(make("async in async stack"))
            assert len(_core.open_spans()) == 2

    with contextlib.ExitStack() as stack:
        given = stack.enter_context(make("in stack"))
        stack.enter_context(given)
        assert len(_core.open_spans()) == 2
    asyncio.run(main())

    assert counts("in stack", "sync in async stack", "async in async stack") == [2, 1, 1]
    assert parents()["async in async stack"] == {"sync in async stack"}
    assert lost() == {}


def test_entered_and_left_by_hand(make: Make) -> None:
    # GIVEN bound and unbound methods, as libraries call them
    context = make("by hand")
    kind = type(context)

    assert context.__enter__() is context
    assert context.__exit__(None, None, None) is None
    assert kind.__enter__(context) is context
    assert kind.__exit__(context, None, None, None) is None

    assert count("by hand") == 2
    assert isinstance(context, contextlib.AbstractContextManager)
    assert isinstance(context, contextlib.AbstractAsyncContextManager)


def test_one_object_is_reentrant(make: Make) -> None:
    context = make("re-entrant")
    with context, context, context:
        pass
    with context:
        pass
    spans = recorded("re-entrant")
    assert [span.depth for span in spans] == [0, 1, 2, 0]
    assert [span.parent for span in spans] == [0, spans[0].id, spans[1].id, 0]
    assert count("re-entrant") == 4


def test_recursion(make: Make) -> None:
    context = make("recursion")

    def down(levels: int) -> int:
        with context:
            return 1 if levels == 0 else 1 + down(levels - 1)

    assert down(99) == 100

    spans = recorded("recursion")
    assert [span.depth for span in spans] == list(range(100))
    assert [span.parent for span in spans[1:]] == [span.id for span in spans[:-1]]
    assert_closed()


def test_one_object_in_many_threads(make: Make) -> None:
    context = make("shared")
    inside = threading.Barrier(8)

    def work() -> None:
        with context:
            inside.wait()
            for _ in range(50):
                with context:
                    pass

    in_threads(*[work] * 8)
    assert count("shared") == 8 * 51
    spans = {span.id: span for span in recorded("shared")}
    assert all(span.thread == spans[span.parent].thread for span in spans.values() if span.parent)
    assert sum(span.parent == 0 for span in spans.values()) == 8
    assert lost() == {}


def test_more_open_spans_than_frames() -> None:
    levels, context = 20_000, span("too deep")
    with contextlib.ExitStack() as stack:
        for _ in range(levels):
            stack.enter_context(context)
    with span("afterwards"):
        pass
    # THEN all are recorded, those that were not shown are counted, and none is left open
    assert count("too deep") == levels
    assert 0 < lost()["open_spans"] <= levels - 16_000
    assert "unmatched" not in lost()
    assert only("afterwards").depth == 0


# --- exceptions -----------------------------------------------------------------------------------


class _Special(BaseException):
    """Not an Exception, so that nothing catches it by accident."""


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit, _Special])
def test_exceptions_pass_unchanged_and_mark_the_spans(
    make: Make, kind: type[BaseException]
) -> None:
    error = kind("unchanged")
    try:
        with make("outer"), make("inner"):
            raise error
    except BaseException as caught:
        seen = caught
    # THEN it is the same object, with nothing added to it or its traceback
    assert seen is error
    assert error.args == ("unchanged",)
    assert error.__context__ is None
    assert error.__cause__ is None
    assert getattr(error, "__notes__", None) is None
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == [
        "test_exceptions_pass_unchanged_and_mark_the_spans"
    ]
    assert only("outer").failed
    assert only("inner").failed
    assert _core.snapshot().stages()["outer"].errors == 1


def test_exceptions_in_async_blocks(make: Make) -> None:
    error = KeyError("unchanged")

    async def main() -> None:
        async with make("async outer"), make("async inner"):
            await asyncio.sleep(0)
            raise error

    with pytest.raises(KeyError) as caught:
        asyncio.run(main())

    assert caught.value is error
    assert error.__context__ is None
    assert only("async outer").failed
    assert only("async inner").failed


def test_an_exception_that_is_being_handled_stays_the_context(make: Make) -> None:
    first, second = KeyError("first"), ValueError("second")
    try:
        try:
            raise first
        except KeyError:
            with make("in except"):
                pass
            with make("raises"):
                raise second  # noqa: B904
    except ValueError as caught:
        seen = caught
    assert seen is second
    assert second.__context__ is first
    assert first.__context__ is None
    assert not only("in except").failed
    assert only("raises").failed


def test_a_handled_exception_marks_only_the_span_that_it_left(make: Make) -> None:
    with make("handles"), contextlib.suppress(KeyError), make("raises"):
        raise KeyError

    assert only("raises").failed
    assert not only("handles").failed


def test_a_block_in_a_generator_that_is_closed_has_not_failed(make: Make) -> None:
    def generate() -> Iterator[int]:
        with make("given up"):
            yield 1
            yield 2

    for _ in generate():
        break
    gc.collect()

    assert not only("given up").failed


def test_return_break_and_continue_leave_blocks(make: Make) -> None:
    def returns() -> int:
        for i in range(3):
            with make("left early"):
                if i == 0:
                    continue
                if i == 1:
                    break
        with make("left early"):
            return 7

    assert returns() == 7

    assert count("left early") == 3
    assert lost() == {}


# --- the objects ----------------------------------------------------------------------------------


def test_attributes_of_a_context() -> None:
    contexts = [
        span("a"),
        ProfilingContext("b", False, capture_memory=True),
        ProfilingContext4Debug(name="c", reset_peak_memory=True),
    ]

    assert [context.name for context in contexts] == ["a", "b", "c"]
    assert [context.kind for context in contexts] == ["span", "profiling", "debug"]
    assert [context.reset_peak_memory for context in contexts] == [False, False, True]
    assert [context.capture_memory for context in contexts] == [False, True, False]
    assert [repr(context) for context in contexts] == [
        "span('a')",
        "ProfilingContext('b')",
        "ProfilingContext4Debug('c')",
    ]
    with pytest.raises(AttributeError):
        contexts[0].name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("function", [span, ProfilingContext, ProfilingContext4Debug])
def test_signatures_are_documented(function: Callable[..., object]) -> None:
    # THEN help() and editors find the parameters
    assert next(iter(inspect.signature(function).parameters)) == "name"
    assert function.__doc__


@pytest.mark.parametrize("function", [span, ProfilingContext, ProfilingContext4Debug])
@pytest.mark.parametrize(
    ("args", "kwargs"), [(("a", True, True), {}), (("a",), {"unknown": 1}), ((), {"unknown": 1})]
)
def test_wrong_arguments(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    with pytest.raises(TypeError):
        function(*args, **kwargs)


def test_the_type_is_closed() -> None:
    # THEN contexts can only be created by the three functions
    with pytest.raises(TypeError):
        _core.Span()
    with pytest.raises(TypeError):
        type("Mine", (_core.Span,), {})
    with pytest.raises(TypeError, match="'a'"):
        span("a")(1, 2)  # type: ignore[call-arg]


def test_inputs_and_outputs_outside_of_debug_mode_do_nothing() -> None:
    value = object()

    with span("plain") as context:
        context.inputs(value=value)
        context.output(value)
    # THEN only keyword arguments are accepted, so that a mistake shows before debug mode is on
    with pytest.raises(TypeError, match="by name"):
        context.inputs(value)  # type: ignore[call-arg]


def test_statistics_agree_with_records() -> None:
    for i in range(500):
        with span("agrees"):
            sum(range(i * 10))

    durations = sorted(span.duration_ns for span in recorded("agrees"))
    stage = _core.snapshot().stages()["agrees"]

    assert stage.count == len(durations) == 500
    # The rate of the clock may be measured anew between the readings (some ppm).
    assert stage.total_ns == pytest.approx(sum(durations), rel=1e-4, abs=500)
    assert stage.min_ns == pytest.approx(durations[0], rel=1e-4, abs=2)
    assert stage.max_ns == pytest.approx(durations[-1], rel=1e-4, abs=2)
    for q in (0.25, 0.5, 0.95, 0.99):
        exact = durations[-(-int(q * 1000) * 500 // 1000) - 1]
        assert stage.quantile_ns(q) == pytest.approx(exact, rel=0.03, abs=2)
