"""Converts named inputs to the arguments of a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Mapping
from typing import Any


class ReplayError(ValueError):
    """A step cannot be run. The message says why in one sentence."""

    def __str__(self) -> str:
        # Names in a signature can contain anything, and scripts do not have StagespanError.
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in super().__str__())


class LoopError(ReplayError):
    """The loop of a stage has no such step. Other inputs are not the remedy."""


def signature_of(function: Any) -> inspect.Signature:
    """Return the signature of a callable; for a torch module, that of its ``forward``.

    Raises ValueError or TypeError for callables without a signature.
    """
    forward = getattr(function, "forward", None)
    if forward is not None and not inspect.isroutine(function) and hasattr(function, "_modules"):
        return inspect.signature(forward)
    return inspect.signature(function)


def bound_by(function: Any) -> dict[str, Any]:
    """Return the arguments that a `functools.partial` binds, by name; none for other callables."""
    if not isinstance(function, functools.partial):
        return {}
    try:
        parameters = signature_of(function.func).parameters.values()
    except (TypeError, ValueError):
        return dict(function.keywords)
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, _BY_POSITION)]
    return {**dict(zip(positional, function.args, strict=False)), **function.keywords}


_BY_POSITION = inspect.Parameter.POSITIONAL_OR_KEYWORD


def fit(
    function: Any, inputs: Mapping[str, Any], optional: Collection[str] = ()
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments for a call. The input ``"*args"`` is a list for ``*args``.

    Inputs named in ``optional`` are left out if the function has no such parameter. Raises
    ReplayError with the names of missing and unexpected inputs.
    """
    unused = dict(inputs)
    try:
        parameters = list(signature_of(function).parameters.values())
    except (TypeError, ValueError):  # a built-in function without a signature
        surplus = [unused.pop(name) for name in list(unused) if name.startswith("*")]
        return [value for values in surplus for value in values], unused
    for name in bound_by(function).keys() - {parameter.name for parameter in parameters}:
        unused.pop(name, None)  # the partial passes it by position
    by_position = any(p.kind is p.VAR_POSITIONAL and unused.get(f"*{p.name}") for p in parameters)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    missing: list[str] = []
    takes_any = False
    for parameter in parameters:
        name, kind = parameter.name, parameter.kind
        if kind is parameter.VAR_POSITIONAL:
            args.extend(unused.pop(f"*{name}", ()))
        elif kind is parameter.VAR_KEYWORD:
            takes_any = True
        elif name not in unused and parameter.default is parameter.empty:
            missing.append(name)
        elif kind is parameter.POSITIONAL_ONLY or (by_position and kind is _BY_POSITION):
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
        parts.append(f"it needs {', '.join(map(repr, missing))}, which the inputs do not contain")
    if wrong:
        parts.append(f"it has no parameter {', '.join(map(repr, wrong))}")
    return f"{title}({', '.join(names)}) cannot be called: {' and '.join(parts)}"


class Missing:
    """A placeholder for an input that the user must pass."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def without_missing(inputs: dict[str, Any], bound: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs, with ``bound`` values in place of placeholders.

    Raises ReplayError if a placeholder is left.
    """
    missing = {name: value.kind for name, value in inputs.items() if isinstance(value, Missing)}
    for name in missing.keys() & bound.keys():
        inputs[name] = bound[name]
        del missing[name]
    if not missing:
        return inputs
    if len(missing) == 1:
        ((name, kind),) = missing.items()
        what = f"input {name!r} is a {kind}, which cannot be created from its signature: pass it"
    else:
        listed = ", ".join(f"{name!r} (a {kind})" for name, kind in missing.items())
        what = f"the inputs {listed} cannot be created from their signatures: pass them"
    passed = ", ".join(f"{name!r}: ..." for name in missing)
    raise ReplayError(
        f"{what} with profile_stage(stage, inputs={{{passed}}}), or write "
        f"{'it' if len(missing) == 1 else 'them'} into create_inputs()"
    )
