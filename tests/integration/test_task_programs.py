"""Random programs of tasks, contexts and context variables, against a variable of their own.

Contexts are copied, kept by generators, entered again and again, twice at once, and in threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import random
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator

import pytest
from recording import lost, recorded

from running import ran
from stagespan import _core, span

pytestmark = pytest.mark.usefixtures("fresh")

_MANY = 14_000
"""About half a million spans; the four ranges of programs have two million."""
_STEPS = ("span", "span", "end", "set", "turn", "task", "copy", "kept", "twice", "thread", "gc")
_PROGRAMS = [
    pytest.param(range(40), id="few"),
    *(
        pytest.param(range(first, first + _MANY), id=f"from {first}", marks=pytest.mark.full)
        for first in range(0, 4 * _MANY, _MANY)
    ),
]


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
        self._generators: list[Iterator[None]] = []
        self._numbers = itertools.count()
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
            match self._random.choice(_STEPS):
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
                case "kept":
                    self._generators.append(self._in_kept_context())
                    next(self._random.choice(self._generators))
                case "twice":
                    context = contextvars.copy_context()
                    context.run(self._entered_twice, context)
                case "thread" if self._random.random() < 0.1:
                    await asyncio.to_thread(self._nested)
                case "gc" if self._random.random() < 0.1:
                    gc.collect(0)
                case _:
                    await asyncio.sleep(0)
        for end in reversed(ends):
            end()

    def _in_kept_context(self) -> Iterator[None]:
        context = contextvars.copy_context()
        while True:
            context.run(self._nested)
            yield

    def _entered_twice(self, context: contextvars.Context) -> None:
        end = self._opened()
        with pytest.raises(RuntimeError, match="already entered"):
            context.run(self._opened)
        self._nested()
        end()

    def _opened(self) -> Callable[[], None]:
        name = f"s{next(self._numbers)}"
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
def test_each_span_has_the_parent_that_its_context_inherited(programs: range) -> None:
    # GIVEN the way that changes values in place, which this Python must allow
    assert _core.is_context_map_known()
    for seed in programs:
        program = _Program(seed)
        _core._reset()
        program.run()
        spans = {one.id: one for one in recorded()}
        parents = {
            one.stage: spans[one.parent].stage if one.parent else "" for one in spans.values()
        }
        assert parents == program.parents, seed
        assert lost() == {}


_VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_DEBUG_BUILD = shutil.which(f"{_VERSION}-dbg") or shutil.which(f"{_VERSION}d")
_IN_THIS_ENVIRONMENT = """
import runpy, site, sys
assert hasattr(sys, "gettotalrefcount")
site.addsitedir(sys.argv.pop(1))
runpy.run_module("pytest", run_name="__main__", alter_sys=True)
"""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(_DEBUG_BUILD is None, reason=f"there is no debug build of {_VERSION}")
def test_they_have_it_in_a_debug_build_of_python() -> None:
    assert _DEBUG_BUILD is not None
    # WHEN a debug build, whose extensions are those of this Python, runs some programs
    command = [_DEBUG_BUILD, "-c", _IN_THIS_ENVIRONMENT, sysconfig.get_path("purelib")]
    done = ran([*command, "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not full", __file__])
    # THEN values are changed in place there, too, and each span has its parent
    assert "1 passed" in done.stdout, done.stdout + done.stderr
