"""Finds tracers and profilers of Python code in this process, and suspends the one that allows it.

They make Python code several times slower, so times that are measured meanwhile are not those of
the program.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_MODULES = {"_lsprof": "cProfile", "bdb": "pdb", "_pydevd_bundle": "pydevd"}
"""What people call the tracers and profilers of some modules."""


def active_tracers() -> tuple[str, ...]:
    """Return the names of the tracers and profilers that `untraced` does not suspend."""
    tracers: list[object] = [sys.gettrace(), threading.gettrace()]
    functions = [tracer for tracer in tracers if not _comes_back(tracer)]
    functions += [sys.getprofile(), threading.getprofile()]
    names = [_name(function) for function in functions if function is not None]
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    tools = () if monitoring is None else map(monitoring.get_tool, range(6))
    return tuple(dict.fromkeys([*names, *(str(tool) for tool in tools if tool is not None)]))


def untraced(function: Callable[[], _T]) -> _T:
    """Call a function while a tracer that comes back by itself is suspended.

    That is the tracer in C of coverage: given to `sys.settrace` again, it goes on in the frames
    that were open, because it keeps its own stack of them. Tracers in Python would not, as the
    local trace functions of frames are theirs to set.
    """
    tracer, of_threads = sys.gettrace(), threading.gettrace()
    is_suspended = tracer is not None and _comes_back(tracer)
    if is_suspended:
        if _comes_back(of_threads):
            threading.settrace(None)
        sys.settrace(None)  # not in another function, whose return the tracer would miss
    try:
        return function()
    finally:
        if is_suspended and sys.gettrace() is None:
            if threading.gettrace() is None:
                threading.settrace(of_threads)
            sys.settrace(tracer)
            _call_nothing()


def is_tracer_suspended() -> bool:
    """Whether `untraced` suspends a tracer when it is called here."""
    return sys.gettrace() is not None and _comes_back(sys.gettrace())


def _call_nothing() -> None:
    """Be called: the tracer of coverage installs itself in C when it sees a call."""


def _comes_back(tracer: object) -> bool:
    if tracer is None:
        return True
    owner = getattr(tracer, "__self__", tracer)
    kind = type(owner)
    is_coverage = kind.__module__.partition(".")[0] == "coverage"
    # The collector starts the tracers of new threads.
    return is_coverage and kind.__name__ in ("CTracer", "Collector")


def _name(tracer: object) -> str:
    owner = getattr(tracer, "__self__", tracer)
    modules = {kind.__module__.partition(".")[0] for kind in type(owner).__mro__}
    module = str(getattr(owner, "__module__", None) or type(owner).__module__).partition(".")[0]
    for each in (*sorted(modules), module):
        if each in _MODULES:
            return _MODULES[each]
    what = "a trace function" if tracer in (sys.gettrace(), threading.gettrace()) else "a profiler"
    is_function = callable(owner) and hasattr(owner, "__code__")
    return f"{what} of {module}" if is_function else module
