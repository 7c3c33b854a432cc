"""``stagespan run --auto``: times the functions with most time while the program goes on.

It runs in the thread of the sampler, so it imports nothing and takes no lock of the program.
"""

from __future__ import annotations

import sys
from types import FunctionType

from stagespan import _core
from stagespan.contexts import decorators, named
from stagespan.process import command
from stagespan.sampling.calls import Call, roles_of
from stagespan.sampling.rows import rows_of
from stagespan.sampling.stacks import read_process
from stagespan.sampling.stages import MOST_STAGES, best_of, found_by_name

TIMED, LEFT = "auto", "not timed"
"""The kinds of lines in the log of the command, with the place of a function, and its stage or why
it was only sampled."""


class Auto:
    """Chooses functions of this process, and times them from their next call on."""

    def __init__(self) -> None:
        self._stages: dict[str, str] = {}
        """The places of timed functions, and the names of their stages."""
        self._left: dict[str, str] = {}
        """Those of functions that are sampled only, and why."""

    def __call__(self, text: str) -> bool:
        """Choose by what the sampler has seen. Returns True if nothing more will be chosen."""
        (role,) = roles_of([read_process(text)]) or (None,)
        if role is None:
            return False
        for call in best_of(rows_of(role.top), self._why_not):
            place = str(call.place)
            if place not in self._stages and len(self._stages) < MOST_STAGES:
                self._time(call, place)
        return len(self._stages) == MOST_STAGES

    def _why_not(self, call: Call) -> str | None:
        place = str(call.place)
        if place in self._stages:
            return None
        if place not in self._left:
            why = _why_not(call)
            if why is None:
                return None
            self._left[place] = why
            command.tell(LEFT, place, why)
        return self._left[place]

    def _time(self, call: Call, place: str) -> None:
        stage = named.NamedStage(place)
        name = stage.name if stage.name not in self._stages.values() else place
        span = _core.span(name)
        located = found_by_name(call)
        if located is None:  # it has been removed since
            return
        try:
            if _is_in_place(located.function):
                decorators.time_in_place(span, located.function)
            else:
                named.wrap_in(sys.modules[stage.module], stage, lambda _: span)
        except Exception as error:
            self._left[place] = str(error) or type(error).__name__
            command.tell(LEFT, place, self._left[place])
            return
        self._stages[place] = name
        command.tell(TIMED, place, name)


def _is_in_place(function: object) -> bool:
    """Whether a function can be timed where it is, so that it does not matter what holds it."""
    return type(function) is FunctionType and decorators.can_time_in_place(function)


def _why_not(call: Call) -> str | None:
    """Return why a function must stay as it is, or None."""
    located = found_by_name(call)
    if located is None:
        return "it is not found by its name"
    if decorators.contexts_of(located.function):
        return "the program times it itself"
    is_in_place = _is_in_place(located.function)
    torch = named.seen_by_torch(located.function, located.owner, is_replaced=not is_in_place)
    if torch is not None:
        return f"{torch} has seen it"
    if is_in_place or not located.is_same or call.code is None:
        return None
    if named.is_held(call.code.file, located.path):
        return "this version of Python can time it by its name only, and the program holds it"
    return None
