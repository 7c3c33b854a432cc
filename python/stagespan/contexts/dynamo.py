"""Contexts in code that torch.compile captures: they do nothing there and do not break the graph.

`torch._dynamo` gets Python functions that replace the built-in ones of `_core` in a graph. This is
possible only after its import. This module waits for the import and never causes it.
"""

from __future__ import annotations

import importlib
import logging
import sys
import weakref
from collections.abc import Callable
from types import CellType, CodeType
from typing import Any, TypeVar

from stagespan import _core
from stagespan.contexts.layouts import CALLS
from stagespan.process.imports import ImportFinder

_F = TypeVar("_F")
_DYNAMO = "torch._dynamo"
_log = logging.getLogger("stagespan")
_registered = False
_left_alone: list[CodeType] = []
_skipped: weakref.WeakValueDictionary[int, CodeType] = weakref.WeakValueDictionary()
"""By their ids, because equal code objects are skipped independently of each other."""


_STAND_INS = (
    *("span", "ProfilingContext", "ProfilingContext4Debug", "begin", "end", "record"),
    *CALLS.values(),
)
"""The names of `_core` that compiled code replaces by those of `without_core`."""
cells = {kind: CellType(getattr(_core, name)) for kind, name in CALLS.items()}
"""What wrappers of each kind call: functions that torch.compile can capture in a graph."""


def _call_plainly_while_compiling() -> None:
    """Make wrappers call functions that ask whether torch.compile traces them."""
    from stagespan import without_core

    def unless_compiling(timed: Callable[..., Any], plain: Callable[..., Any]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return (plain if compiling() else timed)(*args, **kwargs)

        return call

    for kind, name in CALLS.items():
        timed, plain = getattr(_core, name), getattr(without_core, name)
        cells[kind].cell_contents = unless_compiling(timed, plain)


def compiling() -> bool:
    """Whether torch.compile or torch.export is tracing the caller. Never imports torch."""
    if "torch._dynamo" not in sys.modules:
        return False
    try:
        return bool(sys.modules["torch.compiler"].is_compiling())
    except (KeyError, AttributeError):  # another thread is importing torch
        return False


def leave_alone(*functions: Callable[..., Any]) -> None:
    """Make torch.compile skip these functions and everything that they call.

    If a decorated function is itself compiled, its hooks run under torch.compile, which would
    compile them like code of the model. With fullgraph=True that fails.
    """
    _left_alone.extend(function.__code__ for function in functions)


def skip_frame(code: CodeType) -> None:
    """Make torch.compile run this code as it is, and compile what it calls."""
    _skipped[id(code)] = code
    if _registered:
        _skip(code)


def install() -> None:
    """Make contexts no-ops in compiled code, now or as soon as torch._dynamo is imported."""
    if _DYNAMO in sys.modules:
        register()
    elif not any(isinstance(finder, _DynamoFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DynamoFinder())


def register() -> None:
    """Register the replacements with torch._dynamo, once per process.

    Call this only if torch._dynamo is in sys.modules. It never raises an exception: problems are
    logged, and compiled code that uses contexts then breaks its graph there.
    """
    global _registered
    if _registered:
        return
    _registered = True
    try:
        # It is already loaded, or another thread is loading it: this waits for that thread.
        dynamo = importlib.import_module(_DYNAMO)
        substitute = getattr(dynamo, "substitute_in_graph", None)
        if substitute is None:  # before torch 2.5
            _log.debug("This torch has no substitute_in_graph: contexts break compiled graphs.")
            _call_plainly_while_compiling()
            return
        from stagespan import without_core  # few programs need it

        for name in _STAND_INS:
            # The signatures are the same, but that of a C function does not compare equal.
            stand_in = getattr(without_core, name)
            substitute(getattr(_core, name), skip_signature_check=True)(stand_in)
        _skip_left_alone()
        for reference in _skipped.valuerefs():
            if (code := reference()) is not None:
                _skip(code)
    except Exception as error:
        _warn(error)
        _call_plainly_while_compiling()


def _skip_left_alone() -> None:
    eval_frame: Any = sys.modules.get(f"{_DYNAMO}.eval_frame")
    set_strategy = getattr(eval_frame, "set_code_exec_strategy", None)
    if set_strategy is None:  # an older torch
        return
    types: Any = importlib.import_module(f"{_DYNAMO}.types")
    skip = types.FrameAction.SKIP
    for code in _left_alone:
        set_strategy(code, types.FrameExecStrategy(skip, skip))


def _skip(code: CodeType) -> None:
    skip_code = getattr(sys.modules.get(f"{_DYNAMO}.eval_frame"), "skip_code", None)
    if skip_code is not None:  # otherwise it is still being imported, or it captures the code too
        skip_code(code)


def _warn(error: Exception) -> None:
    _log.warning(
        "stagespan could not register its contexts with torch.compile (%s: %s): "
        "compiled code that uses them breaks its graph there.",
        type(error).__name__,
        error,
    )


class _DynamoFinder(ImportFinder):
    """Waits for torch._dynamo."""

    def __init__(self) -> None:
        super().__init__(_DYNAMO, register, _warn)
