"""Functions of a sampled program that would make good stages, and the command that times them."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from stagespan.contexts import named
from stagespan.sampling.calls import Call
from stagespan.sampling.rows import Row

_MOST_STAGES = 6
_LEAST_SHARE = 0.05


def suggested(rows: Iterable[Row]) -> list[str]:
    """Return MODULE:FUNCTION of at most six calls of rows, in their order.

    These are the calls with most time; if there are more, those whose time is not in other rows.
    """
    places: dict[str, Row] = {}
    for row in rows:
        call = _best_of(row) if row.share >= _LEAST_SHARE else None
        if call is not None and call.place is not None:
            places.setdefault(call.place, row)
    best = sorted(places, key=lambda place: (not places[place].mostly, -places[place].share))
    return [place for place in places if place in best[:_MOST_STAGES]]


def command_line(stages: Sequence[str], program: Sequence[str]) -> str:
    """Return the command that times stages of a program, which is what follows `stagespan run`."""
    parts = ["stagespan run", *(f"--stage {shlex.quote(stage)}" for stage in stages)]
    return " \\\n  ".join([*parts, shlex.join(program)])


def magic_line(stages: Sequence[str]) -> str:
    """Return the first line of a cell of a notebook that times stages."""
    names = (shlex.quote(stage.removeprefix("__main__:")) for stage in stages)
    return " ".join(["%%stagespan", *(f"--stage {name}" for name in names)])


def _best_of(row: Row) -> Call | None:
    """Return the innermost call of a row that can be timed, if possible one of the user's code."""
    calls = [call for call in reversed(row.calls) if _can_be_timed(call)]
    return next((call for call in calls if call.is_of_user), calls[0] if calls else None)


def _can_be_timed(call: Call) -> bool:
    """Whether ``--stage`` reaches a function, as far as this process can tell."""
    if call.place is None or call.code is None:
        return False
    module_name, _, path = call.place.partition(":")
    owner: Any = sys.modules.get(module_name)
    if owner is None:
        return True  # only other processes have imported it
    *parents, last = path.split(".")
    try:
        for part in parents:
            owner = getattr(owner, part)
        attribute = inspect.getattr_static(owner, last)
    except AttributeError:
        return False
    function = getattr(attribute, "__func__", attribute)
    if isinstance(attribute, type) or not (callable(function) or isinstance(attribute, property)):
        return False
    code = getattr(function, "__code__", None)
    is_same = code is not None and (code.co_filename, code.co_firstlineno) == (
        call.code.file,
        call.code.line,
    )
    if code is not None and named.is_compiled(code):
        return False
    # A decorator that returned the function itself has probably registered it, as routes are.
    return not (is_same and named.is_held(call.code.file, path))
