"""Arguments of a call by name, however they were passed; `self` and `cls` left out."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any

_OWN = ("self", "cls", "mcs")


class _Parameters:
    """What binding needs to know of a function: no reference to it, and none to its defaults."""

    __slots__ = ("named", "positional", "rest")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.positional: list[str] = []
        self.named: set[str] = set()
        self.rest = "*args"
        for parameter in signature_of(function).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                self.rest = f"*{parameter.name}"
            elif parameter.kind is parameter.VAR_KEYWORD:
                continue
            else:
                self.named.add(parameter.name)
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    self.positional.append(parameter.name)


_cache: weakref.WeakKeyDictionary[Callable[..., Any], _Parameters] = weakref.WeakKeyDictionary()


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature that calls must fit; for a torch module that of its ``forward``.

    Raises ValueError or TypeError for callables that tell none.
    """
    forward = getattr(function, "forward", None)
    if forward is not None and not inspect.isroutine(function) and hasattr(function, "_modules"):
        return inspect.signature(forward)
    return inspect.signature(function)


def _parameters(function: Callable[..., Any]) -> _Parameters | None:
    try:
        found = _cache.get(function)
    except TypeError:  # not hashable, or no weak references to it
        found = None
    if found is not None:
        return found
    try:
        found = _Parameters(function)
    except (ValueError, TypeError):
        return None
    with contextlib.suppress(TypeError):
        _cache[function] = found
    return found


def bind_arguments(
    function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name; what ``*args`` took is a list under ``"*args"`` (the star and its name).

    Never raises: a call that does not fit its function fails by itself a moment later.
    """
    parameters = _parameters(function) if function is not None else None
    positional = parameters.positional if parameters is not None else []
    bound: dict[str, Any] = dict(zip(positional, args))  # noqa: B905 - either may be longer
    surplus = list(args[len(positional) :])
    if positional and positional[0] in _OWN:
        bound.pop(positional[0], None)
    if surplus:
        bound[parameters.rest if parameters is not None else "*args"] = surplus
    for name, value in kwargs.items():
        if name in bound and parameters is not None and name in positional:
            continue  # positional-only and taken by **kwargs as well, or a call that will fail
        bound[name] = value
    return bound
