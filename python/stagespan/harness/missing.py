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
    for name, value in list(inputs.items()):
        if isinstance(value, Missing) and name in bound:
            inputs[name] = bound[name]
        elif isinstance(value, Missing):
            raise ReplayError(
                f"input {name!r} is a {value.kind}, which cannot be created from its signature: "
                f"pass it with profile_stage(stage, inputs={{{name!r}: ...}}), or write it into "
                f"create_inputs()"
            )
    return inputs
