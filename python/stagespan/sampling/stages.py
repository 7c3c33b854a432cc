"""Functions of a sampled program that would make good stages, and the command that times them."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from stagespan.contexts import named
from stagespan.sampling.calls import Call
from stagespan.sampling.rows import Row

MOST_STAGES = 6
"""The most functions that are suggested, or timed by ``--auto``."""
_LEAST_SHARE = 0.05


def suggested(rows: Iterable[Row]) -> list[str]:
    """Return MODULE:FUNCTION of at most six calls of rows, in their order.

    These are the calls with most time; if there are more, those whose time is not in other rows.
    """
    return [str(call.place) for call in best_of(rows, _why_not_named)]


def best_of(rows: Iterable[Row], why_not: Callable[[Call], str | None]) -> list[Call]:
    """Return one call of each of at most six rows: those with most time, in their order.

    ``why_not`` says why a call cannot be timed. If possible, the calls are of the user's code, and
    not a function that several rows share.
    """
    by_place: dict[str, tuple[Row, Call]] = {}
    large = [row for row in rows if row.share >= _LEAST_SHARE]
    uses = Counter(place for row in large for place in {call.place for call in row.calls})
    for row in large:
        calls = [each for each in reversed(row.calls) if each.place and not why_not(each)]
        if calls:
            call = min(calls, key=lambda each: (not each.is_of_user, uses[each.place] > 1))
            by_place.setdefault(str(call.place), (row, call))
    by_time = sorted(by_place.values(), key=lambda pair: (not pair[0].mostly, -pair[0].share))
    best = {call.place for _, call in by_time[:MOST_STAGES]}
    return [call for _, call in by_place.values() if call.place in best]


def command_line(stages: Sequence[str], program: Sequence[str]) -> str:
    """Return the command that times stages of a program, which is what follows `stagespan run`."""
    parts = ["stagespan run", *(f"--stage {shlex.quote(stage)}" for stage in stages)]
    return " \\\n  ".join([*parts, shlex.join(program)])


def _why_not_named(call: Call) -> str | None:
    """Return why ``--stage`` does not reach a function, as far as this process can tell."""
    if sys.modules.get(str(call.place).partition(":")[0]) is None:
        return None  # only other processes have imported it
    located = found_by_name(call)
    if located is None:
        return "it is not found by its name"
    code = getattr(located.function, "__code__", None)
    if code is not None and named.is_compiled(code):
        return "torch.compile has compiled it"
    # A decorator that returned the function itself has probably registered it, as routes are.
    if located.is_same and call.code is not None and named.is_held(call.code.file, located.path):
        return "the program holds the function itself"
    return None


class Found(NamedTuple):
    """A callable that is found by its name."""

    path: str
    owner: Any
    """The module or class that has it."""
    function: Any
    """It without staticmethod, classmethod or property."""
    is_same: bool
    """Whether it is the function that was sampled, and not one that calls it."""


def found_by_name(call: Call) -> Found | None:
    """Return what a call's place names in this process; None if that cannot be timed."""
    module_name, _, path = str(call.place).partition(":")
    try:
        owner, last = named.owner_in(sys.modules[module_name], path)
        attribute = inspect.getattr_static(owner, last)
    except (AttributeError, KeyError):
        return None
    function = getattr(attribute, "__func__", attribute)
    if isinstance(attribute, property):
        function = attribute.fget
    if isinstance(function, type) or not callable(function):
        return None
    code = getattr(function, "__code__", None)
    is_same = (
        code is not None
        and call.code is not None
        and (code.co_filename, code.co_firstlineno) == (call.code.file, call.code.line)
    )
    return Found(path, owner, function, is_same)
