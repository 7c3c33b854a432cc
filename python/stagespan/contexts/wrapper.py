"""Functions that time a plain function where not all of its calls can be intercepted.

That is on Python 3.11, on 3.13 and later for what can become an `__init__`, and on 3.14 for what
can become the getter of a property.

A wrapper has the same kind (such as coroutine function), the same parameters, the same place in the
source file and the same globals. It has the free variables of the function and three of its own:

    def denoise(self, latents, /, *, steps, **options):
        return _stagespan_call(
            _stagespan_span, _stagespan_function, self, latents, steps=steps, **options
        )

torch.compile runs the wrapper itself without compiling it, and compiles the function. If it
compiles a caller, it inlines both; `dynamo` makes the call in between do nothing else.
"""

from __future__ import annotations

import collections
import weakref
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING

from stagespan.contexts import dynamo
from stagespan.contexts.layouts import KINDS, Layout

if TYPE_CHECKING:
    from stagespan._core import Span

_OWN = ("_stagespan_call", "_stagespan_function", "_stagespan_span")
# Codes by all that determines them. torch.compile knows functions by their code, so functions that
# are made by the same `def` share it, also those that do not exist at the same time.
_codes: weakref.WeakValueDictionary[tuple[object, ...], CodeType] = weakref.WeakValueDictionary()
_latest: collections.deque[CodeType] = collections.deque(maxlen=1024)


def wrapper_parts(span: Span, function: FunctionType) -> tuple[CodeType, tuple[CellType, ...]]:
    """Return the code and the closure of a function that times `function` by `span`."""
    innermost = function
    while (below := wrapped_by(innermost)) is not None:
        _, innermost = below
    call = dynamo.cells[innermost.__code__.co_flags & KINDS]
    own = (call, CellType(function), CellType(span))
    return _code(innermost.__code__), (*(innermost.__closure__ or ()), *own)


def wrapped_by(function: FunctionType) -> tuple[Span, FunctionType] | None:
    """Return the span and the function below, if `function` is a wrapper or a copy of one."""
    if function.__code__.co_freevars[-len(_OWN) :] != _OWN:
        return None
    _, below, span = (cell.cell_contents for cell in (function.__closure__ or ())[-len(_OWN) :])
    return span, below


def inner_cell(function: FunctionType) -> CellType:
    """Return the cell of a wrapper that contains the function below."""
    return (function.__closure__ or ())[-len(_OWN) + _OWN.index("_stagespan_function")]


def _code(code: CodeType) -> CodeType:
    layout = Layout(code)
    key = (
        *(code.co_filename, code.co_firstlineno, code.co_name, code.co_flags, code.co_freevars),
        *(layout.definition, layout.parameters, getattr(code, "co_qualname", None)),
    )
    made = _codes.get(key)
    if made is None:
        # If another thread has made the same one meanwhile, that one is used.
        made = _codes.setdefault(key, _compile(code, layout))
        _latest.append(made)
        dynamo.skip_frame(made)
    return made


def _compile(code: CodeType, layout: Layout) -> CodeType:
    call, function, span = _OWN
    source = (
        f"def outer({', '.join((*layout.free, *_OWN))}):\n"
        f"  def wrapper({layout.definition}):\n"
        # This makes the wrapper have all free variables, and costs nothing.
        f"    if 0: {'; '.join(layout.free) or 'pass'}\n"
        f"    return ({layout.before}{call}({span}, {function}, {layout.timed_call}))\n"
    )
    return layout.renamed(layout.compiled(source))
