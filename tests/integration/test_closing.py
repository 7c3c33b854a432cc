"""Sums are exact: a parent's time is its children's and its own, for any arrangement of spans."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recording import assert_closed, lost, recorded

import stagespan
from properties import examples
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, span

pytestmark = pytest.mark.usefixtures("fresh")

NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f", "g"])


@dataclass
class Node:
    """A span, the form of its code, and the spans inside it."""

    name: str
    form: str
    fails: bool
    children: list[Node]

    def count(self, into: Counter[str]) -> Counter[str]:
        into[self.name] += 1
        for child in self.children:
            child.count(into)
        return into


SYNC_FORMS = ("with", "decorated", "generator", "left open", "profiling")
ASYNC_FORMS = ("async with", "coroutine", "async generator", "task", "gather", "thread")


def trees(forms: tuple[str, ...]) -> st.SearchStrategy[Node]:
    """Return nodes of these forms, a few levels deep."""

    def node(children: st.SearchStrategy[list[Node]]) -> st.SearchStrategy[Node]:
        return st.builds(Node, NAMES, st.sampled_from(forms), st.booleans(), children)

    leaf = node(st.just([]))
    return st.recursive(leaf, lambda nodes: node(st.lists(nodes, max_size=4)), max_leaves=25)


class _Failed(Exception):
    """Raised inside a span, and caught directly outside of it."""


def spend() -> None:
    """Take a short time."""
    sum(range(200))


# --- running a tree -------------------------------------------------------------------------------


def body(node: Node) -> None:
    """Run what is inside a span."""
    spend()
    for child in node.children:
        run(child)
    spend()
    if node.fails:
        raise _Failed


def guarded(call: Callable[..., Any], *args: Any) -> None:
    """Call, and catch what was raised on purpose."""
    try:
        call(*args)
    except _Failed:
        spend()


def in_block(node: Node, make: Callable[[str], _core.Span] = span) -> None:
    with make(node.name):
        body(node)


def as_function(node: Node) -> None:
    span(node.name)(body)(node)


def as_generator(node: Node) -> None:
    """Run the children in the turns of a generator, with other work in between."""

    @span(node.name)
    def generate() -> Iterator[int]:
        for i, child in enumerate(node.children):
            run(child)
            yield i
            spend()
        if node.fails:
            raise _Failed

    for _ in generate():
        spend()


def left_in_order(node: Node) -> None:
    """Enter a second span inside the first, and leave the first one first."""
    first, second = span(node.name), span(node.name)
    first.__enter__()
    spend()
    second.__enter__()
    guarded(body, node)
    first.__exit__(None, None, None)
    spend()
    second.__exit__(None, None, None)


def run(node: Node) -> None:
    """Run a node in its form."""
    if node.form == "left open":
        left_in_order(node)
        return
    forms: dict[str, Callable[[Node], None]] = {
        "with": in_block,
        "decorated": as_function,
        "generator": as_generator,
        "profiling": lambda node: in_block(node, ProfilingContext),
    }
    # Code of plain functions cannot await, so a block is used instead.
    guarded(forms.get(node.form, in_block), node)


# --- the same in tasks ----------------------------------------------------------------------------


async def async_body(node: Node) -> None:
    spend()
    await asyncio.sleep(0)
    if node.form == "gather":
        await asyncio.gather(*(async_run(child) for child in node.children))
    else:
        for child in node.children:
            await async_run(child)
    if node.fails:
        raise _Failed


async def async_run(node: Node) -> None:
    """Run a node, with turns of other tasks in it."""
    try:
        if node.form in ("async with", "gather"):
            async with span(node.name):
                await async_body(node)
        elif node.form == "coroutine":
            await span(node.name)(async_body)(node)
        elif node.form == "async generator":
            await drained(node)
        elif node.form == "task":
            await asyncio.create_task(span(node.name)(async_body)(node))
        elif node.form == "thread":
            await asyncio.to_thread(in_own_loop, node)
        else:
            run(node)
    except _Failed:
        spend()


def in_own_loop(node: Node) -> None:
    with span(node.name):
        asyncio.run(async_body(node))


async def drained(node: Node) -> None:
    @span(node.name)
    async def generate() -> AsyncIterator[int]:
        for i, child in enumerate(node.children):
            await async_run(child)
            yield i
            await asyncio.sleep(0)
        if node.fails:
            raise _Failed

    async for _ in generate():
        spend()


# --- what must hold -------------------------------------------------------------------------------


def counted(nodes: list[Node]) -> Counter[str]:
    """Return the number of spans of each name that the nodes should have created."""
    result: Counter[str] = Counter()

    def visit(node: Node) -> None:
        result[node.name] += 2 if node.form == "left open" else 1
        for child in node.children:
            visit(child)

    for node in nodes:
        visit(node)
    return result


def assert_right(nodes: list[Node]) -> None:
    stages = _core.snapshot().stages()
    # Counts are exact, in the statistics and in the records.
    wanted = counted(nodes)
    assert {name: stage.count for name, stage in stages.items()} == wanted
    spans = recorded()
    assert Counter(span.stage for span in spans) == wanted
    assert lost() == {}
    assert _core.open_spans() == []
    # All times add up.
    assert_closed()
    for name, stage in stages.items():
        durations = sorted(span.duration_ns for span in spans if span.stage == name)
        # The rate of the clock may be measured anew between the readings (some ppm).
        assert stage.total_ns == pytest.approx(sum(durations), rel=1e-4, abs=2 * len(durations))
        assert stage.errors == sum(span.failed for span in spans if span.stage == name)
        median = durations[(len(durations) + 1) // 2 - 1]
        assert stage.p50_ns == pytest.approx(median, rel=0.03, abs=2)
        edges: Counter[str | None] = Counter()
        by_id = {span.id: span for span in spans}
        for one in spans:
            if one.stage == name:
                edges[by_id[one.parent].stage if one.parent else None] += 1
        if "(several)" not in stage.parents:
            assert {parent: count for parent, (count, _) in stage.parents.items()} == edges


SETTINGS = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SETTINGS
@given(st.lists(trees(SYNC_FORMS), max_size=4), st.booleans())
def test_spans_of_one_thread(nodes: list[Node], debug: bool) -> None:
    # GIVEN any tree of blocks, decorated functions and generators, some of which raise
    stagespan.set_debug(debug)
    _core._reset()

    for node in nodes:
        run(node)

    assert_right(nodes)


@SETTINGS
@given(st.lists(trees((*SYNC_FORMS, *ASYNC_FORMS)), max_size=3))
def test_spans_of_tasks_and_threads(nodes: list[Node]) -> None:
    # GIVEN any such tree with coroutines, async generators, tasks, gathers and threads too
    _core._reset()

    async def main() -> None:
        await asyncio.gather(*(async_run(node) for node in nodes))

    asyncio.run(main())

    assert_right(nodes)


@settings(SETTINGS, max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["enter", "leave", "switch"]))))
def test_spans_entered_and_left_in_any_order(steps: list[tuple[int, str]]) -> None:
    # GIVEN objects that are entered and left at random, while the recorder is switched on and off
    _core._reset()
    stagespan.enable()
    objects = [(span, ProfilingContext, ProfilingContext4Debug)[i % 3](f"s{i}") for i in range(6)]
    entered: Counter[int] = Counter()

    for which, what in [*steps, *((i, "leave") for i in range(6) for _ in range(len(steps)))]:
        if what == "enter":
            objects[which].__enter__()
            entered[which] += 1
        elif what == "leave" and entered[which]:
            objects[which].__exit__(None, None, None)
            entered[which] -= 1
        elif what == "switch":
            (stagespan.disable if stagespan.is_enabled() else stagespan.enable)()
        spend()
    stagespan.enable()

    assert lost() == {}
    assert _core.open_spans() == []
    assert_closed()
