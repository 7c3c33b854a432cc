"""Finds the arguments of a call by name, without `self` and `cls`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from stagespan.harness.standalone.fit import signature_of
from stagespan.process import imports
from stagespan.signature.target import is_method_of

_OWN = ("self", "cls", "mcs")
_PLAIN = (type(None), bool, int, float, str)


class _Parameters:
    """The parameters of a function. Keeps no reference to the function, and only plain defaults."""

    __slots__ = ("defaults", "positional", "var_positional")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.positional: list[str] = []
        self.defaults: dict[str, Any] = {}
        self.var_positional = "*args"
        for parameter in signature_of(function).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                self.var_positional = f"*{parameter.name}"
            elif parameter.kind is parameter.VAR_KEYWORD:
                continue
            else:
                if type(parameter.default) in _PLAIN:
                    self.defaults[parameter.name] = parameter.default
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    self.positional.append(parameter.name)


_cache: weakref.WeakKeyDictionary[Callable[..., Any], _Parameters] = weakref.WeakKeyDictionary()


def _parameters(function: Callable[..., Any]) -> _Parameters | None:
    try:
        parameters = _cache.get(function)
    except TypeError:  # not hashable, or does not support weak references
        parameters = None
    if parameters is not None:
        return parameters
    try:
        parameters = _Parameters(function)
    except (ValueError, TypeError):
        return None
    with contextlib.suppress(TypeError):
        _cache[function] = parameters
    return parameters


def undecorated(function: Any) -> Any:
    """Return the decorated function that a trampoline of stagespan runs, or ``function``."""
    decorators = imports.loaded("stagespan.contexts.decorators")
    return function if decorators is None else decorators.decorated_function(function)


def receives(function: Any, name: str, value: Any) -> bool:
    """Whether a call's first argument is the object, or class, whose method it is."""
    return name in _OWN or is_method_of(function, value)


def receiver_of(function: Callable[..., Any] | None, args: tuple[Any, ...]) -> Any:
    """Return the object or class whose method was called, or None."""
    function = undecorated(function)
    parameters = _parameters(function) if function is not None and args else None
    if parameters is None or not parameters.positional:
        return None
    return args[0] if receives(function, parameters.positional[0], args[0]) else None


def bind_arguments(
    function: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    with_defaults: bool = True,
) -> dict[str, Any]:
    """Return arguments by name; ``*args`` is a list under ``"*args"`` (the star and its name).

    Plain defaults are included, so that a replay knows, for example, the number of steps; or else
    arguments that are equal to them are left out, because wrappers pass them too. Never raises an
    exception: a call with wrong arguments fails by itself a moment later.
    """
    function = undecorated(function)
    parameters = _parameters(function) if function is not None else None
    positional = parameters.positional if parameters is not None else []
    bound: dict[str, Any] = dict(zip(positional, args))  # noqa: B905 - either may be longer
    surplus = list(args[len(positional) :])
    if args and positional and receives(function, positional[0], args[0]):
        bound.pop(positional[0], None)
    if surplus:
        bound[parameters.var_positional if parameters is not None else "*args"] = surplus
    for name, value in kwargs.items():
        if name in bound and parameters is not None and name in positional:
            continue  # also a positional-only parameter, or an invalid call
        bound[name] = value
    if parameters is not None:
        for name, value in parameters.defaults.items():
            if with_defaults:
                bound.setdefault(name, value)
            elif type(bound.get(name)) is type(value) and bound.get(name) == value:
                bound.pop(name, None)
    return bound
