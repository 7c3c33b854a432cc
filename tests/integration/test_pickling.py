"""Contexts and decorated functions can be sent to other processes; open spans are not."""

from __future__ import annotations

import copy
import functools
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from recording import count

from stagespan import (
    ProfilingContext,
    ProfilingContext4Debug,
    _core,
    begin,
    span,
)

pytestmark = pytest.mark.usefixtures("fresh")

CONTEXTS = [
    span("a"),
    ProfilingContext("b", False),
    ProfilingContext("b", True, capture_memory=True),
    ProfilingContext4Debug("c", False, capture_memory=True),
]


def parameters(context: _core.Span) -> tuple[object, ...]:
    """Return all parameters of a context."""
    return (
        context.name,
        context.kind,
        context.reset_peak_memory,
        context.capture_memory,
    )


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
def test_contexts(context: _core.Span, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(context, protocol))

    assert again is not context
    assert parameters(again) == parameters(context)
    with again:
        pass


@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
def test_copies(context: _core.Span) -> None:
    assert parameters(copy.copy(context)) == parameters(context)
    assert parameters(copy.deepcopy(context)) == parameters(context)


def test_a_copy_of_an_open_context_is_not_open() -> None:
    context = span("open")
    with context:
        again = copy.copy(context)
        again.__exit__(None, None, None)
        assert len(_core.open_spans()) == 1

    assert count("open") == 1


def test_tokens_do_not_travel() -> None:
    token = begin("token")

    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(token)
    with pytest.raises(TypeError, match="cannot pickle"):
        copy.copy(token)


@span("decorated here")
def decorated(value: int) -> int:
    """Doubles."""
    return 2 * value


@ProfilingContext4Debug("debug here")
def debug_decorated(value: int) -> int:
    """Doubles."""
    return 2 * value


@span("cached here")
@functools.lru_cache
def cached(value: int) -> int:
    """Doubles, once for each value."""
    return 2 * value


class Doubler:
    """A callable object."""

    def __call__(self, value: int) -> int:
        """Doubles."""
        return 2 * value


class Worker:
    """Has a decorated method."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    @ProfilingContext("method here")
    def work(self, value: int) -> int:
        """Multiply."""
        return self.factor * value


def test_decorated_functions_are_pickled_by_name() -> None:
    for function in (decorated, debug_decorated, Worker.work, Worker(3).work):
        again = pickle.loads(pickle.dumps(function))

        arguments = (Worker(3), 4) if function is Worker.work else (4,)
        assert again(*arguments) in (8, 12)
    assert (count("decorated here"), count("method here")) == (1, 2)
    assert pickle.loads(pickle.dumps(decorated)) is decorated


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_other_callables_are_pickled_as_what_they_wrap(protocol: int) -> None:
    stage = span("called by value")
    doubler = stage(Doubler())
    doubler.label = "kept"  # type: ignore[attr-defined]
    wrapped = [doubler, stage(ProfilingContext("outer")(Doubler())), stage(functools.cache(abs))]

    for function in wrapped[:2]:
        again = pickle.loads(pickle.dumps(function, protocol))
        before = count("called by value")

        # THEN the copy is timed, and has the same attributes
        assert again is not function
        assert again(4) == 8
        assert count("called by value") == before + 1
        assert again.__dict__.keys() == function.__dict__.keys()
        assert type(again.__wrapped__) is type(function.__wrapped__)
    assert pickle.loads(pickle.dumps(doubler, protocol)).label == "kept"
    assert copy.deepcopy(doubler).__wrapped__ is not doubler.__wrapped__  # type: ignore[attr-defined]

    assert pickle.loads(pickle.dumps(cached, protocol)) is cached
    assert pickle.loads(pickle.dumps(stage(abs), protocol))(-4) == 4
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(wrapped[2], protocol)  # as without the context


def test_other_callables_of_another_program() -> None:
    cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")

    # GIVEN an object whose class cannot be imported
    class Local:
        def __call__(self, value: int) -> int:
            return 2 * value

    again = pickle.loads(cloudpickle.dumps(span("sent by value")(Local())))

    assert again(4) == 8
    assert count("sent by value") == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_decorated_functions_run_in_other_processes(method: str) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context(method)) as pool:
        results = [
            pool.submit(decorated, 2).result(),
            pool.submit(debug_decorated, 3).result(),
            pool.submit(Worker(5).work, 2).result(),
        ]
        counts = [
            pool.submit(count, stage).result()
            for stage in ("decorated here", "debug here", "method here")
        ]
    assert results == [4, 6, 10]
    assert counts == [1, 0, 1]
    assert count("decorated here") == 0
