"""What was called: a function, or a method and the class of its object."""

from __future__ import annotations

import functools
import inspect
from typing import Any

_CALLED_LIKE_MODULES = ("forward", "__call__")


def callable_of(function: Any, receiver: Any = None) -> dict[str, str]:
    """``module`` and ``qualname`` of what is called, and ``of``, the class of a method's object."""
    while isinstance(function, functools.partial):
        function = function.func
    receiver = getattr(function, "__self__", receiver) if inspect.ismethod(function) else receiver
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str):  # an object that is called, such as a torch module
        receiver = function
        kind = type(function)
        method = "forward" if hasattr(kind, "forward") else "__call__"
        name = f"{kind.__qualname__}.{method}"
    found = {
        "module": str(getattr(function, "__module__", None) or type(function).__module__),
        "qualname": name,
    }
    if receiver is not None:
        kind = receiver if isinstance(receiver, type) else type(receiver)
        found["of"] = f"{kind.__module__}:{kind.__qualname__}"
    return found


def is_method_of(function: Any, first: Any) -> bool:
    """Whether the first argument of a call is the object, or class, whose method was called."""
    parts = str(getattr(function, "__qualname__", "")).split(".")
    if len(parts) < 2 or parts[-2] == "<locals>":
        return False
    kind = first if isinstance(first, type) else type(first)
    return any(base.__name__ == parts[-2] for base in type.__dict__["__mro__"].__get__(kind))


def method_name(target: object) -> str | None:
    """The last part of a captured callable's name; None if it says nothing, as a lambda's."""
    if not isinstance(target, dict) or not isinstance(target.get("qualname"), str):
        return None
    name = str(target["qualname"]).rpartition(".")[2]
    return name if name.isidentifier() else None


def mismatch(target: object, function: Any) -> str | None:
    """A sentence if what would be replayed is not what was captured; None if it is, or may be."""
    captured, found = method_name(target), method_name(callable_of(function))
    if captured is None or found is None or captured == found:
        return None
    if captured in _CALLED_LIKE_MODULES and found in _CALLED_LIKE_MODULES:
        return None
    assert isinstance(target, dict)
    return (
        f"the signature was captured from {target['qualname']!r}, but "
        f"{callable_of(function)['qualname']!r} would be replayed"
    )
