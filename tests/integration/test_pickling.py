"""Contexts and decorated functions can be sent to other processes; open spans are not."""

from __future__ import annotations

import copy
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
    end,
    span,
)

pytestmark = pytest.mark.usefixtures("fresh")

CONTEXTS = [
    span("a"),
    span("a", compile_safe=True),
    ProfilingContext("b", False),
    ProfilingContext("b", True, capture_memory=True, compile_safe=True),
    ProfilingContext4Debug("c", False, capture_memory=True),
]


def parameters(context: _core.Span) -> tuple[object, ...]:
    """Return all parameters of a context."""
    return (
        context.name,
        context.kind,
        context.reset_peak_memory,
        context.capture_memory,
        context.compile_safe,
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
    end(token)


@span("decorated here")
def decorated(value: int) -> int:
    """Doubles."""
    return 2 * value


@ProfilingContext4Debug("debug here")
def debug_decorated(value: int) -> int:
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
    # THEN they are timed there and not here
    assert results == [4, 6, 10]
    assert counts == [1, 0, 1]
    assert count("decorated here") == 0
