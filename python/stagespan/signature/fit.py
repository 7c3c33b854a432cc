"""Fitting named inputs into a call. Needs nothing else: the harness's scripts hold this text."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any


class ReplayError(ValueError):
    """A step cannot be run as asked; the message says why in one sentence."""


def signature_of(function: Any) -> inspect.Signature:
    """Return the signature that calls must fit; for a torch module that of its ``forward``.

    Raises ValueError or TypeError for callables without a signature.
    """
    forward = getattr(function, "forward", None)
    if forward is not None and not inspect.isroutine(function) and hasattr(function, "_modules"):
        return inspect.signature(forward)
    return inspect.signature(function)


def fit(
    function: Any, inputs: Mapping[str, Any], optional: Collection[str] = ()
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments for a call: inputs by name, where a list under ``"*args"`` fills ``*args``.

    Inputs named in ``optional`` are left out if the function has no such parameter. Raises
    ReplayError naming what is missing, and what the function has no parameter for.
    """
    unused = dict(inputs)
    try:
        parameters = list(signature_of(function).parameters.values())
    except (TypeError, ValueError):  # a built-in function without a signature
        surplus = [unused.pop(name) for name in list(unused) if name.startswith("*")]
        return [value for values in surplus for value in values], unused
    by_position = any(p.kind is p.VAR_POSITIONAL and unused.get(f"*{p.name}") for p in parameters)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    missing: list[str] = []
    takes_any = False
    for parameter in parameters:
        name = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            args.extend(unused.pop(f"*{name}", ()))
        elif parameter.kind is parameter.VAR_KEYWORD:
            takes_any = True
        elif name not in unused and parameter.default is parameter.empty:
            missing.append(name)
        elif parameter.kind is parameter.POSITIONAL_ONLY or (
            by_position and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ):
            args.append(unused.pop(name, parameter.default))
        elif name in unused:
            kwargs[name] = unused.pop(name)
    if takes_any:
        for name in [name for name in unused if not name.startswith("*")]:
            kwargs[name] = unused.pop(name)
    wrong = [name for name in unused if name not in optional]
    if missing or wrong:
        raise ReplayError(_misfit(function, missing, wrong, [p.name for p in parameters]))
    return args, kwargs


def _misfit(function: Any, missing: list[str], wrong: list[str], names: list[str]) -> str:
    title = getattr(function, "__qualname__", None) or type(function).__qualname__
    parts = []
    if missing:
        parts.append(f"it needs {', '.join(map(repr, missing))}, which the inputs do not hold")
    if wrong:
        parts.append(f"it has no parameter {', '.join(map(repr, wrong))}")
    return f"{title}({', '.join(names)}) cannot be called: {' and '.join(parts)}"
