"""Random programs of tasks, contexts and context variables, against a variable of their own."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
from collections.abc import Callable

import pytest
from recording import lost, recorded

from stagespan import _core, span

pytestmark = pytest.mark.usefixtures("fresh")

_PROGRAMS = [pytest.param(40, id="few"), pytest.param(4_000, id="many", marks=pytest.mark.full)]


class _Program:
    """One random program, which knows the parent of each of its spans.

    The innermost span is in a context variable of the program, so that tasks and copied contexts
    inherit it as they inherit the one of stagespan.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        variables = self._random.choice([0, 1, 3, 8, 20, 60])
        self._variables = [contextvars.ContextVar[object](f"v{i}") for i in range(variables)]
        self._innermost = contextvars.ContextVar("innermost", default="")
        self._tasks: list[asyncio.Task[None]] = []
        self._kept: list[contextvars.Context] = []
        self.parents: dict[str, str] = {}

    def run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        # A context that inherited no span would belong to the code that runs it.
        end = self._opened()
        await self._steps(0)
        while any(not task.done() for task in self._tasks):
            await asyncio.gather(*self._tasks)
        end()

    async def _steps(self, depth: int) -> None:
        ends: list[Callable[[], None]] = []
        for _ in range(self._random.randint(4, 16)):
            match self._random.choice(["span", "span", "end", "set", "turn", "task", "copy", "gc"]):
                case "span":
                    ends.append(self._opened())
                case "end" if ends:
                    ends.pop()()
                case "set" if self._variables:
                    self._random.choice(self._variables).set(self._random.random())
                case "task" if depth < 4:
                    self._tasks.append(asyncio.ensure_future(self._steps(depth + 1)))
                case "copy":
                    context = contextvars.copy_context()
                    self._kept.append(context)
                    self._random.choice(self._kept).run(self._nested)
                case "gc" if self._random.random() < 0.1:
                    gc.collect(0)
                case _:
                    await asyncio.sleep(0)
        for end in reversed(ends):
            end()

    def _opened(self) -> Callable[[], None]:
        name = f"s{len(self.parents)}"
        self.parents[name] = self._innermost.get()
        timed = span(name)
        timed.__enter__()
        before = self._innermost.set(name)

        def end() -> None:
            self._innermost.reset(before)
            timed.__exit__(None, None, None)

        return end

    def _nested(self) -> None:
        ends = [self._opened()]
        if self._variables:
            self._random.choice(self._variables).set(1)
        ends.append(self._opened())
        for end in reversed(ends):
            end()


@pytest.mark.parametrize("programs", _PROGRAMS)
def test_each_span_has_the_parent_that_its_context_inherited(programs: int) -> None:
    # GIVEN the way that changes values in place, which this Python must allow
    assert _core.is_context_map_known()
    for seed in range(programs):
        program = _Program(seed)
        _core._reset()
        program.run()
        spans = {one.id: one for one in recorded()}
        parents = {
            one.stage: spans[one.parent].stage if one.parent else "" for one in spans.values()
        }
        assert parents == program.parents, seed
        assert lost() == {}
