"""Spans as decorators.

The result for a plain function is a new plain function, which shares everything with the original
except its identity. The original stays untimed. The result for other callables is a C callable.
How the new function is timed depends on the version of Python:

- All versions except 3.11: `_core.time_function` intercepts its calls. The function does not
  change, unless it can become something that the interpreter calls without using the entry (see
  `_intercepts`): it then also gets other code, as on 3.11.
- 3.11: a plain function or coroutine function under an always-on context gets the code and the
  closure of a `wrapper`. In all other cases, a `trampoline` replaces its `__code__` while it is
  timed.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import weakref
from types import CellType, CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, cast

from stagespan import _core
from stagespan.contexts import switches, trampoline, wrapper
from stagespan.contexts.layouts import KINDS

if TYPE_CHECKING:
    from stagespan._core import Span

_INTERCEPTS_CALLS = sys.version_info < (3, 11) or sys.version_info >= (3, 12)
_INTERCEPTS_INIT = sys.version_info < (3, 13)
_INTERCEPTS_GETTERS = sys.version_info < (3, 14)

_log = logging.getLogger("stagespan")


class _Timed:
    """What is known about a decorated function that is no wrapper, without a reference to it."""

    __slots__ = ("codes", "spans")

    def __init__(self, spans: tuple[Span, ...]) -> None:
        self.spans = spans
        """The spans of all stacked decorators, innermost first."""
        self.codes: dict[tuple[int, tuple[Span, ...]], CodeType] = {}
        """Trampolines by the id of the original code and by spans, so that switches reuse them."""

    def code(self, plain: CodeType, spans: tuple[Span, ...]) -> CodeType:
        """Return the code that times ``plain`` by ``spans``, the innermost first."""
        cached = self.codes.get((id(plain), spans))
        if cached is None:
            timed = plain
            for span in spans:
                timed = trampoline.timed_code(timed, trampoline.key_of(span))
            cached = self.codes.setdefault((id(plain), spans), timed)
        return cached

    def active(self) -> tuple[Span, ...]:
        """Return the spans that time the function while the switches are as they are now."""
        if not _core.is_enabled():
            return ()
        if _core.is_debug():
            return self.spans
        return tuple(span for span in self.spans if span.kind != "debug")


class _InPlace(_Timed):
    """The same about a function that existed before, whose code never changes."""


_functions: weakref.WeakKeyDictionary[FunctionType, _Timed] = weakref.WeakKeyDictionary()


def can_time_in_place(function: FunctionType) -> bool:
    """Whether `time_in_place` reaches the calls of a function, and nothing times it yet.

    It does not on Python 3.11, and where later versions call a function in another way.
    """
    is_reached = _INTERCEPTS_CALLS and (_INTERCEPTS_INIT or function.__name__ != "__init__")
    return is_reached and not contexts_of(function)


def time_in_place(span: Span, function: FunctionType) -> None:
    """Time an existing function by `span`, wherever it is held. Its code does not change."""
    timed = _functions[function] = _InPlace((span,))
    _apply(function, timed)


def follow_switches() -> None:
    """Start or stop timing the decorated functions after a switch has changed."""
    # There is no lock, because a signal handler that decorates a function would wait for it
    # forever. Instead, `_apply` checks the switches again after it has applied them, and each
    # function is in the table before its first check.
    for reference in _functions.keyrefs():
        function = reference()
        timed = None if function is None else _functions.get(function)
        if function is not None and timed is not None:
            _apply(function, timed)


def contexts_of(function: object) -> tuple[Span, ...]:
    """Return the spans that decorate a callable, innermost first."""
    if type(function) is FunctionType:
        below = wrapper.wrapped_by(function)
        outer = _spans_of(function)
        return outer if below is None else (*contexts_of(below[1]), below[0], *outer)
    if isinstance(function, (classmethod, staticmethod, MethodType)):
        return contexts_of(function.__func__)
    if isinstance(function, (functools.partial, functools.partialmethod)):
        return contexts_of(function.func)
    span = _core.timed_by(function)
    if span is None:
        return ()
    return (*contexts_of(cast(Any, function).__wrapped__), span)


def decorate(span: Span, function: Any) -> Any:
    """Return a callable that calls `function`, timed by `span`.

    The result for a plain function is a plain function. Bound methods, `functools.partial`,
    classmethods and staticmethods keep their type. The result for any other callable is a C
    callable. Raises TypeError if `function` is a class or a property, or cannot be called.
    """
    if type(function) is FunctionType:
        return _decorate_function(span, function)
    if isinstance(function, (classmethod, staticmethod)):
        wrapped = cast(Any, type(function))(decorate(span, function.__func__))
        for name, value in vars(function).items():
            vars(wrapped).setdefault(name, value)
        return wrapped
    if isinstance(function, MethodType):
        return MethodType(decorate(span, function.__func__), function.__self__)
    if isinstance(function, functools.partialmethod):
        return functools.partialmethod(
            decorate(span, function.func), *function.args, **function.keywords
        )
    if type(function) is functools.partial and isinstance(
        function.func, (FunctionType, MethodType)
    ):
        partial = functools.partial(
            decorate(span, function.func), *function.args, **function.keywords
        )
        vars(partial).update(vars(function))
        return partial
    _refuse(span, function)
    call = type(function).__call__
    if type(call) is FunctionType and call.__code__.co_flags & KINDS:
        # `inspect` recognises a bound method as a coroutine function, but not a C callable.
        return MethodType(_decorate_function(span, call), function)
    return _core.TimedFunction(span, function)


def _refuse(span: Span, function: Any) -> None:
    if isinstance(function, type):
        raise TypeError(
            f"{function.__name__} is a class, which a context cannot decorate: decorate its "
            f"methods, or put the block that builds it under `with`."
        )
    if isinstance(function, (property, functools.cached_property)):
        raise TypeError(
            f"{span.name!r} decorates a property, which it cannot time: put the decorator below "
            f"@{type(function).__name__}, on the getter."
        )
    if not callable(function):
        raise TypeError(
            f"{span.name!r} decorates {function!r}, which cannot be called: decorate a function, "
            f"or time a block with `with`."
        )


def _decorate_function(span: Span, function: FunctionType) -> FunctionType:
    kind = function.__code__.co_flags & KINDS
    if not _intercepts(function) and span.kind != "debug":
        fresh = fresh_function(function, *wrapper.wrapper_parts(span, function))
        if sys.version_info >= (3, 13) and not kind:
            _core.time_function(fresh, (span,), wrapper.inner_cell(fresh))
        return fresh
    spans = (*_spans_of(function), span)
    fresh = fresh_function(function)
    timed = _functions[fresh] = _Timed(spans)
    if timed.active() or len(spans) > 1:
        _apply(fresh, timed)
    return fresh


def _intercepts(function: FunctionType) -> bool:
    """Whether all calls of a function go through its entry, which can be replaced.

    Python 3.11 never uses the entry. Python 3.13 and later do not use that of an `__init__` where
    the same call creates an object of the same class again, and Python 3.14 does not use that of a
    property's getter where an attribute is read again. Any function whose parameters suit may
    become one of them later.
    """
    code = function.__code__
    has_more = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    if has_more or code.co_kwonlyargcount or not code.co_argcount:
        return _INTERCEPTS_CALLS
    may_be_init = not code.co_flags & KINDS
    may_be_getter = code.co_argcount == 1
    return (
        _INTERCEPTS_CALLS
        and (_INTERCEPTS_INIT or not may_be_init)
        and (_INTERCEPTS_GETTERS or not may_be_getter)
    )


def fresh_function(
    function: FunctionType,
    code: CodeType | None = None,
    closure: tuple[CellType, ...] | None = None,
) -> FunctionType:
    """Return a new function that shares everything except its identity with `function`.

    It does not need `__wrapped__`, because it has the signature of the original. It also has the
    same `__dict__`, so an attribute set on one of them appears on the other. If `code` is given,
    the new function has this code and `closure` instead of those of `function`.
    """
    fresh = FunctionType(
        code or function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        closure if code else function.__closure__,
    )
    fresh.__kwdefaults__ = function.__kwdefaults__
    if sys.version_info >= (3, 14):  # reading annotations there would evaluate them
        fresh.__annotate__ = function.__annotate__
    else:
        fresh.__annotations__ = function.__annotations__
    fresh.__dict__ = function.__dict__
    fresh.__qualname__ = function.__qualname__
    fresh.__module__ = function.__module__
    fresh.__doc__ = function.__doc__
    if sys.version_info >= (3, 12):
        fresh.__type_params__ = function.__type_params__
        _core.share_version(fresh, function)
    return fresh


def decorated_function(target: Any) -> Any:
    """Return the decorated function to which a trampoline's `target` belongs, or `target` itself.

    The target has only the code and the closure. Only the function has the signature that callers
    see, because it also has the defaults, the attributes and the data of `functools.wraps`.
    """
    if type(target) is not FunctionType:
        return target
    reference = _by_parts.get(_parts(target))
    function = reference() if reference is not None else None
    return target if function is None else function


# A trampoline creates a new target for each call, but always from the same code and cells.
_by_parts: dict[tuple[int, ...], weakref.ref[FunctionType]] = {}


def _parts(function: FunctionType) -> tuple[int, ...]:
    code, _ = trampoline.layers(function.__code__)
    return (id(code), *map(id, function.__closure__ or ()))


def _remember_parts(function: FunctionType) -> None:
    parts = _parts(function)

    def forget(gone: weakref.ref[FunctionType]) -> None:
        # This runs before the parts are freed, so other objects cannot have their ids yet.
        if _by_parts.get(parts) is gone:
            del _by_parts[parts]

    reference = _by_parts.get(parts)
    if reference is None or reference() is not function:
        _by_parts[parts] = weakref.ref(function, forget)


def _spans_of(function: FunctionType) -> tuple[Span, ...]:
    """Return the spans of a function itself, without those of functions that it wraps."""
    timed = _functions.get(function)
    if timed is not None:
        return timed.spans
    # `function` may be a copy of a decorated function that was made while that was timed.
    return tuple(trampoline.spans[key] for key in trampoline.layers(function.__code__)[1])


def _apply(function: FunctionType, timed: _Timed) -> None:
    try:
        applied = None
        # Another thread, or a handler that interrupted this one, may change the switches and apply
        # them in the meantime.
        while (active := timed.active()) != applied:
            _time_by(function, timed, active)
            applied = active
    except Exception as error:
        _core.lost_add("decorator_errors")
        _log.warning("stagespan cannot time %s: %s", function.__qualname__, error)


def _time_by(function: FunctionType, timed: _Timed, active: tuple[Span, ...]) -> None:
    is_in_place = isinstance(timed, _InPlace)
    if (sys.version_info < (3, 11) or sys.version_info >= (3, 12)) and (
        is_in_place or _intercepts(function)
    ):
        _core.time_function(function, active)
        return
    code, _ = trampoline.layers(function.__code__)
    if active:
        _remember_parts(function)
        code = timed.code(code, active)
    if function.__code__ is not code:
        function.__code__ = code


switches.on_switch(follow_switches)
