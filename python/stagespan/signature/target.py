"""Describes the called function, or the method and the class of its object."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from stagespan.harness.standalone.loaded import WRAPPED_AS

_CALLED_LIKE_MODULES = ("forward", "__call__")


def callable_of(function: Any, receiver: Any = None) -> dict[str, str]:
    """Return ``module`` and ``qualname`` of a callable; for methods also ``of``, the class."""
    while isinstance(function, functools.partial):
        function = function.func
    receiver = getattr(function, "__self__", receiver) if inspect.ismethod(function) else receiver
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str):  # a callable object, such as a torch module
        receiver = function
        kind = type(function)
        method = "forward" if hasattr(kind, "forward") else "__call__"
        name = f"{kind.__qualname__}.{method}"
    named = {
        "module": str(getattr(function, "__module__", None) or type(function).__module__),
        "qualname": name,
    }
    if receiver is not None:
        kind = receiver if isinstance(receiver, type) else type(receiver)
        named["of"] = f"{kind.__module__}:{kind.__qualname__}"
    return named


def is_method_of(function: Any, first: Any) -> bool:
    """Whether the first argument of a call is the object, or class, whose method was called."""
    parts = str(getattr(function, "__qualname__", "")).split(".")
    if len(parts) < 2 or parts[-2] == "<locals>":
        return False
    kind = first if isinstance(first, type) else type(first)
    return any(base.__name__ == parts[-2] for base in type.__dict__["__mro__"].__get__(kind))


def method_name(target: object) -> str | None:
    """Return the last part of a captured callable's name; None for lambdas and the like."""
    if not isinstance(target, dict) or not isinstance(target.get("qualname"), str):
        return None
    name = str(target["qualname"]).rpartition(".")[2]
    return name if name.isidentifier() else None


def class_of(target: object) -> str | None:
    """Return the class of the object whose method was captured, as ``module:Class``, or None."""
    found = target.get("of") if isinstance(target, dict) else None
    return found if isinstance(found, str) and ":" in found else None


def _can_be_of(target: dict[str, Any], function: Any) -> bool:
    """Whether the object of a method is of the captured class, a subclass, or a wrapper of one."""
    names = set(str(target["qualname"]).split(".")[-2:-1])
    names.add(str(target.get("of") or "").rpartition(":")[2].rpartition(".")[2])
    names -= {"", "<locals>"}
    receiver = getattr(function, "__self__", None)
    if receiver is None and not inspect.isroutine(function):
        receiver = function
    if not names or target.get("of") is None or receiver is None:
        return True  # a function on one side: the other one may be a wrapper of it
    kind = receiver if isinstance(receiver, type) else type(receiver)
    bases = {base.__name__ for base in type.__dict__["__mro__"].__get__(kind)}
    wraps = any(hasattr(receiver, name) for name in WRAPPED_AS)
    return wraps or bool(bases & names)


def mismatch(target: object, function: Any) -> str | None:
    """Return a sentence if the callable is not the captured one; None if it is or may be.

    ``function`` is None if a stage has nothing that can be called.
    """
    captured, called = method_name(target), method_name(callable_of(function))
    if captured is None or called is None:
        return None
    assert isinstance(target, dict)
    both_modules = captured in _CALLED_LIKE_MODULES and called in _CALLED_LIKE_MODULES
    if (captured == called or both_modules) and _can_be_of(target, function):
        return None
    replayed = f"{callable_of(function)['qualname']!r} would be replayed"
    if function is None:
        replayed = "the stage has no such method and cannot be called"
    return f"the signature was captured from {target['qualname']!r}, but {replayed}"
