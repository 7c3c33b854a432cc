"""A placeholder for inputs that no signature can describe. Generated scripts contain this text."""

from __future__ import annotations

from typing import Any

from stagespan.signature.fit import ReplayError


class Missing:
    """In place of an input that has to be passed in."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def without_missing(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs; raises ReplayError if one of them has to be passed in."""
    for name, value in inputs.items():
        if isinstance(value, Missing):
            raise ReplayError(
                f"input {name!r} is a {value.kind}, which cannot be made from its signature: "
                f"pass it in with profile_stage(stage, inputs={{{name!r}: ...}}), or write it into "
                f"create_inputs()"
            )
    return inputs
