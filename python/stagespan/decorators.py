"""Spans as decorators: a fresh plain function for a plain function, a C callable for the rest.

The fresh function shares everything with the original but its identity, so that it can be timed
while other references to the original stay as they are. How it is timed depends on Python:

- 3.12 and later: `_core.time_function` intercepts its calls; nothing in it changes.
- 3.10 and 3.11: its `__code__` is replaced by a trampoline while it is timed, and put back while
  it is not. Always-on contexts around plain synchronous functions use the faster C callable.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import weakref
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from stagespan import _core, context, trampoline

if TYPE_CHECKING:
    from stagespan._core import Span

_F = TypeVar("_F")
_INTERCEPTS_CALLS = sys.version_info >= (3, 12)
_NOT_SYNCHRONOUS = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR

_log = logging.getLogger("stagespan")


class _Timed:
    """What is known of a fresh function; it holds nothing that could refer to the function."""

    __slots__ = ("codes", "spans")

    def __init__(self, spans: tuple[Span, ...]) -> None:
        self.spans = spans
        """Innermost first: decorators stack."""
        self.codes: dict[tuple[int, tuple[Span, ...]], CodeType] = {}
        """Trampolines by id of the code below and spans: each switch must find the same objects."""

    def code(self, plain: CodeType, qualname: str, spans: tuple[Span, ...]) -> CodeType:
        known = self.codes.get((id(plain), spans))
        if known is None:
            made = plain
            for span in spans:
                made = trampoline.timed_code(made, qualname, trampoline.key_of(span))
            known = self.codes.setdefault((id(plain), spans), made)
        return known

    def active(self) -> tuple[Span, ...]:
        """The spans that time the function as the recorder and debug mode are now."""
        if not _core.is_enabled():
            return ()
        if _core.is_debug():
            return self.spans
        return tuple(span for span in self.spans if span.kind != "debug")


_functions: weakref.WeakKeyDictionary[FunctionType, _Timed] = weakref.WeakKeyDictionary()


def decorate(span: Span, function: _F) -> _F:
    """Return a callable of the same kind as `function` whose calls `span` times.

    A plain function gives a plain function, a bound method, `functools.partial`, classmethod or
    staticmethod one of its own type, any other callable a C callable. Raises TypeError for what
    cannot be timed as it is: a class, a property, something that cannot be called.
    """
    return cast(_F, _decorate(span, function))


def follow_switches() -> None:
    """Time the decorated functions, or stop timing them, as the recorder and debug mode are now."""
    # No lock, which a function that is decorated in a signal handler would wait for: `_apply` looks
    # again at how the switches are, and each function was put into the table before it was looked
    # at for the first time.
    for reference in _functions.keyrefs():
        function = reference()
        timed = None if function is None else _functions.get(function)
        if function is not None and timed is not None:
            _apply(function, timed)


def contexts_of(function: object) -> tuple[Span, ...]:
    """Return the contexts that time a callable as decorators do, innermost first."""
    if type(function) is FunctionType:
        return _spans_of(function)
    if isinstance(function, (classmethod, staticmethod, MethodType)):
        return contexts_of(function.__func__)
    if isinstance(function, (functools.partial, functools.partialmethod)):
        return contexts_of(function.func)
    span = _core.timed_by(function)
    if span is None:
        return ()
    return (*contexts_of(cast(Any, function).__wrapped__), span)


def _decorate(span: Span, function: Any) -> Any:
    if type(function) is FunctionType:
        return _decorate_function(span, function)
    if isinstance(function, (classmethod, staticmethod)):
        wrapped = cast(Any, type(function))(_decorate(span, function.__func__))
        for name, value in vars(function).items():
            vars(wrapped).setdefault(name, value)
        return wrapped
    if isinstance(function, MethodType):
        return MethodType(_decorate(span, function.__func__), function.__self__)
    if isinstance(function, functools.partialmethod):
        return functools.partialmethod(
            _decorate(span, function.func), *function.args, **function.keywords
        )
    if type(function) is functools.partial and isinstance(
        function.func, (FunctionType, MethodType)
    ):
        made = functools.partial(
            _decorate(span, function.func), *function.args, **function.keywords
        )
        vars(made).update(vars(function))
        return made
    _refuse(span, function)
    call = type(function).__call__
    if type(call) is FunctionType and call.__code__.co_flags & _NOT_SYNCHRONOUS:
        # A bound method is still taken for a coroutine or generator function, a C callable is not.
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


def _decorate_function(span: Span, function: FunctionType) -> Any:
    if not _INTERCEPTS_CALLS:
        synchronous = not function.__code__.co_flags & _NOT_SYNCHRONOUS
        in_place = span.kind == "debug" or span.compile_safe or not synchronous
        if not in_place or not trampoline.can_time(function.__code__):
            return _core.TimedFunction(span, function)
    spans = (*_spans_of(function), span)
    fresh = fresh_function(function)
    timed = _functions[fresh] = _Timed(spans)
    if timed.active() or len(spans) > 1:
        _apply(fresh, timed)
    return fresh


def fresh_function(function: FunctionType) -> FunctionType:
    """Return a new function that shares all but its identity with `function`.

    It has no `__wrapped__`: its `__dict__` is the original's own, and its signature is its own too.
    """
    fresh = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
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
    """Return the decorated function that a trampoline's `target` stands for, else `target` itself.

    The target has the code and the closure alone; the function also has defaults, attributes and
    what `functools.wraps` noted, so that only it tells the signature that callers see.
    """
    if type(target) is not FunctionType:
        return target
    known = _by_parts.get(_parts(target))
    function = known() if known is not None else None
    return target if function is None else function


# A trampoline makes its target anew at each call, of parts that stay: the code and the cells.
_by_parts: dict[tuple[int, ...], weakref.ref[FunctionType]] = {}


def _parts(function: FunctionType) -> tuple[int, ...]:
    code, _ = trampoline.layers(function.__code__)
    return (id(code), *map(id, function.__closure__ or ()))


def _remember_parts(function: FunctionType) -> None:
    parts = _parts(function)

    def forget(gone: weakref.ref[FunctionType]) -> None:
        # Comes before the parts are freed, and so before others can have their ids.
        if _by_parts.get(parts) is gone:
            del _by_parts[parts]

    known = _by_parts.get(parts)
    if known is None or known() is not function:
        _by_parts[parts] = weakref.ref(function, forget)


def _spans_of(function: FunctionType) -> tuple[Span, ...]:
    timed = _functions.get(function)
    if timed is not None:
        return timed.spans
    # A copy that somebody made of a function while it was timed.
    return tuple(trampoline.spans[key] for key in trampoline.layers(function.__code__)[1])


def _apply(function: FunctionType, timed: _Timed) -> None:
    try:
        active = timed.active()
        _time_by(function, timed, active)
        # Another thread, or a handler that interrupted this one, may have switched meanwhile, and
        # have come here before.
        while timed.active() != active:
            active = timed.active()
            _time_by(function, timed, active)
    except Exception as error:
        _core.count_lost("decorator_errors")
        _log.warning("stagespan cannot time %s: %s", function.__qualname__, error)


def _time_by(function: FunctionType, timed: _Timed, active: tuple[Span, ...]) -> None:
    if _INTERCEPTS_CALLS:
        _intercept(function, active)
        return
    code, _ = trampoline.layers(function.__code__)
    if active:
        _remember_parts(function)
        code = timed.code(code, function.__qualname__, active)
    if function.__code__ is not code:
        function.__code__ = code


def _intercept(function: FunctionType, spans: tuple[Span, ...]) -> None:
    if sys.version_info >= (3, 12):
        _core.time_function(function, spans)


context.on_switch(follow_switches)
