"""A placeholder for inputs that no signature can describe. Generated scripts contain this text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagespan.signature.fit import ReplayError


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
